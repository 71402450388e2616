//! The store against real directories.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use proptest::prelude::*;
use rusqlite::Connection;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::model::{
    Allocate, BindingKind, Handoff, JobId, NewEvent, Quota, Reclaim, Refusal, Target, Title,
    WorkspaceRef, WorkspaceState, allocate, handoff, purge, reclaim, release, restore,
};

const OWNER: Owner = Owner { uid: 0, gid: 0 };

fn at(n: i64) -> Timestamp {
    Timestamp::from_millis(1_700_000_000_000 + n)
}

fn window(n: u32) -> WindowId {
    WindowId::new(n).unwrap()
}

fn workspace(n: u32) -> WorkspaceId {
    WorkspaceId::new(n).unwrap()
}

fn ws(n: u32) -> WorkspaceRef {
    WorkspaceRef {
        workspace: workspace(n),
        occupation: None,
    }
}

/// A store in a directory of its own, and the commands that the tests give it.
struct Life {
    _dir: TempDir,
    path: PathBuf,
    opened: Option<Opened>,
    clock: i64,
}

impl Life {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap().join("store");
        let opened = Some(Store::open(&path).unwrap());
        Self {
            _dir: dir,
            path,
            opened,
            clock: 0,
        }
    }

    fn opened(&self) -> &Opened {
        self.opened.as_ref().unwrap()
    }

    fn store(&self) -> &Store {
        &self.opened().store
    }

    fn world(&self) -> &World {
        &self.opened().world
    }

    fn row(&self, n: u32) -> &crate::model::Workspace {
        self.world().workspace(workspace(n)).unwrap()
    }

    fn close(&mut self) {
        self.opened = None;
    }

    fn reopen(&mut self) {
        self.close();
        self.opened = Some(Store::open(&self.path).unwrap());
    }

    fn commit<T>(&mut self, decision: Result<crate::model::Decision<T>, Refusal>) -> T {
        let decision = decision.unwrap();
        self.clock += 1;
        let transaction = Transaction {
            changes: decision.changes,
            events: decision.events,
            ..Transaction::default()
        };
        let opened = self.opened.as_mut().unwrap();
        opened.store.commit(&transaction, at(self.clock)).unwrap();
        opened.world.apply(&transaction.changes);
        decision.answer
    }

    fn allocate(&mut self, n: Option<u32>) -> WorkspaceId {
        let command = Allocate {
            window: n.map(window),
            title: Some("tests".parse::<Title>().unwrap()),
            owner: OWNER,
            quota: Quota {
                bytes: Some(1 << 40),
                files: None,
            },
            keep: false,
        };
        let decision = allocate(self.world(), &command, at(self.clock));
        let id = decision.as_ref().unwrap().answer.workspace;
        self.store().create_workspace(id, OWNER).unwrap();
        self.commit(decision);
        id
    }

    fn reclaim(&mut self, n: u32) {
        let command = Reclaim {
            target: Target::Workspace(ws(n)),
            force: true,
            purge: false,
        };
        let decision = reclaim(self.world(), &command, at(self.clock));
        self.commit(decision);
    }

    fn write(&self, name: &str, content: &str) {
        fs::write(self.path.join(name), content).unwrap();
    }

    fn has(&self, name: &str) -> bool {
        self.path.join(name).symlink_metadata().is_ok()
    }

    fn mv(&self, from: &str, to: &str) {
        fs::rename(self.path.join(from), self.path.join(to)).unwrap();
    }

    fn delete(&self, n: u32) -> DeleteStats {
        let cancelled = AtomicBool::new(false);
        self.store().delete_trash(workspace(n), &cancelled).unwrap()
    }

    fn events(&self) -> Vec<Value> {
        let size = self.store().events_size(None);
        let bytes = self.store().read_events(None, 0, size as usize).unwrap();
        assert_eq!(bytes.len() as u64, size);
        let text = String::from_utf8(bytes).unwrap();
        text.lines()
            .map(|l| serde_json::from_str(l).unwrap())
            .collect()
    }

    fn last_event(&self) -> Value {
        self.events().last().unwrap().clone()
    }
}

