//! What ends windows and workspaces, and what brings workspaces back.

use std::fs;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::Duration;

use crate::control::reply::Reply;
use crate::control::{Caller, Control, Request, render};
use crate::gate::Gate;
use crate::model::{
    Reclaim, Reclaimed, Refusal, Released, Rule, Target, Timestamp, WindowId, WorkspaceId,
    WorkspaceRef, live_window, purge, reclaim, release, restore,
};

/// How long processes have between TERM and KILL.
pub(in crate::control) const GRACE: Duration = Duration::from_secs(5);

/// Why a window's directory was not removed.
#[derive(Debug)]
pub enum Removal {
    /// Its workspace has content (ENOTEMPTY).
    NotEmpty,
    /// A rule stands against it.
    Refused(Refusal),
}

impl From<Refusal> for Removal {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl Control {
    pub(super) fn release(
        &self,
        request: &Request<'_>,
        window: WindowId,
        end: bool,
    ) -> Result<Reply, Refusal> {
        let answer = |released: Released, ended: Vec<u32>| {
            Reply::ok()
                .with("window", released.window)
                .with("workspace", released.workspace)
                .with("state", released.state)
                .with("ended", ended)
        };
        if !end {
            return Ok(answer(self.release_now(window)?, Vec::new()));
        }
        // Nobody is ended for a command that is refused.
        self.world(|world| release(world, window, Timestamp::now()))?;
        self.as_job(request.line, Some(window), move |control, _| {
            let ended = control.members.end_members(window, GRACE);
            Ok(answer(control.release_now(window)?, render::ids(&ended)))
        })
    }

    pub(super) fn release_now(&self, window: WindowId) -> Result<Released, Refusal> {
        let held = self.world(|world| world.window(window).and_then(|window| window.workspace));
        let gate = held.and_then(|id| self.gates.get(id));
        let mut closed = gate.as_deref().map(Gate::close);
        let deciding = self.decide();
        let decision = self.world(|world| release(world, window, Timestamp::now()))?;
        let released = deciding.commit_decision(decision)?;
        self.reopen(closed.as_mut(), held);
        Ok(released)
    }

    pub(super) fn reclaim(&self, request: &Request<'_>, order: Reclaim) -> Result<Reply, Refusal> {
        let answer = |reclaimed: Reclaimed| {
            let unsaved: [&str; 0] = [];
            Reply::ok()
                .with("workspace", reclaimed.workspace)
                .with("state", reclaimed.state)
                .with("unsaved", unsaved)
                .with("ended", reclaimed.ended)
        };
        let planned = self.world(|world| reclaim(world, &order, Timestamp::now()))?;
        match planned.answer.ended {
            Some(holder) if !self.members.members_of(holder).is_empty() => {
                self.as_job(request.line, None, move |control, _| {
                    control.members.end_members(holder, GRACE);
                    control.reclaim_now(&order).map(answer)
                })
            }
            _ => self.reclaim_now(&order).map(answer),
        }
    }

    pub(super) fn reclaim_now(&self, order: &Reclaim) -> Result<Reclaimed, Refusal> {
        match self.take_out(order, |_| false) {
            Ok(reclaimed) => Ok(reclaimed),
            Err(Removal::Refused(refusal)) => Err(refusal),
            Err(Removal::NotEmpty) => Err(Refusal::new(
                Rule::Internal,
                "its content stood in the way of a reclaim that takes any",
                "Give the command again.",
            )),
        }
    }

