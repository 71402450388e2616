//! Who is in which window at the moment: every process is asked.

use std::collections::HashMap;
use std::sync::Arc;

use super::task::Task;
use super::{Found, Members};
use crate::model::{BindingKind, Role, WindowId};
use crate::sys::proc;

/// A process, or a bound thread, of a window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The process.
    pub pid: u32,
    /// The thread, where only that is a member.
    pub tid: Option<u32>,
    /// The name of the process or thread, at most 15 bytes.
    pub command: String,
    /// As [`super::Who::by`].
    pub by: &'static str,
}

impl Members {
    /// The members of a window, by pid.
    pub fn members_of(&self, window: WindowId) -> Vec<Member> {
        if self.table.read().of_window(window).is_empty() {
            return Vec::new();
        }
        self.all_members().remove(&window).unwrap_or_default()
    }

    /// The members of every window that has any, by pid.
    pub fn all_members(&self) -> HashMap<WindowId, Vec<Member>> {
        let mut members: HashMap<WindowId, Vec<Member>> = HashMap::new();
        if self.table.read().is_empty() {
            return members;
        }
        for found in self.scan(|_| true) {
            if let Role::Member(window) = found.who.role {
                members.entry(window).or_default().extend(member(&found));
            }
        }
        let threads: Vec<_> = {
            let table = self.table.read();
            let threads = table
                .iter()
                .filter(|bound| bound.binding.kind == BindingKind::Thread);
            threads.cloned().collect()
        };
        for bound in threads {
            let Some(window) = bound.binding.window else {
                continue;
            };
            if let Some(task) = bound.task.as_ref().filter(|task| task.is_alive())
                && let Ok(stat) = task.stat()
            {
                members.entry(window).or_default().push(Member {
                    pid: task.tgid,
                    tid: Some(task.id),
                    command: stat.comm,
                    by: "thread",
                });
            }
        }
        for members in members.values_mut() {
            members.sort_unstable_by_key(|member| (member.pid, member.tid));
        }
        members
    }

    /// Looks at every living process of which `concerned` says so.
    pub(super) fn scan(&self, concerned: impl Fn(&proc::Stat) -> bool) -> Vec<Found> {
        let pids = proc::processes().unwrap_or_else(|error| {
            tracing::error!(%error, "can't list /proc");
            Vec::new()
        });
        // Holding what was found keeps the ancestors known, each looked at once.
        let mut found = Vec::new();
        for pid in pids {
            let stat = proc::stat(pid);
            if stat.is_ok_and(|s| !s.is_kernel_thread() && !s.has_ended() && concerned(&s))
                && let Some((_, process)) = self.find_out(pid, false)
            {
                found.push(process);
            }
        }
        found
    }
}

/// What is told of a process; none where it is gone.
pub(super) fn member(found: &Found) -> Option<Member> {
    let task: &Task = &found.thread;
    Some(Member {
        pid: task.id,
        tid: None,
        command: task.stat().ok()?.comm,
        by: found.who.by,
    })
}

/// What holds a process that was found.
pub(super) fn task(found: &Found) -> Arc<Task> {
    Arc::clone(&found.thread)
}
