//! The gate of each workspace: who may change it now, and what is still open for writing.
//!
//! Whatever changes a backing directory needs a [`WriteAccess`], and only a gate hands one out.
//! It is a read guard on the gate's state, held over the system call and until a new handle is
//! registered; a handoff takes the write side. So nothing is checked before and done after it.
//!
//! Lock order: `Gate::state` before `Gate::held`. No gate is locked while another one is.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::model::{Role, WindowId, Workspace, WorkspaceId, WorkspaceState};

/// Why a change was refused. The caller sees EROFS, and `whoami` tells the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denied {
    /// The caller belongs to no window.
    Guest {
        /// Who holds the workspace.
        holder: WindowId,
    },
    /// The caller's window does not hold this workspace.
    NotHolder {
        /// Who does.
        holder: WindowId,
    },
    /// Nobody holds it.
    NoHolder,
    /// A handoff waits for the last writer; nothing new is opened for writing until then.
    Closing {
        /// Who holds it still.
        holder: WindowId,
    },
}

impl Denied {
    /// The rule's name in `whoami` and in `refused` events.
    pub fn rule(self) -> &'static str {
        match self {
            Self::Guest { .. } => "write.guest",
            Self::NotHolder { .. } | Self::Closing { .. } => "write.not_holder",
            Self::NoHolder => "write.no_holder",
        }
    }

    /// The window that may change the workspace, if there is one.
    pub fn holder(self) -> Option<WindowId> {
        match self {
            Self::Guest { holder } | Self::NotHolder { holder } | Self::Closing { holder } => {
                Some(holder)
            }
            Self::NoHolder => None,
        }
    }
}

/// Who may change a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateState {
    /// The live window of the chain.
    pub holder: Option<WindowId>,
    /// The workspace's state in the registry.
    pub workspace: WorkspaceState,
    /// Handles opened under an older epoch are stale, but an operator's.
    pub epoch: u64,
    /// A waiting handoff refuses new opens for writing.
    pub closing: bool,
}

impl GateState {
    fn of(workspace: &Workspace) -> Self {
        Self {
            holder: workspace.holder,
            workspace: workspace.state,
            epoch: workspace.epoch,
            closing: false,
        }
    }

    fn judge(&self, role: Role) -> Result<(), Denied> {
        match (role, self.holder) {
            (Role::Operator, _) if self.workspace == WorkspaceState::Occupied => Ok(()),
            // In a workspace without a holder only operators may change anything, as the
            // contract has it, as long as its files are in the tree.
            (Role::Operator, None) if self.workspace == WorkspaceState::Released => Ok(()),
            (Role::Member(window) | Role::Acting(window), Some(holder)) if window == holder => {
                Ok(())
            }
            (_, None) => Err(Denied::NoHolder),
            (Role::Guest, Some(holder)) => Err(Denied::Guest { holder }),
            (_, Some(holder)) => Err(Denied::NotHolder { holder }),
        }
    }
}

/// The right to change one workspace, for as long as it lives.
#[derive(Debug)]
pub struct WriteAccess<'a> {
    state: RwLockReadGuard<'a, GateState>,
    gate: &'a Arc<Gate>,
    role: Role,
}

impl<'a> WriteAccess<'a> {
    /// The epoch that a handle opened under this access belongs to.
    pub fn pass(&self, pid: u32) -> Pass {
        Pass {
            epoch: self.state.epoch,
            role: self.role,
            pid,
        }
    }

    /// Registers a handle that is open for writing; a handoff sees it until the guard drops.
    pub fn register(&self, pass: Pass, file: Arc<dyn HeldFile>) -> WriterGuard {
        let mut held = self.gate.held.lock();
        held.next += 1;
        let id = held.next;
        held.writers.insert(id, Writer { pass, file });
        WriterGuard {
            id,
            gate: Arc::clone(self.gate),
        }
    }
}

/// What a handle remembers of its opening.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass {
    /// The gate's epoch then.
    pub epoch: u64,
    /// Who opened it.
    pub role: Role,
    /// The process that opened it.
    pub pid: u32,
}

/// A file that is open for writing, or that may be mapped after its close.
pub trait HeldFile: Send + Sync + std::fmt::Debug {
    /// Its inode number, as users see it.
    fn ino(&self) -> u64;
    /// A path from the mount's root, for messages.
    fn path(&self) -> String;
    /// Whether no writable descriptor or mapping of the backing file exists.
    fn is_quiet(&self) -> bool;
}

/// One handle that is open for writing.
#[derive(Debug, Clone)]
pub struct Writer {
    /// How it was opened.
    pub pass: Pass,
    /// What it writes to.
    pub file: Arc<dyn HeldFile>,
}

#[derive(Debug, Default)]
struct Held {
    next: u64,
    writers: HashMap<u64, Writer>,
    /// Files that were opened read-write with passthrough, by inode number: their mappings
    /// outlive RELEASE, so they count as held until they are quiet.
    mapped: HashMap<u64, Writer>,
}

/// Keeps a handle registered as a writer.
#[derive(Debug)]
pub struct WriterGuard {
    id: u64,
    gate: Arc<Gate>,
}

impl Drop for WriterGuard {
    fn drop(&mut self) {
        self.gate.held.lock().writers.remove(&self.id);
        self.gate.dropped.notify_all();
    }
}

