//! Refused changes: what `whoami` tells of the last one, and the events they leave.
//!
//! Noted on threads that answer requests, so noting is a lock held for moments; the registry
//! hears of it from a task.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Serialize;

use crate::gate::Denied;
use crate::member::Who;
use crate::model::{NewEvent, Role, Timestamp, WindowId, WindowState, WorkspaceId, WorkspaceState};
use crate::store::Transaction;

use super::{Caller, Control};

/// How many processes' last refusals are remembered; beyond, the oldest is forgotten.
const REMEMBERED: usize = 1024;

/// How many events wait for the registry; beyond, they are only counted.
const WAITING: usize = 256;

/// How many events a process may leave at once, and how long it takes to earn one more.
const BURST: u32 = 10;
const EARNED: Duration = Duration::from_secs(1);

/// How long events are gathered for one transaction.
const GATHER: Duration = Duration::from_millis(20);

/// A process, and never its successor.
type Process = (u32, u64);

/// One refused change.
#[derive(Debug, Clone)]
struct Record {
    /// Later ones have higher numbers.
    number: u64,
    at: Timestamp,
    op: &'static str,
    /// From the mount's root.
    path: String,
    denied: Denied,
    role: Role,
    parent: u32,
}

/// How many events a process may still leave.
#[derive(Debug, Clone, Copy)]
struct Allowance {
    left: u32,
    since: Instant,
    /// Refused without an event since its last one.
    silent: u64,
}

#[derive(Debug, Default)]
struct Noted {
    count: u64,
    last: HashMap<Process, Record>,
    allowances: HashMap<Process, Allowance>,
    waiting: VecDeque<NewEvent>,
}

/// What was refused lately.
#[derive(Debug, Default)]
pub struct Refusals {
    noted: Mutex<Noted>,
    wake: Arc<tokio::sync::Notify>,
}

/// `last_refusal` of `whoami`.
#[derive(Debug, Serialize)]
struct LastRefusal {
    at: Timestamp,
    op: &'static str,
    path: String,
    errno: &'static str,
    rule: &'static str,
    holder: Option<WindowId>,
    message: String,
    next_action: String,
}

/// What `whoami` says.
#[derive(Debug, Serialize)]
pub struct Whoami {
    role: &'static str,
    window: Option<WindowId>,
    workspace: Option<WorkspaceId>,
    path: Option<String>,
    binding: &'static str,
    pid: u32,
    last_refusal: Option<LastRefusal>,
}

impl Refusals {
    fn note(&self, who: &Who, op: &'static str, path: String, denied: Denied) {
        let mut noted = self.noted.lock();
        noted.count += 1;
        let record = Record {
            number: noted.count,
            at: Timestamp::now(),
            op,
            path,
            denied,
            role: who.role,
            parent: who.parent,
        };
        let process = (who.pid, who.start);
        if let Some(silent) = noted.allow(process)
            && noted.waiting.len() < WAITING
        {
            noted.waiting.push_back(event(who.pid, &record, silent));
            self.wake.notify_one();
        }
        noted.remember(process, record);
    }
}

impl Noted {
    /// Whether the process may leave an event; then how many it left out before.
    fn allow(&mut self, process: Process) -> Option<u64> {
        let now = Instant::now();
        let allowance = self.allowances.entry(process).or_insert(Allowance {
            left: BURST,
            since: now,
            silent: 0,
        });
        let earned = now.duration_since(allowance.since).as_secs() / EARNED.as_secs();
        if earned > 0 {
            let earned = u32::try_from(earned).unwrap_or(BURST);
            allowance.left = allowance.left.saturating_add(earned).min(BURST);
            allowance.since = now;
        }
        if allowance.left == 0 {
            allowance.silent += 1;
            return None;
        }
        allowance.left -= 1;
        Some(std::mem::take(&mut allowance.silent))
    }

    fn remember(&mut self, process: Process, record: Record) {
        self.last.insert(process, record);
        if self.last.len() > REMEMBERED {
            let oldest = self.last.iter().min_by_key(|(_, record)| record.number);
            if let Some(oldest) = oldest.map(|(process, _)| *process) {
                self.last.remove(&oldest);
                self.allowances.remove(&oldest);
            }
        }
    }

    /// The newest refusal that a reader means when it asks for its own: that of its process or
    /// its parent, or of a process started by either, for the same window.
    fn of(&self, reader: &Who) -> Option<&Record> {
        let concerns = |(process, record): &(&Process, &Record)| {
            let family = [reader.pid, reader.parent];
            let related = process.0 == reader.pid && process.1 == reader.start
                || process.0 == reader.parent
                || family.contains(&record.parent);
            // A process that can't be seen is related to nobody.
            related && process.0 != 0 && record.role.window() == reader.role.window()
        };
        let related = self.last.iter().filter(concerns);
        related.max_by_key(|(_, r)| r.number).map(|(_, r)| r)
    }
}

