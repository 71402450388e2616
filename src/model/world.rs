//! What the registry knows: every window and every workspace.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::str::FromStr;

use serde::Serialize;
use serde_json::{Map, Value};

use super::id::{MAX_ID, WindowId, WorkspaceId, WorkspaceRef};
use super::refusal::{Refusal, Rule};
use super::time::Timestamp;

/// A short task name: one line, trimmed, 1 to 20 Unicode scalar values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Title(String);

impl Title {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Title {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Title {
    type Err = Refusal;

    /// # Errors
    /// [`Rule::TitleInvalid`] for an empty, a long, a multi-line or an untrimmed text.
    fn from_str(text: &str) -> Result<Self, Refusal> {
        let length = text.chars().count();
        let plain = !text.chars().any(char::is_control) && !text.contains(['\u{2028}', '\u{2029}']);
        if (1..=20).contains(&length) && plain && text.trim() == text {
            return Ok(Self(text.to_owned()));
        }
        Err(Refusal::new(
            Rule::TitleInvalid,
            format!("{text:?} is not a title"),
            "Give a title of 1 to 20 characters on one line, without spaces around it.",
        ))
    }
}

/// Who owns a window's files: its control files, and what is created for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Owner {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// Limits of a workspace; none means unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quota {
    /// Bytes, as blocks × 512.
    pub bytes: Option<u64>,
    /// Inodes, directories included.
    pub files: Option<u64>,
}

/// The life of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WindowState {
    /// It holds its workspace, or may allocate again.
    Live,
    /// It was handed off.
    Continued,
    /// It ended without a continuation so far.
    Released,
}

impl WindowState {
    /// Every state.
    pub const ALL: [Self; 3] = [Self::Live, Self::Continued, Self::Released];

    /// The word in a reply.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Continued => "continued",
            Self::Released => "released",
        }
    }

    /// The state with this word.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

/// The life of a workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkspaceState {
    /// A handler prepares it.
    Provisioning,
    /// It has a holder.
    Occupied,
    /// Its files are kept, it has no holder.
    Released,
    /// Prepared, in the pool.
    Available,
    /// A handler's outcome could not be established.
    Unknown,
    /// Out of the tree.
    Reclaimed,
}

impl WorkspaceState {
    /// Every state.
    pub const ALL: [Self; 6] = [
        Self::Provisioning,
        Self::Occupied,
        Self::Released,
        Self::Available,
        Self::Unknown,
        Self::Reclaimed,
    ];

    /// The word in a reply.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Provisioning => "provisioning",
            Self::Occupied => "occupied",
            Self::Released => "released",
            Self::Available => "available",
            Self::Unknown => "unknown",
            Self::Reclaimed => "reclaimed",
        }
    }

    /// The state with this word.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

/// One context window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// `c7`.
    pub id: WindowId,
    /// The workspace of its chain; none after a prepared one went back to the pool.
    pub workspace: Option<WorkspaceId>,
    /// Live, continued or released.
    pub state: WindowState,
    /// The predecessor in the chain.
    pub continues: Option<WindowId>,
    /// The successor in the chain.
    pub continued_by: Option<WindowId>,
    /// Its task.
    pub title: Option<Title>,
    /// Working directory, relative to the mount (`ws7/src`).
    pub cwd: Option<String>,
    /// Who owns its control files.
    pub owner: Owner,
    /// When it was opened.
    pub opened_at: Timestamp,
    /// When it was continued or released.
    pub ended_at: Option<Timestamp>,
}

/// One workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workspace {
    /// `ws7`, never used for another directory.
    pub id: WorkspaceId,
    /// Which occupation, for prepared workspaces.
    pub occupation: Option<u32>,
    /// See [`WorkspaceState`].
    pub state: WorkspaceState,
    /// The live window of the chain.
    pub holder: Option<WindowId>,
    /// The windows that worked here, in order.
    pub chain: Vec<WindowId>,
    /// Its task: the title given last.
    pub title: Option<Title>,
    /// Who owns its top directory.
    pub owner: Owner,
    /// Limits.
    pub quota: Quota,
    /// Kept by every sweep.
    pub keep: bool,
    /// Grows with every change of who may write; a handle opened under an older one is stale.
    pub epoch: u64,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it lost its holder.
    pub released_at: Option<Timestamp>,
    /// When it was reclaimed.
    pub reclaimed_at: Option<Timestamp>,
    /// Whether the trash no longer has the files.
    pub purged: bool,
}

impl Workspace {
    /// The ref of the present occupation.
    pub fn current_ref(&self) -> WorkspaceRef {
        WorkspaceRef {
            workspace: self.id,
            occupation: self.occupation,
        }
    }

