//! `panefs mount`, also as a mount helper: checks, then a daemon in the background.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::{ArgAction, ArgMatches, Args};

use super::failure::{Failure, Outcome};
use super::{log, preflight};

/// What to mount, and how.
#[derive(Debug, Clone, Args)]
pub struct MountArgs {
    /// The backing directory; made where it is missing
    pub store: PathBuf,
    /// An empty directory
    #[arg(value_name = "MNT")]
    pub mountpoint: PathBuf,
    /// Stay, and log on standard error
    #[arg(long, short = 'f')]
    pub foreground: bool,
    /// Let other users use the mount too (root only)
    #[arg(long)]
    pub allow_other: bool,
    /// Never let the kernel read and write the store's files by itself
    #[arg(long)]
    pub no_passthrough: bool,
    /// How many threads answer requests
    #[arg(long, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,
    /// How long the trash keeps what was reclaimed [default: the store's setting, or 24h]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub trash_keep: Option<Duration>,
    /// How long `expire` leaves released workspaces alone [default: the store's setting]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub retention: Option<Duration>,
    /// Mount options, as in fstab: allow_other, no_passthrough, threads=N, trash_keep=TIME,
    /// retention=TIME, and the kernel's such as nosuid
    #[arg(short = 'o', value_name = "OPTIONS", value_delimiter = ',', action = ArgAction::Append)]
    pub options: Vec<String>,
    /// The daemon's part: say on standard output when the mount is usable
    #[arg(long, hide = true)]
    ready: bool,
    /// Check the options, mount nothing
    #[arg(long, hide = true)]
    fake: bool,
}

/// Serves the mount until it ends, and calls `ready` as soon as it is usable, or with the reason
/// why it can't be.
fn serve(args: MountArgs, ready: impl FnOnce(Result<(), Failure>)) -> Outcome {
    let options = panefs::mount::MountOptions {
        store: args.store,
        mountpoint: args.mountpoint,
        allow_other: args.allow_other,
        passthrough: !args.no_passthrough,
        threads: args.threads,
        trash_keep: args.trash_keep,
        retention: args.retention,
        options: args.options,
    };
    panefs::mount::serve(&options, |started| ready(started.map_err(failure)))
        .map_err(|e| failure(&e))
}

fn failure(error: &panefs::mount::MountError) -> Failure {
    Failure::new(error.to_string(), error.next_action())
}

pub fn command() -> clap::Command {
    super::command_of::<MountArgs>("mount", "Mount a store; returns when the mount is usable")
}

pub fn run(matches: &ArgMatches) -> Outcome {
    let mut args: MountArgs = super::read(matches)?;
    args.take_options()?;
    if args.fake {
        return Ok(());
    }
    if args.ready {
        return background(args);
    }
    preflight::check(&mut args)?;
    if args.foreground {
        return foreground(args);
    }
    start(&args)
}

/// Serves until the end, logging on standard error.
fn foreground(args: MountArgs) -> Outcome {
    log::start(false);
    let point = args.mountpoint.clone();
    let mut failed = None;
    let served = serve(args, |ready| match ready {
        Ok(()) => eprintln!("panefs: mounted at {}; end it with Ctrl-C", point.display()),
        Err(failure) => failed = Some(failure),
    });
    failed.map_or(served, Err)
}

/// The daemon: a session of its own, nobody's directory, nobody's terminal.
fn background(args: MountArgs) -> Outcome {
    // It fails only for a process that leads a group already: then it is as detached.
    let _ = nix::unistd::setsid();
    std::env::set_current_dir("/").map_err(|e| Failure::io("/", &e))?;
    log::start(true);
    let file = args.store.join("panefs.log");
    // None until the caller was told something; then whether that the mount is usable.
    let mut told = None;
    let served = serve(args, |ready| {
        told = Some(ready.is_ok());
        if ready.is_ok()
            && let Err(error) = log::move_to(&file)
        {
            tracing::warn!("no log in {}: {error}", file.display());
        }
        match ready {
            Ok(()) => tell(READY),
            Err(failure) => tell(&failure.to_line()),
        }
    });
    if told == Some(true) {
        return served;
    }
    // The caller is still there, and reports why.
    log::give_up();
    match served {
        Err(failure) if told.is_none() => tell(&failure.to_line()),
        _ => {}
    }
    Ok(())
}

