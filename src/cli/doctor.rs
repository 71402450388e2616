//! `panefs doctor`: what this machine offers, what that means, and what to do about it.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use nix::sys::resource::{Resource, getrlimit};
use nix::sys::utsname::uname;
use nix::unistd::{AccessFlags, access, geteuid};
use panefs::sys::landlock;
use serde_json::json;

use super::Global;
use super::failure::{Outcome, reason};
use super::locate;

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// It works.
    Good,
    /// Something else does its work, slower or weaker.
    Less,
    /// Mounting can't work.
    Bad,
}

impl Mark {
    fn as_str(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Less => "limited",
            Self::Bad => "missing",
        }
    }
}

/// One thing that panefs uses.
#[derive(Debug)]
struct Check {
    name: &'static str,
    mark: Mark,
    /// What was found, and what it means.
    found: String,
    /// What to do; empty where nothing is to be done.
    next: &'static str,
}

fn check(name: &'static str, mark: Mark, found: impl Into<String>, next: &'static str) -> Check {
    Check {
        name,
        mark,
        found: found.into(),
        next,
    }
}

pub fn command() -> clap::Command {
    clap::Command::new("doctor")
        .about("Check what this machine offers: what works, what doesn't, what to do")
}

pub fn run(global: &Global) -> Outcome<ExitCode> {
    let checks = all();
    let works = checks.iter().all(|check| check.mark != Mark::Bad);
    if global.json {
        let items: Vec<_> = checks
            .iter()
            .map(|c| json!({ "name": c.name, "state": c.mark.as_str(), "found": c.found, "next_action": c.next }))
            .collect();
        println!("{}", json!({ "ok": works, "items": items }));
    } else {
        for Check {
            name,
            mark,
            found,
            next,
        } in &checks
        {
            println!("{:<8} {name:<18} {found}", mark.as_str());
            if !next.is_empty() {
                println!("{:<27} try: {next}", "");
            }
        }
        println!();
        println!(
            "{}",
            if works {
                "Mounting works here."
            } else {
                "Mounting cannot work here yet: see what is missing."
            }
        );
    }
    Ok(if works {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn all() -> Vec<Check> {
    let release = uname()
        .map(|u| u.release().to_string_lossy().into_owned())
        .unwrap_or_default();
    vec![
        kernel(&release),
        device(),
        mounting(),
        passthrough(&release),
        control_groups(),
        hidepid(),
        user_namespaces(),
        confinement(),
        descriptors(),
    ]
}

/// The kernel's version, as far as it can be compared.
fn version(release: &str) -> (u32, u32) {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn kernel(release: &str) -> Check {
    if version(release) >= (5, 9) {
        check("kernel", Mark::Good, release, "")
    } else {
        check(
            "kernel",
            Mark::Bad,
            format!("{release}: 5.9 is needed (openat2, close_range, pidfds)"),
            "Use a newer kernel; from 6.9 on reads and writes pass through.",
        )
    }
}

fn device() -> Check {
    let name = "/dev/fuse";
    match fs::File::options().read(true).write(true).open(name) {
        Ok(_) => check(name, Mark::Good, "can be opened", ""),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => check(
            name,
            Mark::Bad,
            reason(&e),
            "chmod 666 /dev/fuse as root, as udev does; in a container add --device /dev/fuse.",
        ),
        Err(e) => check(
            name,
            Mark::Bad,
            reason(&e),
            "modprobe fuse as root; in a container add --device /dev/fuse.",
        ),
    }
}

fn mounting() -> Check {
    let name = "mount right";
    match (geteuid().is_root(), may_mount(), fusermount()) {
        (_, true, _) => check(name, Mark::Good, "CAP_SYS_ADMIN: mounts by itself", ""),
        (true, false, _) => check(
            name,
            Mark::Bad,
            "root without CAP_SYS_ADMIN",
            "In a container add --cap-add SYS_ADMIN --device /dev/fuse.",
        ),
        (false, _, Some(path)) => {
            check(name, Mark::Good, format!("through {}", path.display()), "")
        }
        (false, _, None) => check(
            name,
            Mark::Bad,
            "no fusermount3, which ordinary users mount through",
            "apt-get install fuse3 (or your system's package of that name).",
        ),
    }
}

fn passthrough(release: &str) -> Check {
    let name = "passthrough";
    if version(release) < (6, 9) {
        return check(
            name,
            Mark::Less,
            "the kernel has none (from 6.9 on): file contents go through the daemon",
            "",
        );
    }
    if !is_machine_root() {
        return check(
            name,
            Mark::Less,
            "needs CAP_SYS_ADMIN: file contents go through the daemon, right but slower",
            "Mount as root for native speed.",
        );
    }
    check(
        name,
        Mark::Good,
        "the kernel reads and writes the store's files by itself",
        "",
    )
}

fn control_groups() -> Check {
    let name = "control groups";
    let mounts = locate::entries().unwrap_or_default();
    let Some(root) = mounts.into_iter().find(|entry| entry.kind == "cgroup2") else {
        return check(
            name,
            Mark::Less,
            "no control groups v2: a window can't be bound to one",
            "Bind processes, or mount cgroup2 at /sys/fs/cgroup.",
        );
    };
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"));
    let own = root.point.join(own.unwrap_or_default());
    if access(&own, AccessFlags::W_OK).is_ok() {
        check(
            name,
            Mark::Good,
            format!("v2, and {} may be divided", own.display()),
            "",
        )
    } else {
        check(
            name,
            Mark::Less,
            "v2, but none that you may divide: windows can be bound to groups, not counted or \
             frozen by them",
            "systemd-run --user --scope -p Delegate=yes, or run as root.",
        )
    }
}

fn hidepid() -> Check {
    let name = "process table";
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let hides = mounts
        .lines()
        .rfind(|line| line.split(' ').nth(1) == Some("/proc"))
        .is_some_and(|line| {
            let options = line.split(' ').nth(3).unwrap_or_default();
            options
                .split(',')
                .any(|o| o.starts_with("hidepid=") && !matches!(o, "hidepid=0" | "hidepid=off"))
        });
    match (hides, geteuid().is_root()) {
        (false, _) => check(name, Mark::Good, "/proc shows every process", ""),
        (true, true) => check(
            name,
            Mark::Good,
            "/proc hides others' processes (hidepid), not from root",
            "",
        ),
        (true, false) => check(
            name,
            Mark::Less,
            "/proc hides others' processes (hidepid): they count as guests",
            "",
        ),
    }
}

fn user_namespaces() -> Check {
    let name = "user namespaces";
    let setting = |file: &str| {
        fs::read_to_string(file)
            .ok()
            .and_then(|text| text.trim().parse::<u64>().ok())
    };
    let off = setting("/proc/sys/user/max_user_namespaces").is_none_or(|n| n == 0)
        || setting("/proc/sys/kernel/unprivileged_userns_clone") == Some(0);
    if off && !is_machine_root() {
        return check(
            name,
            Mark::Less,
            "switched off: exec can't confine what it runs",
            "sysctl user.max_user_namespaces=10000 as root.",
        );
    }
    if setting("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == Some(1)
        && !is_machine_root()
    {
        return check(
            name,
            Mark::Less,
            "restricted by AppArmor: exec may not be able to confine what it runs",
            "Give panefs an AppArmor profile that allows userns.",
        );
    }
    check(name, Mark::Good, "may be made", "")
}

fn confinement() -> Check {
    let name = "Landlock";
    match landlock::abi_version() {
        Ok(version) => check(name, Mark::Good, format!("version {version}"), ""),
        Err(e) => check(
            name,
            Mark::Less,
            format!("not available ({})", reason(&e)),
            "Boot with landlock among lsm=… to let exec confine without namespaces.",
        ),
    }
}

fn descriptors() -> Check {
    let name = "descriptors";
    match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((soft, hard)) if hard >= 1024 => check(
            name,
            Mark::Good,
            format!("{soft} per process, up to {hard}"),
            "",
        ),
        Ok((soft, hard)) => check(
            name,
            Mark::Less,
            format!("{soft} per process, up to {hard}: few files can be open at once"),
            "ulimit -n 4096 before mounting.",
        ),
        Err(e) => check(name, Mark::Less, e.desc(), ""),
    }
}

/// Whether this process may mount by itself.
pub fn may_mount() -> bool {
    /// CAP_SYS_ADMIN's bit.
    const BIT: u64 = 1 << 21;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    effective.is_some_and(|set| set & BIT != 0)
}

/// Whether it may ask the kernel for what only the machine's own root may.
fn is_machine_root() -> bool {
    may_mount() && in_first_user_namespace()
}

fn in_first_user_namespace() -> bool {
    // The first one maps every id on itself.
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Where the helper is that mounts for ordinary users.
pub fn fusermount() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/bin", "/bin"].map(PathBuf::from));
    places
        .map(|dir| dir.join("fusermount3"))
        .find(|file| access(file, AccessFlags::X_OK).is_ok())
}

#[cfg(test)]
mod tests {
    #[test]
    fn kernel_versions_compare_by_number() {
        assert!(super::version("6.18.44-fc-v657") > super::version("6.9.1"));
        assert_eq!(super::version("5.15-generic"), (5, 15));
        assert_eq!(super::version("weird"), (0, 0));
    }
}
