//! Runs a command inside a window, so that nothing it starts can leave the window.
//!
//! Three processes of one process group:
//!
//! ```text
//! front ── reaper ── command ── …
//! ```
//!
//! The *reaper* is the session: it binds itself to the window before the command exists, adopts
//! every orphan that the command leaves, and stays until none is left. So the walk from any of
//! them to its ancestors ends at a member of the window, with no privilege. The *front* is what
//! the caller sees: it hands signals on, stops and ends as the command does.

mod front;
mod notice;
mod reaper;

use std::ffi::CString;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use panefs::sys::child::fork_with;

/// What to run, and where.
#[derive(Debug)]
pub struct Session {
    /// The window's control file that makes its writer the reaper of a session.
    pub sessions: PathBuf,
    /// The command's working directory.
    pub directory: PathBuf,
    /// What to say on standard error once the window was joined.
    pub greeting: Option<String>,
    /// The command and its arguments; never empty.
    pub command: Vec<CString>,
    /// The command's whole environment, `NAME=value`.
    pub environment: Vec<CString>,
}

/// How the command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// With this status.
    Exited(i32),
    /// By the signal with this number.
    Signaled(i32),
}

/// Why the command was never started, or lost.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The window did not take the session.
    #[error("cannot join the window: {0}")]
    NotBound(#[source] io::Error),
    /// The command's directory can't be entered.
    #[error("cannot enter the working directory: {0}")]
    Directory(#[source] io::Error),
    /// The reaper ended before the command did.
    #[error("the session's reaper was ended; what it started may still run")]
    Lost,
    /// The kernel gave no process, pipe or descriptor.
    #[error("cannot start a session: {0}")]
    System(#[from] io::Error),
}

/// Runs the session's command and returns as it ends.
///
/// Call it from a process with one thread. It leaves signals blocked, and standard input and
/// output on /dev/null: the process is expected to end soon after.
///
/// # Errors
/// [`SessionError`]; unless it is `Lost`, the command was not started.
pub fn run(session: &Session) -> Result<End, SessionError> {
    let (near, far) = UnixStream::pair()?;
    let mut before = SigSet::empty();
    sigprocmask(
        SigmaskHow::SIG_SETMASK,
        Some(&forwarded()),
        Some(&mut before),
    )
    .map_err(io::Error::from)?;
    let front = nix::unistd::getpid();
    let reaper = fork_with(|| {
        // Its own copy of the front's end would keep the pair from ever reading as closed.
        let far = far;
        reaper::run(session, &before, front, &far)
    });
    // `far` moved into the closure: the front's copy is closed with it.
    front::run(near, reaper?)
}

/// Every signal but those that report a fault of the process itself, and SIGCHLD.
fn forwarded() -> SigSet {
    let mut set = SigSet::all();
    for own in [
        Signal::SIGCHLD,
        Signal::SIGSEGV,
        Signal::SIGBUS,
        Signal::SIGFPE,
        Signal::SIGILL,
        Signal::SIGTRAP,
        Signal::SIGSYS,
        Signal::SIGABRT,
    ] {
        set.remove(own);
    }
    set
}

/// Puts a standard stream on /dev/null.
fn silence(input: bool, output: bool, error: bool) -> io::Result<()> {
    let null = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    if input {
        nix::unistd::dup2_stdin(&null)?;
    }
    if output {
        nix::unistd::dup2_stdout(&null)?;
    }
    if error {
        nix::unistd::dup2_stderr(&null)?;
    }
    Ok(())
}
