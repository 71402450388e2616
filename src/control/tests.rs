//! The room as a whole, on a real store, with real members and gates and a tree that takes notes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::gate::{Denied, HeldFile, WriterGuard};
use crate::model::{JobId, Role};
use crate::store::{Store, StoreError};

const MOUNT: &str = "/mnt/panefs";

/// A tree that takes notes.
#[derive(Default)]
struct Notes(Mutex<Vec<String>>);

impl Tree for Notes {
    fn windows_changed(&self) {
        self.0.lock().push("windows".into());
    }
    fn workspace_gone(&self, id: WorkspaceId) {
        self.0.lock().push(format!("gone {id}"));
    }
    fn refresh(&self, id: WorkspaceId) {
        self.0.lock().push(format!("refresh {id}"));
    }
    fn open_view(&self, window: Option<WindowId>, dir: &Path) -> Result<(), Refusal> {
        self.0
            .lock()
            .push(format!("view {window:?} {}", dir.display()));
        Ok(())
    }
    fn close_view(&self, dir: &Path) -> Result<(), Refusal> {
        self.0.lock().push(format!("leave {}", dir.display()));
        Ok(())
    }
    fn views(&self) -> Vec<(PathBuf, Option<WindowId>)> {
        Vec::new()
    }
    fn moved(&self, from: WindowId, to: WindowId) {
        self.0.lock().push(format!("moved {from} {to}"));
    }
}

/// A control room of its own.
struct House {
    store: Arc<TempDir>,
    runtime: tokio::runtime::Runtime,
    control: Arc<Control>,
    tree: Arc<Notes>,
}

impl House {
    fn new() -> Self {
        Self::open(Arc::new(tempfile::tempdir().unwrap()))
    }

