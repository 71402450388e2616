//! What remembers the world, the bindings, the jobs and the events, whatever it is made of.

use serde_json::Value;

use super::error::RegistryError;
use crate::model::{Binding, Changes, JobId, NewEvent, Timestamp, WindowId, World};

/// Remembers what was decided. A commit is all or nothing, and durable once it returns.
pub trait Registry: Send + Sync {
    /// Everything but the events.
    ///
    /// # Errors
    /// [`RegistryError`].
    fn load(&self) -> Result<Loaded, RegistryError>;

    /// Makes a transaction durable, numbers its events and gives them back.
    ///
    /// # Errors
    /// [`RegistryError`]; then nothing of it happened.
    fn commit(&self, transaction: &Transaction, at: Timestamp)
    -> Result<Vec<Event>, RegistryError>;

    /// Bytes of `events.jsonl`, whole or a window's. Does no I/O.
    fn events_size(&self, window: Option<WindowId>) -> u64;

    /// When the last event happened, of all or of a window. Does no I/O.
    fn last_event(&self, window: Option<WindowId>) -> Option<Timestamp>;

    /// At most `len` bytes at `offset` of `events.jsonl`, whole or a window's; fewer only where it
    /// ends.
    ///
    /// # Errors
    /// [`RegistryError`].
    fn read_events(
        &self,
        window: Option<WindowId>,
        offset: u64,
        len: usize,
    ) -> Result<Vec<u8>, RegistryError>;
}

/// Everything that a registry holds but the events.
#[derive(Debug, Default)]
pub struct Loaded {
    /// Windows and workspaces.
    pub world: World,
    /// Bindings made since the machine started.
    pub bindings: Vec<Binding>,
    /// Jobs, by number.
    pub jobs: Vec<JobRow>,
}

/// What one command writes.
#[derive(Debug, Clone, Default)]
pub struct Transaction {
    /// Windows and workspaces.
    pub changes: Changes,
    /// What happened, in order.
    pub events: Vec<NewEvent>,
    /// Bindings, in order.
    pub bindings: Vec<BindingChange>,
    /// New or changed jobs, whole: each replaces the row with its number.
    pub jobs: Vec<JobRow>,
}

impl Transaction {
    /// Whether it matters only as long as the processes live that it names: then it must outlive
    /// the daemon, which the kernel's memory does, but not the machine.
    pub fn ends_with_the_machine(&self) -> bool {
        self.changes.is_empty() && self.events.is_empty() && self.jobs.is_empty()
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
            && self.events.is_empty()
            && self.bindings.is_empty()
            && self.jobs.is_empty()
    }
}

/// A change of who belongs where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BindingChange {
    /// Replaces whatever was bound by the same kind and id.
    Put(Binding),
    /// Removes it, unless its id is bound to a successor by now.
    Remove(Binding),
    /// Every binding of one window becomes another's.
    Move {
        /// The window that had them.
        from: WindowId,
        /// The window that gets them.
        to: WindowId,
    },
}

/// Something that happened, as the registry numbered it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Grows by one with each event, across restarts; never used again.
    pub seq: u64,
    /// When.
    pub at: Timestamp,
    /// The JSON object, without a newline.
    pub line: String,
}

/// How far a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JobState {
    /// It goes on.
    Running,
    /// It ended well.
    Done,
    /// It ended otherwise.
    Failed,
}

impl JobState {
    /// Every state.
    pub const ALL: [Self; 3] = [Self::Running, Self::Done, Self::Failed];

    /// The word in a reply.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Failed => "failed",
        }
    }

    /// The state with this word.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

/// One long command.
#[derive(Debug, Clone, PartialEq)]
pub struct JobRow {
    /// Its number.
    pub id: JobId,
    /// The command line that started it.
    pub command: String,
    /// How far it is.
    pub state: JobState,
    /// What the command answered, once it has ended.
    pub result: Option<Value>,
    /// JSON lines `{at, stream, text}`.
    pub log: String,
    /// When it began.
    pub started: Timestamp,
    /// When it ended.
    pub ended: Option<Timestamp>,
}
