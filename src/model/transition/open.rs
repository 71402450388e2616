//! How a window comes to hold a workspace: a new one, or its predecessor's.

use super::super::id::{MAX_ID, WindowId, WorkspaceId, WorkspaceRef};
use super::super::refusal::{Refusal, Rule};
use super::super::time::Timestamp;
use super::super::world::{
    Changes, Decision, NewEvent, Owner, Quota, Title, Window, WindowState, Workspace,
    WorkspaceState, World,
};
use super::{nothing_to_do, window_ended, with_chain};

/// `allocate`: opens a window and gives it a workspace of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocate {
    /// The window; none for the next free number.
    pub window: Option<WindowId>,
    /// Its task.
    pub title: Option<Title>,
    /// Who will own the window's control files and the workspace's top directory.
    pub owner: Owner,
    /// The workspace's limits.
    pub quota: Quota,
    /// Whether sweeps leave the workspace alone.
    pub keep: bool,
}

/// What `allocate` answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocated {
    /// The window.
    pub window: WindowId,
    /// Its workspace.
    pub workspace: WorkspaceId,
    /// The occupation of it.
    pub reference: WorkspaceRef,
    /// The window's state: live.
    pub state: WindowState,
    /// Whether the workspace is new; false where the window had it already.
    pub created: bool,
}

/// Gives a window a workspace; a window that has one keeps it, and nothing changes.
///
/// # Errors
/// [`Rule::WindowEnded`] for a window that was released or continued, and
/// [`Rule::QuotaExceeded`] when no number is left.
pub fn allocate(
    world: &World,
    command: &Allocate,
    now: Timestamp,
) -> Result<Decision<Allocated>, Refusal> {
    let id = match command.window {
        Some(id) => id,
        None => next_window(world)?,
    };
    let known = world.window(id);
    if known.is_none() {
        not_far_above(world, id)?;
    }
    if let Some(window) = known {
        if window.state != WindowState::Live {
            return Err(window_ended(world, window));
        }
        if let Some(workspace) = window.workspace {
            let workspace = world.find_workspace(workspace)?;
            return Ok(nothing_to_do(Allocated {
                window: id,
                workspace: workspace.id,
                reference: workspace.current_ref(),
                state: window.state,
                created: false,
            }));
        }
    }

    let workspace = Workspace {
        id: new_workspace_number(world, id)?,
        occupation: None,
        state: WorkspaceState::Occupied,
        holder: Some(id),
        chain: vec![id],
        title: command.title.clone(),
        owner: command.owner,
        quota: command.quota,
        keep: command.keep,
        epoch: 1,
        created_at: now,
        released_at: None,
        reclaimed_at: None,
        purged: false,
    };
    let mut events = Vec::new();
    let mut window = match known {
        Some(window) => window.clone(),
        None => {
            events.push(
                NewEvent::new("window.opened", [id])
                    .with("window", id.to_string())
                    .with("title", command.title.as_ref().map(Title::as_str)),
            );
            Window {
                id,
                workspace: None,
                state: WindowState::Live,
                continues: None,
                continued_by: None,
                title: None,
                cwd: None,
                owner: command.owner,
                opened_at: now,
                ended_at: None,
            }
        }
    };
    window.workspace = Some(workspace.id);
    window.cwd = None;
    if command.title.is_some() {
        window.title.clone_from(&command.title);
    }
    events.push(
        NewEvent::new("workspace.created", [id])
            .with("workspace", workspace.id.to_string())
            .with("ref", workspace.current_ref().to_string())
            .with("window", id.to_string()),
    );
    let answer = Allocated {
        window: id,
        workspace: workspace.id,
        reference: workspace.current_ref(),
        state: window.state,
        created: true,
    };
    Ok(Decision {
        changes: Changes {
            windows: vec![window],
            workspaces: vec![workspace],
        },
        events,
        answer,
    })
}

/// `handoff`: makes a new window the holder of the same workspace, in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handoff {
    /// The holder, or the released tail, of a chain.
    pub from: WindowId,
    /// The new window; none for the next free number.
    pub to: Option<WindowId>,
    /// Its task; none for its predecessor's.
    pub title: Option<Title>,
    /// Whether what the predecessor opened goes stale; false where its processes move along
    /// (`members=move`).
    pub fresh_epoch: bool,
}

/// What `handoff` answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandedOff {
    /// The predecessor.
    pub from: WindowId,
    /// The window that holds the workspace from now on.
    pub to: WindowId,
    /// The workspace.
    pub workspace: WorkspaceId,
    /// Its ref, the same as before.
    pub reference: WorkspaceRef,
    /// Whether this handoff had happened already.
    pub repeated: bool,
}

