//! Work in git repositories that exists nowhere else.

use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde::Serialize;

use crate::model::Owner;

/// How deep below a workspace's top repositories are looked for.
const DEPTH: usize = 3;

/// How long one question to git may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Work that a repository has and that exists nowhere else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unsaved {
    /// The repository, from the workspace's top; empty for the top itself.
    pub repository: PathBuf,
    /// What it is, or why it can't be told.
    pub what: String,
}

/// The first unsaved work found under `top`. Git runs as `user` where one is given: a repository's
/// own settings may run programs, and those must not run as the daemon.
///
/// Whatever can't be found out counts as unsaved.
pub fn unsaved(top: &Path, user: Option<Owner>) -> Option<Unsaved> {
    let mut repositories = Vec::new();
    find(top, DEPTH, &mut repositories);
    repositories.into_iter().find_map(|repository| {
        let what = match ask_all(&repository, user) {
            Ok(None) => return None,
            Ok(Some(what)) => what.to_owned(),
            Err(error) => format!("git could not tell: {error}"),
        };
        let repository = repository
            .strip_prefix(top)
            .unwrap_or(&repository)
            .to_owned();
        Some(Unsaved { repository, what })
    })
}

/// Directories with a `.git`, whatever that is, and bare repositories.
fn find(directory: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    let is_work_tree = directory.join(".git").symlink_metadata().is_ok();
    if is_work_tree || is_bare(directory) {
        found.push(directory.to_owned());
    }
    if depth == 0 || is_bare(directory) {
        return;
    }
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if directory && entry.file_name() != ".git" {
            find(&entry.path(), depth - 1, found);
        }
    }
}

fn is_bare(directory: &Path) -> bool {
    ["HEAD", "objects", "refs"]
        .iter()
        .all(|name| directory.join(name).symlink_metadata().is_ok())
}

fn ask_all(repository: &Path, user: Option<Owner>) -> Result<Option<&'static str>, String> {
    const CHANGES: &[&str] = &["status", "--porcelain", "--ignore-submodules=all"];
    const COMMITS: &[&str] = &["rev-list", "-n1", "--branches", "--not", "--remotes"];
    const STASHES: &[&str] = &["for-each-ref", "refs/stash"];
    let head = &[
        "rev-list",
        "-n1",
        "HEAD",
        "--not",
        "--remotes",
        "--branches",
    ];
    if !is_bare(repository) && !git(repository, user, CHANGES)?.is_empty() {
        return Ok(Some("uncommitted changes"));
    }
    if !git(repository, user, COMMITS)?.is_empty() {
        return Ok(Some("commits that no remote has"));
    }
    if !git(repository, user, STASHES)?.is_empty() {
        return Ok(Some("a stash"));
    }
    // Fails where nothing was committed yet, and then there is nothing to lose.
    match git(repository, user, head) {
        Ok(commit) if !commit.is_empty() => Ok(Some("commits on no branch")),
        _ => Ok(None),
    }
}

/// What git prints, or why it can't.
fn git(repository: &Path, user: Option<Owner>, args: &[&str]) -> Result<Vec<u8>, String> {
    let git_dir = if is_bare(repository) { "." } else { ".git" };
    let mut command = Command::new("git");
    command
        .args(args)
        .current_dir(repository)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("LC_ALL", "C")
        .env("GIT_DIR", git_dir)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_OPTIONAL_LOCKS", "0")
        .env("GIT_NO_LAZY_FETCH", "1")
        .env("GIT_TERMINAL_PROMPT", "0");
    if git_dir == ".git" {
        command.env("GIT_WORK_TREE", ".");
    }
    let settings = [
        ("safe.directory", "*"),
        ("core.fsmonitor", "false"),
        ("core.hooksPath", "/dev/null"),
        ("log.showSignature", "false"),
    ];
    command.env("GIT_CONFIG_COUNT", settings.len().to_string());
    for (n, (key, value)) in settings.iter().enumerate() {
        command.env(format!("GIT_CONFIG_KEY_{n}"), key);
        command.env(format!("GIT_CONFIG_VALUE_{n}"), value);
    }
    if let Some(user) = user {
        command.uid(user.uid).gid(user.gid);
    }
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = child.map_err(|error| error.to_string())?;
    let output = child.stdout.take();
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut text = Vec::new();
        // A little is as telling as all of it.
        let read = output.map(|output| output.take(4096).read_to_end(&mut text));
        let _ = sender.send(read.transpose().map(|_| text));
    });
    let text = receiver.recv_timeout(PATIENCE);
    if !matches!(&text, Ok(Ok(text)) if text.is_empty()) {
        // It has said enough, or takes too long. It may have ended by itself.
        let _ = child.kill();
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    match text {
        Err(_) => Err("it took too long".to_owned()),
        Ok(Err(error)) => Err(error.to_string()),
        Ok(Ok(text)) if text.is_empty() && !status.success() => Err(status.to_string()),
        Ok(Ok(text)) => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(directory: &Path, args: &[&str]) {
        let identity = ["-c", "user.name=a", "-c", "user.email=a@b"];
        let done = Command::new("git")
            .args(identity)
            .args(args)
            .current_dir(directory)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .output()
            .unwrap();
        assert!(done.status.success(), "{args:?}: {done:?}");
    }

    #[test]
    fn work_that_exists_nowhere_else_is_found() {
        let top = tempfile::tempdir().unwrap();
        let (origin, work) = (top.path().join("origin"), tempfile::tempdir().unwrap());
        fs::create_dir(&origin).unwrap();
        run(&origin, &["init", "--quiet"]);
        run(
            &origin,
            &["commit", "--quiet", "--allow-empty", "-m", "first"],
        );
        let what = |directory: &Path| unsaved(directory, None).map(|unsaved| unsaved.what);
        assert_eq!(
            what(top.path()).as_deref(),
            Some("commits that no remote has")
        );

        let url = origin.display().to_string();
        run(work.path(), &["clone", "--quiet", &url, "a/b/clone"]);
        assert_eq!(what(work.path()), None);
        let clone = work.path().join("a/b/clone");
        fs::write(clone.join("file"), "new").unwrap();
        let found = unsaved(work.path(), None).unwrap();
        assert_eq!(found.repository, Path::new("a/b/clone"));
        assert_eq!(found.what, "uncommitted changes");
        run(&clone, &["add", "file"]);
        run(&clone, &["stash"]);
        assert_eq!(what(work.path()).as_deref(), Some("a stash"));
        run(&clone, &["stash", "drop"]);
        run(&clone, &["checkout", "--quiet", "--detach"]);
        run(
            &clone,
            &["commit", "--quiet", "--allow-empty", "-m", "second"],
        );
        assert_eq!(what(work.path()).as_deref(), Some("commits on no branch"));
    }

    #[test]
    fn what_cannot_be_told_counts_as_unsaved() {
        let top = tempfile::tempdir().unwrap();
        fs::create_dir(top.path().join(".git")).unwrap();
        let found = unsaved(top.path(), None).unwrap();
        assert!(
            found.what.starts_with("git could not tell"),
            "{}",
            found.what
        );
    }
}
