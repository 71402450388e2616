//! Who is asking: each cell of the table of bindings, and what tries to slip between them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::common::errno::{ENOENT, EPERM, EROFS};
use crate::common::{Agent, Flavor, Mount, Shell, eventually, flavors, need, run};

flavors! {
    bound_by_procs: passthrough, cached, ordinary;
    bound_by_procs_without_leading_its_session: passthrough, ordinary;
    bound_by_threads: passthrough, cached, ordinary;
    bound_by_cgroup: passthrough, cached;
    bound_by_exec: passthrough, cached, ordinary;
    bound_by_enter: passthrough, ordinary;
    release_can_end_members: passthrough, cached, ordinary;
    in_another_pid_namespace: passthrough, cached;
    through_io_uring: passthrough, cached, ordinary;
    a_thread_apart_from_its_process: passthrough, cached, ordinary;
    a_member_stays_in_its_window: passthrough, ordinary;
    unbound_and_bound_anew: passthrough, cached, ordinary;
    numbers_that_wrap_round: passthrough, cached;
    bound_while_it_writes: passthrough, cached, ordinary;
    not_dumpable: ordinary, passthrough;
    operators_are_not_inherited: passthrough, cached, ordinary;
    acting_threads: passthrough, cached, ordinary;
    bindings_survive_the_daemon: passthrough, ordinary;
    the_lists_name_the_members: passthrough, ordinary;
}

const SOON: Duration = Duration::from_secs(30);

/// `probe NAME [PID]`: once process PID has ended, notes whether it may write in ws1.
const PROBE: &str = r#"#!/bin/bash
while [ -n "${2-}" ] && kill -0 "$2" 2>/dev/null; do sleep 0.02; done
said=$({ : > "$MNT/ws1/$1"; } 2>&1) && verdict=member || verdict=guest
case $verdict$said in
    member | guest*"Read-only file system"*) ;;
    *) verdict="neither: $said" ;;
esac
echo "$verdict" > "$PANEFS_TEST_HOME/$1.new" && mv "$PANEFS_TEST_HOME/$1.new" "$PANEFS_TEST_HOME/$1.verdict"
"#;

/// A mount with windows c1 and c2, and `$PROBE`.
fn stage(flavor: Flavor) -> Mount {
    use std::os::unix::fs::PermissionsExt;
    need(&["bash", "setsid", "python3"]);
    let m = Mount::new(flavor);
    m.allocate(&["c1", "c2"]);
    let probe = m.home().join("probe");
    fs::write(&probe, PROBE).unwrap();
    fs::set_permissions(&probe, fs::Permissions::from_mode(0o755)).unwrap();
    m
}

/// What a probe found.
#[track_caller]
fn verdict(m: &Mount, name: &str) -> String {
    let file = m.home().join(format!("{name}.verdict"));
    eventually(&format!("a verdict of {name}"), SOON, || file.exists());
    crate::common::text(file).trim().to_owned()
}