/// The gate of one workspace.
#[derive(Debug)]
pub struct Gate {
    id: WorkspaceId,
    state: RwLock<GateState>,
    held: Mutex<Held>,
    dropped: Condvar,
}

impl Gate {
    fn new(workspace: &Workspace) -> Arc<Self> {
        Arc::new(Self {
            id: workspace.id,
            state: RwLock::new(GateState::of(workspace)),
            held: Mutex::default(),
            dropped: Condvar::new(),
        })
    }

    /// The workspace that it guards.
    pub fn workspace(&self) -> WorkspaceId {
        self.id
    }

    /// Who may change it now.
    pub fn snapshot(&self) -> GateState {
        self.state.read().clone()
    }

    /// Admits a change of names or attributes.
    ///
    /// # Errors
    /// Why the caller may not; to be answered with EROFS.
    pub fn admit(self: &Arc<Self>, role: Role) -> Result<WriteAccess<'_>, Denied> {
        let state = self.state.read();
        state.judge(role)?;
        Ok(WriteAccess {
            state,
            gate: self,
            role,
        })
    }

    /// Admits an open for writing, which a waiting handoff refuses.
    ///
    /// # Errors
    /// Why the caller may not; to be answered with EROFS.
    pub fn admit_open(self: &Arc<Self>, role: Role) -> Result<WriteAccess<'_>, Denied> {
        let access = self.admit(role)?;
        match (access.state.closing, access.state.holder) {
            (true, Some(holder)) if role != Role::Operator => Err(Denied::Closing { holder }),
            _ => Ok(access),
        }
    }

    /// Admits a change through a handle: judged by its opening, not by who uses it now.
    ///
    /// # Errors
    /// The handle was opened under an older epoch; to be answered with EROFS.
    pub fn admit_handle(self: &Arc<Self>, pass: Pass) -> Result<WriteAccess<'_>, Denied> {
        let state = self.state.read();
        let stale = pass.epoch != state.epoch || state.workspace == WorkspaceState::Reclaimed;
        if stale && (pass.role != Role::Operator || state.judge(Role::Operator).is_err()) {
            return Err(match state.holder {
                Some(holder) => Denied::NotHolder { holder },
                None => Denied::NoHolder,
            });
        }
        Ok(WriteAccess {
            state,
            gate: self,
            role: pass.role,
        })
    }

    /// Notes that a mapping of this file may outlive its handle.
    pub fn note_mapped(&self, writer: Writer) {
        self.held.lock().mapped.insert(writer.file.ino(), writer);
    }

    /// Forgets a file that was found quiet.
    pub fn forget_mapped(&self, ino: u64) {
        self.held.lock().mapped.remove(&ino);
        self.dropped.notify_all();
    }

    /// Every handle open for writing, and every file that is mapped after its close.
    /// A file that turns out quiet is forgotten.
    pub fn writers(&self) -> Vec<Writer> {
        let (mut writers, mapped) = {
            let held = self.held.lock();
            let writers: Vec<_> = held.writers.values().cloned().collect();
            let open: Vec<_> = writers.iter().map(|w| w.file.ino()).collect();
            let mapped: Vec<_> = held
                .mapped
                .values()
                .filter(|w| !open.contains(&w.file.ino()))
                .cloned()
                .collect();
            (writers, mapped)
        };
        for writer in mapped {
            if writer.file.is_quiet() {
                self.forget_mapped(writer.file.ino());
            } else {
                writers.push(writer);
            }
        }
        writers
    }

    /// Waits until a handle is released, or `until`. Returns false on the latter.
    pub fn wait_released(&self, until: Instant) -> bool {
        let mut held = self.held.lock();
        !self.dropped.wait_until(&mut held, until).timed_out()
    }

    /// Waits for every admitted change to end, and keeps new ones out until the guard drops.
    pub fn close(&self) -> ClosedGate<'_> {
        ClosedGate {
            state: self.state.write(),
        }
    }

    /// Refuses new opens for writing from now on, or admits them again.
    pub fn set_closing(&self, closing: bool) {
        self.state.write().closing = closing;
    }
}

/// A gate that admits nobody while this lives.
#[derive(Debug)]
pub struct ClosedGate<'a> {
    state: RwLockWriteGuard<'a, GateState>,
}

impl ClosedGate<'_> {
    /// From now on the gate judges by this row of the registry.
    pub fn set(&mut self, workspace: &Workspace) {
        *self.state = GateState::of(workspace);
    }
}

/// The gates of every workspace in the tree.
#[derive(Debug, Default)]
pub struct Gates {
    gates: RwLock<HashMap<WorkspaceId, Arc<Gate>>>,
}

impl Gates {
    /// The gate of a workspace that the tree shows.
    pub fn get(&self, id: WorkspaceId) -> Option<Arc<Gate>> {
        self.gates.read().get(&id).cloned()
    }

    /// Opens a gate for a workspace, or lets the existing one judge by this row from now on.
    pub fn set(&self, workspace: &Workspace) -> Arc<Gate> {
        if let Some(gate) = self.get(workspace.id) {
            gate.close().set(workspace);
            return gate;
        }
        let mut gates = self.gates.write();
        Arc::clone(
            gates
                .entry(workspace.id)
                .or_insert_with(|| Gate::new(workspace)),
        )
    }

    /// Takes a workspace out of the tree. Its handles keep the gate, closed for good.
    pub fn remove(&self, id: WorkspaceId) {
        self.gates.write().remove(&id);
    }
}
