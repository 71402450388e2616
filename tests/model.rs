//! A random walk of the transitions beside a reference that is written from the other end.
//!
//! The reference knows no windows and no states: only chains, each a list of window numbers and
//! what became of the directory. Everything else follows from the place in the list. After each
//! command both must answer the same, refuse by the same rule, and show the same tree.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::time::Duration;

use panefs::model::{
    Activity, Allocate, Changes, Decision, Expire, Handoff, Owner, Quota, Reclaim, Refusal, Target,
    Timestamp, WindowId, WorkspaceId, WorkspaceRef, World, allocate, expire, handoff, purge,
    reclaim, release, restore,
};
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Step {
    Allocate(Option<u32>, bool),
    Handoff {
        from: u32,
        to: Option<u32>,
        fresh: bool,
    },
    Release(u32),
    Reclaim {
        window: bool,
        number: u32,
        force: bool,
        purge: bool,
    },
    Restore(u32),
    Purge(u32),
    Expire {
        older: Option<i64>,
        idle: Option<i64>,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let number = || 1..9u32;
    let step = prop_oneof![
        4 => (prop::option::of(number()), prop::bool::weighted(0.2))
            .prop_map(|(window, keep)| Step::Allocate(window, keep)),
        4 => (number(), prop::option::of(number()), any::<bool>())
            .prop_map(|(from, to, fresh)| Step::Handoff { from, to, fresh }),
        3 => number().prop_map(Step::Release),
        3 => (any::<bool>(), number(), any::<bool>(), prop::bool::weighted(0.2))
            .prop_map(|(window, number, force, purge)| {
                Step::Reclaim { window, number, force, purge }
            }),
        2 => number().prop_map(Step::Restore),
        1 => number().prop_map(Step::Purge),
        1 => (prop::option::of(0..20i64), prop::option::of(0..20i64))
            .prop_map(|(older, idle)| Step::Expire { older, idle }),
    ];
    prop::collection::vec(step, 1..50)
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Life {
    Held,
    Kept { since: i64 },
    Trash,
    Gone,
}

#[derive(Debug, Clone)]
struct Chain {
    number: u32,
    windows: Vec<u32>,
    opened: Vec<i64>,
    life: Life,
    sweeps_spare_it: bool,
}

#[derive(Default)]
struct Reference {
    chains: Vec<Chain>,
}

type Outcome = Result<String, &'static str>;

impl Reference {
    fn place(&self, window: u32) -> Option<(usize, usize)> {
        self.chains.iter().enumerate().find_map(|(c, chain)| {
            let w = chain.windows.iter().position(|w| *w == window)?;
            Some((c, w))
        })
    }

    fn chain(&mut self, number: u32) -> Result<&mut Chain, &'static str> {
        let chain = self.chains.iter_mut().find(|c| c.number == number);
        chain.ok_or("workspace.not_found")
    }

    fn next(&self) -> u32 {
        let all = self.chains.iter().flat_map(|c| &c.windows);
        all.max().map_or(1, |n| n + 1)
    }

    fn take(&mut self, step: &Step, now: i64) -> Outcome {
        match *step {
            Step::Allocate(window, keep) => {
                let window = window.unwrap_or_else(|| self.next());
                if let Some((c, w)) = self.place(window) {
                    let chain = &self.chains[c];
                    let holds = chain.life == Life::Held && w + 1 == chain.windows.len();
                    let answer = format!("c{window} ws{} false", chain.number);
                    return if holds {
                        Ok(answer)
                    } else {
                        Err("window.ended")
                    };
                }
                let used = self.chains.iter().map(|c| c.number).max().unwrap_or(0);
                let number = (used + 1).max(window);
                self.chains.push(Chain {
                    number,
                    windows: vec![window],
                    opened: vec![now],
                    life: Life::Held,
                    sweeps_spare_it: keep,
                });
                Ok(format!("c{window} ws{number} true"))
            }
            Step::Handoff { from, to, .. } => {
                let (c, w) = self.place(from).ok_or("window.not_found")?;
                let chain = &self.chains[c];
                if let Some(next) = chain.windows.get(w + 1) {
                    return if to == Some(*next) {
                        Ok(format!("c{from} c{next} ws{} true", chain.number))
                    } else {
                        Err("chain.not_holder")
                    };
                }
                if matches!(chain.life, Life::Trash | Life::Gone) {
                    return Err("workspace.ref.expired");
                }
                let to = to.unwrap_or_else(|| self.next());
                if let Some((c, w)) = self.place(to) {
                    let other = &self.chains[c];
                    let holds = other.life == Life::Held && w + 1 == other.windows.len();
                    return Err(if holds {
                        "workspace.held"
                    } else {
                        "window.ended"
                    });
                }
                let chain = &mut self.chains[c];
                chain.windows.push(to);
                chain.opened.push(now);
                chain.life = Life::Held;
                Ok(format!("c{from} c{to} ws{} false", chain.number))
            }
            Step::Release(window) => {
                let (c, w) = self.place(window).ok_or("window.not_found")?;
                let chain = &mut self.chains[c];
                if w + 1 < chain.windows.len() {
                    return Err("window.ended");
                }
                if chain.life == Life::Held {
                    chain.life = Life::Kept { since: now };
                }
                Ok(format!("c{window} ws{}", chain.number))
            }
            Step::Reclaim {
                window,
                number,
                force,
                purge,
            } => {
                let number = if window {
                    let (c, _) = self.place(number).ok_or("window.not_found")?;
                    self.chains[c].number
                } else {
                    number
                };
                let chain = self.chain(number)?;
                let before = chain.life;
                if before == Life::Held && !force {
                    return Err("workspace.held");
                }
                if purge {
                    chain.life = Life::Gone;
                } else if before != Life::Gone {
                    chain.life = Life::Trash;
                }
                let ended = match (before, chain.windows.last()) {
                    (Life::Held, Some(last)) => format!("c{last}"),
                    _ => "-".to_owned(),
                };
                let repeated = matches!(before, Life::Trash | Life::Gone);
                Ok(format!("ws{number} {ended} {repeated}"))
            }
            Step::Restore(number) => {
                let chain = self.chain(number)?;
                match chain.life {
                    Life::Held => return Err("workspace.held"),
                    Life::Gone => return Err("workspace.ref.expired"),
                    Life::Kept { .. } => {}
                    Life::Trash => chain.life = Life::Kept { since: now },
                }
                Ok(format!("ws{number}"))
            }
            Step::Purge(number) => {
                let chain = self.chain(number)?;
                if matches!(chain.life, Life::Held | Life::Kept { .. }) {
                    return Err("workspace.held");
                }
                chain.life = Life::Gone;
                Ok(format!("ws{number}"))
            }
            Step::Expire { older, idle } => {
                let mut old: Vec<u32> = Vec::new();
                let mut still: Vec<u32> = Vec::new();
                for chain in self.chains.iter().filter(|c| !c.sweeps_spare_it) {
                    let opened = chain.opened.last().copied().unwrap_or(0);
                    let last = chain.windows.last().copied().unwrap_or(0);
                    match chain.life {
                        Life::Kept { since } if older.is_some_and(|o| now - since >= o) => {
                            old.push(chain.number);
                        }
                        // Even windows have members in this walk.
                        Life::Held if idle.is_some_and(|i| now - opened >= i) && last % 2 == 1 => {
                            still.push(last);
                        }
                        _ => {}
                    }
                }
                old.sort_unstable();
                still.sort_unstable();
                Ok(format!("{old:?} {still:?}"))
            }
        }
    }

    /// The tree as text, one line a window and one a workspace.
    fn show(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for chain in &self.chains {
            for (place, window) in chain.windows.iter().enumerate() {
                let next = chain.windows.get(place + 1);
                let state = match (next, chain.life) {
                    (Some(_), _) => "continued",
                    (None, Life::Held) => "live",
                    (None, _) => "released",
                };
                let before = place.checked_sub(1).map(|p| chain.windows[p]);
                lines.push(format!(
                    "c{window} ws{} {state} {before:?} {next:?}",
                    chain.number
                ));
            }
            let (state, holder) = match chain.life {
                Life::Held => ("occupied", chain.windows.last()),
                Life::Kept { .. } => ("released", None),
                Life::Trash => ("reclaimed", None),
                Life::Gone => ("reclaimed purged", None),
            };
            lines.push(format!(
                "ws{} {state} {holder:?} {:?}",
                chain.number, chain.windows
            ));
        }
        lines.sort();
        lines
    }
}

fn show(world: &World) -> Vec<String> {
    let mut lines = Vec::new();
    for w in world.windows() {
        lines.push(format!(
            "{} {} {} {:?} {:?}",
            w.id,
            w.workspace.map_or("-".to_owned(), |id| id.to_string()),
            w.state.as_str(),
            w.continues.map(WindowId::number),
            w.continued_by.map(WindowId::number),
        ));
        assert_eq!(w.ended_at.is_some(), w.state.as_str() != "live", "{w:?}");
    }
    for w in world.workspaces() {
        let purged = if w.purged { " purged" } else { "" };
        let chain: Vec<u32> = w.chain.iter().map(|id| id.number()).collect();
        lines.push(format!(
            "{} {}{purged} {:?} {chain:?}",
            w.id,
            w.state.as_str(),
            w.holder.map(WindowId::number),
        ));
        assert_eq!(w.reclaimed_at.is_some(), !w.in_tree(), "{w:?}");
        assert_eq!(w.released_at.is_none(), w.holder.is_some(), "{w:?}");
    }
    lines.sort();
    lines
}

fn window(number: u32) -> WindowId {
    WindowId::new(number).unwrap()
}

fn workspace(number: u32) -> WorkspaceRef {
    WorkspaceRef {
        workspace: WorkspaceId::new(number).unwrap(),
        occupation: None,
    }
}

/// Applies a decision, after looking at what every decision must be.
fn follow<T>(world: &mut World, decision: Decision<T>, stale: bool) -> T {
    let Decision {
        changes,
        events,
        answer,
    } = decision;
    assert_eq!(
        changes.is_empty(),
        events.is_empty(),
        "no change untold, nothing told of none"
    );
    let told = |id: String| {
        events
            .iter()
            .any(|e| e.fields.values().any(|v| v.as_str() == Some(id.as_str())))
    };
    for row in &changes.windows {
        assert!(told(row.id.to_string()), "{row:?} in {events:?}");
        let listed = events.iter().any(|e| e.windows.contains(&row.id));
        assert!(listed, "{row:?} in {events:?}");
    }
    for row in &changes.workspaces {
        assert!(told(row.id.to_string()), "{row:?} in {events:?}");
        let Some(before) = world.workspace(row.id) else {
            continue;
        };
        assert!(row.epoch >= before.epoch);
        let writers = |w: &panefs::model::Workspace| (w.holder, w.in_tree());
        if writers(before) != writers(row) && stale {
            assert!(row.epoch > before.epoch, "{before:?} then {row:?}");
        }
    }
    let before = (world.highest_window, world.highest_workspace);
    world.apply(&changes);
    assert!(before <= (world.highest_window, world.highest_workspace));
    answer
}

fn check(refusal: &Refusal) -> &'static str {
    assert!(!refusal.message.is_empty());
    assert!(
        refusal.next_action.ends_with('.'),
        "{}",
        refusal.next_action
    );
    refusal.rule.as_str()
}

