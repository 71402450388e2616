//! Who is asking: from a thread id to a window, an operator or a guest.
//!
//! A [`Binding`] names one process, one thread or a control group; `rules` says who else belongs
//! to a window through it. An answer is remembered together with the pidfds of everybody on whom
//! it rests, so that asking again is one poll(2).
//!
//! Lock order: none. Each lock here is taken alone and never held over a system call of the hot
//! path.

mod cgroup;
mod end;
mod recall;
mod rules;
mod scan;
mod table;
mod task;
mod watch;

#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use crate::model::{Binding, BindingKind, Refusal, Role, Rule, WindowId};
use crate::sys::proc;
use recall::{Answer, Recall};
use rules::{Rules, Standing, Verdict};
use table::{Bound, Table};
use task::{Purpose, Task, Tasks, all_alive};

pub use scan::Member;
pub use watch::Ended;

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

impl Who {
    /// Somebody who can't be seen: from another pid namespace, or gone.
    fn unseen() -> Self {
        Self::new(Standing::GUEST, 0, 0, 0)
    }

    fn new(standing: Standing, pid: u32, start: u64, parent: u32) -> Self {
        Self {
            role: standing.role,
            binding: standing.binding,
            by: standing.by,
            pid,
            start,
            parent,
        }
    }
}

/// Shorthand for the shared registry of members.
pub type SharedMembers = Arc<Members>;

/// How often somebody is looked at anew because an ancestor ended, or a binding changed, while it
/// was.
const ATTEMPTS: usize = 16;

/// Every binding, and the cache of answers.
pub struct Members {
    table: RwLock<Table>,
    /// Grows with every change of `table`, within its write lock.
    version: AtomicU64,
    tasks: Tasks,
    recall: Recall,
    watcher: watch::Watcher,
}

impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Members")
            .field("bindings", &self.table.read().iter().count())
            .finish_non_exhaustive()
    }
}

/// Somebody, looked at afresh.
struct Found {
    who: Who,
    thread: Arc<Task>,
    /// Without the control group, which may be another one at the next call.
    verdict: Option<Verdict>,
    /// Whether the control group has no say, since the very thread or process is bound.
    own: bool,
}

impl Members {
    /// Takes up the bindings of an earlier run. Those whose process has ended meanwhile bind
    /// nobody any more, but what is left of the session of one; they are reported to the function
    /// given to [`Members::set_watcher`].
    pub fn new(bindings: Vec<Binding>) -> Arc<Self> {
        let tasks = Tasks::new();
        let members = Arc::new(Self {
            table: RwLock::default(),
            version: AtomicU64::new(0),
            recall: Recall::new(tasks.limit()),
            tasks,
            watcher: watch::Watcher::new(),
        });
        members.watcher.start(&members);
        for binding in bindings {
            members.put(binding);
        }
        members
    }

    /// Who the thread `tid` is; 0 is a guest that can't be seen from here.
    pub fn who(&self, tid: u32) -> Who {
        if tid == 0 {
            return Who::unseen();
        }
        let version = self.version.load(Ordering::Acquire);
        if let Some(answer) = self.recall.get(tid)
            && answer.version == version
            && let Some(who) = self.still(&answer)
        {
            return who;
        }
        let Some((version, found)) = self.find_out(tid, true) else {
            return Who::unseen();
        };
        self.remember(version, &found);
        found.who
    }

    /// The remembered answer, if nobody on whom it rests has ended.
    fn still(&self, answer: &Answer) -> Option<Who> {
        let thread = answer.pins.first()?;
        let cgroup = match answer.own {
            true => None,
            false => self.rules(false).by_cgroup(thread.id),
        };
        let standing = cgroup.or(answer.standing)?;
        if cgroup.is_none()
            && let Some(session) = answer.session
            && thread.stat().ok()?.session != session
        {
            return None;
        }
        let pins = match cgroup {
            Some(_) => &answer.pins[..1],
            None => &answer.pins,
        };
        all_alive(pins).then(|| Who::new(standing, answer.pid, answer.start, answer.parent))
    }

