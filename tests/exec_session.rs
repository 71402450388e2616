//! `panefs exec`: statuses, signals and reaping, with plain files in the place of a mount's.

#![cfg(test)]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, mkfifo};
use panefs::sys::pidfd::{PidFd, wait_any_ended};
use tempfile::TempDir;

/// A directory that looks like a mount with one window.
struct Fake {
    dir: TempDir,
}

impl Fake {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let window = dir.path().join(".panefs/windows/c1");
        fs::create_dir_all(&window).unwrap();
        fs::create_dir_all(dir.path().join("ws1/src")).unwrap();
        fs::write(window.join("sessions"), "").unwrap();
        let info = r#"{"window":"c1","workspace":"ws1","cwd":"ws1/src","state":"live"}"#;
        fs::write(window.join("window.json"), info).unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    fn exec(&self, window: &str, command: &[&str]) -> Command {
        let mut exec = Command::new(env!("CARGO_BIN_EXE_panefs"));
        exec.args(["exec", window, "--mnt"]).arg(self.dir.path());
        exec.arg("--").args(command);
        exec
    }

    fn sh(&self, script: &str) -> Command {
        self.exec("c1", &["sh", "-c", script])
    }
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id().try_into().unwrap())
}

/// A running script that has said its first line.
fn started(mut command: Command) -> (Child, BufReader<ChildStdout>, String) {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    (child, out, line.trim_end().to_owned())
}

#[test]
fn the_command_gets_its_place_and_its_environment() {
    let fake = Fake::new();
    let script = r#"echo "$PANEFS_WINDOW $PANEFS_WORKSPACE $PANEFS_MNT $PWD $(pwd -P) $*""#;
    let out = fake
        .exec("c1", &["sh", "-c", script, "x", "a b", "--json"])
        .output()
        .unwrap();
    let (mnt, ws, cwd) = (fake.path(""), fake.path("ws1"), fake.path("ws1/src"));
    let mnt = mnt.to_str().unwrap().trim_end_matches('/');
    let (ws, cwd) = (ws.display(), cwd.display());
    assert_eq!(
        String::from_utf8(out.stdout).unwrap(),
        format!("c1 {ws} {mnt} {cwd} {cwd} a b --json\n")
    );
    let bound = fs::read_to_string(fake.path(".panefs/windows/c1/sessions")).unwrap();
    assert_eq!(bound, "0\n");
}

#[test]
fn it_ends_as_the_command_ends() {
    let fake = Fake::new();
    assert_eq!(fake.sh("exit 7").status().unwrap().code(), Some(7));
    let killed = fake.sh("kill -KILL $$").status().unwrap();
    assert_eq!(killed.signal(), Some(libc::SIGKILL));
    let piped = fake.sh("kill -PIPE $$").status().unwrap();
    assert_eq!(piped.signal(), Some(libc::SIGPIPE));
}

#[test]
fn what_cannot_run_is_told_apart() {
    let fake = Fake::new();
    let said = |mut command: Command| {
        let out = command.output().unwrap();
        (out.status.code(), String::from_utf8(out.stderr).unwrap())
    };
    let (status, text) = said(fake.exec("c1", &["no-such-command"]));
    assert_eq!(
        (status, text.as_str()),
        (Some(127), "panefs: no-such-command: command not found\n")
    );
    let (status, text) = said(fake.exec("c1", &["/etc/passwd"]));
    assert_eq!(
        (status, text.as_str()),
        (Some(126), "panefs: /etc/passwd: Permission denied\n")
    );
    let (status, text) = said(fake.exec("c9", &["true"]));
    assert!(
        status == Some(1) && text.contains("no window c9") && text.contains("  try: "),
        "{text}"
    );
    let (status, text) = said(fake.exec("c01", &["true"]));
    assert!(status == Some(1) && text.contains("not a window"), "{text}");
    let mut nowhere = fake.exec("c1", &["true"]);
    nowhere.env_remove("PANEFS_MNT");
    fs::remove_dir(fake.path("ws1/src")).unwrap();
    let (status, text) = said(nowhere);
    assert!(status == Some(1) && text.contains("cannot enter"), "{text}");
    let mut usage = Command::new(env!("CARGO_BIN_EXE_panefs"));
    usage.args(["exec", "c1"]);
    assert_eq!(said(usage).0, Some(2));
}

#[test]
fn a_refused_session_starts_nothing() {
    let fake = Fake::new();
    let sessions = fake.path(".panefs/windows/c1/sessions");
    fs::remove_file(&sessions).unwrap();
    let out = fake.sh("echo ran").output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert!(out.stdout.is_empty());
    assert!(!sessions.exists(), "it must not be made");
}