/// Hands a chain's workspace to a new window. The same handoff repeated changes nothing.
///
/// # Errors
/// - [`Rule::WindowNotFound`] for a predecessor that never was.
/// - [`Rule::ChainNotHolder`] where it is neither the holder nor the released tail of its chain.
/// - [`Rule::WorkspaceRefExpired`] where the workspace was reclaimed.
/// - [`Rule::WorkspaceHeld`], [`Rule::WindowEnded`] for a successor that isn't new.
/// - [`Rule::QuotaExceeded`] when no number is left.
pub fn handoff(
    world: &World,
    command: &Handoff,
    now: Timestamp,
) -> Result<Decision<HandedOff>, Refusal> {
    let from = world.find_window(command.from)?;
    let Some(workspace) = from.workspace else {
        return Err(not_holder(world, from));
    };
    let workspace = world.find_workspace(workspace)?;
    let answer = |to, repeated| HandedOff {
        from: from.id,
        to,
        workspace: workspace.id,
        reference: workspace.current_ref(),
        repeated,
    };
    if let (Some(done), Some(asked)) = (from.continued_by, command.to)
        && done == asked
    {
        return Ok(nothing_to_do(answer(asked, true)));
    }
    let tail = workspace.chain.last() == Some(&from.id);
    match from.state {
        WindowState::Live if workspace.holder == Some(from.id) => {}
        WindowState::Released if tail && workspace.state == WorkspaceState::Released => {}
        WindowState::Released if tail && !workspace.in_tree() => {
            return Err(reclaimed(world, from, workspace));
        }
        _ => return Err(not_holder(world, from)),
    }
    let to = match command.to {
        Some(id) => id,
        None => next_window(world)?,
    };
    if let Some(known) = world.window(to) {
        return Err(not_new(world, known));
    }
    not_far_above(world, to)?;

    let title = command.title.clone().or_else(|| from.title.clone());
    let successor = Window {
        id: to,
        workspace: Some(workspace.id),
        state: WindowState::Live,
        continues: Some(from.id),
        continued_by: None,
        title,
        cwd: from.cwd.clone(),
        owner: from.owner,
        opened_at: now,
        ended_at: None,
    };
    let mut predecessor = from.clone();
    predecessor.state = WindowState::Continued;
    predecessor.continued_by = Some(to);
    predecessor.ended_at = Some(from.ended_at.unwrap_or(now));
    let mut handed = workspace.clone();
    handed.state = WorkspaceState::Occupied;
    handed.holder = Some(to);
    handed.chain.push(to);
    handed.released_at = None;
    if command.title.is_some() {
        handed.title.clone_from(&command.title);
    }
    if command.fresh_epoch {
        handed.epoch += 1;
    }

    let events = vec![
        NewEvent::new("window.opened", [to])
            .with("window", to.to_string())
            .with("title", successor.title.as_ref().map(Title::as_str)),
        NewEvent::new("handoff", [from.id, to])
            .with("from", from.id.to_string())
            .with("to", to.to_string())
            .with("workspace", handed.id.to_string())
            .with("ref", handed.current_ref().to_string()),
    ];
    Ok(Decision {
        changes: Changes {
            windows: vec![predecessor, successor],
            workspaces: vec![handed],
        },
        events,
        answer: answer(to, false),
    })
}

/// The number after the highest ever used; a gap below it stays one.
fn next_window(world: &World) -> Result<WindowId, Refusal> {
    WindowId::new(world.highest_window.saturating_add(1))
        .ok_or_else(|| used_up(format!("c{MAX_ID}"), "window"))
}

/// A new workspace bears its window's number where that is free, and never one that was used.
fn new_workspace_number(world: &World, window: WindowId) -> Result<WorkspaceId, Refusal> {
    let number = world
        .highest_workspace
        .saturating_add(1)
        .max(window.number());
    WorkspaceId::new(number).ok_or_else(|| used_up(format!("ws{MAX_ID}"), "workspace"))
}

/// A slip of the finger must not use up the numbers of a store: they never return.
const FAR: u32 = 1_000_000;

fn not_far_above(world: &World, id: WindowId) -> Result<(), Refusal> {
    let highest = world.highest_window.max(world.highest_workspace);
    if id.number() - 1 <= highest.saturating_add(FAR - 1) {
        return Ok(());
    }
    Err(Refusal::new(
        Rule::ArgumentInvalid,
        format!("{id} is more than {FAR} above the highest number so far, {highest}"),
        "Leave the number out to get the next free one.",
    ))
}

fn used_up(last: String, what: &str) -> Refusal {
    Refusal::new(
        Rule::QuotaExceeded,
        format!("{last} is in use, and no {what} can bear a higher number"),
        "Go on in a new store.",
    )
}

fn not_holder(world: &World, from: &Window) -> Refusal {
    let id = from.id;
    let holder = super::holder_of_chain(world, from);
    let (message, next_action) = match (from.workspace, holder) {
        (None, _) => (
            format!("{id} holds no workspace"),
            format!("Give it one with `allocate {id}`."),
        ),
        (Some(workspace), Some(holder)) => (
            format!("{id} does not hold {workspace}: {holder} does"),
            format!("Hand off from {holder}."),
        ),
        (Some(workspace), None) => (
            format!("{id} does not hold {workspace}, nor is it the last of its chain"),
            match world.workspace(workspace).and_then(|w| w.chain.last()) {
                Some(last) if *last != id => {
                    format!("Hand off from {last}, the chain's last window.")
                }
                _ => format!("See `show {workspace}` for its chain and state."),
            },
        ),
    };
    with_chain(
        Refusal::new(Rule::ChainNotHolder, message, next_action),
        world,
        from,
    )
}

fn reclaimed(world: &World, from: &Window, workspace: &Workspace) -> Refusal {
    let (id, from_id) = (workspace.id, from.id);
    let next_action = if workspace.purged {
        "Allocate a new window; its files are gone for good.".to_owned()
    } else {
        format!("Bring it back with `restore {id}`, then hand off again.")
    };
    with_chain(
        Refusal::new(
            Rule::WorkspaceRefExpired,
            format!("{id}, the workspace of {from_id}, was reclaimed"),
            next_action,
        ),
        world,
        from,
    )
}

fn not_new(world: &World, to: &Window) -> Refusal {
    if to.state != WindowState::Live {
        return window_ended(world, to);
    }
    let id = to.id;
    let message = match to.workspace {
        Some(workspace) => format!("{id} is not new: it holds {workspace}"),
        None => format!("{id} is not new"),
    };
    with_chain(
        Refusal::new(
            Rule::WorkspaceHeld,
            message,
            "Name a window that was never opened, or leave it out for the next free number.",
        ),
        world,
        to,
    )
}
