//! The commands that change who may write where, as pure functions.
//!
//! Each takes the [`World`], a command and the time, and gives a [`Decision`] or a [`Refusal`].
//! The time is only ever recorded, except by [`expire`], which is about nothing else. A command
//! that finds its work done already decides no changes and answers as it did the first time.

mod end;
mod expire;
mod open;

use std::fmt;
use std::str::FromStr;

use super::id::{WindowId, WorkspaceRef};
use super::refusal::{Refusal, Rule};
use super::world::{Changes, Decision, Window, WindowState, Workspace, World};

pub use end::{Purged, Reclaim, Reclaimed, Released, Restored, purge, reclaim, release, restore};
pub use expire::{Activity, Expirable, Expire, expire};
pub use open::{Allocate, Allocated, HandedOff, Handoff, allocate, handoff};

/// What a command names: a window, which stands for its chain's workspace, or a workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Target {
    /// `c7`
    Window(WindowId),
    /// `ws7` or `ws7.2`
    Workspace(WorkspaceRef),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Window(window) => window.fmt(f),
            Self::Workspace(workspace) => workspace.fmt(f),
        }
    }
}

impl FromStr for Target {
    type Err = Refusal;

    /// # Errors
    /// [`Rule::WindowRefInvalid`] for what begins like a window and is none, otherwise
    /// [`Rule::WorkspaceRefUnknown`] for what isn't a workspace ref.
    fn from_str(text: &str) -> Result<Self, Refusal> {
        if text.starts_with('c') {
            text.parse().map(Self::Window)
        } else {
            text.parse().map(Self::Workspace)
        }
    }
}

/// The workspace that a target names, whatever its state.
///
/// # Errors
/// [`Rule::WindowNotFound`], [`Rule::WorkspaceNotFound`] (also for a window without one), and
/// [`Rule::WorkspaceRefExpired`] for an occupation that is over.
pub fn resolve_workspace(world: &World, target: Target) -> Result<&Workspace, Refusal> {
    match target {
        Target::Window(id) => {
            let window = world.find_window(id)?;
            let workspace = window.workspace.ok_or_else(|| {
                Refusal::new(
                    Rule::WorkspaceNotFound,
                    format!("{id} has no workspace"),
                    format!("Give it one with `allocate {id}`."),
                )
                .with("window", id.to_string())
            })?;
            world.find_workspace(workspace)
        }
        Target::Workspace(named) => {
            let workspace = world.find_workspace(named.workspace)?;
            match (named.occupation, workspace.occupation) {
                (None, _) => Ok(workspace),
                (Some(named), Some(present)) if named == present => Ok(workspace),
                (Some(past), Some(present)) if past < present => Err(Refusal::new(
                    Rule::WorkspaceRefExpired,
                    format!(
                        "{named} is over; {} is the present occupation",
                        workspace.current_ref()
                    ),
                    format!(
                        "Name {} for the workspace as it is now.",
                        workspace.current_ref()
                    ),
                )
                .with("workspace", workspace.id.to_string())
                .with("ref", workspace.current_ref().to_string())),
                _ => Err(Refusal::new(
                    Rule::WorkspaceNotFound,
                    format!(
                        "there is no {named}; {} is the present ref",
                        workspace.current_ref()
                    ),
                    format!("Name it as {}.", workspace.current_ref()),
                )
                .with("workspace", workspace.id.to_string())
                .with("ref", workspace.current_ref().to_string())),
            }
        }
    }
}

/// The window, where it is live.
///
/// # Errors
/// [`Rule::WindowNotFound`], and [`Rule::WindowEnded`] for one that was released or continued.
pub fn live_window(world: &World, id: WindowId) -> Result<&Window, Refusal> {
    let window = world.find_window(id)?;
    match window.state {
        WindowState::Live => Ok(window),
        WindowState::Continued | WindowState::Released => Err(window_ended(world, window)),
    }
}

/// A decision that changes nothing, because what was asked for is so already.
fn nothing_to_do<T>(answer: T) -> Decision<T> {
    Decision {
        changes: Changes::default(),
        events: Vec::new(),
        answer,
    }
}

/// The window that may write in the chain's workspace, if any.
fn holder_of_chain(world: &World, window: &Window) -> Option<WindowId> {
    let workspace = world.workspace(window.workspace?)?;
    workspace.holder
}

/// Adds what a reader of a refusal wants to know about a window's chain; absent values are null.
fn with_chain(refusal: Refusal, world: &World, window: &Window) -> Refusal {
    refusal
        .with("window", window.id.to_string())
        .with(
            "holder",
            holder_of_chain(world, window).map(|id| id.to_string()),
        )
        .with("workspace", window.workspace.map(|id| id.to_string()))
}

/// The refusal for a window that was released or continued.
fn window_ended(world: &World, window: &Window) -> Refusal {
    let id = window.id;
    let place = match window.workspace {
        Some(workspace) => format!(" in {workspace}"),
        None => String::new(),
    };
    let (message, next_action) = match (window.state, window.continued_by) {
        (WindowState::Continued, Some(next)) => {
            let next_action = match holder_of_chain(world, window) {
                Some(holder) => format!("Work as {holder}, which holds the workspace now."),
                None => {
                    "Allocate another window, or hand the chain's last window off to a new one."
                        .to_owned()
                }
            };
            (format!("{id} was continued by {next}{place}"), next_action)
        }
        _ => (
            format!("{id} was released{place}"),
            match window.workspace.and_then(|id| world.workspace(id)) {
                Some(workspace) if workspace.in_tree() => {
                    format!("Continue it in a new window with `handoff {id}`, or allocate another.")
                }
                _ => "Allocate another window.".to_owned(),
            },
        ),
    };
    with_chain(
        Refusal::new(Rule::WindowEnded, message, next_action),
        world,
        window,
    )
}
