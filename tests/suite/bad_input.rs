//! Bad input: each gets the rule and the errno of the control protocol, and nothing changes.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::errno::{EBUSY, EINVAL, ENOENT, EOPNOTSUPP, EPERM, EROFS, ESTALE};
use crate::common::{Agent, Flavor, Mount, Shell, assert_refusal, flavors};

flavors! {
    each_bad_command_is_refused_by_its_rule: passthrough, ordinary;
    bytes_that_are_no_commands_are_refused: passthrough, ordinary;
    nonsense_to_the_binding_files_is_refused: passthrough, ordinary;
    what_comes_later_says_so: passthrough;
    a_window_may_not_do_everything: passthrough, ordinary;
    ended_windows_say_where_it_goes_on: passthrough;
    bad_mounts_are_refused_untouched: passthrough, ordinary;
    wrong_usage_of_the_command_line: passthrough;
    the_daemon_survives_a_storm: passthrough;
    no_reply_is_lost: passthrough;
}

/// Everything that the registry says, but what refusals add.
fn registry(m: &Mount) -> (Vec<Value>, Vec<Value>, Vec<Value>) {
    let mut events = m.jsonl("events.jsonl");
    events.retain(|event| event["kind"] != "refused");
    (
        m.jsonl("windows.jsonl"),
        m.jsonl("workspaces.jsonl"),
        events,
    )
}

fn each_bad_command_is_refused_by_its_rule(flavor: Flavor) {
    let m = Mount::new(flavor);
    m.allocate(&["c1", "c2"]);
    m.ctl("allocate c3");
    m.ctl("release c3");
    m.ctl("reclaim ws3");
    let before = registry(&m);
    let long = "x".repeat(21);
    let long_title = format!("allocate c9 title={long}");
    let bad: &[(&str, i32, &str)] = &[
        ("frobnicate", EINVAL, "verb.unknown"),
        ("Allocate c9", EINVAL, "verb.unknown"),
        ("\u{1f600} c9", EINVAL, "verb.unknown"),
        ("allocate c0", EINVAL, "window.ref.invalid"),
        ("allocate c007", EINVAL, "window.ref.invalid"),
        ("allocate c99999999999", EINVAL, "window.ref.invalid"),
        ("allocate C7", EINVAL, "window.ref.invalid"),
        ("allocate 7", EINVAL, "window.ref.invalid"),
        ("allocate 'c7 '", EINVAL, "window.ref.invalid"),
        ("allocate c-1", EINVAL, "window.ref.invalid"),
        ("allocate ws7", EINVAL, "window.ref.invalid"),
        ("allocate c\u{ff17}", EINVAL, "window.ref.invalid"),
        ("allocate ../c7", EINVAL, "window.ref.invalid"),
        ("release c0", EINVAL, "window.ref.invalid"),
        ("handoff c0 c9", EINVAL, "window.ref.invalid"),
        ("handoff c1 c0", EINVAL, "window.ref.invalid"),
        ("restore 'ws1 '", EINVAL, "workspace.ref.unknown"),
        ("restore ws0", EINVAL, "workspace.ref.unknown"),
        ("restore ws01", EINVAL, "workspace.ref.unknown"),
        ("restore ../ws1", EINVAL, "workspace.ref.unknown"),
        ("restore c1", EINVAL, "workspace.ref.unknown"),
        ("purge x", EINVAL, "workspace.ref.unknown"),
        ("refresh ws99999999999", EINVAL, "workspace.ref.unknown"),
        ("allocate c9 title=''", EINVAL, "title.invalid"),
        ("allocate c9 title=' x'", EINVAL, "title.invalid"),
        ("allocate c9 title='a\tb'", EINVAL, "title.invalid"),
        (&long_title, EINVAL, "title.invalid"),
        (
            r#"{"verb":"allocate","args":["c9"],"title":"a\nb"}"#,
            EINVAL,
            "title.invalid",
        ),
        ("release", EINVAL, "argument.missing"),
        ("bind c1", EINVAL, "argument.missing"),
        ("handoff", EINVAL, "argument.missing"),
        ("show", EINVAL, "argument.missing"),
        ("allocate c9 c10", EINVAL, "argument.invalid"),
        ("allocate c9 colour=red", EINVAL, "argument.invalid"),
        ("allocate c9 owner=nobody-knows", EINVAL, "argument.invalid"),
        ("allocate c9 keep=perhaps", EINVAL, "argument.invalid"),
        ("allocate c9 title=a title=b", EINVAL, "argument.invalid"),
        ("handoff c1 c9 mode=perhaps", EINVAL, "argument.invalid"),
        ("handoff c1 c9 members=eat", EINVAL, "argument.invalid"),
        (
            "handoff c1 c9 mode=wait timeout=soon",
            EINVAL,
            "argument.invalid",
        ),
        ("reclaim c1 force=perhaps", EINVAL, "argument.invalid"),
        ("bind c1 pid=x", EINVAL, "argument.invalid"),
        ("bind c1 pid=-1", EINVAL, "argument.invalid"),
        ("list everything", EINVAL, "argument.invalid"),
        ("expire older_than=soon", EINVAL, "argument.invalid"),
        (
            "allocate c9 title='never closed",
            EINVAL,
            "argument.invalid",
        ),
        ("release c99", ENOENT, "window.not_found"),
        ("show c99", ENOENT, "window.not_found"),
        ("handoff c99 c100", ENOENT, "window.not_found"),
        ("reclaim c99", ENOENT, "window.not_found"),
        ("show ws99", ENOENT, "workspace.not_found"),
        ("reclaim ws99", ENOENT, "workspace.not_found"),
        ("restore ws99", ENOENT, "workspace.not_found"),
        ("wait j99", ENOENT, "job.not_found"),
        ("wait nonsense", ENOENT, "job.not_found"),
        ("bind c1 pid=4194304", ENOENT, "process.not_found"),
        ("bind c1 tid=4194304", ENOENT, "process.not_found"),
        ("bind c99 pid=1", ENOENT, "window.not_found"),
        ("reclaim ws1", EBUSY, "workspace.held"),
        ("reclaim c1", EBUSY, "workspace.held"),
        ("handoff c1 c2", EBUSY, "workspace.held"),
        ("allocate c3", ESTALE, "window.ended"),
    ];
    for (command, errno, rule) in bad {
        let reply = m.send(command);
        assert_refusal(command, &reply, *errno, rule);
    }
    assert_eq!(registry(&m), before, "a refused command changed something");
}

