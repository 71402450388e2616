//! Several users on one mount, and an ordinary user's own.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use crate::common::errno::{EACCES, EPERM, EROFS};
use crate::common::{Agent, Flavor, Mount, flavors, is_root, need, run};

flavors! {
    files_belong_to_who_creates_them: shared, shared_cached;
    modes_groups_and_acls_are_the_kernels: shared, shared_cached;
    set_id_bits_are_cleared: shared, shared_cached, passthrough, cached;
    control_files_are_their_owners: shared;
    nobody_binds_another_users_process: shared;
    without_allow_other_nobody_else_comes_in: passthrough, ordinary;
    an_ordinary_users_store_is_covered: ordinary;
    an_ordinary_user_does_the_main_things: ordinary;
}

const ANN: (u32, u32) = (23456, 23456);
const BOB: (u32, u32) = (34567, 34567);

/// A mount with a window for each: c1 is Ann's, c2 is Bob's.
fn stage(flavor: Flavor) -> (Mount, Agent, Agent) {
    assert!(
        is_root(),
        "only root mounts for several users: run this suite as root"
    );
    let m = Mount::new(flavor);
    m.ctl("allocate c1 owner=23456:23456");
    m.ctl("allocate c2 owner=34567:34567");
    let mut ann = Agent::of(&m, ANN.0, ANN.1);
    let mut bob = Agent::of(&m, BOB.0, BOB.1);
    ann.join("c1");
    bob.join("c2");
    (m, ann, bob)
}

/// The owner, group and mode of a file in the store.
fn backing(m: &Mount, path: &str) -> (u32, u32, u32) {
    let meta = fs::symlink_metadata(m.store().join("workspaces").join(path)).unwrap();
    (meta.uid(), meta.gid(), meta.mode() & 0o7777)
}

fn files_belong_to_who_creates_them(flavor: Flavor) {
    let (m, mut ann, mut bob) = stage(flavor);
    assert_eq!(
        backing(&m, "ws1"),
        (ANN.0, ANN.1, 0o755),
        "the top is its owner's"
    );
    ann.ok("W = MNT + '/ws1'; os.umask(0o027)");
    ann.ok("write(W + '/f', 'x'); os.mkdir(W + '/d'); os.symlink('f', W + '/l'); os.mkfifo(W + '/p'); os.mknod(W + '/n', stat.S_IFREG | 0o666)");
    for (name, mode) in [
        ("f", 0o640),
        ("d", 0o750),
        ("l", 0o777),
        ("p", 0o640),
        ("n", 0o640),
    ] {
        let got = backing(&m, &format!("ws1/{name}"));
        assert_eq!(got, (ANN.0, ANN.1, mode), "{name}");
    }
    ann.ok("assert os.stat(W + '/f').st_uid == os.getuid()");
    // Modes of others hold, and come before EROFS.
    bob.refused("read(MNT + '/ws1/f')", EACCES);
    bob.refused("write(MNT + '/ws1/f', 'x')", EACCES);
    bob.refused("os.listdir(MNT + '/ws1/d')", EACCES);
    ann.ok("os.chmod(W + '/f', 0o666)");
    bob.ok("assert read(MNT + '/ws1/f') == b'x'");
    bob.refused("write(MNT + '/ws1/f', 'y')", EROFS);
    bob.refused("os.chmod(MNT + '/ws1/f', 0o600)", EPERM);
    // Root is nobody special: a guest, and as a member it creates as root.
    let mut root = Agent::guest(&m);
    root.refused("write(MNT + '/ws1/f', 'y')", EROFS);
    root.join("c1");
    root.ok("write(MNT + '/ws1/by-root', 'x'); write(MNT + '/ws1/f', 'by root')");
    assert_eq!(backing(&m, "ws1/by-root").0, 0);
    assert_eq!(backing(&m, "ws1/f").0, ANN.0);
    // Who owns a file may not give it away, nor write over root's.
    ann.refused("os.chown(W + '/f', 34567, -1)", EPERM);
    ann.refused("write(W + '/by-root', 'y')", EACCES);
    ann.ok("os.unlink(W + '/by-root')");
}

