//! The rules against real processes.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::*;
use crate::sys::pidfd::{PidFd, wait_any_ended};

const LONG: Duration = Duration::from_secs(20);

/// A shell and what it starts. All of it reads descriptor 3, and ends when that does: when this is
/// dropped.
struct Script {
    child: Child,
    stdin: Option<ChildStdin>,
    out: BufReader<ChildStdout>,
}

impl Script {
    fn sh(script: &str) -> Self {
        Self::run(
            Command::new("sh")
                .arg("-c")
                .arg(format!("exec 3<&0; {script}")),
        )
    }

    /// The same as the leader of a session of its own.
    fn leader(script: &str) -> Self {
        Self::run(
            Command::new("setsid")
                .args(["sh", "-c"])
                .arg(format!("exec 3<&0; {script}")),
        )
    }

    /// A process that adopts the orphans of what it starts.
    fn reaper(script: &str) -> Self {
        let code = "import ctypes, os, subprocess, sys\n\
                    ctypes.CDLL(None).prctl(36, 1)\n\
                    os.dup2(0, 3)\n\
                    subprocess.Popen(['sh', '-c', sys.argv[1]], pass_fds=[3])\n\
                    os.read(3, 1)\n";
        Self::run(Command::new("/usr/bin/python3").args(["-c", code, script]))
    }

