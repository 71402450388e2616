//! Node ids: a backing file's is its inode number, and synthetic entries lie above 2^52.
//!
//! All stay below 2^53, because JavaScript reads inode numbers as doubles.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::model::{JobId, WindowId};

/// The kernel's name for the mount's root.
pub const ROOT: u64 = 1;

/// Synthetic entries lie above this number.
const SYNTHETIC: u64 = 1 << 52;
/// Backing inode numbers that don't fit are mapped above this number.
const MAPPED: u64 = SYNTHETIC | 1 << 51;
/// Bits of the number that distinguishes entries of one kind.
const NUMBER_BITS: u32 = 40;

/// An entry that no backing file stands behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Synthetic {
    /// `MNT`
    Root,
    /// `.panefs`
    Panefs,
    /// `.panefs/ctl`
    Ctl,
    /// `.panefs/help`
    Help,
    /// `.panefs/whoami`
    Whoami,
    /// `.panefs/operators`
    Operators,
    /// `.panefs/acting`
    Acting,
    /// `.panefs/windows.jsonl`
    WindowsList,
    /// `.panefs/workspaces.jsonl`
    WorkspacesList,
    /// `.panefs/events.jsonl`
    Events,
    /// `.panefs/metrics`
    Metrics,
    /// `.panefs/jobs`
    Jobs,
    /// `.panefs/jobs/j7`
    Job(JobId),
    /// `.panefs/self`
    SelfWindow,
    /// `.panefs/windows`
    Windows,
    /// `self`
    SelfWorkspace,
    /// `cwd`
    Cwd,
    /// `.panefs/windows/c7` and what is in it
    Window(WindowId, WindowEntry),
}

/// What is in a window's directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WindowEntry {
    /// The directory itself.
    Directory,
    /// `procs`
    Procs,
    /// `threads`
    Threads,
    /// `sessions`
    Sessions,
    /// `ctl`
    Ctl,
    /// `help`
    Help,
    /// `window.json`
    Json,
    /// `events.jsonl`
    Events,
    /// `workspace`
    Workspace,
    /// `cwd`
    Cwd,
}

impl WindowEntry {
    /// What the directory lists, with the names.
    pub const LISTED: [(WindowEntry, &'static str); 9] = [
        (Self::Procs, "procs"),
        (Self::Threads, "threads"),
        (Self::Sessions, "sessions"),
        (Self::Ctl, "ctl"),
        (Self::Help, "help"),
        (Self::Json, "window.json"),
        (Self::Events, "events.jsonl"),
        (Self::Workspace, "workspace"),
        (Self::Cwd, "cwd"),
    ];
}

/// What `.panefs` lists, with the names.
pub const PANEFS_LISTED: [(Synthetic, &str); 12] = [
    (Synthetic::Ctl, "ctl"),
    (Synthetic::Help, "help"),
    (Synthetic::Whoami, "whoami"),
    (Synthetic::Operators, "operators"),
    (Synthetic::Acting, "acting"),
    (Synthetic::WindowsList, "windows.jsonl"),
    (Synthetic::WorkspacesList, "workspaces.jsonl"),
    (Synthetic::Events, "events.jsonl"),
    (Synthetic::Metrics, "metrics"),
    (Synthetic::Jobs, "jobs"),
    (Synthetic::SelfWindow, "self"),
    (Synthetic::Windows, "windows"),
];

/// Kinds without a number, in the order of their codes.
const PLAIN: [Synthetic; 16] = [
    Synthetic::Root,
    Synthetic::Panefs,
    Synthetic::Ctl,
    Synthetic::Help,
    Synthetic::Whoami,
    Synthetic::Operators,
    Synthetic::Acting,
    Synthetic::WindowsList,
    Synthetic::WorkspacesList,
    Synthetic::Events,
    Synthetic::Metrics,
    Synthetic::Jobs,
    Synthetic::SelfWindow,
    Synthetic::Windows,
    Synthetic::SelfWorkspace,
    Synthetic::Cwd,
];
const JOB: u64 = 32;
const WINDOW: u64 = 64;

impl Synthetic {
    /// The inode number that users see.
    pub fn ino(self) -> u64 {
        let (kind, number) = match self {
            Self::Job(id) => (JOB, u64::from(id.number())),
            Self::Window(id, entry) => {
                let place = WindowEntry::LISTED.iter().position(|(e, _)| *e == entry);
                let kind = WINDOW + place.map_or(0, |place| place as u64 + 1);
                (kind, u64::from(id.number()))
            }
            plain => {
                let place = PLAIN.iter().position(|p| *p == plain);
                (place.map_or(0, |place| place as u64), 0)
            }
        };
        SYNTHETIC | kind << NUMBER_BITS | number
    }

    /// The number by which the kernel asks for it.
    pub fn nodeid(self) -> u64 {
        match self {
            Self::Root => ROOT,
            other => other.ino(),
        }
    }

    /// What the kernel asks for by this number, if it is synthetic.
    pub fn from_nodeid(nodeid: u64) -> Option<Self> {
        if nodeid == ROOT {
            return Some(Self::Root);
        }
        if nodeid & MAPPED != SYNTHETIC {
            return None;
        }
        let kind = (nodeid & !SYNTHETIC) >> NUMBER_BITS;
        let number = u32::try_from(nodeid & ((1 << NUMBER_BITS) - 1)).ok()?;
        match kind {
            JOB => JobId::new(number).map(Self::Job),
            WINDOW => WindowId::new(number).map(|id| Self::Window(id, WindowEntry::Directory)),
            above if above > WINDOW => {
                let place = usize::try_from(above - WINDOW - 1).ok()?;
                let (entry, _) = WindowEntry::LISTED.get(place)?;
                WindowId::new(number).map(|id| Self::Window(id, *entry))
            }
            _ => PLAIN.get(usize::try_from(kind).ok()?).copied(),
        }
    }
}

/// Gives backing inode numbers that lie where synthetic entries do a number of their own, for
/// the life of the mount.
#[derive(Debug, Default)]
pub struct Numbers {
    mapped: Mutex<HashMap<u64, u64>>,
}

impl Numbers {
    /// The node id of a backing inode.
    pub fn nodeid(&self, backing: u64) -> u64 {
        if backing > ROOT && backing < SYNTHETIC {
            return backing;
        }
        let mut mapped = self.mapped.lock();
        let next = MAPPED + mapped.len() as u64;
        *mapped.entry(backing).or_insert(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_lead_back_to_what_they_name() {
        let c7 = WindowId::new(999_999_999).unwrap();
        let mut all: Vec<_> = PLAIN.to_vec();
        all.push(Synthetic::Job(JobId::new(3).unwrap()));
        all.push(Synthetic::Window(c7, WindowEntry::Directory));
        all.extend(WindowEntry::LISTED.map(|(entry, _)| Synthetic::Window(c7, entry)));
        for entry in &all {
            assert_eq!(Synthetic::from_nodeid(entry.nodeid()), Some(*entry));
            assert!((1 << 52..1 << 53).contains(&entry.ino()), "{entry:?}");
        }
        let mut numbers: Vec<_> = all.iter().map(|e| e.ino()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), all.len());
    }

    #[test]
    fn what_does_not_fit_is_mapped_below_two_to_the_53() {
        let numbers = Numbers::default();
        assert_eq!(numbers.nodeid(7), 7);
        let far = numbers.nodeid(u64::MAX);
        assert_eq!(numbers.nodeid(u64::MAX), far);
        assert_ne!(numbers.nodeid(1), far);
        assert!((1 << 52..1 << 53).contains(&far));
        assert_eq!(Synthetic::from_nodeid(far), None);
    }
}
