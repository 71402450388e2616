//! Names of control groups, as users write them, as the kernel does, and as bindings keep them.
//!
//! A binding keeps `/a/b` for the unified hierarchy and `pids:/a/b` for the one that is mounted at
//! /sys/fs/cgroup/pids.

use std::fs;
use std::path::{Path, PathBuf};

const TOP: &str = "/sys/fs/cgroup";

/// A mounted hierarchy.
#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    /// Its directory under [`TOP`]; empty for the unified one, wherever that is.
    name: String,
    mounted_at: PathBuf,
    /// Which control group is mounted there, as the kernel names it: mostly `/`.
    root: String,
}

/// Fields of a line: id, parent, device, root, mountpoint, options, optional fields, `-`, type, …
fn hierarchies(mountinfo: &str) -> Vec<Hierarchy> {
    let parse = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ');
        let root = before.nth(3)?;
        let mounted_at = Path::new(before.next()?);
        let below = mounted_at.strip_prefix(TOP).ok()?;
        let name = match after.split(' ').next()? {
            "cgroup2" => String::new(),
            "cgroup" => below.to_str()?.to_owned(),
            _ => return None,
        };
        Some(Hierarchy {
            name,
            mounted_at: mounted_at.to_owned(),
            root: root.to_owned(),
        })
    };
    mountinfo.lines().filter_map(parse).collect()
}

fn mounted() -> Vec<Hierarchy> {
    hierarchies(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
}

/// Why a path names no control group that can be bound.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoCgroup {
    #[error("there is no control group {0:?}")]
    Missing(String),
    #[error("{0:?} is not a control group below a hierarchy's top under {TOP}")]
    Invalid(String),
}

/// The name that a binding keeps for the control group at an absolute path.
pub(super) fn key_of(path: &str) -> Result<String, NoCgroup> {
    let invalid = || NoCgroup::Invalid(path.to_owned());
    // Only then is it looked up: a path elsewhere could lie in the mount that waits for us.
    if !Path::new(path).starts_with(TOP) || path.contains("/..") {
        return Err(invalid());
    }
    let real = fs::canonicalize(path).map_err(|_| NoCgroup::Missing(path.to_owned()))?;
    let hierarchy = mounted()
        .into_iter()
        .filter(|hierarchy| real.starts_with(&hierarchy.mounted_at))
        .max_by_key(|hierarchy| hierarchy.mounted_at.as_os_str().len())
        .ok_or_else(invalid)?;
    let below = real
        .strip_prefix(&hierarchy.mounted_at)
        .ok()
        .and_then(Path::to_str)
        .filter(|below| !below.is_empty() && real.is_dir())
        .ok_or_else(invalid)?;
    let root = hierarchy.root.trim_end_matches('/');
    Ok(key(&hierarchy.name, &format!("{root}/{below}")))
}

/// Where the control group of a binding is, if its hierarchy is mounted.
pub(super) fn directory_of(key: &str) -> Option<PathBuf> {
    let (name, path) = match key.starts_with('/') {
        true => ("", key),
        false => key.split_once(':')?,
    };
    mounted().into_iter().find_map(|hierarchy| {
        let below = path.strip_prefix(hierarchy.root.trim_end_matches('/'))?;
        (hierarchy.name == name).then(|| hierarchy.mounted_at.join(below.trim_start_matches('/')))
    })
}

fn key(hierarchy: &str, path: &str) -> String {
    match hierarchy {
        "" => path.to_owned(),
        name => format!("{name}:{path}"),
    }
}

/// Finds the longest name that `bound` knows among the control groups of a thread and those above
/// them; `text` is the thread's `cgroup` file.
pub(super) fn longest<T>(text: &str, bound: impl Fn(&str) -> Option<T>) -> Option<T> {
    let mut best: Option<(usize, T)> = None;
    for line in text.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let name = controllers.strip_prefix("name=").unwrap_or(controllers);
        let mut path = path.strip_suffix(" (deleted)").unwrap_or(path);
        while path.len() > 1 {
            if best
                .as_ref()
                .is_some_and(|&(length, _)| length >= path.len())
            {
                break;
            }
            if let Some(found) = bound(&key(name, path)) {
                best = Some((path.len(), found));
                break;
            }
            path = path.rfind('/').map_or("", |at| &path[..at]);
        }
    }
    best.map(|(_, found)| found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_bound_prefix_wins() {
        let text = "8:pids:/a/b\n1:name=systemd:/a\n0::/x/y/z\n";
        let find = |bound: &[&'static str]| {
            longest(text, |key| bound.iter().find(|&&b| b == key).copied())
        };
        assert_eq!(find(&["pids:/a", "pids:/a/b"]), Some("pids:/a/b"));
        assert_eq!(find(&["pids:/a", "systemd:/a"]), Some("pids:/a"));
        assert_eq!(find(&["systemd:/a"]), Some("systemd:/a"));
        assert_eq!(find(&["pids:/a/b", "/x/y/z"]), Some("/x/y/z"));
        assert_eq!(
            find(&["/x", "pids:/", "/x/y/z/w", "pids:/a/bc"]),
            Some("/x")
        );
        assert_eq!(find(&["/a", "name=systemd:/a"]), None);
    }

    #[test]
    fn both_layouts_are_known() {
        let v2 = "31 23 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n";
        assert_eq!(hierarchies(v2)[0].name, "");
        let hybrid = "31 23 0:27 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                      32 31 0:28 /docker/x /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n\
                      33 31 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let found = hierarchies(hybrid);
        let names: Vec<_> = found
            .iter()
            .map(|h| (h.name.as_str(), h.root.as_str()))
            .collect();
        assert_eq!(names, [("pids", "/docker/x"), ("", "/")]);
    }

    #[test]
    fn only_control_groups_can_be_named() {
        for bad in [
            "",
            "x",
            "/tmp",
            "/sys/fs/cgroup",
            "/sys/fs/cgroup/../../tmp",
            "/sys/fs/cgroups",
        ] {
            assert!(matches!(key_of(bad), Err(NoCgroup::Invalid(_))), "{bad:?}");
        }
        let missing = key_of("/sys/fs/cgroup/no/such/group");
        assert!(matches!(missing, Err(NoCgroup::Missing(_))));
    }
}
