//! A store, its mount, and those who use it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use serde_json::Value;
use tempfile::TempDir;

use super::agent::Agent;
use super::process::{Ended, end, eventually, ordinary_possible, run};

/// An ordinary user that owns nothing but what the test gives it, and that has a name:
/// fusermount3 asks for it.
const ORDINARY: &str = "nobody";
/// Where the system's own tools are; before whatever the caller's PATH has.
pub const PATH_FIRST: &str = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";
/// Marks every process of a mount, in its environment.
const MARK: &str = "PANEFS_TEST_HOME";
/// How long a command may take before the test fails: far more than any needs.
const LIMIT: Duration = Duration::from_secs(120);

/// Held shared by each mount, and alone by one of a test that measures.
static QUIET: RwLock<()> = RwLock::new(());

/// How a filesystem is mounted, and by whom.
#[derive(Debug, Clone, Copy)]
pub struct Flavor {
    /// Without it, `--no-passthrough`.
    passthrough: bool,
    /// By an ordinary user, where the suite runs as root.
    ordinary: bool,
    allow_other: bool,
}

impl Flavor {
    /// As root, with passthrough.
    pub fn passthrough() -> Self {
        Self {
            passthrough: true,
            ordinary: false,
            allow_other: false,
        }
    }

    /// As root, without passthrough.
    pub fn cached() -> Self {
        Self {
            passthrough: false,
            ..Self::passthrough()
        }
    }

    /// By an ordinary user, through fusermount3.
    pub fn ordinary() -> Self {
        Self {
            ordinary: true,
            ..Self::passthrough()
        }
    }

    /// As root, for several users.
    pub fn shared() -> Self {
        Self {
            allow_other: true,
            ..Self::passthrough()
        }
    }

    /// As root, for several users, without passthrough.
    pub fn shared_cached() -> Self {
        Self {
            allow_other: true,
            ..Self::cached()
        }
    }

    /// Whether it uses passthrough where it may.
    pub fn is_passthrough(self) -> bool {
        self.passthrough
    }

    /// Whether several users may use it.
    pub fn is_shared(self) -> bool {
        self.allow_other
    }

    /// Whether another user than the suite's own mounts it.
    pub fn is_ordinary(self) -> bool {
        self.ordinary
    }
}

/// What a write to a control file gave.
#[derive(Debug)]
pub struct Reply {
    /// 0 where the write succeeded.
    pub errno: i32,
    /// Bytes that it took.
    pub taken: usize,
    /// The reply lines that were waiting.
    pub lines: Vec<Value>,
}

impl Reply {
    /// The only reply line.
    #[track_caller]
    pub fn line(&self) -> &Value {
        assert_eq!(self.lines.len(), 1, "one reply line is expected: {self:?}");
        &self.lines[0]
    }
}

/// A mounted filesystem. Dropping it unmounts, and checks that nothing is left.
pub struct Mount {
    flavor: Flavor,
    store: PathBuf,
    mnt: PathBuf,
    binary: PathBuf,
    views: AtomicU32,
    /// The mount's user at work, where that isn't the suite's own.
    hand: Mutex<Option<Agent>>,
    home: TempDir,
    _others: Option<RwLockReadGuard<'static, ()>>,
    _nobody: Option<RwLockWriteGuard<'static, ()>>,
}

impl Mount {
    /// A new store, mounted.
    pub fn new(flavor: Flavor) -> Self {
        let mount = Self::unmounted(flavor);
        mount.mount();
        mount
    }

    /// The same, with no other mount of the suite beside it, for a test that measures.
    pub fn alone(flavor: Flavor) -> Self {
        let nobody = QUIET.write();
        let mut mount = Self::ground(flavor);
        mount._nobody = Some(nobody);
        mount.mount();
        mount
    }

