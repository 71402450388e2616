//! Every change by whoever may not make it: the exact errno, and nothing changed.

use std::path::Path;

use serde_json::Value;

use crate::common::errno::{EPERM, EROFS, EXDEV};
use crate::common::{Agent, Flavor, Mount, flavors, need};

flavors! {
    another_windows_member_is_refused: passthrough, cached, ordinary, shared;
    a_guest_is_refused: passthrough, cached, ordinary, shared;
    a_guest_of_another_user_is_refused: shared, shared_cached;
    a_read_only_view_refuses_everybody: passthrough, cached, ordinary;
    a_view_acts_for_its_window_whoever_asks: passthrough, cached, ordinary;
    nobody_changes_what_has_no_holder: passthrough, cached;
    nobody_changes_the_trees_own_entries: passthrough, cached, ordinary;
    the_owner_may_do_all_of_it: passthrough, cached, ordinary, shared;
    old_descriptors_stay_good: passthrough, cached;
}

/// Changes within one workspace `W`: each is to be refused with EROFS, and each is possible for
/// the owner when tried in this order on [`GROUND`], reset by [`RESET`] before each.
const CHANGES: &[(&str, &str)] = &[
    ("open O_WRONLY", "sys_open(W + '/f', os.O_WRONLY)"),
    ("open O_RDWR", "sys_open(W + '/f', os.O_RDWR)"),
    (
        "open O_APPEND",
        "sys_open(W + '/f', os.O_WRONLY | os.O_APPEND)",
    ),
    (
        "open O_RDWR|O_NOFOLLOW",
        "sys_open(W + '/f', os.O_RDWR | os.O_NOFOLLOW)",
    ),
    (
        "open O_WRONLY|O_SYNC|O_NOATIME",
        "sys_open(W + '/f', os.O_WRONLY | os.O_SYNC | os.O_NOATIME | os.O_NONBLOCK)",
    ),
    (
        "create O_NOFOLLOW|O_DSYNC",
        "sys_open(W + '/new', os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW | os.O_DSYNC)",
    ),
    (
        "open O_RDONLY|O_TRUNC",
        "sys_open(W + '/f', os.O_RDONLY | os.O_TRUNC)",
    ),
    (
        "open O_WRONLY|O_TRUNC",
        "sys_open(W + '/f', os.O_WRONLY | os.O_TRUNC)",
    ),
    (
        "open through /proc",
        "fd = os.open(W + '/f', os.O_RDONLY)\ntry: sys_open(f'/proc/self/fd/{fd}', os.O_RDWR)\nfinally: os.close(fd)",
    ),
    ("open through a symlink", "sys_open(W + '/l', os.O_WRONLY)"),
    ("create", "sys_open(W + '/new', os.O_CREAT | os.O_WRONLY)"),
    (
        "create O_EXCL, to read",
        "sys_open(W + '/new', os.O_CREAT | os.O_EXCL | os.O_RDONLY)",
    ),
    (
        "create of what exists, to write",
        "sys_open(W + '/f', os.O_CREAT | os.O_WRONLY)",
    ),
    (
        "create through a dangling symlink",
        "sys_open(W + '/dangling', os.O_CREAT | os.O_WRONLY)",
    ),
    (
        "create below",
        "sys_open(W + '/d/new', os.O_CREAT | os.O_WRONLY)",
    ),
    ("mkdir", "os.mkdir(W + '/new')"),
    (
        "mkdirat",
        "fd = os.open(W + '/d', os.O_RDONLY)\ntry: os.mkdir('new', dir_fd=fd)\nfinally: os.close(fd)",
    ),
    ("mknod of a pipe", "mknod_fifo(W + '/new')"),
    (
        "mknod of a file",
        "os.mknod(W + '/new', stat.S_IFREG | 0o644)",
    ),
    (
        "mknod of a socket",
        "os.chdir(W)\ns = socket.socket(socket.AF_UNIX)\ntry: s.bind('new')\nfinally:\n  s.close(); os.chdir('/')",
    ),
    ("link", "os.link(W + '/f', W + '/new')"),
    ("symlink", "os.symlink('f', W + '/new')"),
    ("unlink", "os.unlink(W + '/f')"),
    ("unlink of a symlink", "os.unlink(W + '/l')"),
    ("unlink of a pipe", "os.unlink(W + '/p')"),
    ("rmdir", "os.rmdir(W + '/e')"),
    ("rename", "os.rename(W + '/f', W + '/new')"),
    ("rename over", "os.rename(W + '/f', W + '/x')"),
    ("rename down", "os.rename(W + '/f', W + '/d/f')"),
    ("rename up", "os.rename(W + '/d/g', W + '/g')"),
    ("rename of a directory", "os.rename(W + '/d', W + '/new')"),
    (
        "rename RENAME_NOREPLACE",
        "renameat2(W + '/f', W + '/new', 1)",
    ),
    ("rename RENAME_EXCHANGE", "renameat2(W + '/f', W + '/x', 2)"),
    ("truncate", "os.truncate(W + '/f', 1)"),
    ("truncate up", "os.truncate(W + '/f', 10000)"),
    ("chmod", "os.chmod(W + '/f', 0o600)"),
    ("chmod of a directory", "os.chmod(W + '/d', 0o700)"),
    (
        "fchmod",
        "fd = os.open(W + '/f', os.O_RDONLY)\ntry: os.fchmod(fd, 0o600)\nfinally: os.close(fd)",
    ),
    ("chown", "os.chown(W + '/f', os.geteuid(), os.getegid())"),
    ("lchown", "os.lchown(W + '/l', os.geteuid(), os.getegid())"),
    (
        "fchown",
        "fd = os.open(W + '/f', os.O_RDONLY)\ntry: os.fchown(fd, os.geteuid(), -1)\nfinally: os.close(fd)",
    ),
    ("utimes", "os.utime(W + '/f', (1, 1))"),
    ("utimes of now", "os.utime(W + '/f')"),
    ("utimes of a directory", "os.utime(W + '/d', (1, 1))"),
    (
        "lutimes",
        "os.utime(W + '/l', (1, 1), follow_symlinks=False)",
    ),
    (
        "futimens",
        "fd = os.open(W + '/f', os.O_RDONLY)\ntry: os.utime(fd, (1, 1))\nfinally: os.close(fd)",
    ),
    ("setxattr", "os.setxattr(W + '/f', 'user.b', b'2')"),
    (
        "setxattr of what exists",
        "os.setxattr(W + '/f', 'user.a', b'2')",
    ),
    (
        "setxattr on a directory",
        "os.setxattr(W + '/d', 'user.b', b'2')",
    ),
    (
        "fsetxattr",
        "fd = os.open(W + '/f', os.O_RDONLY)\ntry: os.setxattr(fd, 'user.b', b'2')\nfinally: os.close(fd)",
    ),
    ("removexattr", "os.removexattr(W + '/f', 'user.a')"),
    (
        "fremovexattr",
        "fd = os.open(W + '/f', os.O_RDONLY)\ntry: os.removexattr(fd, 'user.a')\nfinally: os.close(fd)",
    ),
    (
        "fallocate",
        "fd = os.open(W + '/f', os.O_RDWR)\ntry: fallocate(fd, 0, 0, 4096)\nfinally: os.close(fd)",
    ),
    (
        "copy_file_range",
        "i = os.open(W + '/f', os.O_RDONLY)\no = os.open(W + '/x', os.O_WRONLY)\ntry: os.copy_file_range(i, o, 2)\nfinally:\n  os.close(i); os.close(o)",
    ),
    ("FS_IOC_SETFLAGS", "set_flags(W + '/f', 0x80)"),
];