fn event(pid: u32, record: &Record, silent: u64) -> NewEvent {
    let holder = record.denied.holder();
    let window = record.role.window();
    let concerned = window
        .into_iter()
        .chain(holder.filter(|h| Some(*h) != window));
    NewEvent::new("refused", concerned)
        .with("rule", record.denied.rule())
        .with("errno", "EROFS")
        .with("op", record.op)
        .with("path", record.path.clone())
        .with("pid", pid)
        .with("window", window.map(|window| window.to_string()))
        .with("holder", holder.map(|holder| holder.to_string()))
        .with("left_out", silent)
}

impl Control {
    /// Notes that a change was refused, for `whoami` and as an event. Returns at once; `path` is
    /// from the mount's root.
    pub fn refused(&self, who: &Who, op: &'static str, path: String, denied: Denied) {
        self.refusals.note(who, op, path, denied);
    }

    /// Starts the task that brings refusals to the registry.
    pub(super) fn watch_refusals(self: &Arc<Self>) {
        let weak = Arc::downgrade(self);
        let wake = Arc::clone(&self.refusals.wake);
        self.runtime.spawn(async move {
            loop {
                wake.notified().await;
                tokio::time::sleep(GATHER).await;
                let Some(control) = weak.upgrade() else { break };
                let written = tokio::task::spawn_blocking(move || control.write_refusals()).await;
                if let Err(error) = written {
                    tracing::error!("refusals are not in the registry: {error}");
                }
            }
        });
    }

    fn write_refusals(&self) {
        let events: Vec<_> = self.refusals.noted.lock().waiting.drain(..).collect();
        let written = self.decide().commit(Transaction {
            events,
            ..Transaction::default()
        });
        if let Err(refusal) = written {
            tracing::error!("refusals are not in the registry: {refusal}");
        }
    }

    /// Who the caller is, and why its last change was refused.
    pub(super) fn whoami(&self, caller: &Caller) -> Whoami {
        let who = &caller.who;
        let window = who.role.window();
        let workspace = self.world(|world| {
            let window = world.window(window?)?;
            world
                .workspace(window.workspace?)
                .map(|workspace| workspace.id)
        });
        let record = self.refusals.noted.lock().of(who).cloned();
        Whoami {
            role: match who.role {
                Role::Member(_) => "member",
                Role::Acting(_) => "acting",
                Role::Operator => "operator",
                Role::Guest => "guest",
            },
            window,
            workspace,
            path: workspace.map(|id| self.in_mount(&id.to_string())),
            binding: who.by,
            pid: who.pid,
            last_refusal: record.map(|record| self.last_refusal(&record)),
        }
    }

    fn last_refusal(&self, record: &Record) -> LastRefusal {
        let (message, next_action) = self.explain(record);
        LastRefusal {
            at: record.at,
            op: record.op,
            path: self.in_mount(&record.path),
            errno: "EROFS",
            rule: record.denied.rule(),
            holder: record.denied.holder(),
            message,
            next_action,
        }
    }

    /// A path from the mount's root, in full.
    pub(super) fn in_mount(&self, path: &str) -> String {
        let mount = self.options.mount.display().to_string();
        match path.starts_with(&mount) {
            true => path.to_owned(),
            false => format!(
                "{}/{}",
                mount.trim_end_matches('/'),
                path.trim_start_matches('/')
            ),
        }
    }

    /// What to tell the one who was refused, and what may help.
    fn explain(&self, record: &Record) -> (String, String) {
        let mount = self.in_mount("");
        let mount = mount.trim_end_matches('/');
        let place = record
            .path
            .trim_start_matches(mount)
            .trim_start_matches('/');
        let place = place.split('/').next().unwrap_or_default();
        let own = record.role.window();
        match (record.denied, own) {
            (Denied::Guest { holder }, _) => (
                format!("{place} is {holder}'s, and this process belongs to no window"),
                format!(
                    "Become a member of {holder} first: `echo 0 > {mount}/.panefs/windows/{holder}/procs`, or run `panefs enter {holder}`."
                ),
            ),
            (Denied::NotHolder { holder }, Some(own)) => (
                format!("{place} is {holder}'s, and this process belongs to {own}"),
                self.elsewhere(Some(own), mount),
            ),
            (Denied::NotHolder { holder }, None) => (
                format!("{place} is {holder}'s, and this file was opened before that"),
                "Close the file and open it again as a member of the holder.".to_owned(),
            ),
            (Denied::NoHolder, _) => self.no_holder(place, own, mount),
            (Denied::Closing { holder }, _) => (
                format!("{place} is being handed off by {holder}, so nothing new is opened for writing"),
                "Close the files that are open for writing, and let the new window's processes go on."
                    .to_owned(),
            ),
        }
    }

