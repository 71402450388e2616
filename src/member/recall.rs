//! Answers that were given, by thread, while those on whom they rest may still live.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;

use super::rules::Standing;
use super::task::Task;

/// The most threads that are remembered.
const THREADS: usize = 4096;

#[derive(Debug)]
pub(super) struct Answer {
    /// Of the bindings.
    pub version: u64,
    /// The very thread or process is bound: the control group isn't asked.
    pub own: bool,
    /// None where only the control group has been asked so far.
    pub standing: Option<Standing>,
    /// The session in which alone it counts.
    pub session: Option<u32>,
    pub pid: u32,
    pub start: u64,
    pub parent: u32,
    /// The thread itself, then everybody else whose end makes the answer void.
    pub pins: Vec<Arc<Task>>,
}

#[derive(Debug)]
pub(super) struct Recall {
    answers: RwLock<HashMap<u32, Arc<Answer>>>,
    limit: usize,
}

impl Recall {
    /// `pidfds`: how many may be open for the sake of answers. Half are for the threads, the rest
    /// for their ancestors.
    pub fn new(pidfds: usize) -> Self {
        Self {
            answers: RwLock::default(),
            limit: THREADS.min(pidfds / 2).max(16),
        }
    }

    pub fn get(&self, tid: u32) -> Option<Arc<Answer>> {
        self.answers.read().get(&tid).cloned()
    }

    pub fn put(&self, answer: Answer) {
        let Some(tid) = answer.pins.first().map(|thread| thread.id) else {
            return;
        };
        let full = {
            let mut answers = self.answers.write();
            answers.insert(tid, Arc::new(answer));
            (answers.len() > self.limit).then(|| std::mem::take(&mut *answers))
        };
        if let Some(mut answers) = full {
            // The living half stays; whoever asks meanwhile is looked at afresh.
            answers.retain(|_, answer| answer.pins.first().is_some_and(|thread| thread.is_alive()));
            let keep = answers.into_iter().take(self.limit / 2);
            self.answers.write().extend(keep);
        }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.answers.read().len()
    }
}