fn modes_groups_and_acls_are_the_kernels(flavor: Flavor) {
    need(&["setfacl", "getfacl", "setpriv"]);
    let (m, mut ann, _bob) = stage(flavor);
    ann.ok("W = MNT + '/ws1'; os.umask(0o022)");
    // A directory with the set-group-id bit hands its group down.
    let mut root = Agent::guest(&m);
    root.join("c1");
    root.ok("os.mkdir(MNT + '/ws1/team'); os.chown(MNT + '/ws1/team', 23456, 45678); os.chmod(MNT + '/ws1/team', 0o2775)");
    ann.ok("write(W + '/team/f', 'x'); os.mkdir(W + '/team/d')");
    assert_eq!(backing(&m, "ws1/team/f"), (ANN.0, 45678, 0o644));
    assert_eq!(backing(&m, "ws1/team/d"), (ANN.0, 45678, 0o2755));
    // Supplementary groups give what they give: here to a member whose own group is another.
    let mut command = m.command("setpriv");
    command.args([
        "--reuid", "34567", "--regid", "34567", "--groups", "45678", "python3",
    ]);
    let mut helper = Agent::start(command);
    let pid = helper.pid();
    m.ctl(&format!("bind c1 pid={pid}"));
    helper.ok("os.umask(0o002); write(MNT + '/ws1/team/by-helper', 'x')");
    assert_eq!(backing(&m, "ws1/team/by-helper"), (BOB.0, 45678, 0o644));
    helper.refused("write(MNT + '/ws1/not-theirs', 'x')", EACCES);
    // Default ACLs go down, and replace the umask.
    let acl = "mkdir $MNT/ws1/acl && setfacl -d -m u:34567:rwx,g::r-x,o::- $MNT/ws1/acl";
    let mut command = m.command_of("bash", ANN.0, ANN.1);
    command.args(["-c", &format!("echo 0 > $MNT/.panefs/windows/c1/procs && {acl} && umask 077 && echo x > $MNT/ws1/acl/f && mkdir $MNT/ws1/acl/d && getfacl -cn $MNT/ws1/acl/f")]);
    let said = run(command, std::time::Duration::from_secs(30));
    let through = said.ok("default ACLs").to_owned();
    assert!(through.contains("user:34567:rwx"), "{through}");
    let store = m.as_guest("getfacl -cn $STORE/workspaces/ws1/acl/f");
    assert_eq!(store.ok("getfacl in the store").trim(), through.trim());
    helper.ok("os.write(os.open(MNT + '/ws1/acl/f', os.O_WRONLY), b'by acl')");
}

fn set_id_bits_are_cleared(flavor: Flavor) {
    // By who may not keep them: on write, truncate and chown, as on disk.
    assert!(is_root(), "run this suite as root");
    let m = Mount::new(flavor);
    m.ctl("allocate c1");
    let mut root = Agent::member(&m, "c1");
    root.ok("W = MNT + '/ws1'; os.chmod(W, 0o777)");
    let mode = |agent: &mut Agent| {
        agent
            .ok("oct(os.stat(W + '/f').st_mode & 0o7777)")
            .as_str()
            .unwrap()
            .to_owned()
    };
    let reset = "write(W + '/f', 'x' * 100); os.chmod(W + '/f', 0o6777)";
    root.ok(reset);
    root.ok("put(W + '/f', 'y')");
    // The kernel passes writes through with no capability, whoever writes.
    let kept = if flavor.is_passthrough() {
        "0o777"
    } else {
        "0o6777"
    };
    assert_eq!(mode(&mut root), kept, "root keeps them, by CAP_FSETID");
    root.ok(reset);
    root.ok("os.chown(W + '/f', 0, 0)");
    assert_eq!(mode(&mut root), "0o777", "chown clears them");
    if !flavor.is_shared() {
        return;
    }
    let mut ann = Agent::of(&m, ANN.0, ANN.1);
    let pid = ann.pid();
    m.ctl(&format!("bind c1 pid={pid}"));
    ann.ok("W = MNT + '/ws1'");
    for (how, code) in [
        ("write", "put(W + '/f', 'y')"),
        ("truncate", "os.truncate(W + '/f', 10)"),
        ("O_TRUNC", "sys_open(W + '/f', os.O_WRONLY | os.O_TRUNC)"),
        (
            "ftruncate",
            "fd = os.open(W + '/f', os.O_RDWR); os.ftruncate(fd, 5); os.close(fd)",
        ),
        (
            "fallocate",
            "fd = os.open(W + '/f', os.O_RDWR); fallocate(fd, 0, 0, 8192); os.close(fd)",
        ),
    ] {
        root.ok(reset);
        ann.ok(code);
        assert_eq!(
            mode(&mut root),
            "0o777",
            "{how} by an ordinary user clears them"
        );
    }
}

fn control_files_are_their_owners(flavor: Flavor) {
    let (m, mut ann, mut bob) = stage(flavor);
    let meta = |path: &str| {
        let meta = fs::metadata(m.mnt().join(".panefs").join(path)).unwrap();
        (meta.uid(), meta.permissions().mode() & 0o777)
    };
    assert_eq!(meta("ctl"), (0, 0o600));
    assert_eq!(meta("operators"), (0, 0o600));
    assert_eq!(meta("windows/c1/procs"), (ANN.0, 0o600));
    assert_eq!(meta("windows/c1/ctl"), (ANN.0, 0o600));
    assert_eq!(meta("windows/c2/procs"), (BOB.0, 0o600));
    assert_eq!(meta("whoami").1, 0o444);
    bob.refused("put(MNT + '/.panefs/windows/c1/procs', '0\\n')", EACCES);
    bob.refused("os.open(MNT + '/.panefs/ctl', os.O_RDWR)", EACCES);
    bob.refused("put(MNT + '/.panefs/operators', '0\\n')", EACCES);
    let whoami = ann.ok("json.loads(read(MNT + '/.panefs/whoami'))");
    assert_eq!(whoami["window"], "c1", "{whoami}");
    // Its own control file serves it.
    let reply = ann.ok("ctl('handoff\\n', MNT + '/.panefs/windows/c1/ctl')");
    assert_eq!(reply[0], 0, "{reply}");
    assert_eq!(
        meta("windows/c3/procs"),
        (ANN.0, 0o600),
        "the continuation is Ann's too"
    );
}

