//! Making good what an unclean end left half done.
//!
//! The rows are the truth and the directories follow them. A directory that no row knows is never
//! thrown away unless it is empty: a registry that was lost or made anew finds its workspaces
//! again.

use std::collections::BTreeSet;
use std::io;

use super::directories::{Directories, Listing};
use super::error::StoreError;
use super::registry::{Registry, Transaction};
use crate::model::{
    NewEvent, Owner, Quota, Timestamp, Workspace, WorkspaceId, WorkspaceState, World,
};

/// What recovery did.
#[derive(Debug, Default)]
pub(super) struct Recovered {
    /// Lines for the log.
    pub lines: Vec<String>,
    /// What is to be deleted from the trash.
    pub leftovers: Vec<WorkspaceId>,
}

/// Brings directories and rows together. `world` is what the registry holds, before and after.
pub(super) fn recover(
    directories: &Directories,
    registry: &dyn Registry,
    world: &mut World,
    now: Timestamp,
) -> Result<Recovered, StoreError> {
    let tree = directories
        .list_workspaces()
        .map_err(StoreError::io("the workspaces can't be listed"))?;
    let trash = directories
        .list_trash()
        .map_err(StoreError::io("the trash can't be listed"))?;
    let mut recovery = Recovery {
        directories,
        in_tree: tree.workspaces.iter().copied().collect(),
        in_trash: trash.workspaces.iter().copied().collect(),
        deleting: trash.deleting.iter().copied().collect(),
        now,
        transaction: Transaction::default(),
        recovered: Recovered::default(),
    };
    recovery.note_others("workspaces", &tree);
    recovery.note_others("trash", &trash);
    world.highest_workspace = world
        .highest_workspace
        .max(directories.highest())
        .max(highest_name(&tree))
        .max(highest_name(&trash));
    let failed = |id: WorkspaceId| StoreError::io(format!("{id} can't be recovered"));

    // 1. Each row's directory to where the row says.
    for row in world.workspaces() {
        recovery.follow(row).map_err(failed(row.id))?;
    }
    // 2. What no row knows.
    for id in tree.workspaces {
        if world.workspace(id).is_none() {
            recovery.found_in_tree(id).map_err(failed(id))?;
        }
    }
    for id in trash.workspaces {
        if world.workspace(id).is_none() {
            recovery.found_in_trash(id).map_err(failed(id))?;
        }
    }
    for id in trash.deleting {
        if world.workspace(id).is_none() {
            recovery.recovered.leftovers.push(id);
        }
    }
    // 3. What was found becomes part of the registry.
    registry.commit(&recovery.transaction, now)?;
    world.apply(&recovery.transaction.changes);
    Ok(recovery.recovered)
}

/// The highest number among the names of a directory, whatever bears it.
fn highest_name(listing: &Listing) -> u32 {
    let others = listing.others.iter().filter_map(|n| WorkspaceId::parse(n));
    let ids = listing.workspaces.iter().chain(&listing.deleting).copied();
    ids.chain(others)
        .map(WorkspaceId::number)
        .max()
        .unwrap_or(0)
}

struct Recovery<'a> {
    directories: &'a Directories,
    in_tree: BTreeSet<WorkspaceId>,
    in_trash: BTreeSet<WorkspaceId>,
    deleting: BTreeSet<WorkspaceId>,
    now: Timestamp,
    transaction: Transaction,
    recovered: Recovered,
}

impl Recovery<'_> {
    fn say(&mut self, line: String) {
        self.recovered.lines.push(line);
    }

    fn note_others(&mut self, name: &str, listing: &Listing) {
        for other in &listing.others {
            self.say(format!(
                "{name}/{other} is none of panefs's; it stays as it is"
            ));
        }
    }

    /// Brings a row's directory to where the row says.
    fn follow(&mut self, row: &Workspace) -> io::Result<()> {
        let id = row.id;
        let place = (self.in_tree.contains(&id), self.in_trash.contains(&id));
        match (row.in_tree(), place) {
            (true, (true, false)) | (false, (false, true)) => {}
            (_, (true, true)) => {
                self.say(format!(
                    "{id} is both in workspaces and in trash; both stay"
                ));
                return Ok(());
            }
            (true, (false, true)) => {
                self.directories.untrash(id)?;
                self.say(format!(
                    "{id} is {}: moved back from the trash",
                    row.state.as_str()
                ));
            }
            (true, (false, false)) => {
                self.directories.create(id, row.owner)?;
                self.tell("workspace.recovered", row, "nothing");
                self.say(format!("{id} had lost its directory: made an empty one"));
            }
            (false, (true, false)) => {
                self.directories.trash(id)?;
                self.say(format!("{id} is reclaimed: moved to the trash"));
            }
            (false, (false, false)) => {
                if !row.purged {
                    let mut purged = row.clone();
                    purged.purged = true;
                    self.tell("workspace.purged", row, "nothing");
                    self.transaction.changes.workspaces.push(purged);
                    self.say(format!("{id} is no longer in the trash: noted as purged"));
                }
                if self.deleting.contains(&id) {
                    self.recovered.leftovers.push(id);
                }
                return Ok(());
            }
        }
        if row.purged {
            self.recovered.leftovers.push(id);
        }
        Ok(())
    }

    /// A directory in the tree that no row knows: made just before the end where it is empty,
    /// else from before the registry was lost.
    fn found_in_tree(&mut self, id: WorkspaceId) -> io::Result<()> {
        self.directories.remember(id)?;
        match self.directories.remove_empty(id) {
            Ok(()) => {
                self.say(format!(
                    "{id} was never acknowledged: removed its empty directory"
                ));
                return Ok(());
            }
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            Err(error) => return Err(error),
        }
        let stat = self.directories.stat_workspace(id)?;
        let owner = Owner {
            uid: stat.st_uid,
            gid: stat.st_gid,
        };
        self.adopt(id, owner, WorkspaceState::Released, "workspaces");
        Ok(())
    }

    /// A directory in the trash that no row knows can be restored as any other.
    fn found_in_trash(&mut self, id: WorkspaceId) -> io::Result<()> {
        if self.in_tree.contains(&id) {
            self.say(format!(
                "{id} is both in workspaces and in trash; both stay"
            ));
            return Ok(());
        }
        let stat = self.directories.stat_trash(id)?;
        let owner = Owner {
            uid: stat.st_uid,
            gid: stat.st_gid,
        };
        self.adopt(id, owner, WorkspaceState::Reclaimed, "trash");
        Ok(())
    }

    fn adopt(&mut self, id: WorkspaceId, owner: Owner, state: WorkspaceState, found: &str) {
        let now = self.now;
        let row = Workspace {
            id,
            occupation: None,
            state,
            holder: None,
            chain: Vec::new(),
            title: None,
            owner,
            quota: Quota::default(),
            keep: false,
            epoch: 1,
            created_at: now,
            released_at: Some(now),
            reclaimed_at: (state == WorkspaceState::Reclaimed).then_some(now),
            purged: false,
        };
        self.tell("workspace.recovered", &row, found);
        self.say(format!(
            "{id} was unknown, found in {found}: now {}",
            state.as_str()
        ));
        self.transaction.changes.workspaces.push(row);
    }

    fn tell(&mut self, kind: &'static str, row: &Workspace, found: &str) {
        let event = NewEvent::new(kind, row.chain.last().copied())
            .with("workspace", row.id.to_string())
            .with("ref", row.current_ref().to_string())
            .with("found", found);
        self.transaction.events.push(event);
    }
}
