//! Which mount a command is about.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::failure::{Failure, Outcome};

/// The file system type of a mount, in /proc/self/mountinfo.
pub const MAIN: &str = "fuse.panefs";
/// The type of a view mount.
pub const VIEW: &str = "fuse.panefs-view";

/// One line of /proc/self/mountinfo, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// `major:minor`, the same for every place where one mount is shown.
    pub device: String,
    /// Which directory of the file system is mounted.
    pub root: PathBuf,
    /// Where.
    pub point: PathBuf,
    /// The type, for instance [`MAIN`].
    pub kind: String,
    /// What is mounted: for a mount of panefs its store.
    pub source: PathBuf,
}

impl Entry {
    /// Whether it is a mount, and of the whole tree.
    fn is_main(&self) -> bool {
        self.kind == MAIN && self.root == Path::new("/")
    }
}

/// Every mount that this process sees, in the order in which they were made.
pub fn entries() -> Outcome<Vec<Entry>> {
    let file = "/proc/self/mountinfo";
    let text = fs::read(file).map_err(|e| Failure::io(file, &e))?;
    Ok(text.split(|&b| b == b'\n').filter_map(entry).collect())
}

fn entry(line: &[u8]) -> Option<Entry> {
    let mut fields = line.split(|&b| b == b' ');
    let device = String::from_utf8_lossy(fields.by_ref().nth(2)?).into_owned();
    let root = unescape(fields.next()?).into();
    let point = unescape(fields.next()?).into();
    // A varying number of optional fields ends with a dash.
    fields.by_ref().find(|field| *field == b"-")?;
    let kind = String::from_utf8_lossy(fields.next()?).into_owned();
    let source = unescape(fields.next()?).into();
    Some(Entry {
        device,
        root,
        point,
        kind,
        source,
    })
}