    fn open(store: Arc<TempDir>) -> Self {
        // A process that another test is just starting has the old lock until its exec.
        let mut opened = loop {
            match Store::open(&store.path().join("store")) {
                Err(StoreError::Locked { .. }) => thread::yield_now(),
                opened => break opened.unwrap(),
            }
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let options = Options {
            mount: MOUNT.into(),
            trash_keep: None,
            retention: None,
            allow_other: false,
            owner: Owner {
                uid: nix::unistd::getuid().as_raw(),
                gid: nix::unistd::getgid().as_raw(),
            },
        };
        let members = Members::new(std::mem::take(&mut opened.bindings));
        let handle = runtime.handle().clone();
        let control = Control::new(opened, Arc::default(), members, options, handle);
        let tree = Arc::new(Notes::default());
        let weak: Weak<Notes> = Arc::downgrade(&tree);
        control.set_tree(weak);
        Self {
            store,
            runtime,
            control,
            tree,
        }
    }

    /// Ends this daemon and starts another one on the same store.
    fn again(self) -> Self {
        let store = Arc::clone(&self.store);
        self.close();
        Self::open(store)
    }

    fn close(self) {
        self.control.stop();
        drop(self.control);
        self.runtime.shutdown_timeout(Duration::from_secs(20));
    }

    fn write(&self, scope: Scope, caller: &Caller, text: &str) -> (Result<usize, i32>, Vec<Value>) {
        let channel = self.control.open_channel(scope, true);
        let written = self.control.write(&channel, caller, text.as_bytes());
        let lines = std::iter::from_fn(|| {
            let line = self.control.read(&channel, WRITE_LIMIT * 100);
            (!line.is_empty()).then(|| serde_json::from_slice(&line).unwrap())
        });
        (written, lines.collect())
    }

    /// The reply to one command of the mount's owner that succeeds.
    fn ok(&self, text: &str) -> Value {
        self.ok_as(Scope::Root, &guest(), text)
    }

    fn ok_as(&self, scope: Scope, caller: &Caller, text: &str) -> Value {
        let (written, mut lines) = self.write(scope, caller, text);
        assert_eq!(written, Ok(text.len()), "{text}: {lines:?}");
        assert_eq!(lines.len(), 1, "{text}");
        let line = lines.remove(0);
        assert_eq!(line["ok"], true, "{text}: {line}");
        line
    }

    /// The error of one command that is refused.
    fn refused_as(&self, scope: Scope, caller: &Caller, text: &str) -> (i32, String, Value) {
        let (written, mut lines) = self.write(scope, caller, text);
        assert_eq!(lines.len(), 1, "{text}");
        let error = lines.remove(0)["error"].take();
        let errno = written.expect_err(&format!("{text} was not refused"));
        for field in ["code", "message", "next_action"] {
            let text = error[field].as_str().unwrap();
            assert!(!text.is_empty());
        }
        (errno, error["rule"].as_str().unwrap().to_owned(), error)
    }

    fn refused(&self, text: &str) -> (i32, String, Value) {
        self.refused_as(Scope::Root, &guest(), text)
    }

    /// What a command comes to, also where the machine is slow and it became a job.
    fn outcome(&self, text: &str) -> (Result<usize, i32>, Value) {
        let (written, mut lines) = self.write(Scope::Root, &guest(), text);
        let line = lines.remove(0);
        match line["state"] == "running" {
            true => self.wait(&line),
            false => (written, line),
        }
    }

    fn events(&self) -> Vec<Value> {
        let store = self.control.store();
        let size = store.events_size(None);
        let bytes = store
            .read_events(None, 0, size.try_into().unwrap())
            .unwrap();
        let text = String::from_utf8(bytes).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    fn kinds(&self) -> Vec<String> {
        let events = self.events();
        events
            .iter()
            .map(|e| e["kind"].as_str().unwrap().to_owned())
            .collect()
    }

    fn file(&self, file: ControlFile, caller: &Caller) -> String {
        String::from_utf8(self.control.read_file(file, caller)).unwrap()
    }

    /// Waits for a job; what the command itself would have answered.
    fn wait(&self, job: &Value) -> (Result<usize, i32>, Value) {
        let text = format!("wait {}", job["job"].as_str().unwrap());
        loop {
            let (written, mut lines) = self.write(Scope::Root, &guest(), &text);
            let line = lines.remove(0);
            if line["state"] != "running" {
                return (written, line);
            }
        }
    }

    /// Opens a file for writing, as this role.
    fn hold(&self, workspace: &str, role: Role, path: &str) -> WriterGuard {
        let id = WorkspaceId::parse(workspace).unwrap();
        let gate = self.control.gates().get(id).unwrap();
        let access = gate.admit_open(role).unwrap();
        let pass = access.pass(std::process::id());
        access.register(pass, Arc::new(Held(format!("{workspace}/{path}"))))
    }
}

/// A file that is open for writing and never mapped.
#[derive(Debug)]
struct Held(String);

impl HeldFile for Held {
    fn ino(&self) -> u64 {
        // No inode of this machine.
        u64::MAX - self.0.len() as u64
    }
    fn path(&self) -> String {
        self.0.clone()
    }
    fn is_quiet(&self) -> bool {
        true
    }
}

/// A process that sleeps until it is ended.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Self {
        Self(Command::new("sleep").arg("1000").spawn().unwrap())
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn c(number: u32) -> WindowId {
    WindowId::new(number).unwrap()
}

fn caller(role: Role) -> Caller {
    Caller {
        who: Who {
            role,
            binding: None,
            by: "process",
            pid: std::process::id(),
            start: 1,
            parent: std::os::unix::process::parent_id(),
        },
        tid: std::process::id(),
        uid: nix::unistd::getuid().as_raw(),
        gid: nix::unistd::getgid().as_raw(),
    }
}

fn guest() -> Caller {
    caller(Role::Guest)
}

fn member(number: u32) -> Caller {
    caller(Role::Member(c(number)))
}

/// Waits for something that happens aside.
fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(30);
    while !happened() {
        assert!(Instant::now() < limit, "waited in vain: {what}");
        thread::yield_now();
    }
}

#[test]
fn allocate_answers_the_same_again() {
    let house = House::new();
    let first = house.ok("allocate c7 title=\"fix login\"");
    let mut expected = json!({
        "ok": true, "window": "c7", "workspace": "ws7", "ref": "ws7",
        "path": "/mnt/panefs/ws7", "state": "live", "created": true,
    });
    assert_eq!(first, expected);
    expected["created"] = false.into();
    assert_eq!(house.ok("allocate c7"), expected);
    assert_eq!(house.ok("allocate c3")["workspace"], "ws8");
    assert_eq!(house.ok("allocate")["window"], "c8");
    assert!(house.store.path().join("store/workspaces/ws7").is_dir());
    assert_eq!(house.ok("show c7")["item"]["title"], "fix login");
    assert_eq!(house.kinds()[..2], ["window.opened", "workspace.created"]);
    assert!(house.tree.0.lock().contains(&"windows".to_owned()));
}

#[test]
fn replies_begin_with_ok() {
    let house = House::new();
    let channel = house.control.open_channel(Scope::Root, true);
    house
        .control
        .write(&channel, &guest(), b"allocate\nnonsense")
        .unwrap();
    assert!(
        house
            .control
            .read(&channel, 4096)
            .starts_with(b"{\"ok\":true,\"window\":\"c1\"")
    );
    assert_eq!(
        house.control.write(&channel, &guest(), b"nonsense"),
        Err(libc::EINVAL)
    );
    let line = house.control.read(&channel, 4096);
    assert!(
        line.starts_with(
            b"{\"ok\":false,\"error\":{\"code\":\"invalid\",\"rule\":\"verb.unknown\""
        )
    );
    assert!(line.ends_with(b"}\n"));
}

#[test]
fn every_refusal_has_its_errno_and_rule() {
    let house = House::new();
    house.ok("allocate c1");
    house.ok("allocate c2");
    house.ok("handoff c1 c3");
    house.ok("release c2");
    for (text, errno, rule) in [
        ("frobnicate", libc::EINVAL, "verb.unknown"),
        ("allocate c0", libc::EINVAL, "window.ref.invalid"),
        ("allocate c99999999999", libc::EINVAL, "window.ref.invalid"),
        ("show 'ws1 '", libc::EINVAL, "workspace.ref.unknown"),
        ("allocate title=''", libc::EINVAL, "title.invalid"),
        ("allocate colour=red", libc::EINVAL, "argument.invalid"),
        ("{\"verb\":", libc::EINVAL, "argument.invalid"),
        ("release", libc::EINVAL, "argument.missing"),
        ("release c9", libc::ENOENT, "window.not_found"),
        ("path ws9", libc::ENOENT, "workspace.not_found"),
        ("wait j9", libc::ENOENT, "job.not_found"),
        ("bind c3 pid=2147483647", libc::ENOENT, "process.not_found"),
        ("reclaim c3", libc::EBUSY, "workspace.held"),
        ("handoff c1 c9", libc::EBUSY, "chain.not_holder"),
        ("allocate c1", libc::ESTALE, "window.ended"),
        ("bind c2 pid=0", libc::ESTALE, "window.ended"),
        ("release c1", libc::ESTALE, "window.ended"),
        ("run c1 build", libc::EOPNOTSUPP, "unsupported"),
        ("cd c3", libc::EOPNOTSUPP, "unsupported"),
        ("map ws1 depth=3", libc::EOPNOTSUPP, "unsupported"),
        ("handoff c3 mode=fence", libc::EOPNOTSUPP, "unsupported"),
        ("quota c3 bytes=1GiB", libc::EOPNOTSUPP, "unsupported"),
        ("allocate quota.bytes=1GiB", libc::EOPNOTSUPP, "unsupported"),
        (
            "allocate visibility=private",
            libc::EOPNOTSUPP,
            "unsupported",
        ),
    ] {
        let before = house.events().len();
        let (got_errno, got_rule, error) = house.refused(text);
        assert_eq!(
            (got_errno, got_rule.as_str()),
            (errno, rule),
            "{text}: {error}"
        );
        assert_eq!(house.events().len(), before, "{text} changed something");
    }
    let (_, _, error) = house.refused("allocate c1");
    assert_eq!(error["holder"], "c3");
    assert_eq!(
        (&error["workspace"], &error["path"]),
        (&json!("ws1"), &json!("/mnt/panefs/ws1"))
    );

    let long = "x".repeat(WRITE_LIMIT + 1);
    assert_eq!(house.refused(&long).1, "line.too_long");
    let channel = house.control.open_channel(Scope::Root, true);
    assert_eq!(
        house.control.write(&channel, &guest(), b"\xff\xfe\x00"),
        Err(libc::EINVAL)
    );
}

#[test]
fn a_write_stops_before_the_first_refused_command() {
    let house = House::new();
    let text = "# two\n\nallocate c1\nallocate c2\nrelease c9\nallocate c3\n";
    let before = text.find("release").unwrap();
    let (written, lines) = house.write(Scope::Root, &guest(), text);
    assert_eq!(written, Ok(before));
    assert_eq!(lines.len(), 2);
    // The writer comes back with the rest, and now it is answered.
    let (written, lines) = house.write(Scope::Root, &guest(), &text[before..]);
    assert_eq!(written, Err(libc::ENOENT));
    assert_eq!(lines[0]["error"]["rule"], "window.not_found");
    assert!(house.control.world(|world| world.window(c(3)).is_none()));
    assert_eq!(
        house.write(Scope::Root, &guest(), "\n# only this"),
        (Ok(12), vec![])
    );
    assert_eq!(house.write(Scope::Root, &guest(), ""), (Ok(0), vec![]));
}

#[test]
fn sixty_four_at_once_get_sixty_four_windows() {
    let house = House::new();
    let windows: BTreeSet<String> = thread::scope(|scope| {
        let callers: Vec<_> = (0..64)
            .map(|_| scope.spawn(|| house.ok("allocate")["window"].as_str().unwrap().to_owned()))
            .collect();
        callers
            .into_iter()
            .map(|caller| caller.join().unwrap())
            .collect()
    });
    assert_eq!(windows, (1..=64).map(|n| format!("c{n}")).collect());
    let seqs: Vec<_> = house
        .events()
        .iter()
        .map(|e| e["seq"].as_u64().unwrap())
        .collect();
    assert_eq!(seqs, (1..=128).collect::<Vec<_>>());
}

#[test]
fn a_window_works_for_itself_alone() {
    let house = House::new();
    house.ok("allocate c1");
    house.ok("allocate c2");
    let own = Scope::Window(c(1));
    for (scope, caller) in [(own, guest()), (own, member(1)), (Scope::Root, member(1))] {
        for text in [
            "allocate",
            "bind c1 pid=0",
            "reclaim",
            "expire",
            "view c1 dir=/x",
        ] {
            let refused = house.refused_as(scope, &caller, text);
            assert_eq!(
                (refused.0, refused.1.as_str()),
                (libc::EPERM, "command.not_allowed")
            );
        }
        for text in ["handoff c2 c9", "release c2", "cd c2", "run c2 x"] {
            let refused = house.refused_as(scope, &caller, text);
            assert_eq!(
                (refused.0, refused.1.as_str()),
                (libc::EPERM, "window.not_yours")
            );
        }
        for text in ["quota ws2 files=3", "quota bytes=none"] {
            assert_eq!(
                house.refused_as(scope, &caller, text).1,
                "command.not_allowed"
            );
        }
        for text in [
            "show c2",
            "path ws2",
            "list windows",
            "quota c2",
            "show",
            "path",
            "help",
        ] {
            house.ok_as(scope, &caller, text);
        }
        assert_eq!(house.ok_as(scope, &caller, "path")["window"], "c1");
    }
    // A member of c2 at c1's file is still a member of c2.
    assert_eq!(
        house.refused_as(own, &member(2), "release").1,
        "window.not_yours"
    );
    let reply = house.ok_as(own, &member(1), "handoff c5 title='go on'");
    assert_eq!((&reply["from"], &reply["to"]), (&json!("c1"), &json!("c5")));
}

#[test]
fn path_tells_who_may_write() {
    let house = House::new();
    house.ok("allocate c1");
    house.ok("handoff c1 c2");
    let path = |caller: &Caller, text: &str| {
        let reply = house.ok_as(Scope::Root, caller, text);
        assert_eq!(reply["path"], "/mnt/panefs/ws1");
        (
            reply["writable"].as_bool().unwrap(),
            reply["notice"].clone(),
        )
    };
    assert_eq!(path(&member(2), "path c2"), (true, Value::Null));
    assert_eq!(
        path(&caller(Role::Operator), "path ws1"),
        (true, Value::Null)
    );
    let (writable, notice) = path(&member(1), "path c1");
    assert!(!writable && notice.as_str().unwrap().contains("c2 holds ws1"));
    assert!(!path(&guest(), "path ws1").0);
    house.ok("release c2");
    assert!(
        path(&member(2), "path c2")
            .1
            .as_str()
            .unwrap()
            .contains("no holder")
    );
}

#[test]
fn a_handoff_is_busy_while_its_window_writes() {
    let house = House::new();
    house.ok("allocate c1");
    let held = house.hold("ws1", Role::Member(c(1)), "src/a");
    let (errno, rule, error) = house.refused("handoff c1 c2");
    assert_eq!((errno, rule.as_str()), (libc::EBUSY, "handoff.busy"));
    assert_eq!(error["pid"], std::process::id());
    assert_eq!(error["path"], "/mnt/panefs/ws1/src/a");
    assert!(!error["command"].as_str().unwrap().is_empty());
    assert!(house.control.world(|world| world.window(c(2)).is_none()));
    drop(held);
    let reply = house.ok("handoff c1 c2");
    assert_eq!(reply["operators_open"], json!([]));
    assert_eq!(house.ok("handoff c1 c2"), reply, "repeated");
    assert_eq!(house.refused("handoff c1").1, "chain.not_holder");
    let gate = house
        .control
        .gates()
        .get(WorkspaceId::parse("ws1").unwrap())
        .unwrap();
    assert_eq!(gate.snapshot().holder, Some(c(2)));
    assert!(gate.admit(Role::Member(c(1))).is_err());
}

#[test]
fn a_close_under_way_does_not_make_it_busy() {
    let house = House::new();
    house.ok("allocate c1");
    let held = house.hold("ws1", Role::Member(c(1)), "a");
    thread::scope(|scope| {
        scope.spawn(|| drop(held));
        house.ok("handoff c1 c2");
    });
}

#[test]
fn an_operators_files_are_listed_and_not_in_the_way() {
    let house = House::new();
    house.ok("allocate c1");
    let _held = house.hold("ws1", Role::Operator, "log");
    let reply = house.ok("handoff c1 c2");
    assert_eq!(reply["operators_open"][0]["path"], "/mnt/panefs/ws1/log");
    assert_eq!(reply["operators_open"][0]["pid"], std::process::id());
}

#[test]
fn a_waiting_handoff_is_a_job() {
    let house = House::new();
    house.ok("allocate c1");
    let held = house.hold("ws1", Role::Member(c(1)), "a");
    let job = house.ok("handoff c1 c2 mode=wait timeout=1h");
    assert_eq!(
        (&job["job"], &job["state"]),
        (&json!("j1"), &json!("running"))
    );
    let gate = house
        .control
        .gates()
        .get(WorkspaceId::parse("ws1").unwrap())
        .unwrap();
    assert_eq!(
        gate.admit_open(Role::Member(c(1))).unwrap_err(),
        Denied::Closing { holder: c(1) }
    );
    assert!(gate.admit(Role::Member(c(1))).is_ok());
    let state = house.ok("wait j1 timeout=0");
    assert_eq!(state["state"], "running");
    assert_eq!(house.ok("list jobs state=running")["items"][0]["job"], "j1");
    drop(held);
    let (written, reply) = house.wait(&job);
    assert!(written.is_ok());
    assert_eq!(
        (&reply["to"], &reply["state"]),
        (&json!("c2"), &json!("done"))
    );
    assert!(!gate.snapshot().closing);
    let (log, _) = house.control.job_log(JobId::new(1).unwrap()).unwrap();
    let log = String::from_utf8(log).unwrap();
    let lines: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines[0]["stream"], "progress");
    assert_eq!(lines.last().unwrap()["result"]["to"], "c2");
    assert!(house.kinds().contains(&"job.finished".to_owned()));
}

