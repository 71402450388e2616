//! How many requests of each kind the kernel has sent.

use std::sync::atomic::{AtomicU64, Ordering};

use super::operation::Operation;

/// Counts, cheap enough to stay on.
#[derive(Debug)]
pub struct Requests {
    counts: Box<[AtomicU64]>,
}

impl Default for Requests {
    fn default() -> Self {
        Self {
            counts: Operation::ALL.iter().map(|_| AtomicU64::new(0)).collect(),
        }
    }
}

impl Requests {
    /// Counts one.
    pub fn count(&self, operation: Operation) {
        if let Some(count) = self.counts.get(operation as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The counts so far.
    pub fn counts(&self) -> impl Iterator<Item = (Operation, u64)> {
        let operations = Operation::ALL.iter().copied();
        operations.zip(
            self.counts
                .iter()
                .map(|count| count.load(Ordering::Relaxed)),
        )
    }
}