#[test]
fn what_was_committed_is_there_after_a_reopen() {
    let mut life = Life::new();
    for entry in ["", "workspaces", "trash"] {
        let mode = fs::metadata(life.path.join(entry)).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o700, "{entry}");
    }
    assert_eq!(life.allocate(Some(7)), workspace(7));
    assert_eq!(life.allocate(Some(3)), workspace(8));
    let mode = fs::metadata(life.path.join("workspaces/ws7"))
        .unwrap()
        .mode();
    assert_eq!(mode & 0o7777, 0o755);
    let decision = handoff(
        life.world(),
        &Handoff {
            from: window(7),
            to: None,
            title: Some("go on".parse().unwrap()),
            fresh_epoch: true,
        },
        at(5),
    );
    assert_eq!(life.commit(decision).to, window(8));
    let decision = release(life.world(), window(3), at(6));
    life.commit(decision);

    let (world, events) = (life.world().clone(), life.events());
    let sequence: Vec<u64> = events.iter().map(|e| e["seq"].as_u64().unwrap()).collect();
    assert_eq!(sequence, (1..=events.len() as u64).collect::<Vec<_>>());
    life.reopen();
    assert_eq!(*life.world(), world);
    assert_eq!(life.events(), events);
    assert_eq!(life.opened().recovered, Vec::<String>::new());

    life.allocate(None);
    let next = life.last_event()["seq"].as_u64().unwrap();
    assert_eq!(next, events.len() as u64 + 2, "numbering goes on");
}

#[test]
fn bindings_and_jobs_are_kept_and_bindings_only_until_a_reboot() {
    let mut life = Life::new();
    let binding = |id, to| Binding {
        kind: BindingKind::Process,
        id,
        start: 77,
        tgid: id,
        cgroup: String::new(),
        window: to,
    };
    let group = Binding {
        kind: BindingKind::Cgroup,
        id: 0,
        start: 0,
        tgid: 0,
        cgroup: "/agents/c1".into(),
        window: Some(window(1)),
    };
    let mut job = JobRow {
        id: JobId::new(1).unwrap(),
        command: "handoff c1 mode=wait".into(),
        state: JobState::Running,
        result: None,
        log: String::new(),
        started: at(1),
        ended: None,
    };
    let commit = |life: &Life, bindings, jobs| {
        let transaction = Transaction {
            bindings,
            jobs,
            ..Transaction::default()
        };
        life.store().commit(&transaction, at(2)).unwrap();
    };
    let (one, two) = (binding(10, Some(window(1))), binding(11, None));
    commit(
        &life,
        vec![
            BindingChange::Put(one.clone()),
            BindingChange::Put(two.clone()),
            BindingChange::Put(group.clone()),
        ],
        vec![job.clone()],
    );
    life.reopen();
    assert_eq!(life.opened().bindings.len(), 3);
    assert_eq!(life.opened().jobs, [job.clone()]);

    // A successor with the same number replaces it, and isn't removed in its stead.
    let mut successor = one.clone();
    successor.start = 99;
    job.state = JobState::Done;
    job.result = Some(json!({"ok": true}));
    job.ended = Some(at(3));
    commit(
        &life,
        vec![
            BindingChange::Put(successor.clone()),
            BindingChange::Remove(one),
            BindingChange::Remove(two),
            BindingChange::Move {
                from: window(1),
                to: window(2),
            },
        ],
        vec![job.clone()],
    );
    life.reopen();
    successor.window = Some(window(2));
    let mut bindings = life.opened().bindings.clone();
    bindings.sort_by_key(|b| b.id);
    assert_eq!(bindings.len(), 2);
    assert_eq!(bindings[0].window, Some(window(2)));
    assert_eq!(bindings[0].cgroup, group.cgroup);
    assert_eq!(bindings[1], successor);
    assert_eq!(life.opened().jobs, [job]);

    life.close();
    let db = Connection::open(life.path.join("panefs.db")).unwrap();
    db.execute("UPDATE bindings SET boot = 'an earlier one'", [])
        .unwrap();
    drop(db);
    life.reopen();
    assert_eq!(life.opened().bindings, []);
    life.reopen();
    assert_eq!(life.opened().bindings, []);
}

