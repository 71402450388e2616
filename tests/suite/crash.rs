//! The daemon is killed with -9 after every command of a life: what was acknowledged is there.

use std::time::Duration;

use serde_json::Value;

use crate::common::errno::EROFS;
use crate::common::{Agent, Flavor, Mount, flavors, run};

flavors! {
    whatever_was_acknowledged_is_there: passthrough, cached, ordinary;
    killed_amid_commands: passthrough;
    half_done_work_is_put_right: passthrough;
    jobs_of_a_killed_daemon_have_ended: passthrough;
}

/// A window's or workspace's rows by their id, and the events, without what time alone changes.
fn registry(m: &Mount) -> (Vec<Value>, Vec<Value>, Vec<Value>) {
    let mut windows = m.jsonl("windows.jsonl");
    // Members are asked for apart: they come and go without a command.
    for window in &mut windows {
        window.as_object_mut().unwrap().remove("members");
    }
    // What a workspace uses is measured now and then, not kept.
    let mut workspaces = m.jsonl("workspaces.jsonl");
    for workspace in &mut workspaces {
        let workspace = workspace.as_object_mut().unwrap();
        workspace.remove("bytes");
        workspace.remove("files");
    }
    let events = m.jsonl("events.jsonl");
    for (event, seq) in events.iter().zip(1_u64..) {
        assert_eq!(event["seq"], seq, "seq has a gap");
    }
    (windows, workspaces, events)
}

/// What is in every workspace of the tree.
fn files(m: &Mount) -> Value {
    m.hand_ok(
        "
tops = sorted(n for n in os.listdir(MNT) if n.startswith('ws'))
_ = [[p, read(p).decode()] for w in tops for d, ds, fs in sorted(os.walk(f'{MNT}/{w}'))
     for p in sorted(f'{d}/{f}' for f in fs)] + tops",
    )
}

fn members(m: &Mount) -> Vec<String> {
    let items = m.ctl("list members");
    let items = items["items"].as_array().unwrap();
    let mut all: Vec<_> = items
        .iter()
        .map(|item| format!("{} {}", item["window"], item["pid"]))
        .collect();
    all.sort();
    all
}

fn whatever_was_acknowledged_is_there(flavor: Flavor) {
    let m = Mount::new(flavor);
    let mut one = Agent::guest(&m);
    let mut two = Agent::guest(&m);
    let (p1, p2) = (one.pid(), two.pid());
    // Each step: a command, and what c1's and c2's process then write (a file and its errno).
    let life: Vec<String> = vec![
        "allocate c1 title=first".into(),
        "allocate c7 keep=true".into(),
        "allocate".into(),
        format!("bind c1 pid={p1}"),
        format!("bind c7 pid={p2}"),
        "handoff c1 c2 title=second".into(),
        format!("unbind pid={p1}"),
        format!("bind c2 pid={p1}"),
        "release c8".into(),
        "release c8".into(),
        "handoff c8 c20".into(),
        "handoff c2 members=move".into(),
        "reclaim ws8 force=true".into(),
        "reclaim ws8".into(),
        "restore ws8".into(),
        "reclaim ws8".into(),
        "purge ws8".into(),
        "allocate c30 title='the last'".into(),
        "release c21".into(),
        "expire older_than=0s unsaved=true".into(),
    ];
    for (n, command) in life.iter().enumerate() {
        let reply = m.finish(m.send(command));
        assert_eq!(reply.errno, 0, "{command}: {reply:?}");
        // What members may write now, they may after the restart, and it stays written.
        for (agent, name) in [(&mut one, "one"), (&mut two, "two")] {
            let code = format!(
                "[write(MNT + '/' + w + '/{name}', '{n}') for w in [os.readlink(MNT + '/self')]]"
            );
            match agent.eval(&code) {
                Ok(_) | Err(libc::EROFS | libc::ENOENT | libc::EINVAL) => {}
                Err(e) => panic!("{command}: {}", std::io::Error::from_raw_os_error(e)),
            }
        }
        let may = |agent: &mut Agent| -> Vec<String> {
            let code = "
_ = []
for w in sorted(n for n in os.listdir(MNT) if n.startswith('ws')):
    try: sys_open(f'{MNT}/{w}/probe', os.O_CREAT | os.O_WRONLY); _.append(w)
    except OSError as e: assert e.errno == errno.EROFS, e";
            serde_json::from_value(agent.ok(code)).unwrap()
        };
        let before = (may(&mut one), may(&mut two));
        let (rows, held, bytes) = (registry(&m), members(&m), files(&m));
        m.kill9();
        m.mount();
        let (again, held_again) = (registry(&m), members(&m));
        assert_eq!(again.0, rows.0, "windows after {command:?}");
        assert_eq!(again.1, rows.1, "workspaces after {command:?}");
        let lost: Vec<_> = rows.2.iter().filter(|e| e["kind"] != "refused").collect();
        let kept: Vec<_> = again.2.iter().filter(|e| e["kind"] != "refused").collect();
        assert_eq!(kept, lost, "events after {command:?}");
        assert_eq!(held_again, held, "members after {command:?}");
        assert_eq!(files(&m), bytes, "files after {command:?}");
        assert_eq!(
            (may(&mut one), may(&mut two)),
            before,
            "rights after {command:?}"
        );
    }
    assert_eq!(m.ctl("allocate")["window"], "c31", "no number comes back");
}

