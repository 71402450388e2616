//! Empties the trash aside: what was purged, what is old, and the oldest when the disk runs low.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::model::{Timestamp, WorkspaceId, WorkspaceRef, purge};
use crate::store::Disk;

use super::Control;

/// How often the trash is looked through when nothing calls for it.
const PERIOD: Duration = Duration::from_secs(60);

impl Control {
    /// Starts the task that empties the trash, now and whenever it is called for.
    pub(super) fn watch_trash(self: &Arc<Self>) {
        let weak = Arc::downgrade(self);
        let called = Arc::clone(&self.sweep);
        self.runtime.spawn(async move {
            while let Some(control) = weak.upgrade() {
                let swept = tokio::task::spawn_blocking(move || control.sweep_trash()).await;
                if let Err(error) = swept {
                    tracing::error!("the trash was not emptied: {error}");
                }
                // Called for, or not: then it is looked through all the same.
                let _ = tokio::time::timeout(PERIOD, called.notified()).await;
            }
        });
    }

    /// Has the files of a purged workspace deleted.
    pub(super) fn delete_soon(&self, id: WorkspaceId) {
        self.to_delete.lock().push(id);
        self.sweep.notify_one();
    }

    /// Gives up what is old, then deletes what is given up.
    fn sweep_trash(&self) {
        for id in self.expired_trash(Timestamp::now()) {
            self.give_up(id);
        }
        self.delete_purged();
        while self.disk_runs_low() {
            let Some(id) = self.oldest_trash() else { break };
            tracing::warn!(workspace = %id, "deleted from the trash: the disk runs low");
            self.give_up(id);
            self.delete_purged();
        }
    }

    /// Reclaimed workspaces whose time is over.
    fn expired_trash(&self, now: Timestamp) -> Vec<WorkspaceId> {
        let keep = self.options.trash_keep;
        let keep = keep.unwrap_or_else(|| self.store.settings().trash.keep);
        self.world(|world| {
            let in_trash = world.workspaces().filter(|w| !w.in_tree() && !w.purged);
            let old = in_trash.filter(|w| w.reclaimed_at.is_none_or(|at| at.age(now) >= keep));
            old.map(|workspace| workspace.id).collect()
        })
    }

    fn oldest_trash(&self) -> Option<WorkspaceId> {
        self.world(|world| {
            let in_trash = world.workspaces().filter(|w| !w.in_tree() && !w.purged);
            in_trash.min_by_key(|w| w.reclaimed_at).map(|w| w.id)
        })
    }

    /// From now on nothing brings it back.
    fn give_up(&self, id: WorkspaceId) {
        let workspace = WorkspaceRef {
            workspace: id,
            occupation: None,
        };
        let deciding = self.decide();
        let decision = self.world(|world| purge(world, workspace, Timestamp::now()));
        // Refused where it was restored meanwhile.
        match decision.and_then(|decision| deciding.commit_decision(decision)) {
            Ok(purged) => self.delete_soon(purged.workspace),
            Err(refusal) => tracing::info!(workspace = %id, "kept in the trash: {refusal}"),
        }
    }

    /// Deletes the files of what is given up.
    fn delete_purged(&self) {
        let never = AtomicBool::new(false);
        let purged = std::mem::take(&mut *self.to_delete.lock());
        for id in purged {
            match self.store.delete_trash(id, &never) {
                Ok(stats) => tracing::info!(workspace = %id, ?stats, "deleted from the trash"),
                // The next start tries again.
                Err(error) => tracing::error!(workspace = %id, "not deleted: {error}"),
            }
        }
    }

    fn disk_runs_low(&self) -> bool {
        let min_free = self.store.settings().trash.min_free;
        let low = |disk: Disk| disk.is_below(min_free);
        self.store.disk().is_ok_and(low)
    }
}
