//! The directory on disk: the registry, the workspaces' files, the trash, and what they take.
//!
//! ```text
//! STORE/panefs.db      the registry
//!       panefs.toml    settings
//!       lock           held by the daemon
//!       highest        the highest workspace number ever deleted
//!       workspaces/    what the tree shows
//!       trash/         what was reclaimed
//! ```
//!
//! A workspace's row is the truth and its directory follows it: it is made before its row is
//! committed, goes to the trash after, and comes back before. Whatever a crash leaves between the
//! two, [`Store::open`] makes good.

mod delete;
mod directories;
mod error;
mod lock;
mod recovery;
mod registry;
mod rows;
mod settings;
mod sqlite;
mod usage;
mod walk;

#[cfg(test)]
mod tests;

use std::fmt;
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

pub use delete::DeleteStats;
pub use directories::Disk;
pub use error::{RegistryError, StoreError};
pub use registry::{BindingChange, Event, JobRow, JobState, Loaded, Registry, Transaction};
pub use settings::{DefaultQuota, Settings, Trash};
pub use sqlite::SqliteRegistry;
pub use usage::Usage;

use directories::Directories;
use lock::Lock;

use crate::model::{Binding, Owner, Timestamp, WindowId, WorkspaceId, World};

/// An open store. While it lives nobody else can open it.
pub struct Store {
    path: PathBuf,
    settings: Settings,
    directories: Directories,
    registry: Box<dyn Registry>,
    // Dropped last, when all else is closed.
    _lock: Lock,
}

/// A store that was opened, and what it held.
#[derive(Debug)]
pub struct Opened {
    /// The store.
    pub store: Store,
    /// Windows and workspaces.
    pub world: World,
    /// Bindings made since the machine started; their processes may have ended.
    pub bindings: Vec<Binding>,
    /// Jobs, those included that an earlier daemon left running.
    pub jobs: Vec<JobRow>,
    /// What was made good, as lines for the log.
    pub recovered: Vec<String>,
    /// What is to be deleted with [`Store::delete_trash`].
    pub leftovers: Vec<WorkspaceId>,
}

impl Store {
    /// Opens the store at `path`, makes it where it is missing or empty, and makes good what an
    /// unclean end left half done.
    ///
    /// Takes the lock for the calling process, so call it after the last fork.
    ///
    /// # Errors
    /// [`StoreError`]. A directory that is no store, or is served by another daemon, stays as it
    /// is.
    pub fn open(path: &Path) -> Result<Opened, StoreError> {
        let failed = || StoreError::io(path.display().to_string());
        if !is_store(path)? {
            directories::create_store(path).map_err(failed())?;
        }
        let path = path.canonicalize().map_err(failed())?;
        let lock = Lock::take(&path)?;
        let settings = Settings::read(&path.join("panefs.toml"))?;
        let registry: Box<dyn Registry> = Box::new(SqliteRegistry::open(&path.join("panefs.db"))?);
        let mut recovered = keep_private(&path).map_err(failed())?;
        let directories = Directories::open(&path).map_err(failed())?;
        let Loaded {
            mut world,
            bindings,
            jobs,
        } = registry.load()?;
        let made_good = recovery::recover(
            &directories,
            registry.as_ref(),
            &mut world,
            Timestamp::now(),
        )?;
        recovered.extend(made_good.lines);
        Ok(Opened {
            store: Self {
                path,
                settings,
                directories,
                registry,
                _lock: lock,
            },
            world,
            bindings,
            jobs,
            recovered,
            leftovers: made_good.leftovers,
        })
    }

    /// Where it is, as an absolute path without symbolic links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What its owner set, as read when it was opened.
    pub fn settings(&self) -> Settings {
        self.settings.clone()
    }

