//! Verbs that change nothing: `path`, `quota`, `show`, `list`; and those for jobs and views.

use std::path::Path;
use std::sync::Weak;
use std::time::Duration;

use serde_json::{Value, json};

use crate::control::command::{Listing, Shown};
use crate::control::render::{MemberItem, WindowItem, WorkspaceItem, amounts};
use crate::control::reply::Reply;
use crate::control::usage::Fresh;
use crate::control::{Asker, Caller, Control};
use crate::model::{
    BindingKind, JobId, Refusal, Role, Rule, Target, WindowId, WindowState, WorkspaceId,
    WorkspaceState, live_window, resolve_workspace,
};

impl Control {
    pub(super) fn show_path(&self, caller: &Caller, target: Target) -> Result<Reply, Refusal> {
        self.world(|world| {
            let workspace = resolve_workspace(world, target)?;
            let window = match target {
                Target::Window(window) => Some(window),
                Target::Workspace(_) => workspace.holder,
            };
            let writable = match (caller.who.role, workspace.holder) {
                (Role::Operator, holder) => {
                    holder.is_some() || workspace.state == WorkspaceState::Released
                }
                (role, holder) => holder.is_some() && role.window() == holder,
            };
            let id = workspace.id;
            let notice = match (workspace.state, workspace.holder, window) {
                (WorkspaceState::Reclaimed, _, _) => Some(format!(
                    "{id} was reclaimed; `restore {id}` may bring it back"
                )),
                (_, Some(holder), Some(window)) if holder != window => {
                    Some(format!("{window} was handed off; {holder} holds {id} now"))
                }
                (_, None, _) => Some(format!("{id} has no holder, so nobody changes it")),
                _ => None,
            };
            Ok(Reply::ok()
                .with("window", window)
                .with("workspace", id)
                .with("ref", workspace.current_ref())
                .with("path", self.path_of(workspace))
                .with("writable", writable)
                .with("notice", notice))
        })
    }

    pub(super) fn show_quota(&self, target: Target) -> Result<Reply, Refusal> {
        let workspace = self.world(|world| resolve_workspace(world, target).cloned())?;
        let (id, quota) = (workspace.id, workspace.quota);
        let measured: &[WorkspaceId] = if workspace.in_tree() { &[id] } else { &[] };
        let usage = self.usage_of(measured, Fresh::Now).remove(&id);
        let (bytes, files) = amounts(quota, usage);
        Ok(Reply::ok()
            .with("workspace", id)
            .with("bytes", bytes)
            .with("files", files))
    }

    pub(super) fn show(&self, shown: Shown) -> Result<Reply, Refusal> {
        match shown {
            Shown::Job(id) => Ok(Reply::ok().with("item", self.jobs.find(id)?.item())),
            Shown::Window(id) => {
                let members = self.members.members_of(id);
                self.world(|world| {
                    let item =
                        WindowItem::new(world.find_window(id)?, &members, &self.options.mount);
                    Ok(Reply::ok().with("item", item))
                })
            }
            Shown::Workspace(named) => {
                let workspace = self
                    .world(|world| resolve_workspace(world, Target::Workspace(named)).cloned())?;
                let id = workspace.id;
                let measured: &[WorkspaceId] = if workspace.in_tree() { &[id] } else { &[] };
                let usage = self.usage_of(measured, Fresh::Now).remove(&id);
                let item = WorkspaceItem::new(&workspace, self.path_of(&workspace), usage);
                Ok(Reply::ok().with("item", item))
            }
        }
    }

    pub(super) fn list(&self, listing: Listing) -> Result<Reply, Refusal> {
        let reply = Reply::ok();
        Ok(match listing {
            Listing::Windows(state) => reply.with("items", self.window_items(state)),
            Listing::Workspaces(state) => reply.with("items", self.workspace_items(state)),
            Listing::Members => reply.with("items", self.member_items()),
            Listing::Sessions => reply.with("items", self.session_items()),
            Listing::Jobs(state) => {
                let jobs = self.jobs.all().into_iter();
                let jobs = jobs.filter(|job| state.is_none_or(|state| job.is(state)));
                reply.with("items", jobs.map(|job| job.item()).collect::<Vec<_>>())
            }
        })
    }