/// Who is bound can be ended by `members=end`, with the daemon's rights, and no longer writes where
/// it did: so a window's owner binds its own processes alone, as it may signal those alone.
fn nobody_binds_another_users_process(flavor: Flavor) {
    let (m, _ann, _bob) = stage(flavor);
    let victim = Agent::guest(&m);
    let pid = victim.pid();
    let mut ann = Agent::of(&m, ANN.0, ANN.1);
    ann.refused(&format!("os.kill({pid}, 0)"), EPERM);
    for file in ["procs", "threads"] {
        let write = format!("put(MNT + '/.panefs/windows/c1/{file}', '{pid}')");
        ann.refused(&write, EPERM);
    }
    let own = Agent::of(&m, ANN.0, ANN.1);
    ann.ok(&format!(
        "put(MNT + '/.panefs/windows/c1/procs', '{}')",
        own.pid()
    ));
    let members = m.read(".panefs/windows/c1/procs");
    assert!(members.lines().any(|line| line == own.pid().to_string()));
    assert!(!members.lines().any(|line| line == pid.to_string()));
}

fn without_allow_other_nobody_else_comes_in(flavor: Flavor) {
    assert!(is_root(), "run this suite as root");
    let m = Mount::new(flavor);
    m.allocate(&["c1"]);
    let mut other = Agent::of(&m, ANN.0, ANN.1);
    other.refused("os.listdir(MNT)", EACCES);
    other.refused("read(MNT + '/.panefs/whoami')", EACCES);
    let mode = fs::metadata(m.store()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700, "STORE");
    other.refused("os.listdir(os.environ['STORE'])", EACCES);
}

fn an_ordinary_users_store_is_covered(flavor: Flavor) {
    let m = Mount::new(flavor);
    m.allocate(&["c1"]);
    m.as_member("c1", "echo x > $MNT/ws1/f").ok("write");
    // Nobody reaches the files around the mount: not by the store, not by the daemon.
    let daemon = m.daemon().expect("a daemon");
    let around = [
        "cat $STORE/workspaces/ws1/f".to_owned(),
        "echo no > $STORE/workspaces/ws1/f".to_owned(),
        "touch $STORE/workspaces/ws1/new".to_owned(),
        format!("ls -l /proc/{daemon}/fd/"),
        format!("cat /proc/{daemon}/root/$STORE/workspaces/ws1/f"),
        format!("ls /proc/{daemon}/cwd/"),
    ];
    for script in &around {
        let ended = m.as_guest(script);
        assert!(!ended.status.success(), "{script}: {ended}");
        let ended = m.as_member("c1", script);
        assert!(!ended.status.success(), "{script} by a member: {ended}");
    }
    m.unmount();
    // With nothing mounted it is the files that it always was.
    let copy =
        m.as_guest("cat $STORE/workspaces/ws1/f && cp -a $STORE/workspaces/ws1 copy && cat copy/f");
    assert_eq!(copy.ok("a backup"), "x\nx");
    m.mount();
}

fn an_ordinary_user_does_the_main_things(flavor: Flavor) {
    need(&["git", "fusermount3"]);
    let m = Mount::new(flavor);
    m.cli(&["allocate", "c1"]).ok("allocate");
    let script = "cd $MNT/ws1 && git init -q r && cd r && seq 1000 > f && git add f && git commit -qm one && \
        ln f g && mkdir d && mv g d/ && chmod 600 f && touch -d 2001-01-01 f && setfattr -n user.a -v 1 f && \
        getfattr --only-values -n user.a f && tar c . | tar t | wc -l && git status --porcelain && rm -r d";
    let said = m.as_member("c1", script);
    assert!(said.ok("work").starts_with('1'), "{said}");
    m.ctl("handoff c1 c2");
    m.as_member(
        "c2",
        "cd $MNT/ws1/r && echo more >> f && git commit -qam two && git fsck --full",
    )
    .ok("go on");
    m.as_guest("! touch $MNT/ws1/r/f").ok("a guest is refused");
    m.ctl("release c2");
    m.ctl("reclaim ws1");
    m.ctl("restore ws1");
    assert_eq!(
        m.as_guest("git -C $MNT/ws1/r log --oneline | wc -l")
            .ok("log"),
        "2"
    );
}
