//! Ends the processes of a window.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::scan::{self, Member};
use super::task::{Purpose, Task};
use super::{Found, Members, cgroup};
use crate::model::{BindingKind, Role, WindowId};
use crate::sys::pidfd::{self, PidFd};
use crate::sys::proc;

/// How long processes may take to end after SIGKILL: one that waits for this daemon, or for a
/// broken disk, can't end before that is over.
const KILL_TIME: Duration = Duration::from_secs(5);

/// A process to end.
struct Target {
    task: Arc<Task>,
    member: Member,
    /// The reaper of an `exec`: orphans gather under it, so it goes last.
    reaper: bool,
}

impl Target {
    fn pidfd(&self) -> Option<&PidFd> {
        self.task.pidfd()
    }
}

impl Members {
    /// Ends every process of a window, and gives those that have ended: SIGTERM, and SIGKILL for
    /// whatever lives after `grace`. A thread that is bound by itself is left alone, and so are
    /// this daemon and the first process of the machine.
    ///
    /// Returns when none is left, at the latest 5 s after `grace`.
    pub fn end_members(&self, window: WindowId, grace: Duration) -> Vec<Member> {
        let mut known: Vec<Target> = Vec::new();
        let mut told = HashSet::new();
        let deadline = Instant::now() + grace;
        loop {
            let targets = self.targets(window, &known);
            if targets.is_empty() {
                return ended(known);
            }
            for target in &targets {
                if told.insert((target.task.id, target.task.start)) {
                    signal(target, Signal::SIGTERM);
                    // A stopped process acts on it only once it goes on.
                    signal(target, Signal::SIGCONT);
                }
            }
            let over = !wait(&targets, deadline);
            known.extend(targets);
            if over {
                break;
            }
        }
        let deadline = Instant::now() + KILL_TIME;
        loop {
            let targets = self.stopped_targets(window, &known);
            if targets.is_empty() {
                return ended(known);
            }
            self.kill_cgroups(window, &targets);
            for target in &targets {
                signal(target, Signal::SIGKILL);
            }
            let over = !wait(&targets, deadline);
            known.extend(targets);
            if over {
                tracing::warn!(%window, "some processes don't end after SIGKILL");
                return ended(known);
            }
        }
    }

    /// Who is to be ended next: everybody but the reapers, then those. Who was `known` is one
    /// still, and so is what it starts: when a parent ends first, its children are members of
    /// nothing any more, but they must not outlive the window.
    fn targets(&self, window: WindowId, known: &[Target]) -> Vec<Target> {
        let all = self.scan(|_| true);
        let known: HashSet<(u32, u64)> = known
            .iter()
            .filter(|target| target.task.is_alive())
            .map(|target| (target.task.id, target.task.start))
            .collect();
        let mut theirs: HashSet<u32> = all
            .iter()
            .map(|found| &found.who)
            .filter(|who| who.role == Role::Member(window) || known.contains(&(who.pid, who.start)))
            .map(|who| who.pid)
            .collect();
        loop {
            let before = theirs.len();
            for who in all.iter().map(|found| &found.who) {
                // A child that is bound elsewhere by itself is somebody else's.
                if who.role == Role::Guest && theirs.contains(&who.parent) {
                    theirs.insert(who.pid);
                }
            }
            if theirs.len() == before {
                break;
            }
        }
        let mut targets: Vec<_> = all
            .iter()
            .filter(|found| theirs.contains(&found.who.pid))
            .filter(|found| found.who.pid != 1 && found.who.pid != std::process::id())
            .filter_map(|found| self.target(found))
            .collect();
        if targets.iter().any(|target| !target.reaper) {
            targets.retain(|target| !target.reaper);
        }
        targets
    }

    fn target(&self, found: &Found) -> Option<Target> {
        let task = scan::task(found);
        // Only what is held by descriptor is signalled; the rest is found again when others ended.
        let task = match task.pidfd() {
            Some(_) => task,
            None => self.tasks.get(task.id, true, Purpose::Binding).ok()?,
        };
        if task.pidfd().is_none() || task.start != found.who.start {
            return None;
        }
        Some(Target {
            member: scan::member(found)?,
            reaper: self.find(BindingKind::Session, task.id).is_some(),
            task,
        })
    }

    /// The same, stopped. No fork of a process succeeds once it is signalled, so when nobody new
    /// is found, nobody is missing.
    fn stopped_targets(&self, window: WindowId, known: &[Target]) -> Vec<Target> {
        let mut stopped = HashSet::new();
        for _ in 0..64 {
            let targets = self.targets(window, known);
            let before = stopped.len();
            for target in &targets {
                if stopped.insert((target.task.id, target.task.start)) {
                    signal(target, Signal::SIGSTOP);
                }
            }
            if stopped.len() == before {
                return targets;
            }
        }
        self.targets(window, known)
    }

    /// Lets the kernel kill whole control groups where it can, and where nobody else is in them.
    fn kill_cgroups(&self, window: WindowId, targets: &[Target]) {
        let pids: HashSet<u32> = targets.iter().map(|target| target.task.id).collect();
        for binding in self.bindings_of(window) {
            if binding.kind != BindingKind::Cgroup {
                continue;
            }
            let Some(directory) = cgroup::directory_of(&binding.cgroup) else {
                continue;
            };
            let kill = directory.join("cgroup.kill");
            let inside = |pid: u32| {
                let text = proc::cgroup(pid).unwrap_or_default();
                cgroup::longest(&text, |key| (key == binding.cgroup).then_some(())).is_some()
            };
            let others = || {
                let all = proc::processes().unwrap_or_default();
                all.into_iter()
                    .any(|pid| !pids.contains(&pid) && inside(pid))
            };
            if kill.exists() && !others() {
                std::fs::write(kill, "1").ok();
            }
        }
    }
}

fn signal(target: &Target, signal: Signal) {
    let Some(fd) = target.pidfd() else {
        tracing::warn!(
            pid = target.task.id,
            "not signalled: no descriptor to be had"
        );
        return;
    };
    if let Err(error) = fd.signal(signal)
        && error.raw_os_error() != Some(libc::ESRCH)
    {
        tracing::warn!(pid = target.task.id, %signal, %error, "can't signal a member");
    }
}

/// Waits until all have ended; false where `deadline` has come.
fn wait(targets: &[Target], deadline: Instant) -> bool {
    let mut left: Vec<&PidFd> = targets.iter().filter_map(Target::pidfd).collect();
    while !left.is_empty() {
        let time = deadline.saturating_duration_since(Instant::now());
        let Ok(ended) = pidfd::wait_any_ended(&left, time) else {
            return false;
        };
        let mut ended = ended.into_iter();
        left.retain(|_| !ended.next().unwrap_or(false));
        if time.is_zero() {
            return false;
        }
    }
    true
}

/// Each that has ended, once.
fn ended(known: Vec<Target>) -> Vec<Member> {
    let mut seen = HashSet::new();
    known
        .into_iter()
        .filter(|target| seen.insert((target.task.id, target.task.start)))
        .filter(|target| !target.task.is_alive())
        .map(|target| target.member)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn the_daemon_is_no_target() {
        let members = Members::new(Vec::new());
        let (own, window) = (std::process::id(), WindowId::new(1));
        let binding = members.binding_for_process(BindingKind::Process, own, window);
        members.put(binding.unwrap());
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let targets = members.targets(window.unwrap(), &[]);
        assert!(targets.iter().any(|target| target.task.id == child.id()));
        assert!(!targets.iter().any(|target| target.task.id == own));
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