/// Tells the waiting caller, and lets go of it.
fn tell(line: &str) {
    let mut out = std::io::stdout();
    // A caller that no longer waits is no reason to end.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
    if let Ok(null) = std::fs::File::options().write(true).open("/dev/null") {
        let _ = nix::unistd::dup2_stdout(null);
    }
}

const READY: &str = "ok";

/// Starts the daemon and waits until the mount is usable.
fn start(args: &MountArgs) -> Outcome {
    // By its own path, so that `ps` shows its name; that of a binary that was replaced is gone.
    let own = std::env::current_exe().ok().filter(|path| path.exists());
    let own = own.unwrap_or_else(|| PathBuf::from("/proc/self/exe"));
    let mut child = Command::new(own)
        .arg0("panefs")
        .args(["mount", "--foreground", "--ready"])
        .args(args.flags())
        .arg("--")
        .args([&args.store, &args.mountpoint])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| Failure::io("cannot start the daemon", &e))?;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out)
            .read_line(&mut line)
            .map_err(|e| Failure::io("the daemon", &e))?;
    }
    match line.trim_end() {
        READY => Ok(()),
        "" => {
            let ended = child
                .wait()
                .map(|status| status.to_string())
                .unwrap_or_default();
            Err(Failure::new(
                format!("the daemon ended before the mount was usable ({ended})"),
                "See what it says with: panefs mount --foreground STORE MNT",
            ))
        }
        line => {
            let _ = child.wait();
            Err(Failure::from_line(line).unwrap_or_else(|| Failure::new(line, "")))
        }
    }
}

impl MountArgs {
    /// The options of the daemon's own command line.
    fn flags(&self) -> Vec<OsString> {
        let mut flags: Vec<OsString> = Vec::new();
        for (set, flag) in [
            (self.allow_other, "--allow-other"),
            (self.no_passthrough, "--no-passthrough"),
        ] {
            flags.extend(set.then(|| flag.into()));
        }
        let values = [
            ("--threads", self.threads.map(|n| n.to_string())),
            (
                "--trash-keep",
                self.trash_keep
                    .map(|t| humantime::format_duration(t).to_string()),
            ),
            (
                "--retention",
                self.retention
                    .map(|t| humantime::format_duration(t).to_string()),
            ),
            ("-o", Some(self.options.join(",")).filter(|o| !o.is_empty())),
        ];
        for (flag, value) in values {
            if let Some(value) = value {
                flags.extend([flag.into(), value.into()]);
            }
        }
        flags
    }

    /// Reads `-o` words that are panefs's own, drops those that concern only fstab's readers, and
    /// leaves the kernel's in `options`.
    fn take_options(&mut self) -> Outcome {
        for word in std::mem::take(&mut self.options) {
            let (name, value) = word.split_once('=').unwrap_or((&word, ""));
            let wrong = |_| {
                Failure::usage(
                    format!("-o {word}: the value is not understood"),
                    "threads=4, trash_keep=24h, retention=7d",
                )
            };
            match name {
                "allow_other" => self.allow_other = true,
                "no_passthrough" => self.no_passthrough = true,
                "threads" => self.threads = Some(threads(value).map_err(|_| ()).map_err(wrong)?),
                "trash_keep" => self.trash_keep = Some(time(value).map_err(wrong)?),
                "retention" => self.retention = Some(time(value).map_err(wrong)?),
                ""
                | "defaults"
                | "auto"
                | "noauto"
                | "nofail"
                | "_netdev"
                | "user"
                | "users"
                | "nouser"
                | "owner"
                | "group"
                | "rw"
                | "comment"
                | "fsname"
                | "subtype"
                | "default_permissions" => {}
                name if name.starts_with("x-") || name.starts_with("X-") => {}
                "nosuid" | "suid" | "nodev" | "dev" | "noexec" | "exec" | "noatime" | "atime"
                | "nodiratime" | "diratime" | "relatime" | "norelatime" | "strictatime"
                | "lazytime" | "sync" | "async" | "dirsync" => self.options.push(word),
                _ => {
                    return Err(Failure::usage(
                        format!("-o {word}: there is no such option"),
                        "panefs mount --help",
                    ));
                }
            }
        }
        Ok(())
    }
}

/// A number of threads; with none, nothing would be answered.
fn threads(text: &str) -> Result<usize, &'static str> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err("give a number from 1 on"),
    }
}

fn time(text: &str) -> Result<Duration, ()> {
    humantime::parse_duration(text).map_err(|_| ())
}