/// What only a mount for one user asks the daemon; with `--allow-other` the kernel judges.
const ACCESS: &[(&str, &str)] = &[
    ("access W_OK", "access(W + '/f', os.W_OK)"),
    ("access R_OK|W_OK", "access(W + '/f', os.R_OK | os.W_OK)"),
    ("access W_OK of a directory", "access(W + '/d', os.W_OK)"),
];

/// Between `W` and the workspace `O` of a member of c2: EXDEV, before who may write is asked.
const ACROSS: &[(&str, &str)] = &[
    ("rename out", "os.rename(W + '/f', O + '/new')"),
    ("rename in", "os.rename(O + '/own', W + '/new')"),
    ("rename over", "os.rename(O + '/own', W + '/f')"),
    ("rename of a directory", "os.rename(W + '/d', O + '/new')"),
    ("exchange", "renameat2(W + '/f', O + '/own', 2)"),
    ("link out", "os.link(W + '/f', O + '/new')"),
    ("link in", "os.link(O + '/own', W + '/new')"),
];

/// What reading is, and stays allowed for everybody.
const READS: &[(&str, &str)] = &[
    ("read", "[read(W + '/f') == b'first', None][0] or 1 / 0"),
    ("read below", "read(W + '/d/g')"),
    (
        "open O_NOFOLLOW",
        "sys_open(W + '/f', os.O_RDONLY | os.O_NOFOLLOW)",
    ),
    (
        "open O_NONBLOCK|O_NOCTTY",
        "sys_open(W + '/f', os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)",
    ),
    (
        "open O_DIRECTORY|O_NOFOLLOW",
        "sys_open(W + '/d', os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)",
    ),
    ("open O_PATH", "sys_open(W + '/f', os.O_PATH)"),
    (
        "pread",
        "fd = os.open(W + '/f', os.O_RDONLY)\n_ = os.pread(fd, 2, 1)\nos.close(fd)\nassert _ == b'ir', _",
    ),
    (
        "create of what exists, to read",
        "sys_open(W + '/f', os.O_CREAT | os.O_RDONLY)",
    ),
    (
        "list",
        "sorted(os.listdir(W)) == ['d', 'dangling', 'e', 'f', 'l', 'p', 'x'] or 1 / 0",
    ),
    ("stat", "os.stat(W + '/f').st_size == 5 or 1 / 0"),
    ("statfs", "os.statvfs(W + '/f').f_bsize"),
    ("readlink", "os.readlink(W + '/l') == 'f' or 1 / 0"),
    (
        "getxattr",
        "os.getxattr(W + '/f', 'user.a') == b'1' or 1 / 0",
    ),
    ("listxattr", "'user.a' in os.listxattr(W + '/f') or 1 / 0"),
    (
        "execute",
        "subprocess.run([W + '/x'], check=True).returncode",
    ),
    ("access", "access(W + '/f', os.R_OK)"),
    ("access X_OK", "access(W + '/x', os.R_OK | os.X_OK)"),
    (
        "chdir",
        "os.chdir(W + '/d')\n_ = os.getcwd()\nos.chdir('/')",
    ),
    (
        "map",
        "fd = os.open(W + '/f', os.O_RDONLY)\nmap = mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)\n_ = map[:]\nmap.close(); os.close(fd)\nassert _ == b'first', _",
    ),
    (
        "private map",
        "fd = os.open(W + '/f', os.O_RDONLY)\nmap = mmap.mmap(fd, 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)\nmap[0] = 65\nmap.close(); os.close(fd)",
    ),
    (
        "flock",
        "import fcntl\nfd = os.open(W + '/f', os.O_RDONLY)\nfcntl.flock(fd, fcntl.LOCK_SH)\nfcntl.flock(fd, fcntl.LOCK_EX)\nos.close(fd)",
    ),
    (
        "record lock",
        "import fcntl\nf = open(W + '/f', 'rb')\nfcntl.lockf(f, fcntl.LOCK_SH)\nf.close()",
    ),
    (
        "inotify",
        "fd = libc.inotify_init1(0)\n_ = _check(libc.inotify_add_watch(fd, b(W), 0xfff))\nos.close(fd)",
    ),
    (
        "fsync",
        "fd = os.open(W + '/f', os.O_RDONLY)\nos.fsync(fd)\nos.close(fd)",
    ),
];

