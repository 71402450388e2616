//! Who is asking: from a thread id to a window, an operator or a guest.

use std::sync::Arc;

use crate::model::{BindingKind, Role};

/// Who is asking.
#[derive(Debug, Clone)]
pub struct Who {
    /// What it may change.
    pub role: Role,
    /// By which binding (`Session` also for what `exec` started, `Process` for descendants);
    /// none for a guest.
    pub binding: Option<BindingKind>,
    /// A word for `whoami`: process, thread, cgroup, exec, ancestor, session, operator, acting,
    /// view; `none` for a guest.
    pub by: &'static str,
    /// The process (thread group) of the caller; 0 where it can't be seen from here.
    pub pid: u32,
    /// Its start time in clock ticks after boot.
    pub start: u64,
    /// The parent process.
    pub parent: u32,
}

/// Shorthand for the shared registry of members.
pub type SharedMembers = Arc<Members>;

/// Every binding, and the cache of answers.
#[derive(Debug)]
pub struct Members {}