fn take(world: &mut World, step: &Step, now: i64) -> Outcome {
    let at = Timestamp::from_millis(now * 1000);
    let seconds = |n: i64| Duration::from_secs(n.unsigned_abs());
    let outcome = match *step {
        Step::Allocate(number, keep) => {
            let command = Allocate {
                window: number.map(window),
                title: None,
                owner: Owner { uid: 1, gid: 2 },
                quota: Quota::default(),
                keep,
            };
            allocate(world, &command, at).map(|decision| {
                let a = follow(world, decision, true);
                assert_eq!(a.reference.workspace, a.workspace);
                format!("{} {} {}", a.window, a.workspace, a.created)
            })
        }
        Step::Handoff { from, to, fresh } => {
            let command = Handoff {
                from: window(from),
                to: to.map(window),
                title: None,
                fresh_epoch: fresh,
            };
            handoff(world, &command, at).map(|decision| {
                let a = follow(world, decision, fresh);
                format!("{} {} {} {}", a.from, a.to, a.workspace, a.repeated)
            })
        }
        Step::Release(number) => release(world, window(number), at).map(|decision| {
            let a = follow(world, decision, true);
            format!("{} {}", a.window, a.workspace.unwrap())
        }),
        Step::Reclaim {
            window: by_window,
            number,
            force,
            purge,
        } => {
            let target = if by_window {
                Target::Window(window(number))
            } else {
                Target::Workspace(workspace(number))
            };
            reclaim(
                world,
                &Reclaim {
                    target,
                    force,
                    purge,
                },
                at,
            )
            .map(|decision| {
                let a = follow(world, decision, true);
                let ended = a.ended.map_or("-".to_owned(), |id| id.to_string());
                format!("{} {ended} {}", a.workspace, a.repeated)
            })
        }
        Step::Restore(number) => restore(world, workspace(number), at)
            .map(|decision| follow(world, decision, true).workspace.to_string()),
        Step::Purge(number) => purge(world, workspace(number), at)
            .map(|decision| follow(world, decision, true).workspace.to_string()),
        Step::Expire { older, idle } => {
            let command = Expire {
                older_than: older.map(seconds),
                idle: idle.map(seconds),
                activity: &|window| match window.id.number() % 2 {
                    0 => Activity::Busy,
                    _ => Activity::Unknown,
                },
            };
            let found = expire(world, &command, at);
            let old: Vec<u32> = found.workspaces.iter().map(|id| id.number()).collect();
            let still: Vec<u32> = found.windows.iter().map(|id| id.number()).collect();
            Ok(format!("{old:?} {still:?}"))
        }
    };
    outcome.map_err(|refusal| check(&refusal))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn transitions_agree_with_the_reference(steps in steps()) {
        let mut world = World::default();
        let mut reference = Reference::default();
        for (step, now) in steps.iter().zip(1..) {
            let before = world.clone();
            let wanted = reference.take(step, now);
            let got = take(&mut world, step, now);
            prop_assert_eq!(&got, &wanted, "{:?}", step);
            if got.is_err() {
                prop_assert_eq!(&before, &world, "a refused command changes nothing");
            }
            prop_assert_eq!(show(&world), reference.show(), "after {:?}", step);
        }
    }
}

