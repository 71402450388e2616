//! One open control file: commands go in, reply lines come out.

use std::collections::VecDeque;

use parking_lot::{Mutex, MutexGuard};

use super::Scope;

/// How many reply lines wait for a reader; beyond, the oldest are dropped.
const WAITING: usize = 1024;

/// One open control file.
#[derive(Debug)]
pub struct Channel {
    scope: Scope,
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
    /// A channel of the root's or of a window's control file, with nothing to read.
    pub fn new(scope: Scope) -> Self {
        Self {
            scope,
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
        let mut lines = self.lines.lock();
        if lines.waiting.len() == WAITING {
            lines.waiting.pop_front();
            lines.read = 0;
        }
        lines.waiting.push_back(line);
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
        let channel = Channel::new(Scope::Root);
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
    fn the_oldest_lines_are_dropped() {
        let channel = Channel::new(Scope::Root);
        for n in 0..WAITING + 2 {
            channel.push(format!("{n}\n"));
        }
        assert_eq!(channel.read(100), b"2\n");
    }
}