#[track_caller]
fn assert_verdicts(m: &Mount, expected: &[(&str, &str)]) {
    let wrong: Vec<_> = expected
        .iter()
        .map(|(name, role)| (*name, *role, verdict(m, name)))
        .filter(|(_, role, got)| role != got)
        .map(|(name, role, got)| format!("{name} is a {role}, and was taken for: {got}"))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Bash: a child, a setsid child, a double-forked one, and a daemon (double-forked with a
/// session of its own); the last two look only when their starter has ended.
const FAMILY: &str = "P=$PANEFS_TEST_HOME/probe; $P child; setsid -w $P setsid; \
    ( me=$BASHPID; $P forked $me & ); ( me=$BASHPID; setsid $P orphan $me & )";

/// Bash: waits until the family has looked.
const LOOKED: &str = "until [ -e $PANEFS_TEST_HOME/forked.verdict ] && [ -e $PANEFS_TEST_HOME/orphan.verdict ]; do sleep 0.05; done";

fn bound_by_procs(flavor: Flavor) {
    let m = stage(flavor);
    let mut shell = Shell::member(&m, "c1");
    shell.ok(FAMILY);
    assert_verdicts(
        &m,
        &[
            ("child", "member"),
            ("setsid", "member"),
            ("forked", "member"), // by its session, whose leader is bound
            ("orphan", "guest"),
        ],
    );
    // When the leader ends, what is left of its session stays; a session of its own doesn't.
    shell.ok("( $P stays $$ & ); setsid $P leaves $$ &");
    shell.ok("until [ $(cut -d' ' -f6 /proc/$!/stat) = $! ]; do :; done");
    drop(shell);
    assert_verdicts(&m, &[("stays", "member"), ("leaves", "guest")]);
}

fn bound_by_procs_without_leading_its_session(flavor: Flavor) {
    let m = stage(flavor);
    m.as_member("c1", &format!("{FAMILY}; {LOOKED}"))
        .ok("the family");
    assert_verdicts(
        &m,
        &[
            ("child", "member"),
            ("setsid", "member"),
            ("forked", "guest"), // its session's leader isn't bound
            ("orphan", "guest"),
        ],
    );
}

fn bound_by_threads(flavor: Flavor) {
    let m = stage(flavor);
    let mut agent = Agent::guest(&m);
    agent.ok("a, b = Worker(), Worker(); P = os.environ['PANEFS_TEST_HOME'] + '/probe'");
    agent.ok("a(lambda: put(MNT + '/.panefs/windows/c1/threads', '0\\n'))");
    agent.ok("a(lambda: write(MNT + '/ws1/a', 'a'))");
    agent.refused("b(lambda: write(MNT + '/ws1/b', 'b'))", EROFS);
    agent.refused("write(MNT + '/ws1/main', 'main')", EROFS);
    agent.ok("a(lambda: subprocess.run([P, 'child'], check=True)) and None");
    agent.ok("b(lambda: subprocess.run([P, 'others'], check=True)) and None");
    agent.ok("a(lambda: subprocess.run(['bash', '-c', '( me=$BASHPID; $0 forked $me & ); ( me=$BASHPID; setsid $0 orphan $me & )', P], check=True)) and None");
    assert_verdicts(
        &m,
        &[
            ("child", "member"),
            ("others", "guest"),
            ("forked", "guest"),
            ("orphan", "guest"),
        ],
    );
    let tid = agent.ok("a(threading.get_native_id)").to_string();
    let listed = m.read(".panefs/windows/c1/threads");
    assert!(
        listed.split_whitespace().any(|t| t == tid),
        "{tid} in {listed:?}"
    );
    m.ctl(&format!("unbind tid={tid}"));
    agent.refused("a(lambda: write(MNT + '/ws1/a', 'a'))", EROFS);
    m.ctl(&format!("bind c2 tid={tid}"));
    agent.ok("a(lambda: write(MNT + '/ws2/a', 'a'))");
    // An ended thread is none of the members, nor is the next one.
    agent.ok("a.end(); a = Worker()");
    agent.refused("a(lambda: write(MNT + '/ws2/a', 'a'))", EROFS);
    eventually("the ended thread is forgotten", SOON, || {
        m.read(".panefs/windows/c2/threads").trim().is_empty()
    });
}

/// A control group of the test's own in the unified hierarchy.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new(name: &str) -> Self {
        let mounts = crate::common::text("/proc/self/mounts");
        let root = mounts
            .lines()
            .map(|line| line.split(' ').collect::<Vec<_>>())
            .find(|fields| fields[2] == "cgroup2")
            .map(|fields| PathBuf::from(fields[1]));
        let root = root.expect("no cgroup2 is mounted: mount one below /sys/fs/cgroup");
        let path = root.join(format!("panefs-test-{}-{name}", std::process::id()));
        fs::create_dir(&path)
            .unwrap_or_else(|e| panic!("can't make the control group {}: {e}", path.display()));
        Self(path)
    }

    fn processes(&self) -> Vec<u32> {
        [
            self.0.join("cgroup.procs"),
            self.0.join("below/cgroup.procs"),
        ]
        .iter()
        .filter_map(|file| fs::read_to_string(file).ok())
        .flat_map(|text| {
            text.lines()
                .filter_map(|l| l.parse().ok())
                .collect::<Vec<_>>()
        })
        .collect()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
        let empty = || self.processes().is_empty();
        for _ in 0..500 {
            if empty() {
                break;
            }
            std::thread::yield_now();
        }
        let _ = fs::remove_dir(self.0.join("below"));
        let _ = fs::remove_dir(&self.0);
    }
}

