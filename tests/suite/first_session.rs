//! The first session: two terminals that are two windows, with bash, echo, cat, ls and mkdir
//! alone; and every way to talk to the control file.

use serde_json::Value;

use crate::common::errno::{EINVAL, ENOENT, ENOTEMPTY};
use crate::common::{Flavor, Mount, Shell, flavors, need, run};

flavors! {
    two_terminals_are_two_windows: passthrough, cached, ordinary;
    a_newcomer_is_told_why_and_what_to_do: passthrough, ordinary;
    allocate_says_the_same_again: passthrough;
    numbers_are_never_used_twice: passthrough;
    windows_are_directories_too: passthrough, ordinary;
    the_control_file_works_from_everywhere: passthrough, ordinary;
    commands_of_one_write_run_in_order: passthrough;
    links_lead_to_the_callers_own: passthrough, ordinary;
    the_command_line_speaks_for_each_verb: passthrough, ordinary;
}

fn two_terminals_are_two_windows(flavor: Flavor) {
    let m = Mount::new(flavor);
    m.allocate(&["c1", "c2"]);
    let mut one = Shell::member(&m, "c1");
    let mut two = Shell::member(&m, "c2");

    one.ok("cd $MNT/ws1 && mkdir src && echo 'fn main() {}' > src/main.rs");
    assert_eq!(two.ok("cat $MNT/ws1/src/main.rs"), "fn main() {}");
    assert_eq!(two.ok("ls $MNT/ws1/src"), "main.rs");
    for change in [
        "echo no > $MNT/ws1/src/main.rs",
        "echo no >> $MNT/ws1/src/main.rs",
        "echo no > $MNT/ws1/new",
        "mkdir $MNT/ws1/new",
    ] {
        two.refused(change, "Read-only file system");
    }
    two.ok("cd $MNT/ws2 && mkdir notes && echo mine > notes/today");
    assert_eq!(one.ok("cat $MNT/ws2/notes/today"), "mine");
    one.refused("echo no > $MNT/ws2/notes/today", "Read-only file system");

    // What one changes is what the other sees, at once.
    one.ok("echo '// more' >> src/main.rs");
    assert_eq!(two.ok("cat $MNT/ws1/src/main.rs"), "fn main() {}\n// more");
    assert_eq!(one.ok("cat $MNT/ws1/src/main.rs"), "fn main() {}\n// more");

    let listing = two.ok("ls -A $MNT");
    let mut names: Vec<_> = listing.lines().collect();
    names.sort_unstable();
    assert_eq!(names, [".panefs", "cwd", "self", "ws1", "ws2"]);
    // The files of a workspace are plain files in the store.
    if !flavor.is_ordinary() && crate::common::is_root() {
        let backing = crate::common::text(m.backing("ws2").join("notes/today"));
        assert_eq!(backing, "mine\n");
    }
}

