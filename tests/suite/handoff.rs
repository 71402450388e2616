//! Handing a workspace to a new window, in place.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::errno::{EBUSY, EROFS, ESTALE, ETIMEDOUT};
use crate::common::{
    Agent, Flavor, Mount, Shell, assert_refusal, cargo, eventually, flavors, need,
};

flavors! {
    the_same_place_changes_hands: passthrough, cached, ordinary;
    git_status_is_clean_and_reads_nothing: passthrough, cached;
    cargo_rebuilds_nothing: passthrough, cached;
    a_moved_dev_server_goes_on_writing: passthrough, cached;
    ended_members_are_gone: passthrough, cached, ordinary;
    a_busy_workspace_is_not_handed_off: passthrough, cached, ordinary;
    a_mapped_file_is_busy_after_its_close: passthrough, cached;
    a_handoff_can_wait: passthrough, cached;
    from_inside_without_naming_the_next: passthrough, ordinary;
    repeated_it_says_the_same: passthrough;
    only_the_holder_or_the_released_tail: passthrough;
    one_moment_and_never_two_writers: passthrough, cached;
}

fn the_same_place_changes_hands(flavor: Flavor) {
    let m = Mount::new(flavor);
    m.ctl("allocate c1 title=first");
    let mut one = Agent::member(&m, "c1");
    one.ok("W = MNT + '/ws1'");
    one.ok("os.makedirs(W + '/a/b'); write(W + '/f', 'one'); os.link(W + '/f', W + '/a/g'); os.symlink('f', W + '/l')");
    one.ok("os.chdir(W + '/a')");
    let inodes = "[[p, os.lstat(p).st_ino] for d, ds, fs in sorted(os.walk(MNT + '/ws1')) for p in [d] + [d + '/' + n for n in sorted(fs)]]";
    let before = one.ok(inodes);

    let reply = m.ctl("handoff c1 c2 title='goes on'");
    assert_eq!(reply["from"], "c1", "{reply}");
    assert_eq!(reply["to"], "c2", "{reply}");
    assert_eq!(reply["workspace"], "ws1", "{reply}");
    assert_eq!(reply["ref"], "ws1", "{reply}");
    assert_eq!(reply["path"], m.ws("ws1").to_str().unwrap(), "{reply}");

    // From the reply on: the first call of c1's members is refused, of c2's it succeeds.
    one.refused("sys_open(W + '/f', os.O_WRONLY)", EROFS);
    let mut two = Agent::member(&m, "c2");
    two.ok("write(MNT + '/ws1/f', 'two')");
    for change in [
        "os.mkdir('here')",
        "os.unlink(W + '/l')",
        "os.utime(W + '/f')",
        "os.truncate(W + '/f', 0)",
    ] {
        one.refused(change, EROFS);
    }
    one.ok("assert read(W + '/f') == b'two' and sorted(os.listdir('.')) == ['b', 'g']");
    assert_eq!(two.ok(inodes), before, "inode numbers");
    two.ok("os.unlink(MNT + '/ws1/l')");

    let (c1, c2, ws1) = (m.show("c1"), m.show("c2"), m.show("ws1"));
    assert_eq!(c1["state"], "continued", "{c1}");
    assert_eq!(c1["continued_by"], "c2", "{c1}");
    assert!(c1["ended_at"].is_string(), "{c1}");
    assert_eq!(c2["continues"], "c1", "{c2}");
    assert_eq!(c2["state"], "live", "{c2}");
    assert_eq!(ws1["holder"], "c2", "{ws1}");
    assert_eq!(ws1["ref"], "ws1", "{ws1}");
    let chain: Vec<_> = ws1["chain"].as_array().unwrap().iter().collect();
    assert_eq!(chain, ["c1", "c2"], "{ws1}");
    assert_eq!(m.ctl("path c1")["writable"], false);
    let path = m.ctl("path c2");
    assert_eq!(path["path"], m.ws("ws1").to_str().unwrap(), "{path}");

    let whoami = one.ok("json.loads(read(MNT + '/.panefs/whoami'))");
    assert_eq!(whoami["window"], "c1", "keep: it is still c1's: {whoami}");
    assert_eq!(whoami["last_refusal"]["holder"], "c2", "{whoami}");
    let events = m.jsonl("windows/c2/events.jsonl");
    assert!(events.iter().any(|e| e["kind"] == "handoff"), "{events:?}");
}

