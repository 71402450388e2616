//! `panefs.toml`: what the store's owner set. All of it is optional, none of it is guessed.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error, Unexpected};

use super::error::StoreError;
use crate::model::{Quota, parse_bytes};

/// The settings of a store.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// How long a released workspace is kept by sweeps; none for as long as nobody asks.
    #[serde(deserialize_with = "optional_duration")]
    pub retention: Option<Duration>,
    /// What becomes of reclaimed files.
    pub trash: Trash,
    /// Limits of a workspace for which none were asked.
    pub quota: DefaultQuota,
}

/// What becomes of reclaimed files.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Trash {
    /// How long they can be restored.
    #[serde(deserialize_with = "duration")]
    pub keep: Duration,
    /// Below this share of free space on the disk, in percent, they are deleted at once.
    #[serde(deserialize_with = "percent")]
    pub min_free: u8,
}

impl Default for Trash {
    fn default() -> Self {
        Self {
            keep: Duration::from_secs(24 * 60 * 60),
            min_free: 5,
        }
    }
}

/// Limits of a workspace for which none were asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DefaultQuota {
    /// Bytes, as blocks × 512.
    #[serde(deserialize_with = "optional_bytes")]
    pub bytes: Option<u64>,
    /// Inodes, directories included.
    pub files: Option<u64>,
}

impl From<DefaultQuota> for Quota {
    fn from(quota: DefaultQuota) -> Self {
        Self {
            bytes: quota.bytes,
            files: quota.files,
        }
    }
}

impl Settings {
    /// Reads the file; one that isn't there sets nothing.
    ///
    /// # Errors
    /// [`StoreError::Settings`] names the file and the line.
    pub fn read(file: &Path) -> Result<Self, StoreError> {
        let text = match fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(StoreError::io(file.display().to_string())(error)),
        };
        toml::from_str(&text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start));
            StoreError::Settings {
                file: file.to_owned(),
                line: 1 + before.unwrap_or_default().matches('\n').count(),
                message: error.message().to_owned(),
            }
        })
    }
}

fn duration<'de, D: Deserializer<'de>>(input: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(input)?;
    humantime::parse_duration(&text)
        .map_err(|_| D::Error::invalid_value(Unexpected::Str(&text), &"a time as 30m, 24h or 7d"))
}

fn optional_duration<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Duration>, D::Error> {
    duration(input).map(Some)
}

fn percent<'de, D: Deserializer<'de>>(input: D) -> Result<u8, D::Error> {
    let text = String::deserialize(input)?;
    let number = text.strip_suffix('%').and_then(|n| n.trim().parse().ok());
    number
        .filter(|n| *n <= 100)
        .ok_or_else(|| D::Error::invalid_value(Unexpected::Str(&text), &"a share as 5%"))
}

fn optional_bytes<'de, D: Deserializer<'de>>(input: D) -> Result<Option<u64>, D::Error> {
    #[derive(serde::Deserialize)]
    #[serde(
        untagged,
        expecting = "expected a size as \"10GiB\", or a number of bytes"
    )]
    enum Size {
        Number(u32),
        Text(String),
    }
    match Size::deserialize(input)? {
        Size::Number(bytes) => Ok(Some(bytes.into())),
        Size::Text(text) => parse_bytes(&text)
            .map(Some)
            .ok_or_else(|| D::Error::invalid_value(Unexpected::Str(&text), &"a size as 10GiB")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Settings, String> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("panefs.toml");
        fs::write(&file, text).unwrap();
        Settings::read(&file).map_err(|e| {
            let text = e.to_string();
            text.rsplit('/').next().unwrap().to_owned()
        })
    }

    #[test]
    fn everything_is_optional_and_nothing_is_guessed() {
        let none = Settings::read(Path::new("/nonexistent/panefs.toml")).unwrap();
        assert_eq!(none, Settings::default());
        assert_eq!(none.trash.keep, Duration::from_secs(86_400));
        assert_eq!(none.trash.min_free, 5);
        assert_eq!(read("").unwrap(), none);

        let all = read(
            "retention = \"30d\"\n[trash]\nkeep = \"1h\"\nmin_free = \"10%\"\n\
             [quota]\nbytes = \"10GiB\"\nfiles = 1000\n",
        )
        .unwrap();
        assert_eq!(all.retention, Some(Duration::from_secs(30 * 86_400)));
        assert_eq!(all.trash.keep, Duration::from_secs(3600));
        assert_eq!(all.trash.min_free, 10);
        assert_eq!(
            (all.quota.bytes, all.quota.files),
            (Some(10 << 30), Some(1000))
        );
    }

    #[test]
    fn an_error_names_its_line() {
        for (text, line, word) in [
            ("retention = \"1d\"\nretentoin = \"1d\"\n", 2, "retentoin"),
            ("\n[trash]\nkeep = \"soon\"\n", 3, "soon"),
            ("[trash]\n\nmin_free = \"120%\"\n", 3, "120%"),
            ("[trash]\nkept = \"1h\"\n", 2, "kept"),
            ("[quota]\nbytes = \"many\"\n", 2, "many"),
            ("[quota]\nbytes = true\n", 2, "size"),
            ("a\n= b", 1, ""),
        ] {
            let error = read(text).unwrap_err();
            assert!(
                error.starts_with(&format!("panefs.toml:{line}: ")),
                "{text:?}: {error}"
            );
            assert!(error.contains(word), "{text:?}: {error}");
            assert!(!error.trim().contains('\n'), "{error}");
        }
    }
}
