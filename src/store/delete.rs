//! Deleting a tree, however deep, whatever its modes, and nothing beyond it.

use std::ffi::CStr;
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::dir::Type;
use nix::errno::Errno;
use nix::sys::stat::{Mode, fstat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::walk::{Next, Visitor, open_directory, open_handle, walk};

/// What was deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeleteStats {
    /// Names of files, links and special files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Whether nothing is left; false where it was cancelled.
    pub complete: bool,
}

/// Deletes the directory `name` of `dir` with everything in it. What can't be deleted (immutable,
/// or a mount) doesn't keep the rest from going; then the first such error is returned.
pub(super) fn delete(
    dir: impl AsFd,
    name: &CStr,
    cancelled: &AtomicBool,
) -> io::Result<DeleteStats> {
    let mut deletion = Deletion {
        stats: DeleteStats::default(),
        cancelled,
        first_error: None,
    };
    // Reading a directory while its entries go may skip some on some filesystems: then once more.
    loop {
        let before = deletion.stats;
        deletion.first_error = None;
        let Some(top) = deletion.open(dir.as_fd(), name)? else {
            break;
        };
        if !walk(top, &mut deletion)? {
            return Ok(deletion.stats);
        }
        match unlinkat(&dir, name, UnlinkatFlags::RemoveDir) {
            Ok(()) => {
                deletion.stats.directories += 1;
                deletion.stats.complete = true;
                return Ok(deletion.stats);
            }
            Err(Errno::ENOTEMPTY | Errno::EEXIST) if deletion.stats != before => {}
            Err(errno) => deletion.keep(errno.into()),
        }
        if deletion.stats == before {
            break;
        }
    }
    Err(deletion
        .first_error
        .unwrap_or_else(|| Errno::ENOTEMPTY.into()))
}

struct Deletion<'a> {
    stats: DeleteStats,
    cancelled: &'a AtomicBool,
    first_error: Option<io::Error>,
}

impl Deletion<'_> {
    /// Remembers what stood in the way, and goes on.
    fn keep(&mut self, error: io::Error) {
        self.first_error.get_or_insert(error);
    }
}

impl Visitor for Deletion<'_> {
    fn entry(&mut self, dir: BorrowedFd<'_>, name: &CStr, kind: Option<Type>) -> io::Result<Next> {
        if self.cancelled.load(Ordering::Relaxed) {
            return Ok(Next::Stop);
        }
        if kind == Some(Type::Directory) {
            return Ok(Next::Descend);
        }
        match unlinkat(dir, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) => self.stats.files += 1,
            Err(Errno::EISDIR) => return Ok(Next::Descend),
            Err(Errno::ENOENT) => {}
            Err(errno) => self.keep(errno.into()),
        }
        Ok(Next::Entry)
    }

    fn open(&mut self, dir: BorrowedFd<'_>, name: &CStr) -> io::Result<Option<OwnedFd>> {
        let opened = match open_directory(dir, name) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                open_up(dir, name).and_then(|()| open_directory(dir, name))
            }
            opened => opened,
        };
        match opened {
            Ok(below) => {
                // Names go only from a directory that its owner may write and search.
                let mode = fstat(&below)?.st_mode;
                if mode & 0o300 != 0o300
                    && let Err(error) = open_up(dir, name)
                {
                    self.keep(error);
                }
                Ok(Some(below))
            }
            Err(error) => {
                self.keep(error);
                Ok(None)
            }
        }
    }

    fn left(&mut self, dir: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
        match unlinkat(dir, name, UnlinkatFlags::RemoveDir) {
            Ok(()) => self.stats.directories += 1,
            Err(errno) => self.keep(errno.into()),
        }
        Ok(())
    }
}

/// Lets the owner of the directory `name` of `dir` do everything in it.
pub(super) fn open_up(dir: impl AsFd, name: &CStr) -> io::Result<()> {
    set_mode(&open_handle(dir, name)?, Mode::S_IRWXU.bits())
}

/// Changes the mode of what a handle stands for. (fchmod refuses such handles.)
pub(super) fn set_mode(handle: &OwnedFd, mode: u32) -> io::Result<()> {
    let path = format!("/proc/self/fd/{}", handle.as_raw_fd());
    fs::set_permissions(path, Permissions::from_mode(mode))
}
