//! A shell that stays, as a terminal does: one line after another, in a session of its own.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use super::mount::Mount;
use super::process::end;

const LIMIT: Duration = Duration::from_secs(60);

/// A bash with pipes for its input and output, the leader of a session.
pub struct Shell {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl Shell {
    /// A shell of the mount's user; a guest until it says otherwise.
    pub fn new(mount: &Mount) -> Self {
        let mut command = mount.command("setsid");
        command.args(["bash", "--norc", "--noprofile"]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("can't start bash by setsid");
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (tell, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in stdout.split(b'\n').map_while(Result::ok) {
                if tell
                    .send(String::from_utf8_lossy(&line).into_owned())
                    .is_err()
                {
                    break;
                }
            }
        });
        let mut shell = Self {
            child,
            stdin,
            lines,
        };
        shell.ok("exec 2>&1");
        shell
    }

    /// A shell that joined this window by the shell's own echo.
    pub fn member(mount: &Mount, window: &str) -> Self {
        let mut shell = Self::new(mount);
        shell.ok(&format!("echo 0 > $MNT/.panefs/windows/{window}/procs"));
        shell
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Runs a line, and gives its exit status and what it printed (both streams).
    #[track_caller]
    pub fn run(&mut self, line: &str) -> (i32, String) {
        const MARK: &str = "\u{1e}status ";
        writeln!(self.stdin, "{line}\nprintf '\\n{MARK}%d\\n' \"$?\"")
            .unwrap_or_else(|e| panic!("the shell is gone before {line:?}: {e}"));
        let mut said = Vec::new();
        loop {
            let next = self.lines.recv_timeout(LIMIT).unwrap_or_else(|e| {
                panic!("the shell said nothing more ({e}) after {line:?}: {said:?}")
            });
            match next.strip_prefix(MARK) {
                Some(status) => {
                    let text = said.join("\n").trim_end_matches('\n').to_owned();
                    return (status.trim().parse().unwrap(), text);
                }
                None => said.push(next),
            }
        }
    }

    /// Runs a line that must succeed, and gives what it printed.
    #[track_caller]
    pub fn ok(&mut self, line: &str) -> String {
        let (status, said) = self.run(line);
        assert_eq!(status, 0, "{line:?} said: {said}");
        said
    }

    /// Runs a line that must fail, saying `why` (strerror's words).
    #[track_caller]
    pub fn refused(&mut self, line: &str, why: &str) {
        let (status, said) = self.run(line);
        assert_ne!(
            status, 0,
            "{line:?} succeeded, expected: {why}; said: {said}"
        );
        assert!(
            said.contains(why),
            "{line:?} should fail with {why:?}, said: {said}"
        );
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        end(self.pid());
        let _ = self.child.wait();
    }
}
