//! How a window lets go of its workspace, and how a workspace leaves the tree and comes back.

use super::super::id::{WindowId, WorkspaceId, WorkspaceRef};
use super::super::refusal::{Refusal, Rule};
use super::super::time::Timestamp;
use super::super::world::{
    Changes, Decision, NewEvent, Window, WindowState, Workspace, WorkspaceState, World,
};
use super::{Target, nothing_to_do, resolve_workspace, window_ended};

/// What `release` answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Released {
    /// The window.
    pub window: WindowId,
    /// The workspace that it held, whose files are kept.
    pub workspace: Option<WorkspaceId>,
    /// The window's state: released.
    pub state: WindowState,
}

/// Ends a window without a continuation; its workspace's files are kept. Repeated, it changes
/// nothing.
///
/// # Errors
/// [`Rule::WindowNotFound`], and [`Rule::WindowEnded`] for a window that was continued.
pub fn release(
    world: &World,
    window: WindowId,
    now: Timestamp,
) -> Result<Decision<Released>, Refusal> {
    let window = world.find_window(window)?;
    let answer = Released {
        window: window.id,
        workspace: window.workspace,
        state: WindowState::Released,
    };
    match window.state {
        WindowState::Live => {}
        WindowState::Released => return Ok(nothing_to_do(answer)),
        WindowState::Continued => return Err(window_ended(world, window)),
    }
    let mut changes = Changes::default();
    let mut events = vec![end(&mut changes, window, now)];
    let held = window.workspace.and_then(|id| world.workspace(id));
    if let Some(workspace) = held.filter(|held| held.holder == Some(window.id)) {
        let mut workspace = workspace.clone();
        workspace.state = WorkspaceState::Released;
        workspace.holder = None;
        workspace.released_at = Some(now);
        workspace.epoch += 1;
        events.push(about("workspace.released", &workspace, Some(window.id)));
        changes.workspaces.push(workspace);
    }
    Ok(Decision {
        changes,
        events,
        answer,
    })
}

/// `reclaim`: takes a workspace out of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reclaim {
    /// Which one.
    pub target: Target,
    /// Also where a window holds it, which then ends.
    pub force: bool,
    /// Deletes the files too, so that nothing brings them back.
    pub purge: bool,
}

/// What `reclaim` answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reclaimed {
    /// The workspace.
    pub workspace: WorkspaceId,
    /// Its state: reclaimed.
    pub state: WorkspaceState,
    /// The live window that ended with it.
    pub ended: Option<WindowId>,
    /// Whether it was reclaimed already. (A purge asked for now is still in the changes.)
    pub repeated: bool,
}

/// Takes a workspace out of the tree, and with `force` ends the window that holds it. Repeated,
/// it changes nothing.
///
/// # Errors
/// Those of [`resolve_workspace`], and [`Rule::WorkspaceHeld`] for one with a live holder, or
/// one that a handler works on, without `force`.
pub fn reclaim(
    world: &World,
    command: &Reclaim,
    now: Timestamp,
) -> Result<Decision<Reclaimed>, Refusal> {
    let known = resolve_workspace(world, command.target)?;
    let mut workspace = known.clone();
    let mut changes = Changes::default();
    let mut events = Vec::new();
    let mut ended = None;
    let repeated = !known.in_tree();
    if !repeated {
        if !command.force {
            refuse_if_in_use(known)?;
        }
        if let Some(holder) = known.holder.and_then(|id| world.window(id)) {
            ended = Some(holder.id);
            events.push(end(&mut changes, holder, now));
        }
        workspace.state = WorkspaceState::Reclaimed;
        workspace.holder = None;
        workspace.released_at = Some(known.released_at.unwrap_or(now));
        workspace.reclaimed_at = Some(now);
        workspace.epoch += 1;
        events.push(about("workspace.reclaimed", &workspace, ended));
    }
    if command.purge && !workspace.purged {
        workspace.purged = true;
        events.push(about("workspace.purged", &workspace, None));
    }
    if !events.is_empty() {
        changes.workspaces.push(workspace);
    }
    Ok(Decision {
        changes,
        events,
        answer: Reclaimed {
            workspace: known.id,
            state: WorkspaceState::Reclaimed,
            ended,
            repeated,
        },
    })
}

/// What `restore` answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// The workspace.
    pub workspace: WorkspaceId,
    /// Its state: released.
    pub state: WorkspaceState,
}