fn killed_amid_commands(flavor: Flavor) {
    // Clients at work while the daemon dies: each knows what was acknowledged to it.
    let m = Mount::new(flavor);
    let mut acknowledged: Vec<String> = Vec::new();
    for _ in 0..10 {
        let mut clients: Vec<_> = (0..4).map(|_| Agent::guest(&m)).collect();
        for client in &mut clients {
            client.begin(
                "
_ = []
try:
    while True:
        error, _n, lines = ctl('allocate\\n')
        assert error == 0, error
        w = json.loads(lines[0])['window']
        _.append(w)
        if len(_) % 3 == 0:
            error, _n, lines = ctl(f'handoff {w}\\n')
            if error == 0 and lines: _.append(json.loads(lines[0])['to'])
except (OSError, AssertionError, IndexError): pass",
            );
        }
        crate::common::eventually("clients are at work", Duration::from_secs(30), || {
            m.jsonl("windows.jsonl").len() > acknowledged.len() + 20
        });
        m.kill9();
        for client in &mut clients {
            let known: Vec<String> = serde_json::from_value(client.answer().unwrap()).unwrap();
            acknowledged.extend(known);
        }
        m.mount();
        let windows = m.jsonl("windows.jsonl");
        let names: Vec<_> = windows
            .iter()
            .map(|w| w["window"].as_str().unwrap())
            .collect();
        for window in &acknowledged {
            assert!(
                names.contains(&window.as_str()),
                "{window} was acknowledged and is lost"
            );
        }
        let mut unique = acknowledged.clone();
        unique.sort();
        unique.dedup();
        assert_eq!(unique.len(), acknowledged.len(), "a number was given twice");
        for workspace in m.jsonl("workspaces.jsonl") {
            let name = workspace["workspace"].as_str().unwrap();
            assert!(m.ws(name).is_dir(), "{name} has no directory: {workspace}");
        }
        let dirs = std::fs::read_dir(m.store().join("workspaces"))
            .unwrap()
            .count();
        assert_eq!(
            dirs,
            m.jsonl("workspaces.jsonl").len(),
            "directories and rows"
        );
        registry(&m);
    }
    assert!(
        acknowledged.len() > 100,
        "only {} commands",
        acknowledged.len()
    );
}

fn half_done_work_is_put_right(flavor: Flavor) {
    // What a crash between two steps leaves in the store, laid by hand.
    let m = Mount::new(flavor);
    m.allocate(&["c1", "c2", "c3"]);
    for n in 1..=3 {
        let script = format!("mkdir -p $MNT/ws{n}/a/b && echo {n} > $MNT/ws{n}/a/f");
        m.as_member(&format!("c{n}"), &script).ok("write");
    }
    m.ctl("reclaim ws2 force=true");
    m.unmount();
    let script = "cd \"$STORE\" && test ! -e workspaces/ws2 && test -e trash/ws2 \
        && mv trash/ws2 workspaces/ws2 && mv workspaces/ws3 trash/ws3 \
        && mkdir workspaces/ws8 workspaces/ws9 && echo adopted > workspaces/ws9/file";
    m.as_guest(script).ok("lay half-done work");
    m.mount();
    let look = |what: &str| m.as_guest(what).stdout.trim().to_owned();
    assert_eq!(look("cat $MNT/ws1/a/f"), "1");
    assert_eq!(look("ls -d $MNT/ws2 2>/dev/null"), "", "it was reclaimed");
    assert_eq!(
        look("cat $MNT/ws3/a/f"),
        "3",
        "its row says that it is in the tree"
    );
    assert_eq!(look("cat $MNT/ws9/file"), "adopted");
    assert_eq!(m.show("ws9")["state"], "released");
    assert_eq!(m.ctl("restore ws2")["state"], "released");
    assert_eq!(look("cat $MNT/ws2/a/f"), "2");
    assert_eq!(
        m.ctl("allocate c4")["workspace"],
        "ws10",
        "no number comes back"
    );
}

fn jobs_of_a_killed_daemon_have_ended(flavor: Flavor) {
    let m = Mount::new(flavor);
    m.allocate(&["c1"]);
    let mut one = Agent::member(&m, "c1");
    one.ok("fd = os.open(MNT + '/ws1/held', os.O_CREAT | os.O_WRONLY)");
    let reply = m.send("handoff c1 c2 mode=wait timeout=600s");
    let job = reply.line()["job"].as_str().unwrap().to_owned();
    m.kill9();
    // The descriptor doesn't hang.
    let _ = one.eval("os.write(fd, b'x')");
    m.mount();
    let reply = m.send(&format!("wait {job}"));
    assert_ne!(reply.line()["state"], "running", "{reply:?}");
    assert_eq!(m.show("ws1")["holder"], "c1", "the handoff did not happen");
    one.ok("write(MNT + '/ws1/held', 'again')");
    let next = m.send("handoff c1 c2 mode=wait timeout=20s");
    assert_ne!(
        next.line()["job"],
        job.as_str(),
        "no job's number comes back"
    );
    let reply = m.finish(next);
    assert_eq!(reply.errno, 0, "{reply:?}");
    one.refused("write(MNT + '/ws1/held', 'no')", EROFS);
}

/// Used by the scenarios too: whether a command ends soon, whatever it says.
#[track_caller]
pub fn ends_soon(m: &Mount, script: &str) -> String {
    let mut command = m.command("bash");
    command.args(["-c", script]);
    let ended = run(command, Duration::from_secs(20));
    format!("{}{}", ended.stdout, ended.stderr)
}
