//! Reading directories from any offset.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;

use super::file::check_size;

/// One entry, as getdents64(2) gives it.
#[derive(Debug, Clone, Copy)]
pub struct DirEntry<'a> {
    /// The backing inode number.
    pub ino: u64,
    /// Where the next entry begins.
    pub next: i64,
    /// A `DT_` constant.
    pub kind: u8,
    /// The name.
    pub name: &'a OsStr,
}

/// Entries of one getdents64(2) call.
pub struct Entries<'a> {
    bytes: &'a [u8],
}

/// Reads as many entries as fit into `buffer`; none at the end of the directory.
///
/// # Errors
/// Those of getdents64(2).
pub fn read<'a>(dir: impl AsFd, buffer: &'a mut [u8]) -> io::Result<Entries<'a>> {
    // SAFETY: the kernel writes at most `buffer.len()` bytes into `buffer`.
    let filled = check_size(unsafe {
        libc::syscall(
            libc::SYS_getdents64,
            dir.as_fd().as_raw_fd(),
            buffer.as_mut_ptr(),
            buffer.len(),
        ) as libc::ssize_t
    })?;
    Ok(Entries {
        bytes: &buffer[..filled],
    })
}

impl<'a> Iterator for Entries<'a> {
    type Item = DirEntry<'a>;

    fn next(&mut self) -> Option<DirEntry<'a>> {
        // struct linux_dirent64: ino u64, off i64, reclen u16, type u8, name with NUL.
        let header = self.bytes.get(..19)?;
        let ino = u64::from_ne_bytes(header[..8].try_into().ok()?);
        let next = i64::from_ne_bytes(header[8..16].try_into().ok()?);
        let length = usize::from(u16::from_ne_bytes(header[16..18].try_into().ok()?));
        let kind = header[18];
        let name = self.bytes.get(19..length)?;
        let end = name.iter().position(|&b| b == 0)?;
        self.bytes = &self.bytes[length..];
        Some(DirEntry {
            ino,
            next,
            kind,
            name: OsStr::from_bytes(&name[..end]),
        })
    }
}
