//! The process that the caller started and waits for.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use panefs::sys::pidfd::PidFd;

use super::notice::Notice;
use super::{End, SessionError, forwarded, silence};

/// Follows the command from its start to its end.
pub fn run(from: UnixStream, reaper: Pid) -> Result<End, SessionError> {
    let command = match Notice::receive(&from) {
        Some(Notice::Started(pid)) => PidFd::of_process(pid)?,
        Some(Notice::NotBound(errno)) => return Err(SessionError::NotBound(os(errno))),
        Some(Notice::Directory(errno)) => return Err(SessionError::Directory(os(errno))),
        Some(Notice::NotForked(errno)) => return Err(SessionError::System(os(errno))),
        _ => return Err(SessionError::Lost),
    };
    // The descriptor names the command for good: now it may be reaped.
    io::Write::write_all(&mut &from, b"\n")?;
    // The command alone decides when its input and output end.
    silence(true, true, false)?;
    let signals =
        SignalFd::with_flags(&forwarded(), SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
            .map_err(io::Error::from)?;
    loop {
        let mut ready = [
            PollFd::new(signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(from.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut ready, PollTimeout::NONE) {
            Err(Errno::EINTR) => continue,
            other => other.map_err(io::Error::from)?,
        };
        let told = ready[1].any().unwrap_or(true);
        forward(&signals, &command, reaper);
        if !told {
            continue;
        }
        let end = match Notice::receive(&from) {
            Some(Notice::Stopped) => {
                // Stop as the command did; the shell that waits for us takes over, and its
                // SIGCONT to the process group wakes the command too.
                let _ = raise(Signal::SIGSTOP);
                continue;
            }
            Some(Notice::Exited(status)) => End::Exited(status),
            Some(Notice::Signaled(number)) => End::Signaled(number),
            _ => return Err(SessionError::Lost),
        };
        if Notice::receive(&from) == Some(Notice::Empty) {
            // The session is over: nobody shall see it linger once we have ended.
            let _ = waitpid(reaper, None);
        }
        return Ok(end);
    }
}

/// Hands on what was sent to this process alone.
///
/// A signal from the terminal went to the whole process group, so the command has it already; and
/// one from the reaper only wakes us.
fn forward(signals: &SignalFd, command: &PidFd, reaper: Pid) {
    while let Ok(Some(info)) = signals.read_signal() {
        if by_a_process(&info)
            && i32::try_from(info.ssi_pid) != Ok(reaper.as_raw())
            && let Ok(number) = i32::try_from(info.ssi_signo)
        {
            // A command that has just ended gets nothing.
            let _ = command.signal_number(number);
        }
    }
}

/// Whether kill(2) or one of its kin sent it; the kernel's own codes are positive.
fn by_a_process(info: &siginfo) -> bool {
    info.ssi_code <= 0
}

fn os(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}