#[test]
fn a_handoff_that_times_out_or_is_cancelled_changed_nothing() {
    let house = House::new();
    house.ok("allocate c1");
    let _held = house.hold("ws1", Role::Member(c(1)), "a");
    let (written, reply) = house.outcome("handoff c1 mode=wait timeout=0s");
    assert_eq!(written, Err(libc::ETIMEDOUT));
    assert_eq!(reply["error"]["rule"], "handoff.timeout");
    assert_eq!(reply["error"]["path"], "/mnt/panefs/ws1/a");
    let job = house.ok("handoff c1 mode=wait timeout=1h");
    let cancel = format!("cancel {}", job["job"].as_str().unwrap());
    assert_eq!(
        house.refused_as(Scope::Root, &member(2), &cancel).1,
        "window.not_yours"
    );
    house.ok_as(Scope::Window(c(1)), &member(1), &cancel);
    let (written, reply) = house.wait(&job);
    assert_eq!(written, Err(libc::ETIMEDOUT));
    assert_eq!(reply["error"]["rule"], "handoff.timeout");
    assert_eq!(
        (&reply["job"], &reply["state"]),
        (&job["job"], &json!("failed"))
    );
    let gate = house
        .control
        .gates()
        .get(WorkspaceId::parse("ws1").unwrap())
        .unwrap();
    assert!(!gate.snapshot().closing);
    assert!(gate.admit_open(Role::Member(c(1))).is_ok());
}