#[test]
fn a_failed_commit_leaves_no_trace() {
    let mut life = Life::new();
    life.allocate(Some(1));
    let (events, size) = (life.events(), life.store().events_size(None));
    let mut row = life.row(1).clone();
    row.epoch = u64::MAX; // more than a column holds
    let mut other = row.clone();
    other.epoch = 9;
    other.id = workspace(2);
    let transaction = Transaction {
        changes: crate::model::Changes {
            windows: Vec::new(),
            workspaces: vec![other, row],
        },
        events: vec![NewEvent::new("never", [window(1)])],
        ..Transaction::default()
    };
    assert!(life.store().commit(&transaction, at(9)).is_err());
    assert_eq!(life.store().events_size(None), size);
    assert_eq!(life.events(), events);
    life.allocate(None);
    let seq = life.last_event()["seq"].as_u64().unwrap();
    assert_eq!(seq, events.len() as u64 + 2, "no gap");
    let world = life.world().clone();
    life.reopen();
    assert_eq!(*life.world(), world);
}

#[test]
fn a_second_opener_is_refused_by_pid() {
    let mut life = Life::new();
    let error = Store::open(&life.path).unwrap_err();
    let pid = std::process::id();
    assert!(matches!(error, StoreError::Locked { pid: Some(p), .. } if p == pid));
    assert!(error.to_string().contains(&pid.to_string()), "{error}");
    let refusal = Refusal::from(error);
    assert!(refusal.next_action.contains(&pid.to_string()));
    life.reopen();
    let lock = fs::read_to_string(life.path.join("lock")).unwrap();
    assert_eq!(lock.trim(), pid.to_string());
}

#[test]
fn a_foreign_directory_is_refused_untouched() {
    let entries = |path: &Path| {
        let mut all: Vec<_> = fs::read_dir(path)
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        all.sort();
        all
    };
    for files in [
        &["notes.txt"][..],
        &["lock", "notes.txt"],
        &["workspaces", "trash"],
        &["panefs.toml", "src"],
    ] {
        let dir = tempfile::tempdir().unwrap();
        for file in files {
            fs::write(dir.path().join(file), "mine").unwrap();
        }
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let before = entries(dir.path());
        let error = Store::open(dir.path()).unwrap_err();
        assert!(matches!(error, StoreError::NotAStore { .. }), "{error}");
        assert_eq!(entries(dir.path()), before);
        let mode = fs::metadata(dir.path()).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o755);
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "mine").unwrap();
    assert!(Store::open(&file).is_err());
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");

    // An empty directory, the top of a fresh disk, and one with nothing but settings are welcome.
    for entry in [None, Some("lost+found"), Some("panefs.toml")] {
        let dir = tempfile::tempdir().unwrap();
        match entry {
            Some("lost+found") => fs::create_dir(dir.path().join("lost+found")).unwrap(),
            Some(file) => fs::write(dir.path().join(file), "").unwrap(),
            None => {}
        }
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let opened = Store::open(dir.path()).unwrap();
        let mode = fs::metadata(opened.store.path()).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o700);
    }
}

