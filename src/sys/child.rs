//! Child processes beyond what the standard library offers: fork without exec, and adopting
//! orphans.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use nix::unistd::{ForkResult, Pid, fork};

/// Runs `body` in a child process, which ends with the status that `body` returns.
///
/// For a process with one thread: another thread's locks would stay locked in the child.
///
/// # Errors
/// `EAGAIN`, `ENOMEM`, and `EBUSY` where this process has more than one thread.
pub fn fork_with(body: impl FnOnce() -> i32) -> io::Result<Pid> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::from_raw_os_error(libc::EBUSY));
    }
    // SAFETY: this is the only thread (checked above; only a thread could start another), so the
    // child's copy of every lock, the allocator's included, is free.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => Ok(child),
        ForkResult::Child => {
            let status = body();
            // SAFETY: _exit takes any number and doesn't return. Exit handlers are the parent's.
            unsafe { libc::_exit(status) }
        }
    }
}

/// Makes this process the parent of every descendant whose own parent ends.
///
/// # Errors
/// None on any kernel that FUSE passthrough or pidfds run on.
pub fn become_subreaper() -> io::Result<()> {
    // SAFETY: prctl with this option takes numbers only.
    check(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }.into())
}

/// Waits for any child: to end, to stop or to continue.
///
/// Without `block`, None where no child has anything to report.
///
/// # Errors
/// `ECHILD` where there is no child.
pub fn wait_any(block: bool) -> io::Result<Option<(Pid, ExitStatus)>> {
    let flags = libc::WUNTRACED | libc::WCONTINUED | if block { 0 } else { libc::WNOHANG };
    let mut status = 0;
    loop {
        // SAFETY: `status` is a live c_int for the kernel to write.
        match unsafe { libc::waitpid(-1, &raw mut status, flags) } {
            0 => return Ok(None),
            pid if pid > 0 => {
                return Ok(Some((Pid::from_raw(pid), ExitStatus::from_raw(status))));
            }
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

/// Closes every descriptor from 3 on, except `keep`.
///
/// Whatever was behind the closed ones must not be used afterwards: for a process that came from
/// [`fork_with`] and holds nothing else, or that is about to do nothing but wait.
///
/// # Errors
/// None on kernels from 5.9 on.
pub fn close_all_but(keep: BorrowedFd<'_>) -> io::Result<()> {
    let keep = keep.as_raw_fd();
    if keep > 3 {
        close_range(3, keep - 1)?;
    }
    close_range(keep.max(2) + 1, RawFd::MAX)
}

fn close_range(first: RawFd, last: RawFd) -> io::Result<()> {
    // SAFETY: the kernel takes numbers only. The caller answers for nothing using them any more.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) })
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
