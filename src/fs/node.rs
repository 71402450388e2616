//! Nodes: the backing inodes that the kernel knows, by number, never by path.
//!
//! Lock order: a shard of [`Nodes`] before `Node::place`; `Node::data` alone.

use std::any::Any;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::gate::Gate;
use crate::model::WorkspaceId;
use crate::sys::file::FileHandle;

/// One of the mounts of the tree: 0 is MNT itself, the others are view mounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MountId(pub u32);

/// Where a node was last seen.
#[derive(Debug, Clone)]
pub enum Place {
    /// The top directory of a workspace.
    Top(WorkspaceId),
    /// Under this name in this directory.
    Named(Arc<Node>, Box<OsStr>),
    /// Its last known name is gone; the descriptor keeps the inode, and so its number.
    Pinned(Arc<OwnedFd>, PathBuf),
}

/// How the kernel reads and writes a file's data. One inode has one mode at a time.
#[derive(Default)]
pub enum DataMode {
    /// No open handle.
    #[default]
    Closed,
    /// Through the page cache of the mount.
    Cached {
        /// Open handles.
        opens: usize,
    },
    /// Straight to the backing file. Boxed, because most nodes are closed.
    Passthrough(Box<Shared>),
}

/// What all passthrough handles of a file share.
pub struct Shared {
    /// Open handles.
    pub opens: usize,
    /// A read-only descriptor of the backing file.
    pub file: Arc<OwnedFd>,
    /// The kernel's registration of it.
    pub backing: Arc<dyn Any + Send + Sync>,
}

impl std::fmt::Debug for DataMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Closed => f.write_str("Closed"),
            Self::Cached { opens } => write!(f, "Cached({opens})"),
            Self::Passthrough(shared) => write!(f, "Passthrough({})", shared.opens),
        }
    }
}

/// The state of a file's data.
#[derive(Debug, Default)]
pub struct Data {
    /// See [`DataMode`].
    pub mode: DataMode,
    /// It was opened read-write with passthrough, so a mapping that nobody sees may change it
    /// until it is found quiet.
    pub may_be_mapped: bool,
    /// Handles that were opened so and are not closed.
    pub mapping_opens: u32,
}

/// A backing inode that the kernel knows or that something holds on to.
#[derive(Debug)]
pub struct Node {
    /// Its number towards the kernel and users.
    pub id: u64,
    /// Which life of that number.
    pub generation: u64,
    /// The file type, as in `st_mode`.
    pub kind: u32,
    /// The gate of its workspace.
    pub gate: Arc<Gate>,
    /// Its name for open_by_handle_at(2), where that may be used.
    pub handle: Option<FileHandle>,
    /// Where it was last seen.
    pub place: Mutex<Place>,
    /// How its data is reached.
    pub data: Mutex<Data>,
}

impl Node {
    /// The path from the mount's root where it was last seen.
    pub fn path(&self) -> PathBuf {
        let mut names = Vec::new();
        let mut place = self.place.lock().clone();
        let top = loop {
            match place {
                Place::Top(id) => break PathBuf::from(id.to_string()),
                Place::Pinned(_, path) => break path,
                Place::Named(parent, name) => {
                    names.push(name);
                    place = parent.place.lock().clone();
                }
            }
        };
        names
            .iter()
            .rev()
            .fold(top, |path, name| path.join(&**name))
    }

    /// Whether it was last seen as `name` in `parent`.
    pub fn is_at(&self, parent: &Node, name: &OsStr) -> bool {
        matches!(&*self.place.lock(), Place::Named(p, n) if p.id == parent.id && **n == *name)
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.kind == libc::S_IFDIR
    }

    /// Whether it is a regular file.
    pub fn is_regular(&self) -> bool {
        self.kind == libc::S_IFREG
    }
}

impl Drop for Node {
    /// Lets go of the directories above one after the other: a path may be thousands deep, and
    /// each may be the last to hold the one above it.
    fn drop(&mut self) {
        let nowhere = || Place::Top(self.gate.workspace());
        let mut place = std::mem::replace(&mut *self.place.lock(), nowhere());
        while let Place::Named(parent, _) = place {
            match Arc::into_inner(parent) {
                Some(parent) => place = std::mem::replace(&mut *parent.place.lock(), nowhere()),
                None => return,
            }
        }
    }
}

#[derive(Debug)]
struct Slot {
    node: Arc<Node>,
    /// Lookups that MNT's kernel side has not yet forgotten.
    main: u64,
    /// The same for view mounts.
    views: Vec<(MountId, u64)>,
}

impl Slot {
    fn count(&mut self, mount: MountId) -> &mut u64 {
        if mount == MountId(0) {
            return &mut self.main;
        }
        let place = self.views.iter().position(|(id, _)| *id == mount);
        let place = place.unwrap_or_else(|| {
            self.views.push((mount, 0));
            self.views.len() - 1
        });
        &mut self.views[place].1
    }

    fn lookups(&self, mount: MountId) -> u64 {
        if mount == MountId(0) {
            return self.main;
        }
        let view = self.views.iter().find(|(id, _)| *id == mount);
        view.map_or(0, |(_, count)| *count)
    }

