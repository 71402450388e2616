//! The `panefs` command.

mod cli;
mod exec;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main(std::env::args_os().collect())
}