    fn remember(&self, version: u64, found: &Found) {
        let mut pins = vec![Arc::clone(&found.thread)];
        let verdict = found.verdict.as_ref();
        for pin in verdict.into_iter().flat_map(|verdict| &verdict.pins) {
            if !pins.iter().any(|known| Arc::ptr_eq(known, pin)) {
                pins.push(Arc::clone(pin));
            }
        }
        self.recall.put(Answer {
            version,
            own: found.own,
            standing: verdict.map(|verdict| verdict.standing),
            session: verdict.and_then(|verdict| verdict.session),
            pid: found.who.pid,
            start: found.who.start,
            parent: found.who.parent,
            pins,
        });
    }

    /// Looks at a thread (or, unless `as_thread`, at its process alone) until nothing has changed
    /// meanwhile. None where it is gone.
    fn find_out(&self, tid: u32, as_thread: bool) -> Option<(u64, Found)> {
        for attempt in 0..ATTEMPTS {
            let version = self.version.load(Ordering::Acquire);
            let rules = self.rules(attempt > 0);
            match self.look(rules, tid, as_thread) {
                Ok((found, all)) => {
                    if all_alive(&all) && version == self.version.load(Ordering::Acquire) {
                        return Some((version, found));
                    }
                    if attempt > 0 && !found.thread.is_alive() {
                        return None;
                    }
                }
                Err(_) if attempt > 0 && proc::stat(tid).is_err() => return None,
                Err(_) => {}
            }
        }
        tracing::warn!(
            tid,
            "who is asking could not be told: its ancestors keep ending"
        );
        None
    }

    /// One look, and all who must be alive after it for it to be true.
    fn look(
        &self,
        rules: Rules<'_>,
        tid: u32,
        as_thread: bool,
    ) -> io::Result<(Found, Vec<Arc<Task>>)> {
        let thread = self.tasks.get(tid, rules.careful, Purpose::Cache)?;
        let process = match thread.tgid == tid {
            true => Arc::clone(&thread),
            false => self.tasks.get(thread.tgid, rules.careful, Purpose::Cache)?,
        };
        let by_thread = match as_thread {
            true => rules.by_thread(&thread),
            false => None,
        };
        let own = by_thread.or_else(|| rules.by_process(&process));
        let is_own = own.is_some();
        let cgroup = match is_own {
            true => None,
            false => rules.by_cgroup(tid),
        };
        let verdict = match (own, cgroup) {
            (Some(own), _) => Some(own),
            (None, Some(_)) => None,
            (None, None) => Some(rules.by_kin(&process)?),
        };
        let parent = match verdict.as_ref().map(|verdict| verdict.pins.as_slice()) {
            Some([first, parent, ..]) if Arc::ptr_eq(first, &process) => parent.id,
            _ => process.stat()?.ppid,
        };
        let standing = cgroup
            .or(verdict.as_ref().map(|verdict| verdict.standing))
            .unwrap_or(Standing::GUEST);
        let mut all = vec![Arc::clone(&thread), Arc::clone(&process)];
        let asked = |verdict: &Verdict| [verdict.pins.clone(), verdict.asked.clone()].concat();
        all.extend(verdict.iter().flat_map(asked));
        let found = Found {
            who: Who::new(standing, process.id, process.start, parent),
            thread,
            verdict,
            own: is_own,
        };
        Ok((found, all))
    }

