//! A walk over a directory tree by descriptors: never along a symbolic link, never into another
//! mount, with two descriptors open at a time however deep the tree is.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::sys::stat::{Mode, fstat};

/// What a walk does at each entry.
pub(super) trait Visitor {
    /// At each entry but `.` and `..`, with the type where the directory tells it.
    fn entry(&mut self, dir: BorrowedFd<'_>, name: &CStr, kind: Option<Type>) -> io::Result<Next>;

    /// Opens a directory to walk into; none to leave it out.
    fn open(&mut self, dir: BorrowedFd<'_>, name: &CStr) -> io::Result<Option<OwnedFd>>;

    /// After everything in the directory `name` of `dir`.
    fn left(&mut self, dir: BorrowedFd<'_>, name: &CStr) -> io::Result<()>;
}

/// How a walk goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// With the next entry.
    Entry,
    /// Into this one, once the directory is read.
    Descend,
    /// Not at all.
    Stop,
}

/// A directory on the way down.
struct Level {
    /// Device and inode, to know it again on the way up.
    identity: (u64, u64),
    /// The subdirectories still to walk into.
    rest: Vec<CString>,
    /// Its name in the directory above.
    name: CString,
}

/// Walks everything below `top`, depth first. False where the visitor stopped it.
///
/// # Errors
/// The visitor's, and ESTALE where a directory was moved elsewhere while the walk was in it.
pub(super) fn walk(top: OwnedFd, visitor: &mut impl Visitor) -> io::Result<bool> {
    let mut current = top;
    let Some(level) = enter(&current, CString::default(), visitor)? else {
        return Ok(false);
    };
    let mut levels = vec![level];
    while let Some(level) = levels.last_mut() {
        if let Some(name) = level.rest.pop() {
            if let Some(below) = visitor.open(current.as_fd(), &name)? {
                let Some(level) = enter(&below, name, visitor)? else {
                    return Ok(false);
                };
                levels.push(level);
                current = below;
            }
            continue;
        }
        let Some(done) = levels.pop() else { break };
        if let Some(above) = levels.last() {
            let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
            current = openat(&current, c"..", flags, Mode::empty())?;
            if identity(&current)? != above.identity {
                return Err(Errno::ESTALE.into());
            }
            visitor.left(current.as_fd(), &done.name)?;
        }
    }
    Ok(true)
}

/// Shows each entry of `dir` to the visitor and keeps those to descend into.
fn enter(dir: &OwnedFd, name: CString, visitor: &mut impl Visitor) -> io::Result<Option<Level>> {
    let mut level = Level {
        identity: identity(dir)?,
        rest: Vec::new(),
        name,
    };
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    for entry in Dir::openat(dir, c".", flags, Mode::empty())?.iter() {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        match visitor.entry(dir.as_fd(), name, entry.file_type())? {
            Next::Entry => {}
            Next::Descend => level.rest.push(name.to_owned()),
            Next::Stop => return Ok(None),
        }
    }
    Ok(Some(level))
}

fn identity(dir: &OwnedFd) -> io::Result<(u64, u64)> {
    let stat = fstat(dir)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Opens the directory `name` of `dir` for reading: itself, not where a link leads, and not what
/// is mounted on it (EXDEV).
pub(super) fn open_directory(dir: impl AsFd, name: &CStr) -> io::Result<OwnedFd> {
    open_beneath(dir, name, OFlag::O_RDONLY)
}

/// Opens the directory `name` of `dir` just to stand for it, whatever its mode.
pub(super) fn open_handle(dir: impl AsFd, name: &CStr) -> io::Result<OwnedFd> {
    open_beneath(dir, name, OFlag::O_PATH)
}

fn open_beneath(dir: impl AsFd, name: &CStr, flags: OFlag) -> io::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(flags | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
        .resolve(
            ResolveFlag::RESOLVE_BENEATH
                | ResolveFlag::RESOLVE_NO_SYMLINKS
                | ResolveFlag::RESOLVE_NO_MAGICLINKS
                | ResolveFlag::RESOLVE_NO_XDEV,
        );
    Ok(openat2(dir, name, how)?)
}
