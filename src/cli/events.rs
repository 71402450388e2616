//! `panefs events`: what happened, and with --follow what happens.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::thread;
use std::time::Duration;

use clap::{ArgMatches, Args};
use serde_json::Value;

use super::failure::{Failure, Outcome};
use super::say::cell;
use super::text::plain;
use super::{Global, locate};

/// How often a file that can't be watched is read again; `tail -f` takes a second.
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Debug, Args)]
struct Arguments {
    /// Only what concerns this window
    window: Option<String>,
    /// Go on with what happens, until Ctrl-C
    #[arg(long, short)]
    follow: bool,
}

pub fn command() -> clap::Command {
    super::command_of::<Arguments>("events", "Print what happened; with --follow, what happens")
}

pub fn run(matches: &ArgMatches, global: &Global) -> Outcome {
    let args: Arguments = super::read(matches)?;
    let mount = global.mount()?;
    let path = match &args.window {
        None => mount.control("events.jsonl"),
        Some(window) if locate::is_window(window.as_ref()) => {
            mount.control(format!("windows/{window}/events.jsonl"))
        }
        Some(other) => {
            return Err(Failure::usage(
                format!("{other:?} is not a window"),
                "Name one as c1, c2, …",
            ));
        }
    };
    let failed = |e: io::Error| match e.raw_os_error() {
        Some(libc::ENOTCONN | libc::ECONNABORTED) => locate::dead(&mount),
        _ => Failure::io(path.display(), &e),
    };
    let mut file = BufReader::new(File::open(&path).map_err(failed)?);
    let mut line = Vec::new();
    loop {
        // A line that is not whole yet stays in `line` and is gone on with.
        file.read_until(b'\n', &mut line).map_err(failed)?;
        if line.ends_with(b"\n") {
            print(&line, global.json);
            line.clear();
        } else if args.follow {
            let _ = io::stdout().flush();
            thread::sleep(PAUSE);
        } else {
            return Ok(());
        }
    }
}

fn print(line: &[u8], raw: bool) {
    let text = String::from_utf8_lossy(line);
    match serde_json::from_str::<Value>(&text) {
        Ok(event) if !raw => println!("{}", plain(&sentence(&event))),
        _ => print!("{text}"),
    }
}

/// An event on one line: when, what, and its fields.
fn sentence(event: &Value) -> String {
    let field = |name| event.get(name).map(cell).unwrap_or_default();
    let mut text = format!("{}  {:<20}", field("at"), field("kind"));
    for (name, value) in event.as_object().into_iter().flatten() {
        let value = cell(value).replace('\n', " ");
        if !matches!(name.as_str(), "seq" | "at" | "kind") && !value.is_empty() {
            let value = if value.contains(' ') {
                format!("{value:?}")
            } else {
                value
            };
            text.push_str(&format!(" {name}={value}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_event_is_one_line() {
        let event = serde_json::json!({
            "seq": 3, "at": "2030-01-02T03:04:05.678Z", "kind": "window.opened",
            "window": "c1", "title": "fix login", "owner": null,
        });
        assert_eq!(
            super::sentence(&event),
            "2030-01-02T03:04:05.678Z  window.opened        window=c1 title=\"fix login\""
        );
    }
}
