//! Notices when what is bound ends, and keeps together what a bound session leader leaves behind.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use super::Members;
use super::table::Bound;
use super::task::Task;
use crate::model::{Binding, BindingKind};
use crate::sys::pidfd::Watch;

/// How often those are looked at who can't be watched, and those whose removal failed.
const TICK: Duration = Duration::from_secs(1);

/// How often a session that is being bound is looked at anew.
const ROUNDS: usize = 16;

/// Bindings that are to be changed because processes have ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ended {
    /// They bind nobody any more.
    pub removed: Vec<Binding>,
    /// What a leader has left of its session, process by process.
    pub added: Vec<Binding>,
}

type Report = dyn Fn(Ended) + Send + Sync;

/// The thread that watches, and whom it tells.
pub(super) struct Watcher {
    watch: Option<Arc<Watch>>,
    report: Mutex<Option<Arc<Report>>>,
    /// Some bound task can't be watched, or is still there after its end was reported.
    tick: Arc<AtomicBool>,
}

impl Watcher {
    pub fn new() -> Self {
        let watch = Watch::new();
        if let Err(error) = &watch {
            tracing::error!(%error, "can't watch for the end of members");
        }
        Self {
            watch: watch.ok().map(Arc::new),
            report: Mutex::default(),
            tick: Arc::default(),
        }
    }

    /// Watches for as long as somebody else holds `members`.
    pub fn start(&self, members: &Arc<Members>) {
        let Some(watch) = self.watch.clone() else {
            return;
        };
        let (members, tick) = (Arc::downgrade(members), Arc::clone(&self.tick));
        let started = thread::Builder::new()
            .name("members".into())
            .spawn(move || run(&watch, &members, &tick));
        if let Err(error) = started {
            tracing::error!(%error, "can't watch for the end of members");
        }
    }

    /// Tells of the end of a bound task, also of one that has ended.
    pub fn watch(&self, task: &Task) {
        let Some(watch) = &self.watch else { return };
        let watched = task
            .pidfd()
            .is_some_and(|fd| watch.add(fd, task.id).is_ok());
        if !watched {
            self.tick.store(true, Ordering::Release);
            watch.wake();
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if let Some(watch) = &self.watch {
            watch.wake();
        }
    }
}

fn run(watch: &Watch, members: &Weak<Members>, tick: &AtomicBool) {
    loop {
        let timeout = tick.load(Ordering::Acquire).then_some(TICK);
        let wakeup = match watch.wait(timeout) {
            Ok(wakeup) => wakeup,
            Err(error) => {
                tracing::error!(%error, "no longer watching for the end of members");
                return;
            }
        };
        let Some(members) = members.upgrade() else {
            return;
        };
        let suspects: Vec<Arc<Bound>> = {
            let table = members.table.read();
            match wakeup.woken || timeout.is_some() {
                true => table.iter().cloned().collect(),
                false => wakeup
                    .ended
                    .iter()
                    .flat_map(|&id| table.of_id(id))
                    .collect(),
            }
        };
        members.bury(suspects);
    }
}

impl Members {
    /// Who is told when what is bound has ended. It makes the change durable and then calls
    /// [`Members::put`] for each that is `added` and [`Members::remove`] for each that is
    /// `removed`. It is called from a thread of its own, with no lock held, and again after a
    /// second while what was removed is still there. It must not hold these members strongly.
    pub fn set_watcher(&self, report: Box<dyn Fn(Ended) + Send + Sync>) {
        *self.watcher.report.lock() = Some(report.into());
        if let Some(watch) = &self.watcher.watch {
            watch.wake();
        }
    }

    /// Reports those who have ended. Until somebody listens, their bindings stay.
    fn bury(&self, suspects: Vec<Arc<Bound>>) {
        let Some(report) = self.watcher.report.lock().clone() else {
            self.watcher.tick.store(false, Ordering::Release);
            return;
        };
        let ended: Vec<_> = suspects
            .into_iter()
            .filter(|bound| bound.has_ended())
            .collect();
        if !ended.is_empty() && self.adopt(&ended, &*report) {
            let removed = self.still_there(&ended);
            if !removed.is_empty() {
                report(Ended {
                    removed,
                    added: Vec::new(),
                });
            }
        }
        let unwatched = self.table.read().iter().any(|bound| {
            let task = bound.task.as_ref();
            task.is_some_and(|task| task.pidfd().is_none())
                || ended.iter().any(|ended| Arc::ptr_eq(ended, bound))
        });
        self.watcher.tick.store(unwatched, Ordering::Release);
    }

    /// Those whose place no other binding has taken meanwhile.
    fn still_there(&self, ended: &[Arc<Bound>]) -> Vec<Binding> {
        let table = self.table.read();
        let same = |bound: &&Arc<Bound>| {
            let now = table.get(bound.binding.kind, bound.binding.id);
            now.is_some_and(|now| Arc::ptr_eq(&now, bound))
        };
        let there = ended.iter().filter(same);
        there.map(|bound| bound.binding.clone()).collect()
    }

    /// Binds what is left of the sessions of leaders that have ended. Their own bindings hold the
    /// sessions together until nobody is found who isn't bound, so nobody slips through by
    /// forking meanwhile. False where that couldn't be done yet.
    fn adopt(&self, ended: &[Arc<Bound>], report: &Report) -> bool {
        let leads = |bound: &&Arc<Bound>| {
            matches!(
                bound.binding.kind,
                BindingKind::Process | BindingKind::Session
            )
        };
        let leaders: Vec<u32> = ended.iter().filter(leads).map(|b| b.binding.id).collect();
        if leaders.is_empty() {
            return true;
        }
        let mut before = Vec::new();
        for _ in 0..ROUNDS {
            let left = self.scan(|stat| leaders.contains(&stat.session));
            let added: Vec<_> = left
                .iter()
                .filter(|found| found.who.by == "session")
                .map(|found| Binding {
                    kind: BindingKind::Process,
                    id: found.who.pid,
                    start: found.who.start,
                    tgid: found.who.pid,
                    cgroup: String::new(),
                    window: found.who.role.window(),
                })
                .collect();
            if added.is_empty() {
                return true;
            }
            if added == before {
                break;
            }
            before.clone_from(&added);
            report(Ended {
                removed: Vec::new(),
                added,
            });
        }
        false
    }
}
