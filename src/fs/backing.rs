//! From a node to its backing file.
//!
//! As root by file handle, which needs no name; else one component at a time from the directory
//! where it was last seen, and always verified by number; else by a descriptor that was pinned
//! when the last known name went. Never by a path glued together.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::Mode;
use parking_lot::Mutex;

use super::node::{Node, Place};
use super::nodeid::Numbers;
use crate::gate::HeldFile;
use crate::model::WorkspaceId;
use crate::store::Store;
use crate::sys::file::{self, FileHandle};

/// How many directory descriptors are kept open, at most.
const CACHED_DIRECTORIES: usize = 256;

/// How often a name may be replaced while it is looked at.
pub const REPLACED_AT_MOST: usize = 64;

/// Opens backing files.
#[derive(Debug)]
pub struct Backing {
    store: Arc<Store>,
    /// The device of the workspaces: what lies on another one is not panefs's.
    device: u64,
    by_handle: bool,
    numbers: Numbers,
    directories: Mutex<HashMap<u64, Arc<OwnedFd>>>,
}

fn stale() -> io::Error {
    io::Error::from_raw_os_error(libc::ESTALE)
}

impl Backing {
    /// Opens files beneath the store's workspaces.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub fn new(store: Arc<Store>) -> io::Result<Self> {
        let top = file::stat(store.workspaces_fd())?;
        // Both calls must work: a filesystem may have no handles, and a container no capability.
        let by_handle = file::name_to_handle(store.workspaces_fd(), OsStr::new(""))
            .and_then(|handle| file::open_by_handle(store.workspaces_fd(), &handle, libc::O_PATH))
            .is_ok();
        tracing::debug!(by_handle, "files are found again");
        Ok(Self {
            store,
            device: top.st_dev,
            by_handle,
            numbers: Numbers::default(),
            directories: Mutex::default(),
        })
    }

    /// The directory of all workspaces.
    pub fn workspaces(&self) -> BorrowedFd<'_> {
        self.store.workspaces_fd()
    }

    /// The number towards the kernel of a backing inode.
    pub fn nodeid(&self, backing: u64) -> u64 {
        self.numbers.nodeid(backing)
    }

    /// The attributes of `name` in `dir`.
    ///
    /// # Errors
    /// EXDEV for what lies on another filesystem than the workspaces; those of fstatat(2).
    pub fn stat_at(&self, dir: impl AsFd, name: &OsStr) -> io::Result<libc::stat> {
        let stat = file::stat_at(dir, name)?;
        if stat.st_dev != self.device {
            return Err(io::Error::from_raw_os_error(libc::EXDEV));
        }
        Ok(stat)
    }

    /// The attributes and the handle of one and the same file: `name` in `dir`.
    ///
    /// # Errors
    /// As for [`Backing::stat_at`].
    pub fn identify(
        &self,
        dir: &OwnedFd,
        name: &OsStr,
    ) -> io::Result<(libc::stat, Option<FileHandle>)> {
        let mut stat = self.stat_at(dir, name)?;
        if !self.by_handle {
            return Ok((stat, None));
        }
        // Another mount of the tree may replace the name in between.
        for _ in 0..REPLACED_AT_MOST {
            let handle = file::name_to_handle(dir, name).ok();
            let again = self.stat_at(dir, name)?;
            if again.st_ino == stat.st_ino {
                return Ok((again, handle));
            }
            stat = again;
        }
        Err(io::Error::from_raw_os_error(libc::EAGAIN))
    }

    /// The handle of what `fd` is open on, where handles may be used.
    pub fn handle_of(&self, fd: &OwnedFd) -> Option<FileHandle> {
        if !self.by_handle {
            return None;
        }
        file::name_to_handle(fd, OsStr::new("")).ok()
    }

    /// Opens the top of a workspace, never through a link.
    ///
    /// # Errors
    /// ENOENT, or ENOTDIR and ELOOP where it was replaced behind the daemon's back.
    pub fn open_top(&self, id: WorkspaceId) -> io::Result<OwnedFd> {
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
            .resolve(
                ResolveFlag::RESOLVE_BENEATH
                    | ResolveFlag::RESOLVE_NO_SYMLINKS
                    | ResolveFlag::RESOLVE_NO_MAGICLINKS
                    | ResolveFlag::RESOLVE_NO_XDEV,
            );
        Ok(openat2(self.workspaces(), id.to_string().as_str(), how)?)
    }

    /// An `O_PATH` descriptor of a node.
    ///
    /// # Errors
    /// ESTALE where it can't be found any more; those of open(2).
    pub fn locate(&self, node: &Node) -> io::Result<Arc<OwnedFd>> {
        if node.is_directory()
            && let Some(fd) = self.directories.lock().get(&node.id)
        {
            return Ok(Arc::clone(fd));
        }
        let place = node.place.lock().clone();
        let fd = match (&node.handle, place) {
            (_, Place::Pinned(fd, _)) => return Ok(fd),
            (Some(handle), _) => file::open_by_handle(self.workspaces(), handle, libc::O_PATH)?,
            (None, Place::Top(id)) => self.verified(node, self.open_top(id)?)?,
            (None, Place::Named(parent, name)) => {
                let parent = self.locate(&parent)?;
                let fd = nix::fcntl::openat(
                    parent,
                    &*name,
                    OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC,
                    Mode::empty(),
                )?;
                self.verified(node, fd)?
            }
        };
        let fd = Arc::new(fd);
        if node.is_directory() {
            self.remember(node.id, &fd);
        }
        Ok(fd)
    }

    fn verified(&self, node: &Node, fd: OwnedFd) -> io::Result<OwnedFd> {
        let stat = file::stat(&fd)?;
        let same = stat.st_dev == self.device
            && self.nodeid(stat.st_ino) == node.id
            && stat.st_mode & libc::S_IFMT == node.kind;
        if same { Ok(fd) } else { Err(stale()) }
    }

    /// The descriptor keeps the inode, so the number can't come to name another one meanwhile.
    fn remember(&self, id: u64, fd: &Arc<OwnedFd>) {
        let mut directories = self.directories.lock();
        if directories.len() >= CACHED_DIRECTORIES {
            let dropped: Vec<u64> = directories
                .keys()
                .take(CACHED_DIRECTORIES / 4)
                .copied()
                .collect();
            directories.retain(|id, _| !dropped.contains(id));
        }
        directories.insert(id, Arc::clone(fd));
    }

    /// Lets go of a directory's descriptor: it was removed, or must be looked up anew.
    pub fn let_go(&self, id: u64) {
        self.directories.lock().remove(&id);
    }

    /// Lets go of every directory's descriptor.
    pub fn let_all_go(&self) {
        self.directories.lock().clear();
    }

    /// The attributes of a node.
    ///
    /// # Errors
    /// As for [`Backing::locate`].
    pub fn stat(&self, node: &Node) -> io::Result<libc::stat> {
        // One call instead of three where the directory that it was seen in is at hand.
        if let Place::Named(parent, name) = node.place.lock().clone() {
            let parent = self.directories.lock().get(&parent.id).cloned();
            if let Some(parent) = parent
                && let Ok(stat) = self.stat_at(parent, &name)
                && self.nodeid(stat.st_ino) == node.id
                && stat.st_mode & libc::S_IFMT == node.kind
            {
                return Ok(stat);
            }
        }
        file::stat(self.locate(node)?)
    }

    /// Opens a node's data with the thread's present rights.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn open(&self, node: &Node, flags: i32) -> io::Result<OwnedFd> {
        file::reopen(self.locate(node)?, flags)
    }
}

/// A node as the gate sees it: held open for writing, or perhaps mapped.
#[derive(Debug)]
pub struct Held {
    /// The file.
    pub node: Arc<Node>,
    /// How to look at it.
    pub backing: Arc<Backing>,
}

impl HeldFile for Held {
    fn ino(&self) -> u64 {
        self.node.id
    }

    fn path(&self) -> String {
        self.node.path().to_string_lossy().into_owned()
    }

    fn is_quiet(&self) -> bool {
        let quiet = self
            .backing
            .open(&self.node, libc::O_RDONLY)
            .and_then(file::is_quiet);
        match quiet {
            Ok(quiet) => quiet,
            // An inode that is gone can't be written to by anybody who matters here.
            Err(error) => error.raw_os_error() == Some(libc::ESTALE),
        }
    }
}