/// A repository of some size in ws1, by a member of c1.
fn repository(m: &Mount) {
    m.allocate(&["c1"]);
    let script = "cd $MNT/ws1 && git init -q r && cd r && for d in $(seq 20); do mkdir d$d; \
                  for f in $(seq 20); do echo \"$d $f\" > d$d/f$f; done; done; git add . && \
                  git commit -qm first && touch -d 2001-01-01 $(git ls-files) && git status -s";
    m.as_member("c1", script).ok("make a repository");
}

fn git_status_is_clean_and_reads_nothing(flavor: Flavor) {
    need(&["git"]);
    let m = Mount::new(flavor);
    repository(&m);
    let status = "cd $MNT/ws1/r && git status --porcelain";
    // Once, so that git's index bears no entry that is as young as itself.
    let first = m.as_member(
        "c1",
        &format!("cd $MNT/ws1/r && git update-index --refresh -q; {status}"),
    );
    assert_eq!(first.ok("git status"), "");
    m.ctl("handoff c1 c2");
    let (said, requests) = m.requests(|| m.as_member("c2", status));
    assert_eq!(said.ok("git status by c2"), "", "{requests:?}");
    let of = |op: &str| requests.get(op).copied().unwrap_or(0);
    // git opens its own index, HEAD, refs and config, and no tracked file of the 400.
    assert!(of("open") < 40, "tracked files were opened: {requests:?}");
    assert!(of("read") < 40, "tracked files were read: {requests:?}");
    println!("git status after the handoff: {requests:?}");
}

fn cargo_rebuilds_nothing(flavor: Flavor) {
    let m = Mount::new(flavor);
    m.allocate(&["c1"]);
    let lay = format!(
        "cd $MNT/ws1 && {} new -q --vcs none hello && cd hello && {} build -q --offline",
        cargo(),
        cargo()
    );
    m.as_member("c1", &lay).ok("cargo build by c1");
    m.ctl("handoff c1 c2");
    let again = format!("cd $MNT/ws1/hello && {} build -v --offline", cargo());
    let said = m.as_member("c2", &again);
    said.ok("cargo build by c2");
    assert!(said.stderr.contains("Fresh hello"), "{said}");
    assert!(!said.stderr.contains("Compiling"), "{said}");
    let changed = format!(
        "cd $MNT/ws1/hello && echo 'fn main() {{}}' > src/main.rs && {} build --offline",
        cargo()
    );
    let said = m.as_member("c2", &changed);
    said.ok("cargo build of a change by c2");
    assert!(said.stderr.contains("Compiling hello"), "{said}");
}

/// Writes a counter to two files, one kept open and one opened anew, a line every 20 ms.
const SERVER: &str = "
import os, sys, time
os.chdir(os.environ['MNT'] + '/ws1')
log = open('log', 'a', buffering=1)
n = 0
while True:
    n += 1
    try:
        log.write(f'{n}\\n')
        with open('state.new', 'w') as f: f.write(str(n))
        os.rename('state.new', 'state')
    except OSError as e:
        print(e, flush=True)
        sys.exit(1)
    time.sleep(0.02)
";

fn a_moved_dev_server_goes_on_writing(flavor: Flavor) {
    let m = Mount::new(flavor);
    m.allocate(&["c1"]);
    let mut one = Shell::member(&m, "c1");
    one.ok(&format!("python3 -c \"{SERVER}\" > /dev/null & server=$!"));
    let pid: u32 = one.ok("echo $server").parse().unwrap();
    let count = || {
        let state = std::fs::read_to_string(m.ws("ws1").join("state"));
        state.ok().and_then(|s| s.parse::<u64>().ok()).unwrap_or(0)
    };
    let limit = Duration::from_secs(30);
    eventually("the server writes", limit, || count() > 3);

    let refused = m.ctl_refused("handoff c1 c2", EBUSY, "handoff.busy");
    assert!(
        refused["message"]
            .as_str()
            .unwrap()
            .contains(&pid.to_string()),
        "{refused}"
    );
    let reply = m.ctl("handoff c1 c2 members=move");
    assert_eq!(reply["to"], "c2", "{reply}");
    assert!(!reply["moved"].is_null(), "{reply}");
    let then = count();
    eventually("the server goes on", limit, || count() > then + 10);
    let lines = crate::common::text(m.ws("ws1").join("log")).lines().count();
    eventually("the open log goes on", limit, || {
        crate::common::text(m.ws("ws1").join("log")).lines().count() > lines + 5
    });
    let procs = m.read(".panefs/windows/c2/procs");
    assert!(
        procs.split_whitespace().any(|p| p == pid.to_string()),
        "{procs:?}"
    );
    assert_eq!(m.read(".panefs/windows/c1/procs").trim(), "");
    // The shell is c2's too, and whom c2 hands off to without moving them is not theirs.
    one.ok("echo shell > $MNT/ws1/shell");
    one.ok("kill $server; wait $server 2>/dev/null; true");
    m.ctl("handoff c2 c3");
    one.refused("echo shell > $MNT/ws1/shell", "Read-only file system");
}

