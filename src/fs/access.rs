//! Who asks, and whether it may: from a request to a role, credentials and a right to write.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use super::Fs;
use super::error::Result;
use super::node::MountId;
use super::operation::Operation;
use crate::control::Caller;
use crate::gate::{Denied, Gate, Pass, WriteAccess};
use crate::member::Who;
use crate::model::{Role, WindowId};
use crate::sys::creds::{self, Acting, Credentials};
use crate::sys::proc;

/// One mount of the tree.
#[derive(Debug)]
pub struct Mount {
    /// Which one.
    pub id: MountId,
    /// Whom everybody acts for here; none where the caller decides.
    view: Option<Mutex<Role>>,
}

impl Mount {
    /// MNT itself: the caller decides.
    pub fn main() -> Self {
        Self {
            id: MountId(0),
            view: None,
        }
    }

    /// A view mount, where everybody acts for one window, or is a guest.
    pub fn view(id: MountId, window: Option<WindowId>) -> Self {
        let role = window.map_or(Role::Guest, Role::Acting);
        Self {
            id,
            view: Some(Mutex::new(role)),
        }
    }

    /// Whether this is a view mount: nothing is cached, and MNT's caches must follow.
    pub fn is_view(&self) -> bool {
        self.view.is_some()
    }

    /// Whom everybody acts for here.
    pub fn acts_for(&self) -> Option<Role> {
        self.view.as_ref().map(|role| *role.lock())
    }

    /// The window that a view acts for.
    pub fn window(&self) -> Option<WindowId> {
        self.acts_for().and_then(Role::window)
    }

    /// A view that acts for `from` acts for `to` from now on.
    pub fn move_window(&self, from: WindowId, to: WindowId) {
        if let Some(role) = &self.view {
            let mut role = role.lock();
            if *role == Role::Acting(from) {
                *role = Role::Acting(to);
            }
        }
    }
}

/// The caller, as the kernel tells it.
#[derive(Debug, Clone, Copy)]
pub struct Asker {
    /// Thread id; 0 where it is in a pid namespace that this one doesn't see.
    pub tid: u32,
    /// Filesystem user id.
    pub uid: u32,
    /// Filesystem group id.
    pub gid: u32,
}

/// A request: through which mount, by whom, to do what.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The mount that it came through.
    pub mount: &'a Mount,
    /// Who asks.
    pub asker: Asker,
    /// What is asked.
    pub operation: Operation,
}

/// How many threads' capabilities are remembered, at most.
const REMEMBERED_THREADS: usize = 4096;

/// Capabilities of root's threads by thread id and the process's start time. They are read once
/// a thread: a thread that drops some later on keeps, towards this mount, what it had.
#[derive(Debug, Default)]
pub struct Capabilities {
    known: Mutex<HashMap<(u32, u64), u64>>,
}

/// A change that may happen, for as long as this lives.
#[derive(Debug)]
pub struct Admitted<'a> {
    /// The right itself.
    pub access: WriteAccess<'a>,
    /// What a handle opened now remembers.
    pub pass: Pass,
    /// Start time of the caller's process, which tells it from a successor with its number.
    pub start: u64,
}

impl Fs {
    /// Who asks. Costs a walk through /proc for a new thread.
    pub fn who(&self, request: Request<'_>) -> Who {
        let who = self.control.members().who(request.asker.tid);
        match request.mount.acts_for() {
            None => who,
            Some(role) => Who {
                role,
                binding: None,
                by: "view",
                ..who
            },
        }
    }

    /// The caller, as control wants to know it.
    pub fn caller(&self, request: Request<'_>) -> Caller {
        Caller {
            who: self.who(request),
            tid: request.asker.tid,
            uid: request.asker.uid,
            gid: request.asker.gid,
        }
    }

    fn report(&self, request: Request<'_>, who: &Who, path: &Path, denied: Denied) {
        let path = path.to_string_lossy().into_owned();
        self.control
            .refused(who, request.operation.label(), path, denied);
    }

