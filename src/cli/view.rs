//! `panefs view` and `panefs leave`: the tree once more, for callers that can't be told apart by
//! their process.

use std::path::PathBuf;

use clap::{ArgMatches, Args};

use super::control::{Channel, Command};
use super::failure::{Failure, Outcome};
use super::locate::{absolute, is_window, of_view};
use super::{Global, verbs};

#[derive(Debug, Args)]
struct ViewArguments {
    /// The window to act for, whoever asks
    #[arg(required_unless_present = "read_only", value_name = "WINDOW")]
    window: Option<String>,
    /// An empty directory to mount at
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Act for a guest: nothing can be changed there
    #[arg(long)]
    read_only: bool,
}

#[derive(Debug, Args)]
struct LeaveArguments {
    /// Where the view is mounted
    dir: PathBuf,
}

pub fn view_command() -> clap::Command {
    super::command_of::<ViewArguments>(
        "view",
        "Mount the tree once more, acting for one window whoever asks",
    )
    .override_usage("panefs view WINDOW DIR\n       panefs view --read-only DIR")
}

pub fn leave_command() -> clap::Command {
    super::command_of::<LeaveArguments>("leave", "Unmount a view")
}

pub fn view(matches: &ArgMatches, global: &Global) -> Outcome {
    let args: ViewArguments = super::read(matches)?;
    // With --read-only the one argument is the directory.
    let (window, dir) = match (args.window, args.dir) {
        (window, Some(dir)) => (window, dir),
        (Some(dir), None) if args.read_only && !is_window(dir.as_ref()) => (None, dir.into()),
        _ => {
            return Err(Failure::usage(
                "the directory is missing",
                "panefs view WINDOW DIR",
            ));
        }
    };
    let mut command = Command::new("view", window);
    command.set("dir", &absolute(&dir).to_string_lossy());
    if args.read_only {
        command.set("read-only", "true");
    }
    let mount = global.mount()?;
    let reply = Channel::open(&mount)?.ask(&command)?;
    verbs::finish("view", &reply, global, &mount)
}

pub fn leave(matches: &ArgMatches, global: &Global) -> Outcome {
    let dir = absolute(&super::read::<LeaveArguments>(matches)?.dir);
    // The view itself tells which mount it shows.
    let mount = match (&global.mnt, of_view(&dir)?) {
        (None, Some(mount)) => mount,
        _ => global.mount()?,
    };
    let mut command = Command::new("leave", []);
    command.set("dir", &dir.to_string_lossy());
    let reply = Channel::open(&mount)?.ask(&command)?;
    verbs::finish("leave", &reply, global, &mount)
}
