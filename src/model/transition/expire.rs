//! What a sweep may take: workspaces released long ago, and windows that do nothing.

use std::time::Duration;

use super::super::id::{WindowId, WorkspaceId};
use super::super::time::Timestamp;
use super::super::world::{Window, WindowState, WorkspaceState, World};

/// When a window last did something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// It has members, so it is never idle.
    Busy,
    /// It has none; this is its last change as far as is known.
    Since(Timestamp),
    /// It has none, and nothing is known beyond when it was opened.
    Unknown,
}

/// `expire`: what counts as old, and as idle.
pub struct Expire<'a> {
    /// Released workspaces at least this old go; none for none of them.
    pub older_than: Option<Duration>,
    /// Live windows without members and changes for this long end; none for none of them.
    pub idle: Option<Duration>,
    /// Asked for each live window when `idle` is given.
    pub activity: &'a dyn Fn(&Window) -> Activity,
}

/// What a sweep may take, by number. Whoever sweeps decides about each with
/// [`reclaim`](super::reclaim) and [`release`](super::release), after looking for work that
/// exists nowhere else.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expirable {
    /// To be reclaimed.
    pub workspaces: Vec<WorkspaceId>,
    /// To be released.
    pub windows: Vec<WindowId>,
}

/// Lists what is old and what is idle. What is marked `keep` is neither.
pub fn expire(world: &World, command: &Expire<'_>, now: Timestamp) -> Expirable {
    let mut expirable = Expirable::default();
    if let Some(older_than) = command.older_than {
        let old = world.workspaces().filter(|workspace| {
            let since = workspace.released_at.unwrap_or(workspace.created_at);
            workspace.state == WorkspaceState::Released
                && !workspace.keep
                && since.age(now) >= older_than
        });
        expirable
            .workspaces
            .extend(old.map(|workspace| workspace.id));
    }
    if let Some(idle) = command.idle {
        let kept = |window: &Window| {
            let workspace = window.workspace.and_then(|id| world.workspace(id));
            workspace.is_some_and(|workspace| workspace.keep)
        };
        let candidates = world
            .windows()
            .filter(|window| window.state == WindowState::Live && !kept(window));
        let idle = candidates.filter(|window| {
            let since = match (command.activity)(window) {
                Activity::Busy => return false,
                Activity::Since(last) => last.max(window.opened_at),
                Activity::Unknown => window.opened_at,
            };
            since.age(now) >= idle
        });
        expirable.windows.extend(idle.map(|window| window.id));
    }
    expirable
}
