//! `handoff`: a new window becomes the holder, in one moment, with nobody writing across it.
//!
//! The moment: the gate closes, nobody counts as busy, the decision is committed, the gate judges
//! by it. All else is waiting for that moment, and what is told afterwards.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use crate::gate::{Gate, Writer};
use crate::model::{
    HandedOff, Handoff, Refusal, Role, Rule, Timestamp, WindowId, Workspace, handoff,
};
use crate::store::{BindingChange, Transaction};

use super::command::{HandoffMode, HandoffOrder, MembersDo};
use super::holders::{self, Holder};
use super::jobs::Job;
use super::reply::Reply;
use super::verbs::GRACE;
use super::{Control, Request, render};

/// How long a close(2) may take to reach the gate: it isn't waited for by the one who closes.
const CLOSE_TIME: Duration = Duration::from_millis(250);

/// How often it is looked whether files that are mapped have become quiet, at first and later.
const LOOK: Duration = Duration::from_millis(10);
const LOOK_LATER: Duration = Duration::from_millis(200);

/// How many holders a refusal names.
const NAMED: usize = 10;

/// What became of the attempt to hand off in this moment.
enum Attempt {
    Done(Reply),
    Busy(Vec<Writer>),
}

/// A gate that refuses new opens for writing while this lives.
struct Closing<'a>(Option<&'a Gate>);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        if let Some(gate) = self.0 {
            gate.set_closing(false);
        }
    }
}

impl HandoffOrder {
    fn decision_asked(&self) -> Handoff {
        Handoff {
            from: self.from,
            to: self.to,
            title: self.title.clone(),
            // What cA's processes hold open stays theirs when they become cB's.
            fresh_epoch: self.members != MembersDo::Move,
        }
    }
}

impl Control {
    pub(super) fn handoff(
        &self,
        request: &Request<'_>,
        order: HandoffOrder,
    ) -> Result<Reply, Refusal> {
        let asked = order.decision_asked();
        let planned = self.world(|world| handoff(world, &asked, Timestamp::now()))?;
        if planned.changes.is_empty() {
            return Ok(self.handed_off(&planned.answer, &[], &[], &[]));
        }
        match (order.mode, order.members) {
            (HandoffMode::Refuse, MembersDo::Keep | MembersDo::Move) => self.hand_off(&order, None),
            _ => {
                let from = order.from;
                self.as_job(request.line, Some(from), move |control, job| {
                    control.hand_off(&order, Some(job))
                })
            }
        }
    }

    /// Hands off as soon as nobody stands in the way, or refuses when the time is over.
    fn hand_off(&self, order: &HandoffOrder, job: Option<&Job>) -> Result<Reply, Refusal> {
        let from = order.from;
        let gate = self.world(|world| {
            let window = world.find_window(from)?;
            let gate = window.workspace.and_then(|id| self.gates.get(id));
            gate.ok_or_else(|| {
                Refusal::new(
                    Rule::WorkspaceNotFound,
                    format!("the workspace of {from} is not in the tree"),
                    "Restore it first, or allocate another window.",
                )
            })
        })?;
        let waits = order.mode == HandoffMode::Wait;
        let _closing = Closing(waits.then_some(&gate));
        let mut until = Instant::now() + if waits { order.timeout } else { CLOSE_TIME };
        let mut ended = None;
        let mut look = LOOK;
        loop {
            if waits {
                gate.set_closing(true);
            }
            let mut busy = self.busy(order, &gate, ended.is_some());
            if busy.is_empty() {
                if order.members == MembersDo::End && ended.is_none() {
                    ended = Some(render::ids(&self.members.end_members(from, GRACE)));
                    until = until.max(Instant::now() + CLOSE_TIME);
                    continue;
                }
                match self.attempt(order, &gate, ended.as_deref())? {
                    Attempt::Done(reply) => return Ok(reply),
                    Attempt::Busy(writers) => busy = writers,
                }
            }
            let cancelled = job.is_some_and(Job::is_cancelled);
            if cancelled || Instant::now() >= until {
                return Err(self.busy_refusal(order, &busy, cancelled));
            }
            if let (Some(job), [first, ..]) = (job, &busy[..]) {
                job.say_once(format!(
                    "waiting for {} file(s) to be closed, first {}",
                    busy.len(),
                    self.in_mount(&first.file.path())
                ));
            }
            gate.wait_released(until.min(Instant::now() + look));
            look = (look * 2).min(LOOK_LATER);
        }
    }

    /// The moment itself.
    fn attempt(
        &self,
        order: &HandoffOrder,
        gate: &Gate,
        ended: Option<&[u32]>,
    ) -> Result<Attempt, Refusal> {
        let from = order.from;
        let moves = order.members == MembersDo::Move;
        let moved = match moves {
            true => render::ids(&self.members.members_of(from)),
            false => Vec::new(),
        };
        let mut closed = gate.close();
        let busy = self.busy(order, gate, ended.is_some());
        if !busy.is_empty() {
            return Ok(Attempt::Busy(busy));
        }
        let deciding = self.decide();
        let asked = order.decision_asked();
        let decision = self.world(|world| handoff(world, &asked, Timestamp::now()))?;
        let answer = decision.answer;
        let to = answer.to;
        deciding.commit(Transaction {
            changes: decision.changes,
            events: decision.events,
            bindings: match moves {
                true => vec![BindingChange::Move { from, to }],
                false => Vec::new(),
            },
            ..Transaction::default()
        })?;
        if moves {
            self.members.move_window(from, to);
        }
        self.reopen(Some(&mut closed), Some(answer.workspace));
        drop((closed, deciding));
        // The tree may wait for processes that wait for the gate, so it is told only now.
        self.tree(|tree| {
            if moves {
                tree.moved(from, to);
            }
            tree.windows_changed();
        });
        let operators = self.operators_open(gate);
        Ok(Attempt::Done(self.handed_off(
            &answer,
            &moved,
            ended.unwrap_or_default(),
            &operators,
        )))
    }

