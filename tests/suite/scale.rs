//! Many windows: no request more, no longer wait, and no more memory than they are worth.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::common::{Flavor, Mount, flavors};

flavors! {
    all_allocate_at_once: passthrough, ordinary;
    a_thousand_windows_cost_no_more_than_ten: passthrough, cached;
    idle_windows_take_little_memory: passthrough;
}

fn all_allocate_at_once(flavor: Flavor) {
    let m = Mount::new(flavor);
    const GUESTS: usize = 64;
    // By the command line, and at a starting shot: a directory that they wait for.
    let script = format!(
        "for i in $(seq {GUESTS}); do ( until [ -e go ]; do :; done; \
         \"$PANEFS\" allocate --json > out.$i 2> err.$i || echo failed >> err.$i ) & done; \
         mkdir go; wait; cat err.*; cat out.*"
    );
    let ended = m.as_guest(&script);
    let lines: Vec<serde_json::Value> = ended
        .ok("allocate")
        .lines()
        .map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e}: {l}")))
        .collect();
    let numbers = |field: &str, prefix: &str| {
        let mut all: Vec<u32> = lines
            .iter()
            .map(|l| l[field].as_str().unwrap().strip_prefix(prefix).unwrap())
            .map(|n| n.parse().unwrap())
            .collect();
        all.sort_unstable();
        all
    };
    let expected: Vec<u32> = (1..=GUESTS as u32).collect();
    assert_eq!(numbers("window", "c"), expected, "no gap, none twice");
    assert_eq!(numbers("workspace", "ws"), expected, "no gap, none twice");
    assert_eq!(m.jsonl("windows.jsonl").len(), GUESTS);
}

/// Allocates these windows, many in one write.
fn allocate(m: &Mount, from: u32, to: u32) {
    let commands: String = (from..=to).map(|n| format!("allocate c{n}\n")).collect();
    // A write takes 64 KiB, and as many commands as a second allows; the next takes the rest.
    let mut rest = commands.as_bytes();
    while !rest.is_empty() {
        let reply = m.send_to("ctl", rest);
        assert_eq!(reply.errno, 0, "{:?}", reply.lines.last());
        rest = &rest[reply.taken..];
    }
}

/// The daemon's resident memory in KiB, and the part of it that is its own.
fn memory(m: &Mount) -> u64 {
    let pid = m.daemon().expect("a daemon");
    let status = crate::common::text(format!("/proc/{pid}/status"));
    let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:"));
    line.and_then(|l| l.split_whitespace().next()?.parse().ok())
        .expect("RssAnon in kB")
}

/// The middle of many runs.
fn p50(mut runs: Vec<Duration>) -> Duration {
    runs.sort_unstable();
    runs[runs.len() / 2]
}

struct Figures {
    lookup: BTreeMap<String, u64>,
    handoff: BTreeMap<String, u64>,
}

/// Request counts of a lookup of a new name and of a handoff.
fn requests(m: &Mount, tail: &mut u32) -> Figures {
    let miss = format!("ws1/no-such-name-{tail}");
    let (_, lookup) = m.requests(|| std::fs::metadata(m.mnt().join(&miss)).is_ok());
    // The tails of the small and the big mount are both allocated before.
    let command = format!("handoff c{tail} c{}", *tail + 1);
    let (_, handoff) = m.requests(|| m.ctl(&command));
    *tail += 1;
    Figures { lookup, handoff }
}