    fn forget(&mut self, mount: MountId, lookups: u64) -> bool {
        let count = self.count(mount);
        *count = count.saturating_sub(lookups);
        if *count == 0 {
            self.views.retain(|(id, _)| *id != mount);
        }
        self.main == 0 && self.views.is_empty()
    }
}

const SHARDS: usize = 64;

/// From how many nodes on it is worth giving their memory back.
const MANY: usize = 1024;

/// Every node that a kernel side knows.
#[derive(Debug)]
pub struct Nodes {
    shards: Box<[Mutex<HashMap<u64, Slot>>]>,
    known: AtomicUsize,
    /// The most that were known since memory was last given back.
    peak: AtomicUsize,
}

impl Default for Nodes {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            known: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
        }
    }
}

impl Nodes {
    fn shard(&self, id: u64) -> &Mutex<HashMap<u64, Slot>> {
        // Neighbouring inode numbers are used together: spread them.
        &self.shards[id as usize % SHARDS]
    }

    /// How many nodes are known.
    pub fn count(&self) -> usize {
        self.known.load(Ordering::Relaxed)
    }

    /// The node, if a kernel side knows it.
    pub fn get(&self, id: u64) -> Option<Arc<Node>> {
        self.shard(id)
            .lock()
            .get(&id)
            .map(|slot| Arc::clone(&slot.node))
    }

    /// Whether MNT's kernel side knows it.
    pub fn known_to(&self, mount: MountId, id: u64) -> bool {
        let shard = self.shard(id).lock();
        shard.get(&id).is_some_and(|slot| slot.lookups(mount) > 0)
    }

    /// Counts one lookup of a node by a mount, and gives it. Where the number is new, or names
    /// another file than before, `make` makes the node of that generation: a new generation has
    /// the kernel give up what it knew under the number.
    pub fn look_up(
        &self,
        mount: MountId,
        id: u64,
        kind: u32,
        handle: Option<FileHandle>,
        make: impl FnOnce(u64, Option<FileHandle>) -> Node,
    ) -> Arc<Node> {
        let mut shard = self.shard(id).lock();
        let slot = match shard.entry(id) {
            std::collections::hash_map::Entry::Occupied(entry) => {
                let slot = entry.into_mut();
                let known = &slot.node;
                let recycled = known.handle.is_some() && handle.is_some() && known.handle != handle;
                if known.kind != kind || recycled {
                    slot.node = Arc::new(make(known.generation + 1, handle));
                }
                slot
            }
            std::collections::hash_map::Entry::Vacant(entry) => {
                let known = self.known.fetch_add(1, Ordering::Relaxed) + 1;
                self.peak.fetch_max(known, Ordering::Relaxed);
                entry.insert(Slot {
                    node: Arc::new(make(0, handle)),
                    main: 0,
                    views: Vec::new(),
                })
            }
        };
        *slot.count(mount) += 1;
        Arc::clone(&slot.node)
    }

    /// Takes back lookups that the kernel has forgotten.
    pub fn forget(&self, mount: MountId, id: u64, lookups: u64) {
        let mut shard = self.shard(id).lock();
        let Some(slot) = shard.get_mut(&id) else {
            return;
        };
        if slot.forget(mount, lookups) {
            let gone = shard.remove(&id);
            if shard.len() < shard.capacity() / 8 {
                let room = shard.len() * 2;
                shard.shrink_to(room);
            }
            let known = self.known.fetch_sub(1, Ordering::Relaxed) - 1;
            // Its parents' reference counts and its descriptor go outside the lock.
            drop(shard);
            drop(gone);
            self.give_back(known);
        }
    }

    /// When most of many nodes have gone, what they took goes back to the system.
    fn give_back(&self, known: usize) {
        let peak = self.peak.load(Ordering::Relaxed);
        if peak < MANY || known > peak / 8 {
            return;
        }
        let taken = self
            .peak
            .compare_exchange(peak, known, Ordering::Relaxed, Ordering::Relaxed);
        if taken.is_ok() {
            crate::sys::memory::give_back();
        }
    }

    /// A mount has ended: what its kernel side knew is forgotten.
    pub fn forget_all(&self, mount: MountId) {
        for shard in &self.shards {
            let mut gone = Vec::new();
            let mut shard = shard.lock();
            let ids: Vec<u64> = shard.keys().copied().collect();
            for id in ids {
                if let Some(slot) = shard.get_mut(&id)
                    && slot.forget(mount, u64::MAX)
                {
                    gone.extend(shard.remove(&id));
                }
            }
            self.known.fetch_sub(gone.len(), Ordering::Relaxed);
            drop(shard);
        }
    }

    /// Every node of a workspace that a mount knows: for invalidations, not for hot paths.
    pub fn of_workspace(&self, mount: MountId, workspace: WorkspaceId) -> Vec<Arc<Node>> {
        let mut nodes = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            nodes.extend(
                shard
                    .values()
                    .filter(|slot| slot.node.gate.workspace() == workspace)
                    .filter(|slot| slot.lookups(mount) > 0)
                    .map(|slot| Arc::clone(&slot.node)),
            );
        }
        nodes
    }
}
