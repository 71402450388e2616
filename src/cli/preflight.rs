//! Whether a mount can work, found out before anything is changed.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access, geteuid};

use super::detach::detach;
use super::failure::{Failure, Outcome, reason};
use super::locate::{self, Entry, absolute, quote};
use super::mount::MountArgs;

/// Makes the paths absolute, clears this store's own dead mount, and refuses what can't work.
pub fn check(args: &mut MountArgs) -> Outcome {
    if args.allow_other && !geteuid().is_root() {
        return Err(Failure::new(
            "unsupported: --allow-other needs root",
            "Mount as root, or without --allow-other for yourself alone.",
        ));
    }
    args.store = real(&args.store);
    args.mountpoint = absolute(&args.mountpoint);
    device()?;
    apart(&args.store, &args.mountpoint)?;
    outside(&args.store)?;
    clear_dead(&args.store)?;
    mountpoint(&args.store, &args.mountpoint)
}

/// The path without links; what doesn't exist yet is added to the nearest that does.
fn real(path: &Path) -> PathBuf {
    let full = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for above in full.ancestors() {
        if let (Ok(found), Ok(rest)) = (above.canonicalize(), full.strip_prefix(above)) {
            // Joining nothing would add a slash.
            return if rest.as_os_str().is_empty() {
                found
            } else {
                found.join(rest)
            };
        }
    }
    full
}

/// The store and the mount must not contain each other.
fn apart(store: &Path, point: &Path) -> Outcome {
    let say = |inner: &str, outer: &str| {
        Err(Failure::new(
            format!(
                "{inner} lies inside {outer}: {} and {}",
                store.display(),
                point.display()
            ),
            "Choose two directories of which none contains the other.",
        ))
    };
    if store.starts_with(point) {
        return say("the store", "the mountpoint");
    }
    if point.starts_with(store) {
        return say("the mountpoint", "the store");
    }
    Ok(())
}

/// The store must not lie in a mount of panefs: a daemon does not stay a member of the window that
/// it was started in, and a guest can't write there.
fn outside(store: &Path) -> Outcome {
    let mounts = locate::entries()?;
    // The longest path is the nearest; of several at one place the last one made is on top.
    let around = mounts
        .iter()
        .filter(|entry| store.starts_with(&entry.point));
    let nearest = around.max_by_key(|entry| entry.point.as_os_str().len());
    match nearest.filter(|entry| entry.kind.starts_with(locate::MAIN)) {
        None => Ok(()),
        Some(mount) => Err(Failure::new(
            format!(
                "the store {} lies inside a panefs mount, {}",
                store.display(),
                mount.point.display()
            ),
            "Choose a directory outside, on a local disk.",
        )),
    }
}

/// What mounting needs of the system.
fn device() -> Outcome {
    let device = "/dev/fuse";
    if let Err(error) = fs::File::options().read(true).write(true).open(device) {
        let next = match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
                "Load it with modprobe fuse; start a container with --device /dev/fuse."
            }
            _ => {
                "Ask for access (udev gives it mode 0666); start a container with --device /dev/fuse."
            }
        };
        return Err(Failure::new(format!("{device}: {}", reason(&error)), next));
    }
    if super::doctor::may_mount() || !geteuid().is_root() && super::doctor::fusermount().is_some() {
        return Ok(());
    }
    if geteuid().is_root() {
        return Err(Failure::new(
            "root lacks CAP_SYS_ADMIN here, so nothing can be mounted",
            "Start the container with --cap-add SYS_ADMIN --device /dev/fuse.",
        ));
    }
    Err(Failure::new(
        "fusermount3 is missing; ordinary users mount through it",
        "Install it: apt-get install fuse3",
    ))
}

/// Unmounts what an earlier daemon of this store left when it was killed.
fn clear_dead(store: &Path) -> Outcome {
    let mut dead: Vec<Entry> = locate::entries()?;
    dead.retain(|entry| {
        entry.kind.starts_with(locate::MAIN)
            && entry.source == store
            && panefs::sys::mount::is_dead(&entry.point)
    });
    // The last one made lies on top.
    for entry in dead.iter().rev() {
        detach(&entry.point)?;
        eprintln!(
            "panefs: cleared the dead mount at {}",
            entry.point.display()
        );
    }
    Ok(())
}

/// An empty directory that the caller may mount on.
fn mountpoint(store: &Path, point: &Path) -> Outcome {
    let name = point.display();
    let entries = match fs::read_dir(point) {
        Ok(entries) => entries,
        Err(e) => {
            return Err(match e.raw_os_error() {
                Some(libc::ENOENT) => Failure::new(
                    format!("the mountpoint {name} does not exist"),
                    format!("Make it: mkdir -p {}", quote(point)),
                ),
                Some(libc::ENOTDIR) => Failure::new(
                    format!("the mountpoint {name} is not a directory"),
                    "Choose an empty directory.",
                ),
                Some(libc::ENOTCONN) => Failure::new(
                    format!(
                        "{name} is a dead mount of something else than {}",
                        store.display()
                    ),
                    format!("Clear it: fusermount3 -u -z {}", quote(point)),
                ),
                _ => Failure::io(format_args!("the mountpoint {name}"), &e),
            });
        }
    };
    let mounted = locate::entries()?;
    if let Some(entry) = mounted
        .iter()
        .rfind(|e| e.point == point && e.kind == locate::MAIN)
    {
        let pid = super::unmount::daemon_of(&entry.source).map(|(pid, _)| format!(" by pid {pid}"));
        return Err(Failure::new(
            format!(
                "{} is mounted at {name} already{}",
                entry.source.display(),
                pid.unwrap_or_default()
            ),
            format!("Use it, or end it with panefs unmount {}", quote(point)),
        ));
    }
    let first = entries
        .into_iter()
        .next()
        .transpose()
        .map_err(|e: io::Error| Failure::io(name.to_string(), &e))?;
    if let Some(first) = first {
        let seen = String::from_utf8_lossy(first.file_name().as_bytes()).into_owned();
        return Err(Failure::new(
            format!("the mountpoint {name} is not empty (it holds {seen:?})"),
            "Choose an empty directory: what it holds would be hidden.",
        ));
    }
    if access(point, AccessFlags::W_OK).is_err() {
        return Err(Failure::new(
            format!("you may not mount on {name}: you cannot write there"),
            "Choose a directory of your own.",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_and_mount_lie_apart() {
        let check = |a: &str, b: &str| apart(Path::new(a), Path::new(b)).is_ok();
        assert!(check("/a/store", "/a/mnt"));
        assert!(check("/a/mnt-store", "/a/mnt"));
        assert!(!check("/a/mnt/store", "/a/mnt"));
        assert!(!check("/a", "/a/mnt"));
        assert!(!check("/a", "/a"));
    }

    #[test]
    fn a_missing_store_gets_its_real_path_too() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        std::os::unix::fs::symlink(&base, base.join("link")).unwrap();
        assert_eq!(real(&base.join("link/new/store")), base.join("new/store"));
        assert_eq!(real(&base.join("link")), base);
    }

    #[test]
    fn only_an_empty_directory_is_a_mountpoint() {
        let dir = tempfile::tempdir().unwrap();
        let store = Path::new("/nowhere");
        assert!(mountpoint(store, dir.path()).is_ok());
        let message = |path: &Path| mountpoint(store, path).unwrap_err().to_line();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(message(dir.path()).contains("not empty"));
        assert!(message(&file).contains("not a directory"));
        assert!(message(&dir.path().join("none")).contains("mkdir -p"));
    }
}