    /// A second mount of a test that has one [`Mount::alone`].
    pub fn beside(flavor: Flavor, alone: &Self) -> Self {
        assert!(alone._nobody.is_some());
        let mount = Self::ground(flavor);
        mount.mount();
        mount
    }

    /// A place for a store and a mount; nothing is mounted yet, and the store doesn't exist.
    pub fn unmounted(flavor: Flavor) -> Self {
        // Recursive: a test may have two mounts while one that measures waits.
        let others = QUIET.read_recursive();
        let mut mount = Self::ground(flavor);
        mount._others = Some(others);
        mount
    }

    fn ground(mut flavor: Flavor) -> Self {
        flavor.ordinary &= is_root();
        let home = tempfile::Builder::new()
            .prefix("panefs-test-")
            .permissions(fs::Permissions::from_mode(0o755))
            .tempdir()
            .unwrap();
        let base = home.path().canonicalize().unwrap();
        let (store, mnt) = (base.join("store"), base.join("mnt"));
        fs::create_dir(&mnt).unwrap();
        let mut binary = PathBuf::from(env!("CARGO_BIN_EXE_panefs"));
        if flavor.ordinary || !is_root() {
            ordinary_possible();
        }
        if flavor.ordinary {
            // The build directory may lie where another user can't go.
            let own = base.join("panefs");
            if fs::hard_link(&binary, &own).is_err() {
                fs::copy(&binary, &own).unwrap();
            }
            binary = own;
            let (uid, gid) = ordinary();
            for dir in [&base, &mnt] {
                std::os::unix::fs::chown(dir, Some(uid), Some(gid)).unwrap();
            }
        }
        Self {
            flavor,
            store,
            mnt,
            binary,
            views: AtomicU32::new(0),
            hand: Mutex::new(None),
            home,
            _others: None,
            _nobody: None,
        }
    }

    /// The temporary directory around store and mountpoint; the user's home.
    pub fn home(&self) -> PathBuf {
        self.home.path().canonicalize().unwrap()
    }

    /// STORE.
    pub fn store(&self) -> &Path {
        &self.store
    }

    /// MNT.
    pub fn mnt(&self) -> &Path {
        &self.mnt
    }

    /// The top of a workspace: `ws("ws1")`.
    pub fn ws(&self, name: &str) -> PathBuf {
        self.mnt.join(name)
    }

    /// A workspace's directory in the store.
    pub fn backing(&self, name: &str) -> PathBuf {
        self.store.join("workspaces").join(name)
    }