#[test]
fn a_registry_of_a_later_version_or_another_program_is_refused_untouched() {
    let mut life = Life::new();
    life.allocate(Some(1));
    life.close();
    let file = life.path.join("panefs.db");
    let db = Connection::open(&file).unwrap();
    db.pragma_update(None, "user_version", 2).unwrap();
    drop(db);
    let before = fs::read(&file).unwrap();
    let error = Store::open(&life.path).unwrap_err();
    assert!(
        matches!(
            error,
            StoreError::Registry(RegistryError::Newer { found: 2, .. })
        ),
        "{error}"
    );
    assert_eq!(fs::read(&file).unwrap(), before);

    fs::remove_file(&file).unwrap();
    let db = Connection::open(&file).unwrap();
    db.execute_batch("CREATE TABLE bookmarks (url TEXT)")
        .unwrap();
    drop(db);
    let garbage = "not a database, but long enough to be read as the header of one, which it isn't";
    for content in [fs::read(&file).unwrap(), garbage.repeat(20).into_bytes()] {
        fs::write(&file, &content).unwrap();
        let error = Store::open(&life.path).unwrap_err();
        assert!(
            matches!(error, StoreError::Registry(RegistryError::Foreign { .. })),
            "{error}"
        );
        assert_eq!(fs::read(&file).unwrap(), content);
    }
}

#[test]
fn wrong_settings_are_refused_by_file_and_line() {
    let mut life = Life::new();
    life.write("panefs.toml", "[trash]\nkeep = \"1h\"\n");
    life.reopen();
    assert_eq!(life.store().settings().trash.keep.as_secs(), 3600);
    life.close();
    life.write("panefs.toml", "retention = \"1d\"\ntrahs = 1\n");
    let error = Store::open(&life.path).unwrap_err().to_string();
    let place = format!("{}:2: ", life.path.join("panefs.toml").display());
    assert!(
        error.starts_with(&place) && error.contains("trahs"),
        "{error}"
    );
}

#[test]
fn the_trash_gives_back_and_forgets() {
    let mut life = Life::new();
    life.allocate(Some(1));
    life.write("workspaces/ws1/file", "precious");
    // An ordinary user can't move such a directory without further ado.
    let (top, mode) = (
        life.path.join("workspaces/ws1"),
        fs::Permissions::from_mode(0o555),
    );
    fs::set_permissions(top, mode.clone()).unwrap();
    life.reclaim(1);
    life.store().trash(workspace(1)).unwrap();
    life.store().trash(workspace(1)).unwrap();
    let moved = fs::metadata(life.path.join("trash/ws1")).unwrap();
    assert_eq!(moved.mode() & 0o7777, mode.mode());
    assert!(life.has("trash/ws1/file") && !life.has("workspaces/ws1"));
    life.store().untrash(workspace(1)).unwrap();
    life.store().untrash(workspace(1)).unwrap();
    let decision = restore(life.world(), ws(1), at(9));
    life.commit(decision);
    assert!(life.has("workspaces/ws1/file") && !life.has("trash/ws1"));
    assert!(life.store().trash(workspace(5)).is_err());

    life.reclaim(1);
    life.store().trash(workspace(1)).unwrap();
    let decision = purge(life.world(), ws(1), at(10));
    life.commit(decision);
    let stats = life.delete(1);
    assert_eq!(
        (stats.files, stats.directories, stats.complete),
        (1, 1, true)
    );
    assert!(!life.has("trash/ws1") && !life.has("trash/ws1.deleting"));
    assert!(life.delete(1).complete, "repeated, it is done");
    life.reopen();
    assert_eq!(life.opened().recovered, Vec::<String>::new());
    assert_eq!(life.opened().leftovers, []);
}

#[test]
fn deletion_stays_in_its_tree_and_can_be_interrupted() {
    let mut life = Life::new();
    life.allocate(Some(1));
    let outside = life.path.parent().unwrap().join("outside");
    fs::create_dir_all(outside.join("below")).unwrap();
    fs::write(outside.join("below/file"), "mine").unwrap();
    let top = life.path.join("workspaces/ws1");
    symlink(&outside, top.join("directory")).unwrap();
    symlink(outside.join("below/file"), top.join("file")).unwrap();
    symlink("/nowhere", top.join("dangling")).unwrap();
    fs::create_dir(top.join("locked")).unwrap();
    fs::write(top.join("locked/inside"), "x").unwrap();
    fs::set_permissions(top.join("locked"), fs::Permissions::from_mode(0o000)).unwrap();
    fs::hard_link(outside.join("below/file"), top.join("hard")).unwrap();
    let before = fs::metadata(outside.join("below")).unwrap();

    life.reclaim(1);
    life.store().trash(workspace(1)).unwrap();
    let cancelled = AtomicBool::new(true);
    let stats = life.store().delete_trash(workspace(1), &cancelled).unwrap();
    assert!(!stats.complete);
    assert!(life.has("trash/ws1.deleting/locked") && !life.has("trash/ws1"));
    assert!(life.store().untrash(workspace(1)).is_err());

    let stats = life.delete(1);
    assert_eq!(
        (stats.files, stats.directories, stats.complete),
        (5, 2, true)
    );
    assert_eq!(
        fs::read_to_string(outside.join("below/file")).unwrap(),
        "mine"
    );
    let after = fs::metadata(outside.join("below")).unwrap();
    assert_eq!(
        (before.mtime_nsec(), before.mode()),
        (after.mtime_nsec(), after.mode())
    );
}

