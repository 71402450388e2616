//! Which processes hold which files open for writing, as /proc tells.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// A process that holds a file open for writing.
#[derive(Debug, Clone, Serialize)]
pub struct Holder {
    /// The process.
    pub pid: u32,
    /// Its name, at most 15 bytes.
    pub command: String,
    /// The file, absolute.
    pub path: String,
    /// The file's inode number.
    #[serde(skip)]
    pub ino: u64,
}

/// Every holder of one of these inodes, under one of these mounts. What may not be looked at is
/// left out.
pub fn find(inodes: &HashSet<u64>, mounts: &[PathBuf]) -> Vec<Holder> {
    let mut holders = Vec::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = process.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let process = process.path();
        for fd in fs::read_dir(process.join("fdinfo"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let info = fs::read_to_string(fd.path()).unwrap_or_default();
            let Some(ino) = written_inode(&info).filter(|ino| inodes.contains(ino)) else {
                continue;
            };
            let Ok(path) = fs::read_link(process.join("fd").join(fd.file_name())) else {
                continue;
            };
            if mounts.iter().any(|mount| path.starts_with(mount)) {
                holders.push(Holder {
                    pid,
                    command: command(pid),
                    path: path.display().to_string(),
                    ino,
                });
            }
        }
    }
    holders
}

/// A process's name; empty where it has ended.
pub fn command(pid: u32) -> String {
    let comm = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("comm"));
    comm.unwrap_or_default().trim_end().to_owned()
}

/// The inode of a descriptor that is open for writing, from its fdinfo.
fn written_inode(info: &str) -> Option<u64> {
    let field = |name: &str| {
        let mut lines = info.lines();
        lines.find_map(|line| Some(line.strip_prefix(name)?.trim()))
    };
    let flags = i32::from_str_radix(field("flags:")?, 8).ok()?;
    let written = flags & libc::O_ACCMODE != libc::O_RDONLY && flags & libc::O_PATH == 0;
    written.then(|| field("ino:")?.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn the_writer_of_a_file_is_found_and_its_reader_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let written = fs::File::create(dir.path().join("written")).unwrap();
        fs::write(dir.path().join("read"), "").unwrap();
        let read = fs::File::open(dir.path().join("read")).unwrap();
        let inodes = [&written, &read].map(|file| file.metadata().unwrap().ino());
        let holders = find(&inodes.into(), &[dir.path().to_owned()]);
        let found: Vec<_> = holders.iter().map(|h| (h.pid, h.ino)).collect();
        assert_eq!(found, [(std::process::id(), inodes[0])]);
        assert_eq!(
            holders[0].path,
            dir.path().join("written").display().to_string()
        );
        assert!(!holders[0].command.is_empty());
        assert!(find(&inodes.into(), &["/elsewhere".into()]).is_empty());
    }
}