    /// A command of the mount's user, at home and knowing MNT, STORE and PANEFS_MNT.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        if self.flavor.ordinary {
            let (uid, gid) = ordinary();
            return self.command_of(program, uid, gid);
        }
        self.bare_command(program)
    }

    /// A command of this user, without supplementary groups.
    pub fn command_of(&self, program: impl AsRef<OsStr>, uid: u32, gid: u32) -> Command {
        let mut command = self.bare_command(program);
        command.env("PATH", PATH_FIRST).uid(uid).gid(gid);
        command
    }

    fn bare_command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        for (key, _) in std::env::vars_os() {
            let name = key.to_string_lossy();
            let cargo = name.starts_with("CARGO") && name != "CARGO_HOME";
            if cargo || name.starts_with("PANEFS") || name.starts_with("GIT_") {
                command.env_remove(&key);
            }
        }
        let path = std::env::var("PATH").unwrap_or_default();
        let tools = self.binary.parent().unwrap().display();
        command
            .env("PATH", format!("{PATH_FIRST}:{path}:{tools}"))
            .env("LC_ALL", "C.UTF-8")
            .env(MARK, self.home())
            .env("MNT", &self.mnt)
            .env("STORE", &self.store)
            .env("PANEFS", &self.binary)
            .env("PANEFS_MNT", &self.mnt)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .current_dir(self.home());
        for who in ["AUTHOR", "COMMITTER"] {
            command
                .env(format!("GIT_{who}_NAME"), "Test")
                .env(format!("GIT_{who}_EMAIL"), "test@example.invalid");
        }
        if self.flavor.ordinary {
            command.env("HOME", self.home());
        }
        command
    }

    /// Runs `panefs ARGS` as a guest.
    #[track_caller]
    pub fn cli(&self, args: &[&str]) -> Ended {
        let mut command = self.command(&self.binary);
        command.args(args);
        run(command, LIMIT)
    }

    /// Where the binary is.
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// `panefs mount STORE MNT`, and how it ended.
    pub fn try_mount(&self) -> Ended {
        let mut command = self.command(&self.binary);
        command.arg("mount");
        if !self.flavor.passthrough {
            command.arg("--no-passthrough");
        }
        if self.flavor.allow_other {
            command.arg("--allow-other");
        }
        command.arg(&self.store).arg(&self.mnt);
        run(command, LIMIT)
    }

    /// `panefs mount STORE MNT`, which must succeed.
    #[track_caller]
    pub fn mount(&self) {
        self.try_mount().ok("panefs mount STORE MNT");
    }

    /// `panefs unmount MNT`, which must succeed and end the daemon.
    #[track_caller]
    pub fn unmount(&self) {
        let daemon = self.daemon();
        let mut command = self.command(&self.binary);
        command.arg("unmount").arg(&self.mnt);
        run(command, Duration::from_secs(30)).ok("panefs unmount MNT");
        assert_eq!(self.mounts(), Vec::<PathBuf>::new(), "still mounted");
        if let Some(pid) = daemon {
            eventually(
                "the daemon ends after its mount",
                Duration::from_secs(10),
                || !is_panefs(pid),
            );
        }
    }

    /// The daemon's process id, from the store's lock.
    pub fn daemon(&self) -> Option<u32> {
        let lock = fs::read_to_string(self.store.join("lock")).ok()?;
        let pid = lock.split_whitespace().next()?.parse().ok()?;
        is_panefs(pid).then_some(pid)
    }

    /// Kills the daemon with -9, and waits until nothing of it is left: also the threads that
    /// end after the process counts as dead, and the descriptors that go with the last one.
    #[track_caller]
    pub fn kill9(&self) {
        let pid = self.kill9_at_once();
        let threads = PathBuf::from(format!("/proc/{pid}/task"));
        eventually("the killed daemon is gone", Duration::from_secs(20), || {
            let left = fs::read_dir(&threads).map_or(0, Iterator::count);
            !is_panefs(pid) && left <= 1
        });
    }

    /// Kills the daemon with -9 and looks no further; gives its process id.
    #[track_caller]
    pub fn kill9_at_once(&self) -> u32 {
        let pid = self.daemon().expect("STORE/lock names no living daemon");
        kill(Pid::from_raw(pid.try_into().unwrap()), Signal::SIGKILL).unwrap();
        pid
    }

    /// What is mounted below the temporary directory.
    pub fn mounts(&self) -> Vec<PathBuf> {
        let home = self.home();
        // Not std::fs::canonicalize or stat: a dead mount answers neither.
        fs::read_to_string("/proc/self/mounts")
            .unwrap()
            .lines()
            .filter_map(|line| line.split(' ').nth(1))
            .map(PathBuf::from)
            .filter(|dir| dir.starts_with(&home))
            .collect()
    }

    /// Runs a bash script as a guest.
    #[track_caller]
    pub fn as_guest(&self, script: &str) -> Ended {
        let mut command = self.command("bash");
        command.args(["-c", script]);
        run(command, LIMIT)
    }

    /// Runs a bash script as a member of this window: the shell's own echo joins.
    #[track_caller]
    pub fn as_member(&self, window: &str, script: &str) -> Ended {
        let join = format!("echo 0 > \"$MNT/.panefs/windows/{window}/procs\" || exit 99");
        self.as_guest(&format!("{join}\n{script}"))
    }

    /// Runs a piece of python, as `agent.py` has it, as a guest that is the mount's user.
    #[track_caller]
    pub fn hand(&self, code: &str) -> Result<Value, i32> {
        let mut hand = self.hand.lock();
        hand.get_or_insert_with(|| Agent::guest(self)).eval(code)
    }

    /// The same, for a piece that must succeed.
    #[track_caller]
    pub fn hand_ok(&self, code: &str) -> Value {
        self.hand(code)
            .unwrap_or_else(|e| panic!("{code}: {}", std::io::Error::from_raw_os_error(e)))
    }

    /// One write to a control file below MNT/.panefs, as a guest.
    #[track_caller]
    pub fn send_to(&self, file: &str, bytes: &[u8]) -> Reply {
        let path = self.mnt.join(".panefs").join(file);
        let (errno, taken, lines): (i32, usize, Vec<String>) = if self.flavor.ordinary {
            let code = format!(
                "ctl(bytes.fromhex('{}'), {:?})",
                bytes.iter().map(|b| format!("{b:02x}")).collect::<String>(),
                path.to_str().unwrap(),
            );
            let answer = self.hand(&code).unwrap_or_else(|e| {
                panic!(
                    "{}: {}",
                    path.display(),
                    std::io::Error::from_raw_os_error(e)
                )
            });
            serde_json::from_value(answer).unwrap()
        } else {
            send(&path, bytes)
        };
        let lines = lines
            .iter()
            .map(|line| {
                serde_json::from_str(line)
                    .unwrap_or_else(|e| panic!("a reply is not JSON ({e}): {line:?}"))
            })
            .collect();
        Reply {
            errno,
            taken,
            lines,
        }
    }

    /// One command to the root's control file, as a guest of the mount's owner.
    #[track_caller]
    pub fn send(&self, command: &str) -> Reply {
        self.send_to("ctl", format!("{command}\n").as_bytes())
    }

    /// A command that must succeed, and its reply.
    #[track_caller]
    pub fn ctl(&self, command: &str) -> Value {
        let reply = self.send(command);
        assert_eq!(reply.errno, 0, "{command}: {reply:?}");
        assert_eq!(reply.line()["ok"], true, "{command}: {reply:?}");
        reply.lines[0].clone()
    }

    /// A command that must be refused with this errno and by this rule; gives the error.
    #[track_caller]
    pub fn ctl_refused(&self, command: &str, errno: i32, rule: &str) -> Value {
        let reply = self.send(command);
        assert_refusal(command, &reply, errno, rule);
        reply.lines[0]["error"].clone()
    }

    /// Waits for the job that a reply names, if it names one; gives the errno of its end and
    /// the reply that the command itself would have got.
    #[track_caller]
    pub fn finish(&self, reply: Reply) -> Reply {
        let mut reply = reply;
        for _ in 0..600 {
            if reply.line()["state"] != "running" {
                return reply;
            }
            let job = reply.line()["job"].as_str().map(str::to_owned);
            let job = job.unwrap_or_else(|| panic!("running, but no job: {reply:?}"));
            reply = self.send(&format!("wait {job}"));
        }
        panic!("a job does not end: {reply:?}");
    }

    /// Opens these windows.
    #[track_caller]
    pub fn allocate(&self, windows: &[&str]) {
        for window in windows {
            self.ctl(&format!("allocate {window}"));
        }
    }

    /// The text of a file below MNT, as a guest reads it.
    #[track_caller]
    pub fn read(&self, path: &str) -> String {
        let path = self.mnt.join(path);
        if self.flavor.ordinary {
            let code = format!("read({:?})", path.to_str().unwrap());
            let text = self.hand(&code).unwrap_or_else(|e| {
                panic!(
                    "{}: {}",
                    path.display(),
                    std::io::Error::from_raw_os_error(e)
                )
            });
            text.as_str().unwrap().to_owned()
        } else {
            super::text(path)
        }
    }

    /// The objects of a `.jsonl` file below MNT/.panefs.
    #[track_caller]
    pub fn jsonl(&self, file: &str) -> Vec<Value> {
        let text = self.read(&format!(".panefs/{file}"));
        assert!(
            text.is_empty() || text.ends_with('\n'),
            "{file} ends within a line: {text:?}"
        );
        text.lines()
            .map(|line| {
                serde_json::from_str(line).unwrap_or_else(|e| panic!("{file}: {e}: {line:?}"))
            })
            .collect()
    }

    /// `show` of a window, workspace or job.
    #[track_caller]
    pub fn show(&self, target: &str) -> Value {
        self.ctl(&format!("show {target}"))["item"].clone()
    }

    /// Mounts a view of this window, or a read-only one, and gives its directory.
    #[track_caller]
    pub fn view(&self, window: Option<&str>) -> PathBuf {
        let number = self.views.fetch_add(1, Ordering::Relaxed);
        let dir = self.home().join(format!("view{number}"));
        fs::create_dir(&dir).unwrap();
        if self.flavor.ordinary {
            let (uid, gid) = ordinary();
            std::os::unix::fs::chown(&dir, Some(uid), Some(gid)).unwrap();
        }
        let path = dir.to_str().unwrap();
        match window {
            Some(window) => self.cli(&["view", window, path]),
            None => self.cli(&["view", "--read-only", path]),
        }
        .ok(&format!("panefs view ({window:?})"));
        assert!(self.mounts().contains(&dir), "{path} is not a mount");
        dir
    }

    /// The FUSE requests so far, by operation.
    #[track_caller]
    fn requests_so_far(&self) -> BTreeMap<String, u64> {
        const NAME: &str = "panefs_fuse_requests_total{op=\"";
        let metrics = self.read(".panefs/metrics");
        let counts: BTreeMap<_, _> = metrics
            .lines()
            .filter_map(|line| line.strip_prefix(NAME)?.split_once("\"} "))
            .map(|(op, count)| (op.to_owned(), count.trim().parse::<f64>().unwrap() as u64))
            .collect();
        assert!(!counts.is_empty(), "no {NAME}…: {metrics}");
        counts
    }

    /// The requests that `work` sent and waited for, by operation, without what reading the
    /// counters sends itself. Operations that were not used are left out.
    #[track_caller]
    pub fn requests<T>(&self, work: impl FnOnce() -> T) -> (T, BTreeMap<String, u64>) {
        const NOT_WAITED_FOR: [&str; 4] = ["release", "releasedir", "forget", "batch_forget"];
        self.requests_so_far();
        let (first, second) = (self.requests_so_far(), self.requests_so_far());
        let value = work();
        let third = self.requests_so_far();
        let of = |counts: &BTreeMap<String, u64>, op: &str| counts.get(op).copied().unwrap_or(0);
        let counts = third
            .iter()
            .filter(|(op, _)| !NOT_WAITED_FOR.contains(&op.as_str()))
            .map(|(op, now)| {
                let reading = of(&second, op) - of(&first, op);
                (op.clone(), (now - of(&second, op)).saturating_sub(reading))
            })
            .filter(|(_, count)| *count > 0)
            .collect();
        (value, counts)
    }

    /// Processes of this mount that still live, but the daemon.
    fn left_over(&self) -> Vec<u32> {
        let home = self.home();
        let mark = format!("{MARK}={}", home.display());
        fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter(|pid| {
                let mut environment = Vec::new();
                File::open(format!("/proc/{pid}/environ"))
                    .and_then(|mut file| file.read_to_end(&mut environment))
                    .is_ok_and(|_| environment.split(|b| *b == 0).any(|v| v == mark.as_bytes()))
            })
            .collect()
    }

    /// The end of the daemon's log, for a test that failed.
    fn log(&self) -> String {
        let log = fs::read_to_string(self.store.join("panefs.log")).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    /// Takes everything down by force; gives what had to be.
    fn clear(&self) -> Vec<String> {
        let mut forced = Vec::new();
        for pid in self.left_over() {
            if is_panefs(pid) {
                let command = fs::read_to_string(format!("/proc/{pid}/cmdline"));
                forced.push(format!("{pid}: {:?}", command.unwrap_or_default()));
            }
            end(pid);
        }
        for dir in self.mounts().into_iter().rev() {
            forced.push(format!("mount on {}", dir.display()));
            let mut command = Command::new(if is_root() { "umount" } else { "fusermount3" });
            command.args(if is_root() {
                &["-l"][..]
            } else {
                &["-u", "-z"]
            });
            let _ = command.arg(&dir).status();
        }
        forced
    }
}