    fn run(command: &mut Command) -> Self {
        let mut child = command
            .env("STAY", "echo $$; exec cat <&3")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            stdin: child.stdin.take(),
            out: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next number that some process of it prints.
    fn number(&mut self) -> u32 {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line.trim().parse().unwrap()
    }

    /// Lets one process go on that reads a line from descriptor 3.
    fn go(&mut self) {
        self.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    /// Ends the shell alone, and reaps it.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        self.stdin.take();
        self.child.wait().unwrap();
    }
}

/// A shell command, fit for being quoted: tells its id, and lives until descriptor 3 ends.
const STAY: &str = r#"sh -c "$STAY""#;

fn c(number: u32) -> WindowId {
    WindowId::new(number).unwrap()
}

fn members() -> Arc<Members> {
    Members::new(Vec::new())
}

fn bind(members: &Members, kind: BindingKind, id: u32, window: u32) -> Binding {
    let window = WindowId::new(window);
    let binding = members.binding_for_process(kind, id, window).unwrap();
    members.put(binding.clone());
    binding
}

/// Asked twice, so that what is remembered is asked too.
fn ask(members: &Members, tid: u32) -> (Option<u32>, &'static str) {
    let first = members.who(tid);
    let again = members.who(tid);
    assert_eq!((first.role, first.by), (again.role, again.by));
    assert_eq!(first.pid, again.pid);
    let window = match again.role {
        Role::Member(window) | Role::Acting(window) => Some(window.number()),
        Role::Operator => Some(0),
        Role::Guest => None,
    };
    (window, again.by)
}

const GUEST: (Option<u32>, &str) = (None, "none");

/// Commits what it is told, and tells the test.
fn listen(members: &Arc<Members>) -> Receiver<Ended> {
    let (tell, told) = channel();
    let weak = Arc::downgrade(members);
    members.set_watcher(Box::new(move |ended| {
        if let Some(members) = weak.upgrade() {
            ended.added.iter().for_each(|b| members.put(b.clone()));
            ended.removed.iter().for_each(|b| members.remove(b));
        }
        tell.send(ended).ok();
    }));
    told
}

fn await_end(pid: u32) {
    if let Ok(fd) = PidFd::of_process(pid) {
        wait_any_ended(&[&fd], LONG).unwrap();
        assert!(!fd.is_alive());
    }
}

#[test]
fn nobody_is_a_guest() {
    let members = members();
    let who = members.who(0);
    assert_eq!((who.role, who.pid), (Role::Guest, 0));
    assert!(!members.caller_sees_our_pids(0));
    assert!(members.caller_sees_our_pids(std::process::id()));
    let mut over = Command::new("true").spawn().unwrap();
    over.wait().unwrap();
    assert_eq!(members.who(over.id()).pid, 0);
    for kind in [BindingKind::Process, BindingKind::Thread] {
        let refusal = members.binding_for_process(kind, over.id(), Some(c(1)));
        assert_eq!(refusal.unwrap_err().rule, Rule::ProcessNotFound);
        let refusal = members.binding_for_process(kind, 0, Some(c(1)));
        assert_eq!(refusal.unwrap_err().rule, Rule::ProcessNotFound);
    }
}

#[test]
fn a_bound_process_and_what_it_starts() {
    let members = members();
    let mut shell = Script::sh(&format!("{STAY} & sh -c 'echo $$; {STAY} & wait' & wait"));
    let mut pids = [shell.number(), shell.number(), shell.number()];
    // Somebody without children first.
    pids.sort_by_key(|&pid| proc::children(pid, pid).unwrap().len());
    assert_eq!(ask(&members, shell.pid()), GUEST);
    let binding = bind(&members, BindingKind::Process, shell.pid(), 7);
    assert_eq!(ask(&members, shell.pid()), (Some(7), "process"));
    for pid in pids {
        assert_eq!(ask(&members, pid), (Some(7), "ancestor"));
    }
    assert_eq!(ask(&members, std::process::id()), GUEST);
    let who = members.who(pids[2]);
    assert_eq!((who.pid, who.parent), (pids[2], shell.pid()));
    assert_eq!(who.binding, Some(BindingKind::Process));
    assert_eq!(
        members.find(BindingKind::Process, shell.pid()),
        Some(binding.clone())
    );
    assert_eq!(members.find(BindingKind::Operator, shell.pid()), None);
    assert_eq!(members.bindings_of(c(7)), std::slice::from_ref(&binding));

    // Another window's, a child's own, and nobody's.
    let rebound = bind(&members, BindingKind::Process, shell.pid(), 8);
    assert_eq!(members.displaced_by(&binding), Some(rebound.clone()));
    bind(&members, BindingKind::Process, pids[0], 9);
    assert_eq!(ask(&members, pids[0]), (Some(9), "process"));
    assert_eq!(ask(&members, pids[1]), (Some(8), "ancestor"));
    members.move_window(c(8), c(10));
    assert_eq!(ask(&members, pids[1]), (Some(10), "ancestor"));
    assert_eq!(members.bindings_of(c(8)), []);
    members.remove(&rebound);
    assert_eq!(
        ask(&members, pids[1]),
        (Some(10), "ancestor"),
        "that one was moved"
    );
    members.remove(&members.bindings_of(c(10))[0]);
    assert_eq!(ask(&members, pids[1]), GUEST);
    assert_eq!(ask(&members, pids[0]), (Some(9), "process"));
}

#[test]
fn members_are_found_by_one_scan() {
    let members = members();
    assert!(members.all_members().is_empty());
    let mut shell = Script::sh(&format!("{STAY} & wait"));
    let child = shell.number();
    bind(&members, BindingKind::Process, shell.pid(), 7);
    let found = members.members_of(c(7));
    let mut pids: Vec<_> = found.iter().map(|m| (m.pid, m.tid, m.by)).collect();
    pids.retain(|&(pid, ..)| pid == shell.pid() || pid == child);
    let mut expected = vec![(shell.pid(), None, "process"), (child, None, "ancestor")];
    expected.sort_unstable();
    assert_eq!(pids, expected);
    assert!(found.iter().any(|m| m.command == "sh"));
    assert_eq!(members.members_of(c(8)), []);
}

#[test]
fn an_orphan_of_a_bound_process_has_its_session_or_nothing() {
    // The middle shell ends at once, and its child is nobody's.
    let script = format!(
        "sh -c '{}' ; echo 0; cat <&3",
        "sh -c \"echo \\$\\$; exec cat <&3\" &"
    );
    let orphan = |mut shell: Script| {
        let mut pids = [shell.number(), shell.number()];
        pids.sort_unstable();
        assert_eq!(pids[0], 0, "the shell has waited for the starter");
        (shell, pids[1])
    };
    let members = members();
    let (plain, pid) = orphan(Script::sh(&script));
    bind(&members, BindingKind::Process, plain.pid(), 1);
    assert_eq!(ask(&members, pid), GUEST);

    let (leader, pid) = orphan(Script::leader(&script));
    bind(&members, BindingKind::Process, leader.pid(), 2);
    assert_eq!(ask(&members, pid), (Some(2), "session"));
}

#[test]
fn a_session_stays_together_when_its_leader_ends() {
    let members = members();
    let mut leader = Script::leader(&format!(
        "{STAY} & setsid {STAY} & sh -c '{STAY} & echo $$; cat <&3' & wait"
    ));
    let pids: Vec<_> = (0..4).map(|_| leader.number()).collect();
    let binding = bind(&members, BindingKind::Process, leader.pid(), 3);
    for &pid in &pids {
        assert_eq!(ask(&members, pid), (Some(3), "ancestor"));
    }
    let own = |pid: u32| proc::stat(pid).unwrap().session == pid;
    let away = *pids.iter().find(|&&pid| own(pid)).unwrap();
    // A zombie at first: it has ended, and nobody is its child any more.
    leader.child.kill().unwrap();
    await_end(leader.pid());
    for &pid in &pids {
        let expected = if pid == away {
            GUEST
        } else {
            (Some(3), ask(&members, pid).1)
        };
        assert_eq!(ask(&members, pid), expected);
    }
    assert_eq!(members.who(leader.pid()).role, Role::Guest, "it has ended");
    leader.child.wait().unwrap();
    let still: Vec<_> = pids.iter().filter(|&&pid| pid != away).collect();
    for &&pid in &still {
        assert_eq!(ask(&members, pid).0, Some(3));
    }
    // Now somebody listens.
    let told = listen(&members);
    let first = told.recv_timeout(LONG).unwrap();
    assert!(first.removed.is_empty());
    assert!(
        first
            .added
            .iter()
            .all(|b| b.window == Some(c(3)) && b.kind == BindingKind::Process)
    );
    assert!(!first.added.iter().any(|b| b.id == away));
    assert_eq!(told.recv_timeout(LONG).unwrap().removed, [binding]);
    for &&pid in &still {
        assert_eq!(ask(&members, pid).0, Some(3));
        assert_ne!(ask(&members, pid).1, "session");
    }
    assert_eq!(ask(&members, away), GUEST);
}

#[test]
fn the_end_of_a_binding_is_told() {
    let members = members();
    let told = listen(&members);
    let mut shell = Script::sh("cat <&3");
    let binding = bind(&members, BindingKind::Process, shell.pid(), 1);
    let operator = bind(&members, BindingKind::Operator, shell.pid(), 0);
    assert_eq!(
        members.bindings(),
        std::slice::from_ref(&operator),
        "it is what it became last"
    );
    assert_eq!(members.displaced_by(&binding), Some(operator.clone()));
    shell.kill();
    let ended = told.recv_timeout(LONG).unwrap();
    assert_eq!((ended.removed, ended.added), (vec![operator], vec![]));
    assert_eq!(members.bindings(), []);
    // Bound too late.
    members.put(binding.clone());
    assert_eq!(told.recv_timeout(LONG).unwrap().removed, [binding]);
}

#[test]
fn bindings_survive_a_restart_and_the_dead_do_not() {
    let mut leader = Script::leader(&format!("{STAY} & echo $!; wait"));
    let child = leader.number();
    let alone = Script::sh("cat <&3");
    let before = members();
    let of_leader = bind(&before, BindingKind::Process, leader.pid(), 1);
    let of_alone = bind(&before, BindingKind::Process, alone.pid(), 2);
    let mut forged = of_alone.clone();
    forged.start += 1;
    drop(before);
    leader.kill();

    let after = Members::new(vec![of_leader.clone(), of_alone.clone()]);
    assert_eq!(ask(&after, alone.pid()), (Some(2), "process"));
    assert_eq!(ask(&after, child), (Some(1), "session"));
    let told = listen(&after);
    assert_eq!(told.recv_timeout(LONG).unwrap().added[0].window, Some(c(1)));
    let ended =
        std::iter::from_fn(|| told.recv_timeout(LONG).ok()).find(|ended| !ended.removed.is_empty());
    assert_eq!(ended.unwrap().removed, [of_leader]);
    assert_eq!(ask(&after, child), (Some(1), "process"));
    assert_eq!(
        after.find(BindingKind::Process, alone.pid()),
        Some(of_alone)
    );

    let stale = Members::new(vec![forged.clone()]);
    assert_eq!(
        ask(&stale, alone.pid()),
        GUEST,
        "only the number is the same"
    );
    assert_eq!(listen(&stale).recv_timeout(LONG).unwrap().removed, [forged]);
}

#[test]
fn an_operator_is_not_inherited() {
    let members = members();
    let mut shell = Script::leader(&format!("sh -c 'echo $$; {STAY} & wait' & wait"));
    let (operator, child) = (shell.number(), shell.number());
    bind(&members, BindingKind::Process, shell.pid(), 1);
    assert_eq!(ask(&members, child), (Some(1), "ancestor"));
    let binding = bind(&members, BindingKind::Operator, operator, 0);
    assert_eq!(members.who(operator).role, Role::Operator);
    assert_eq!(
        ask(&members, child),
        GUEST,
        "though a bound shell leads its session"
    );
    bind(&members, BindingKind::Process, child, 2);
    assert_eq!(ask(&members, child), (Some(2), "process"));
    members.remove(&binding);
    assert_eq!(ask(&members, operator), (Some(1), "ancestor"));
}

/// A thread that does what it is told.
struct Worker {
    tid: u32,
    orders: Option<Sender<Box<dyn FnOnce() + Send>>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    fn new() -> Self {
        let (orders, todo) = channel::<Box<dyn FnOnce() + Send>>();
        let (tell, tid) = channel();
        let thread = std::thread::spawn(move || {
            tell.send(nix::unistd::gettid().as_raw().cast_unsigned())
                .unwrap();
            todo.iter().for_each(|order| order());
        });
        Self {
            tid: tid.recv().unwrap(),
            orders: Some(orders),
            thread: Some(thread),
        }
    }

