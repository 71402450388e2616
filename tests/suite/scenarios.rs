//! Scenarios of bad days: a killed daemon, an unmount while busy, a handoff amid life, a store
//! inside the mount, the tree's own entries.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::common::errno::EROFS;
use crate::common::{Agent, Flavor, Mount, Shell, eventually, flavors, need, run};
use crate::crash::ends_soon;

flavors! {
    daemon_killed: passthrough, cached, ordinary;
    mounted_again_right_after_the_kill: passthrough, cached, ordinary;
    unmount_while_busy: passthrough, cached, ordinary;
    a_life_around_a_handoff: passthrough, cached;
    store_and_mount_within_each_other: passthrough, ordinary;
    panefs_within_panefs: passthrough, cached;
    the_trees_own_entries_stay: passthrough, ordinary;
}

const SOON: Duration = Duration::from_secs(30);

fn daemon_killed(flavor: Flavor) {
    let m = Mount::new(flavor);
    m.allocate(&["c1"]);
    for round in 0..10 {
        let mut shell = Shell::member(&m, "c1");
        shell.ok("mkdir -p $MNT/ws1/dir && cd $MNT/ws1/dir");
        let mut agent = Agent::member(&m, "c1");
        agent.ok("W = MNT + '/ws1/'");
        agent.ok(&format!("fd = os.open(W + 'synced', os.O_CREAT | os.O_WRONLY | os.O_TRUNC)\nos.write(fd, b'synced {round}' * 1000)\nos.fsync(fd)"));
        agent.ok(&format!("fd2 = os.open(W + 'accepted', os.O_CREAT | os.O_RDWR | os.O_TRUNC)\nos.write(fd2, b'accepted {round}' * 1000)"));
        // Also under load: others who write all the time, and count what was accepted.
        let mut load: Vec<_> = (0..if round % 2 == 1 { 3 } else { 0 })
            .map(|n| {
                let mut worker = Agent::member(&m, "c1");
                // Opened anew each time: a descriptor with passthrough outlives the daemon.
                worker.begin(&format!(
                    "
_ = 0
try:
    while True:
        f = os.open(MNT + '/ws1/load{round}-{n}', os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
        _ += os.write(f, b'x' * 1000)
        os.close(f)
except OSError: pass"
                ));
                worker
            })
            .collect();
        if !load.is_empty() {
            let code = format!("os.stat(MNT + '/ws1/load{round}-0').st_size");
            eventually("the load writes", SOON, || {
                m.hand(&code)
                    .is_ok_and(|size| size.as_u64() > Some(100_000))
            });
        }
        m.kill9();
        // Nothing hangs, everything says so.
        for look in ["ls $MNT/ws1", "df", "stat $MNT", "cat $MNT/.panefs/whoami"] {
            ends_soon(&m, look);
        }
        let said = ends_soon(&m, "ls $MNT");
        assert!(said.contains("endpoint is not connected"), "{said}");
        // An old descriptor gives an error; with passthrough the kernel may still write to the
        // backing file by itself, and then the bytes are there.
        let more = match agent.eval("os.write(fd, b'more')") {
            Ok(_) if flavor.is_passthrough() => "more",
            Ok(_) => panic!("a write to a dead mount was accepted"),
            Err(_) => "",
        };
        let _ = agent.eval("os.close(fd)");
        shell.run("ls");
        shell.run("echo x > here");
        // The dead mount is cleared by the next one.
        m.mount();
        for (name, more) in [("synced", more), ("accepted", "")] {
            let expected = format!("{name} {round}").repeat(1000) + more;
            let there = m.read(&format!("ws1/{name}"));
            // Not assert_eq: nobody wants to read both.
            let lengths = (there.len(), expected.len());
            assert!(
                there == expected,
                "round {round}: {name}: {lengths:?} bytes"
            );
        }
        for (n, worker) in load.iter_mut().enumerate() {
            let taken = worker.answer().unwrap().as_u64();
            let size = m.hand(&format!("os.stat(MNT + '/ws1/load{round}-{n}').st_size"));
            let size = size.ok().and_then(|size| size.as_u64()).or(Some(0));
            assert!(
                size >= taken,
                "load{n}: {taken:?} bytes were accepted, {size:?} are there"
            );
        }
        let dead = m.mounts().iter().filter(|dir| *dir == m.mnt()).count();
        assert_eq!(dead, 1, "mounted once");
        // Who worked here works on.
        shell.ok("cd $MNT/ws1/dir && echo again > here");
        agent.ok("write(W + 'again', 'x')");
    }
}

fn mounted_again_right_after_the_kill(flavor: Flavor) {
    // As a supervisor does it, without a look at what of the old daemon is still ending.
    let m = Mount::new(flavor);
    m.allocate(&["c1"]);
    for round in 0..10 {
        m.as_member("c1", &format!("echo {round} > $MNT/ws1/f"))
            .ok("write");
        m.kill9_at_once();
        m.mount();
        assert_eq!(m.read("ws1/f"), format!("{round}\n"));
    }
}

fn unmount_while_busy(flavor: Flavor) {
    need(&["fusermount3"]);
    let m = Mount::new(flavor);
    m.allocate(&["c1"]);
    for how in ["TERM", "INT", "panefs", "fusermount3"] {
        // It opens anew each time, and holds a descriptor and a working directory beside.
        let mut busy = Agent::member(&m, "c1");
        busy.ok(
            "fd = os.open(MNT + '/ws1/held', os.O_CREAT | os.O_WRONLY)\nos.chdir(MNT + '/ws1')",
        );
        busy.begin(&format!(
            "
_ = 0
try:
    while True:
        f = os.open(MNT + '/ws1/log-{how}', os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
        _ += os.write(f, b'x' * 100)
        os.close(f)
except OSError: pass"
        ));
        let size = format!("os.stat(MNT + '/ws1/log-{how}').st_size");
        let written = || m.hand(&size).ok().and_then(|size| size.as_u64());
        eventually("it writes", SOON, || written() > Some(10_000));
        let daemon = m.daemon().expect("a daemon");
        let signal = |signal| kill(Pid::from_raw(daemon.try_into().unwrap()), signal).unwrap();
        let begin = Instant::now();
        match how {
            "TERM" => signal(Signal::SIGTERM),
            "INT" => signal(Signal::SIGINT),
            "panefs" => {
                let ended = m.cli(&["unmount", m.mnt().to_str().unwrap()]);
                ended.ok("panefs unmount while busy");
            }
            _ => {
                // It says that it is busy, and once nobody works there it unmounts.
                let ended = m.as_guest("fusermount3 -u \"$MNT\"");
                assert!(ended.stderr.contains("busy"), "{ended}");
                let before = written();
                eventually("the work goes on", SOON, || written() > before);
                drop(busy);
                m.as_guest("fusermount3 -u \"$MNT\"").ok("fusermount3 -u");
                busy = Agent::guest(&m);
                busy.begin("None");
            }
        }
        eventually(&format!("{how}: nothing is mounted"), SOON, || {
            m.mounts().is_empty()
        });
        eventually(&format!("{how}: the daemon ends"), SOON, || {
            m.daemon().is_none()
        });
        println!("{how}: ended within {:?}", begin.elapsed());
        let accepted = busy.answer().unwrap().as_u64();
        m.mount();
        assert!(
            written() >= accepted,
            "{how}: {accepted:?} bytes were accepted"
        );
        m.as_member("c1", "seq 100000 > $MNT/ws1/again")
            .ok("a new start works");
    }
}

fn a_life_around_a_handoff(flavor: Flavor) {
    need(&["git", "python3"]);
    let m = Mount::new(flavor);
    m.allocate(&["c1"]);
    let lay = "cd $MNT/ws1 && python3 -m venv --without-pip venv && git init -q r && cd r && \
        echo one > f && git add f && git commit -qm one && git worktree add -q ../wt && cd ../wt && \
        echo two > g && git add g && git commit -qm two && ls -id $MNT/ws1 $MNT/ws1/* | sort -k2";
    let before = m.as_member("c1", lay);
    let before = before.ok("a venv and a worktree").to_owned();
    // A background process with its working directory inside, and one with an open file.
    let mut background = Shell::member(&m, "c1");
    background.ok("cd $MNT/ws1/wt && exec 4< g");
    m.ctl("handoff c1 c2");
    assert_eq!(
        background.ok("pwd; cat <&4; cat f"),
        format!("{}\ntwo\none", m.ws("ws1/wt").display())
    );
    background.refused("echo no > f", "Read-only file system");
    let check = "cd $MNT/ws1 && ls -id $MNT/ws1 $MNT/ws1/* | sort -k2 && \
        venv/bin/python -c 'import sys; assert sys.prefix == sys.argv[1] + \"/venv\", sys.prefix' $MNT/ws1 && \
        git -C wt status --porcelain && git -C r worktree list --porcelain | grep -qx \"worktree $MNT/ws1/wt\" && \
        cd wt && echo three > h && git add h && git commit -qm three && git fsck --full 2>&1 | grep -E 'error|missing' ; \
        test $(git -C $MNT/ws1/wt log --oneline | wc -l) = 3";
    let ended = m.as_member("c2", check);
    assert_eq!(ended.ok("the same place for c2"), before, "inode numbers");
    assert_eq!(background.ok("cat h"), "three");
}

/// Runs `panefs mount` of these, which must end soon; what was mounted is unmounted.
#[track_caller]
fn try_mount_of(m: &Mount, store: &Path, mnt: &Path) -> (bool, String) {
    let mut command = m.command(m.binary());
    command.arg("mount").arg(store).arg(mnt);
    let ended = run(command, Duration::from_secs(60));
    (ended.status.success(), ended.stderr)
}

fn store_and_mount_within_each_other(flavor: Flavor) {
    // Mountpoint in the store, store in the mountpoint, store and mountpoint the same.
    let m = Mount::unmounted(flavor);
    m.as_guest("mkdir -p a/mnt b c").ok("lay the ground");
    let home = m.home();
    for (store, mnt, what) in [
        (
            home.join("a"),
            home.join("a/mnt"),
            "the mountpoint is in the store",
        ),
        (
            home.join("b/store"),
            home.join("b"),
            "the store is in the mountpoint",
        ),
        (home.join("c"), home.join("c"), "they are the same"),
    ] {
        let before = m.as_guest("find a b c | sort").stdout;
        let (mounted, said) = try_mount_of(&m, &store, &mnt);
        assert!(!mounted, "{what}: should be refused");
        assert!(
            said.starts_with("panefs: ") && said.contains("  try: "),
            "{what}: {said}"
        );
        assert_eq!(
            m.as_guest("find a b c | sort").stdout,
            before,
            "{what}: touched something"
        );
        assert_eq!(m.mounts(), Vec::<std::path::PathBuf>::new(), "{what}");
    }
    // The store inside the mount of another one, and a bind mount that leads back.
    m.mount();
    m.allocate(&["c1"]);
    m.as_member("c1", "mkdir $MNT/ws1/dir $MNT/ws1/mnt && export TMPDIR=$MNT/ws1/dir && t=$(mktemp) && echo x > $t && sort <(seq 1000) > $MNT/ws1/sorted")
        .ok("TMPDIR in a workspace");
    // `panefs` itself with its temporary directory and its log in a workspace.
    m.as_member(
        "c1",
        "TMPDIR=$MNT/ws1/dir \"$PANEFS\" ls > $MNT/ws1/log 2>&1",
    )
    .ok("log in a workspace");
    if crate::common::is_root() && !flavor.is_ordinary() {
        let script = "mount --bind $STORE/workspaces/ws1 $MNT/ws1/mnt && ls -la $MNT/ws1/mnt >/dev/null && \
            find $MNT/ws1 -xdev >/dev/null; timeout 30 du -x $MNT/ws1 >/dev/null; umount $MNT/ws1/mnt";
        m.as_guest(script).ok("a bind mount that leads back");
    }
    m.as_member("c1", "echo on > $MNT/ws1/f && cat $MNT/ws1/f")
        .ok("it goes on");
}

fn panefs_within_panefs(flavor: Flavor) {
    let m = Mount::new(flavor);
    m.allocate(&["c1"]);
    m.as_member("c1", "mkdir $MNT/ws1/store $MNT/ws1/mnt")
        .ok("lay the ground");
    let (store, mnt) = (m.ws("ws1/store/s"), m.ws("ws1/mnt"));
    // Its own store within its own mount, by a member: refused clearly, or it works.
    let script = format!(
        "timeout 60 \"$PANEFS\" mount {} {}",
        store.display(),
        mnt.display()
    );
    let ended = m.as_member("c1", &script);
    if ended.status.success() {
        let inner = format!(
            "export PANEFS_MNT={0}; \"$PANEFS\" allocate c1 >/dev/null && echo 0 > {0}/.panefs/windows/c1/procs && echo x > {0}/ws1/f && cat {0}/ws1/f",
            mnt.display()
        );
        let ended = m.as_member("c1", &inner);
        assert_eq!(ended.ok("panefs in panefs"), "x");
        m.as_guest(&format!("timeout 60 \"$PANEFS\" unmount {}", mnt.display()))
            .ok("unmount the inner one");
    } else {
        assert!(ended.stderr.contains("panefs: "), "{ended}");
        assert!(ended.stderr.contains("  try: "), "{ended}");
    }
    // Another filesystem in a workspace: a mount with its store outside.
    let outside = m.home().join("outside");
    let (mounted, said) = try_mount_of(&m, &outside, &mnt);
    if mounted {
        let look = format!(
            "ls {0} && timeout 60 \"$PANEFS\" unmount {0}",
            mnt.display()
        );
        m.as_guest(&look).ok("another FUSE mount in a workspace");
    } else {
        assert!(said.contains("  try: "), "{said}");
    }
    m.as_member("c1", "echo on > $MNT/ws1/f && cat $MNT/ws1/f")
        .ok("it goes on");
}

fn the_trees_own_entries_stay(flavor: Flavor) {
    let m = Mount::new(flavor);
    m.allocate(&["c1", "c2"]);
    m.as_member("c1", "mkdir $MNT/ws1/d && echo x > $MNT/ws1/d/f")
        .ok("write");
    m.as_member("c2", "mkdir $MNT/ws2/d && echo x > $MNT/ws2/d/f")
        .ok("write");
    // A command that lives in the workspace while others try to take it away.
    let mut command = m.command(m.binary());
    command
        .args(["exec", "c2", "--", "bash", "-c"])
        .arg("echo ready > up; until [ -e stop ]; do echo x > tick && sleep 0.05; done; echo done > end")
        .stdin(Stdio::null());
    let mut inside = command.spawn().unwrap();
    eventually("the command in c2 runs", SOON, || {
        m.hand("os.stat(MNT + '/ws2/tick')").is_ok()
    });
    for (who, script) in [
        ("", "rmdir $MNT/ws1"),
        ("", "rm -rf $MNT/ws2"),
        ("", "mv $MNT/ws1 $MNT/ws3"),
        ("", "mv -T $MNT/ws1 $MNT/ws2"),
        ("", "ln -s ws1 $MNT/link"),
        ("", "touch $MNT/file"),
        ("", "rmdir $MNT"),
        ("", "mkdir $MNT/ws5"),
        ("c1", "rmdir $MNT/ws1"),
        ("c1", "rm -rf $MNT/ws2"),
        ("c1", "mv $MNT/ws1 $MNT/ws3"),
        ("c1", "mv $MNT/ws1 $MNT/ws2/"),
        ("c1", "touch $MNT/file"),
        ("c1", "rm -rf $MNT/.panefs"),
    ] {
        let ended = match who {
            "" => m.as_guest(script),
            window => m.as_member(window, script),
        };
        assert!(!ended.status.success(), "{script} by {who:?}: {ended}");
    }
    assert_eq!(m.read("ws1/d/f"), "x\n");
    assert_eq!(m.read("ws2/d/f"), "x\n");
    // Its owner may empty it, and goes on in it.
    let emptied = m.as_member(
        "c1",
        "cd $MNT/ws1; rm -rf $MNT/ws1; ls -A $MNT/ws1; echo again > f && cat $MNT/ws1/f",
    );
    assert_eq!(emptied.ok("go on in the emptied workspace"), "again");
    m.as_member("c2", "echo > $MNT/ws2/stop").ok("stop");
    assert!(inside.wait().unwrap().success());
    assert_eq!(m.read("ws2/end"), "done\n");
    let mut guest = Agent::guest(&m);
    guest.refused("os.unlink(MNT + '/ws1/f')", EROFS);
}
