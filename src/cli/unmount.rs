//! `panefs unmount`: asks the daemon to end, and waits until it has.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ArgMatches, Args};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::Signal;
use panefs::sys::pidfd::{PidFd, wait_any_ended};

use super::detach::detach;
use super::failure::{Failure, Outcome};
use super::locate::{self, Entry, absolute, quote};
use super::text::span;

/// How long a daemon may take: it ends within a second or two, also where the mount is busy.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug, Args)]
struct Arguments {
    /// The mountpoint
    #[arg(value_name = "MNT")]
    mountpoint: PathBuf,
}

pub fn command() -> clap::Command {
    super::command_of::<Arguments>(
        "unmount",
        "End a mount; returns when it is gone. The files stay in the store",
    )
    .alias("umount")
}

pub fn run(matches: &ArgMatches) -> Outcome {
    let point = absolute(&super::read::<Arguments>(matches)?.mountpoint);
    let Some(entry) = at(&point)? else {
        return Err(Failure::new(
            format!("no panefs is mounted at {}", point.display()),
            "See what is mounted with: findmnt -t fuse.panefs",
        ));
    };
    let users = users(&point);
    // A view mount is its daemon's least concern: only the view goes.
    let daemon = daemon_of(&entry.source).filter(|_| entry.kind == locate::MAIN);
    if let Some((pid, daemon)) = daemon {
        end(pid, &daemon, &point)?;
    }
    // Whatever a dead daemon left, or one that could not unmount.
    while at(&point)?.is_some_and(|left| left.source == entry.source) {
        detach(&point)?;
    }
    if !users.is_empty() {
        eprintln!("panefs: these were still inside: {}", users.join(", "));
        eprintln!(
            "  try: Let them leave {}; what they had open no longer works.",
            point.display()
        );
    }
    Ok(())
}

/// The panefs mount on top of what is mounted at `point`.
fn at(point: &Path) -> Outcome<Option<Entry>> {
    let top = locate::entries()?
        .into_iter()
        .rfind(|entry| entry.point == point);
    Ok(top.filter(|entry| entry.kind == locate::MAIN || entry.kind == locate::VIEW))
}

/// Sends SIGTERM and waits.
fn end(pid: u32, daemon: &PidFd, point: &Path) -> Outcome {
    if let Err(e) = daemon.signal(Signal::SIGTERM) {
        return match e.raw_os_error() {
            Some(libc::ESRCH) => Ok(()),
            Some(libc::EPERM) => Err(Failure::new(
                format!(
                    "{} is another user's mount (daemon: pid {pid})",
                    point.display()
                ),
                "Ask its owner, or unmount it as root.",
            )),
            _ => Err(Failure::io(format_args!("pid {pid}"), &e)),
        };
    }
    let ended = wait_any_ended(&[daemon], PATIENCE).map_err(|e| Failure::io("poll", &e))?;
    if ended.contains(&true) {
        return Ok(());
    }
    Err(Failure::new(
        format!(
            "the daemon (pid {pid}) was asked to end and has not within {}",
            span(PATIENCE)
        ),
        format!(
            "See its log; end it with kill -9 {pid}, then again: panefs unmount {}",
            quote(point)
        ),
    ))
}

/// The process that serves the store; None where none does.
pub fn daemon_of(store: &Path) -> Option<(u32, PidFd)> {
    let path = store.join("lock");
    let pid = || -> Option<u32> { fs::read_to_string(&path).ok()?.trim().parse().ok() };
    let number = pid()?;
    let process = PidFd::of_process(number).ok()?;
    // Only now is it sure that the descriptor means the one that holds the lock: a dead daemon's
    // number may be somebody else's.
    if is_locked(&path).ok()? && pid()? == number {
        return Some((number, process));
    }
    None
}

fn is_locked(path: &Path) -> io::Result<bool> {
    match Flock::lock(File::open(path)?, FlockArg::LockSharedNonblock) {
        Ok(_) => Ok(false),
        Err((_, Errno::EWOULDBLOCK)) => Ok(true),
        Err((_, errno)) => Err(errno.into()),
    }
}

/// The processes that have a directory or a file inside, as far as the caller may see them.
fn users(point: &Path) -> Vec<String> {
    let own = std::process::id().to_string();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter(|entry| entry.file_name().to_string_lossy().parse::<u32>().is_ok())
        .filter(|entry| *entry.file_name() != *own.as_str())
        .filter(|entry| is_inside(&entry.path(), point))
        .map(|entry| {
            let command = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            format!(
                "{} ({})",
                entry.file_name().to_string_lossy(),
                command.trim_end()
            )
        })
        .collect()
}

fn is_inside(process: &Path, point: &Path) -> bool {
    // Reading these links asks nothing of the mount.
    let leads_inside = |link: &Path| fs::read_link(link).is_ok_and(|to| to.starts_with(point));
    let files = fs::read_dir(process.join("fd"))
        .into_iter()
        .flatten()
        .flatten();
    leads_inside(&process.join("cwd"))
        || leads_inside(&process.join("root"))
        || leads_inside(&process.join("exe"))
        || files
            .map(|file| file.path())
            .any(|file| leads_inside(&file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_lock_names_nobody() {
        let dir = tempfile::tempdir().unwrap();
        assert!(daemon_of(dir.path()).is_none());
        let lock = dir.path().join("lock");
        fs::write(&lock, format!("{}\n", std::process::id())).unwrap();
        assert!(daemon_of(dir.path()).is_none());
        let held = Flock::lock(File::open(&lock).unwrap(), FlockArg::LockExclusive).unwrap();
        let (pid, _) = daemon_of(dir.path()).unwrap();
        assert_eq!(pid, std::process::id());
        drop(held);
        assert!(daemon_of(dir.path()).is_none());
    }
}
