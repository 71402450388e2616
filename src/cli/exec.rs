//! `panefs exec` and `panefs enter`: a command, or a shell, inside a window.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::fs;
use std::io::{self, IsTerminal};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{ArgMatches, Args};
use serde_json::Value;

use super::control::{Channel, Command};
use super::failure::{Failure, Outcome, reason};
use super::locate::{self, Mount, is_window, quote};
use super::{Global, jobs};
use crate::exec::{End, Session, SessionError, run};

#[derive(Debug, Args)]
struct Place {
    /// The window: c1, c2, …
    window: String,
    /// Where to start; a relative path is meant from the workspace's top [default: the window's
    /// recorded working directory]
    #[arg(long, value_name = "PATH")]
    cwd: Option<PathBuf>,
    /// Open the window first where it doesn't exist yet
    #[arg(long)]
    allocate: bool,
}

#[derive(Debug, Args)]
struct ExecArguments {
    #[command(flatten)]
    place: Place,
    /// The command and its arguments
    #[arg(last = true, required = true, num_args = 1.., value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Debug, Args)]
struct EnterArguments {
    #[command(flatten)]
    place: Place,
}

pub fn exec_command() -> clap::Command {
    super::command_of::<ExecArguments>("exec", "Run a command as a member of a window").after_help(
        "The command sees PANEFS_WINDOW, PANEFS_WORKSPACE and PANEFS_MNT. All that it starts stays in \
         the window.\nExit status: the command's own; 1 where it could not be run in the window, 126 \
         where it is not executable, 127 where it is not found.",
    )
}

pub fn enter_command() -> clap::Command {
    super::command_of::<EnterArguments>("enter", "Start your shell as a member of a window")
}

pub fn exec(matches: &ArgMatches, global: &Global) -> Outcome<ExitCode> {
    let args: ExecArguments = super::read(matches)?;
    inside(&args.place, args.command, global, false)
}

pub fn enter(matches: &ArgMatches, global: &Global) -> Outcome<ExitCode> {
    let args: EnterArguments = super::read(matches)?;
    let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
    let shell = shell.unwrap_or_else(|| "/bin/sh".into());
    inside(&args.place, vec![shell], global, true)
}

fn inside(
    place: &Place,
    command: Vec<OsString>,
    global: &Global,
    greet: bool,
) -> Outcome<ExitCode> {
    let window = place.window.as_str();
    if !is_window(window.as_ref()) {
        return Err(Failure::new(
            format!("{window:?} is not a window"),
            "Name a window as c1, c2, … (no leading zero, at most nine digits).",
        ));
    }
    let mount = global.mount()?;
    let info = open_window(&mount, window, place.allocate)?;
    let workspace = workspace(&mount, &info);
    let directory = directory(&mount, workspace.as_deref(), &info, place.cwd.as_deref());
    let greeting = (greet && io::stderr().is_terminal()).then(|| {
        format!(
            "You are in {window} now, in {}. Leave it with exit or Ctrl-D.",
            directory.display()
        )
    });
    let session = Session {
        sessions: mount.control(format!("windows/{window}/sessions")),
        environment: environment(window, &mount, workspace.as_deref(), &directory)?,
        command: command.into_iter().map(c_string).collect::<Outcome<_>>()?,
        directory,
        greeting,
    };
    match run(&session) {
        Ok(End::Exited(status)) => Ok(ExitCode::from(u8::try_from(status).unwrap_or(1))),
        Ok(End::Signaled(number)) => {
            panefs::sys::signals::die_of(number);
            Ok(ExitCode::from(u8::try_from(128 + number).unwrap_or(1)))
        }
        Err(error) => {
            let next = text(&info, "continued_by");
            Err(refused(&error, window, next, &mount, &session.directory))
        }
    }
}

/// What the mount says about the window; opens it where that is wanted.
fn open_window(mount: &Mount, window: &str, allocate: bool) -> Outcome<Value> {
    let file = mount.control(format!("windows/{window}/window.json"));
    let text = match fs::read_to_string(&file) {
        Err(e) if e.kind() == io::ErrorKind::NotFound && allocate => {
            let mut channel = Channel::open(mount)?;
            let reply = channel.ask(&Command::new("allocate", [window.to_owned()]))?;
            // No thread may watch for Ctrl-C here: this process is about to fork.
            let reply = jobs::wait_silently(&mut channel, reply)?;
            if let Some(refused) = Failure::of_reply(&reply.value) {
                return Err(refused);
            }
            fs::read_to_string(&file)
        }
        other => other,
    };
    match text {
        Ok(text) => serde_json::from_str(&text)
            .map_err(|_| Failure::new(format!("{} is not understood", file.display()), "")),
        Err(e) => Err(match e.raw_os_error() {
            Some(libc::ENOENT) => Failure::new(
                format!("there is no window {window}"),
                format!("Open it with panefs allocate {window}, or add --allocate."),
            ),
            Some(libc::ENOTCONN) => locate::dead(mount),
            Some(libc::EACCES) => Failure::new(
                format!("{window} is another user's window"),
                "Allocate one of your own, or ask its owner.",
            ),
            _ => Failure::io(file.display(), &e),
        }),
    }
}

fn text<'a>(info: &'a Value, name: &str) -> Option<&'a str> {
    info.get(name)
        .and_then(Value::as_str)
        .filter(|text| !text.is_empty())
}