#[test]
fn members_move_or_end_with_a_handoff() {
    let house = House::new();
    house.ok("allocate c1");
    let server = Sleeper::start();
    let bound = house.ok(&format!("bind c1 pid={}", server.pid()));
    assert_eq!(bound["members"], json!([server.pid()]));
    let role = || house.control.members().who(server.pid()).role;
    assert_eq!(role(), Role::Member(c(1)));

    // What it holds open goes with it.
    let gate = house
        .control
        .gates()
        .get(WorkspaceId::parse("ws1").unwrap())
        .unwrap();
    let pass = gate.admit(role()).unwrap().pass(server.pid());
    let held = gate
        .admit(role())
        .unwrap()
        .register(pass, Arc::new(Held("ws1/log".into())));
    assert_eq!(
        house.refused("handoff c1 c2 members=keep").1,
        "handoff.busy"
    );
    let reply = house.ok("handoff c1 c2 members=move");
    assert_eq!(reply["moved"], json!([server.pid()]));
    assert_eq!(role(), Role::Member(c(2)));
    assert!(gate.admit_handle(pass).is_ok());
    assert!(house.tree.0.lock().contains(&"moved c1 c2".to_owned()));
    // And is still in the way of the next one.
    assert_eq!(house.refused("handoff c2").1, "handoff.busy");
    drop(held);

    // Reaped by a thread, as its parent would.
    let pid = server.pid();
    thread::scope(|scope| {
        let mut server = server;
        scope.spawn(move || server.0.wait().unwrap());
        let (_, reply) = house.outcome("handoff c2 c3 members=end");
        assert_eq!(reply["ended"], json!([pid]));
    });
    until("the binding ends", || {
        house.control.members().bindings().is_empty()
    });
    assert!(house.kinds().contains(&"window.unbound".to_owned()));
}