/// What the owner of `W` lays there. Everything is open to everybody, so that only panefs
/// refuses.
const GROUND: &str = "
os.umask(0)
os.mkdir(W + '/d'); os.mkdir(W + '/e')
write(W + '/f', 'first'); write(W + '/d/g', 'below')
write(W + '/x', '#!/bin/sh\\nexit 0\\n'); os.chmod(W + '/x', 0o777)
for name in ('f', 'd/g'): os.chmod(W + '/' + name, 0o666)
for name in ('d', 'e', ''): os.chmod(W + '/' + name, 0o777)
os.symlink('f', W + '/l'); os.symlink('nowhere', W + '/dangling')
os.mkfifo(W + '/p')
os.setxattr(W + '/f', 'user.a', b'1')
";

/// Empties `W`.
const RESET: &str = "
import shutil
for name in os.listdir(W):
    p = W + '/' + name
    shutil.rmtree(p) if os.path.isdir(p) and not os.path.islink(p) else os.unlink(p)
";

/// A mount where c1 has laid its ground in ws1, and c2 has one file in ws2.
struct Stage {
    m: Mount,
    owner: Agent,
}

impl Stage {
    fn new(flavor: Flavor) -> Self {
        need(&["python3"]);
        let m = Mount::new(flavor);
        m.allocate(&["c1", "c2"]);
        let mut owner = Agent::member(&m, "c1");
        owner.ok("W = MNT + '/ws1'");
        owner.ok(GROUND);
        let mut second = Agent::member(&m, "c2");
        second.ok("os.umask(0); write(MNT + '/ws2/own', 'own'); os.chmod(MNT + '/ws2', 0o777); os.chmod(MNT + '/ws2/own', 0o666)");
        Self { m, owner }
    }