    /// Admits a change by who asks.
    ///
    /// # Errors
    /// EROFS, after the reason was noted for `whoami`.
    pub fn admit<'a>(
        &self,
        request: Request<'_>,
        gate: &'a Arc<Gate>,
        path: impl FnOnce() -> std::path::PathBuf,
    ) -> Result<Admitted<'a>> {
        let mut who = self.who(request);
        let opens = matches!(request.operation, Operation::Open | Operation::Create);
        let judge = |who: &Who| {
            if opens {
                gate.admit_open(who.role)
            } else {
                gate.admit(who.role)
            }
        };
        let mut admitted = judge(&who);
        if admitted.is_err() {
            // A handoff may have moved the caller to the new holder just after it was looked up.
            who = self.who(request);
            admitted = judge(&who);
        }
        match admitted {
            Ok(access) => {
                let pass = access.pass(who.pid);
                Ok(Admitted {
                    access,
                    pass,
                    start: who.start,
                })
            }
            Err(denied) => {
                self.report(request, &who, &path(), denied);
                Err(denied.into())
            }
        }
    }

    /// Admits a change through a handle, by how it was opened.
    ///
    /// # Errors
    /// EROFS, after the reason was noted for `whoami`.
    pub fn admit_handle<'a>(
        &self,
        request: Request<'_>,
        gate: &'a Arc<Gate>,
        pass: Pass,
        path: impl FnOnce() -> std::path::PathBuf,
    ) -> Result<WriteAccess<'a>> {
        gate.admit_handle(pass).map_err(|denied| {
            self.report(request, &self.who(request), &path(), denied);
            denied.into()
        })
    }

    /// Acts with the caller's rights until the guard drops, so that ownership, setgid
    /// directories, ACLs and what chmod clears are the backing filesystem's own doing. None
    /// where the daemon's rights are the caller's already. `start` tells a process from a
    /// successor with its number; without it a root caller is taken to have every capability.
    ///
    /// # Errors
    /// Those of the credential calls; ESRCH where the caller has gone.
    pub fn act_as(&self, asker: Asker, start: Option<u64>) -> io::Result<Option<Acting>> {
        if !self.privileged {
            return Ok(None);
        }
        if asker.uid == 0 && asker.gid == 0 && !self.allow_other {
            let capabilities =
                start.map_or(u64::MAX, |start| self.capabilities_of(asker.tid, start));
            if capabilities & creds::FILE_CAPABILITIES == creds::FILE_CAPABILITIES {
                return Ok(None);
            }
        }
        let credentials = match proc::status(asker.tid) {
            Ok(status) => Credentials {
                uid: asker.uid,
                gid: asker.gid,
                groups: status.groups,
                capabilities: status.cap_eff,
            },
            // A caller in another pid namespace can't be seen: it gets its ids and no more.
            Err(_) => Credentials {
                uid: asker.uid,
                gid: asker.gid,
                groups: vec![asker.gid],
                capabilities: if asker.uid == 0 { u64::MAX } else { 0 },
            },
        };
        creds::act_as(&credentials).map(Some)
    }

    /// Whether the caller, a root thread, may keep set-id bits on what it changes.
    pub fn keeps_set_id(&self, request: Request<'_>) -> bool {
        let start = self.who(request).start;
        creds::keeps_set_id(self.capabilities_of(request.asker.tid, start))
    }

    fn capabilities_of(&self, tid: u32, start: u64) -> u64 {
        if let Some(known) = self.capabilities.known.lock().get(&(tid, start)) {
            return *known;
        }
        let read = proc::status(tid).map_or(u64::MAX, |status| status.cap_eff);
        let mut known = self.capabilities.known.lock();
        if known.len() >= REMEMBERED_THREADS {
            known.clear();
        }
        known.insert((tid, start), read);
        read
    }
}
