//! What a workspace takes on the disk.

use std::collections::HashSet;
use std::ffi::CStr;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use nix::dir::Type;
use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::{FileStat, fstat, fstatat};

use super::walk::{Next, Visitor, open_directory, walk};

/// What a tree takes on the disk, its top directory included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Blocks × 512, once per inode.
    pub bytes: u64,
    /// Inodes, directories included.
    pub files: u64,
}

/// How often a tree is counted anew because directories were moved about meanwhile.
const ATTEMPTS: usize = 5;

/// Counts the tree below a directory, which `open` opens.
pub(super) fn usage(open: impl Fn() -> io::Result<OwnedFd>) -> io::Result<Usage> {
    let mut attempt = 1;
    loop {
        let top = open()?;
        let mut count = Count::default();
        count.add(&fstat(&top)?);
        match walk(top, &mut count) {
            Ok(_) => return Ok(count.usage),
            Err(error) if gone(&error) && attempt < ATTEMPTS => attempt += 1,
            Err(error) => return Err(error),
        }
    }
}

/// Whether a name or a directory went away between two looks.
fn gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESTALE))
}

#[derive(Default)]
struct Count {
    usage: Usage,
    /// Inodes with several names, to count each once.
    linked: HashSet<(u64, u64)>,
}

impl Count {
    fn add(&mut self, stat: &FileStat) {
        let directory = stat.st_mode & libc::S_IFMT == libc::S_IFDIR;
        if directory || stat.st_nlink < 2 || self.linked.insert((stat.st_dev, stat.st_ino)) {
            self.usage.files += 1;
            self.usage.bytes += u64::try_from(stat.st_blocks).unwrap_or(0) * 512;
        }
    }
}

impl Visitor for Count {
    fn entry(&mut self, dir: BorrowedFd<'_>, name: &CStr, _: Option<Type>) -> io::Result<Next> {
        let stat = match fstatat(dir, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Err(Errno::ENOENT) => return Ok(Next::Entry),
            stat => stat?,
        };
        self.add(&stat);
        let directory = stat.st_mode & libc::S_IFMT == libc::S_IFDIR;
        Ok(if directory {
            Next::Descend
        } else {
            Next::Entry
        })
    }

    fn open(&mut self, dir: BorrowedFd<'_>, name: &CStr) -> io::Result<Option<OwnedFd>> {
        match open_directory(dir, name) {
            Ok(below) => Ok(Some(below)),
            // Another mount, a directory that an ordinary user's daemon may not read, or one that
            // has just gone: its own inode is counted.
            Err(error) => match error.raw_os_error() {
                Some(libc::EXDEV | libc::EACCES | libc::ENOENT | libc::ENOTDIR | libc::ELOOP) => {
                    Ok(None)
                }
                _ => Err(error),
            },
        }
    }

    fn left(&mut self, _: BorrowedFd<'_>, _: &CStr) -> io::Result<()> {
        Ok(())
    }
}