    fn script(&self, start: impl FnOnce() -> Script + Send + 'static) -> Script {
        let (tell, told) = channel();
        let order = Box::new(move || tell.send(start()).unwrap());
        self.orders.as_ref().unwrap().send(order).unwrap();
        told.recv().unwrap()
    }

    fn end(&mut self) {
        let fd = PidFd::of_thread(self.tid);
        self.orders.take();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
            wait_any_ended(&[&fd.unwrap()], LONG).unwrap();
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.end();
    }
}

#[test]
fn a_bound_thread_and_what_it_starts() {
    let members = members();
    let (mut bound, other) = (Worker::new(), Worker::new());
    let binding = bind(&members, BindingKind::Thread, bound.tid, 4);
    assert_eq!(binding.tgid, std::process::id());
    assert_eq!(ask(&members, bound.tid), (Some(4), "thread"));
    assert_eq!(members.who(bound.tid).pid, std::process::id());
    assert_eq!(ask(&members, other.tid), GUEST);
    assert_eq!(ask(&members, std::process::id()), GUEST);

    let mut child = bound.script(|| Script::sh(&format!("{STAY} & wait")));
    let grandchild = child.number();
    assert_eq!(ask(&members, child.pid()), (Some(4), "ancestor"));
    assert_eq!(ask(&members, grandchild), (Some(4), "ancestor"));
    assert_eq!(members.who(grandchild).binding, Some(BindingKind::Thread));
    let away = bound.script(|| Script::leader("echo; cat <&3"));
    await_session(&away);
    assert_eq!(ask(&members, away.pid()), GUEST);
    let others = other.script(|| Script::sh("cat <&3"));
    assert_eq!(ask(&members, others.pid()), GUEST);

    let found = members.members_of(c(4));
    let thread = found.iter().find(|m| m.tid.is_some()).unwrap();
    assert_eq!(
        (thread.pid, thread.tid, thread.by),
        (std::process::id(), Some(bound.tid), "thread")
    );
    assert!(found.iter().any(|m| m.pid == grandchild));
    assert!(!found.iter().any(|m| m.pid == others.pid()));

    let told = listen(&members);
    bound.end();
    assert_eq!(told.recv_timeout(LONG).unwrap().removed, [binding]);
    assert_eq!(ask(&members, child.pid()), GUEST);
    assert_eq!(ask(&members, grandchild), GUEST);
}

/// Until setsid(1) has made the session.
fn await_session(leader: &Script) {
    let deadline = Instant::now() + LONG;
    while proc::stat(leader.pid()).unwrap().session != leader.pid() {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
}

#[test]
fn acting_threads_are_apart_from_their_operator() {
    let members = members();
    let (acting, other) = (Worker::new(), Worker::new());
    bind(&members, BindingKind::Operator, std::process::id(), 0);
    let binding = bind(&members, BindingKind::Acting, acting.tid, 5);
    let who = members.who(acting.tid);
    assert_eq!((who.role, who.by), (Role::Acting(c(5)), "acting"));
    assert_eq!(members.who(other.tid).role, Role::Operator);
    let child = acting.script(|| Script::sh("cat <&3"));
    assert_eq!(ask(&members, child.pid()), GUEST);
    assert!(members.all_members().is_empty());
    members.remove(&binding);
    assert_eq!(members.who(acting.tid).role, Role::Operator);
}

#[test]
fn nothing_leaves_the_session_that_exec_made() {
    let members = members();
    // Twice forked, in a session of its own, and with a starter that has ended.
    let mut reaper = Script::reaper(&format!("sh -c 'setsid {STAY} &'; {STAY}"));
    let pids = [reaper.number(), reaper.number()];
    let binding = bind(&members, BindingKind::Session, reaper.pid(), 6);
    assert_eq!(ask(&members, reaper.pid()), (Some(6), "exec"));
    for pid in pids {
        assert_eq!(ask(&members, pid), (Some(6), "exec"));
        assert_eq!(members.who(pid).binding, Some(BindingKind::Session));
    }
    // It wins over nearer ancestors, not over a binding of the very process.
    let starter = members.who(pids[0]).parent.max(members.who(pids[1]).parent);
    bind(&members, BindingKind::Process, starter, 7);
    for pid in pids {
        assert_eq!(ask(&members, pid), (Some(6), "exec"));
    }
    assert_eq!(ask(&members, starter), (Some(7), "process"));
    members.remove(&binding);
    assert_eq!(
        ask(&members, reaper.pid()).1,
        if starter == reaper.pid() {
            "process"
        } else {
            "none"
        }
    );
}

/// A control group of the test's own; none where it may not make one.
struct Cgroup(PathBuf);

impl Cgroup {
    fn all(name: &str) -> Vec<Self> {
        [
            "/sys/fs/cgroup/pids",
            "/sys/fs/cgroup/unified",
            "/sys/fs/cgroup",
        ]
        .iter()
        .map(|top| PathBuf::from(top).join(format!("panefs-{name}-{}", std::process::id())))
        .filter(|path| fs::create_dir(path).is_ok())
        .map(Self)
        .filter(|group| group.0.join("cgroup.procs").exists())
        .collect()
    }

    fn below(&self) -> Self {
        let below = self.0.join("below");
        fs::create_dir(&below).unwrap();
        Self(below)
    }

    fn add(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }

    fn bind(&self, members: &Members, window: u32) -> Binding {
        let path = self.0.to_str().unwrap();
        let binding = members.binding_for_cgroup(path, c(window)).unwrap();
        assert_eq!(
            cgroup::directory_of(&binding.cgroup).as_ref(),
            Some(&self.0)
        );
        members.put(binding.clone());
        binding
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        fs::remove_dir(&self.0).ok();
    }
}

#[test]
fn a_control_group_binds_whatever_is_in_it() {
    for group in Cgroup::all("members") {
        let members = members();
        let below = group.below();
        let binding = group.bind(&members, 1);
        assert_eq!(members.members_of(c(1)), []);
        {
            let mut shell = Script::sh(&format!("read x <&3; {STAY} & setsid {STAY} & wait"));
            assert_eq!(ask(&members, shell.pid()), GUEST);
            below.add(shell.pid());
            shell.go();
            let pids = [shell.number(), shell.number()];
            assert_eq!(ask(&members, shell.pid()), (Some(1), "cgroup"));
            shell.kill();
            for pid in pids {
                assert_eq!(ask(&members, pid), (Some(1), "cgroup"), "an orphan too");
            }
            // The nearer one; a process's own binding; and out of it again.
            let nearer = below.bind(&members, 2);
            assert_eq!(ask(&members, pids[0]), (Some(2), "cgroup"));
            bind(&members, BindingKind::Process, pids[0], 3);
            assert_eq!(ask(&members, pids[0]), (Some(3), "process"));
            let top = group.0.parent().unwrap().join("cgroup.procs");
            fs::write(top, pids[1].to_string()).unwrap();
            assert_eq!(ask(&members, pids[1]), GUEST);
            below.add(pids[1]);
            members.remove(&nearer);
            assert_eq!(ask(&members, pids[1]), (Some(1), "cgroup"));
            let ended = members.end_members(c(1), LONG);
            assert!(ended.iter().any(|m| m.pid == pids[1]));
            assert!(!ended.iter().any(|m| m.pid == pids[0]));
            members.remove(&binding);
            bind(&members, BindingKind::Process, pids[0], 1);
            members.end_members(c(1), LONG);
        }
        drop(below);
    }
}

#[test]
fn an_answer_is_void_once_somebody_it_rests_on_has_ended() {
    let members = members();
    let mut shell = Script::sh(&format!("sh -c '{STAY} & echo $!; cat <&3' & wait"));
    let (a, b) = (shell.number(), shell.number());
    assert_eq!(a, b);
    bind(&members, BindingKind::Process, shell.pid(), 1);
    assert_eq!(ask(&members, a), (Some(1), "ancestor"));
    assert_eq!(members.recall.len(), 1);
    let middle = members.who(a).parent;
    assert_ne!(middle, shell.pid());
    PidFd::of_process(middle)
        .unwrap()
        .signal(nix::sys::signal::Signal::SIGKILL)
        .unwrap();
    await_end(middle);
    assert_eq!(ask(&members, a), GUEST);
}

#[test]
fn no_more_is_remembered_than_may_be() {
    let members = members();
    let shell = Script::sh("cat <&3");
    bind(&members, BindingKind::Process, shell.pid(), 1);
    let limit = 4096;
    for _ in 0..3 {
        for pid in proc::processes().unwrap() {
            members.who(pid);
        }
        assert!(members.recall.len() <= limit);
    }
    let recall = Recall::new(0);
    for id in 0..100 {
        recall.put(Answer {
            version: 0,
            own: true,
            standing: None,
            session: None,
            pid: id,
            start: 0,
            parent: 0,
            pins: vec![Arc::new(Task::ended(id, 0, id))],
        });
        assert!(recall.len() <= 16);
    }
}

#[test]
fn members_are_ended_the_stubborn_ones_too() {
    let members = members();
    let stubborn = "trap \"\" TERM HUP; echo $$; while :; do sh -c \"exec cat <&3\"; done";
    let mut shell = Script::sh(&format!(
        "trap '' TERM; {STAY} & sh -c '{stubborn}' & wait; cat <&3"
    ));
    let pids = [shell.number(), shell.number()];
    let bystander = Script::sh("cat <&3");
    bind(&members, BindingKind::Process, shell.pid(), 1);
    let ended = members.end_members(c(1), Duration::from_millis(50));
    for pid in pids.into_iter().chain([shell.pid()]) {
        assert!(ended.iter().any(|m| m.pid == pid), "{pid} of {ended:?}");
    }
    assert_eq!(ask(&members, bystander.pid()), GUEST);
    assert!(proc::stat(bystander.pid()).is_ok());
    assert_eq!(members.members_of(c(1)), []);
    assert_eq!(members.end_members(c(1), LONG), []);
}

#[test]
fn a_reaper_is_ended_last() {
    let members = members();
    let mut reaper = Script::reaper("sh -c 'trap \"\" TERM; echo $$; cat <&3' & cat <&3");
    let child = reaper.number();
    bind(&members, BindingKind::Session, reaper.pid(), 1);
    let ended = members.end_members(c(1), Duration::from_millis(50));
    assert!(ended.iter().any(|m| m.pid == child));
    assert_eq!(ended.last().map(|m| m.pid), Some(reaper.pid()));
}

/// In a pid namespace of its own, where the next pid can be chosen. Several processes start within
/// one clock tick here, so that their start times are the same too.
#[test]
fn a_number_says_nothing_about_its_former_bearer() {
    const INSIDE: &str = "PANEFS_TEST_IN_PID_NAMESPACE";
    if std::env::var_os(INSIDE).is_none() {
        let user = match nix::unistd::geteuid().is_root() {
            true => &[][..],
            false => &["--user", "--map-root-user"][..],
        };
        let name = "member::tests::a_number_says_nothing_about_its_former_bearer";
        let inner = Command::new("unshare")
            .args(user)
            .args(["--pid", "--fork", "--mount-proc"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", name, "--test-threads=1"])
            .env(INSIDE, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&inner.stdout);
        assert!(
            inner.status.success() && said.contains("1 passed"),
            "{inner:?}"
        );
        return;
    }
    let members = members();
    let told = listen(&members);
    let mut number = None;
    for round in 0..300 {
        if let Some(number) = number {
            fs::write("/proc/sys/kernel/ns_last_pid", format!("{}", number - 1)).unwrap();
        }
        let mut shell = Script::sh("cat <&3");
        assert_eq!(*number.get_or_insert(shell.pid()), shell.pid());
        assert_eq!(ask(&members, shell.pid()), GUEST, "round {round}");
        assert!(members.find(BindingKind::Process, shell.pid()).is_none());
        assert_eq!(members.members_of(c(1)), []);
        if round % 2 == 0 {
            if round > 0 {
                // A binding of the same number and clock tick is the same to whoever removes it.
                told.recv_timeout(LONG).unwrap();
            }
            bind(&members, BindingKind::Process, shell.pid(), 1);
            assert_eq!(ask(&members, shell.pid()), (Some(1), "process"));
        }
        shell.kill();
    }
    while !members.bindings().is_empty() {
        told.recv_timeout(LONG).unwrap();
    }
}

#[test]
fn a_pid_namespace_hides_pids_not_membership() {
    let members = members();
    let user = match nix::unistd::geteuid().is_root() {
        true => "",
        false => "--user --map-root-user",
    };
    let script = format!("unshare {user} --pid --fork {STAY} & echo $!; wait");
    let mut shell = Script::sh(&script);
    let mut told = [shell.number(), shell.number()];
    told.sort_unstable();
    assert_eq!(told[0], 1, "as it sees itself");
    let outside = told[1];
    let inside = proc::children(outside, outside).unwrap()[0];
    bind(&members, BindingKind::Process, shell.pid(), 1);
    assert_eq!(ask(&members, inside), (Some(1), "ancestor"));
    assert!(members.caller_sees_our_pids(outside));
    assert!(!members.caller_sees_our_pids(inside));
}

/// Binding while others ask.
#[test]
fn answers_keep_up_with_changes() {
    let members = members();
    let mut shell = Script::sh(&format!("{STAY} & wait"));
    let child = shell.number();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    members.who(child);
                }
            });
        }
        for _ in 0..2000 {
            let binding = bind(&members, BindingKind::Process, shell.pid(), 1);
            assert_eq!(members.who(child).role, Role::Member(c(1)));
            members.remove(&binding);
            assert_eq!(members.who(child).role, Role::Guest);
        }
        stop.store(true, Ordering::Relaxed);
    });
}
