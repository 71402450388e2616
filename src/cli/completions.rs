//! `panefs completions`: a script that completes the command line in a shell.

use clap::{ArgMatches, Args};
use clap_complete::Shell;

use super::failure::Outcome;

#[derive(Debug, Args)]
struct Arguments {
    /// The shell: bash, zsh, fish, elvish or powershell
    shell: Shell,
}

pub fn command() -> clap::Command {
    super::command_of::<Arguments>("completions", "Print a completion script for a shell")
        .after_help(
            "For bash: panefs completions bash > ~/.local/share/bash-completion/completions/panefs",
        )
}

pub fn run(matches: &ArgMatches) -> Outcome {
    let shell = super::read::<Arguments>(matches)?.shell;
    clap_complete::generate(
        shell,
        &mut super::command(),
        "panefs",
        &mut std::io::stdout(),
    );
    Ok(())
}
