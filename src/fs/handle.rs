//! Open handles, by the number that the kernel keeps with each open file.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::node::{DataMode, Node};
use super::nodeid::Synthetic;
use crate::control::Channel;
use crate::gate::{Pass, WriterGuard};

/// How a handle reaches the data.
#[derive(Debug)]
pub enum DataPath {
    /// The kernel does; the daemon keeps a read-only descriptor that all handles share.
    Passthrough(Arc<OwnedFd>),
    /// Through the daemon, with the mount's page cache.
    Cached(OwnedFd),
    /// Through the daemon, without a cache: view mounts.
    Direct(OwnedFd),
}

impl AsFd for DataPath {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Passthrough(fd) => fd.as_fd(),
            Self::Cached(fd) | Self::Direct(fd) => fd.as_fd(),
        }
    }
}

/// An open backing file.
#[derive(Debug)]
pub struct OpenFile {
    /// What is open.
    pub node: Arc<Node>,
    /// How its data is reached.
    pub path: DataPath,
    /// Whether it was opened O_RDWR with passthrough: a mapping may outlive it.
    pub may_map: bool,
    /// How it was opened, where that was for writing.
    pub pass: Option<Pass>,
    /// Tells the gate when it is closed.
    pub writer: Option<WriterGuard>,
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        let mut data = self.node.data.lock();
        if self.may_map {
            data.mapping_opens -= 1;
        }
        if matches!(self.path, DataPath::Direct(_)) {
            return;
        }
        let opens = match &mut data.mode {
            DataMode::Cached { opens } => opens,
            DataMode::Passthrough(shared) => &mut shared.opens,
            DataMode::Closed => return,
        };
        *opens -= 1;
        if *opens == 0 {
            data.mode = DataMode::Closed;
        }
    }
}

/// What a handle is open on.
#[derive(Debug)]
pub enum Handle {
    /// A file of a workspace.
    File(OpenFile),
    /// A control channel: commands in, reply lines out.
    Channel(Arc<Channel>),
    /// The content of a control file as it was when it was opened.
    Snapshot(Vec<u8>),
    /// A control file that is written to, or one that grows.
    Synthetic(Synthetic),
}

/// Every open handle.
#[derive(Debug, Default)]
pub struct Handles {
    next: AtomicU64,
    open: Mutex<HashMap<u64, Arc<Handle>>>,
}

impl Handles {
    /// Registers a handle. Numbers begin at 1: 0 is what the kernel sends for directories.
    pub fn insert(&self, handle: Handle) -> u64 {
        let id = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        self.open.lock().insert(id, Arc::new(handle));
        id
    }

    /// The handle, while it is open.
    pub fn get(&self, id: u64) -> Option<Arc<Handle>> {
        self.open.lock().get(&id).cloned()
    }

    /// Takes a closed handle out; what it holds goes when the last user is done.
    pub fn remove(&self, id: u64) -> Option<Arc<Handle>> {
        self.open.lock().remove(&id)
    }

    /// How many are open.
    pub fn count(&self) -> usize {
        self.open.lock().len()
    }
}