fn ended_members_are_gone(flavor: Flavor) {
    let m = Mount::new(flavor);
    m.allocate(&["c1"]);
    let mut one = Agent::member(&m, "c1");
    // A child that ignores TERM, holding a file open for writing.
    one.ok("child = subprocess.Popen(['bash', '-c', 'trap \"\" TERM; exec 3>$MNT/ws1/held; echo ready; while :; do sleep 1; done'], stdout=subprocess.PIPE)\n_ = child.stdout.readline()");
    let child = one.ok("child.pid").as_u64().unwrap();
    let bystander = Agent::guest(&m);
    let reply = m.finish(m.send("handoff c1 c2 members=end"));
    assert_eq!(reply.errno, 0, "{reply:?}");
    assert_eq!(reply.line()["to"], "c2", "{reply:?}");
    assert!(!reply.line()["ended"].is_null(), "{reply:?}");
    for pid in [u64::from(one.pid()), child] {
        eventually("a member ends", Duration::from_secs(10), || {
            // An ended child of the test is a zombie until it is waited for.
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
            stat.map_or(true, |s| s.contains(") Z"))
        });
    }
    assert!(std::path::Path::new(&format!("/proc/{}", bystander.pid())).exists());
    m.as_member("c2", "echo new > $MNT/ws1/held")
        .ok("c2 writes");
    assert_eq!(m.show("ws1")["holder"], "c2");
}

fn a_busy_workspace_is_not_handed_off(flavor: Flavor) {
    let m = Mount::new(flavor);
    m.allocate(&["c1"]);
    let mut one = Agent::member(&m, "c1");
    one.ok("os.mkdir(MNT + '/ws1/dir'); fd = os.open(MNT + '/ws1/dir/held', os.O_CREAT | os.O_WRONLY); os.write(fd, b'1')");
    let events = m.jsonl("events.jsonl").len();
    for command in ["handoff c1 c2", "handoff c1 c2 mode=refuse"] {
        let error = m.ctl_refused(command, EBUSY, "handoff.busy");
        let message = error["message"].as_str().unwrap();
        for part in [&one.pid().to_string()[..], "python3", "ws1/dir/held"] {
            assert!(
                message.contains(part),
                "the message should name {part}: {error}"
            );
        }
    }
    // Nothing happened.
    one.ok("os.write(fd, b'2'); write(MNT + '/ws1/other', 'x')");
    assert_eq!(m.show("ws1")["holder"], "c1");
    assert_eq!(m.jsonl("events.jsonl").len(), events);
    // Reading keeps nobody, nor does a working directory.
    one.ok("os.close(fd); fd = os.open(MNT + '/ws1/dir/held', os.O_RDONLY); os.chdir(MNT + '/ws1/dir')");
    m.ctl("handoff c1 c2");
    one.ok("assert os.read(fd, 9) == b'12'");
}

fn a_mapped_file_is_busy_after_its_close(flavor: Flavor) {
    let m = Mount::new(flavor);
    m.allocate(&["c1"]);
    let mut one = Agent::member(&m, "c1");
    one.ok("write(MNT + '/ws1/mapped', 'x' * 4096)");
    one.ok("fd = os.open(MNT + '/ws1/mapped', os.O_RDWR)\nmap = mmap.mmap(fd, 4096)\nos.close(fd)\nmap[0] = 65");
    let error = m.ctl_refused("handoff c1 c2", EBUSY, "handoff.busy");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("ws1/mapped"), "{error}");
    assert!(message.contains(&one.pid().to_string()), "{error}");
    one.ok("map[1] = 66\nmap.flush()\nmap.close()");
    let reply = m.finish(m.send("handoff c1 c2 mode=wait timeout=20s"));
    assert_eq!(reply.errno, 0, "{reply:?}");
    m.as_guest("cmp <(head -c2 $MNT/ws1/mapped) <(printf AB)")
        .ok("what was stored is there");
    m.as_member("c2", "echo c2 > $MNT/ws1/mapped")
        .ok("c2 writes");
}