#[test]
fn nobody_is_ended_for_a_handoff_that_is_refused() {
    let house = House::new();
    house.ok("allocate c1");
    let server = Sleeper::start();
    house.ok(&format!("bind c1 pid={}", server.pid()));
    // Held by this process, which is no member.
    let _held = house.hold("ws1", Role::Member(c(1)), "a");
    let (written, reply) = house.outcome("handoff c1 members=end");
    assert_eq!(written, Err(libc::EBUSY));
    assert_eq!(reply["error"]["rule"], "handoff.busy");
    assert_eq!(
        house.refused("handoff c9 members=end").1,
        "window.not_found"
    );
    assert_eq!(
        house.control.members().who(server.pid()).role,
        Role::Member(c(1))
    );
}

#[test]
fn reclaim_restore_and_purge() {
    let house = House::new();
    house.ok("allocate c1");
    let store = house.store.path().join("store");
    std::fs::write(store.join("workspaces/ws1/file"), "kept").unwrap();
    assert_eq!(house.refused("reclaim ws1").1, "workspace.held");
    let reply = house.ok("reclaim ws1 force=true");
    assert_eq!(
        (&reply["state"], &reply["unsaved"]),
        (&json!("reclaimed"), &json!([]))
    );
    assert_eq!(house.ok("reclaim ws1")["state"], "reclaimed");
    assert!(
        house
            .control
            .gates()
            .get(WorkspaceId::parse("ws1").unwrap())
            .is_none()
    );
    assert!(house.tree.0.lock().contains(&"gone ws1".to_owned()));
    assert!(!store.join("workspaces/ws1").exists());

    assert_eq!(house.ok("restore ws1")["state"], "released");
    assert_eq!(
        std::fs::read(store.join("workspaces/ws1/file")).unwrap(),
        b"kept"
    );
    assert_eq!(house.ok("handoff c1 c2")["workspace"], "ws1");
    assert_eq!(house.refused("purge ws1").1, "workspace.held");

    house.ok("reclaim c2 force=true");
    house.ok("purge ws1");
    house.ok("purge ws1");
    until("the files are deleted", || {
        !store.join("trash/ws1").exists()
    });
    assert_eq!(house.refused("restore ws1").1, "workspace.ref.expired");
    house.ok("allocate c9");
    house.ok("reclaim c9 force=true purge=true");
    until("the trash is empty", || {
        std::fs::read_dir(store.join("trash"))
            .unwrap()
            .next()
            .is_none()
    });
}