    fn handed_off(
        &self,
        answer: &HandedOff,
        moved: &[u32],
        ended: &[u32],
        operators: &[Holder],
    ) -> Reply {
        let fenced: [&str; 0] = [];
        let path = self.world(|world| {
            let workspace: Option<&Workspace> = world.workspace(answer.workspace);
            workspace.map(|workspace| self.path_of(workspace))
        });
        Reply::ok()
            .with("from", answer.from)
            .with("to", answer.to)
            .with("workspace", answer.workspace)
            .with("ref", answer.reference)
            .with("path", path)
            .with("fenced", fenced)
            .with("moved", moved)
            .with("ended", ended)
            .with("operators_open", operators)
    }

    /// Who stands in the way: whatever is open for writing on behalf of the holder, or mapped.
    /// An operator's files don't; nor do those that only members hold who will move or end.
    fn busy(&self, order: &HandoffOrder, gate: &Gate, ended: bool) -> Vec<Writer> {
        let mut writers = gate.writers();
        writers.retain(|writer| writer.pass.role != Role::Operator);
        if writers.is_empty() || order.members == MembersDo::Keep || ended {
            return writers;
        }
        let holders = self.holders_of(&writers);
        let stays = |pid: u32| self.members.who(pid).role != Role::Member(order.from);
        writers.retain(|writer| {
            let ino = writer.file.ino();
            let mut known = holders.iter().filter(|holder| holder.ino == ino).peekable();
            match known.peek() {
                Some(_) => known.any(|holder| stays(holder.pid)),
                None => stays(writer.pass.pid),
            }
        });
        writers
    }

    fn holders_of(&self, writers: &[Writer]) -> Vec<Holder> {
        let inodes: HashSet<_> = writers.iter().map(|writer| writer.file.ino()).collect();
        if inodes.is_empty() {
            return Vec::new();
        }
        let mut mounts = vec![self.options.mount.clone()];
        self.tree(|tree| mounts.extend(tree.views().into_iter().map(|(dir, _)| dir)));
        holders::find(&inodes, &mounts)
    }

    /// Who holds these files now; where that can't be found, who opened them.
    fn named_holders(&self, writers: &[Writer]) -> Vec<Holder> {
        let found = self.holders_of(writers);
        let mut named = Vec::new();
        for writer in writers {
            let ino = writer.file.ino();
            let before = named.len();
            named.extend(found.iter().filter(|holder| holder.ino == ino).cloned());
            if named.len() == before {
                named.push(Holder {
                    pid: writer.pass.pid,
                    command: holders::command(writer.pass.pid),
                    path: self.in_mount(&writer.file.path()),
                    ino,
                });
            }
        }
        named.sort_by(|a, b| (a.pid, &a.path).cmp(&(b.pid, &b.path)));
        named.dedup_by(|a, b| (a.pid, &a.path) == (b.pid, &b.path));
        named
    }

    fn operators_open(&self, gate: &Gate) -> Vec<Holder> {
        let mut writers = gate.writers();
        writers.retain(|writer| writer.pass.role == Role::Operator);
        self.named_holders(&writers)
    }

    fn busy_refusal(&self, order: &HandoffOrder, busy: &[Writer], cancelled: bool) -> Refusal {
        let holders = self.named_holders(busy);
        let holding = match &holders[..] {
            [] => "a file is held open for writing".to_owned(),
            [first, others @ ..] => {
                let more = match others.len() {
                    0 => String::new(),
                    n => format!(", and {n} more are held"),
                };
                format!(
                    "pid {} ({}) holds {} open for writing{more}",
                    first.pid, first.command, first.path
                )
            }
        };
        let from: WindowId = order.from;
        let refusal = match order.mode {
            HandoffMode::Refuse => Refusal::new(
                Rule::HandoffBusy,
                holding,
                "Close it or end that process, or give mode=wait to hand off when it is closed.",
            ),
            HandoffMode::Wait => Refusal::new(
                Rule::HandoffTimeout,
                match cancelled {
                    true => format!("the handoff of {from} was cancelled; {holding}"),
                    false => format!("the time is over and {holding}"),
                },
                format!("Close it or end that process; {from} is the holder as before."),
            ),
        };
        let first = holders.first();
        refusal
            .with("window", from.to_string())
            .with("pid", first.map(|holder| holder.pid))
            .with("command", first.map(|holder| holder.command.clone()))
            .with("path", first.map(|holder| holder.path.clone()))
            .with(
                "holders",
                serde_json::to_value(&holders[..holders.len().min(NAMED)]).unwrap_or_default(),
            )
    }
}