fn a_handoff_can_wait(flavor: Flavor) {
    let m = Mount::new(flavor);
    m.allocate(&["c1"]);
    let mut one = Agent::member(&m, "c1");
    one.ok("fd = os.open(MNT + '/ws1/held', os.O_CREAT | os.O_WRONLY)");
    // In vain: all is as before.
    let begin = Instant::now();
    let reply = m.send("handoff c1 c2 mode=wait timeout=2s");
    assert!(
        begin.elapsed() < Duration::from_secs(2),
        "answered late: {reply:?}"
    );
    assert_eq!(reply.line()["state"], "running", "{reply:?}");
    // Meanwhile new opens for writing are refused, what is open goes on.
    one.refused(
        "sys_open(MNT + '/ws1/new', os.O_CREAT | os.O_WRONLY)",
        EROFS,
    );
    one.ok("os.write(fd, b'still ')");
    let reply = m.finish(reply);
    assert_refusal("wait in vain", &reply, ETIMEDOUT, "handoff.timeout");
    assert_eq!(m.show("ws1")["holder"], "c1");
    one.ok("os.write(fd, b'c1'); sys_open(MNT + '/ws1/new', os.O_CREAT | os.O_WRONLY)");

    // As soon as the last is closed.
    let reply = m.send("handoff c1 c2 mode=wait timeout=60s");
    assert_eq!(reply.line()["state"], "running", "{reply:?}");
    let job = reply.line()["job"].as_str().unwrap().to_owned();
    one.ok("os.write(fd, b'!'); os.close(fd)");
    let begin = Instant::now();
    let reply = m.finish(reply);
    assert!(
        begin.elapsed() < Duration::from_secs(20),
        "it waited on: {reply:?}"
    );
    assert_eq!(reply.errno, 0, "{reply:?}");
    let line = reply.line();
    assert_eq!(line["to"], "c2", "{line}");
    assert_eq!(line["state"], "done", "{line}");
    assert_eq!(line["job"], job.as_str(), "{line}");
    one.refused("sys_open(MNT + '/ws1/held', os.O_WRONLY)", EROFS);
    one.ok("assert read(MNT + '/ws1/held') == b'still c1!'");
    let log = m.jsonl(&format!("jobs/{job}"));
    assert_eq!(log.last().unwrap()["state"], "done", "{log:?}");

    // A wait that is not wanted any more.
    let mut two = Agent::member(&m, "c2");
    two.ok("fd = os.open(MNT + '/ws1/held', os.O_WRONLY)");
    let reply = m.send("handoff c2 c3 mode=wait timeout=600s");
    let job = reply.line()["job"].as_str().unwrap().to_owned();
    m.ctl(&format!("cancel {job}"));
    let reply = m.finish(m.send(&format!("wait {job}")));
    assert_ne!(reply.line()["state"], "done", "{reply:?}");
    two.ok("sys_open(MNT + '/ws1/held', os.O_WRONLY)");
    assert_eq!(m.show("ws1")["holder"], "c2");
}

fn from_inside_without_naming_the_next(flavor: Flavor) {
    let m = Mount::new(flavor);
    m.allocate(&["c1"]);
    let mut one = Shell::member(&m, "c1");
    one.ok("exec 3<>$MNT/.panefs/windows/c1/ctl");
    one.ok("echo 'handoff title=\"next task\"' >&3");
    let reply: Value = serde_json::from_str(&one.ok("head -n1 <&3")).expect("a reply line");
    assert_eq!(reply["from"], "c1", "{reply}");
    assert_eq!(reply["to"], "c2", "the next free number: {reply}");
    one.refused("echo no > $MNT/ws1/f", "Read-only file system");
    m.as_member("c2", "echo yes > $MNT/ws1/f").ok("c2 writes");
    assert_eq!(m.show("c2")["title"], "next task");
    // And naming the new window, through the root's file, as a member.
    let mut two = Shell::member(&m, "c2");
    two.ok("echo 'handoff c2 c7' > $MNT/.panefs/ctl");
    assert_eq!(m.show("ws1")["holder"], "c7");
}

fn repeated_it_says_the_same(flavor: Flavor) {
    let m = Mount::new(flavor);
    m.allocate(&["c1"]);
    let first = m.ctl("handoff c1 c2");
    let events = m.jsonl("events.jsonl").len();
    let again = m.ctl("handoff c1 c2");
    for field in ["from", "to", "workspace", "ref", "path"] {
        assert_eq!(again[field], first[field], "{again}");
    }
    assert_eq!(m.jsonl("events.jsonl").len(), events);
    // Also with c2's files open, and after c2 went on.
    let mut two = Agent::member(&m, "c2");
    two.ok("fd = os.open(MNT + '/ws1/f', os.O_CREAT | os.O_WRONLY)");
    m.ctl("handoff c1 c2");
    two.ok("os.write(fd, b'x'); os.close(fd)");
    m.ctl("handoff c2 c3");
    assert_eq!(m.ctl("handoff c1 c2")["to"], "c2");
    assert_eq!(m.show("ws1")["holder"], "c3");
}