fn bound_by_cgroup(flavor: Flavor) {
    let m = stage(flavor);
    let name = if flavor.is_passthrough() { "a" } else { "b" };
    let group = Cgroup::new(name);
    let path = group.0.display();
    // Before anything runs in it.
    let bound = m.ctl(&format!("bind c1 cgroup={path}"));
    assert_eq!(bound["window"], "c1", "{bound}");
    assert_eq!(
        m.ctl(&format!("bind c1 cgroup={path}"))["window"],
        "c1",
        "again"
    );
    let mut shell = Shell::new(&m);
    shell.refused("echo x > $MNT/ws1/f", "Read-only file system");
    shell.ok(&format!("echo $$ > {path}/cgroup.procs"));
    shell.ok("echo x > $MNT/ws1/f");
    shell.ok(FAMILY);
    assert_verdicts(
        &m,
        &[
            ("child", "member"),
            ("setsid", "member"),
            ("forked", "member"),
            ("orphan", "member"),
        ],
    );
    // With all below it.
    shell.ok(&format!(
        "mkdir {path}/below && echo $$ > {path}/below/cgroup.procs"
    ));
    shell.ok("echo y > $MNT/ws1/f");
    // Whoever leaves it is a guest again, whatever was remembered of it.
    let root = group.0.parent().unwrap().display();
    shell.ok(&format!("echo $$ > {root}/cgroup.procs"));
    shell.refused("echo z > $MNT/ws1/f", "Read-only file system");
    shell.ok(&format!(
        "echo $$ > {path}/below/cgroup.procs; echo z > $MNT/ws1/f"
    ));
    m.ctl(&format!("unbind cgroup={path}"));
    shell.refused("echo u > $MNT/ws1/f", "Read-only file system");
    m.ctl(&format!("bind c2 cgroup={path}"));
    shell.ok("echo v > $MNT/ws2/f");

    // `members=end` gets all, orphans too.
    shell.ok("( setsid sleep 1000 & ); ( sleep 1000 & )");
    let before = group.processes().len();
    assert!(before >= 3, "{before} processes");
    let reply = m.finish(m.send("release c2 members=end"));
    assert_eq!(reply.errno, 0, "{reply:?}");
    eventually("all of the control group ended", SOON, || {
        group.processes().is_empty()
    });
    for bad in [
        "/etc",
        "/sys/fs/cgroup/no-such-group",
        "relative",
        "/sys/fs/cgroup/../../etc",
    ] {
        let reply = m.send(&format!("bind c1 cgroup={bad}"));
        assert_ne!(reply.errno, 0, "{bad}: {reply:?}");
    }
}

fn bound_by_exec(flavor: Flavor) {
    let m = stage(flavor);
    let late = "( setsid $P late $$ & )";
    let script = format!("{FAMILY}; {LOOKED}; {late}; exit 3");
    m.cli(&["exec", "c1", "--", "bash", "-c", &script])
        .failed(3, "the command's own status");
    assert_verdicts(
        &m,
        &[
            ("child", "member"),
            ("setsid", "member"),
            ("forked", "member"),
            ("orphan", "member"),
            ("late", "member"), // what outlives the command
        ],
    );
    m.cli(&[
        "exec",
        "c2",
        "--",
        "bash",
        "-c",
        "! : > $MNT/ws1/no && : > $MNT/ws2/yes",
    ])
    .ok("exec is a member of its own window");
}

fn bound_by_enter(flavor: Flavor) {
    let m = stage(flavor);
    let script = format!(
        "SHELL=/bin/bash \"$PANEFS\" enter c1 <<'END'\n{FAMILY}\n{LOOKED}\npwd\nexit 4\nEND\n"
    );
    let ended = m.as_guest(&script);
    ended.failed(4, "the shell's own status");
    assert_eq!(ended.stdout.trim(), m.ws("ws1").to_str().unwrap());
    assert_verdicts(
        &m,
        &[
            ("child", "member"),
            ("setsid", "member"),
            ("forked", "member"),
            ("orphan", "member"),
        ],
    );
}

