//! A harness in one Node process, whose worker threads act for many windows.

use std::time::Duration;

use serde_json::Value;

use crate::common::{Flavor, Mount, flavors, need, run};

flavors! {
    workers_act_for_windows_in_turn: passthrough, cached, ordinary;
}

const WINDOWS: u32 = 50;
const EDITS: u32 = 10_000;
const WORKERS: u32 = 8;

fn workers_act_for_windows_in_turn(flavor: Flavor) {
    need(&["node"]);
    let m = Mount::new(flavor);
    for n in 1..=WINDOWS {
        m.ctl(&format!("allocate c{n}"));
        m.as_member(&format!("c{n}"), &format!("echo {n} > $MNT/ws{n}/ground"))
            .ok("lay the ground");
    }
    let program = m.home().join("harness.mjs");
    std::fs::write(&program, include_str!("harness.mjs")).unwrap();
    let mut command = m.command("node");
    command
        .arg(&program)
        .args([WINDOWS, EDITS, WORKERS].map(|n| n.to_string()));
    let ended = run(command, Duration::from_secs(600));
    let result: Value = serde_json::from_str(ended.ok("the harness")).expect("one JSON line");
    assert_eq!(result["wrong"], Value::Array(Vec::new()), "{result}");
    assert_eq!(result["edits"], EDITS, "{result}");
    assert_eq!(result["refused"], EDITS, "{result}");

    // None landed in another's workspace: every line in wsN says cN.
    let strays = m.as_guest("cd $MNT && ls ws*/ | grep -c stray; for n in $(seq 50); do cat ws$n/by[0-9]* | grep -vx c$n; cat ws$n/ground; done");
    let expected: Vec<_> = std::iter::once("0".to_owned())
        .chain((1..=WINDOWS).map(|n| n.to_string()))
        .collect();
    assert_eq!(strays.ok("look"), expected.join("\n"));
    let lines = m.as_guest("cat $MNT/ws*/by[0-7] | wc -l");
    assert_eq!(
        lines.ok("count"),
        (EDITS / 2).to_string(),
        "no edit was lost"
    );
}