    fn rules(&self, careful: bool) -> Rules<'_> {
        Rules {
            table: &self.table,
            tasks: &self.tasks,
            careful,
        }
    }

    /// Whether the caller counts processes as the daemon does, so that pids which it writes mean
    /// what it thinks they do.
    pub fn caller_sees_our_pids(&self, tid: u32) -> bool {
        tid != 0 && proc::status(tid).is_ok_and(|status| status.ns_pids.len() <= 1)
    }

    /// The binding that `kind` would be for `pid`, which may be the id of any thread: `Thread` and
    /// `Acting` bind just that thread, the others its process. Nothing is bound yet.
    ///
    /// # Errors
    /// [`Rule::ProcessNotFound`].
    pub fn binding_for_process(
        &self,
        kind: BindingKind,
        pid: u32,
        window: Option<WindowId>,
    ) -> Result<Binding, Refusal> {
        let find = || {
            let task = self.tasks.get(pid, true, Purpose::Cache)?;
            let task = match kind {
                BindingKind::Thread | BindingKind::Acting => task,
                _ => self.tasks.get(task.tgid, true, Purpose::Cache)?,
            };
            match task.is_alive() && !task.stat()?.is_kernel_thread() {
                true => Ok(task),
                false => Err(task::gone()),
            }
        };
        let task = find().map_err(|_: io::Error| {
            Refusal::new(
                Rule::ProcessNotFound,
                format!("there is no process {pid}"),
                "Write the id of a living process as the daemon counts them, or 0 for the writer.",
            )
        })?;
        Ok(Binding {
            kind,
            id: task.id,
            start: task.start,
            tgid: task.tgid,
            cgroup: String::new(),
            window,
        })
    }

    /// The binding of a control group, with all below it, to a window. Nothing is bound yet.
    ///
    /// # Errors
    /// [`Rule::ProcessNotFound`] where there is no such control group, [`Rule::ArgumentInvalid`]
    /// where the path can't be one, or would be a whole hierarchy.
    pub fn binding_for_cgroup(&self, path: &str, window: WindowId) -> Result<Binding, Refusal> {
        let cgroup = cgroup::key_of(path).map_err(|error| {
            let (rule, next) = match error {
                cgroup::NoCgroup::Missing(_) => {
                    (Rule::ProcessNotFound, "Make it with mkdir first.")
                }
                cgroup::NoCgroup::Invalid(_) => (
                    Rule::ArgumentInvalid,
                    "Give the absolute path of a control group, such as /sys/fs/cgroup/agents/c7.",
                ),
            };
            Refusal::new(rule, error.to_string(), next)
        })?;
        Ok(Binding {
            kind: BindingKind::Cgroup,
            id: 0,
            start: 0,
            tgid: 0,
            cgroup,
            window: Some(window),
        })
    }

    /// What [`Members::put`] would replace: a binding of the same process, thread or control
    /// group, also an operator's by a window's and the reverse. It is to be removed in the same
    /// transaction.
    pub fn displaced_by(&self, binding: &Binding) -> Option<Binding> {
        let table = self.table.read();
        let bound = match binding.kind {
            BindingKind::Cgroup => table.cgroup(&binding.cgroup),
            kind => table.get(kind, binding.id),
        };
        bound
            .map(|bound| bound.binding.clone())
            .filter(|displaced| displaced != binding)
    }

    /// Binds from now on. To be called once the binding is durable.
    pub fn put(&self, binding: Binding) {
        let task = (binding.kind != BindingKind::Cgroup).then(|| {
            self.tasks
                .get(binding.id, true, Purpose::Binding)
                .ok()
                .filter(|task| task.start == binding.start)
                .unwrap_or_else(|| Arc::new(Task::ended(binding.id, binding.start, binding.tgid)))
        });
        self.change(|table| {
            table.put(Bound {
                binding,
                task: task.clone(),
            });
        });
        if let Some(task) = task {
            self.watcher.watch(&task);
        }
    }

    /// Binds no longer. To be called once that is durable.
    pub fn remove(&self, binding: &Binding) {
        self.change(|table| table.remove(binding));
    }

    /// Makes everything that is bound to one window another's. To be called once that is durable.
    pub fn move_window(&self, from: WindowId, to: WindowId) {
        self.change(|table| table.move_window(from, to));
    }

    /// Whoever sees the new table sees the new version, and no answer of the old one counts.
    fn change(&self, change: impl FnOnce(&mut Table)) {
        let mut table = self.table.write();
        change(&mut table);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Every binding.
    pub fn bindings(&self) -> Vec<Binding> {
        let table = self.table.read();
        table.iter().map(|bound| bound.binding.clone()).collect()
    }

    /// The bindings of a window.
    pub fn bindings_of(&self, window: WindowId) -> Vec<Binding> {
        let bound = self.table.read().of_window(window);
        bound.iter().map(|bound| bound.binding.clone()).collect()
    }

    /// The binding of this kind of the living process or thread with this id.
    pub fn find(&self, kind: BindingKind, id: u32) -> Option<Binding> {
        let bound = self.table.read().get(kind, id)?;
        (bound.binding.kind == kind && !bound.has_ended()).then(|| bound.binding.clone())
    }
}
