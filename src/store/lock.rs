//! One daemon a store: a lock that ends with its process, whatever becomes of it.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::error::StoreError;

/// Held for as long as the store is open. (The file's content, the holder's pid, is for people
/// and for refusals; it means nothing while nobody holds the lock.)
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock of the store at `path`.
    ///
    /// # Errors
    /// [`StoreError::Locked`] names the pid of the daemon that has it.
    pub fn take(path: &Path) -> Result<Self, StoreError> {
        let failed = || StoreError::io(format!("{}/lock", path.display()));
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(path.join("lock"))
            .map_err(failed())?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                file.read_to_string(&mut text).map_err(failed())?;
                return Err(StoreError::Locked {
                    path: path.to_owned(),
                    pid: text.trim().parse().ok(),
                });
            }
            Err(TryLockError::Error(error)) => return Err(failed()(error)),
        }
        let write = |file: &mut File| {
            file.rewind()?;
            file.set_len(0)?;
            writeln!(file, "{}", std::process::id())
        };
        write(&mut file).map_err(failed())?;
        Ok(Self { _file: file })
    }
}