fn a_thousand_windows_cost_no_more_than_ten(flavor: Flavor) {
    // Two mounts side by side, so that whatever the machine does it does to both.
    let big = Mount::alone(flavor);
    let small = Mount::beside(flavor, &big);
    let time = |m: &Mount, command: &str| {
        let begin = Instant::now();
        m.ctl(command);
        begin.elapsed()
    };
    allocate(&small, 1, 10);
    allocate(&big, 1, 1000);

    // 100 chains of 10: the first hundred windows go through nine handoffs each.
    for link in 0..9_u32 {
        for chain in 1..=100_u32 {
            let from = if link == 0 {
                chain
            } else {
                1000 + (link - 1) * 100 + chain
            };
            big.ctl(&format!("handoff c{from} c{}", 1000 + link * 100 + chain));
        }
    }
    assert_eq!(big.jsonl("windows.jsonl").len(), 1900);
    assert_eq!(big.jsonl("workspaces.jsonl").len(), 1000);
    assert_eq!(big.show("ws1")["chain"].as_array().unwrap().len(), 10);

    // The same requests.
    let (mut small_tail, mut big_tail) = (5000, 5000);
    small.ctl("allocate c5000");
    big.ctl("allocate c5000");
    let (few, many) = (
        requests(&small, &mut small_tail),
        requests(&big, &mut big_tail),
    );
    println!("lookup: {:?}; handoff: {:?}", few.lookup, few.handoff);
    assert_eq!(many.lookup, few.lookup, "requests of a lookup");
    assert_eq!(many.handoff, few.handoff, "requests of a handoff");

    // And the same time, in pairs, so that noise meets both; the best of three tries counts.
    const RUNS: u32 = 200;
    let mut last = String::new();
    let fair = (0..3).any(|_| {
        let mut handoffs = (Vec::new(), Vec::new());
        let mut lookups = (Vec::new(), Vec::new());
        for run in 0..RUNS {
            let command = |tail: u32| format!("handoff c{tail} c{}", tail + 1);
            let missing = |m: &Mount| {
                let path = m.mnt().join(format!("ws1/missing-{small_tail}-{run}"));
                let begin = Instant::now();
                let _ = std::fs::metadata(path);
                begin.elapsed()
            };
            // Who is first takes turns.
            if run % 2 == 0 {
                handoffs.0.push(time(&small, &command(small_tail)));
                handoffs.1.push(time(&big, &command(big_tail)));
                lookups.0.push(missing(&small));
                lookups.1.push(missing(&big));
            } else {
                handoffs.1.push(time(&big, &command(big_tail)));
                handoffs.0.push(time(&small, &command(small_tail)));
                lookups.1.push(missing(&big));
                lookups.0.push(missing(&small));
            }
            small_tail += 1;
            big_tail += 1;
        }
        let handoffs = (p50(handoffs.0), p50(handoffs.1));
        let lookups = (p50(lookups.0), p50(lookups.1));
        last = format!(
            "p50 of {RUNS}, 10 windows against 1,900: handoff {:?} {:?}, lookup {:?} {:?}",
            handoffs.0, handoffs.1, lookups.0, lookups.1
        );
        println!("{last}");
        let ratio = |(few, many): (Duration, Duration)| many.as_secs_f64() / few.as_secs_f64();
        ratio(handoffs) <= 1.5 && ratio(lookups) <= 1.5
    });
    assert!(
        fair,
        "more than 1.5 times as long with many windows: {last}"
    );

    // Listings are linear: a window of a thousand costs no more than some of ten.
    let listing = |m: &Mount, what: &dyn Fn(&Mount)| {
        let runs = (0..15).map(|_| {
            let begin = Instant::now();
            what(m);
            begin.elapsed()
        });
        p50(runs.collect())
    };
    let ls_mnt = |m: &Mount| assert!(std::fs::read_dir(m.mnt()).unwrap().count() > 10);
    let ls_panefs = |m: &Mount| assert!(m.cli(&["ls"]).ok("panefs ls").len() > 10);
    let (few, many) = (listing(&small, &ls_mnt), listing(&big, &ls_mnt));
    println!("ls MNT: 11 workspaces {few:?}, 1,001 {many:?}");
    assert!(
        many < few * 300 + Duration::from_millis(50),
        "ls MNT: {few:?} {many:?}"
    );
    let (few, many) = (listing(&small, &ls_panefs), listing(&big, &ls_panefs));
    println!("panefs ls: few windows {few:?}, 1,001 workspaces {many:?}");
    assert!(
        many < few * 200 + Duration::from_millis(500),
        "panefs ls: {few:?} {many:?}"
    );
    let listed = std::fs::read_dir(big.mnt()).unwrap().count();
    assert_eq!(listed, 1001 + 3, "ws*, .panefs, self and cwd");
}

fn idle_windows_take_little_memory(flavor: Flavor) {
    let m = Mount::alone(flavor);
    let begin = memory(&m);
    allocate(&m, 1, 4000);
    // What a mount needs once (the registry's page cache, say) is there by now; four thousand more
    // show what a window takes.
    let begun = memory(&m);
    allocate(&m, 4001, 8000);
    let more = memory(&m).saturating_sub(begun) / 4;
    println!(
        "KiB: {begin} empty, {begun} with 4,000 windows, {more} more for each thousand after that"
    );
    assert!(more < 1024, "1,000 idle windows take {more} KiB");
}
