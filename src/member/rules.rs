//! Who belongs where. The first that answers: the calling thread; its process; the control group;
//! the session that `exec` made; the nearest bound ancestor; the bound leader of its session.
//!
//! No lock is held over a system call.

use std::io;
use std::sync::Arc;

use parking_lot::RwLock;

use super::cgroup;
use super::table::{Bound, Table};
use super::task::{Task, Tasks};
use crate::model::{Binding, BindingKind, Role};
use crate::sys::proc;

/// What somebody may do, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Standing {
    pub role: Role,
    pub binding: Option<BindingKind>,
    pub by: &'static str,
}

impl Standing {
    pub const GUEST: Self = Self {
        role: Role::Guest,
        binding: None,
        by: "none",
    };

    fn by(by: &'static str, binding: &Binding) -> Self {
        let role = match (binding.kind, binding.window) {
            (BindingKind::Operator, _) => Role::Operator,
            (BindingKind::Acting, Some(window)) => Role::Acting(window),
            (_, Some(window)) => Role::Member(window),
            (_, None) => return Self::GUEST,
        };
        Self {
            role,
            binding: Some(binding.kind),
            by,
        }
    }
}

/// An answer, and for how long it is true (until the bindings change).
#[derive(Debug)]
pub(super) struct Verdict {
    pub standing: Standing,
    /// As long as all of these live, beside the asker …
    pub pins: Vec<Arc<Task>>,
    /// … and the asker's session is still this one. (Leaving one can't be undone, so only what
    /// somebody has by its session can be lost.)
    pub session: Option<u32>,
    /// Who was asked on the way: all must live when the answer is given, for it to have been true.
    pub asked: Vec<Arc<Task>>,
}

impl Verdict {
    fn new(standing: Standing, pins: Vec<Arc<Task>>) -> Self {
        Self {
            standing,
            pins,
            session: None,
            asked: Vec::new(),
        }
    }
}

/// The rules, applied to living processes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules<'a> {
    pub table: &'a RwLock<Table>,
    pub tasks: &'a Tasks,
    /// Whether to distrust what is remembered of parents, after some of it proved to be old.
    pub careful: bool,
}

