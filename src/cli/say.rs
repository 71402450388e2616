//! Replies as people read them. Programs take `--json`.

use std::io::IsTerminal;
use std::path::Path;

use serde_json::{Map, Value};

use super::locate::{Mount, quote};
use super::text::{Table, age, bytes, plain};

/// Prints a successful reply to `verb`.
pub fn reply(verb: &str, reply: &Value, mount: &Mount) {
    let field = |name| reply.get(name).map(cell).unwrap_or_default();
    if verb != "show" && field("state") == "running" && !field("job").is_empty() {
        // Nobody waited for the end, so there is nothing else to say yet.
        let job = field("job");
        line(&job);
        return hint(&format!("See how it ends with: panefs wait {job}"));
    }
    match verb {
        "allocate" => allocated(reply, mount),
        "path" => {
            line(&place(reply, mount));
            if let Some(notice) = reply.get("notice").and_then(Value::as_str) {
                eprintln!("panefs: {}", plain(notice));
            }
        }
        "handoff" => handed_off(reply, mount),
        "release" => line(&sentence(&[
            &field("window"),
            " has ended",
            &optional("; ", &field("workspace"), " keeps its files"),
        ])),
        "reclaim" => {
            let workspace = field("workspace");
            line(&format!(
                "{workspace} is {}",
                or(field("state"), "reclaimed")
            ));
            details(reply, &["unsaved"]);
            hint(&format!("Undo it with: panefs restore {workspace}"));
        }
        "restore" => line(&format!(
            "{} is back, {}",
            field("workspace"),
            or(field("state"), "released")
        )),
        "purge" => line(&format!("{}'s files are gone", field("workspace"))),
        "expire" => expired(reply),
        "view" => line(&format!("the tree is at {} too", field("dir"))),
        "leave" => line(&format!("{} is unmounted", field("dir"))),
        "unbind" => line(&match field("window").as_str() {
            "" if field("unbound") == "0" => "nothing was bound".to_owned(),
            "" => "unbound".to_owned(),
            window => format!("unbound from {window}"),
        }),
        "bind" => line(&format!("bound to {}", field("window"))),
        "cd" | "ensure" => line(&field("cwd")),
        _ => any(reply),
    }
}

fn allocated(reply: &Value, mount: &Mount) {
    let path = place(reply, mount);
    line(&path);
    if !std::io::stderr().is_terminal() {
        return;
    }
    let window = reply.get("window").map(cell).unwrap_or_default();
    let procs = quote(&mount.control(format!("windows/{window}/procs")));
    let made = if reply.get("created") == Some(&Value::Bool(false)) {
        "has this workspace already"
    } else {
        "has a workspace"
    };
    eprintln!("{window} {made}. Only its members write there. To start one:");
    eprintln!("  panefs enter {window}              # a shell inside");
    eprintln!("  panefs exec {window} -- COMMAND    # one command inside");
    eprintln!("To make this shell one:");
    eprintln!("  echo 0 > {procs} && cd {}", quote(Path::new(&path)));
}

fn handed_off(reply: &Value, mount: &Mount) {
    let field = |name| reply.get(name).map(cell).unwrap_or_default();
    let to = field("to");
    line(&format!(
        "{} is now {to}'s, was {}'s: {}",
        field("workspace"),
        field("from"),
        place(reply, mount)
    ));
    details(reply, &["fenced", "moved", "ended", "operators_open"]);
    hint(&format!("Go on there with: panefs enter {to}"));
}

fn expired(reply: &Value) {
    let empty = ["workspaces", "windows", "kept"].map(|name| cell(&reply[name]).is_empty());
    if empty == [true; 3] {
        return line("nothing is old enough");
    }
    for (name, what) in [
        ("workspaces", "reclaimed"),
        ("windows", "released"),
        ("kept", "kept for its unsaved work"),
    ] {
        for item in reply[name].as_array().into_iter().flatten() {
            line(&format!("{}: {what}", cell(item)));
        }
    }
}

/// The workspace's absolute path.
pub fn place(reply: &Value, mount: &Mount) -> String {
    let path = reply
        .get("path")
        .and_then(Value::as_str)
        .unwrap_or_default();
    // Joining an absolute path gives that path.
    mount.path.join(path).to_string_lossy().into_owned()
}

/// Prints whatever a reply has.
fn any(reply: &Value) {
    if let Some(items) = reply.get("items").and_then(Value::as_array) {
        return list(items);
    }
    if let Some(text) = reply.get("text").and_then(Value::as_str) {
        return line(text.trim_end());
    }
    let shown = match reply.get("item") {
        Some(Value::Object(item)) => item,
        _ => match reply.as_object() {
            Some(all) => all,
            None => return,
        },
    };
    block(shown);
}

/// Every name once, in the order of the reply.
fn once<'a>(names: impl Iterator<Item = &'a String>) -> Vec<&'a str> {
    let mut all: Vec<&str> = Vec::new();
    for name in names {
        if !all.contains(&name.as_str()) {
            all.push(name);
        }
    }
    all
}