#[test]
fn a_forced_reclaim_ends_the_members_first() {
    let house = House::new();
    house.ok("allocate c1");
    let mut server = Sleeper::start();
    house.ok(&format!("bind c1 pid={}", server.pid()));
    thread::scope(|scope| {
        scope.spawn(|| server.0.wait().unwrap());
        let (_, reply) = house.outcome("reclaim c1 force=true");
        assert_eq!(reply["ended"], "c1");
    });
}

#[test]
fn mkdir_and_rmdir_of_windows() {
    let house = House::new();
    let control = &house.control;
    assert!(control.open_window(&guest(), c(12)).unwrap());
    assert!(!control.open_window(&guest(), c(12)).unwrap());
    let refused = control.open_window(&member(12), c(13)).unwrap_err();
    assert_eq!(refused.rule, Rule::CommandNotAllowed);
    let file = house.store.path().join("store/workspaces/ws12/file");
    std::fs::write(&file, "").unwrap();
    assert!(matches!(
        control.remove_window(&guest(), c(12)),
        Err(Removal::NotEmpty)
    ));
    std::fs::remove_file(&file).unwrap();
    let server = Sleeper::start();
    house.ok(&format!("bind c12 pid={}", server.pid()));
    let Err(Removal::Refused(refusal)) = control.remove_window(&guest(), c(12)) else {
        panic!("removed under its member");
    };
    assert_eq!(refusal.rule, Rule::WorkspaceHeld);
    drop(server);
    until("its member has ended", || {
        control.members().members_of(c(12)).is_empty()
    });
    // A predecessor's directory is not the holder's.
    house.ok("handoff c12 c13");
    let Err(Removal::Refused(refusal)) = control.remove_window(&guest(), c(12)) else {
        panic!("taken from its holder");
    };
    assert_eq!(refusal.rule, Rule::WorkspaceHeld);
    control.remove_window(&guest(), c(13)).unwrap();
    assert_eq!(house.ok("show ws12")["item"]["state"], "reclaimed");
}

#[test]
fn procs_operators_and_acting() {
    let house = House::new();
    house.ok("allocate c1");
    house.ok("allocate c2");
    let write = |file, caller: &Caller, text: &str| {
        let written = house.control.write_file(file, caller, text.as_bytes());
        written.map_err(|refusal| refusal.rule)
    };
    let procs = ControlFile::Procs;
    let server = Sleeper::start();
    let pid = server.pid().to_string();
    write(procs(c(1)), &guest(), &pid).unwrap();
    write(procs(c(1)), &member(1), &format!("{pid}\n")).unwrap();
    assert_eq!(house.file(procs(c(1)), &guest()), format!("{pid}\n"));
    assert_eq!(write(procs(c(2)), &guest(), &pid), Err(Rule::WindowBound));
    assert_eq!(write(procs(c(2)), &member(1), "0"), Err(Rule::WindowBound));
    assert_eq!(write(procs(c(9)), &guest(), "0"), Err(Rule::WindowNotFound));
    assert_eq!(
        write(procs(c(1)), &guest(), "2147483647"),
        Err(Rule::ProcessNotFound)
    );
    for text in ["", "x", "-1", "1 2", "99999999999999999999"] {
        assert_eq!(
            write(procs(c(1)), &guest(), text),
            Err(Rule::ArgumentInvalid),
            "{text}"
        );
        let operators = ControlFile::Operators;
        assert_eq!(
            write(operators, &guest(), text),
            Err(Rule::ArgumentInvalid),
            "{text}"
        );
    }
    assert_eq!(
        write(ControlFile::Sessions(c(1)), &guest(), &pid),
        Err(Rule::ArgumentInvalid)
    );
    assert_eq!(
        write(ControlFile::Help, &guest(), "x"),
        Err(Rule::CommandNotAllowed)
    );
    let unseen = Caller {
        tid: 0,
        who: Who {
            pid: 0,
            ..guest().who
        },
        ..guest()
    };
    assert_eq!(write(procs(c(1)), &unseen, "0"), Err(Rule::ProcessNotFound));
    assert_eq!(
        write(procs(c(1)), &unseen, &pid),
        Err(Rule::ProcessNotFound)
    );

    // The owner moves it, and lets it go.
    house.ok(&format!("bind c2 pid={pid}"));
    assert_eq!(
        house.control.members().who(server.pid()).role,
        Role::Member(c(2))
    );
    assert_eq!(house.ok(&format!("unbind pid={pid}"))["unbound"], 1);
    assert_eq!(house.control.members().who(server.pid()).role, Role::Guest);
    assert_eq!(
        house.refused("unbind pid=2147483647").1,
        "process.not_found"
    );

    assert_eq!(
        write(ControlFile::Operators, &member(1), "0"),
        Err(Rule::CommandNotAllowed)
    );
    assert_eq!(
        write(ControlFile::Acting, &guest(), "c1"),
        Err(Rule::CommandNotAllowed)
    );
    write(ControlFile::Operators, &guest(), &pid).unwrap();
    assert_eq!(
        house.file(ControlFile::Operators, &guest()),
        format!("{pid}\n")
    );
    let mut operator = caller(Role::Operator);
    (operator.tid, operator.who.pid) = (server.pid(), server.pid());
    assert_eq!(
        write(ControlFile::Acting, &operator, "c0"),
        Err(Rule::WindowRefInvalid)
    );
    assert_eq!(
        write(ControlFile::Acting, &operator, "c9"),
        Err(Rule::WindowNotFound)
    );
    house.ok("handoff c2 c3");
    assert_eq!(
        write(ControlFile::Acting, &operator, "c2"),
        Err(Rule::WindowEnded)
    );
    write(ControlFile::Acting, &operator, "-").unwrap();
}

