//! Talking to a mount: one command a line into its control file, one reply line back.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};

use serde_json::{Map, Value};

use super::failure::{Failure, Outcome, reason};
use super::locate::{self, Mount};

/// A command, before it is a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command(Map<String, Value>);

impl Command {
    /// A verb with its words.
    pub fn new(verb: &str, words: impl IntoIterator<Item = String>) -> Self {
        let mut object = Map::new();
        object.insert("verb".into(), verb.into());
        object.insert("args".into(), words.into_iter().map(Value::from).collect());
        Self(object)
    }

    /// Adds a key.
    pub fn set(&mut self, key: &str, value: &str) {
        self.0.insert(key.to_owned(), value.into());
    }

    /// The line, newline included. JSON, because there nothing needs quoting rules.
    fn line(&self) -> String {
        format!("{}\n", Value::from(self.0.clone()))
    }
}

/// A reply line.
#[derive(Debug, Clone)]
pub struct Reply {
    /// As it came, without its newline.
    pub line: String,
    /// What it says.
    pub value: Value,
}

impl Reply {
    /// The job that the command became or was about.
    pub fn job(&self) -> Option<&str> {
        self.value.get("job").and_then(Value::as_str)
    }

    /// Whether the answer is yet to come.
    pub fn is_running(&self) -> bool {
        let state = self.value.get("state").and_then(Value::as_str);
        self.job().is_some() && state == Some("running")
    }
}

/// A control file that is open: replies come back where the commands went in.
#[derive(Debug)]
pub struct Channel<'a> {
    mount: &'a Mount,
    file: File,
}

impl<'a> Channel<'a> {
    /// Opens the mount's control file; for a window's owner who is not the mount's, the window's.
    pub fn open(mount: &'a Mount) -> Outcome<Self> {
        let open = |name| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .open(mount.control(name))
        };
        let file = match open("ctl") {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                open("self/ctl").map_err(|_| e)
            }
            other => other,
        };
        match file {
            Ok(file) => Ok(Self { mount, file }),
            Err(e) => Err(Self::cannot(mount, "cannot open the control file", &e)),
        }
    }

    /// Sends a command and waits for its reply line, a refusal included.
    pub fn ask(&mut self, command: &Command) -> Outcome<Reply> {
        // A refused command's write fails with the refusal's errno; the reply says it in words.
        let sent = self.file.write_all(command.line().as_bytes());
        let line = self
            .read_line()
            .map_err(|e| Self::cannot(self.mount, "no reply", &e))?;
        if line.is_empty() {
            let error = sent
                .err()
                .unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into());
            return Err(Self::cannot(self.mount, "no reply", &error));
        }
        let value = serde_json::from_str(&line)
            .map_err(|_| Failure::new(format!("the reply is not understood: {line}"), ""))?;
        Ok(Reply { line, value })
    }

    fn read_line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        let mut part = [0; 64 * 1024];
        loop {
            let n = self.file.read(&mut part)?;
            line.extend_from_slice(&part[..n]);
            if n == 0 || line.ends_with(b"\n") {
                let text = String::from_utf8_lossy(&line);
                return Ok(text.trim_end_matches('\n').to_owned());
            }
        }
    }

    fn cannot(mount: &Mount, what: &str, error: &io::Error) -> Failure {
        match error.raw_os_error() {
            Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ENODEV) => locate::dead(mount),
            Some(libc::EACCES) => Failure::new(
                format!("{what} of {}: it is its owner's", mount.path.display()),
                "Ask as the mount's owner, or from inside a window of yours.",
            ),
            _ => Failure::new(
                format!("{what} of {}: {}", mount.path.display(), reason(error)),
                "Check that it is a panefs mount: panefs doctor, panefs ls",
            ),
        }
    }
}