fn a_newcomer_is_told_why_and_what_to_do(flavor: Flavor) {
    need(&["script"]);
    let m = Mount::new(flavor);
    let printed = m.cli(&["allocate", "c1"]);
    let path = m.ws("ws1").display().to_string();
    assert_eq!(printed.ok("allocate"), path, "the path alone on stdout");

    // On a terminal it says how to enter.
    let mut command = m.command("script");
    command.args(["-qec", "\"$PANEFS\" allocate c2", "/dev/null"]);
    let said = run(command, std::time::Duration::from_secs(30));
    let said = said.ok("allocate on a terminal").to_owned();
    assert!(
        said.contains("panefs enter c2") || said.contains("windows/c2/procs"),
        "allocate on a terminal should say how to enter: {said:?}"
    );

    let mut newcomer = Shell::new(&m);
    newcomer.refused("echo hello > $MNT/ws1/hello", "Read-only file system");
    let whoami = newcomer.ok("cat $MNT/.panefs/whoami");
    let whoami: Value = serde_json::from_str(&whoami).expect("whoami is JSON");
    assert_eq!(whoami["role"], "guest", "{whoami}");
    assert_eq!(whoami["window"], Value::Null, "{whoami}");
    let refusal = &whoami["last_refusal"];
    assert_eq!(refusal["rule"], "write.guest", "{whoami}");
    assert_eq!(refusal["holder"], "c1", "{whoami}");
    let at = refusal["path"].as_str().unwrap_or_default();
    assert!(at.ends_with("ws1/hello"), "{whoami}");
    for field in ["at", "message", "next_action"] {
        assert!(
            refusal[field].as_str().is_some_and(|t| !t.is_empty()),
            "last_refusal has no {field}: {whoami}"
        );
    }
    assert!(
        refusal["errno"] == "EROFS" || refusal["errno"] == libc::EROFS,
        "{whoami}"
    );

    let said = newcomer.ok("\"$PANEFS\" whoami");
    assert!(said.contains("guest"), "panefs whoami: {said}");
    assert!(
        said.contains("enter") || said.contains("procs"),
        "panefs whoami should say what to do: {said}"
    );

    // Doing what it says helps.
    newcomer.ok("echo 0 > $MNT/.panefs/windows/c1/procs");
    newcomer.ok("echo hello > $MNT/ws1/hello");
    let whoami = newcomer.ok("cat $MNT/.panefs/whoami");
    let whoami: Value = serde_json::from_str(&whoami).expect("whoami is JSON");
    assert_eq!(whoami["role"], "member", "{whoami}");
    assert_eq!(whoami["window"], "c1", "{whoami}");
    assert_eq!(whoami["workspace"], "ws1", "{whoami}");
    assert_eq!(whoami["path"], path.as_str(), "{whoami}");

    // In another's workspace the reason is another one.
    newcomer.refused("echo hello > $MNT/ws2/hello", "Read-only file system");
    let whoami = newcomer.ok("cat $MNT/.panefs/whoami");
    let whoami: Value = serde_json::from_str(&whoami).expect("whoami is JSON");
    assert_eq!(
        whoami["last_refusal"]["rule"], "write.not_holder",
        "{whoami}"
    );
    assert_eq!(whoami["last_refusal"]["holder"], "c2", "{whoami}");
    crate::common::eventually(
        "a `refused` event of that change",
        std::time::Duration::from_secs(5),
        || {
            m.jsonl("events.jsonl")
                .iter()
                .any(|e| e["kind"] == "refused" && e["rule"] == "write.not_holder")
        },
    );
}

fn allocate_says_the_same_again(flavor: Flavor) {
    let m = Mount::new(flavor);
    let first = m.ctl("allocate c7 title=\"fix login\"");
    assert_eq!(first["window"], "c7", "{first}");
    assert_eq!(first["workspace"], "ws7", "{first}");
    assert_eq!(first["ref"], "ws7", "{first}");
    assert_eq!(first["path"], m.ws("ws7").to_str().unwrap(), "{first}");
    assert_eq!(first["created"], true, "{first}");
    assert!(first["state"].is_string(), "{first}");
    let events = m.jsonl("events.jsonl").len();
    for command in [
        "allocate c7",
        "allocate c7 title='fix login'",
        r#"{"verb":"allocate","args":["c7"]}"#,
    ] {
        let again = m.ctl(command);
        assert_eq!(again["created"], false, "{command}: {again}");
        for field in ["window", "workspace", "ref", "path", "state"] {
            assert_eq!(again[field], first[field], "{command}: {again}");
        }
    }
    assert_eq!(m.jsonl("events.jsonl").len(), events, "nothing happened");
    let shown = m.show("c7");
    assert_eq!(shown["title"], "fix login", "{shown}");
    assert_eq!(shown["state"], "live", "{shown}");
    assert_eq!(m.show("ws7")["holder"], "c7");
}

fn numbers_are_never_used_twice(flavor: Flavor) {
    let m = Mount::new(flavor);
    assert_eq!(m.ctl("allocate c7")["workspace"], "ws7");
    assert_eq!(m.ctl("allocate c3")["workspace"], "ws8");
    let next = m.ctl("allocate");
    assert_eq!(next["window"], "c8", "the next free window: {next}");
    assert_eq!(next["workspace"], "ws9", "{next}");
    assert_eq!(m.ctl("allocate c20")["workspace"], "ws20");
    m.ctl("reclaim ws20 force=true purge=true");
    assert_eq!(m.ctl("allocate c10")["workspace"], "ws21");
    m.unmount();
    m.mount();
    let next = m.ctl("allocate");
    assert_eq!(next["window"], "c21", "{next}");
    assert_eq!(next["workspace"], "ws22", "{next}");

    // Also when the registry is made anew: the directories bear the numbers.
    m.as_member("c21", "echo kept > $MNT/ws22/file").ok("write");
    m.unmount();
    for file in ["panefs.db", "panefs.db-wal", "panefs.db-shm"] {
        let _ = std::fs::remove_file(m.store().join(file));
    }
    m.mount();
    let next = m.ctl("allocate");
    assert_eq!(next["workspace"], "ws23", "{next}");
    let kept = crate::common::text(m.ws("ws22").join("file"));
    assert_eq!(kept, "kept\n", "files whose row is gone are kept");
}