#[test]
fn trees_of_any_depth_are_counted_and_deleted() {
    use std::os::fd::AsFd;
    let mut life = Life::new();
    life.allocate(Some(1));
    let top = fs::File::open(life.path.join("workspaces/ws1")).unwrap();
    let mut dir = std::os::fd::OwnedFd::from(top);
    let depth = 3000;
    for _ in 0..depth {
        let name = c"a-name-that-makes-the-path-long";
        nix::sys::stat::mkdirat(dir.as_fd(), name, nix::sys::stat::Mode::S_IRWXU).unwrap();
        dir = super::walk::open_directory(dir.as_fd(), name).unwrap();
    }
    drop(dir);
    assert_eq!(life.store().usage(workspace(1)).unwrap().files, depth + 1);
    life.reclaim(1);
    life.store().trash(workspace(1)).unwrap();
    assert_eq!(life.delete(1).directories, depth + 1);
}

#[test]
fn usage_counts_each_inode_once_and_follows_nothing() {
    let mut life = Life::new();
    life.allocate(Some(1));
    let top = life.path.join("workspaces/ws1");
    fs::create_dir(top.join("dir")).unwrap();
    fs::write(top.join("dir/file"), vec![7; 100_000]).unwrap();
    fs::hard_link(top.join("dir/file"), top.join("again")).unwrap();
    fs::hard_link(top.join("dir/file"), top.join("dir/and-again")).unwrap();
    symlink("/", top.join("root")).unwrap();
    let sizes = ["", "dir", "dir/file", "root"].map(|name| {
        let stat = top.join(name).symlink_metadata().unwrap();
        stat.blocks() * 512
    });
    let usage = life.store().usage(workspace(1)).unwrap();
    assert_eq!(usage.files, 4);
    assert_eq!(usage.bytes, sizes.iter().sum::<u64>());
    assert!(life.store().usage(workspace(2)).is_err());
    let disk = life.store().disk().unwrap();
    assert!(disk.size > disk.available && !disk.is_below(0) && disk.is_below(100));
}

