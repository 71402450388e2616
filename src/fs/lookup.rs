//! From names to nodes: what the kernel may believe, and for how long.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::Fs;
use super::access::Request;
use super::attr::{Attr, Entry, Ttl};
use super::backing::REPLACED_AT_MOST;
use super::error::{Error, Result};
use super::node::{Node, Place};
use crate::gate::Gate;
use crate::sys::file;
use crate::sys::file::FileHandle;

impl Fs {
    /// Counts a lookup of a file with these attributes and this handle.
    pub(super) fn entry(
        &self,
        request: Request<'_>,
        gate: &Arc<Gate>,
        stat: &libc::stat,
        handle: Option<FileHandle>,
        place: impl FnOnce() -> Place,
    ) -> (Arc<Node>, Entry) {
        let id = self.backing.nodeid(stat.st_ino);
        let kind = stat.st_mode & libc::S_IFMT;
        let node = self
            .nodes
            .look_up(request.mount.id, id, kind, handle, |generation, handle| {
                Node {
                    id,
                    generation,
                    kind,
                    gate: Arc::clone(gate),
                    handle,
                    place: parking_lot::Mutex::new(place()),
                    data: parking_lot::Mutex::default(),
                }
            });
        let entry = self.entry_of(request, &node, stat);
        (node, entry)
    }

    fn entry_of(&self, request: Request<'_>, node: &Arc<Node>, stat: &libc::stat) -> Entry {
        Entry {
            nodeid: node.id,
            generation: node.generation,
            attr: Attr::from_stat(node.id, stat),
            entry_ttl: if request.mount.is_view() {
                Ttl::Never
            } else {
                Ttl::UntilChanged
            },
            attr_ttl: self.attr_ttl(request, node, stat.st_mode),
        }
    }

    /// How long the kernel may believe a node's attributes. A write clears set-id bits without
    /// the kernel's cached mode following.
    pub(super) fn attr_ttl(&self, request: Request<'_>, node: &Arc<Node>, mode: u32) -> Ttl {
        let set_id = mode & (libc::S_ISUID | libc::S_ISGID) != 0;
        if request.mount.is_view() || (node.is_regular() && (set_id || !self.settle(node))) {
            Ttl::Never
        } else {
            Ttl::UntilChanged
        }
    }

    pub(super) fn entry_at(
        &self,
        request: Request<'_>,
        parent: &Arc<Node>,
        dir: &OwnedFd,
        name: &OsStr,
    ) -> Result<(Arc<Node>, Entry)> {
        // Whoever removes the name meanwhile keeps the inode only if the node is known by then: so
        // the name must still be there once it is.
        for _ in 0..REPLACED_AT_MOST {
            let (stat, handle) = self.backing.identify(dir, name)?;
            let place = || Place::Named(Arc::clone(parent), name.into());
            let (node, entry) = self.entry(request, &parent.gate, &stat, handle, place);
            match self.backing.stat_at(dir, name) {
                Ok(again) if again.st_ino == stat.st_ino => return Ok((node, entry)),
                Ok(_) => self.nodes.forget(request.mount.id, node.id, 1),
                Err(error) => {
                    self.nodes.forget(request.mount.id, node.id, 1);
                    return Err(error.into());
                }
            }
        }
        Err(Error(libc::EAGAIN))
    }

    /// Looks up a name in a directory of a workspace.
    ///
    /// # Errors
    /// Those of stat(2).
    pub fn lookup(&self, request: Request<'_>, parent: u64, name: &OsStr) -> Result<Entry> {
        let parent = self.node(parent)?;
        let dir = self.backing.locate(&parent)?;
        Ok(self.entry_at(request, &parent, &dir, name)?.1)
    }

    /// Looks up the top directory of a workspace.
    ///
    /// # Errors
    /// ENOENT where the tree has none of that name; EIO where its directory is gone.
    pub fn lookup_top(&self, request: Request<'_>, gate: &Arc<Gate>) -> Result<Entry> {
        let id = gate.workspace();
        let top = self.backing.open_top(id).map_err(|error| {
            tracing::error!(workspace = %id, %error, "a workspace's directory can't be opened");
            Error(libc::EIO)
        })?;
        let stat = file::stat(&top)?;
        let handle = self.backing.handle_of(&top);
        let (_, mut entry) = self.entry(request, gate, &stat, handle, || Place::Top(id));
        // Mounts on a top and Landlock rules hang on its dentry: it is never looked up anew by
        // MNT while it exists.
        if !request.mount.is_view() {
            entry.entry_ttl = Ttl::UntilChanged;
        }
        Ok(entry)
    }

    /// The attributes of a workspace's top directory.
    ///
    /// # Errors
    /// EIO where its directory is gone.
    pub fn top_attr(&self, gate: &Gate) -> Result<Attr> {
        let top = self
            .backing
            .open_top(gate.workspace())
            .map_err(|_| Error(libc::EIO))?;
        let stat = file::stat(&top)?;
        Ok(Attr::from_stat(self.backing.nodeid(stat.st_ino), &stat))
    }

    /// Takes back lookups that the kernel has forgotten.
    pub fn forget(&self, request: Request<'_>, nodeid: u64, lookups: u64) {
        self.nodes.forget(request.mount.id, nodeid, lookups);
    }

    /// Where a symbolic link leads.
    ///
    /// # Errors
    /// Those of readlink(2).
    pub fn readlink(&self, nodeid: u64) -> Result<std::ffi::OsString> {
        let node = self.node(nodeid)?;
        Ok(nix::fcntl::readlinkat(&*self.backing.locate(&node)?, c"")?)
    }

    /// The filesystem beneath.
    ///
    /// # Errors
    /// Those of fstatvfs(3).
    pub fn statfs(&self) -> Result<nix::sys::statvfs::Statvfs> {
        Ok(nix::sys::statvfs::fstatvfs(self.backing.workspaces())?)
    }
}
