//! `panefs ls`: who works where.

use std::collections::HashMap;
use std::fs;
use std::io::IsTerminal;

use clap::{ArgMatches, Args};
use serde_json::{Value, json};

use super::Global;
use super::failure::{Failure, Outcome};
use super::locate::{self, Mount};
use super::say::{cell, hint, used_bytes};
use super::text::{Table, age};

#[derive(Debug, Args)]
struct Arguments {
    /// Also windows that were handed off, and workspaces that were reclaimed
    #[arg(long, short)]
    all: bool,
}

pub fn command() -> clap::Command {
    super::command_of::<Arguments>("ls", "List windows and their workspaces as a table")
}

pub fn run(matches: &ArgMatches, global: &Global) -> Outcome {
    let args: Arguments = super::read(matches)?;
    let mount = global.mount()?;
    let windows = lines(&mount, "windows.jsonl")?;
    let workspaces = lines(&mount, "workspaces.jsonl")?;
    let (rows, hidden) = rows(windows, workspaces, args.all);
    if global.json {
        println!("{}", json!({ "ok": true, "items": rows }));
        return Ok(());
    }
    let mut table = Table::new([
        "window",
        "workspace",
        "state",
        "title",
        ">members",
        ">size",
        ">files",
        ">age",
    ]);
    for row in &rows {
        table.row(columns(row));
    }
    if table.is_empty() {
        println!("No window is open in {}.", mount.path.display());
        println!("Open one with: panefs allocate c1 --title 'my first task'");
    } else {
        print!("{table}");
    }
    if hidden > 0 && std::io::stdout().is_terminal() {
        hint(&format!("{hidden} more ended; panefs ls --all shows them."));
    }
    Ok(())
}

/// The objects of one of the mount's JSON line files.
pub fn lines(mount: &Mount, name: &str) -> Outcome<Vec<Value>> {
    let path = mount.control(name);
    let text = fs::read_to_string(&path).map_err(|e| match e.raw_os_error() {
        Some(libc::ENOTCONN) => locate::dead(mount),
        _ => Failure::io(path.display(), &e),
    })?;
    Ok(text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect())
}

/// Windows joined with their workspaces, then workspaces that no window stands for; and how many
/// windows were left out as ended.
fn rows(windows: Vec<Value>, workspaces: Vec<Value>, all: bool) -> (Vec<Value>, usize) {
    let name = |value: &Value, key| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let mut by_name: HashMap<String, (Value, bool)> = workspaces
        .iter()
        .filter_map(|w| Some((name(w, "workspace")?, (w.clone(), false))))
        .collect();
    let mut rows = Vec::new();
    let mut hidden = 0;
    for window in windows {
        let state = name(&window, "state");
        let workspace = name(&window, "workspace").and_then(|w| by_name.get_mut(&w));
        let gone = workspace
            .as_ref()
            .is_none_or(|(w, _)| name(w, "state").as_deref() == Some("reclaimed"));
        let shown = match state.as_deref() {
            Some("continued") => all,
            Some("released") => all || !gone,
            _ => true,
        };
        if !shown {
            hidden += 1;
            continue;
        }
        let workspace = workspace.map(|(w, seen)| {
            *seen = true;
            w.clone()
        });
        rows.push(json!({ "window": window, "workspace": workspace }));
    }
    for workspace in workspaces {
        let seen = name(&workspace, "workspace")
            .and_then(|w| by_name.get(&w))
            .is_some_and(|(_, seen)| *seen);
        let gone = name(&workspace, "state").as_deref() == Some("reclaimed");
        if !seen && (all || !gone) {
            rows.push(json!({ "window": null, "workspace": workspace }));
        }
    }
    (rows, hidden)
}

fn columns(row: &Value) -> [String; 8] {
    let (window, workspace) = (&row["window"], &row["workspace"]);
    let text = |value: &Value| cell(value);
    let members = match &window["members"] {
        Value::Array(members) => members.len().to_string(),
        other => text(other),
    };
    let reference = [
        &workspace["ref"],
        &workspace["workspace"],
        &window["workspace"],
    ];
    let reference = reference
        .into_iter()
        .map(cell)
        .find(|name| !name.is_empty());
    let state = if window.is_null() {
        &workspace["state"]
    } else {
        &window["state"]
    };
    let title = [&window["title"], &workspace["title"]]
        .into_iter()
        .map(cell)
        .find(|t| !t.is_empty());
    let since = [&window["opened_at"], &workspace["created_at"]]
        .into_iter()
        .find_map(age);
    [
        text(&window["window"]),
        reference.unwrap_or_default(),
        text(state),
        title.unwrap_or_default(),
        members,
        used_bytes(workspace),
        text(&workspace["files"]["used"]),
        since.unwrap_or_default(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(rows: &[Value]) -> Vec<String> {
        rows.iter().map(|row| columns(row)[..3].join(" ")).collect()
    }

    #[test]
    fn what_has_ended_is_left_out_unless_asked_for() {
        let windows = vec![
            json!({"window": "c1", "workspace": "ws1", "state": "continued"}),
            json!({"window": "c2", "workspace": "ws1", "state": "live", "members": [1, 2]}),
            json!({"window": "c3", "workspace": "ws3", "state": "released"}),
            json!({"window": "c4", "workspace": "ws4", "state": "released"}),
            json!({"window": "c5", "workspace": null, "state": "live"}),
        ];
        let workspaces = vec![
            json!({"workspace": "ws1", "ref": "ws1", "state": "occupied"}),
            json!({"workspace": "ws3", "ref": "ws3", "state": "released"}),
            json!({"workspace": "ws4", "ref": "ws4", "state": "reclaimed"}),
            json!({"workspace": "ws6", "ref": "ws6.2", "state": "available"}),
        ];
        let (some, hidden) = rows(windows.clone(), workspaces.clone(), false);
        assert_eq!(
            names(&some),
            [
                "c2 ws1 live",
                "c3 ws3 released",
                "c5  live",
                " ws6.2 available"
            ]
        );
        assert_eq!(hidden, 2);
        assert_eq!(columns(&some[0])[4], "2");
        assert_eq!(rows(windows, workspaces, true).0.len(), 6);
    }
}
