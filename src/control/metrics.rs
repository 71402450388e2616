//! Counters of the control room, in Prometheus' text format.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::model::{WindowState, WorkspaceState};

use super::Control;

/// What happened since the daemon started.
#[derive(Debug, Default)]
pub struct Counters {
    /// By verb, and `ok` or the rule that refused.
    commands: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
    commits: AtomicU64,
    events: AtomicU64,
}

impl Counters {
    /// Counts a command.
    pub fn command(&self, verb: &'static str, outcome: &'static str) {
        *self.commands.lock().entry((verb, outcome)).or_default() += 1;
    }

    /// Counts a transaction and its events.
    pub fn commit(&self, events: usize) {
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.events.fetch_add(events as u64, Ordering::Relaxed);
    }
}

impl Control {
    /// The counters as text.
    pub fn metrics(&self) -> String {
        let mut text = String::new();
        let mut family = |name: &str, kind: &str, help: &str, samples: &[(String, u64)]| {
            // Writing to a string doesn't fail.
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (labels, value) in samples {
                let _ = writeln!(text, "{name}{labels} {value}");
            }
        };
        let commands: Vec<_> = self
            .counters
            .commands
            .lock()
            .iter()
            .map(|((verb, outcome), n)| (format!("{{verb=\"{verb}\",outcome=\"{outcome}\"}}"), *n))
            .collect();
        family(
            "panefs_commands_total",
            "counter",
            "Commands by verb and outcome (ok, or the rule that refused).",
            &commands,
        );
        let (windows, workspaces) = self.world(|world| {
            let windows = WindowState::ALL.map(|state| {
                let count = world.windows().filter(|w| w.state == state).count();
                (format!("{{state=\"{}\"}}", state.as_str()), count as u64)
            });
            let workspaces = WorkspaceState::ALL.map(|state| {
                let count = world.workspaces().filter(|w| w.state == state).count();
                (format!("{{state=\"{}\"}}", state.as_str()), count as u64)
            });
            (windows, workspaces)
        });
        family("panefs_windows", "gauge", "Windows by state.", &windows);
        family(
            "panefs_workspaces",
            "gauge",
            "Workspaces by state.",
            &workspaces,
        );
        let commits = self.counters.commits.load(Ordering::Relaxed);
        family(
            "panefs_registry_commits_total",
            "counter",
            "Transactions of the registry.",
            &[(String::new(), commits)],
        );
        let events = self.counters.events.load(Ordering::Relaxed);
        family(
            "panefs_events_total",
            "counter",
            "Events recorded since the daemon started.",
            &[(String::new(), events)],
        );
        text
    }
}
