//! There is one file behind one path: what the owner did, everybody sees at the next call.

use std::time::{Duration, Instant};

use crate::common::{Flavor, Mount, Shell, flavors, need, run};

flavors! {
    every_change_is_seen_at_the_next_call: passthrough, cached, ordinary;
    numbers_are_those_of_the_backing_file: passthrough, cached;
    refresh_reads_the_store_again: passthrough, cached;
    a_growing_log_is_followed: passthrough, cached;
    usage_is_what_is_there: passthrough, ordinary;
}

/// Rounds of seven changes each.
const ROUNDS: u32 = 10_000;

fn every_change_is_seen_at_the_next_call(flavor: Flavor) {
    need(&["python3"]);
    let m = Mount::new(flavor);
    m.allocate(&["c1"]);
    let view = m.view(None);
    // Who mounts makes no difference to what is cached: fewer do there.
    let rounds = if flavor.is_ordinary() {
        ROUNDS / 10
    } else {
        ROUNDS
    };
    let mut command = m.command("python3");
    command
        .env("PROCS", m.mnt().join(".panefs/windows/c1/procs"))
        .args(["-c", include_str!("coherence.py")])
        .arg(rounds.to_string())
        .args([m.ws("ws1"), m.ws("ws1"), view.join("ws1")]);
    let begin = Instant::now();
    let ended = run(command, Duration::from_secs(900));
    let said = ended.ok("what the owner did was not seen at once");
    assert_eq!(said, format!("done {rounds}"));
    println!("{rounds} rounds in {:.1?}", begin.elapsed());
}

fn numbers_are_those_of_the_backing_file(flavor: Flavor) {
    let m = Mount::new(flavor);
    m.allocate(&["c1"]);
    let script = "cd $MNT/ws1 && mkdir -p a/b && echo x > a/f && ln a/f a/g && ln -s f a/l \
                  && mkfifo a/p && truncate -s 1M a/sparse && touch -d 2001-02-03T04:05:06.789 a/f";
    m.as_member("c1", script).ok("lay the ground");
    let stat = "find . -printf '%p %i %n %s %b %y %m %T@ %C@ %l\\n' | sort";
    let through = |m: &Mount| {
        let said = m.as_guest(&format!("cd $MNT/ws1 && {stat}"));
        said.ok("find in the mount").to_owned()
    };
    let backing = m.as_guest(&format!("cd $STORE/workspaces/ws1 && {stat}"));
    let backing = backing.ok("find in the store").to_owned();
    assert_eq!(through(&m), backing);
    let d_ino = "import os, sys
for e in os.scandir(os.environ['MNT'] + '/ws1/a'):
    if e.inode() != e.stat(follow_symlinks=False).st_ino: sys.exit(e.name)
for d, _, _ in os.walk(os.environ['MNT'] + '/.panefs'):
    for e in os.scandir(d):
        s = e.stat(follow_symlinks=False).st_ino
        if e.inode() != s or not 2**52 < s < 2**53: sys.exit(f'{e.path} {e.inode()} {s}')
";
    m.as_guest(&format!("python3 -c \"{d_ino}\""))
        .ok("d_ino is st_ino, and synthetic numbers lie above 2^52");
    m.as_guest("sync; echo 2 > /proc/sys/vm/drop_caches")
        .ok("drop caches");
    assert_eq!(through(&m), backing, "after a cache drop");
    m.ctl("handoff c1 c2");
    assert_eq!(through(&m), backing, "after a handoff");
    m.unmount();
    m.mount();
    assert_eq!(through(&m), backing, "after a restart");
}

fn refresh_reads_the_store_again(flavor: Flavor) {
    let m = Mount::new(flavor);
    m.allocate(&["c1"]);
    m.as_member("c1", "echo one > $MNT/ws1/f; cat $MNT/ws1/f; ls $MNT/ws1")
        .ok("write");
    let behind = "cd $STORE/workspaces/ws1 && echo another > g && mv g f && echo new > h";
    m.as_guest(behind).ok("change behind the daemon's back");
    m.ctl("refresh ws1");
    let seen = m.as_guest("cd $MNT/ws1 && cat f h && ls");
    assert_eq!(seen.ok("read after refresh"), "another\nnew\nf\nh");
    m.as_member("c1", "echo more >> $MNT/ws1/f && echo more >> $MNT/ws1/h")
        .ok("write after refresh");
}

fn a_growing_log_is_followed(flavor: Flavor) {
    // tail polls here; events.jsonl must grow under its eyes, a workspace's file too.
    need(&["tail", "timeout"]);
    let m = Mount::new(flavor);
    m.allocate(&["c1"]);
    let mut owner = Shell::member(&m, "c1");
    owner.ok("echo first > $MNT/ws1/log");
    let mut other = Shell::new(&m);
    other.ok("exec 4< <(exec timeout 60 tail -n +1 -f -s 0.1 $MNT/ws1/log)");
    other.ok("read -r -t 30 line <&4; test \"$line\" = first");
    owner.ok("echo second >> $MNT/ws1/log");
    other.ok("read -r -t 30 line <&4; test \"$line\" = second");
    other.ok("exec 5< <(exec timeout 60 tail -n +1 -f -s 0.1 $MNT/.panefs/events.jsonl); tail=$!");
    m.ctl("allocate c9");
    m.ctl("allocate c10");
    other.ok("while read -r -t 30 line <&5; do case $line in *c10*) break;; esac; done; [[ $line == *c10* ]]");
    other.ok("kill $tail");
}

fn usage_is_what_is_there(flavor: Flavor) {
    let m = Mount::new(flavor);
    m.allocate(&["c1"]);
    let script = "cd $MNT/ws1 && mkdir a && seq 10000 > a/f && ln a/f a/g && ln -s f a/l && truncate -s 10M a/hole";
    m.as_member("c1", script).ok("lay the ground");
    // Blocks × 512 once per inode, and inodes, directories included.
    let truth =
        "find $MNT/ws1 -printf '%i %b\\n' | sort -u | awk '{ b += $2 * 512 } END { print b, NR }'";
    let truth = m.as_guest(truth);
    let truth = truth.ok("find").to_owned();
    crate::common::eventually("show says what is used", Duration::from_secs(30), || {
        let shown = m.show("ws1");
        format!("{} {}", shown["bytes"]["used"], shown["files"]["used"]) == truth
    });
    let quota = m.ctl("quota c1");
    let used = format!("{} {}", quota["bytes"]["used"], quota["files"]["used"]);
    assert_eq!(used, truth, "{quota}");
    assert_eq!(quota["bytes"]["limit"], serde_json::Value::Null, "{quota}");
}
