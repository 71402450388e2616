//! The pure rules: ids, windows, chains, workspaces, transitions and refusals. No I/O.
//!
//! A transition takes the [`World`], a command and the time, and gives a [`Decision`] (what
//! changes, what happened, what to answer) or a [`Refusal`]. The store makes a decision durable
//! before anybody sees it.

mod binding;
mod id;
mod refusal;
mod size;
mod time;
mod transition;
mod world;

pub use binding::{Binding, BindingKind, Role};
pub use id::{JobId, MAX_ID, WindowId, WorkspaceId, WorkspaceRef};
pub use refusal::{Code, Refusal, Rule};
pub use size::parse_bytes;
pub use time::Timestamp;
pub use transition::{
    Activity, Allocate, Allocated, Expirable, Expire, HandedOff, Handoff, Purged, Reclaim,
    Reclaimed, Released, Restored, Target, allocate, expire, handoff, live_window, purge, reclaim,
    release, resolve_workspace, restore,
};
pub use world::{
    Changes, Decision, NewEvent, Owner, Quota, Title, Window, WindowState, Workspace,
    WorkspaceState, World,
};