#[test]
fn a_refusal_names_who_holds_on_and_what_to_do() {
    let mut world = World::default();
    for (step, now) in [
        Step::Allocate(Some(7), false),
        Step::Handoff {
            from: 7,
            to: Some(9),
            fresh: true,
        },
    ]
    .iter()
    .zip(1..)
    {
        take(&mut world, step, now).unwrap();
    }
    let at = Timestamp::from_millis(9000);
    let mut command = Allocate {
        window: Some(window(7)),
        title: None,
        owner: Owner { uid: 0, gid: 0 },
        quota: Quota::default(),
        keep: false,
    };
    let refusal = allocate(&world, &command, at).unwrap_err();
    assert_eq!(refusal.rule.as_str(), "window.ended");
    assert_eq!(refusal.fields["holder"], "c9");
    assert_eq!(refusal.fields["workspace"], "ws7");

    // One slip doesn't use up the numbers.
    command.window = Some(window(999_999_999));
    let refusal = allocate(&world, &command, at).unwrap_err();
    assert_eq!(refusal.rule.as_str(), "argument.invalid", "{refusal}");

    let again = Handoff {
        from: window(7),
        to: None,
        title: None,
        fresh_epoch: true,
    };
    let refusal = handoff(&world, &again, at).unwrap_err();
    assert_eq!(refusal.rule.as_str(), "chain.not_holder");
    assert_eq!(refusal.fields["holder"], "c9");
}

