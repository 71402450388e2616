//! Processes and threads that can't be mistaken for their successors, and who started whom.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use nix::sys::resource::{Resource, getrlimit};
use parking_lot::Mutex;

use crate::sys::pidfd::{self, PidFd};
use crate::sys::proc::{self, Stat};

/// One process, or one thread that isn't the first of its process.
///
/// A pidfd says whether it lives. Where there is none to be had (too many are open, or the kernel
/// knows none for threads), id and start time are compared instead.
#[derive(Debug)]
pub(super) struct Task {
    pub id: u32,
    /// In clock ticks after boot.
    pub start: u64,
    /// The process of a thread; of a process its own id.
    pub tgid: u32,
    pin: Option<Pin>,
    /// As seen last. True for as long as both live, since only the end of a parent gives a
    /// process another one.
    parent: Mutex<Option<Arc<Task>>>,
}

#[derive(Debug)]
struct Pin {
    fd: PidFd,
    budget: Arc<Budget>,
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.budget.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Task {
    /// Ancestors that nobody else knows go one by one, not each within its child's drop: a chain
    /// may be as long as a user likes, and the stack isn't.
    fn drop(&mut self) {
        let mut next = self.parent.get_mut().take();
        while let Some(task) = next {
            next = Arc::into_inner(task).and_then(|mut task| task.parent.get_mut().take());
        }
    }
}

impl Task {
    /// One that has ended before it could be held.
    pub fn ended(id: u32, start: u64, tgid: u32) -> Self {
        Self {
            id,
            start,
            tgid,
            pin: None,
            parent: Mutex::default(),
        }
    }

    pub fn pidfd(&self) -> Option<&PidFd> {
        self.pin.as_ref().map(|pin| &pin.fd)
    }

    pub fn is_alive(&self) -> bool {
        match &self.pin {
            Some(pin) => pin.fd.is_alive(),
            None => self.stat().is_ok_and(|stat| !stat.has_ended()),
        }
    }

    /// # Errors
    /// ENOENT or ESRCH where it is gone, whoever bears its id now.
    pub fn stat(&self) -> io::Result<Stat> {
        proc::stat(self.id).and_then(|stat| match stat.start == self.start {
            true => Ok(stat),
            false => Err(gone()),
        })
    }
}

/// Whether all of them live, in one system call where all have pidfds.
pub(super) fn all_alive(tasks: &[Arc<Task>]) -> bool {
    pidfd::none_ended(tasks.iter().filter_map(|task| task.pidfd()))
        && tasks
            .iter()
            .all(|task| task.pin.is_some() || task.is_alive())
}

pub(super) fn gone() -> io::Error {
    io::Error::from_raw_os_error(libc::ESRCH)
}

/// How many pidfds may be open.
#[derive(Debug)]
struct Budget {
    open: AtomicUsize,
}

/// Who asks for a pidfd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To remember an answer: a quarter of the open files that the daemon may have.
    Cache,
    /// To notice the end of a binding: half of them.
    Binding,
}

/// The tasks that are held at the moment, each once.
#[derive(Debug)]
pub(super) struct Tasks {
    known: Mutex<Known>,
    budget: Arc<Budget>,
    limit: usize,
}

#[derive(Debug, Default)]
struct Known {
    tasks: HashMap<u32, Weak<Task>>,
    prune_at: usize,
}

impl Tasks {
    pub fn new() -> Self {
        let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
        Self {
            known: Mutex::default(),
            budget: Arc::new(Budget {
                open: AtomicUsize::new(0),
            }),
            limit: usize::try_from(limit).unwrap_or(usize::MAX) / 4,
        }
    }

    /// How many pidfds may be open to remember answers.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// The task that bears this id. Unless `careful`, it may be one that has ended: whoever goes
    /// on to ask [`all_alive`] anyway saves a system call here.
    ///
    /// # Errors
    /// ENOENT or ESRCH where there is none.
    pub fn get(&self, id: u32, careful: bool, purpose: Purpose) -> io::Result<Arc<Task>> {
        let known = self.known.lock().tasks.get(&id).and_then(Weak::upgrade);
        if let Some(task) = known
            && (task.pin.is_some() || purpose == Purpose::Cache)
            && (!careful || task.is_alive())
        {
            return Ok(task);
        }
        let task = Arc::new(self.open(id, purpose)?);
        let mut known = self.known.lock();
        if known.tasks.len() >= known.prune_at {
            known.tasks.retain(|_, task| task.strong_count() > 0);
            known.prune_at = known.tasks.len() * 2 + 1024;
        }
        known.tasks.insert(id, Arc::downgrade(&task));
        Ok(task)
    }

    /// What is read after the pidfd was opened is true of the task if that still lives later on.
    fn open(&self, id: u32, purpose: Purpose) -> io::Result<Task> {
        let limit = match purpose {
            Purpose::Cache => self.limit,
            Purpose::Binding => self.limit * 2,
        };
        let (mut fd, mut first) = (None, false);
        if self.budget.open.fetch_add(1, Ordering::Relaxed) < limit {
            match PidFd::of_process(id) {
                Ok(process) => (fd, first) = (Some(process), true),
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {
                    self.budget.open.fetch_sub(1, Ordering::Relaxed);
                    return Err(error);
                }
                // A thread, or no descriptor to be had.
                Err(_) => fd = PidFd::of_thread(id).ok(),
            }
        }
        let pin = fd.map(|fd| Pin {
            fd,
            budget: Arc::clone(&self.budget),
        });
        if pin.is_none() {
            self.budget.open.fetch_sub(1, Ordering::Relaxed);
        }
        let stat = proc::stat(id)?;
        Ok(Task {
            id,
            start: stat.start,
            tgid: match first {
                true => id,
                false => proc::status(id)?.tgid,
            },
            pin,
            parent: Mutex::default(),
        })
    }

    /// The parent of a process; none at the top of what can be seen.
    ///
    /// A parent is held first, and then asked for again: if the number is the same, it is the
    /// same process, because an orphan goes to one of its ancestors, or to the first process of
    /// its pid namespace, and all of those lived beside the old parent, under other numbers.
    ///
    /// # Errors
    /// ENOENT or ESRCH where the child, or one parent after the other, is gone.
    pub fn parent(&self, child: &Task, careful: bool) -> io::Result<Option<Arc<Task>>> {
        let known = child.parent.lock().clone();
        if let Some(parent) = known
            && (!careful || parent.is_alive())
        {
            return Ok(Some(parent));
        }
        let mut ppid = child.stat()?.ppid;
        for _ in 0..16 {
            if ppid == 0 {
                return Ok(None);
            }
            let parent = self.get(ppid, careful, Purpose::Cache).ok();
            let again = child.stat()?.ppid;
            if again == ppid {
                // None: there is one, but it is hidden from us (hidepid).
                child.parent.lock().clone_from(&parent);
                return Ok(parent);
            }
            ppid = again;
        }
        Err(gone())
    }
}
