//! A python process that does one thing after another as the test tells it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::mount::Mount;
use super::process::end;

const LIMIT: Duration = Duration::from_secs(120);

/// A long-lived process; what it can do is in `agent.py`.
pub struct Agent {
    child: Child,
    stdin: ChildStdin,
    answers: Receiver<String>,
}

impl Agent {
    /// An agent of the mount's user, a guest.
    pub fn guest(mount: &Mount) -> Self {
        Self::start(mount.command("python3"))
    }

    /// An agent that joined this window.
    pub fn member(mount: &Mount, window: &str) -> Self {
        let mut agent = Self::guest(mount);
        agent.join(window);
        agent
    }

    /// An agent of another user (a mount with `--allow-other`).
    pub fn of(mount: &Mount, uid: u32, gid: u32) -> Self {
        Self::start(mount.command_of("python3", uid, gid))
    }

    /// An agent of what this command starts with `python3 -u -c CODE` added to it.
    pub fn start(mut command: std::process::Command) -> Self {
        command.args(["-u", "-c", include_str!("agent.py")]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("can't start python3");
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (tell, answers) = mpsc::channel();
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if tell.send(line).is_err() {
                    break;
                }
            }
        });
        Self {
            child,
            stdin,
            answers,
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Writes 0 to the window's `procs`.
    #[track_caller]
    pub fn join(&mut self, window: &str) {
        self.ok(&format!(
            "put(MNT + '/.panefs/windows/{window}/procs', '0\\n')"
        ));
    }

    /// Begins a piece of code without waiting for its end; [`Agent::answer`] does.
    #[track_caller]
    pub fn begin(&mut self, code: &str) {
        writeln!(self.stdin, "{}", json!({ "code": code }))
            .unwrap_or_else(|e| panic!("the agent is gone before {code:?}: {e}"));
    }

    /// The outcome of what was begun: a value or an errno. Any other failure is the test's.
    #[track_caller]
    pub fn answer(&mut self) -> Result<Value, i32> {
        let line = self
            .answers
            .recv_timeout(LIMIT)
            .unwrap_or_else(|e| panic!("the agent gave no answer: {e}"));
        let mut answer: Value = serde_json::from_str(&line).unwrap();
        if let Some(errno) = answer.get("errno") {
            return Err(errno.as_i64().unwrap().try_into().unwrap());
        }
        match answer.get_mut("ok") {
            Some(value) => Ok(value.take()),
            None => panic!(
                "the agent failed: {}",
                answer["failed"].as_str().unwrap_or(&line)
            ),
        }
    }

    /// Runs a piece of code: its value, or the errno of the call that failed.
    #[track_caller]
    pub fn eval(&mut self, code: &str) -> Result<Value, i32> {
        self.begin(code);
        self.answer()
    }

    /// Runs a piece of code that must succeed.
    #[track_caller]
    pub fn ok(&mut self, code: &str) -> Value {
        self.eval(code).unwrap_or_else(|e| {
            panic!("{code}: {}", std::io::Error::from_raw_os_error(e));
        })
    }

    /// Runs a piece of code that must fail with this errno.
    #[track_caller]
    pub fn refused(&mut self, code: &str, errno: i32) {
        match self.eval(code) {
            Ok(value) => panic!(
                "{code}: succeeded with {value}, expected {}",
                std::io::Error::from_raw_os_error(errno)
            ),
            Err(e) => assert_eq!(
                std::io::Error::from_raw_os_error(e).to_string(),
                std::io::Error::from_raw_os_error(errno).to_string(),
                "{code}"
            ),
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        end(self.pid());
        let _ = self.child.wait();
    }
}
