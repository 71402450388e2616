//! Moments, as the registry stores them and as users read them.

use std::fmt;
use std::time::{Duration, SystemTime};

use serde::{Serialize, Serializer};

/// A moment in milliseconds since the Unix epoch; shown as RFC 3339 in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The wall clock's present moment.
    pub fn now() -> Self {
        let since = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        Self(since.as_millis().try_into().unwrap_or(i64::MAX))
    }

    /// From milliseconds since the Unix epoch.
    pub fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the Unix epoch.
    pub fn millis(self) -> i64 {
        self.0
    }

    /// How long before `later` this moment lies; zero where it doesn't.
    pub fn age(self, later: Self) -> Duration {
        Duration::from_millis(later.0.saturating_sub(self.0).try_into().unwrap_or(0))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = Duration::from_millis(self.0.try_into().unwrap_or(0));
        humantime::format_rfc3339_millis(SystemTime::UNIX_EPOCH + since).fmt(f)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