fn bytes_that_are_no_commands_are_refused(flavor: Flavor) {
    let m = Mount::new(flavor);
    m.allocate(&["c1"]);
    let before = registry(&m);
    let mut garbage = Vec::new();
    let mut x = 0x2545_f491_u32;
    for _ in 0..4096 {
        // xorshift: the same bytes in each run, 0x00 to 0xff, without a line's end.
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        garbage.push(if x as u8 == b'\n' { 0xff } else { x as u8 });
    }
    let half_json: [&[u8]; 6] = [
        b"{\"verb\":\"allocate\",\"args\":[\"c9\"]",
        b"{\"verb\":",
        b"{",
        b"{}",
        b"{\"verb\":7}",
        b"{\"verb\":\"allocate\",\"args\":[{}]}",
    ];
    let not_utf8: [&[u8]; 4] = [b"\xff\xfe\xfd", b"allocate c9 title=\xc3", &garbage, b"\0"];
    for bytes in half_json.iter().chain(&not_utf8) {
        let reply = m.send_to("ctl", bytes);
        let what = String::from_utf8_lossy(bytes);
        assert_eq!(reply.errno, EINVAL, "{what:?}: {reply:?}");
        let line = reply.line();
        assert_eq!(line["error"]["code"], "invalid", "{what:?}: {line}");
    }
    // Longer than 64 KiB: nothing of it happens.
    for size in [64 * 1024 + 1, 1 << 20] {
        let mut long = b"allocate c9 title=x\n# ".to_vec();
        long.resize(size, b'x');
        let reply = m.send_to("ctl", &long);
        assert_refusal(&format!("{size} bytes"), &reply, EINVAL, "line.too_long");
    }
    // Blank lines and comments say nothing.
    let reply = m.send_to("ctl", b"\n\n   \n# allocate c9\n");
    assert_eq!((reply.errno, reply.lines.len()), (0, 0), "{reply:?}");
    assert_eq!(reply.taken, 20, "{reply:?}");
    let reply = m.send_to("ctl", b"");
    assert_eq!((reply.errno, reply.lines.len()), (0, 0), "{reply:?}");
    assert_eq!(registry(&m), before, "a refused command changed something");

    // The longest write that is allowed is good.
    let mut longest = b"allocate c9\n#".to_vec();
    longest.resize(64 * 1024, b'x');
    let reply = m.send_to("ctl", &longest);
    assert_eq!((reply.errno, reply.taken), (0, 64 * 1024), "{reply:?}");
    assert_eq!(reply.line()["window"], "c9");
}

