//! The command line: a file per command. It talks to a mount through its control files only, so
//! whatever it does a shell can do.

mod completions;
mod control;
mod detach;
mod doctor;
mod events;
mod exec;
mod failure;
mod jobs;
mod locate;
mod log;
mod ls;
mod mount;
mod preflight;
mod say;
mod text;
mod unmount;
mod verbs;
mod view;
mod whoami;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{ArgMatches, Args, FromArgMatches};
use nix::sys::signal::Signal;
use panefs::sys::signals;

use failure::Outcome;
use locate::Mount;
use verbs::{VERBS, Verb};

/// Options of every command.
#[derive(Debug, Args)]
pub struct Global {
    /// The mount; without it $PANEFS_MNT, else the one around the current directory, else the
    /// only one
    // Read here and not by clap, whose usage lines would show it as an option that was given.
    #[arg(long, global = true, value_name = "PATH", display_order = 900)]
    mnt: Option<PathBuf>,
    /// Print the mount's reply as it came, one JSON line
    #[arg(long, global = true, display_order = 901)]
    json: bool,
}

impl Global {
    fn mount(&self) -> Outcome<Mount> {
        let variable = || std::env::var_os(locate::VARIABLE).map(PathBuf::from);
        let named = self.mnt.clone().or_else(variable);
        locate::mount(named.as_deref().filter(|path| *path != Path::new("")))
    }
}

const ABOUT: &str = "Give every context window of an agent its own writable workspace in one \
shared tree";

const LONG_ABOUT: &str = "panefs gives every context window of an agent (or any other worker) its \
own workspace in one shared tree. Everybody sees every workspace under the same path; a window's \
members alone write to its own.";

const EXAMPLES: &str = "\
Examples:
  panefs mount ~/store ~/mnt              mount the tree
  panefs allocate c1 --title 'fix login'  open window c1; prints its workspace
  panefs enter c1                         a shell that is a member of c1
  panefs exec c1 -- cargo test            one command as a member of c1
  panefs ls                               who works where
  panefs whoami                           who am I, and why was my write refused
  panefs handoff c1 c2                    c2 goes on in c1's workspace, in place
  panefs unmount ~/mnt                    end it; the files stay in ~/store

Whatever these commands do, a shell can do through the files in MNT/.panefs; see its `help`.
Exit status: 0 done, 1 refused or failed, 2 wrong usage.";

/// The whole command line.
fn command() -> clap::Command {
    // The type's own description would stand for the command's, so that comes after.
    let command = Global::augment_args(clap::Command::new("panefs"))
        .version(env!("CARGO_PKG_VERSION"))
        .about(ABOUT)
        .long_about(LONG_ABOUT)
        .after_help(EXAMPLES)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .infer_long_args(false)
        .max_term_width(100);
    let first: Vec<clap::Command> = vec![
        mount::command(),
        unmount::command(),
        exec::enter_command(),
        exec::exec_command(),
        ls::command(),
        whoami::command(),
        events::command(),
        view::view_command(),
        view::leave_command(),
        doctor::command(),
        completions::command(),
    ];
    let (daily, rare) = VERBS.split_at(2);
    let order = [
        &first[..2],
        &daily.iter().map(Verb::command).collect::<Vec<_>>(),
        &first[2..],
    ]
    .concat();
    command
        .subcommands(order)
        .subcommands(rare.iter().map(Verb::command))
}

/// Runs one command.
pub fn main(args: Vec<OsString>) -> ExitCode {
    let args = verbs::spell_params(mount::as_helper(args));
    let matches = match command().try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(e) => {
            let _ = e.print();
            // 2 for wrong usage, 0 for --help and --version.
            return ExitCode::from(u8::try_from(e.exit_code()).unwrap_or(2));
        }
    };
    match run(&matches) {
        Ok(code) => code,
        Err(failure) => ExitCode::from(failure.report()),
    }
}

fn run(matches: &ArgMatches) -> Outcome<ExitCode> {
    let global = Global::from_arg_matches(matches).map_err(usage)?;
    let Some((name, sub)) = matches.subcommand() else {
        return Ok(ExitCode::from(2));
    };
    if name == "mount" {
        mount::run(sub)?;
        return Ok(ExitCode::SUCCESS);
    }
    // A reader that has enough ends us quietly, as it ends other commands. (The daemon must not
    // end so: it keeps Rust's setting.)
    signals::set_default(Signal::SIGPIPE);
    match name {
        "exec" => return exec::exec(sub, &global),
        "enter" => return exec::enter(sub, &global),
        "doctor" => return doctor::run(&global),
        "unmount" => unmount::run(sub)?,
        "ls" => ls::run(sub, &global)?,
        "whoami" => whoami::run(sub, &global)?,
        "events" => events::run(sub, &global)?,
        "view" => view::view(sub, &global)?,
        "leave" => view::leave(sub, &global)?,
        "completions" => completions::run(sub)?,
        verb => {
            if let Some(verb) = Verb::named(verb) {
                verb.run(sub, &global)?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A command line that clap let pass and its types don't take.
fn usage(error: clap::Error) -> failure::Failure {
    failure::Failure::usage(error.to_string(), "panefs --help")
}

/// A command whose arguments are the fields of `T`.
fn command_of<T: Args>(name: &'static str, about: &'static str) -> clap::Command {
    T::augment_args(clap::Command::new(name)).about(about)
}

/// Reads the fields of `T`.
fn read<T: FromArgMatches>(matches: &ArgMatches) -> Outcome<T> {
    T::from_arg_matches(matches).map_err(usage)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_well_formed() {
        super::command().debug_assert();
    }
}
