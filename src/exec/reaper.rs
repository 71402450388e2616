//! The session itself: a member of the window, and the parent of all that has lost its own.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::{Pid, execvpe, getppid};
use panefs::sys::child::{become_subreaper, close_all_but, fork_with, wait_any};
use panefs::sys::signals::set_default;

use super::Session;
use super::notice::Notice;

/// The status of a command that exists but can't be run, as shells have it.
const NOT_EXECUTABLE: i32 = 126;
/// The status of a command that doesn't exist, as shells have it.
const NOT_FOUND: i32 = 127;

/// Binds, starts the command, reports to the front, and stays until no child is left.
///
/// Signals stay blocked (the front hands them to the command): nothing short of SIGKILL ends a
/// session early. `before` is the mask that the command gets.
pub fn run(session: &Session, before: &SigSet, front: Pid, to: &UnixStream) -> i32 {
    let command = match start(session, before) {
        Ok(command) => command,
        Err(refused) => {
            let _ = refused.send(to);
            return 1;
        }
    };
    // Whoever reads the command's output, or a descriptor that the caller handed down, waits for
    // the command and what it started, never for the reaper.
    let _ = super::silence(true, true, true);
    let _ = close_all_but(to.as_fd());
    // And nobody's directory is held.
    let _ = std::env::set_current_dir("/");
    if Notice::Started(command.as_raw().cast_unsigned())
        .send(to)
        .is_ok()
    {
        // The front's answer, or its end.
        let mut to = to;
        let _ = to.read(&mut [0]);
    }
    reap(command, front, to);
    0
}

fn start(session: &Session, before: &SigSet) -> Result<Pid, Notice> {
    become_subreaper().map_err(|e| Notice::NotForked(errno(&e)))?;
    bind(session).map_err(|e| Notice::NotBound(errno(&e)))?;
    std::env::set_current_dir(&session.directory).map_err(|e| Notice::Directory(errno(&e)))?;
    if let Some(greeting) = &session.greeting {
        eprintln!("{greeting}");
    }
    fork_with(|| execute(session, before)).map_err(|e| Notice::NotForked(errno(&e)))
}

/// Makes this process the window's, with all that it starts from now on.
fn bind(session: &Session) -> io::Result<()> {
    OpenOptions::new()
        .write(true)
        .open(&session.sessions)?
        .write_all(b"0\n")
}

/// Becomes the command; returns only where that fails.
fn execute(session: &Session, before: &SigSet) -> i32 {
    // Rust's start-up ignores it; a command expects the default.
    set_default(Signal::SIGPIPE);
    let _ = before.thread_set_mask();
    let Some(program) = session.command.first() else {
        return NOT_FOUND;
    };
    let Err(error) = execvpe(program, &session.command, &session.environment);
    let name = program.to_string_lossy();
    match error {
        Errno::ENOENT => {
            eprintln!("panefs: {name}: command not found");
            NOT_FOUND
        }
        error => {
            eprintln!("panefs: {name}: {}", error.desc());
            NOT_EXECUTABLE
        }
    }
}

/// Reaps whatever ends, and tells the front what concerns the command.
fn reap(command: Pid, front: Pid, to: &UnixStream) {
    // When the command has ended, look once without waiting: the front wants to know before it
    // ends whether anything is left.
    let mut block = true;
    loop {
        match wait_any(block) {
            Ok(Some((pid, status))) if pid == command => {
                if let Some(notice) = notice_of(status) {
                    block = matches!(notice, Notice::Stopped);
                    let _ = notice.send(to);
                } else if getppid() == front {
                    // Somebody continued the command alone; the front, which stopped as it did,
                    // goes on as well.
                    let _ = kill(front, Signal::SIGCONT);
                }
            }
            Ok(Some(_)) => {}
            Ok(None) => {
                block = true;
                let _ = Notice::Remaining.send(to);
            }
            Err(_) => {
                let _ = Notice::Empty.send(to);
                return;
            }
        }
    }
}

/// What the front hears of a change of the command; None where it was continued.
fn notice_of(status: ExitStatus) -> Option<Notice> {
    if let Some(code) = status.code() {
        Some(Notice::Exited(code))
    } else if let Some(number) = status.signal() {
        Some(Notice::Signaled(number))
    } else if status.stopped_signal().is_some() {
        Some(Notice::Stopped)
    } else {
        None
    }
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}