/// One kind of half-done work, what it looks like on the disk, and what becomes of it.
#[test]
fn directories_follow_their_rows() {
    let mut life = Life::new();
    for n in 1..=6 {
        life.allocate(Some(n));
        life.write(&format!("workspaces/ws{n}/file"), "precious");
    }
    // ws1: reclaimed, and the daemon died before the files moved.
    life.reclaim(1);
    // ws2: moved back for a restore that was never committed.
    life.reclaim(2);
    // ws3: in the tree, but in the trash.
    life.mv("workspaces/ws3", "trash/ws3");
    // ws4: purged, and the daemon died before it was deleted.
    life.reclaim(4);
    life.store().trash(workspace(4)).unwrap();
    let decision = purge(life.world(), ws(4), at(1));
    life.commit(decision);
    // ws5: its deletion was begun.
    life.reclaim(5);
    life.mv("workspaces/ws5", "trash/ws5.deleting");
    let decision = purge(life.world(), ws(5), at(1));
    life.commit(decision);
    // ws6: reclaimed, its files lost.
    life.reclaim(6);
    fs::remove_dir_all(life.path.join("workspaces/ws6")).unwrap();
    // ws7: made, and the daemon died before its row was written.
    life.store().create_workspace(workspace(7), OWNER).unwrap();
    // ws8: its row is there, its directory is lost.
    life.allocate(Some(8));
    fs::remove_dir(life.path.join("workspaces/ws8")).unwrap();
    // Not ours.
    life.write("workspaces/notes", "mine");
    life.write("workspaces/ws20", "a file");

    life.reopen();
    let places = |n| {
        let tree = life.has(&format!("workspaces/ws{n}/file"));
        (tree, life.has(&format!("trash/ws{n}/file")))
    };
    assert_eq!(places(1), (false, true));
    assert_eq!(places(2), (false, true));
    assert_eq!(places(3), (true, false));
    assert_eq!(places(4), (false, true));
    assert_eq!(life.opened().leftovers, [workspace(4), workspace(5)]);
    assert!(life.row(6).purged && !life.row(1).purged);
    assert!(!life.has("workspaces/ws7") && life.world().workspace(workspace(7)).is_none());
    assert!(life.has("workspaces/ws8"));
    assert!(life.has("workspaces/notes") && life.has("workspaces/ws20"));
    for id in life.opened().leftovers.clone() {
        assert!(life.delete(id.number()).complete);
    }
    let kinds: Vec<String> = life
        .events()
        .iter()
        .rev()
        .take(2)
        .map(|e| format!("{} {}", e["kind"], e["workspace"]))
        .collect();
    assert_eq!(
        kinds,
        [
            "\"workspace.recovered\" \"ws8\"",
            "\"workspace.purged\" \"ws6\""
        ]
    );

    let world = life.world().clone();
    life.reopen();
    let world_again = life.world();
    assert_eq!(
        world_again.workspaces().collect::<Vec<_>>(),
        world.workspaces().collect::<Vec<_>>()
    );
    assert_eq!(life.opened().leftovers, []);
    assert_eq!(
        life.allocate(Some(9)),
        workspace(21),
        "a file's name counts as used"
    );
}

#[test]
fn a_registry_made_anew_finds_its_workspaces_and_no_number_returns() {
    let mut life = Life::new();
    for n in [1, 2, 3, 40] {
        life.allocate(Some(n));
        life.write(&format!("workspaces/ws{n}/file"), "precious");
    }
    life.allocate(Some(41));
    for n in [2, 40] {
        life.reclaim(n);
        life.store().trash(workspace(n)).unwrap();
    }
    let decision = purge(life.world(), ws(40), at(1));
    life.commit(decision);
    assert!(life.delete(40).complete);
    life.close();
    for file in ["panefs.db", "panefs.db-wal", "panefs.db-shm"] {
        let _ = fs::remove_file(life.path.join(file));
    }

    life.reopen();
    let states: Vec<_> = life
        .world()
        .workspaces()
        .map(|w| (w.id.number(), w.state))
        .collect();
    assert_eq!(
        states,
        [
            (1, WorkspaceState::Released),
            (2, WorkspaceState::Reclaimed),
            (3, WorkspaceState::Released),
        ]
    );
    assert!(life.has("workspaces/ws1/file") && life.has("trash/ws2/file"));
    assert!(!life.has("workspaces/ws41"), "it was empty");
    let last = life.last_event();
    assert_eq!(
        (&last["kind"], &last["found"]),
        (&json!("workspace.recovered"), &json!("trash"))
    );
    life.store().untrash(workspace(2)).unwrap();
    let decision = restore(life.world(), ws(2), at(2));
    life.commit(decision);

    life.reopen();
    assert_eq!(life.opened().recovered, Vec::<String>::new());
    assert_eq!(life.allocate(Some(1)), workspace(42));
}