/// Reads the command lines of mount helpers as `panefs mount`.
///
/// mount(8) runs `mount.panefs STORE MNT [-sfnv] [-o OPTIONS]`, and mount.fuse3 runs
/// `panefs STORE MNT -o OPTIONS`.
pub fn as_helper(args: Vec<OsString>) -> Vec<OsString> {
    let program = args.first().map(Path::new).and_then(Path::file_name);
    let named = program.is_some_and(|name| name == "mount.panefs");
    // No command begins with a path; a helper's call does.
    let called = args.get(1).is_some_and(|first| {
        let first = first.to_string_lossy();
        first.contains('/') && !first.starts_with('-')
    });
    if !named && !called {
        return args;
    }
    let mut out: Vec<OsString> = vec!["panefs".into(), "mount".into()];
    let mut words: Vec<OsString> = Vec::new();
    let mut rest = args.into_iter().skip(1);
    while let Some(arg) = rest.next() {
        match arg.to_str() {
            Some("-o") => out.extend(std::iter::once(arg).chain(rest.next())),
            // The type, and the mount namespace that the caller has entered already.
            Some("-t" | "-N") => drop(rest.next()),
            Some(flags) if is_helper_flags(flags) => {
                if flags.contains('f') {
                    out.push("--fake".into());
                }
            }
            Some(option) if option.starts_with('-') => out.push(arg),
            _ => words.push(arg),
        }
    }
    out.push(OsStr::new("--").into());
    out.extend(words);
    out
}

/// `-s`, `-f`, `-n`, `-v`, alone or together.
fn is_helper_flags(text: &str) -> bool {
    text.strip_prefix('-')
        .is_some_and(|flags| !flags.is_empty() && flags.chars().all(|c| "sfnv".contains(c)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::FromArgMatches;

    fn parse(args: &[&str]) -> Outcome<MountArgs> {
        let args = as_helper(args.iter().map(OsString::from).collect());
        let matches = super::super::command()
            .try_get_matches_from(args)
            .map_err(|e| Failure::usage(e.to_string(), ""))?;
        let mut args = MountArgs::from_arg_matches(matches.subcommand().unwrap().1).unwrap();
        args.take_options()?;
        Ok(args)
    }

    #[test]
    fn a_mount_helpers_call_is_a_mount() {
        let options = "rw,nosuid,x-systemd.automount,threads=3,trash_keep=2h,allow_other";
        for call in [
            &["/sbin/mount.panefs", "store", "/m", "-sn", "-o", options][..],
            &["/usr/bin/panefs", "/store", "/m", "-o", options],
            &["panefs", "mount", "/store", "/m", "-o", options],
        ] {
            let args = parse(call).unwrap();
            assert!(args.store.ends_with("store") && args.mountpoint == Path::new("/m"));
            assert_eq!(
                (args.threads, args.allow_other, args.fake),
                (Some(3), true, false)
            );
            assert_eq!(args.trash_keep, Some(Duration::from_secs(7200)));
            assert_eq!(args.options, ["nosuid"]);
        }
        assert!(
            parse(&["mount.panefs", "/store", "/m", "-fv"])
                .unwrap()
                .fake
        );
        assert!(parse(&["panefs", "mount", "/store", "/m", "-o", "nonsense"]).is_err());
        assert!(parse(&["panefs", "mount", "/store", "/m", "-o", "threads=x"]).is_err());
        assert!(parse(&["panefs", "mount", "/store", "/m", "-o", "threads=0"]).is_err());
        assert!(parse(&["panefs", "mount", "/store", "/m", "--threads", "0"]).is_err());
    }

    #[test]
    fn the_daemon_gets_what_its_caller_got() {
        let first = parse(&[
            "panefs",
            "mount",
            "/s",
            "/m",
            "--no-passthrough",
            "--retention",
            "7d",
            "-o",
            "noexec",
        ])
        .unwrap();
        let mut line: Vec<OsString> = ["panefs", "mount"].map(OsString::from).to_vec();
        line.extend(first.flags());
        line.extend(["/s", "/m"].map(OsString::from));
        let text: Vec<&str> = line.iter().map(|a| a.to_str().unwrap()).collect();
        let second = parse(&text).unwrap();
        assert!(second.no_passthrough);
        assert_eq!(
            (second.retention, second.options),
            (first.retention, first.options)
        );
    }
}