fn windows_are_directories_too(flavor: Flavor) {
    let m = Mount::new(flavor);
    let mut owner = Shell::new(&m);
    owner.ok("mkdir $MNT/.panefs/windows/c12");
    assert_eq!(m.show("c12")["workspace"], "ws12");
    owner.ok("test -d $MNT/ws12");
    owner.refused("mkdir $MNT/.panefs/windows/c12", "File exists");
    assert_eq!(
        m.hand("os.readlink(MNT + '/.panefs/windows/c12/workspace')"),
        Ok("../../../ws12".into())
    );
    m.as_member("c12", "echo kept > $MNT/ws12/file").ok("write");
    assert_eq!(
        m.hand("os.rmdir(MNT + '/.panefs/windows/c12')"),
        Err(ENOTEMPTY)
    );
    assert_eq!(m.show("ws12")["state"], "occupied");
    m.as_member("c12", "rm $MNT/ws12/file").ok("remove");
    owner.ok("rmdir $MNT/.panefs/windows/c12");
    owner.refused("ls $MNT/ws12", "No such file or directory");
    assert!(!owner.ok("ls $MNT").contains("ws12"));
    assert_eq!(m.show("ws12")["state"], "reclaimed");
    assert_eq!(
        m.hand("os.rmdir(MNT + '/.panefs/windows/c99')"),
        Err(ENOENT)
    );
    for name in ["c12", "c0", "c007", "x"] {
        let code = format!("os.mkdir(MNT + '/.panefs/windows/{name}')");
        assert!(m.hand(&code).is_err(), "mkdir windows/{name} succeeded");
    }
}

