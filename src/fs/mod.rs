//! The filesystem itself: the tree, its nodes and handles, and the gate before every change.
//! It knows nothing of FUSE's wire; errors are errnos, and replies are plain values.
//!
//! `tree` is the synthetic part; `lookup`, `attributes`, `directory`, `names` and `data` are the
//! operations on backing files.

mod access;
mod attr;
mod attributes;
mod backing;
mod data;
mod directory;
mod error;
mod handle;
mod lookup;
mod names;
mod node;
mod nodeid;
mod operation;
mod requests;
mod tree;

use std::any::Any;
use std::ffi::OsStr;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock, Weak};

pub use access::{Asker, Mount, Request};
pub use attr::{Attr, Entry, Ttl};
pub use attributes::{AttrChange, NewTime};
pub use data::{Opened, Reached, WriteHow};
pub use error::{Error, Result};
pub use handle::Handle;
pub use names::CreateHow;
pub use node::{MountId, Node};
pub use nodeid::{Numbers, ROOT, Synthetic, WindowEntry};
pub use operation::{Effect, Operation};
pub use tree::{Listed, Target};

use access::Capabilities;
use backing::Backing;
use handle::Handles;
use node::Nodes;

use requests::Requests;

use crate::control::Control;
use crate::model::Timestamp;

/// What the kernel side of MNT can be told.
pub trait Kernel: Send + Sync {
    /// Drops cached data (`Some(offset)`) and attributes of an inode; with none, attributes alone,
    /// which never blocks.
    fn forget_inode(&self, nodeid: u64, data_from: Option<i64>);
    /// Drops a cached name. Must not be called by a thread that serves requests of that mount:
    /// the kernel waits for the directory's lock, which a caller whose request waits may hold.
    fn forget_name(&self, parent: u64, name: &OsStr);
}

/// Registers a backing file with the kernel, for passthrough.
pub trait Register {
    /// Gives the registration, which lives as long as somebody holds it.
    ///
    /// # Errors
    /// Those of the ioctl: EPERM without CAP_SYS_ADMIN, ELOOP on a filesystem stacked too deep.
    fn register(&self, file: BorrowedFd<'_>) -> io::Result<Arc<dyn Any + Send + Sync>>;
}

/// How the tree is served.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// The kernel judges by the files' modes, for several users.
    pub allow_other: bool,
    /// Let the kernel read and write backing files by itself.
    pub passthrough: bool,
}

/// The tree, as every mount of it shows it.
pub struct Fs {
    control: Arc<Control>,
    backing: Arc<Backing>,
    nodes: Nodes,
    handles: Handles,
    capabilities: Capabilities,
    /// Whether the daemon is root and can act as its callers.
    privileged: bool,
    allow_other: bool,
    passthrough: bool,
    kernel: OnceLock<Box<dyn Kernel>>,
    requests: Requests,
    started: Timestamp,
    this: Weak<Fs>,
}

impl std::fmt::Debug for Fs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fs")
            .field("nodes", &self.nodes.count())
            .field("handles", &self.handles.count())
            .finish_non_exhaustive()
    }
}

impl Fs {
    /// The tree of a store.
    ///
    /// # Errors
    /// Those of looking at the store's workspaces.
    pub fn new(control: Arc<Control>, settings: Settings) -> io::Result<Arc<Self>> {
        let backing = Backing::new(Arc::clone(control.store()))?;
        let privileged = nix::unistd::geteuid().is_root();
        Ok(Arc::new_cyclic(|this| Self {
            control,
            backing: Arc::new(backing),
            nodes: Nodes::default(),
            handles: Handles::default(),
            capabilities: Capabilities::default(),
            privileged,
            allow_other: settings.allow_other,
            passthrough: settings.passthrough && privileged,
            kernel: OnceLock::new(),
            requests: Requests::default(),
            started: Timestamp::now(),
            this: Weak::clone(this),
        }))
    }

    /// Tells the tree how to reach MNT's kernel side. Later calls change nothing.
    pub fn connect(&self, kernel: Box<dyn Kernel>) {
        // A second connection would be a mount of MNT over itself, which never happens.
        let _ = self.kernel.set(kernel);
    }

    /// What decides about windows and workspaces.
    pub fn control(&self) -> &Arc<Control> {
        &self.control
    }

    /// Whether the kernel judges by the files' modes, for several users.
    pub fn allow_other(&self) -> bool {
        self.allow_other
    }

    /// Whether new opens may use passthrough.
    pub fn passthrough(&self) -> bool {
        self.passthrough
    }

    /// Counts a request.
    pub fn count(&self, operation: Operation) {
        self.requests.count(operation);
    }

    /// Nodes that a kernel side knows, and open handles.
    pub fn counts(&self) -> (usize, usize) {
        (self.nodes.count(), self.handles.count())
    }

    /// A mount has ended.
    pub fn unmounted(&self, mount: MountId) {
        self.nodes.forget_all(mount);
    }

    /// A node that the kernel asks for.
    ///
    /// # Errors
    /// ESTALE where it was never told of it.
    fn node(&self, nodeid: u64) -> Result<Arc<Node>> {
        self.nodes.get(nodeid).ok_or(Error(libc::ESTALE))
    }

    /// Something changed through a view mount: MNT's caches of these inodes must follow before
    /// the change is answered.
    fn followed_by_main(&self, request: Request<'_>, inodes: &[(u64, Option<i64>)]) {
        if !request.mount.is_view() {
            return;
        }
        let Some(kernel) = self.kernel.get() else {
            return;
        };
        for (nodeid, data_from) in inodes {
            if self.nodes.known_to(MountId(0), *nodeid) {
                kernel.forget_inode(*nodeid, *data_from);
            }
        }
    }

    /// As [`Fs::followed_by_main`], for a name.
    fn name_followed_by_main(&self, request: Request<'_>, parent: u64, name: &OsStr) {
        if !request.mount.is_view() {
            return;
        }
        if let Some(kernel) = self.kernel.get()
            && self.nodes.known_to(MountId(0), parent)
        {
            kernel.forget_name(parent, name);
            kernel.forget_inode(parent, Some(0));
        }
    }

    /// Drops everything that MNT's kernel side has cached of a workspace, but its top entry.
    pub fn refresh(&self, workspace: crate::model::WorkspaceId) {
        self.backing.let_all_go();
        let Some(kernel) = self.kernel.get() else {
            return;
        };
        for node in self.nodes.of_workspace(MountId(0), workspace) {
            kernel.forget_inode(node.id, Some(0));
            let place = node.place.lock().clone();
            if let node::Place::Named(parent, name) = place {
                kernel.forget_name(parent.id, &name);
            }
        }
    }
}