/// Asserts that a reply is this refusal, whole: errno, code, rule, message and next action.
#[track_caller]
pub fn assert_refusal(what: &str, reply: &Reply, errno: i32, rule: &str) {
    let os = std::io::Error::from_raw_os_error;
    assert_eq!(
        os(reply.errno).to_string(),
        os(errno).to_string(),
        "{what}: {reply:?}"
    );
    let line = reply.line();
    assert_eq!(line["ok"], false, "{what}: {line}");
    assert_eq!(line["error"]["rule"], rule, "{what}: {line}");
    let code = match errno {
        libc::EINVAL => "invalid",
        libc::ENOENT => "not_found",
        libc::EBUSY => "busy",
        libc::EPERM => "denied",
        libc::ESTALE => "stale",
        libc::EDQUOT => "exhausted",
        libc::ETIMEDOUT => "timeout",
        libc::EOPNOTSUPP => "unsupported",
        _ => "failed",
    };
    assert_eq!(line["error"]["code"], code, "{what}: {line}");
    for field in ["message", "next_action"] {
        let text = line["error"][field].as_str().unwrap_or_default();
        assert!(!text.is_empty(), "{what}: no {field}: {line}");
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let failed = thread::panicking();
        self.hand.lock().take();
        if failed {
            eprintln!("--- the daemon's log\n{}\n---", self.log());
            self.clear();
            return;
        }
        for pid in self.left_over() {
            if !is_panefs(pid) {
                end(pid);
            }
        }
        // Of a mount that the test itself took down nothing may be left either.
        if self.mounts().contains(&self.mnt) {
            self.unmount();
        }
        let forced = self.clear();
        assert!(forced.is_empty(), "left behind: {forced:?}");
    }
}