/// Whether a process has ended; a zombie has.
fn ended(pid: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |s| s.contains(") Z"))
}

fn release_can_end_members(flavor: Flavor) {
    let m = stage(flavor);
    // Of `procs` what is known; of `exec` all.
    let mut shell = Shell::member(&m, "c1");
    let child = shell.ok("sleep 1000 & echo $!");
    let exec = "\"$PANEFS\" exec c1 -- bash -c 'setsid sleep 1000 & echo $! > $PANEFS_TEST_HOME/pid; (setsid bash -c \"trap : TERM; echo \\$\\$ > $PANEFS_TEST_HOME/daemon; while :; do sleep 1; done\" &); sleep 1000' >/dev/null 2>&1 &";
    let mut guest = Shell::new(&m);
    guest.ok(exec);
    let noted = |name: &str| {
        let file = m.home().join(name);
        eventually(&format!("{name} is noted"), SOON, || {
            fs::read_to_string(&file).is_ok_and(|t| t.ends_with('\n'))
        });
        crate::common::text(file).trim().to_owned()
    };
    let all = [
        shell.pid().to_string(),
        child,
        noted("pid"),
        noted("daemon"),
    ];
    let reply = m.finish(m.send("release c1 members=end"));
    assert_eq!(reply.errno, 0, "{reply:?}");
    assert_eq!(reply.line()["window"], "c1", "{reply:?}");
    for pid in &all {
        eventually(&format!("{pid} of {all:?} ends"), SOON, || ended(pid));
    }
    guest.ok("true");
    assert_eq!(m.show("ws1")["state"], "released");
}

fn in_another_pid_namespace(flavor: Flavor) {
    need(&["unshare"]);
    let m = stage(flavor);
    let script = "unshare --pid --fork --mount-proc bash -c '
        P=$PANEFS_TEST_HOME/probe
        $P before
        echo $$ > $MNT/.panefs/windows/c1/procs && exit 91
        sleep 100 & echo $! > $MNT/.panefs/windows/c1/procs && exit 92
        $P nothing
        echo 0 > $MNT/.panefs/windows/c1/procs || exit 93
        $P joined
        setsid -w $P session
        kill %1; exit 0'";
    let ended = m.as_guest(script);
    ended.ok("in a pid namespace");
    assert!(
        ended.stderr.contains("No such file or directory"),
        "{ended}"
    );
    assert_verdicts(
        &m,
        &[
            ("before", "guest"),
            ("nothing", "guest"),
            ("joined", "member"),
            ("session", "member"),
        ],
    );
    // A member's child there is a member as well.
    m.as_member(
        "c1",
        "unshare --pid --fork --mount-proc $PANEFS_TEST_HOME/probe inherited",
    )
    .ok("unshare");
    assert_eq!(verdict(&m, "inherited"), "member");
    // In a user namespace too.
    m.as_member(
        "c1",
        "unshare --user --map-root-user $PANEFS_TEST_HOME/probe user",
    )
    .ok("unshare --user");
    assert_eq!(verdict(&m, "user"), "member");
}

fn through_io_uring(flavor: Flavor) {
    need(&["cc"]);
    let m = stage(flavor);
    let source = m.home().join("uring.c");
    fs::write(&source, include_str!("uring.c")).unwrap();
    m.as_guest("cc -O1 -o uring uring.c").ok("compile uring.c");
    for how in ["inline", "async", "sqpoll"] {
        let refused = m.as_guest(&format!("timeout 30 ./uring {how} $MNT/ws1/guest"));
        assert_eq!(refused.ok(how), EROFS.to_string(), "a guest, {how}");
        let other = m.as_member("c2", &format!("timeout 30 ./uring {how} $MNT/ws1/other"));
        assert_eq!(other.ok(how), EROFS.to_string(), "a member of c2, {how}");
        let member = m.as_member("c1", &format!("timeout 30 ./uring {how} $MNT/ws1/{how}"));
        assert_eq!(member.ok(how), "ok", "a member of c1, {how}");
        assert_eq!(m.read(&format!("ws1/{how}")), "by a ring\n");
    }
}

