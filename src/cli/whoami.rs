//! `panefs whoami`: who the caller is, where it may write, and why its last write was refused.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::{ArgMatches, Args};
use serde_json::Value;

use super::Global;
use super::control::{Channel, Command};
use super::failure::{Failure, Outcome};
use super::locate::{self, Mount};
use super::say::cell;
use super::text::plain;

#[derive(Debug, Args)]
struct Arguments {
    /// Also say whose this path is, and whether you may write there
    path: Option<PathBuf>,
}

pub fn command() -> clap::Command {
    super::command_of::<Arguments>(
        "whoami",
        "Say who you are, where you may write, and why your last write was refused",
    )
}

pub fn run(matches: &ArgMatches, global: &Global) -> Outcome {
    let args: Arguments = super::read(matches)?;
    let around = match (&global.mnt, &args.path) {
        (None, Some(path)) => locate::around(&locate::absolute(path))?,
        _ => None,
    };
    let mount = around.map_or_else(|| global.mount(), Ok)?;
    let file = mount.control("whoami");
    let text = std::fs::read_to_string(&file).map_err(|e| match e.raw_os_error() {
        Some(libc::ENOTCONN) => locate::dead(&mount),
        _ => Failure::io(file.display(), &e),
    })?;
    if global.json {
        print!("{text}");
        return Ok(());
    }
    let who: Value = serde_json::from_str(&text)
        .map_err(|_| Failure::new(format!("{} is not understood: {text}", file.display()), ""))?;
    say(&introduce(&who, &mount));
    if let Some(path) = &args.path {
        about(&mount, &who, &locate::absolute(path));
    }
    if let Some(refusal) = who.get("last_refusal").filter(|r| r.is_object()) {
        say(&explain(refusal));
    }
    Ok(())
}

fn say(lines: &[String]) {
    for line in lines {
        println!("{}", plain(line));
    }
}

/// Role, window and place, in sentences.
fn introduce(who: &Value, mount: &Mount) -> Vec<String> {
    let field = |name| who.get(name).map(cell).unwrap_or_default();
    let window = field("window");
    let by = ["binding", "by", "bound_by"]
        .map(field)
        .into_iter()
        .find(|by| !by.is_empty());
    let by = by.map(|by| format!(" (by {by})")).unwrap_or_default();
    match field("role").as_str() {
        "guest" => vec![
            format!(
                "You are a guest of {}: you may read every workspace and change none.",
                mount.path.display()
            ),
            "To write, become a member of a window: panefs allocate opens a new one, and panefs \
             enter cN starts a shell in it."
                .to_owned(),
        ],
        "acting" => {
            // A view acts for its window below its own mountpoint alone.
            let path = match field("workspace") {
                workspace if workspace.is_empty() => field("path"),
                workspace => mount.path.join(workspace).display().to_string(),
            };
            vec![format!(
                "You act for {window} here{by}: you may write in {path}."
            )]
        }
        "operator" => vec![format!(
            "You are an operator{by}: you may change every occupied workspace."
        )],
        role => {
            let path = field("path");
            let place = if path.is_empty() {
                "it has no workspace now".to_owned()
            } else {
                format!("its workspace is {}", mount.path.join(path).display())
            };
            vec![format!(
                "You are a {} of {window}{by}; {place}.",
                if role.is_empty() { "member" } else { role }
            )]
        }
    }
}

/// Why the last change was refused, and what to do.
fn explain(refusal: &Value) -> Vec<String> {
    let field = |name| refusal.get(name).map(cell).unwrap_or_default();
    let since = refusal.get("at").and_then(super::text::age);
    let since = since.map(|age| format!(" {age} ago")).unwrap_or_default();
    let mut lines = vec![format!("Refused{since}: {}", field("path"))];
    for name in ["message", "next_action"] {
        let text = field(name);
        if !text.is_empty() {
            lines.push(format!("  {text}"));
        }
    }
    lines
}

/// Whose `path` is, as the mount says.
fn about(mount: &Mount, who: &Value, path: &Path) {
    let top = path
        .strip_prefix(&mount.path)
        .ok()
        .and_then(|rest| rest.components().next());
    let name = top
        .map(|top| top.as_os_str().to_owned())
        .unwrap_or_default();
    let Some(workspace) = name.to_str().filter(|n| n.starts_with("ws")) else {
        return say(&[format!("{} belongs to no workspace.", path.display())]);
    };
    let own = who
        .get("path")
        .and_then(Value::as_str)
        .and_then(|p| Path::new(p).file_name());
    if own == Some(OsStr::new(workspace)) {
        return say(&[format!(
            "{} is in your own workspace: you may write there.",
            path.display()
        )]);
    }
    let asked =
        Channel::open(mount).and_then(|mut c| c.ask(&Command::new("show", [workspace.to_owned()])));
    let holder = asked
        .ok()
        .and_then(|reply| reply.value.pointer("/item/holder").map(cell));
    let whose = match holder.as_deref() {
        Some("") => format!("{workspace}, which nobody holds"),
        Some(holder) => format!("{workspace}, {holder}'s workspace"),
        None => workspace.to_owned(),
    };
    let may = if who.get("role").is_some_and(|r| r == "operator") {
        "you may write there"
    } else {
        "you may only read there"
    };
    say(&[format!("{} is in {whose}: {may}.", path.display())]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn it_says_who_and_why_in_sentences() {
        let mount = Mount {
            path: "/mnt".into(),
            store: None,
        };
        let member =
            json!({"role": "member", "window": "c7", "path": "/mnt/ws7", "binding": "procs"});
        assert_eq!(
            introduce(&member, &mount),
            ["You are a member of c7 (by procs); its workspace is /mnt/ws7."]
        );
        assert!(
            introduce(&json!({"role": "guest", "window": null}), &mount)[1]
                .contains("panefs enter")
        );
        let through_a_view = json!({
            "role": "acting", "window": "c7", "workspace": "ws7", "path": "/other/ws7",
            "binding": "view",
        });
        assert_eq!(
            introduce(&through_a_view, &mount),
            ["You act for c7 here (by view): you may write in /mnt/ws7."]
        );
        let refusal = json!({"path": "ws1/a", "message": "no.", "next_action": "Do."});
        assert_eq!(explain(&refusal), ["Refused: ws1/a", "  no.", "  Do."]);
    }
}
