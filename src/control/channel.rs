//! One open control file: commands go in, reply lines come out.

use std::collections::VecDeque;

use parking_lot::{Mutex, MutexGuard};

use super::Scope;

/// How many reply lines wait for a reader; beyond, no command is taken until some are read. More
/// than one write can have commands.
const WAITING: usize = 64 * 1024;

/// One open control file.
#[derive(Debug)]
pub struct Channel {
    scope: Scope,
    /// Whether anybody can read the replies.
    readable: bool,
    /// Held over a whole write, so that writes to one open file never mix. Locked before `lines`.
    turn: Mutex<()>,
    lines: Mutex<Lines>,
}

#[derive(Debug, Default)]
struct Lines {
    waiting: VecDeque<String>,
    /// How many bytes of the first line were read already.
    read: usize,
}

impl Channel {
    /// A channel of the root's or of a window's control file, with nothing to read. What was
    /// opened for writing alone isn't `readable`, and keeps no replies.
    pub fn new(scope: Scope, readable: bool) -> Self {
        Self {
            scope,
            readable,
            turn: Mutex::default(),
            lines: Mutex::default(),
        }
    }

    /// Whose control file it is.
    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// Waits for the writes before this one.
    pub(super) fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock()
    }

    /// Queues a reply line.
    pub(super) fn push(&self, line: String) {
        if self.readable {
            self.lines.lock().waiting.push_back(line);
        }
    }

    /// Whether so many replies wait that no command is taken.
    pub(super) fn is_full(&self) -> bool {
        self.lines.lock().waiting.len() >= WAITING
    }

    /// At most `len` bytes of what is left of one line; nothing where no line waits.
    pub(super) fn read(&self, len: usize) -> Vec<u8> {
        let mut lines = self.lines.lock();
        let from = lines.read;
        let Some(line) = lines.waiting.front() else {
            return Vec::new();
        };
        let rest = line.as_bytes().get(from..).unwrap_or_default();
        let bytes = rest[..len.min(rest.len())].to_vec();
        if bytes.len() == rest.len() {
            lines.waiting.pop_front();
            lines.read = 0;
        } else {
            lines.read += bytes.len();
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_ends_with_its_line() {
        let channel = Channel::new(Scope::Root, true);
        assert!(channel.read(10).is_empty());
        channel.push("first\n".into());
        channel.push("second\n".into());
        assert_eq!(channel.read(4), b"firs");
        assert_eq!(channel.read(0), b"");
        assert_eq!(channel.read(100), b"t\n");
        assert_eq!(channel.read(100), b"second\n");
        assert!(channel.read(100).is_empty());
    }

    #[test]
    fn replies_wait_until_they_are_read() {
        let channel = Channel::new(Scope::Root, true);
        for n in 0..WAITING {
            assert!(!channel.is_full());
            channel.push(format!("{n}\n"));
        }
        assert!(channel.is_full());
        assert_eq!(channel.read(100), b"0\n");
        assert!(!channel.is_full());
        let deaf = Channel::new(Scope::Root, false);
        deaf.push("nobody reads it\n".into());
        assert_eq!(deaf.read(100), b"");
    }
}