#[test]
fn an_unused_directory_is_taken_away_again() {
    let life = Life::new();
    life.store().create_workspace(workspace(1), OWNER).unwrap();
    let again = life.store().create_workspace(workspace(1), OWNER);
    assert_eq!(again.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    assert!(life.has("workspaces/ws1"));
    life.store().discard_workspace(workspace(1));
    assert!(!life.has("workspaces/ws1"));
}

/// Ends a child with the test, however that goes.
struct Child(std::process::Child);

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Run by itself this does nothing; the next test runs it in a process to be killed.
#[test]
fn allocates_until_killed() {
    let Some(path) = std::env::var_os("PANEFS_TEST_STORE") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let opened = Some(Store::open(Path::new(&path)).unwrap());
    let mut life = Life {
        _dir: dir,
        path: path.into(),
        opened,
        clock: 0,
    };
    for _ in 0..10_000 {
        let id = life.allocate(None);
        println!("acknowledged {id}");
    }
}

#[test]
fn what_was_acknowledged_survives_a_kill() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let mut acknowledged = 0;
    for kills in 1..=5 {
        let child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "store::tests::allocates_until_killed",
                "--nocapture",
            ])
            .env("PANEFS_TEST_STORE", &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut child = Child(child);
        let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
        let mut seen = 0;
        while seen < kills {
            let line = lines.next().unwrap().unwrap();
            if let Some((_, id)) = line.split_once("acknowledged ") {
                acknowledged = id.parse::<WorkspaceId>().unwrap().number();
                seen += 1;
            }
        }
        child.0.kill().unwrap();
        child.0.wait().unwrap();
        for id in lines.filter_map(|l| l.unwrap().split_once("acknowledged ws")?.1.parse().ok()) {
            acknowledged = id;
        }

        let opened = Store::open(&path).unwrap();
        let rows = opened.world.workspaces().count();
        // A number that a kill burnt has no row, so they aren't counted.
        let last = workspace(acknowledged);
        assert!(opened.world.workspace(last).is_some(), "{last} of {rows}");
        for row in opened.world.workspaces() {
            assert!(path.join("workspaces").join(row.id.to_string()).is_dir());
        }
        let size = opened.store.events_size(None);
        let events = opened.store.read_events(None, 0, size as usize).unwrap();
        assert_eq!(events.iter().filter(|b| **b == b'\n').count(), rows * 2);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn events_read_in_any_pieces_are_the_whole(
        events in prop::collection::vec(
            (prop::collection::vec(1..4u32, 0..3), "[a-zé\"\n]{0,30}"),
            1..20
        ),
        pieces in prop::collection::vec((0.0..1.2f64, 0..200usize), 30),
    ) {
        let mut life = Life::new();
        let mut wholes = vec![(None, String::new())];
        wholes.extend((1..5).map(|n| (Some(window(n)), String::new())));
        for (n, (windows, text)) in events.into_iter().enumerate() {
            let transaction = Transaction {
                events: vec![
                    NewEvent::new("said", windows.iter().map(|n| window(*n))).with("text", text),
                ],
                ..Transaction::default()
            };
            let committed = life.store().commit(&transaction, at(n as i64)).unwrap();
            prop_assert_eq!(committed.len(), 1);
            for (of, whole) in &mut wholes {
                if of.is_none_or(|w| windows.contains(&w.number())) {
                    whole.push_str(&committed[0].line);
                    whole.push('\n');
                }
            }
        }
        for round in 0..2 {
            for (of, whole) in &wholes {
                let store = life.store();
                prop_assert_eq!(store.events_size(*of), whole.len() as u64);
                prop_assert_eq!(store.last_event(*of).is_some(), !whole.is_empty());
                for (share, len) in &pieces {
                    let offset = (whole.len() as f64 * share) as usize;
                    let from = offset.min(whole.len());
                    let to = (from + len).min(whole.len());
                    let read = store.read_events(*of, offset as u64, *len).unwrap();
                    prop_assert_eq!(&read[..], &whole.as_bytes()[from..to]);
                }
                let all = store.read_events(*of, 0, usize::MAX).unwrap();
                prop_assert_eq!(&all[..], whole.as_bytes());
            }
            if round == 0 {
                life.reopen();
            }
        }
    }
}