#[test]
fn what_is_listed_has_the_contracts_fields() {
    let house = House::new();
    house.ok("allocate c1 title=one keep=true");
    std::fs::write(house.store.path().join("store/workspaces/ws1/f"), "x").unwrap();
    let window: Value = serde_json::from_str(&house.file(ControlFile::Windows, &guest())).unwrap();
    for field in [
        "window",
        "workspace",
        "state",
        "continues",
        "continued_by",
        "title",
        "cwd",
        "owner",
        "members",
        "opened_at",
        "ended_at",
    ] {
        assert!(window.get(field).is_some(), "{field}");
    }
    assert_eq!(window["continues"], Value::Null);
    assert_eq!(
        house.file(ControlFile::WindowJson(c(1)), &guest()),
        house.file(ControlFile::Windows, &guest())
    );
    let text = house.file(ControlFile::Workspaces, &guest());
    let workspace: Value = serde_json::from_str(&text).unwrap();
    for field in [
        "workspace",
        "ref",
        "path",
        "state",
        "holder",
        "chain",
        "definition",
        "project",
        "params",
        "commands",
        "title",
        "bytes",
        "files",
        "created_at",
        "released_at",
    ] {
        assert!(workspace.get(field).is_some(), "{field}");
    }
    assert_eq!(workspace["chain"], json!(["c1"]));
    assert_eq!(workspace["files"], json!({"used": 2, "limit": null}));
    assert_eq!(house.ok("show ws1")["item"], workspace);
    let quota = house.ok("quota c1");
    assert_eq!(
        (&quota["files"], &quota["workspace"]),
        (&workspace["files"], &json!("ws1"))
    );
    assert!(workspace["created_at"].as_str().unwrap().ends_with('Z'));
    assert_eq!(
        house.ok("list workspaces state=released")["items"],
        json!([])
    );
    for what in ["windows", "workspaces", "members", "jobs", "sessions"] {
        house.ok(&format!("list {what}"));
    }
    let metrics = house.file(ControlFile::Metrics, &guest());
    assert!(metrics.contains("panefs_commands_total{verb=\"allocate\",outcome=\"ok\"} 1"));
    assert!(metrics.contains("panefs_windows{state=\"live\"} 1"));
    assert!(
        house.ok("help allocate")["text"]
            .as_str()
            .unwrap()
            .starts_with("allocate")
    );
    house.ok("refresh ws1");
    house.ok("view c1 dir=/x");
    house.ok("leave dir=/x");
    let notes = house.tree.0.lock();
    assert!(notes.contains(&"refresh ws1".to_owned()) && notes.contains(&"leave /x".to_owned()));
}