#[test]
fn the_binding_comes_before_the_command() {
    let fake = Fake::new();
    let sessions = fake.path(".panefs/windows/c1/sessions");
    fs::remove_file(&sessions).unwrap();
    mkfifo(&sessions, Mode::S_IRWXU).unwrap();
    let marker = fake.path("ran");
    let mut child = fake
        .sh(&format!("echo > {}", marker.display()))
        .spawn()
        .unwrap();
    // The reaper waits in open(2) until we open the other end, and can't write before.
    let mut pipe = fs::File::open(&sessions).unwrap();
    let mut bytes = [0; 2];
    pipe.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"0\n");
    assert!(child.wait().unwrap().success());
    assert!(marker.exists());
}

#[test]
fn orphans_stay_with_the_reaper_and_hold_nobody_up() {
    let fake = Fake::new();
    let gate = fake.path("gate");
    mkfifo(&gate, Mode::S_IRWXU).unwrap();
    // Twice away from its parent, in a session of its own.
    let script = format!(
        "(setsid sh -c 'echo $$; exec >/dev/null; read line < {}' &) ; wait",
        gate.display()
    );
    let (mut child, mut out, orphan) = started(fake.sh(&script));
    assert!(child.wait().unwrap().success());
    // The output ends with the command, though the reaper and the orphan live.
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
    let status = fs::read_to_string(format!("/proc/{orphan}/status")).unwrap();
    let parent = status
        .lines()
        .find_map(|l| l.strip_prefix("PPid:"))
        .unwrap();
    let parent: u32 = parent.trim().parse().unwrap();
    let line = fs::read_to_string(format!("/proc/{parent}/cmdline")).unwrap();
    assert!(line.contains("panefs\0exec\0c1\0"), "{line:?}");
    assert_eq!(
        fs::read_link(format!("/proc/{parent}/cwd")).unwrap(),
        PathBuf::from("/")
    );
    // As the last one ends, so does the reaper.
    let reaper = PidFd::of_process(parent).unwrap();
    fs::File::options()
        .write(true)
        .open(&gate)
        .unwrap()
        .write_all(b"\n")
        .unwrap();
    assert_eq!(
        wait_any_ended(&[&reaper], Duration::from_secs(20)).unwrap(),
        [true]
    );
}

#[test]
fn signals_reach_the_command() {
    let fake = Fake::new();
    for (signal, name) in [
        (Signal::SIGTERM, "TERM"),
        (Signal::SIGINT, "INT"),
        (Signal::SIGUSR1, "USR1"),
        (Signal::SIGHUP, "HUP"),
    ] {
        let script = format!("trap 'exit 5' {name}; echo ready; while :; do read line; done");
        let mut command = fake.sh(&script);
        command.stdin(Stdio::piped());
        let (mut child, _out, _) = started(command);
        kill(pid(&child), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(5), "{name}");
    }
    let (mut child, _out, _) = started(fake.sh("echo ready; exec sleep 1000"));
    kill(pid(&child), Signal::SIGTERM).unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM));
}

#[test]
fn it_stops_and_goes_on_with_the_command() {
    let fake = Fake::new();
    let (mut child, mut out, command) = started({
        let script = "trap 'echo on' CONT; echo $$; until read line; do :; done; exit 4";
        let mut command = fake.sh(script);
        // In a group whose leader's parent is here: what nobody's shell looks after isn't stopped.
        command.stdin(Stdio::piped()).process_group(0);
        command
    });
    let front = pid(&child);
    let command = Pid::from_raw(command.parse().unwrap());
    let stopped = |status| matches!(status, WaitStatus::Stopped(..));
    // Asked to stop, it stops once the command has.
    kill(front, Signal::SIGTSTP).unwrap();
    assert!(stopped(
        waitpid(front, Some(WaitPidFlag::WUNTRACED)).unwrap()
    ));
    let state = fs::read_to_string(format!("/proc/{command}/stat")).unwrap();
    assert!(state.contains(") T "), "{state}");
    kill(front, Signal::SIGCONT).unwrap();
    let flags = Some(WaitPidFlag::WCONTINUED);
    assert_eq!(waitpid(front, flags).unwrap(), WaitStatus::Continued(front));
    let mut said = String::new();
    out.read_line(&mut said).unwrap();
    assert_eq!(said, "on\n");
    // Stopped and continued behind its back, it follows.
    kill(command, Signal::SIGSTOP).unwrap();
    assert!(stopped(
        waitpid(front, Some(WaitPidFlag::WUNTRACED)).unwrap()
    ));
    kill(command, Signal::SIGCONT).unwrap();
    assert_eq!(waitpid(front, flags).unwrap(), WaitStatus::Continued(front));
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(4));
}

#[test]
fn a_closed_output_is_the_commands_own_affair() {
    let fake = Fake::new();
    let script = "echo first; exec >&-; read line";
    let mut command = fake.sh(script);
    command.stdin(Stdio::piped());
    let (mut child, mut out, first) = started(command);
    assert_eq!(first, "first");
    // Nobody else holds the pipe: it ends though the command runs on.
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
    assert!(child.try_wait().unwrap().is_none());
    drop(child.stdin.take());
    child.wait().unwrap();
}