    /// Whether the tree shows it.
    pub fn in_tree(&self) -> bool {
        self.state != WorkspaceState::Reclaimed
    }
}

/// Every window and workspace that was ever made, and the highest numbers ever used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct World {
    windows: BTreeMap<WindowId, Window>,
    workspaces: BTreeMap<WorkspaceId, Workspace>,
    /// The highest window number ever used; 0 in an empty store.
    pub highest_window: u32,
    /// The highest workspace number ever used; 0 in an empty store.
    pub highest_workspace: u32,
}

impl World {
    /// The window, whatever its state.
    pub fn window(&self, id: WindowId) -> Option<&Window> {
        self.windows.get(&id)
    }

    /// The workspace, whatever its state.
    pub fn workspace(&self, id: WorkspaceId) -> Option<&Workspace> {
        self.workspaces.get(&id)
    }

    /// Every window, by number.
    pub fn windows(&self) -> impl Iterator<Item = &Window> {
        self.windows.values()
    }

    /// Every workspace, by number, reclaimed ones included.
    pub fn workspaces(&self) -> impl Iterator<Item = &Workspace> {
        self.workspaces.values()
    }

    /// Windows with a higher number, in order.
    pub fn windows_after(&self, number: u32) -> impl Iterator<Item = &Window> {
        let after = WindowId::new(number.min(MAX_ID)).map_or(Bound::Unbounded, Bound::Excluded);
        let rest = self.windows.range((after, Bound::Unbounded));
        rest.map(|(_, window)| window)
    }

    /// Workspaces with a higher number, in order.
    pub fn workspaces_after(&self, number: u32) -> impl Iterator<Item = &Workspace> {
        let after = WorkspaceId::new(number.min(MAX_ID)).map_or(Bound::Unbounded, Bound::Excluded);
        let rest = self.workspaces.range((after, Bound::Unbounded));
        rest.map(|(_, workspace)| workspace)
    }

    /// # Errors
    /// [`Rule::WindowNotFound`].
    pub fn find_window(&self, id: WindowId) -> Result<&Window, Refusal> {
        self.window(id).ok_or_else(|| {
            Refusal::new(
                Rule::WindowNotFound,
                format!("there is no window {id}"),
                format!("Open it with `allocate {id}`, or see `list windows`."),
            )
        })
    }

    /// # Errors
    /// [`Rule::WorkspaceNotFound`].
    pub fn find_workspace(&self, id: WorkspaceId) -> Result<&Workspace, Refusal> {
        self.workspace(id).ok_or_else(|| {
            Refusal::new(
                Rule::WorkspaceNotFound,
                format!("there is no workspace {id}"),
                "See `list workspaces`.",
            )
        })
    }

    /// Makes a decision's changes visible.
    pub fn apply(&mut self, changes: &Changes) {
        for window in &changes.windows {
            self.highest_window = self.highest_window.max(window.id.number());
            self.windows.insert(window.id, window.clone());
        }
        for workspace in &changes.workspaces {
            self.highest_workspace = self.highest_workspace.max(workspace.id.number());
            self.workspaces.insert(workspace.id, workspace.clone());
        }
    }
}

/// Rows to write, whole: each replaces the row with its id.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// New or changed windows.
    pub windows: Vec<Window>,
    /// New or changed workspaces.
    pub workspaces: Vec<Workspace>,
}

impl Changes {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.windows.is_empty() && self.workspaces.is_empty()
    }
}

/// Something that happened, before the registry gave it a number.
#[derive(Debug, Clone, PartialEq)]
pub struct NewEvent {
    /// For instance `window.opened`.
    pub kind: &'static str,
    /// The windows concerned; each lists it in its own `events.jsonl`.
    pub windows: Vec<WindowId>,
    /// The fields after `seq`, `at` and `kind`, which are never among them.
    pub fields: Map<String, Value>,
}

impl NewEvent {
    /// An event of `kind` that concerns `windows`.
    pub fn new(kind: &'static str, windows: impl IntoIterator<Item = WindowId>) -> Self {
        Self {
            kind,
            windows: windows.into_iter().collect(),
            fields: Map::new(),
        }
    }

    /// Adds a field.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.fields.insert(key.to_owned(), value.into());
        self
    }
}

/// What a command changes, what happened, and what to answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision<T> {
    /// Rows to write; empty where the command repeats what already is.
    pub changes: Changes,
    /// What happened, in order.
    pub events: Vec<NewEvent>,
    /// What the command answers.
    pub answer: T,
}