fn nonsense_to_the_binding_files_is_refused(flavor: Flavor) {
    let m = Mount::new(flavor);
    m.allocate(&["c1"]);
    let before = registry(&m);
    let mut guest = Agent::guest(&m);
    let dir = "MNT + '/.panefs/windows/c1/";
    for (file, text, errno) in [
        (format!("{dir}procs'"), "nonsense", EINVAL),
        (format!("{dir}procs'"), "-1", EINVAL),
        (format!("{dir}procs'"), "1 2 3", EINVAL),
        (format!("{dir}procs'"), "0x10", EINVAL),
        (format!("{dir}procs'"), "99999999999999999999", EINVAL),
        (format!("{dir}procs'"), "\\xff\\xfe", EINVAL),
        (format!("{dir}procs'"), "4194304", ENOENT),
        (format!("{dir}threads'"), "nonsense", EINVAL),
        (format!("{dir}threads'"), "-1", EINVAL),
        (format!("{dir}threads'"), "4194304", ENOENT),
        ("MNT + '/.panefs/operators'".to_owned(), "nonsense", EINVAL),
        ("MNT + '/.panefs/operators'".to_owned(), "-1", EINVAL),
        ("MNT + '/.panefs/operators'".to_owned(), "4194304", ENOENT),
        // Only threads of an operator act.
        ("MNT + '/.panefs/acting'".to_owned(), "c1", EPERM),
    ] {
        guest.refused(&format!("put({file}, b'{text}')"), errno);
    }
    guest.refused(
        "put(MNT + '/.panefs/windows/c1/procs', b'x' * (1 << 20))",
        EINVAL,
    );
    guest.refused("write(MNT + '/ws1/f', 'x')", EROFS);
    guest.ok("put(MNT + '/.panefs/operators', '0\\n')");
    for (text, errno) in [
        ("nonsense", EINVAL),
        ("c0", EINVAL),
        ("c007", EINVAL),
        ("\\xff", EINVAL),
        ("c99", ENOENT),
    ] {
        guest.refused(&format!("put(MNT + '/.panefs/acting', b'{text}')"), errno);
    }
    guest.refused("put(MNT + '/.panefs/acting', 'x' * 70000)", EINVAL);
    drop(guest);
    let mut kinds = registry(&m).2;
    kinds.truncate(before.2.len());
    assert_eq!(kinds, before.2);
    assert_eq!(m.ctl("list members")["items"], Value::Array(Vec::new()));
}

fn what_comes_later_says_so(flavor: Flavor) {
    let m = Mount::new(flavor);
    m.allocate(&["c1"]);
    let before = registry(&m);
    for command in [
        "run c1 test",
        "cd c1 src",
        "ensure c1",
        "definitions project=/tmp",
        "resolve ws1 available",
        "activity ws1",
        "share ws1 with=all",
        "index ws1",
        "map ws1",
        "find ws1 main",
        "expand ws1 1",
        "context ws1",
        "handoff c1 c9 mode=fence",
        "quota c1 bytes=10MiB",
    ] {
        m.ctl_refused(command, EOPNOTSUPP, "unsupported");
    }
    assert_eq!(registry(&m), before);
}

