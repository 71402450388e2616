//! The one error of the command line: what is wrong, what to do, how to exit.

use std::fmt::Display;
use std::io;

use serde_json::Value;

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub struct Failure {
    message: String,
    next: Option<String>,
    status: u8,
}

/// What a command gives.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// It was refused or failed: exit status 1.
    pub fn new(message: impl Into<String>, next: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            next: Some(next.into()).filter(|text: &String| !text.is_empty()),
            status: 1,
        }
    }

    /// It was asked for wrongly: exit status 2.
    pub fn usage(message: impl Into<String>, next: impl Into<String>) -> Self {
        Self {
            status: 2,
            ..Self::new(message, next)
        }
    }

    /// A system call failed on `what`.
    pub fn io(what: impl Display, error: &io::Error) -> Self {
        Self::new(format!("{what}: {}", reason(error)), "")
    }

    /// The refusal in a reply; None where the reply is no refusal.
    pub fn of_reply(reply: &Value) -> Option<Self> {
        if reply.get("ok") == Some(&Value::Bool(true)) {
            return None;
        }
        let text = |key| {
            reply
                .pointer(key)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let message = text("/error/message");
        Some(Self::new(
            if message.is_empty() {
                format!("the reply is not understood: {reply}")
            } else {
                message
            },
            text("/error/next_action"),
        ))
    }

    /// Says it on standard error; gives the exit status.
    pub fn report(&self) -> u8 {
        eprintln!("panefs: {}", super::text::plain(&self.message));
        if let Some(next) = &self.next {
            eprintln!("  try: {}", super::text::plain(next));
        }
        self.status
    }

    /// What is wrong and what to do, as one reply line.
    pub fn to_line(&self) -> String {
        serde_json::json!({ "message": self.message, "next_action": self.next }).to_string()
    }

    /// Reads what [`to_line`](Self::to_line) wrote.
    pub fn from_line(line: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(line).ok()?;
        let text = |key| value.get(key).and_then(Value::as_str).unwrap_or_default();
        Some(Self::new(text("message"), text("next_action")))
    }
}

/// What the system says, without "(os error N)".
pub fn reason(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(errno) => nix::errno::Errno::from_raw(errno).desc().to_owned(),
        None => error.to_string(),
    }
}