fn block(item: &Map<String, Value>) {
    let names = once(item.keys().filter(|name| *name != "ok"));
    let wide = names.iter().map(|name| name.len()).max().unwrap_or(0);
    for name in names {
        let value = &item[name];
        let old = age(value)
            .map(|age| format!(" ({age} ago)"))
            .unwrap_or_default();
        let text = or(named_cell(name, value), "-");
        line(&format!("{name:wide$}  {text}{old}"));
    }
}

fn list(items: &[Value]) {
    let objects: Vec<&Map<String, Value>> = items.iter().filter_map(Value::as_object).collect();
    if objects.is_empty() {
        if items.is_empty() {
            hint("There are none.");
        }
        items.iter().for_each(|item| line(&cell(item)));
        return;
    }
    let filled = |name: &&str| {
        objects
            .iter()
            .any(|o| !cell(o.get(*name).unwrap_or(&Value::Null)).is_empty())
    };
    let mut names = once(objects.iter().flat_map(|o| o.keys()));
    names.retain(filled);
    let mut table = Table::new(names.iter().copied());
    for object in objects {
        table.row(names.iter().map(|name| {
            let value = object.get(*name).unwrap_or(&Value::Null);
            age(value).map_or_else(|| named_cell(name, value), |age| format!("{age} ago"))
        }));
    }
    print!("{table}");
}

/// A value in a few words; what counts bytes in a unit that can be read.
fn named_cell(name: &str, value: &Value) -> String {
    if name != "bytes" {
        return cell(value);
    }
    match value {
        Value::Number(count) => count.as_u64().map(bytes).unwrap_or_default(),
        Value::Object(fields) => object(
            &fields
                .iter()
                .map(|(name, value)| (name.clone(), named_cell("bytes", value).into()))
                .collect(),
        ),
        other => cell(other),
    }
}

/// A value in a few words; nothing for null and for what is empty.
pub fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(cell).collect::<Vec<_>>().join(", "),
        Value::Object(fields) => object(fields),
        other => other.to_string(),
    }
}

fn object(fields: &Map<String, Value>) -> String {
    let number = |name| fields.get(name).and_then(Value::as_u64);
    if let (Some(uid), Some(gid)) = (number("uid"), number("gid")) {
        return format!("{uid}:{gid}");
    }
    if let (Some(used), Some(limit)) = (fields.get("used"), fields.get("limit")) {
        return match (cell(used), cell(limit)) {
            (used, limit) if limit.is_empty() => used,
            (used, limit) => format!("{} of {limit}", or(used, "?")),
        };
    }
    // A refusal, with whatever it is about.
    if let (Some(Value::String(message)), true) =
        (fields.get("message"), fields.contains_key("rule"))
    {
        return message.clone();
    }
    if let Some(pid) = number("pid") {
        let command = fields.get("command").map(cell).unwrap_or_default();
        return format!("{pid} {command}").trim_end().to_owned();
    }
    let pairs = fields.iter().filter(|(_, value)| !value.is_null());
    pairs
        .map(|(name, value)| format!("{name}={}", cell(value)))
        .collect::<Vec<_>>()
        .join(" ")
}

/// The used bytes of a workspace, `-` for unknown.
pub fn used_bytes(workspace: &Value) -> String {
    let used = workspace.pointer("/bytes/used").and_then(Value::as_u64);
    used.map(bytes).unwrap_or_default()
}

/// Prints those of the fields that say something.
fn details(reply: &Value, names: &[&str]) {
    for name in names {
        let text = reply.get(*name).map(cell).unwrap_or_default();
        if !matches!(text.as_str(), "" | "0" | "false") {
            line(&format!("  {}: {text}", name.replace('_', " ")));
        }
    }
}

/// Prints a line of the answer.
fn line(text: &str) {
    println!("{}", plain(text));
}

/// Says what to do next, to a person.
pub fn hint(text: &str) {
    if std::io::stderr().is_terminal() {
        eprintln!("{}", plain(text));
    }
}

fn sentence(parts: &[&str]) -> String {
    parts.concat()
}

fn optional(before: &str, text: &str, after: &str) -> String {
    if text.is_empty() {
        return String::new();
    }
    format!("{before}{text}{after}")
}

fn or(text: String, other: &str) -> String {
    if text.is_empty() {
        other.to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_read_at_a_glance() {
        for (value, text) in [
            (json!(null), ""),
            (json!(["c1", "c2"]), "c1, c2"),
            (json!({"uid": 1, "gid": 2}), "1:2"),
            (json!({"used": 5, "limit": null}), "5"),
            (json!({"used": null, "limit": 9}), "? of 9"),
            (
                json!([{"pid": 7, "command": "vim", "by": "procs"}]),
                "7 vim",
            ),
            (
                json!({"ok": false, "error": {"rule": "x", "message": "no.", "pid": 7}}),
                "ok=false error=no.",
            ),
            (json!({"b": 1, "a": null}), "b=1"),
        ] {
            assert_eq!(cell(&value), text);
        }
    }
}