fn a_thread_apart_from_its_process(flavor: Flavor) {
    let m = stage(flavor);
    // Bound one by one, in a process that is a guest.
    let mut agent = Agent::guest(&m);
    agent.ok("a, b = Worker(), Worker()");
    agent.ok("a(lambda: put(MNT + '/.panefs/windows/c1/threads', '0\\n'))");
    agent.ok("b(lambda: put(MNT + '/.panefs/windows/c2/threads', '0\\n'))");
    for _ in 0..50 {
        agent.ok("a(lambda: write(MNT + '/ws1/f', 'a'))");
        agent.ok("b(lambda: write(MNT + '/ws2/f', 'b'))");
        agent.refused("a(lambda: write(MNT + '/ws2/f', 'a'))", EROFS);
        agent.refused("b(lambda: write(MNT + '/ws1/f', 'b'))", EROFS);
        agent.refused("write(MNT + '/ws1/f', 'main')", EROFS);
    }
    assert_eq!(agent.ok("a(lambda: os.readlink(MNT + '/self'))"), "ws1");
    assert_eq!(agent.ok("b(lambda: os.readlink(MNT + '/self'))"), "ws2");
    // Bound by the owner, in a process that is a member of another window.
    let mut agent = Agent::member(&m, "c1");
    agent.ok("a = Worker()");
    let tid = agent.ok("a(threading.get_native_id)");
    agent.refused(
        "a(lambda: put(MNT + '/.panefs/windows/c2/threads', '0\\n'))",
        EPERM,
    );
    m.ctl(&format!("bind c2 tid={tid}"));
    agent.ok("a(lambda: write(MNT + '/ws2/f', 'a'))");
    agent.refused("a(lambda: write(MNT + '/ws1/f', 'a'))", EROFS);
    agent.ok("write(MNT + '/ws1/f', 'main')");
    agent.refused("write(MNT + '/ws2/f', 'main')", EROFS);
    m.ctl(&format!("unbind tid={tid}"));
    agent.ok("a(lambda: write(MNT + '/ws1/f', 'a'))");
}

fn a_member_stays_in_its_window(flavor: Flavor) {
    let m = stage(flavor);
    let mut one = Agent::member(&m, "c1");
    let mut guest = Agent::guest(&m);
    let two = Agent::member(&m, "c2");
    for what in [
        "0".to_owned(),
        one.pid().to_string(),
        guest.pid().to_string(),
    ] {
        one.refused(
            &format!("put(MNT + '/.panefs/windows/c2/procs', '{what}\\n')"),
            EPERM,
        );
    }
    one.refused(
        &format!("put(MNT + '/.panefs/windows/c1/procs', '{}\\n')", two.pid()),
        EPERM,
    );
    one.refused("put(MNT + '/.panefs/operators', '0\\n')", EPERM);
    one.refused(
        "subprocess.run(['true']) and put(MNT + '/.panefs/windows/c2/procs', '0\\n')",
        EPERM,
    );
    one.ok("write(MNT + '/ws1/f', 'x')");
    one.refused("write(MNT + '/ws2/f', 'x')", EROFS);
    // Into its own it takes whom it likes, and itself again.
    one.ok("put(MNT + '/.panefs/windows/c1/procs', '0\\n')");
    let pid = guest.pid();
    one.ok(&format!(
        "put(MNT + '/.panefs/windows/c1/procs', '{pid}\\n')"
    ));
    guest.ok("write(MNT + '/ws1/f', 'x')");
    // A child is no way out either.
    one.refused(
        "_ = os.system('echo 0 2>/dev/null > $MNT/.panefs/windows/c2/procs')\nif _: raise OSError(errno.EPERM, 'refused')",
        EPERM,
    );
    let whoami = one.ok("json.loads(read(MNT + '/.panefs/whoami'))");
    assert_eq!(whoami["window"], "c1", "{whoami}");
}

