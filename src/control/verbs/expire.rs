//! `expire`: takes what is old, and leaves what would be lost.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::control::jobs::Job;
use crate::control::reply::Reply;
use crate::control::{Control, Request, repos};
use crate::model::{
    Activity, Expire, Reclaim, Refusal, Target, Timestamp, Window, Workspace, World, expire,
};

impl Control {
    pub(super) fn expire(
        &self,
        request: &Request<'_>,
        older_than: Option<Duration>,
        idle: Option<Duration>,
        unsaved: bool,
    ) -> Result<Reply, Refusal> {
        let older_than = older_than
            .or(self.options.retention)
            .or_else(|| self.store.settings().retention);
        self.as_job(request.line, None, move |control, job| {
            Ok(control.take_old(job, older_than, idle, unsaved))
        })
    }

    fn take_old(
        &self,
        job: &Job,
        older_than: Option<Duration>,
        idle: Option<Duration>,
        unsaved: bool,
    ) -> Reply {
        let now = Timestamp::now();
        // A copy, since looking for changes takes its time.
        let world: World = self.world(World::clone);
        let members = self.members.all_members();
        let activity = |window: &Window| match members.contains_key(&window.id) {
            true => Activity::Busy,
            false => self.activity(window, idle.unwrap_or_default(), now),
        };
        let old = expire(
            &world,
            &Expire {
                older_than,
                idle,
                activity: &activity,
            },
            now,
        );
        let mut windows = Vec::new();
        for id in old.windows {
            // Somebody may have joined, or ended it, meanwhile.
            let quiet = self.members.members_of(id).is_empty() && !job.is_cancelled();
            if quiet && self.release_now(id).is_ok() {
                windows.push(id);
            }
        }
        let (mut workspaces, mut kept, mut reasons) = (Vec::new(), Vec::new(), Vec::<Value>::new());
        for id in old.workspaces {
            let Some(workspace) = world.workspace(id).filter(|_| !job.is_cancelled()) else {
                break;
            };
            job.say_once(format!("looking at {id}"));
            let found = match unsaved {
                true => None,
                false => self.unsaved_work(workspace),
            };
            if let Some(found) = found {
                kept.push(id);
                reasons.push(json!({
                    "workspace": id,
                    "repository": found.repository,
                    "what": found.what,
                }));
                continue;
            }
            let order = Reclaim {
                target: Target::Workspace(workspace.current_ref()),
                force: false,
                purge: false,
            };
            // Refused where it was handed off meanwhile.
            if self.reclaim_now(&order).is_ok_and(|done| !done.repeated) {
                workspaces.push(id);
            }
        }
        Reply::ok()
            .with("workspaces", workspaces)
            .with("kept", kept)
            .with("windows", windows)
            .with("unsaved", reasons)
    }

    /// Git runs as the workspace's owner, who reaches the files through the mount; as the daemon
    /// only where that is the same user.
    fn unsaved_work(&self, workspace: &Workspace) -> Option<repos::Unsaved> {
        if workspace.owner.uid == self.options.owner.uid {
            return repos::unsaved(&self.directory_of(workspace.id), None);
        }
        let shown = self.options.mount.join(workspace.id.to_string());
        repos::unsaved(&shown, Some(workspace.owner))
    }

    fn activity(&self, window: &Window, idle: Duration, now: Timestamp) -> Activity {
        let Some(id) = window.workspace else {
            return Activity::Unknown;
        };
        let open = self
            .gates
            .get(id)
            .is_some_and(|gate| !gate.writers().is_empty());
        if open {
            return Activity::Busy;
        }
        let newest = newest_change(&self.directory_of(id), &|at| at.age(now) < idle);
        newest.map_or(Activity::Unknown, Activity::Since)
    }
}

/// The last change under a directory, on its own disk; the first that is `enough` ends the search.
fn newest_change(top: &Path, enough: &dyn Fn(Timestamp) -> bool) -> Option<Timestamp> {
    let device = fs::metadata(top).ok()?.dev();
    let mut newest = None;
    let mut directories = vec![top.to_owned()];
    while let Some(directory) = directories.pop() {
        // Of the top this follows the descriptor that its path goes through.
        let of_top = (directory == top).then(|| fs::metadata(top).ok()).flatten();
        let entries = fs::read_dir(&directory).into_iter().flatten().flatten();
        let below = entries.filter_map(|entry| Some((entry.path(), entry.metadata().ok()?)));
        let own = of_top.map(|metadata| (directory.clone(), metadata));
        for (path, metadata) in own.into_iter().chain(below) {
            let changed = metadata.ctime() * 1000 + metadata.ctime_nsec() / 1_000_000;
            newest = newest.max(Some(Timestamp::from_millis(changed)));
            if newest.is_some_and(enough) {
                return newest;
            }
            if metadata.is_dir() && metadata.dev() == device && path != top {
                directories.push(path);
            }
        }
    }
    newest
}
