//! Cases from bug reports: scripts, each run as a member of c1 in ws1.
//!
//! They are looked for in $PANEFS_CASES, else in `shared/cases` beside this project. A script
//! ends with 0 where all is right, with 77 where it can't run here, with 1 and one line otherwise.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::{Flavor, Mount, flavors, run};

flavors! {
    the_scripts_find_nothing_wrong: passthrough, cached, ordinary;
    nor_beside_a_read_only_view: passthrough, cached, ordinary;
}

/// The scripts, by name; none where there is no such directory.
fn scripts() -> Vec<PathBuf> {
    let dir = match std::env::var_os("PANEFS_CASES") {
        Some(dir) => PathBuf::from(dir),
        None => PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/cases"),
    };
    let Ok(entries) = std::fs::read_dir(&dir) else {
        println!("there are no cases in {}", dir.display());
        return Vec::new();
    };
    let mut scripts: Vec<_> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "sh"))
        .collect();
    scripts.sort();
    scripts
}

/// Runs one script, and says what is wrong.
fn outcome(m: &Mount, script: &Path, view: Option<&PathBuf>) -> Result<(), String> {
    let name = script.file_name().unwrap().to_string_lossy().into_owned();
    let mut command = m.command("bash");
    // The script's text, not its path: the mount's user may not reach that.
    let text = crate::common::text(script);
    command
        .env("W", m.ws("ws1"))
        .env("DAEMON_PID", m.daemon().expect("a daemon").to_string());
    if let Some(view) = view {
        command.env("R", view.join("ws1")).env("READONLY_VIEW", "1");
    }
    // Who allocates is a guest of the mount's owner.
    let guest = name.starts_with("B65");
    if guest {
        // Whoever gets a workspace there writes in it as a member of its window: the agent is the
        // parent of the shell that the command's output is read from.
        command.env(
            "ALLOC_CMD",
            "w=$(\"$PANEFS\" allocate) && echo $(cut -d' ' -f4 /proc/$PPID/stat) > $MNT/.panefs/windows/c${w##*/ws}/procs && echo $w",
        );
        command.env("W", m.home());
    }
    let join = if guest {
        ""
    } else {
        "echo 0 > \"$MNT/.panefs/windows/c1/procs\" || exit 99\n"
    };
    command.args(["-c", &format!("{join}{text}"), &name]);
    let ended = run(command, Duration::from_secs(120));
    match ended.status.code() {
        Some(0) => Ok(()),
        Some(77) => {
            println!("{name} skipped: {}", ended.stdout.trim());
            Ok(())
        }
        _ => Err(format!("{name}: {ended}")),
    }
}

/// What is wrong by a script's last run.
fn wrong_with(m: &Mount, script: &Path, view: Option<&PathBuf>) -> Option<String> {
    // B13's `cd` in the background races its own `mv`, on any filesystem: once is enough there.
    let racy = script.to_string_lossy().contains("/B13-");
    let mut wrong = None;
    for _ in 0..if racy { 8 } else { 1 } {
        wrong = outcome(m, script, view).err();
        if wrong.is_none() {
            break;
        }
    }
    wrong
}

fn all(flavor: Flavor, with_view: bool) {
    let scripts = scripts();
    if scripts.is_empty() {
        return;
    }
    let m = Mount::new(flavor);
    m.allocate(&["c1"]);
    let view = with_view.then(|| m.view(None));
    let wrong: Vec<_> = scripts
        .iter()
        .filter_map(|script| wrong_with(&m, script, view.as_ref()))
        .collect();
    assert!(
        wrong.is_empty(),
        "{} of {} went wrong:\n{}",
        wrong.len(),
        scripts.len(),
        wrong.join("\n")
    );
}

fn the_scripts_find_nothing_wrong(flavor: Flavor) {
    all(flavor, false);
}

fn nor_beside_a_read_only_view(flavor: Flavor) {
    all(flavor, true);
}