/// Undoes the kernel's `\040` for a space, and the like.
fn unescape(field: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok();
        match tail.get(..3).and_then(octal).filter(|_| first == b'\\') {
            Some(byte) => {
                out.push(byte);
                rest = &tail[3..];
            }
            None => {
                out.push(first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(out)
}

/// A mount to talk to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Where, absolute.
    pub path: PathBuf,
    /// Its store; none where it was named by a path that is no mountpoint of this process's.
    pub store: Option<PathBuf>,
}

impl Mount {
    /// A control file.
    pub fn control(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(".panefs").join(name)
    }

    /// What to do where the daemon is gone.
    pub fn remount(&self) -> String {
        let store = self.store.as_deref().unwrap_or(Path::new("STORE"));
        format!(
            "Mount it again: panefs mount {} {}",
            quote(store),
            quote(&self.path)
        )
    }
}

/// The path as a shell takes it.
pub fn quote(path: &Path) -> String {
    shell_words::quote(&path.to_string_lossy()).into_owned()
}

/// The mount named by `--mnt` or `PANEFS_MNT`, else the one around the current directory, else
/// the only one there is.
pub fn mount(named: Option<&Path>) -> Outcome<Mount> {
    match named {
        Some(path) => by_path(path),
        None => choose(&entries()?, std::env::current_dir().ok().as_deref()),
    }
}

/// The mount whose store a view mount at `dir` shows.
pub fn of_view(dir: &Path) -> Outcome<Option<Mount>> {
    let entries = entries()?;
    let view = entries.iter().rfind(|e| e.kind == VIEW && e.point == dir);
    let main = view.and_then(|view| {
        entries
            .iter()
            .find(|e| e.is_main() && e.source == view.source)
    });
    Ok(main.map(of_entry))
}

/// The mount, or view, that `path` lies in; None where it lies in none.
pub fn around(path: &Path) -> Outcome<Option<Mount>> {
    Ok(nearest(&entries()?, path))
}

fn nearest(entries: &[Entry], path: &Path) -> Option<Mount> {
    let of_panefs = entries.iter().filter(|e| e.is_main() || e.kind == VIEW);
    let around = of_panefs.filter(|e| path.starts_with(&e.point));
    around
        .max_by_key(|e| e.point.as_os_str().len())
        .map(of_entry)
}

fn of_entry(entry: &Entry) -> Mount {
    Mount {
        path: entry.point.clone(),
        store: Some(entry.source.clone()),
    }
}

fn by_path(path: &Path) -> Outcome<Mount> {
    let path = absolute(path);
    let entry = entries()?
        .into_iter()
        .rfind(|e| e.point == path && e.kind == MAIN);
    let mount = Mount {
        store: entry.map(|entry| entry.source),
        path,
    };
    match fs::symlink_metadata(mount.control("")) {
        Ok(_) => Ok(mount),
        Err(e) if e.raw_os_error() == Some(libc::ENOTCONN) => Err(dead(&mount)),
        Err(_) => Err(Failure::new(
            format!("{} is not a panefs mount", mount.path.display()),
            format!(
                "Mount it first (panefs mount STORE {}), or name another with --mnt.",
                quote(&mount.path)
            ),
        )),
    }
}

/// The daemon of the mount has ended.
pub fn dead(mount: &Mount) -> Failure {
    Failure::new(
        format!("the daemon of {} has ended", mount.path.display()),
        mount.remount(),
    )
}

fn choose(entries: &[Entry], cwd: Option<&Path>) -> Outcome<Mount> {
    let mains = || entries.iter().filter(|e| e.is_main());
    let around = cwd.and_then(|cwd| {
        mains()
            .filter(|e| cwd.starts_with(&e.point))
            .max_by_key(|e| e.point.as_os_str().len())
    });
    if let Some(entry) = around {
        return Ok(of_entry(entry));
    }
    let mut all: Vec<&Entry> = Vec::new();
    for entry in mains() {
        // One mount that is shown at two places is one.
        if !all.iter().any(|seen| seen.device == entry.device) {
            all.push(entry);
        }
    }
    match all[..] {
        [] => Err(Failure::new(
            "there is no panefs mount",
            "panefs mount STORE MNT, or name one with --mnt PATH or PANEFS_MNT.",
        )),
        [entry] => Ok(of_entry(entry)),
        _ => Err(Failure::new(
            format!("there are {} panefs mounts: {}", all.len(), list(&all)),
            "Name one with --mnt PATH or PANEFS_MNT, or change into it.",
        )),
    }
}

fn list(entries: &[&Entry]) -> String {
    let names: Vec<_> = entries.iter().map(|e| e.point.to_string_lossy()).collect();
    names.join(", ")
}

/// The path without links, `.` and `..`; for a last component that can't be looked at (a dead
/// mount, a missing directory) that of its parent with it.
pub fn absolute(path: &Path) -> PathBuf {
    if let Ok(real) = path.canonicalize() {
        return real;
    }
    let full = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    // A trailing slash or dot is no component.
    let full: PathBuf = full.components().collect();
    match (full.parent().map(Path::canonicalize), full.file_name()) {
        (Some(Ok(parent)), Some(name)) => parent.join(name),
        _ => full,
    }
}

/// The environment variable that names the mount.
pub const VARIABLE: &str = "PANEFS_MNT";

/// Whether a name stands for a window: `c` and a number.
pub fn is_window(name: &OsStr) -> bool {
    std::str::from_utf8(name.as_bytes()).is_ok_and(|n| panefs::model::WindowId::parse(n).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(n: u32, point: &str, kind: &str, source: &str) -> Entry {
        let text = format!(
            "{n} 1 0:{n} / {point} rw,nosuid shared:1 master:2 - {kind} {source} rw,user_id=0"
        );
        entry(text.as_bytes()).unwrap()
    }

    #[test]
    fn mountinfo_is_read_with_its_escapes() {
        let entry = line(7, "/mnt/a\\040b\\134", MAIN, "/st\\011ore");
        assert_eq!(entry.point, Path::new("/mnt/a b\\"));
        assert_eq!(entry.source, Path::new("/st\tore"));
        assert_eq!((entry.device.as_str(), entry.kind.as_str()), ("0:7", MAIN));
        assert!(super::entry(b"").is_none());
    }

    #[test]
    fn the_mount_around_the_directory_wins_then_the_only_one() {
        let a = line(1, "/a", MAIN, "/sa");
        let view = line(2, "/v", VIEW, "/sa");
        let deep = line(3, "/a/deep", MAIN, "/sd");
        let found = |entries: &[Entry], cwd: &str| {
            choose(entries, Some(Path::new(cwd))).map(|m| m.path).ok()
        };
        let only = [a.clone(), view.clone()];
        assert_eq!(found(&only, "/elsewhere"), Some("/a".into()));
        let both = [a.clone(), view, deep];
        assert_eq!(found(&both, "/elsewhere"), None);
        assert_eq!(found(&both, "/a/ws1"), Some("/a".into()));
        assert_eq!(found(&both, "/a/deep/ws1"), Some("/a/deep".into()));
        assert_eq!(found(&[], "/a"), None);
        let lies = |path: &str| nearest(&both, Path::new(path)).map(|m| m.path);
        assert_eq!(lies("/v/ws1/f"), Some("/v".into()));
        assert_eq!(lies("/a/deep"), Some("/a/deep".into()));
        assert_eq!(lies("/elsewhere"), None);
        let twice = [
            a.clone(),
            Entry {
                point: "/bound".into(),
                ..a
            },
        ];
        assert_eq!(found(&twice, "/elsewhere"), Some("/a".into()));
    }
}