#[test]
fn an_occupation_that_is_over_is_told_from_one_that_never_was() {
    let mut world = World::default();
    take(&mut world, &Step::Allocate(Some(1), false), 1).unwrap();
    let mut row = world
        .workspace(WorkspaceId::new(1).unwrap())
        .unwrap()
        .clone();
    row.occupation = Some(2);
    world.apply(&Changes {
        windows: Vec::new(),
        workspaces: vec![row],
    });
    let rule = |text: &str| {
        let found = panefs::model::resolve_workspace(&world, text.parse().unwrap());
        found
            .map(|w| w.current_ref().to_string())
            .map_err(|r| r.rule.as_str())
    };
    assert_eq!(rule("ws1"), Ok("ws1.2".to_owned()));
    assert_eq!(rule("ws1.2"), Ok("ws1.2".to_owned()));
    assert_eq!(rule("c1"), Ok("ws1.2".to_owned()));
    assert_eq!(rule("ws1.1"), Err("workspace.ref.expired"));
    assert_eq!(rule("ws1.3"), Err("workspace.not_found"));
    assert_eq!(rule("ws2"), Err("workspace.not_found"));
    assert_eq!(rule("c2"), Err("window.not_found"));
    for (text, wanted) in [("c0", "window.ref.invalid"), ("x", "workspace.ref.unknown")] {
        assert_eq!(text.parse::<Target>().unwrap_err().rule.as_str(), wanted);
    }
}
