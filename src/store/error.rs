//! Why a store could not be opened, or the registry not be read or written.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::model::{Refusal, Rule};

/// Why a store could not be opened.
#[derive(Debug, Error)]
pub enum StoreError {
    /// Something beneath the store failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried, with the path concerned.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// The directory has other content. It was left as it was.
    #[error("{} is neither empty nor a panefs store", path.display())]
    NotAStore {
        /// The directory.
        path: PathBuf,
    },
    /// Another daemon serves it.
    #[error("{} is served by another daemon{}", path.display(), pid_text(*pid))]
    Locked {
        /// The store.
        path: PathBuf,
        /// The other daemon; none where it hasn't written its pid yet.
        pid: Option<u32>,
    },
    /// The settings can't be used.
    #[error("{}:{line}: {message}", file.display())]
    Settings {
        /// The settings file.
        file: PathBuf,
        /// The line concerned, from 1.
        line: usize,
        /// What is wrong with it.
        message: String,
    },
    /// The registry can't be used.
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

fn pid_text(pid: Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(", pid {pid}"))
}

impl StoreError {
    /// Names what was tried, for use with `map_err`.
    pub(super) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    /// One sentence that the reader can act on.
    pub fn next_action(&self) -> String {
        match self {
            Self::Io { .. } => "Look at the path's permissions and at its disk.".to_owned(),
            Self::NotAStore { .. } => {
                "Name a store, an empty directory, or a path that does not exist yet.".to_owned()
            }
            Self::Locked { pid: Some(pid), .. } => {
                format!("Use the mount of that daemon, or unmount it (pid {pid}) first.")
            }
            Self::Locked { pid: None, .. } => {
                "Use the mount of that daemon, or unmount it first.".to_owned()
            }
            Self::Settings { file, .. } => format!("Correct {} and try again.", file.display()),
            Self::Registry(error) => error.next_action(),
        }
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        let next_action = error.next_action();
        match error {
            StoreError::NotAStore { .. } | StoreError::Settings { .. } => {
                Refusal::new(Rule::ArgumentInvalid, error.to_string(), next_action)
            }
            error => {
                let mut refusal = Refusal::internal("the store can't be opened", error);
                refusal.next_action = next_action;
                refusal
            }
        }
    }
}

/// Why the registry could not be read or written.
#[derive(Debug, Error)]
pub enum RegistryError {
    /// SQLite, or the disk beneath it.
    #[error("{what}: {source}")]
    Sqlite {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: rusqlite::Error,
    },
    /// A later version of panefs wrote it. It was left as it was.
    #[error("{} has schema {found}; this panefs knows {known} and older", path.display())]
    Newer {
        /// The database.
        path: PathBuf,
        /// Its schema.
        found: i64,
        /// The newest schema known here.
        known: i64,
    },
    /// It isn't a registry of panefs. It was left as it was.
    #[error("{} is not a panefs registry", path.display())]
    Foreign {
        /// The database.
        path: PathBuf,
    },
    /// A row holds what no panefs wrote.
    #[error("the registry's {table} row {row} is damaged: {what}")]
    Damaged {
        /// The table.
        table: &'static str,
        /// The row's number.
        row: i64,
        /// What is wrong with it.
        what: String,
    },
}

impl RegistryError {
    /// Names what was tried, for use with `map_err`.
    pub(super) fn sqlite(what: &'static str) -> impl FnOnce(rusqlite::Error) -> Self {
        move |source| Self::Sqlite { what, source }
    }

    /// One sentence that the reader can act on.
    pub fn next_action(&self) -> String {
        match self {
            Self::Sqlite { .. } => {
                "Look at the daemon's log and at the store's disk, then try again.".to_owned()
            }
            Self::Newer { .. } => "Use the panefs that wrote it, or a later one.".to_owned(),
            Self::Foreign { .. } | Self::Damaged { .. } => {
                "Move panefs.db away; the workspaces' files are kept and come back as released."
                    .to_owned()
            }
        }
    }
}

impl From<RegistryError> for Refusal {
    fn from(error: RegistryError) -> Self {
        let next_action = error.next_action();
        let mut refusal = Self::internal("the registry did not take it", error);
        refusal.next_action = next_action;
        refusal
    }
}