/// Brings a reclaimed workspace back into the tree, without a holder. Its age for later sweeps
/// begins anew. One that has no holder and is in the tree stays as it is.
///
/// # Errors
/// Those of [`resolve_workspace`], [`Rule::WorkspaceRefExpired`] where its files are deleted, and
/// [`Rule::WorkspaceHeld`] for a workspace in use.
pub fn restore(
    world: &World,
    workspace: WorkspaceRef,
    now: Timestamp,
) -> Result<Decision<Restored>, Refusal> {
    let known = resolve_workspace(world, Target::Workspace(workspace))?;
    let id = known.id;
    let answer = Restored {
        workspace: id,
        state: WorkspaceState::Released,
    };
    match known.state {
        WorkspaceState::Released => return Ok(nothing_to_do(answer)),
        WorkspaceState::Reclaimed if known.purged => {
            return Err(Refusal::new(
                Rule::WorkspaceRefExpired,
                format!("{id} was purged: its files are deleted"),
                "Allocate a new window and recreate what is needed from a copy elsewhere.",
            )
            .with("workspace", id.to_string()));
        }
        WorkspaceState::Reclaimed => {}
        _ => {
            return Err(in_use(
                known,
                "so there is nothing to restore",
                format!("Use it as it is, at {id}."),
            ));
        }
    }
    let mut restored = known.clone();
    restored.state = WorkspaceState::Released;
    restored.released_at = Some(now);
    restored.reclaimed_at = None;
    restored.epoch += 1;
    Ok(Decision {
        events: vec![about("workspace.restored", &restored, None)],
        changes: Changes {
            windows: Vec::new(),
            workspaces: vec![restored],
        },
        answer,
    })
}

/// What `purge` answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Purged {
    /// The workspace.
    pub workspace: WorkspaceId,
}

/// Gives a reclaimed workspace's files up for deletion. Repeated, it changes nothing.
///
/// # Errors
/// Those of [`resolve_workspace`], and [`Rule::WorkspaceHeld`] for a workspace in the tree.
pub fn purge(
    world: &World,
    workspace: WorkspaceRef,
    _now: Timestamp,
) -> Result<Decision<Purged>, Refusal> {
    let known = resolve_workspace(world, Target::Workspace(workspace))?;
    let id = known.id;
    let answer = Purged { workspace: id };
    if known.in_tree() {
        return Err(in_use(
            known,
            "and only what is reclaimed can be purged",
            format!("Reclaim it and delete its files at once with `reclaim {id} purge=true`."),
        ));
    }
    if known.purged {
        return Ok(nothing_to_do(answer));
    }
    let mut purged = known.clone();
    purged.purged = true;
    Ok(Decision {
        events: vec![about("workspace.purged", &purged, None)],
        changes: Changes {
            windows: Vec::new(),
            workspaces: vec![purged],
        },
        answer,
    })
}

/// Ends a live window without a continuation.
fn end(changes: &mut Changes, window: &Window, now: Timestamp) -> NewEvent {
    let mut ended = window.clone();
    ended.state = WindowState::Released;
    ended.ended_at = Some(now);
    changes.windows.push(ended);
    NewEvent::new("window.released", [window.id])
        .with("window", window.id.to_string())
        .with("workspace", window.workspace.map(|id| id.to_string()))
}

/// An event of a workspace; it concerns the last window of its chain, also where that has ended.
fn about(kind: &'static str, workspace: &Workspace, window: Option<WindowId>) -> NewEvent {
    let last = workspace.chain.last().copied();
    NewEvent::new(kind, last)
        .with("workspace", workspace.id.to_string())
        .with("ref", workspace.current_ref().to_string())
        .with("window", window.or(last).map(|id| id.to_string()))
}

fn refuse_if_in_use(workspace: &Workspace) -> Result<(), Refusal> {
    let id = workspace.id;
    match (workspace.holder, workspace.state) {
        (Some(holder), _) => Err(in_use(
            workspace,
            "and goes on working there",
            format!("Release {holder} first, or give force=true to end it with {id}."),
        )),
        (None, WorkspaceState::Provisioning | WorkspaceState::Unknown) => Err(in_use(
            workspace,
            "so its files may still change",
            format!("Wait for the handler of {id}, or give force=true."),
        )),
        (None, _) => Ok(()),
    }
}

/// The refusal for a workspace that stands in the way by being in the tree.
fn in_use(workspace: &Workspace, so: &str, next_action: String) -> Refusal {
    let id = workspace.id;
    let message = match workspace.holder {
        Some(holder) => format!("{holder} holds {id} {so}"),
        None => format!("{id} is {}, {so}", workspace.state.as_str()),
    };
    Refusal::new(Rule::WorkspaceHeld, message, next_action)
        .with("workspace", id.to_string())
        .with("holder", workspace.holder.map(|id| id.to_string()))
}