fn a_window_may_not_do_everything(flavor: Flavor) {
    let m = Mount::new(flavor);
    m.allocate(&["c1", "c2"]);
    let before = registry(&m);
    let mut member = Agent::member(&m, "c1");
    // Through its own control file, and the same through the root's.
    for path in ["MNT + '/.panefs/windows/c1/ctl'", "MNT + '/.panefs/ctl'"] {
        for command in [
            "allocate c9",
            "bind c1 pid=1",
            "unbind pid=1",
            "reclaim ws1 force=true",
            "restore ws1",
            "purge ws1",
            "expire",
            "refresh ws1",
        ] {
            let reply = member.ok(&format!("ctl('{command}\\n', {path})"));
            let reply: (i32, usize, Vec<String>) = serde_json::from_value(reply).unwrap();
            assert_eq!(reply.0, EPERM, "{command} to {path}: {reply:?}");
            let line: Value = serde_json::from_str(&reply.2[0]).unwrap();
            assert_eq!(
                line["error"]["rule"], "command.not_allowed",
                "{command}: {line}"
            );
        }
        for command in ["release c2", "handoff c2 c9"] {
            let reply = member.ok(&format!("ctl('{command}\\n', {path})"));
            let reply: (i32, usize, Vec<String>) = serde_json::from_value(reply).unwrap();
            assert_eq!(reply.0, EPERM, "{command} to {path}: {reply:?}");
            let line: Value = serde_json::from_str(&reply.2[0]).unwrap();
            assert_eq!(
                line["error"]["rule"], "window.not_yours",
                "{command}: {line}"
            );
        }
        // Others it may look at, and of itself it need not say the name.
        for command in ["show c2", "show ws2", "path c2", "path", "list windows"] {
            let reply = member.ok(&format!("ctl('{command}\\n', {path})"));
            assert_eq!(reply[0], 0, "{command} to {path}: {reply}");
        }
    }
    let mut after = registry(&m);
    after.2.retain(|event| event["kind"] != "window.bound");
    assert_eq!(after.0.len(), before.0.len());
    assert_eq!(after.2, before.2);
    // The other window's control file is not its own.
    let reply = member.ok("ctl('release\\n', MNT + '/.panefs/windows/c2/ctl')");
    assert_eq!(reply[0], EPERM, "{reply}");
}

fn ended_windows_say_where_it_goes_on(flavor: Flavor) {
    let m = Mount::new(flavor);
    m.allocate(&["c1"]);
    m.ctl("handoff c1 c2");
    let error = m.ctl_refused("allocate c1", ESTALE, "window.ended");
    assert_eq!(error["holder"], "c2", "{error}");
    assert_eq!(error["workspace"], "ws1", "{error}");
    let path = error["path"].as_str().unwrap_or_default();
    assert!(path.ends_with("/ws1"), "{error}");
    let mut shell = Shell::new(&m);
    // Who reclaims by the continued window's name means its chain's workspace.
    m.ctl_refused("reclaim c1", EBUSY, "workspace.held");
    shell.ok("test -d $MNT/ws1");
    m.ctl("reclaim c1 force=true");
    let again = m.ctl("reclaim c1 force=true");
    assert_eq!(again["state"], "reclaimed", "{again}");
    shell.refused("ls $MNT/ws1", "No such file or directory");
    let restored = m.ctl("restore ws1");
    assert_eq!(restored["state"], "released", "{restored}");
    shell.ok("ls $MNT/ws1");
    m.ctl("reclaim ws1 purge=true");
    m.ctl_refused("restore ws1", ESTALE, "workspace.ref.expired");
}