    /// Where a process may write instead.
    fn elsewhere(&self, own: Option<WindowId>, mount: &str) -> String {
        let new = format!(
            "Open a window of its own: `mkdir {mount}/.panefs/windows/cN` and `echo 0 > {mount}/.panefs/windows/cN/procs`, with a free number."
        );
        let Some(own) = own else { return new };
        self.world(|world| {
            let Some(window) = world.window(own) else {
                return new.clone();
            };
            match (window.state, window.workspace, window.continued_by) {
                (WindowState::Live, Some(workspace), _) => format!(
                    "Write under {mount}/{workspace}, which is {own}'s; copy there what is to be changed."
                ),
                (WindowState::Continued, _, Some(next)) => format!(
                    "{own} was handed off to {next}: let processes of {next} go on, started with `panefs exec {next} -- CMD` from outside {own}."
                ),
                _ => format!(
                    "{own} has ended: let its work go on in a new window with `handoff {own}` in {mount}/.panefs/ctl."
                ),
            }
        })
    }

    fn no_holder(&self, place: &str, own: Option<WindowId>, mount: &str) -> (String, String) {
        let found = WorkspaceId::parse(place).and_then(|id| {
            self.world(|world| {
                let workspace = world.workspace(id)?;
                Some((workspace.state, workspace.chain.last().copied()))
            })
        });
        match found {
            Some((WorkspaceState::Released, Some(last))) => (
                format!("{place} has no holder: {last} has ended"),
                format!(
                    "Continue it in a new window: `echo 'handoff {last}' > {mount}/.panefs/ctl`, from a process of no window."
                ),
            ),
            Some((WorkspaceState::Reclaimed, _)) => (
                format!("{place} was reclaimed"),
                format!(
                    "Bring it back with `echo 'restore {place}' > {mount}/.panefs/ctl` while the trash has it."
                ),
            ),
            _ => (format!("{place} has no holder"), self.elsewhere(own, mount)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::BindingKind;

    fn who(pid: u32, parent: u32, window: Option<u32>) -> Who {
        let window = window.and_then(WindowId::new);
        Who {
            role: window.map_or(Role::Guest, Role::Member),
            binding: window.map(|_| BindingKind::Process),
            by: "process",
            pid,
            start: 1,
            parent,
        }
    }

    fn last(refusals: &Refusals, reader: &Who) -> Option<String> {
        let noted = refusals.noted.lock();
        noted.of(reader).map(|record| record.path.clone())
    }

    #[test]
    fn a_reader_finds_the_refusals_of_its_family_and_window() {
        let refusals = Refusals::default();
        let note = |who: Who, path: &str| {
            refusals.note(
                &who,
                "open",
                path.into(),
                Denied::Guest {
                    holder: WindowId::new(1).unwrap(),
                },
            )
        };
        note(who(10, 5, None), "by the shell");
        // `cat whoami` from the shell, the shell itself, its sibling in a script.
        for reader in [
            who(11, 10, None),
            who(10, 5, None),
            who(12, 5, None),
            who(5, 1, None),
        ] {
            assert_eq!(last(&refusals, &reader).as_deref(), Some("by the shell"));
        }
        assert_eq!(last(&refusals, &who(13, 6, None)), None);
        assert_eq!(last(&refusals, &who(11, 10, Some(1))), None);
        note(who(11, 10, None), "by its child");
        assert_eq!(
            last(&refusals, &who(12, 10, None)).as_deref(),
            Some("by its child")
        );
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let refusals = Refusals::default();
        let total = u32::try_from(REMEMBERED).unwrap() + 50;
        for pid in 1..=total {
            refusals.note(
                &who(pid, 0, None),
                "open",
                String::new(),
                Denied::Guest {
                    holder: WindowId::new(1).unwrap(),
                },
            );
        }
        let noted = refusals.noted.lock();
        assert_eq!(noted.last.len(), REMEMBERED);
        assert_eq!(noted.allowances.len(), REMEMBERED);
        assert_eq!(noted.waiting.len(), WAITING);
        assert!(!noted.last.contains_key(&(1, 1)));
    }

    #[test]
    fn a_process_leaves_few_events_at_once() {
        let refusals = Refusals::default();
        for _ in 0..100 {
            refusals.note(
                &who(1, 0, None),
                "open",
                String::new(),
                Denied::Guest {
                    holder: WindowId::new(1).unwrap(),
                },
            );
        }
        let noted = refusals.noted.lock();
        assert!(noted.waiting.len() <= BURST as usize + 1);
    }
}