fn workspace(mount: &Mount, info: &Value) -> Option<PathBuf> {
    // `ws7.2` is an occupation of the directory `ws7`.
    let name = text(info, "workspace")?.split('.').next()?;
    Some(mount.path.join(name))
}

fn directory(
    mount: &Mount,
    workspace: Option<&Path>,
    info: &Value,
    wanted: Option<&Path>,
) -> PathBuf {
    let top = workspace.unwrap_or(&mount.path);
    match (wanted, text(info, "cwd")) {
        (Some(wanted), _) => locate::absolute(&top.join(wanted)),
        (None, Some(recorded)) => mount.path.join(recorded),
        (None, None) => top.to_owned(),
    }
}

/// This process's environment, with the window's variables.
fn environment(
    window: &str,
    mount: &Mount,
    workspace: Option<&Path>,
    directory: &Path,
) -> Outcome<Vec<CString>> {
    let mut all: BTreeMap<OsString, OsString> = std::env::vars_os().collect();
    all.insert("PANEFS_WINDOW".into(), window.into());
    all.insert(locate::VARIABLE.into(), mount.path.clone().into());
    all.insert("PWD".into(), directory.into());
    match workspace {
        Some(path) => all.insert("PANEFS_WORKSPACE".into(), path.into()),
        None => all.remove(OsStr::new("PANEFS_WORKSPACE")),
    };
    let pair = |(mut name, value): (OsString, OsString)| {
        name.push("=");
        name.push(value);
        c_string(name)
    };
    all.into_iter().map(pair).collect()
}

fn c_string(text: OsString) -> Outcome<CString> {
    CString::new(text.into_vec())
        .map_err(|e| Failure::usage(format!("an argument holds a zero byte: {e}"), ""))
}

/// Why the session was not started; `next` is the window that continues this one.
fn refused(
    error: &SessionError,
    window: &str,
    next: Option<&str>,
    mount: &Mount,
    directory: &Path,
) -> Failure {
    match error {
        SessionError::NotBound(source) => match source.raw_os_error() {
            Some(libc::EPERM) => Failure::new(
                format!("this process belongs to another window than {window}"),
                format!(
                    "See panefs whoami, and run panefs enter {window} from outside of every window."
                ),
            ),
            Some(libc::ESTALE) => match next {
                Some(next) => Failure::new(
                    format!("{window} was continued by {next}"),
                    format!("panefs exec {next} -- COMMAND, or panefs enter {next}"),
                ),
                None => Failure::new(
                    format!("{window} has ended"),
                    format!("Continue it in a new window: panefs handoff {window}"),
                ),
            },
            Some(libc::ENOENT) => Failure::new(
                format!("there is no window {window}"),
                format!("Open it with panefs allocate {window}."),
            ),
            Some(libc::EACCES) => Failure::new(
                format!("{window} is another user's window"),
                "Allocate one of your own, or ask its owner.",
            ),
            Some(libc::ENOTCONN | libc::ECONNABORTED) => locate::dead(mount),
            _ => Failure::new(
                format!("cannot join {window}: {}", reason(source)),
                "See panefs doctor, and the daemon's log.",
            ),
        },
        SessionError::Directory(source) => Failure::new(
            format!("cannot enter {}: {}", directory.display(), reason(source)),
            format!(
                "Give another directory with --cwd, or make it: mkdir -p {}",
                quote(directory)
            ),
        ),
        SessionError::System(source) => Failure::io("cannot start a session", source),
        SessionError::Lost => Failure::new(
            error.to_string(),
            format!("See panefs list members --mnt {}", quote(&mount.path)),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn it_starts_where_the_window_was_or_where_it_is_told() {
        let mount = Mount {
            path: "/mnt".into(),
            store: None,
        };
        let info = json!({"workspace": "ws7.2", "cwd": "ws7/src"});
        let top = workspace(&mount, &info);
        assert_eq!(top.as_deref(), Some(Path::new("/mnt/ws7")));
        let start = |info: &Value, wanted: Option<&str>| {
            directory(&mount, top.as_deref(), info, wanted.map(Path::new))
        };
        assert_eq!(start(&info, None), Path::new("/mnt/ws7/src"));
        assert_eq!(
            start(&json!({"cwd": "/mnt/ws7/a"}), None),
            Path::new("/mnt/ws7/a")
        );
        assert_eq!(start(&json!({"cwd": null}), None), Path::new("/mnt/ws7"));
        assert_eq!(start(&info, Some("sub")), Path::new("/mnt/ws7/sub"));
        assert_eq!(start(&info, Some("/tmp")), Path::new("/tmp"));
    }
}
