//! What the reaper tells the front.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

/// One message; a fixed number of bytes, so that a read is a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// The window refused the session, with this errno.
    NotBound(i32),
    /// The working directory can't be entered: errno.
    Directory(i32),
    /// No process for the command: errno.
    NotForked(i32),
    /// The command runs, under this process id. The reaper leaves it unreaped until the front
    /// answers with a byte, so the number means the command until then.
    Started(u32),
    /// The command was stopped.
    Stopped,
    /// The command exited with this status.
    Exited(i32),
    /// The command was ended by this signal.
    Signaled(i32),
    /// The command has ended, something that it started has not: the reaper stays.
    Remaining,
    /// Nothing that the command started is left: the reaper ends too.
    Empty,
}

const SIZE: usize = 5;

impl Notice {
    fn encode(self) -> [u8; SIZE] {
        let (kind, value): (u8, i32) = match self {
            Self::NotBound(errno) => (0, errno),
            Self::Directory(errno) => (1, errno),
            Self::NotForked(errno) => (2, errno),
            Self::Started(pid) => (3, pid.cast_signed()),
            Self::Stopped => (4, 0),
            Self::Exited(status) => (5, status),
            Self::Signaled(number) => (6, number),
            Self::Remaining => (7, 0),
            Self::Empty => (8, 0),
        };
        let [a, b, c, d] = value.to_le_bytes();
        [kind, a, b, c, d]
    }

    fn decode([kind, a, b, c, d]: [u8; SIZE]) -> Option<Self> {
        let value = i32::from_le_bytes([a, b, c, d]);
        Some(match kind {
            0 => Self::NotBound(value),
            1 => Self::Directory(value),
            2 => Self::NotForked(value),
            3 => Self::Started(value.cast_unsigned()),
            4 => Self::Stopped,
            5 => Self::Exited(value),
            6 => Self::Signaled(value),
            7 => Self::Remaining,
            8 => Self::Empty,
            _ => return None,
        })
    }

    /// Sends it.
    ///
    /// # Errors
    /// `EPIPE` where the other side is gone.
    pub fn send(self, mut to: &UnixStream) -> io::Result<()> {
        to.write_all(&self.encode())
    }

    /// Waits for the next one; None where the other side is gone.
    pub fn receive(mut from: &UnixStream) -> Option<Self> {
        let mut bytes = [0; SIZE];
        from.read_exact(&mut bytes).ok()?;
        Self::decode(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_notice_arrives_as_it_was_sent() {
        let (a, b) = UnixStream::pair().unwrap();
        for notice in [
            Notice::NotBound(libc::EPERM),
            Notice::Directory(libc::ENOENT),
            Notice::NotForked(libc::EAGAIN),
            Notice::Started(u32::MAX),
            Notice::Stopped,
            Notice::Exited(255),
            Notice::Signaled(libc::SIGKILL),
            Notice::Remaining,
            Notice::Empty,
        ] {
            notice.send(&a).unwrap();
            assert_eq!(Notice::receive(&b), Some(notice));
        }
        drop(a);
        assert_eq!(Notice::receive(&b), None);
    }
}