#[test]
fn whoami_tells_why_and_what_next() {
    let house = House::new();
    house.ok("allocate c1");
    house.ok("allocate c2");
    let who: Value = serde_json::from_str(&house.file(ControlFile::Whoami, &member(2))).unwrap();
    assert_eq!(
        (&who["role"], &who["path"]),
        (&json!("member"), &json!("/mnt/panefs/ws2"))
    );
    assert_eq!(who["last_refusal"], Value::Null);

    let refused = |caller: &Caller, denied| {
        house
            .control
            .refused(&caller.who, "open", "ws1/file".into(), denied);
        let who: Value = serde_json::from_str(&house.file(ControlFile::Whoami, caller)).unwrap();
        who["last_refusal"].clone()
    };
    let last = refused(
        &guest(),
        Denied::Guest {
            holder: WindowId::new(1).unwrap(),
        },
    );
    assert_eq!(
        (&last["rule"], &last["errno"]),
        (&json!("write.guest"), &json!("EROFS"))
    );
    assert_eq!(last["path"], "/mnt/panefs/ws1/file");
    let next = last["next_action"].as_str().unwrap();
    assert!(
        next.contains("echo 0 > /mnt/panefs/.panefs/windows/c1/procs"),
        "{next}"
    );
    assert!(next.contains("panefs enter c1"));

    let last = refused(&member(2), Denied::NotHolder { holder: c(1) });
    assert_eq!(last["holder"], "c1");
    assert!(
        last["next_action"]
            .as_str()
            .unwrap()
            .contains("/mnt/panefs/ws2")
    );
    house.ok("handoff c2 c3");
    let last = refused(&member(2), Denied::NotHolder { holder: c(3) });
    assert!(
        last["next_action"]
            .as_str()
            .unwrap()
            .contains("handed off to c3")
    );
    house.ok("release c1");
    let last = refused(&member(1), Denied::NoHolder);
    assert!(last["next_action"].as_str().unwrap().contains("handoff c1"));
    until("the refusals are events", || {
        house.kinds().contains(&"refused".to_owned())
    });
}

#[test]
fn expire_takes_what_is_old_and_keeps_unsaved_work() {
    let house = House::new();
    for n in 1..=4 {
        house.ok(&format!("allocate c{n} keep={}", n == 3));
    }
    let work = house.store.path().join("store/workspaces/ws2/repo");
    std::fs::create_dir(&work).unwrap();
    let init = Command::new("git")
        .args(["init", "-q"])
        .current_dir(&work)
        .status();
    assert!(init.unwrap().success());
    std::fs::write(work.join("file"), "new").unwrap();
    for n in 1..=3 {
        house.ok(&format!("release c{n}"));
    }
    let expire = |text: &str| house.outcome(text).1;
    let nothing = expire("expire");
    assert_eq!(
        (&nothing["workspaces"], &nothing["windows"]),
        (&json!([]), &json!([]))
    );
    let old = expire("expire older_than=0s idle=0s");
    assert_eq!(old["workspaces"], json!(["ws1"]));
    assert_eq!(old["kept"], json!(["ws2"]));
    assert_eq!(old["unsaved"][0]["repository"], "repo");
    assert_eq!(old["windows"], json!(["c4"]));
    assert_eq!(expire("expire older_than=1d")["workspaces"], json!([]));
    let all = expire("expire older_than=0s unsaved=true");
    assert_eq!(all["workspaces"], json!(["ws2", "ws4"]));
}

#[test]
fn what_was_acknowledged_survives_a_restart() {
    let house = House::new();
    house.ok("allocate c1 title=one");
    house.ok("allocate c2");
    house.ok("handoff c1 c3");
    house.ok("release c2");
    house.ok("allocate c4");
    house.ok("reclaim c4 force=true");
    let server = Sleeper::start();
    house.ok(&format!("bind c3 pid={}", server.pid()));
    let (windows, workspaces) = (
        house.file(ControlFile::Windows, &guest()),
        house.file(ControlFile::Workspaces, &guest()),
    );
    let events = house.events();
    let house = house.again();
    assert_eq!(house.file(ControlFile::Windows, &guest()), windows);
    assert_eq!(house.file(ControlFile::Workspaces, &guest()), workspaces);
    assert_eq!(house.events(), events);
    assert_eq!(
        house.control.members().who(server.pid()).role,
        Role::Member(c(3))
    );
    assert_eq!(house.ok("restore ws4")["state"], "released");
    assert_eq!(house.ok("handoff c1 c3")["to"], "c3", "repeated");
}

#[test]
fn jobs_of_an_earlier_daemon_have_failed() {
    let house = House::new();
    house.ok("allocate c1");
    let id = JobId::new(1).unwrap();
    // As a daemon leaves it that is killed.
    let row = crate::store::JobRow {
        id,
        command: "handoff c1 mode=wait".into(),
        state: crate::store::JobState::Running,
        result: None,
        log: String::new(),
        started: Timestamp::now(),
        ended: None,
    };
    let running = Transaction {
        jobs: vec![row],
        ..Transaction::default()
    };
    house
        .control
        .store()
        .commit(&running, Timestamp::now())
        .unwrap();
    let house = house.again();
    let (errno, rule, _) = house.refused("wait j1");
    assert_eq!((errno, rule.as_str()), (libc::EIO, "internal"));
    assert_eq!(house.ok("show j1")["item"]["state"], "failed");
    assert_eq!(house.kinds().last().unwrap(), "job.finished");
    assert_eq!(house.control.jobs(), [id]);
    let _held = house.hold("ws1", Role::Member(c(1)), "a");
    assert_eq!(house.ok("handoff c1 mode=wait")["job"], "j2");
    house.close();
}