    fn snapshot(&mut self) -> Value {
        self.owner.ok("snapshot(MNT + '/ws1', MNT + '/ws2')")
    }

    /// Tries every change as `who` in `root`'s ws1, and checks after each that nothing changed.
    fn try_all(&mut self, who: &mut Agent, root: &Path, access: bool) {
        self.try_each(who, root, access, EXDEV);
    }

    /// The same, where names that would cross workspaces get this errno.
    fn try_each(&mut self, who: &mut Agent, root: &Path, access: bool, across: i32) {
        let root = root.to_str().unwrap();
        who.ok(&format!("W, O = '{root}/ws1', '{root}/ws2'"));
        let before = self.snapshot();
        let within = CHANGES.iter().map(|change| (change, EROFS));
        let asked = ACCESS.iter().map(|change| (change, EROFS));
        let across = ACROSS.iter().map(|change| (change, across));
        let all = within.chain(asked.filter(|_| access)).chain(across);
        let mut wrong = Vec::new();
        for ((name, code), errno) in all {
            let got = who.eval(code);
            if got != Err(errno) {
                let expected = std::io::Error::from_raw_os_error(errno);
                let got = got.map_err(std::io::Error::from_raw_os_error);
                wrong.push(format!("{name}: {got:?}, expected {expected}"));
            }
            let after = self.snapshot();
            if after != before {
                wrong.push(format!(
                    "{name} changed something: {}",
                    difference(&before, &after)
                ));
                break;
            }
        }
        assert!(wrong.is_empty(), "in {root}:\n{}", wrong.join("\n"));
        for (name, code) in READS {
            if let Err(e) = who.eval(code) {
                let e = std::io::Error::from_raw_os_error(e);
                panic!("{name} in {root} is reading, and got: {e}");
            }
        }
    }
}

/// The first entry of two snapshots that differs.
fn difference(before: &Value, after: &Value) -> String {
    let (before, after) = (before.as_array().unwrap(), after.as_array().unwrap());
    let pair = before.iter().zip(after).find(|(b, a)| b != a);
    match pair {
        Some((b, a)) => format!("{b}\nbecame {a}"),
        None => format!("{} entries became {}", before.len(), after.len()),
    }
}

fn another_windows_member_is_refused(flavor: Flavor) {
    let mut stage = Stage::new(flavor);
    let mut member = Agent::member(&stage.m, "c2");
    let mnt = stage.m.mnt().to_owned();
    stage.try_all(&mut member, &mnt, !flavor.is_shared());
    // And it is still a member: its own workspace it may change.
    member.ok("write(MNT + '/ws2/more', 'more')");
    let whoami = member.ok("json.loads(read(MNT + '/.panefs/whoami'))");
    assert_eq!(whoami["window"], "c2", "{whoami}");
    assert_eq!(
        whoami["last_refusal"]["rule"], "write.not_holder",
        "{whoami}"
    );
    assert_eq!(whoami["last_refusal"]["holder"], "c1", "{whoami}");
}

fn a_guest_is_refused(flavor: Flavor) {
    let mut stage = Stage::new(flavor);
    let mut guest = Agent::guest(&stage.m);
    let mnt = stage.m.mnt().to_owned();
    stage.try_all(&mut guest, &mnt, !flavor.is_shared());
    guest.refused("sys_open(MNT + '/ws2/own', os.O_WRONLY)", EROFS);
    let whoami = guest.ok("json.loads(read(MNT + '/.panefs/whoami'))");
    assert_eq!(whoami["role"], "guest", "{whoami}");
    assert_eq!(whoami["last_refusal"]["rule"], "write.guest", "{whoami}");
    assert_eq!(whoami["last_refusal"]["holder"], "c2", "{whoami}");
}

