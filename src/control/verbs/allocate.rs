//! `allocate`, and the mkdir that means it.

use crate::control::command::Allocation;
use crate::control::reply::Reply;
use crate::control::{Caller, Control};
use crate::model::{
    Allocate, Allocated, Owner, Quota, Refusal, Role, Rule, Timestamp, WindowId, allocate,
};

impl Control {
    pub(super) fn allocate(
        &self,
        caller: &Caller,
        allocation: Allocation,
    ) -> Result<Reply, Refusal> {
        let owner = self.owner(caller, allocation.owner)?;
        let answer = self.open(&Allocate {
            window: allocation.window,
            title: allocation.title,
            owner,
            quota: Quota::default(),
            keep: allocation.keep,
        })?;
        let path = self.options.mount.join(answer.workspace.to_string());
        Ok(Reply::ok()
            .with("window", answer.window)
            .with("workspace", answer.workspace)
            .with("ref", answer.reference)
            .with("path", path.display().to_string())
            .with("state", answer.state)
            .with("created", answer.created))
    }

    /// `mkdir .panefs/windows/cN`: true where the window is new.
    ///
    /// # Errors
    /// Those of `allocate`; a window's members, and other users than the mount's owner, get
    /// [`Rule::CommandNotAllowed`].
    pub fn open_window(&self, caller: &Caller, window: WindowId) -> Result<bool, Refusal> {
        self.owner_only(caller, "open a window")?;
        let answer = self.open(&Allocate {
            window: Some(window),
            title: None,
            owner: self.owner(caller, None)?,
            quota: Quota::default(),
            keep: false,
        })?;
        Ok(answer.created)
    }

    /// Directory first, then the row, then what everybody sees.
    fn open(&self, command: &Allocate) -> Result<Allocated, Refusal> {
        let deciding = self.decide();
        let decision = self.world(|world| allocate(world, command, Timestamp::now()))?;
        if !decision.answer.created {
            return deciding.commit_decision(decision);
        }
        let id = decision.answer.workspace;
        self.store
            .create_workspace(id, command.owner)
            .map_err(|error| {
                Refusal::internal(format!("the directory of {id} can't be made"), error)
            })?;
        let answer = deciding
            .commit_decision(decision)
            .inspect_err(|_| self.store.discard_workspace(id))?;
        self.world(|world| {
            world
                .workspace(id)
                .map(|workspace| self.gates.set(workspace))
        });
        drop(deciding);
        self.tree(|tree| tree.windows_changed());
        Ok(answer)
    }

    /// The owner asked for, or the asker; only root gives files away.
    fn owner(&self, caller: &Caller, asked: Option<Owner>) -> Result<Owner, Refusal> {
        let daemon = self.options.owner;
        let owner = asked.unwrap_or(Owner {
            uid: caller.uid,
            gid: caller.gid,
        });
        if daemon.uid == 0 || owner.uid == daemon.uid {
            return Ok(owner);
        }
        Err(Refusal::new(
            Rule::Unsupported,
            format!(
                "the daemon runs as user {} and can't give files to user {}",
                daemon.uid, owner.uid
            ),
            "Leave owner out, or mount as root with --allow-other.",
        ))
    }

    /// Refuses a window's members, and other users than the mount's owner and root.
    pub(super) fn owner_only(&self, caller: &Caller, what: &str) -> Result<(), Refusal> {
        let who = match caller.who.role {
            Role::Member(window) | Role::Acting(window) => window.to_string(),
            Role::Operator | Role::Guest
                if caller.uid != 0 && caller.uid != self.options.owner.uid =>
            {
                format!("user {}", caller.uid)
            }
            Role::Operator | Role::Guest => return Ok(()),
        };
        Err(Refusal::new(
            Rule::CommandNotAllowed,
            format!("{who} may not {what}: it is the mount owner's to do"),
            "Ask the mount's owner, who does it from a process of no window.",
        ))
    }
}