fn unbound_and_bound_anew(flavor: Flavor) {
    let m = stage(flavor);
    let mut agent = Agent::guest(&m);
    let pid = agent.pid();
    for _ in 0..100 {
        let reply = m.ctl(&format!("bind c1 pid={pid}"));
        assert_eq!(reply["window"], "c1", "{reply}");
        assert_eq!(m.ctl(&format!("bind c1 pid={pid}")), reply, "again");
        agent.ok("write(MNT + '/ws1/f', 'x')");
        agent.refused("write(MNT + '/ws2/f', 'x')", EROFS);
        // The owner's ctl, used by a non-member, may rebind.
        m.ctl(&format!("bind c2 pid={pid}"));
        agent.refused("write(MNT + '/ws1/f', 'x')", EROFS);
        agent.ok("write(MNT + '/ws2/f', 'x')");
        m.ctl(&format!("unbind pid={pid}"));
        agent.refused("write(MNT + '/ws2/f', 'x')", EROFS);
    }
    let whoami = agent.ok("json.loads(read(MNT + '/.panefs/whoami'))");
    assert_eq!(whoami["role"], "guest", "{whoami}");
    agent.join("c2");
    agent.ok("write(MNT + '/ws2/f', 'x')");
    let dead = agent.pid();
    drop(agent);
    m.ctl_refused(&format!("bind c1 pid={dead}"), ENOENT, "process.not_found");
}

fn numbers_that_wrap_round(flavor: Flavor) {
    need(&["unshare"]);
    assert!(
        Path::new("/proc/sys/kernel/ns_last_pid").exists(),
        "this kernel has no ns_last_pid (CONFIG_CHECKPOINT_RESTORE), so numbers can't be made to wrap"
    );
    let m = Mount::unmounted(flavor);
    let mut command = m.command("unshare");
    command
        .args([
            "--pid",
            "--fork",
            "--mount",
            "--mount-proc",
            "--propagation",
            "private",
        ])
        .args(["python3", "-c", include_str!("pid_wrap.py")])
        .args([m.binary(), m.store(), m.mnt()]);
    if !flavor.is_passthrough() {
        command.arg("--no-passthrough");
    }
    let ended = run(command, Duration::from_secs(600));
    assert!(ended.ok("5,000 processes").contains("done: "), "{ended}");
}