impl Rules<'_> {
    fn bound(self, kind: BindingKind, task: &Arc<Task>) -> Option<Arc<Bound>> {
        let bound = self.table.read().get(kind, task.id);
        bound.filter(|bound| bound.is_of(task))
    }

    /// By a binding of the very thread.
    pub fn by_thread(self, thread: &Arc<Task>) -> Option<Verdict> {
        if self.table.read().threads_of(thread.tgid).is_empty() {
            return None;
        }
        let find = |task: &Arc<Task>| {
            if let Some(bound) = self.bound(BindingKind::Acting, task) {
                return Some(Standing::by("acting", &bound.binding));
            }
            let bound = self.bound(BindingKind::Thread, task)?;
            Some(Standing::by("thread", &bound.binding))
        };
        if let Some(standing) = find(thread) {
            return Some(Verdict::new(standing, Vec::new()));
        }
        // What io_uring does for a thread, it does on a thread of its own.
        let author = thread.stat().ok()?.works_for()?;
        let author = self
            .tasks
            .get(author, self.careful, super::task::Purpose::Cache);
        let author = author.ok().filter(|author| author.tgid == thread.tgid)?;
        find(&author).map(|standing| Verdict::new(standing, vec![author]))
    }

    /// By a binding of the very process.
    pub fn by_process(self, process: &Arc<Task>) -> Option<Verdict> {
        let bound = self.bound(BindingKind::Process, process)?;
        let by = match bound.binding.kind {
            BindingKind::Operator => "operator",
            _ => "process",
        };
        Some(Verdict::new(Standing::by(by, &bound.binding), Vec::new()))
    }

    /// By the control group that the thread is in at the moment.
    pub fn by_cgroup(self, tid: u32) -> Option<Standing> {
        if !self.table.read().has_cgroups() {
            return None;
        }
        let text = proc::cgroup(tid).ok()?;
        let table = self.table.read();
        let bound = cgroup::longest(&text, |key| table.cgroup(key))?;
        Some(Standing::by("cgroup", &bound.binding))
    }

    /// By those who started it: the session that `exec` made, else the nearest bound ancestor,
    /// else the leader of its session.
    ///
    /// # Errors
    /// ENOENT or ESRCH where somebody on the way ended meanwhile.
    pub fn by_kin(self, process: &Arc<Task>) -> io::Result<Verdict> {
        let (anything, reapers) = {
            let table = self.table.read();
            (!table.is_empty(), table.has_sessions())
        };
        if !anything {
            return Ok(Verdict::new(Standing::GUEST, Vec::new()));
        }
        // From the asker upwards.
        let mut chain = vec![Arc::clone(process)];
        let mut nearest = None;
        let mut child = Arc::clone(process);
        loop {
            if reapers && let Some(reaper) = self.bound(BindingKind::Session, &child) {
                return Ok(Verdict::new(Standing::by("exec", &reaper.binding), chain));
            }
            let Some(parent) = self.tasks.parent(&child, self.careful)? else {
                break;
            };
            if nearest.is_none() {
                nearest = self.by_thread_of(&parent, &chain)?;
            }
            chain.push(Arc::clone(&parent));
            if let Some(bound) = self.bound(BindingKind::Process, &parent) {
                // Whatever lies above an operator is not inherited through it.
                if bound.binding.kind == BindingKind::Operator {
                    nearest.get_or_insert_with(|| Verdict::new(Standing::GUEST, chain.clone()));
                    break;
                }
                nearest.get_or_insert_with(|| {
                    Verdict::new(Standing::by("ancestor", &bound.binding), chain.clone())
                });
            }
            if nearest.is_some() && !reapers {
                break;
            }
            child = parent;
        }
        let verdict = match nearest {
            Some(verdict) => verdict,
            None => self.by_session(process, &chain)?,
        };
        Ok(Verdict {
            asked: chain,
            ..verdict
        })
    }

    /// By a bound thread of `parent`, who started the last of `chain`. Only that thread is bound,
    /// so whoever left its session has left the window.
    fn by_thread_of(self, parent: &Arc<Task>, chain: &[Arc<Task>]) -> io::Result<Option<Verdict>> {
        let (Some(asker), Some(child)) = (chain.first(), chain.last()) else {
            return Ok(None);
        };
        let threads = self.table.read().threads_of(parent.id).to_vec();
        for tid in threads {
            let Some(bound) = self.table.read().get(BindingKind::Thread, tid) else {
                continue;
            };
            let Some(thread) = &bound.task else { continue };
            if !is_child_of(child.id, parent.id, tid) || !thread.is_alive() {
                continue;
            }
            let session = asker.stat()?.session;
            if chain.iter().any(|task| task.id == session) {
                return Ok(None);
            }
            let pins = chain.iter().chain([parent, thread]).cloned().collect();
            return Ok(Some(Verdict {
                session: Some(session),
                ..Verdict::new(Standing::by("ancestor", &bound.binding), pins)
            }));
        }
        Ok(None)
    }

    /// By the leader of its session. One that has ended still counts until what is left of its
    /// session is bound: its number is not given to another process while the session lives.
    fn by_session(self, process: &Arc<Task>, chain: &[Arc<Task>]) -> io::Result<Verdict> {
        // A guest's ancestors only become fewer, unless it comes from outside its pid namespace:
        // then the first process there adopts it when its parent ends.
        let parent = chain.iter().take(2).cloned().collect();
        let guest = Verdict::new(Standing::GUEST, parent);
        let session = process.stat()?.session;
        if session == 0 {
            return Ok(guest);
        }
        let leader = {
            let table = self.table.read();
            [BindingKind::Process, BindingKind::Session]
                .into_iter()
                .filter_map(|kind| table.get(kind, session))
                .find(|bound| bound.binding.kind != BindingKind::Operator)
        };
        let Some(bound) = leader.filter(|bound| is_leader(bound, session)) else {
            return Ok(guest);
        };
        Ok(Verdict {
            session: Some(session),
            ..Verdict::new(Standing::by("session", &bound.binding), Vec::new())
        })
    }
}

/// Whether it is this bound process, dead or alive, whose number a living session bears.
fn is_leader(bound: &Bound, session: u32) -> bool {
    if !bound.has_ended() {
        return true;
    }
    match proc::stat(session) {
        Ok(stat) => stat.start == bound.binding.start && stat.has_ended(),
        Err(_) => true,
    }
}

/// Whether a thread has this child. The list may lack some while others end, so a miss counts
/// once two readings agree.
fn is_child_of(child: u32, pid: u32, tid: u32) -> bool {
    let mut before = None;
    for _ in 0..8 {
        let Ok(children) = proc::children(pid, tid) else {
            return false;
        };
        if children.contains(&child) {
            return true;
        }
        if before.as_ref() == Some(&children) {
            return false;
        }
        before = Some(children);
    }
    false
}