fn bad_mounts_are_refused_untouched(flavor: Flavor) {
    let m = Mount::unmounted(flavor);
    // Neither empty nor a store.
    let script = "mkdir \"$STORE\" && echo precious > \"$STORE/thesis\" && mkdir \"$STORE/workspaces\" && ls -laR \"$STORE\"";
    let before = m.as_guest(script).ok("lay the ground").to_owned();
    let refused = m.try_mount();
    refused.failed(1, "a directory that is no store");
    assert!(refused.stderr.starts_with("panefs: "), "{refused}");
    let after = m.as_guest("ls -laR \"$STORE\"");
    assert_eq!(after.ok("look"), before, "the directory was touched");
    m.as_guest("rm -r \"$STORE\"").ok("clear");

    // A missing store is made, its parents too; a second daemon is told of the first.
    m.mount();
    let mode = m.as_guest("stat -c %a \"$STORE\"");
    assert_eq!(mode.ok("stat"), "700");
    let pid = m.daemon().expect("a daemon");
    let mut second = m.command(m.binary());
    let other = m.home().join("other");
    m.as_guest("mkdir other").ok("mkdir");
    second.arg("mount").arg(m.store()).arg(&other);
    let refused = crate::common::run(second, Duration::from_secs(60));
    refused.failed(1, "a store that is served");
    assert!(refused.stderr.contains(&pid.to_string()), "{refused}");
    m.ctl("allocate c1");

    // Options that can't be kept are refused, not dropped.
    if flavor.is_ordinary() || !crate::common::is_root() {
        let mut shared = m.command(m.binary());
        let store = m.home().join("store2");
        shared
            .args(["mount", "--allow-other"])
            .arg(&store)
            .arg(&other);
        let refused = crate::common::run(shared, Duration::from_secs(60));
        refused.failed(1, "--allow-other by an ordinary user");
        assert!(!store.exists(), "refused, and yet a store was made");
    }
    // A mountpoint that isn't there.
    let mut nowhere = m.command(m.binary());
    let store = m.home().join("store3");
    nowhere
        .arg("mount")
        .arg(&store)
        .arg(m.home().join("nowhere"));
    crate::common::run(nowhere, Duration::from_secs(60)).failed(1, "no mountpoint");
    assert!(!store.exists(), "refused, and yet a store was made");
}

fn wrong_usage_of_the_command_line(flavor: Flavor) {
    let m = Mount::new(flavor);
    for args in [
        &["mount"][..],
        &["mount", "a"],
        &["exec"],
        &["--frobnicate"],
        &["allocate", "c1", "c2", "c3"],
    ] {
        m.cli(args).failed(2, &format!("panefs {args:?}"));
    }
    for args in [
        &["allocate", "c0"][..],
        &["show", "c77"],
        &["unmount", "/nowhere"],
    ] {
        let refused = m.cli(args);
        refused.failed(1, &format!("panefs {args:?}"));
        assert!(
            refused.stderr.starts_with("panefs: "),
            "{args:?}: {refused}"
        );
        assert!(refused.stdout.is_empty(), "{args:?}: {refused}");
    }
    let json = m.cli(&["show", "c77", "--json"]);
    json.failed(1, "show --json");
    let line: Value = serde_json::from_str(json.stdout.trim()).expect("the reply line");
    assert_eq!(line["error"]["rule"], "window.not_found", "{line}");
}

fn the_daemon_survives_a_storm(flavor: Flavor) {
    // Every write is answered within a second, whatever the others do.
    let m = Mount::new(flavor);
    m.allocate(&["c1"]);
    let slowest = std::thread::scope(|scope| {
        let storms: Vec<_> = (0..8)
            .map(|n: u32| {
                let m = &m;
                scope.spawn(move || {
                    let mut slowest = Duration::ZERO;
                    for i in 0..200_u32 {
                        let begin = Instant::now();
                        match (n + i) % 4 {
                            0 => drop(m.send_to("ctl", &vec![b'x'; 60_000])),
                            1 => drop(m.send("list windows")),
                            2 => drop(m.send("allocate c0")),
                            _ => drop(m.send_to("ctl", b"{\"verb\":")),
                        }
                        slowest = slowest.max(begin.elapsed());
                    }
                    slowest
                })
            })
            .collect();
        storms.into_iter().map(|s| s.join().unwrap()).max().unwrap()
    });
    println!("slowest answer: {slowest:?}");
    assert!(
        slowest < Duration::from_secs(5),
        "an answer took {slowest:?}"
    );
    assert_eq!(m.ctl("path c1")["workspace"], "ws1");
}

/// Each command that was taken gives its line, also where nobody reads for long: rather than drop
/// replies of commands that have happened, a write takes fewer.
fn no_reply_is_lost(flavor: Flavor) {
    let m = Mount::new(flavor);
    m.allocate(&["c1"]);
    let mut owner = Agent::guest(&m);
    let [taken, lines] = ["taken", "lines"].map(str::to_owned);
    owner.ok("
fd = os.open(MNT + '/.panefs/ctl', os.O_RDWR)
taken = lines = 0
for _ in range(40):
    try:
        taken += os.write(fd, b'path c1\\n' * 50) // 8
    except OSError:
        break
while os.read(fd, 1 << 16):
    lines += 1");
    assert_eq!(owner.ok(&taken), owner.ok(&lines), "commands and replies");
}