fn the_control_file_works_from_everywhere(flavor: Flavor) {
    need(&["node", "python3", "tee", "dd"]);
    let m = Mount::new(flavor);
    let ways = [
        (
            "c1",
            "exec 3<>$MNT/.panefs/ctl; echo 'allocate c1 title=\"fix login\"' >&3; head -n1 <&3",
        ),
        (
            "c2",
            "python3 -c '
import os
f = open(os.environ[\"MNT\"] + \"/.panefs/ctl\", \"r+b\", buffering=0)
f.write(b\"allocate c2\\n\")
print(f.readline().decode(), end=\"\")'",
        ),
        (
            "c3",
            "node -e '
const fs = require(\"fs\");
const fd = fs.openSync(process.env.MNT + \"/.panefs/ctl\", \"r+\");
fs.writeSync(fd, \"allocate c3\\n\");
const b = Buffer.alloc(65536);
process.stdout.write(b.subarray(0, fs.readSync(fd, b)));'",
        ),
        (
            "c4",
            "node -e '
const fs = require(\"fs\");
fs.open(process.env.MNT + \"/.panefs/ctl\", \"r+\", (e, fd) => {
  if (e) throw e;
  fs.write(fd, \"allocate c4\", (e) => {
    if (e) throw e;
    fs.read(fd, Buffer.alloc(65536), 0, 65536, null, (e, n, b) => {
      if (e) throw e;
      process.stdout.write(b.subarray(0, n));
    });
  });
});'",
        ),
        (
            "c5",
            // One byte at a time: a reply line may be read in pieces.
            "exec 3<>$MNT/.panefs/ctl; echo 'allocate c5' >&3; IFS= read -r line <&3; echo \"$line\"",
        ),
    ];
    for (window, script) in ways {
        let said = m.as_guest(script);
        let said = said.ok(script);
        let reply: Value =
            serde_json::from_str(said).unwrap_or_else(|e| panic!("{script}: {e}: {said:?}"));
        assert_eq!(reply["window"], window, "{script}: {reply}");
        assert_eq!(reply["created"], true, "{script}: {reply}");
    }
    // Without reading a reply.
    for (window, script) in [
        ("c6", "echo 'allocate c6' > $MNT/.panefs/ctl"),
        ("c7", "echo 'allocate c7' >> $MNT/.panefs/ctl"),
        ("c8", "echo 'allocate c8' | tee $MNT/.panefs/ctl"),
        ("c9", "echo 'allocate c9' | tee -a $MNT/.panefs/ctl"),
        (
            "c10",
            "echo 'allocate c10' | dd of=$MNT/.panefs/ctl status=none",
        ),
        ("c11", "printf 'allocate c11' > $MNT/.panefs/ctl"),
        (
            "c12",
            "printf '# a comment\\n\\nallocate c12\\n' > $MNT/.panefs/ctl",
        ),
        (
            "c13",
            "echo '{\"verb\":\"allocate\",\"args\":[\"c13\"],\"title\":\"as JSON\"}' > $MNT/.panefs/ctl",
        ),
    ] {
        m.as_guest(script).ok(script);
        assert_eq!(m.show(window)["state"], "live", "{script}");
    }
    assert_eq!(m.show("c13")["title"], "as JSON");
    let refused = m.as_guest("echo 'allocate c0' > $MNT/.panefs/ctl");
    assert!(!refused.status.success(), "{refused}");
    assert!(refused.stderr.contains("Invalid argument"), "{refused}");

    let help = m.read(".panefs/help");
    assert!(
        help.contains("allocate") && help.contains("handoff"),
        "{help}"
    );
    assert_eq!(m.read(".panefs/ctl"), help, "read-only, ctl gives the help");
    let answered = m.ctl("help");
    assert!(
        answered["text"]
            .as_str()
            .is_some_and(|t| t.contains("allocate"))
    );
    let seek = "f = os.open(MNT + '/.panefs/ctl', os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
_ = [os.lseek(f, 100, 0) >= 0, os.pwrite(f, b'show c1\\n', 4096) > 0, os.pread(f, 65536, 77)]
os.close(f)";
    let seen = m.hand(seek).expect("seek, pwrite and pread on ctl");
    assert!(seen[2].as_str().unwrap().contains("\"c1\""), "{seen}");
}

fn commands_of_one_write_run_in_order(flavor: Flavor) {
    let m = Mount::new(flavor);
    let reply = m.send_to("ctl", b"allocate c1\n\n# next\nallocate c2\nallocate c3");
    assert_eq!((reply.errno, reply.taken), (0, 43), "{reply:?}");
    let windows: Vec<_> = reply.lines.iter().map(|l| l["window"].clone()).collect();
    assert_eq!(windows, ["c1", "c2", "c3"]);

    // Before the first refused one the write stops: that one is not even answered.
    let events = m.jsonl("events.jsonl").len();
    let before = b"allocate c4\n";
    let reply = m.send_to("ctl", b"allocate c4\nallocate c0\nallocate c5\n");
    assert_eq!((reply.errno, reply.taken), (0, before.len()), "{reply:?}");
    assert_eq!(reply.lines.len(), 1, "{reply:?}");
    assert_eq!(reply.lines[0]["window"], "c4");
    m.ctl_refused("show c5", ENOENT, "window.not_found");
    let rest = m.send_to("ctl", b"allocate c0\nallocate c5\n");
    assert_eq!(rest.errno, EINVAL, "{rest:?}");
    assert_eq!(
        rest.line()["error"]["rule"],
        "window.ref.invalid",
        "{rest:?}"
    );
    m.ctl_refused("show c5", ENOENT, "window.not_found");
    let all = m.jsonl("events.jsonl");
    assert_eq!(
        all.len(),
        events + 2,
        "window.opened and workspace.created of c4"
    );
}

fn links_lead_to_the_callers_own(flavor: Flavor) {
    let m = Mount::new(flavor);
    m.allocate(&["c1", "c2"]);
    let mut shells = [Shell::member(&m, "c1"), Shell::member(&m, "c2")];
    // Twice: what one caller resolved must not be cached for the other.
    for _ in 0..2 {
        for (shell, n) in shells.iter_mut().zip(1..) {
            assert_eq!(shell.ok("readlink $MNT/self"), format!("ws{n}"));
            assert_eq!(shell.ok("readlink $MNT/cwd"), format!("ws{n}"));
            assert_eq!(
                shell.ok("readlink $MNT/.panefs/self"),
                format!("windows/c{n}")
            );
            shell.ok(&format!("echo {n} > $MNT/self/mine"));
            assert_eq!(shell.ok("cat $MNT/self/mine"), n.to_string());
        }
        let mut guest = Shell::new(&m);
        assert_ne!(guest.run("test -e $MNT/self").0, 0, "a guest has no self");
        assert_ne!(guest.run("test -e $MNT/cwd").0, 0, "a guest has no cwd");
    }
    let mut guest = Shell::new(&m);
    assert_eq!(
        guest.ok("readlink $MNT/.panefs/windows/c2/workspace"),
        "../../../ws2"
    );
    assert_eq!(guest.ok("cat $MNT/.panefs/windows/c2/cwd/mine"), "2");
}

fn the_command_line_speaks_for_each_verb(flavor: Flavor) {
    let m = Mount::new(flavor);
    m.cli(&["allocate", "c1", "--title", "fix login"])
        .ok("allocate");
    let json = m.cli(&["allocate", "c1", "--json"]);
    let json: Value = serde_json::from_str(json.ok("allocate --json")).unwrap();
    assert_eq!(json["created"], false, "{json}");
    assert_eq!(json["path"], m.ws("ws1").to_str().unwrap());

    let refused = m.cli(&["show", "c9"]);
    refused.failed(1, "show of an unknown window");
    let mut lines = refused.stderr.lines();
    assert!(
        lines.next().is_some_and(|l| l.starts_with("panefs: ")),
        "{refused}"
    );
    assert!(
        lines.next().is_some_and(|l| l.starts_with("  try: ")),
        "{refused}"
    );
    m.cli(&["allocate", "--no-such-option"])
        .failed(2, "wrong usage");
    m.cli(&["no-such-verb"]).failed(2, "wrong usage");

    let listing = m.cli(&["ls"]);
    let listing = listing.ok("panefs ls");
    assert!(
        listing
            .lines()
            .any(|l| l.contains("c1") && l.contains("ws1") && l.contains("fix login")),
        "{listing}"
    );

    // exec: the environment, the working directory and the exit status are the command's.
    let script = "echo $PANEFS_WINDOW $PANEFS_WORKSPACE $PANEFS_MNT $PWD; pwd; touch made; exit 7";
    let ran = m.cli(&["exec", "c1", "--", "sh", "-c", script]);
    ran.failed(7, "the command's own exit status");
    let (ws, mnt) = (m.ws("ws1"), m.mnt().display());
    let ws = ws.display();
    assert_eq!(ran.stdout, format!("c1 {ws} {mnt} {ws}\n{ws}\n"), "{ran}");
    m.as_guest("test -f $MNT/ws1/made").ok("exec made a file");
    m.cli(&["exec", "c9", "--", "true"])
        .failed(1, "exec in no window");
    m.cli(&["exec", "--allocate", "c9", "--", "touch", "made"])
        .ok("exec --allocate");
    m.as_guest("test -f $MNT/ws9/made").ok("exec made a file");

    // The mount around the current directory is found without being named.
    let found = m.as_guest("unset PANEFS_MNT; cd $MNT/ws1 && \"$PANEFS\" path c1");
    assert!(found.ok("path").contains("ws1"), "{found}");

    for verb in ["release", "reclaim", "restore", "reclaim", "purge"] {
        let target = if verb == "release" { "c1" } else { "ws1" };
        m.cli(&[verb, target]).ok(verb);
    }
    let events = m.cli(&["events"]);
    let kinds = events.ok("panefs events");
    for kind in ["window.opened", "workspace.created", "workspace.reclaimed"] {
        assert!(kinds.contains(kind), "no {kind}: {kinds}");
    }
    let rows = m.jsonl("events.jsonl");
    for (event, seq) in rows.iter().zip(1..) {
        assert_eq!(event["seq"], seq, "seq has a gap: {event}");
    }
    m.cli(&["doctor"]).ok("doctor");
    let completions = m.cli(&["completions", "bash"]);
    assert!(completions.ok("completions").contains("allocate"));
}
