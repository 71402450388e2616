//! Names of windows, workspaces, occupations and jobs, as users write them.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use super::refusal::{Refusal, Rule};

/// The highest number that a window or a workspace may bear.
///
/// Nine digits: every id fits a column of a listing, and a 32-bit field of an inode number.
pub const MAX_ID: u32 = 999_999_999;

/// Parses the digits of an id: no sign, no leading zero, 1 to [`MAX_ID`].
fn digits(text: &str) -> Option<u32> {
    let plain = !text.is_empty()
        && text.len() <= 9
        && !text.starts_with('0')
        && text.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u32);

        impl $name {
            /// The id with this number, where 1 ≤ `number` ≤ [`MAX_ID`].
            pub fn new(number: u32) -> Option<Self> {
                (1..=MAX_ID).contains(&number).then_some(Self(number))
            }

            /// The number behind the prefix.
            pub fn number(self) -> u32 {
                self.0
            }

            /// Reads the exact spelling, without saying why another one is wrong.
            pub fn parse(text: &str) -> Option<Self> {
                text.strip_prefix($prefix).and_then(digits).map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    };
}

id!(
    /// One context window: `c7`.
    WindowId,
    "c"
);
id!(
    /// One workspace directory, for good: `ws7`.
    WorkspaceId,
    "ws"
);
id!(
    /// One long command: `j7`.
    JobId,
    "j"
);

impl FromStr for WindowId {
    type Err = Refusal;

    /// # Errors
    /// [`Rule::WindowRefInvalid`] for anything but `c` and a number without a leading zero.
    fn from_str(text: &str) -> Result<Self, Refusal> {
        Self::parse(text).ok_or_else(|| {
            Refusal::new(
                Rule::WindowRefInvalid,
                format!("{text:?} is not a window"),
                "Name a window as c1, c2, … (no leading zero, at most nine digits).",
            )
        })
    }
}

impl FromStr for WorkspaceId {
    type Err = Refusal;

    /// # Errors
    /// [`Rule::WorkspaceRefUnknown`] for anything but `ws` and a number without a leading zero.
    fn from_str(text: &str) -> Result<Self, Refusal> {
        Self::parse(text).ok_or_else(|| not_a_ref(text))
    }
}

impl FromStr for JobId {
    type Err = Refusal;

    /// # Errors
    /// [`Rule::JobNotFound`]: whatever is not spelled as a job is none.
    fn from_str(text: &str) -> Result<Self, Refusal> {
        Self::parse(text).ok_or_else(|| {
            Refusal::new(
                Rule::JobNotFound,
                format!("there is no job {text:?}"),
                "See `list jobs` for the jobs of this mount.",
            )
        })
    }
}

fn not_a_ref(text: &str) -> Refusal {
    Refusal::new(
        Rule::WorkspaceRefUnknown,
        format!("{text:?} is not a workspace ref"),
        "Name a workspace as ws1, ws2, … (or ws1.2 for one occupation of a prepared workspace).",
    )
}

/// One occupation of a workspace: `ws7`, or `ws7.2` for the second occupation of a prepared one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkspaceRef {
    /// The directory.
    pub workspace: WorkspaceId,
    /// Which occupation of a prepared workspace; none for a plain one.
    pub occupation: Option<u32>,
}

impl fmt::Display for WorkspaceRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.occupation {
            None => write!(f, "{}", self.workspace),
            Some(n) => write!(f, "{}.{n}", self.workspace),
        }
    }
}

impl Serialize for WorkspaceRef {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl FromStr for WorkspaceRef {
    type Err = Refusal;

    /// # Errors
    /// [`Rule::WorkspaceRefUnknown`] for anything but `wsN` and `wsN.K`.
    fn from_str(text: &str) -> Result<Self, Refusal> {
        let (workspace, occupation) = match text.split_once('.') {
            None => (text, None),
            Some((workspace, n)) => (workspace, Some(digits(n).ok_or_else(|| not_a_ref(text))?)),
        };
        let workspace = WorkspaceId::parse(workspace).ok_or_else(|| not_a_ref(text))?;
        Ok(Self {
            workspace,
            occupation,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_spelling_is_an_id() {
        assert_eq!(WindowId::parse("c7").map(WindowId::number), Some(7));
        for bad in [
            "",
            "c",
            "c0",
            "c007",
            "C7",
            "c7 ",
            " c7",
            "c-7",
            "c+7",
            "c7.1",
            "c99999999999",
            "c７",
            "ws7",
        ] {
            assert_eq!(WindowId::parse(bad), None, "{bad:?}");
        }
        for bad in [
            "", "ws", "ws0", "ws1 ", "ws01", "ws1.", "ws1.0", "ws1.2.3", "c1",
        ] {
            assert!(bad.parse::<WorkspaceRef>().is_err(), "{bad:?}");
        }
        let r: WorkspaceRef = "ws12.3".parse().unwrap();
        assert_eq!((r.workspace.number(), r.occupation), (12, Some(3)));
        assert_eq!(r.to_string(), "ws12.3");
    }
}
