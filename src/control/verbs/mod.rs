//! What each verb does.

mod allocate;
pub(super) mod bind;
mod end;
mod expire;
mod look;

pub(super) use end::GRACE;
pub use end::Removal;

use super::command::Command;
use super::reply::{Failure, Reply};
use super::{Control, Request, help};
use crate::model::{Refusal, Rule, Target, WorkspaceRef, resolve_workspace};

impl Control {
    /// Carries out a command that its asker may give.
    pub(super) fn execute(
        &self,
        request: &Request<'_>,
        command: Command,
    ) -> Result<Reply, Failure> {
        let reply = match command {
            Command::Allocate(allocation) => self.allocate(request.caller, allocation),
            Command::Bind(window, subject) => self.bind(request.caller, window, &subject),
            Command::Unbind(subject) => self.unbind(request.caller, &subject),
            Command::Handoff(order) => self.handoff(request, order),
            Command::Release(window, end) => self.release(request, window, end),
            Command::Reclaim(order) => self.reclaim(request, order),
            Command::Restore(workspace) => self.restore(workspace),
            Command::Purge(workspace) => self.purge(workspace),
            Command::Expire {
                older_than,
                idle,
                unsaved,
            } => self.expire(request, older_than, idle, unsaved),
            Command::Path(target) => self.show_path(request.caller, target),
            Command::Quota(target, false) => self.show_quota(target),
            Command::Quota(_, true) => Err(unsupported("setting a quota")),
            Command::Show(shown) => self.show(shown),
            Command::List(listing) => self.list(listing),
            Command::Wait(job, timeout) => return self.wait_job(job, timeout),
            Command::Cancel(job, timeout) => self.cancel(request.asker, job, timeout),
            Command::Refresh(workspace) => self.refresh(workspace),
            Command::View(window, dir) => self.open_view(window, &dir),
            Command::Leave(dir) => self.close_view(&dir),
            Command::Help(None) => {
                Ok(Reply::ok().with("text", help::text(request.asker.own.is_some())))
            }
            Command::Help(Some(verb)) => Ok(Reply::ok().with("text", help::about(verb))),
            Command::Later(what, _) => Err(unsupported(what)),
        };
        reply.map_err(Failure::from)
    }

    fn refresh(&self, workspace: WorkspaceRef) -> Result<Reply, Refusal> {
        let id = self.world(|world| {
            resolve_workspace(world, Target::Workspace(workspace)).map(|found| found.id)
        })?;
        self.forget_usage(id);
        self.tree(|tree| tree.refresh(id));
        Ok(Reply::ok().with("workspace", id))
    }
}

fn unsupported(what: &str) -> Refusal {
    Refusal::new(
        Rule::Unsupported,
        format!("this version does not offer {what}"),
        "Do without it, or use a later version; `help` tells what there is.",
    )
}