    /// `rmdir .panefs/windows/cN`: reclaims its workspace if that is empty and nobody works
    /// there.
    ///
    /// # Errors
    /// Told apart from refusals: a workspace with content.
    pub fn remove_window(&self, caller: &Caller, window: WindowId) -> Result<(), Removal> {
        self.owner_only(caller, "remove a window")?;
        let members = self.members.members_of(window);
        if let Some(member) = members.first() {
            return Err(Removal::Refused(Refusal::new(
                Rule::WorkspaceHeld,
                format!("pid {} ({}) works in {window}", member.pid, member.command),
                format!("End it first, or give `reclaim {window} force=true`."),
            )));
        }
        // A live window may be removed itself, but not through its predecessor's name.
        let live = self.world(|world| live_window(world, window).is_ok());
        let order = Reclaim {
            target: Target::Window(window),
            force: live,
            purge: false,
        };
        self.take_out(&order, |id| !self.is_empty(id))?;
        Ok(())
    }

    /// Takes a workspace out of the tree, unless it is `spared`: its row first, then its
    /// directory, then its name. Constant time.
    fn take_out(
        &self,
        order: &Reclaim,
        spared: impl FnOnce(WorkspaceId) -> bool,
    ) -> Result<Reclaimed, Removal> {
        let now = Timestamp::now();
        let id = self
            .world(|world| reclaim(world, order, now))?
            .answer
            .workspace;
        let gate = self.gates.get(id);
        let mut closed = gate.as_deref().map(Gate::close);
        let deciding = self.decide();
        let decision = self.world(|world| reclaim(world, order, now))?;
        if !decision.answer.repeated && spared(id) {
            return Err(Removal::NotEmpty);
        }
        let reclaimed = deciding.commit_decision(decision)?;
        self.reopen(closed.as_mut(), Some(id));
        if !reclaimed.repeated {
            if let Err(error) = self.store.trash(id) {
                // The row is the truth: the next start moves the directory.
                tracing::error!(workspace = %id, "not moved to the trash: {error}");
            }
            self.gates.remove(id);
        }
        drop((closed, deciding));
        if !reclaimed.repeated {
            self.forget_usage(id);
            self.tree(|tree| {
                tree.workspace_gone(id);
                tree.windows_changed();
            });
        }
        if order.purge {
            self.delete_soon(id);
        }
        Ok(reclaimed)
    }

    /// Whether a workspace's directory has no entries; false where it can't be told.
    fn is_empty(&self, id: WorkspaceId) -> bool {
        fs::read_dir(self.directory_of(id)).is_ok_and(|mut entries| entries.next().is_none())
    }

    /// A workspace's directory in the store. By descriptor, since its path may be covered.
    pub(in crate::control) fn directory_of(&self, id: WorkspaceId) -> PathBuf {
        let workspaces = self.store.workspaces_fd().as_raw_fd();
        PathBuf::from(format!("/proc/self/fd/{workspaces}/{id}"))
    }

    pub(super) fn restore(&self, workspace: WorkspaceRef) -> Result<Reply, Refusal> {
        let deciding = self.decide();
        let decision = self.world(|world| restore(world, workspace, Timestamp::now()))?;
        let repeated = decision.changes.is_empty();
        let id = decision.answer.workspace;
        if !repeated {
            self.store.untrash(id).map_err(|error| {
                Refusal::internal(format!("the files of {id} can't be brought back"), error)
            })?;
        }
        let restored = deciding.commit_decision(decision).inspect_err(|_| {
            if let Err(error) = self.store.trash(id) {
                tracing::error!(workspace = %id, "not moved back to the trash: {error}");
            }
        })?;
        if !repeated {
            self.world(|world| world.workspace(id).map(|row| self.gates.set(row)));
        }
        drop(deciding);
        if !repeated {
            self.tree(|tree| tree.windows_changed());
        }
        Ok(Reply::ok()
            .with("workspace", restored.workspace)
            .with("state", restored.state))
    }

    pub(super) fn purge(&self, workspace: WorkspaceRef) -> Result<Reply, Refusal> {
        let deciding = self.decide();
        let decision = self.world(|world| purge(world, workspace, Timestamp::now()))?;
        let purged = deciding.commit_decision(decision)?;
        drop(deciding);
        self.delete_soon(purged.workspace);
        Ok(Reply::ok().with("workspace", purged.workspace))
    }
}
