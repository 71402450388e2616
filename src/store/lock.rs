//! One daemon a store: a lock that ends with its process, whatever becomes of it.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use super::error::StoreError;
use crate::sys::pidfd::{self, PidFd};

/// Held for as long as the store is open. (The file's content, the holder's pid, is for people
/// and for refusals; it means nothing while nobody holds the lock.)
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

/// How long a daemon may take to end that was killed just now.
const DYING: Duration = Duration::from_secs(2);

/// Waits for a holder that is ending; whether it has ended.
fn wait_for_end(pid: Option<u32>) -> bool {
    let Some(holder) = pid.and_then(|pid| PidFd::of_process(pid).ok()) else {
        // It has ended since the lock was refused.
        return true;
    };
    pidfd::wait_any_ended(&[&holder], DYING).is_ok_and(|ended| ended == [true])
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
        let mut waited = false;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(failed()(error)),
            }
            let mut text = String::new();
            file.rewind().map_err(failed())?;
            file.read_to_string(&mut text).map_err(failed())?;
            let pid: Option<u32> = text.trim().parse().ok();
            if waited || !wait_for_end(pid) {
                return Err(StoreError::Locked {
                    path: path.to_owned(),
                    pid,
                });
            }
            waited = true;
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