    /// The directory of the workspaces, as it was opened: also what lies under a later mount.
    pub fn workspaces_fd(&self) -> BorrowedFd<'_> {
        self.directories.workspaces()
    }

    /// Makes an empty workspace, of mode 0755, durably; as root its owner's. To be done before its
    /// row is committed.
    ///
    /// # Errors
    /// Of the disk; then nothing is left of it.
    pub fn create_workspace(&self, id: WorkspaceId, owner: Owner) -> io::Result<()> {
        self.directories.create(id, owner)
    }

    /// Undoes [`Store::create_workspace`] where the row could not be committed.
    pub fn discard_workspace(&self, id: WorkspaceId) {
        self.directories.discard(id);
    }

    /// Moves a workspace to the trash, durably, after its row was committed. Repeated, it does
    /// nothing.
    ///
    /// # Errors
    /// Of the disk; the next [`Store::open`] will try again.
    pub fn trash(&self, id: WorkspaceId) -> io::Result<()> {
        self.directories.trash(id)
    }

    /// Moves a workspace back from the trash, durably, before its row is committed. Repeated, it
    /// does nothing.
    ///
    /// # Errors
    /// Of the disk, and ENOENT where the trash doesn't have it.
    pub fn untrash(&self, id: WorkspaceId) -> io::Result<()> {
        self.directories.untrash(id)
    }

    /// Deletes a workspace's files in the trash, after its row was committed as purged; from the
    /// first moment on they can't be restored. May take long. What was begun before goes on; with
    /// nothing there, it is done.
    ///
    /// # Errors
    /// The first thing that could not be deleted; the rest is gone nevertheless.
    pub fn delete_trash(&self, id: WorkspaceId, cancelled: &AtomicBool) -> io::Result<DeleteStats> {
        self.directories.delete(id, cancelled)
    }

    /// What a workspace in the tree takes on the disk, counted now. May take long.
    ///
    /// # Errors
    /// Of the disk.
    pub fn usage(&self, id: WorkspaceId) -> io::Result<Usage> {
        self.directories.usage(id)
    }

    /// The space on the store's disk.
    ///
    /// # Errors
    /// Of the disk.
    pub fn disk(&self) -> io::Result<Disk> {
        self.directories.disk()
    }

    /// Makes a transaction durable, numbers its events and gives them back.
    ///
    /// # Errors
    /// [`RegistryError`]; then nothing of it happened.
    pub fn commit(
        &self,
        transaction: &Transaction,
        at: Timestamp,
    ) -> Result<Vec<Event>, RegistryError> {
        self.registry.commit(transaction, at)
    }

    /// Bytes of `events.jsonl`, whole or a window's. Does no I/O.
    pub fn events_size(&self, window: Option<WindowId>) -> u64 {
        self.registry.events_size(window)
    }

    /// At most `len` bytes at `offset` of `events.jsonl`, whole or a window's; fewer only where it
    /// ends.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub fn read_events(
        &self,
        window: Option<WindowId>,
        offset: u64,
        len: usize,
    ) -> Result<Vec<u8>, RegistryError> {
        self.registry.read_events(window, offset, len)
    }

    /// When the last event happened, of all or of a window. Does no I/O.
    pub fn last_event(&self, window: Option<WindowId>) -> Option<Timestamp> {
        self.registry.last_event(window)
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// A store's own entries, beside those that begin with `panefs.`
const OWN: [&str; 5] = ["lock", "highest", "highest.new", "workspaces", "trash"];

/// Whether there is a store, or an empty directory to be one, at `path`; false for nothing.
fn is_store(path: &Path) -> Result<bool, StoreError> {
    let failed = || StoreError::io(path.display().to_string());
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(failed()(error)),
    };
    let (mut empty, mut marked, mut registry, mut others) = (true, false, false, false);
    for entry in entries {
        let name = entry.map_err(failed())?.file_name();
        let name = name.to_string_lossy();
        // A disk of its own comes with this.
        if name == "lost+found" {
            continue;
        }
        empty = false;
        registry |= name == "panefs.db";
        marked |= name == "lock" || name == "panefs.toml";
        others |= !(name.starts_with("panefs.") || OWN.contains(&name.as_ref()));
    }
    // A registry that was moved away is made anew, where all the rest is clearly a store's.
    let known = registry || (marked && !others);
    if empty || known {
        Ok(true)
    } else {
        Err(StoreError::NotAStore {
            path: path.to_owned(),
        })
    }
}

/// A store is its owner's alone, whatever the directory was before.
fn keep_private(path: &Path) -> io::Result<Vec<String>> {
    let mode = fs::metadata(path)?.permissions().mode() & 0o7777;
    if mode == 0o700 {
        return Ok(Vec::new());
    }
    fs::set_permissions(path, Permissions::from_mode(0o700))?;
    Ok(vec![format!(
        "{} had mode {mode:o}, now 700",
        path.display()
    )])
}