/// Whether the suite may do what only root may.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// The ordinary user's ids.
fn ordinary() -> (u32, u32) {
    let user = nix::unistd::User::from_name(ORDINARY).ok().flatten();
    let user = user.unwrap_or_else(|| panic!("there is no user {ORDINARY} in /etc/passwd"));
    (user.uid.as_raw(), user.gid.as_raw())
}

/// Whether this process lives and is a panefs. From `stat`, which answers for everybody, of
/// non-dumpable processes too; a zombie counts as gone.
fn is_panefs(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let name = stat
        .split_once('(')
        .and_then(|(_, rest)| rest.rsplit_once(") "));
    name.is_some_and(|(name, rest)| name == "panefs" && !rest.starts_with(['Z', 'X']))
}

/// One write, and all reply lines that wait after it.
#[track_caller]
fn send(path: &Path, bytes: &[u8]) -> (i32, usize, Vec<String>) {
    let at = path.display();
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap_or_else(|e| panic!("can't open {at}: {e}"));
    let (errno, taken) = match file.write(bytes) {
        Ok(taken) => (0, taken),
        Err(e) => (e.raw_os_error().unwrap(), 0),
    };
    let mut text = String::new();
    file.read_to_string(&mut text)
        .unwrap_or_else(|e| panic!("can't read the reply of {at}: {e}"));
    (errno, taken, text.lines().map(str::to_owned).collect())
}
