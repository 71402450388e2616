//! What a caller may change, and what binds a process to its role.

use super::id::WindowId;

/// What a caller may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Belongs to this window.
    Member(WindowId),
    /// A thread of an operator, or a view mount, that acts for this window alone.
    Acting(WindowId),
    /// Trusted to change every occupied workspace.
    Operator,
    /// Belongs to no window.
    Guest,
}

impl Role {
    /// The window that it belongs to or acts for.
    pub fn window(self) -> Option<WindowId> {
        match self {
            Self::Member(window) | Self::Acting(window) => Some(window),
            Self::Operator | Self::Guest => None,
        }
    }
}

/// What binds a process or thread to its role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BindingKind {
    /// `procs`, or `bind pid=`.
    Process,
    /// `threads`, or `bind tid=`.
    Thread,
    /// `bind cgroup=`.
    Cgroup,
    /// The reaper of `exec` and `enter`.
    Session,
    /// `operators`.
    Operator,
    /// `acting`.
    Acting,
}

impl BindingKind {
    /// Every kind.
    pub const ALL: [Self; 6] = [
        Self::Process,
        Self::Thread,
        Self::Cgroup,
        Self::Session,
        Self::Operator,
        Self::Acting,
    ];

    /// The word for it, in the registry, in events and in messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Thread => "thread",
            Self::Cgroup => "cgroup",
            Self::Session => "session",
            Self::Operator => "operator",
            Self::Acting => "acting",
        }
    }
}

/// One binding, as the registry keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// How it was bound.
    pub kind: BindingKind,
    /// Process id (thread id for `Thread` and `Acting`); 0 for a control group.
    pub id: u32,
    /// Start time of that process or thread in clock ticks after boot, so that a successor with
    /// the same number is never mistaken for it; 0 for a control group.
    pub start: u64,
    /// The thread group of a thread; otherwise `id`.
    pub tgid: u32,
    /// The control group, from the root of its hierarchy (`/a/b`), with the hierarchy's path
    /// under /sys/fs/cgroup before a colon where it isn't the unified one; empty otherwise.
    pub cgroup: String,
    /// The window; none for an operator.
    pub window: Option<WindowId>,
}