fn a_guest_of_another_user_is_refused(flavor: Flavor) {
    let stage = Stage::new(flavor);
    let mut other = Agent::of(&stage.m, 23456, 23456);
    other.ok("W = MNT + '/ws1'");
    // The mode lets it, panefs doesn't.
    for change in ["sys_open(W + '/f', os.O_WRONLY)", "os.mkdir(W + '/new')"] {
        other.refused(change, EROFS);
    }
    other.ok("read(W + '/f')");
    // Where the kernel judges modes, they come first.
    let mut owner = stage.owner;
    owner.ok("os.chmod(W + '/f', 0o600)");
    other.refused(
        "sys_open(W + '/f', os.O_WRONLY)",
        crate::common::errno::EACCES,
    );
    other.refused(
        "sys_open(W + '/f', os.O_RDONLY)",
        crate::common::errno::EACCES,
    );
}

fn a_read_only_view_refuses_everybody(flavor: Flavor) {
    let mut stage = Stage::new(flavor);
    let view = stage.m.view(None);
    // The kernel refuses there, as on every read-only mount: before it looks where a name leads.
    let mut guest = Agent::guest(&stage.m);
    stage.try_each(&mut guest, &view, true, EROFS);
    let mut owner = Agent::member(&stage.m, "c1");
    stage.try_each(&mut owner, &view, true, EROFS);
    owner.ok("write(MNT + '/ws1/f', 'first')");
    let dir = view.to_str().unwrap();
    stage.m.cli(&["leave", dir]).ok("leave");
    assert!(!stage.m.mounts().contains(&view), "left, and still mounted");
}

fn a_view_acts_for_its_window_whoever_asks(flavor: Flavor) {
    let mut stage = Stage::new(flavor);
    let (one, two) = (stage.m.view(Some("c1")), stage.m.view(Some("c2")));
    let mut guest = Agent::guest(&stage.m);
    stage.try_all(&mut guest, &two, true);
    let mut owner = Agent::member(&stage.m, "c1");
    stage.try_all(&mut owner, &two, true);
    let (one, two) = (one.display(), two.display());
    guest.ok(&format!("write('{two}/ws2/by-view', 'x')"));
    guest.ok(&format!("write('{one}/ws1/by-view', 'x')"));
    guest.ok(&format!("assert os.readlink('{one}/self') == 'ws1'"));
    guest.refused(&format!("write('{one}/ws2/own', 'x')"), EROFS);
    guest.ok("assert read(MNT + '/ws1/by-view') == b'x'");
    // After the handoff it is read-only.
    stage.m.ctl("handoff c1 c3");
    guest.refused(&format!("write('{one}/ws1/by-view', 'y')"), EROFS);
    guest.ok(&format!("read('{one}/ws1/by-view')"));
}

fn nobody_changes_what_has_no_holder(flavor: Flavor) {
    let mut stage = Stage::new(flavor);
    stage.m.ctl("release c1");
    let mnt = stage.m.mnt().to_owned();
    // Its last holder's member is one of those who look.
    let mut member = Agent::member(&stage.m, "c2");
    stage.try_all(&mut member, &mnt, true);
    stage.owner.refused("write(MNT + '/ws1/f', 'x')", EROFS);
    let whoami = stage.owner.ok("json.loads(read(MNT + '/.panefs/whoami'))");
    assert_eq!(
        whoami["last_refusal"]["rule"], "write.no_holder",
        "{whoami}"
    );
}