fn only_the_holder_or_the_released_tail(flavor: Flavor) {
    let m = Mount::new(flavor);
    m.allocate(&["c1", "c9"]);
    m.ctl("handoff c1 c2");
    for command in ["handoff c1 c3", "handoff c1"] {
        let error = m.ctl_refused(command, EBUSY, "chain.not_holder");
        assert!(error["message"].as_str().unwrap().contains("c2"), "{error}");
    }
    m.ctl_refused("handoff c2 c9", EBUSY, "workspace.held");
    let released = m.ctl("release c2");
    assert_eq!(released["workspace"], "ws1", "{released}");
    assert_eq!(m.ctl("release c2")["state"], released["state"], "again");
    assert_eq!(m.show("ws1")["state"], "released");
    m.ctl_refused("handoff c1 c3", EBUSY, "chain.not_holder");
    let reply = m.ctl("handoff c2 c3");
    assert_eq!(reply["workspace"], "ws1", "{reply}");
    assert_eq!(m.show("c2")["state"], "continued");
    assert_eq!(m.show("ws1")["state"], "occupied");
    m.as_member("c3", "echo x > $MNT/ws1/f").ok("c3 writes");
    m.ctl_refused("allocate c2", ESTALE, "window.ended");
    assert_eq!(
        m.ctl("allocate c3")["workspace"],
        "ws1",
        "a continuation's own"
    );
}

fn one_moment_and_never_two_writers(flavor: Flavor) {
    // Both windows' members try all the time; each notes when its attempts began and ended.
    let m = Mount::new(flavor);
    m.allocate(&["c1"]);
    let lay = "
import time
seen, stop = [], False
def hammer():
    n = 0
    while not stop:
        n += 1
        begin = time.monotonic_ns()
        try:
            os.mkdir(f'{MNT}/ws1/{NAME}{n}')
            ok = True
        except OSError as e:
            assert e.errno == errno.EROFS, e
            ok = False
        seen.append((begin, time.monotonic_ns(), ok))
thread = threading.Thread(target=hammer)
thread.start()
";
    let mut agents: Vec<_> = (0..8).map(|_| Agent::guest(&m)).collect();
    for step in 1..8_u32 {
        let (from, to) = (format!("c{step}"), format!("c{}", step + 1));
        let (left, right) = agents.split_at_mut(step as usize);
        let (one, two) = (&mut left[step as usize - 1], &mut right[0]);
        if step == 1 {
            one.join("c1");
            one.ok(&format!("NAME = 'n1-'\n{lay}"));
        }
        // It is a guest until its window exists; the binding comes after the handoff.
        two.ok(&format!("NAME = 'n{}-'\n{lay}", step + 1));
        let code = format!(
            "begin = __import__('time').monotonic_ns()\nreply = ctl('handoff {from} {to}\\n')\n_ = [begin, __import__('time').monotonic_ns(), reply]"
        );
        let outcome = m.hand_ok(&code);
        assert_eq!(outcome[2][0], 0, "{outcome}");
        two.join(&to);
        let joined = two.ok("time.monotonic_ns()").as_u64().unwrap();
        let replied = outcome[1].as_u64().unwrap();
        eventually(
            "both tried after the handoff",
            Duration::from_secs(30),
            || {
                let tried = |agent: &mut Agent| agent.ok("seen[-1][0]").as_u64().unwrap();
                tried(one) > joined && tried(two) > joined
            },
        );
        let attempts = |agent: &mut Agent| -> Vec<(u64, u64, bool)> {
            serde_json::from_value(agent.ok("list(seen)")).unwrap()
        };
        let late = attempts(one).into_iter().find(|a| a.0 > replied && a.2);
        assert_eq!(
            late, None,
            "{from} changed something after the reply at {replied}"
        );
        let early = attempts(two)
            .into_iter()
            .find(|a| a.1 < outcome[0].as_u64().unwrap() && a.2);
        assert_eq!(early, None, "{to} changed something before the handoff");
        let refused = attempts(two).into_iter().find(|a| a.0 > joined && !a.2);
        assert_eq!(
            refused, None,
            "{to} was refused after it joined at {joined}"
        );
        one.ok("stop = True\nthread.join()");
        one.ok("seen.clear()");
        two.ok("seen.clear()");
    }
    agents[7].ok("stop = True\nthread.join()");
}
