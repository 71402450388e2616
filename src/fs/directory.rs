//! Listing directories of a workspace.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::access::Request;
use super::attr::Entry;
use super::error::{Error, Result};
use super::node::{Node, Place};
use super::{Fs, data};
use crate::sys::{dir, file};

impl Fs {
    /// Whether a directory may be opened for listing.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn may_list(&self, request: Request<'_>, nodeid: u64) -> Result<()> {
        if super::Synthetic::from_nodeid(nodeid).is_some() {
            return Ok(());
        }
        let node = self.node(nodeid)?;
        let at = self.backing.locate(&node)?;
        let _acting = self.act_as(request.asker, None)?;
        file::reopen(&*at, libc::O_RDONLY | libc::O_DIRECTORY)?;
        Ok(())
    }

    /// Reads a directory from `offset`, which is 0 or what an earlier entry gave as the next
    /// one's. `take` gets each entry, and says when it has enough.
    ///
    /// # Errors
    /// Those of open(2) and getdents64(2).
    pub fn readdir(
        &self,
        nodeid: u64,
        offset: u64,
        mut take: impl FnMut(&OwnedFd, &Arc<Node>, u64, dir::DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let node = self.node(nodeid)?;
        let directory = self
            .backing
            .open(&node, libc::O_RDONLY | libc::O_DIRECTORY)?;
        if offset > 0 {
            let offset = i64::try_from(offset).map_err(|_| Error(libc::EINVAL))?;
            nix::unistd::lseek(&directory, offset, nix::unistd::Whence::SeekSet)?;
        }
        let mut buffer = vec![0; 32 * 1024];
        loop {
            let mut any = false;
            for entry in dir::read(&directory, &mut buffer)? {
                any = true;
                let ino = if entry.name == ".." && matches!(*node.place.lock(), Place::Top(_)) {
                    super::Synthetic::Root.ino()
                } else {
                    self.backing.nodeid(entry.ino)
                };
                if take(&directory, &node, ino, entry) {
                    return Ok(());
                }
            }
            if !any {
                return Ok(());
            }
        }
    }

    /// The answer to a lookup of an entry that was just listed; none where it has gone since, or
    /// lies on another filesystem.
    pub fn listed(
        &self,
        request: Request<'_>,
        directory: &OwnedFd,
        parent: &Arc<Node>,
        name: &OsStr,
    ) -> Option<Entry> {
        self.entry_at(request, parent, directory, name)
            .ok()
            .map(|(_, entry)| entry)
    }

    /// The kernel had no room for an entry that was counted.
    pub fn unlisted(&self, request: Request<'_>, entry: &Entry) {
        self.nodes.forget(request.mount.id, entry.nodeid, 1);
    }

    /// Makes a directory's names durable.
    ///
    /// # Errors
    /// Those of fsync(2).
    pub fn fsyncdir(&self, nodeid: u64, data_only: bool) -> Result<()> {
        let node = self.node(nodeid)?;
        let fd = self
            .backing
            .open(&node, libc::O_RDONLY | libc::O_DIRECTORY)?;
        data::sync(fd, data_only)
    }
}
