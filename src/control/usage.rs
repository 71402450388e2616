//! What workspaces use, measured aside, so that no listing waits for a large one.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::model::WorkspaceId;
use crate::store::Usage;

use super::Control;

/// How long one listing or look waits for figures; what isn't known by then is null.
const BUDGET: Duration = Duration::from_millis(450);

/// A listing takes figures that are this old.
const FRESH: Duration = Duration::from_secs(1);

/// A large workspace is measured at most this fraction of the time.
const SHARE: u32 = 20;

/// How fresh figures must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fresh {
    /// Measured from now on.
    Now,
    /// Measured a moment ago; for a large workspace a longer moment.
    Lately,
}

/// The figures measured last.
#[derive(Debug, Default)]
pub struct UsageCache {
    entries: Mutex<HashMap<WorkspaceId, Entry>>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Entry {
    known: Option<Known>,
    measuring: bool,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    usage: Option<Usage>,
    began: Instant,
    took: Duration,
}

impl Known {
    fn is_fresh(&self, fresh: Fresh, asked: Instant) -> bool {
        match fresh {
            Fresh::Now => self.began >= asked,
            Fresh::Lately => {
                let age = asked.saturating_duration_since(self.began);
                age <= FRESH.max(self.took * SHARE)
            }
        }
    }
}

impl Control {
    /// What these workspaces use, as far as it can be known soon.
    pub(super) fn usage_of(
        &self,
        ids: &[WorkspaceId],
        fresh: Fresh,
    ) -> HashMap<WorkspaceId, Usage> {
        let asked = Instant::now();
        let until = asked + BUDGET;
        let mut entries = self.usage.entries.lock();
        loop {
            let known = |id: &WorkspaceId| {
                let known = entries.get(id)?.known?;
                known.is_fresh(fresh, asked).then_some(known)
            };
            let unknown: Vec<_> = ids
                .iter()
                .copied()
                .filter(|id| known(id).is_none())
                .collect();
            if unknown.is_empty() || Instant::now() >= until {
                let usage = |id: &WorkspaceId| Some((*id, known(id)?.usage?));
                return ids.iter().filter_map(usage).collect();
            }
            let mut to_measure = Vec::new();
            for id in unknown {
                let entry = entries.entry(id).or_default();
                if !entry.measuring {
                    entry.measuring = true;
                    to_measure.push(id);
                }
            }
            self.measure(to_measure);
            self.usage.changed.wait_until(&mut entries, until);
        }
    }

    fn measure(&self, ids: Vec<WorkspaceId>) {
        let Ok(control) = self.shared() else { return };
        if ids.is_empty() {
            return;
        }
        self.runtime.spawn_blocking(move || {
            for id in ids {
                let began = Instant::now();
                let usage = control.store.usage(id).ok();
                let mut entries = control.usage.entries.lock();
                entries.insert(
                    id,
                    Entry {
                        known: Some(Known {
                            usage,
                            began,
                            took: began.elapsed(),
                        }),
                        measuring: false,
                    },
                );
                drop(entries);
                control.usage.changed.notify_all();
            }
        });
    }

    /// Forgets a workspace that is gone.
    pub(super) fn forget_usage(&self, id: WorkspaceId) {
        self.usage.entries.lock().remove(&id);
    }
}