    /// Every window, or those in one state.
    pub(in crate::control) fn window_items(&self, state: Option<WindowState>) -> Vec<WindowItem> {
        let members = self.members.all_members();
        let members_of = |id| members.get(&id).map_or(&[][..], Vec::as_slice);
        self.world(|world| {
            let windows = world.windows();
            windows
                .filter(|window| state.is_none_or(|state| window.state == state))
                .map(|window| WindowItem::new(window, members_of(window.id), &self.options.mount))
                .collect()
        })
    }

    /// Every workspace, or those in one state.
    pub(in crate::control) fn workspace_items(
        &self,
        state: Option<WorkspaceState>,
    ) -> Vec<WorkspaceItem> {
        let workspaces: Vec<_> = self.world(|world| {
            let workspaces = world.workspaces();
            workspaces
                .filter(|workspace| state.is_none_or(|state| workspace.state == state))
                .cloned()
                .collect()
        });
        let in_tree = workspaces.iter().filter(|workspace| workspace.in_tree());
        let measured: Vec<_> = in_tree.map(|workspace| workspace.id).collect();
        let usage = self.usage_of(&measured, Fresh::Lately);
        workspaces
            .iter()
            .map(|workspace| {
                let usage = usage.get(&workspace.id).copied();
                WorkspaceItem::new(workspace, self.path_of(workspace), usage)
            })
            .collect()
    }

    fn member_items(&self) -> Vec<MemberItem> {
        let members = self.members.all_members();
        let mut windows: Vec<_> = members.keys().copied().collect();
        windows.sort_unstable();
        let items = windows.into_iter().flat_map(|window| {
            let members = &members[&window];
            members
                .iter()
                .map(move |member| MemberItem::new(window, member))
        });
        items.collect()
    }

    fn session_items(&self) -> Vec<Value> {
        let bindings = self.members.bindings().into_iter();
        let mut sessions: Vec<_> = bindings
            .filter(|binding| binding.kind == BindingKind::Session)
            .filter_map(|binding| Some((binding.window?, binding.id)))
            .collect();
        sessions.sort_unstable();
        let item = |(window, pid): (WindowId, u32)| json!({"kind": "exec", "window": window, "pid": pid, "dir": null});
        let mut items: Vec<_> = sessions.into_iter().map(item).collect();
        self.tree(|tree| {
            let views = tree.views().into_iter();
            items.extend(views.map(|(dir, window)| {
                json!({"kind": "view", "window": window, "pid": null, "dir": dir.display().to_string()})
            }));
        });
        items
    }

    /// A window cancels its own jobs only.
    pub(super) fn cancel(
        &self,
        asker: Asker,
        id: JobId,
        timeout: Option<Duration>,
    ) -> Result<Reply, Refusal> {
        let window = self.jobs.find(id)?.window();
        match asker.own {
            Some(own) if window != Some(own) => Err(Refusal::new(
                Rule::WindowNotYours,
                format!("{id} is no job of {own}"),
                "Ask the mount's owner, or the window that started it.",
            )),
            _ => self.cancel_job(id, timeout),
        }
    }

    pub(super) fn open_view(&self, window: Option<WindowId>, dir: &Path) -> Result<Reply, Refusal> {
        if let Some(window) = window {
            self.world(|world| live_window(world, window).map(drop))?;
        }
        self.with_tree(|tree| tree.open_view(window, dir))?;
        Ok(Reply::ok()
            .with("window", window)
            .with("dir", dir.display().to_string()))
    }

    pub(super) fn close_view(&self, dir: &Path) -> Result<Reply, Refusal> {
        self.with_tree(|tree| tree.close_view(dir))?;
        Ok(Reply::ok().with("dir", dir.display().to_string()))
    }

    fn with_tree(
        &self,
        work: impl FnOnce(&dyn crate::control::Tree) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let tree = self.tree.read().as_ref().and_then(Weak::upgrade);
        let tree = tree.ok_or_else(|| {
            Refusal::new(
                Rule::Unsupported,
                "nothing is mounted, so there is no view either",
                "Mount the store first.",
            )
        })?;
        work(&*tree)
    }
}
