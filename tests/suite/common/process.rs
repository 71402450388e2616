//! Running commands with a time limit, and waiting for what gives no event.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

/// How a command ended, and what it said.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    /// Asserts success, and gives what was printed without the last newline.
    #[track_caller]
    pub fn ok(&self, what: &str) -> &str {
        assert!(self.status.success(), "{what}: {self}");
        self.stdout.trim_end_matches('\n')
    }

    /// Asserts that it failed with this exit status.
    #[track_caller]
    pub fn failed(&self, code: i32, what: &str) {
        assert_eq!(self.status.code(), Some(code), "{what}: {self}");
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}\n--- stdout\n{}\n--- stderr\n{}",
            self.status, self.stdout, self.stderr
        )
    }
}

/// Runs a command to its end, in a process group of its own. Where it doesn't end within
/// `limit`, the group is killed and the test fails.
#[track_caller]
pub fn run(mut command: Command, limit: Duration) -> Ended {
    use std::os::unix::process::CommandExt;
    let what = format!("{command:?}");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap_or_else(|e| panic!("can't start {what}: {e}"));
    let group = Pid::from_raw(child.id().try_into().unwrap());
    let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let (tell, told) = mpsc::channel();
    // The threads end with the pipes; where a process can't be killed, they are left behind.
    let stderr = thread::spawn(move || lossy(&mut err));
    thread::spawn(move || {
        let stdout = lossy(&mut out);
        let status = child.wait();
        let _ = tell.send((status, stdout));
    });
    match told.recv_timeout(limit) {
        Ok((status, stdout)) => Ended {
            status: status.unwrap_or_else(|e| panic!("can't wait for {what}: {e}")),
            stdout,
            stderr: stderr.join().unwrap(),
        },
        Err(_) => {
            let _ = killpg(group, Signal::SIGKILL);
            let said = told.recv_timeout(Duration::from_secs(2));
            panic!("did not end within {limit:?}: {what}\nuntil then: {said:?}");
        }
    }
}

fn lossy(from: &mut impl Read) -> String {
    let mut bytes = Vec::new();
    let _ = from.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A file's text; a failure names the file.
#[track_caller]
pub fn text(path: impl AsRef<std::path::Path>) -> String {
    let path = path.as_ref();
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("can't read {}: {e}", path.display()))
}

/// Looks again and again, for what another process or the kernel does without telling. Fails
/// with `what` after `limit`.
#[track_caller]
pub fn eventually(what: &str, limit: Duration, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !holds() {
        assert!(Instant::now() < end, "not within {limit:?}: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Fails where a tool that the test uses is not installed: a test that skips proves nothing.
#[track_caller]
pub fn need(tools: &[&str]) {
    let missing: Vec<_> = tools.iter().filter(|t| find(t).is_none()).collect();
    assert!(
        missing.is_empty(),
        "these tools are missing: {missing:?}; scripts/test installs what the tests use"
    );
}

fn find(tool: &str) -> Option<PathBuf> {
    std::env::split_paths(super::mount::PATH_FIRST)
        .chain(std::env::split_paths(
            &std::env::var_os("PATH").unwrap_or_default(),
        ))
        .map(|dir| dir.join(tool))
        .find(|path| path.is_file())
}

/// The cargo that runs this suite.
pub fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}

/// Fails, saying what to do, where an ordinary user can't mount on this machine.
#[track_caller]
pub fn ordinary_possible() {
    use std::os::unix::fs::PermissionsExt;
    let device = std::fs::metadata("/dev/fuse").expect("there is no /dev/fuse");
    assert_eq!(
        device.permissions().mode() & 0o006,
        0o006,
        "/dev/fuse is not open to every user, so no ordinary user can mount: chmod 666 /dev/fuse"
    );
    let helper = find("fusermount3").expect("fusermount3 is missing: install fuse3");
    let mode = std::fs::metadata(&helper).unwrap().permissions().mode();
    assert_ne!(
        mode & 0o4000,
        0,
        "{} is not setuid, so no ordinary user can mount: chmod u+s it",
        helper.display()
    );
}

/// Ends one process of the test's own.
pub fn end(pid: u32) {
    let _ = kill(Pid::from_raw(pid.try_into().unwrap()), Signal::SIGKILL);
}