fn nobody_changes_the_trees_own_entries(flavor: Flavor) {
    let mut stage = Stage::new(flavor);
    let changes = [
        "sys_open(MNT + '/new', os.O_CREAT | os.O_WRONLY)",
        "os.mkdir(MNT + '/ws9')",
        "os.mkdir(MNT + '/new')",
        "os.symlink('ws1', MNT + '/new')",
        "mknod_fifo(MNT + '/new')",
        "os.rmdir(MNT + '/ws1')",
        "os.rmdir(MNT + '/.panefs')",
        "os.unlink(MNT + '/self')",
        "os.unlink(MNT + '/cwd')",
        "os.rename(MNT + '/ws1', MNT + '/ws9')",
        "os.rename(MNT + '/ws1', MNT + '/ws2')",
        "os.rename(MNT + '/self', MNT + '/other')",
        "os.rename(MNT + '/.panefs', MNT + '/other')",
        "os.chmod(MNT, 0o700)",
        "os.utime(MNT, (1, 1))",
        "os.chown(MNT, os.geteuid(), os.getegid())",
        "sys_open(MNT + '/.panefs/new', os.O_CREAT | os.O_WRONLY)",
        "os.mkdir(MNT + '/.panefs/new')",
        "os.symlink('x', MNT + '/.panefs/new')",
        "os.unlink(MNT + '/.panefs/ctl')",
        "os.unlink(MNT + '/.panefs/help')",
        "os.rename(MNT + '/.panefs/ctl', MNT + '/.panefs/other')",
        "os.chmod(MNT + '/.panefs/ctl', 0o666)",
        "os.rmdir(MNT + '/.panefs/windows')",
        "sys_open(MNT + '/.panefs/windows/c1/new', os.O_CREAT | os.O_WRONLY)",
        "os.unlink(MNT + '/.panefs/windows/c1/procs')",
        "os.mkdir(MNT + '/.panefs/jobs/j1')",
    ];
    let before = stage.snapshot();
    let names = "sorted(os.listdir(MNT)), sorted(os.listdir(MNT + '/.panefs'))";
    let listed = stage.owner.ok(names);
    let guest = Agent::guest(&stage.m);
    let member = Agent::member(&stage.m, "c1");
    let mut wrong = Vec::new();
    for (who, mut agent) in [("a guest", guest), ("a member of c1", member)] {
        for change in changes {
            let got = agent.eval(change);
            if got != Err(EPERM) {
                let got = got.map_err(std::io::Error::from_raw_os_error);
                wrong.push(format!("{change} by {who}: {got:?}, expected EPERM"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(stage.snapshot(), before);
    assert_eq!(stage.owner.ok(names), listed);
}

fn the_owner_may_do_all_of_it(flavor: Flavor) {
    // The other half of the proof: what is refused above is possible for the owner.
    let mut stage = Stage::new(flavor);
    let mut wrong = Vec::new();
    for (name, code) in CHANGES.iter().chain(ACCESS).chain(READS) {
        stage.owner.ok(RESET);
        stage.owner.ok(GROUND);
        if let Err(e) = stage.owner.eval(code) {
            wrong.push(format!("{name}: {}", std::io::Error::from_raw_os_error(e)));
        }
    }
    assert!(
        wrong.is_empty(),
        "refused to the owner:\n{}",
        wrong.join("\n")
    );
}

fn old_descriptors_stay_good(flavor: Flavor) {
    // A descriptor that was opened by a member works in whoever's hands, as `sudo cmd > log`.
    let stage = Stage::new(flavor);
    let mut owner = stage.owner;
    owner.ok(
        "fd = os.open(W + '/log', os.O_CREAT | os.O_RDWR, 0o644); os.set_inheritable(fd, True)",
    );
    owner.ok("os.write(fd, b'one ')");
    let pid = owner.pid();
    stage.m.ctl(&format!("unbind pid={pid}"));
    owner.refused("sys_open(W + '/log', os.O_WRONLY)", EROFS);
    owner.ok("os.write(fd, b'two '); os.ftruncate(fd, 100); os.ftruncate(fd, 8); fallocate(fd, 1, 0, 4096)");
    owner.ok("subprocess.run(['sh', '-c', 'printf three >&%d' % fd], pass_fds=[fd], check=True)");
    owner.ok("assert read(W + '/log') == b'one two three', read(W + '/log')");
    // A release ends that. (What the kernel passes through by itself needs a fence.)
    stage.m.ctl("release c1");
    if !flavor.is_passthrough() {
        owner.refused("os.write(fd, b'four')", EROFS);
        owner.ok("assert read(W + '/log') == b'one two three', read(W + '/log')");
    }
    owner.refused("os.ftruncate(fd, 0)", EROFS);
    owner.refused("fallocate(fd, 0, 0, 4096)", EROFS);
}