fn bound_while_it_writes(flavor: Flavor) {
    let m = stage(flavor);
    let mut agent = Agent::guest(&m);
    agent.ok("
seen, stop = [], False
def hammer(name):
    while not stop:
        begin = time.monotonic_ns()
        try:
            write(f'{MNT}/ws1/{name}', 'x')
            ok = True
        except OSError as e:
            assert e.errno == errno.EROFS, e
            ok = False
        seen.append((begin, time.monotonic_ns(), ok))
threads = [threading.Thread(target=hammer, args=(f'f{n}',)) for n in range(3)]
for t in threads: t.start()
");
    let pid = agent.pid();
    // When the command before replied: what begins after it, the next one finds as it left it.
    let mut settled = u64::MAX;
    for round in 0..30 {
        for (command, may) in [("bind c1", true), ("unbind", false)] {
            let code = format!(
                "begin = time.monotonic_ns()\nreply = ctl('{command} pid={pid}\\n')\n_ = [begin, time.monotonic_ns(), reply]"
            );
            let outcome = m.hand_ok(&code);
            assert_eq!(outcome[2][0], 0, "{outcome}");
            let (asked, replied) = (outcome[0].as_u64().unwrap(), outcome[1].as_u64().unwrap());
            eventually("it tried after the reply", SOON, || {
                agent.ok("seen[-1][0] if seen else 0").as_u64().unwrap() > replied
            });
            let tried = agent.ok("[list(seen), seen.clear()][0]");
            let tried: Vec<(u64, u64, bool)> = serde_json::from_value(tried).unwrap();
            let wrong = tried.iter().find(|(begin, end, ok)| {
                (*begin > replied && *ok != may) || (*begin > settled && *end < asked && *ok == may)
            });
            assert_eq!(
                wrong, None,
                "round {round}: {command} was asked at {asked} and replied at {replied}"
            );
            settled = replied;
        }
    }
    agent.ok("stop = True\nfor t in threads: t.join()");
}

fn not_dumpable(flavor: Flavor) {
    let m = stage(flavor);
    let mut agent = Agent::guest(&m);
    agent.ok("_check(libc.prctl(4, 0, 0, 0, 0))");
    agent.refused("write(MNT + '/ws1/f', 'x')", EROFS);
    agent.join("c1");
    agent.ok("write(MNT + '/ws1/f', 'x')");
    agent.refused("write(MNT + '/ws2/f', 'x')", EROFS);
    agent.ok("a = Worker()\na(lambda: write(MNT + '/ws1/g', 'x'))");
    agent.ok("pid = os.fork()\nif pid == 0:\n  try: write(MNT + '/ws1/h', 'x'); os._exit(0)\n  except BaseException: os._exit(1)\n_ = os.waitpid(pid, 0)[1]\nassert _ == 0, _");
    let mut other = Agent::guest(&m);
    other.ok("_check(libc.prctl(4, 0, 0, 0, 0))");
    let pid = other.pid();
    m.ctl(&format!("bind c2 pid={pid}"));
    other.ok("write(MNT + '/ws2/f', 'x')");
    other.refused("write(MNT + '/ws1/f', 'x')", EROFS);
    m.ctl(&format!("unbind pid={pid}"));
    other.refused("write(MNT + '/ws2/f', 'x')", EROFS);
}

fn operators_are_not_inherited(flavor: Flavor) {
    let m = stage(flavor);
    let mut harness = Agent::guest(&m);
    harness.refused("write(MNT + '/ws1/f', 'x')", EROFS);
    harness.ok("put(MNT + '/.panefs/operators', '0\\n')");
    harness.ok("write(MNT + '/ws1/f', 'x'); write(MNT + '/ws2/f', 'x')");
    harness.ok("a = Worker()\na(lambda: write(MNT + '/ws2/g', 'x'))");
    harness.ok(
        "subprocess.run([os.environ['PANEFS_TEST_HOME'] + '/probe', 'child'], check=True) and None",
    );
    assert_eq!(verdict(&m, "child"), "guest");
    harness.ok("pid = os.fork()\nif pid == 0:\n  try: write(MNT + '/ws1/h', 'x'); os._exit(0)\n  except OSError as e: os._exit(e.errno)\n_ = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\nassert _ == errno.EROFS, _");
    let whoami = harness.ok("json.loads(read(MNT + '/.panefs/whoami'))");
    assert_eq!(whoami["role"], "operator", "{whoami}");
    let pid = harness.pid().to_string();
    let listed = m.read(".panefs/operators");
    assert!(
        listed.split_whitespace().any(|p| p == pid),
        "{pid} in {listed:?}"
    );
    // Of every occupied workspace; and what its child is bound to is the child's alone.
    harness.ok("env = dict(os.environ)\n_ = subprocess.run(['bash', '-c', 'echo 0 > $MNT/.panefs/windows/c2/procs && echo x > $MNT/ws2/by-child && ! echo x 2>/dev/null > $MNT/ws1/by-child']).returncode\nassert _ == 0, _");
    m.ctl(&format!("unbind pid={pid}"));
    harness.refused("write(MNT + '/ws1/f', 'x')", EROFS);
}

fn acting_threads(flavor: Flavor) {
    let m = stage(flavor);
    let mut harness = Agent::guest(&m);
    harness.ok("ACTING = MNT + '/.panefs/acting'");
    harness.refused("put(ACTING, 'c1\\n')", EPERM);
    harness.ok("put(MNT + '/.panefs/operators', '0\\n')\na, b = Worker(), Worker()");
    harness.ok("a(lambda: put(ACTING, 'c1\\n')); b(lambda: put(ACTING, 'c2\\n'))");
    for _ in 0..20 {
        harness.ok("a(lambda: write(MNT + '/ws1/f', 'a')); b(lambda: write(MNT + '/ws2/f', 'b'))");
        harness.refused("a(lambda: write(MNT + '/ws2/f', 'a'))", EROFS);
        harness.refused("b(lambda: write(MNT + '/ws1/f', 'b'))", EROFS);
        harness.ok("a(lambda: put(ACTING, 'c2\\n')); b(lambda: put(ACTING, 'c1\\n'))");
        harness.ok("a(lambda: write(MNT + '/ws2/f', 'a')); b(lambda: write(MNT + '/ws1/f', 'b'))");
        harness.refused("a(lambda: write(MNT + '/ws1/f', 'a'))", EROFS);
        harness.ok("a(lambda: put(ACTING, 'c1\\n')); b(lambda: put(ACTING, 'c2\\n'))");
    }
    assert_eq!(harness.ok("a(lambda: os.readlink(MNT + '/self'))"), "ws1");
    let whoami = harness.ok("a(lambda: json.loads(read(MNT + '/.panefs/whoami')))");
    assert_eq!(whoami["window"], "c1", "{whoami}");
    // What an acting thread starts is a guest.
    harness.ok("P = os.environ['PANEFS_TEST_HOME'] + '/probe'\na(lambda: subprocess.run([P, 'child'], check=True)) and None");
    assert_eq!(verdict(&m, "child"), "guest");
    harness.ok("a(lambda: put(ACTING, '-\\n'))");
    harness.ok("a(lambda: write(MNT + '/ws2/f', 'a')); a(lambda: write(MNT + '/ws1/f', 'a'))");
    // After the handoff of the window that it acts for it may no more.
    m.ctl("handoff c2 c3");
    harness.refused("b(lambda: write(MNT + '/ws2/f', 'b'))", EROFS);
}

fn bindings_survive_the_daemon(flavor: Flavor) {
    let m = stage(flavor);
    let mut one = Agent::member(&m, "c1");
    let mut threads = Agent::guest(&m);
    threads.ok("a = Worker()\na(lambda: put(MNT + '/.panefs/windows/c2/threads', '0\\n'))");
    let mut harness = Agent::guest(&m);
    harness.ok("put(MNT + '/.panefs/operators', '0\\n')");
    let mut guest = Agent::guest(&m);
    let ends = Agent::member(&m, "c1");
    let gone = ends.pid().to_string();
    for round in 0..3 {
        m.kill9();
        if round == 2 {
            break;
        }
        m.mount();
        one.ok("write(MNT + '/ws1/f', 'x')");
        one.refused("write(MNT + '/ws2/f', 'x')", EROFS);
        threads.ok("a(lambda: write(MNT + '/ws2/f', 'x'))");
        threads.refused("write(MNT + '/ws2/f', 'x')", EROFS);
        harness.ok("write(MNT + '/ws1/f', 'x'); write(MNT + '/ws2/f', 'x')");
        guest.refused("write(MNT + '/ws1/f', 'x')", EROFS);
        one.ok("assert subprocess.run(['sh', '-c', 'echo x > $MNT/ws1/child']).returncode == 0");
    }
    // Whoever ends while no daemon lives is not remembered.
    drop(ends);
    m.mount();
    let procs = m.read(".panefs/windows/c1/procs");
    assert!(
        !procs.split_whitespace().any(|p| p == gone),
        "{gone} in {procs:?}"
    );
    assert!(
        procs.split_whitespace().any(|p| p == one.pid().to_string()),
        "{procs:?}"
    );
}

fn the_lists_name_the_members(flavor: Flavor) {
    let m = stage(flavor);
    let mut shell = Shell::member(&m, "c1");
    let pid = shell.pid().to_string();
    shell.ok("sleep 1000 &");
    let procs = m.read(".panefs/windows/c1/procs");
    assert!(
        procs.split_whitespace().any(|p| p == pid),
        "{pid} in {procs:?}"
    );
    let of = |items: &Value| -> Vec<String> {
        let items = items["items"].as_array().unwrap();
        items.iter().map(|i| i["pid"].to_string()).collect()
    };
    let members = m.ctl("list members");
    assert!(of(&members).contains(&pid), "{members}");
    for item in members["items"].as_array().unwrap() {
        assert_eq!(item["window"], "c1", "{members}");
    }
    let whoami: Value = serde_json::from_str(&shell.ok("cat $MNT/.panefs/whoami")).unwrap();
    let by = ["binding", "by", "bound_by"].map(|field| whoami[field].clone());
    assert!(
        by.iter().any(Value::is_string),
        "by which binding: {whoami}"
    );
    let events = m.jsonl("windows/c1/events.jsonl");
    assert!(
        events.iter().any(|e| e["kind"] == "window.bound"),
        "{events:?}"
    );
    drop(shell);
    eventually("the ended shell is no member", SOON, || {
        !of(&m.ctl("list members")).contains(&pid)
    });
}
