//! `workspaces/` and `trash/`: the files themselves, and how they move between the two.
//!
//! Both are opened once, so that a mount laid over the store changes nothing here, and every name
//! in them is used relative to its descriptor.

use std::ffi::{CStr, CString};
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{FileStat, Mode, fchmod, fstat, fstatat, mkdirat};
use nix::sys::statvfs::fstatvfs;
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, fsync, geteuid, unlinkat};
use parking_lot::Mutex;

use super::delete::{self, DeleteStats, set_mode};
use super::usage::{self, Usage};
use super::walk::{open_directory, open_handle};
use crate::model::{Owner, WorkspaceId};

/// The file with the highest workspace number that was ever deleted, so that the number doesn't
/// return even where the registry is made anew.
const HIGHEST: &CStr = c"highest";
const HIGHEST_NEW: &CStr = c"highest.new";
/// What is being deleted bears this after its name, and can't be restored.
const DELETING: &str = ".deleting";

/// The space on the store's disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disk {
    /// All of it, in bytes.
    pub size: u64,
    /// What an ordinary user may still take, in bytes.
    pub available: u64,
}

impl Disk {
    /// Whether less than this share, in percent, is available.
    pub fn is_below(&self, percent: u8) -> bool {
        u128::from(self.available) * 100 < u128::from(self.size) * u128::from(percent)
    }
}

/// The directories of an open store.
#[derive(Debug)]
pub(super) struct Directories {
    root: OwnedFd,
    workspaces: OwnedFd,
    trash: OwnedFd,
    /// The number in [`HIGHEST`]; the lock is held while the file is replaced.
    highest: Mutex<u32>,
}

/// The content of `workspaces/` or `trash/`.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// Directories named as workspaces.
    pub workspaces: Vec<WorkspaceId>,
    /// Those whose deletion was begun.
    pub deleting: Vec<WorkspaceId>,
    /// Anything else, also a file named as a workspace.
    pub others: Vec<String>,
}

impl Directories {
    /// Opens `workspaces` and `trash` in the store at `path`, and makes them where missing.
    pub fn open(path: &Path) -> io::Result<Self> {
        let root = OwnedFd::from(File::open(path)?);
        let open = |name: &CStr| -> io::Result<OwnedFd> {
            match mkdirat(&root, name, mode(0o700)) {
                Ok(()) => fsync(&root)?,
                Err(Errno::EEXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
            // Whoever keeps the files on a disk of their own may mount it here, so not
            // `open_directory`.
            let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            Ok(openat(&root, name, flags, Mode::empty())?)
        };
        let workspaces = open(c"workspaces")?;
        let trash = open(c"trash")?;
        if fstat(&workspaces)?.st_dev != fstat(&trash)?.st_dev {
            return Err(io::Error::new(
                io::ErrorKind::CrossesDevices,
                "workspaces and trash lie on different disks",
            ));
        }
        let highest = Mutex::new(read_highest(&root)?);
        Ok(Self {
            root,
            workspaces,
            trash,
            highest,
        })
    }

    pub fn workspaces(&self) -> BorrowedFd<'_> {
        self.workspaces.as_fd()
    }

    /// The highest number that was ever deleted.
    pub fn highest(&self) -> u32 {
        *self.highest.lock()
    }

    /// Remembers that this number was used, also when nothing else does any more.
    pub fn remember(&self, id: WorkspaceId) -> io::Result<()> {
        let mut highest = self.highest.lock();
        if id.number() <= *highest {
            return Ok(());
        }
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_TRUNC | OFlag::O_CLOEXEC;
        let mut file = File::from(openat(&self.root, HIGHEST_NEW, flags, mode(0o600))?);
        writeln!(file, "{id}")?;
        file.sync_all()?;
        renameat(&self.root, HIGHEST_NEW, &self.root, HIGHEST)?;
        fsync(&self.root)?;
        *highest = id.number();
        Ok(())
    }

    /// Makes an empty workspace; nothing is left of one that could not be made.
    pub fn create(&self, id: WorkspaceId, owner: Owner) -> io::Result<()> {
        let name = name(id);
        mkdirat(&self.workspaces, name.as_c_str(), mode(0o755))?;
        let finish = || -> io::Result<()> {
            let dir = open_directory(&self.workspaces, &name)?;
            let stat = fstat(&dir)?;
            let right = (stat.st_uid, stat.st_gid) == (owner.uid, owner.gid);
            if geteuid().is_root() && !right {
                let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
                fchown(&dir, Some(uid), Some(gid))?;
            }
            // Whatever the daemon's own umask is.
            if stat.st_mode & 0o7777 != 0o755 {
                fchmod(&dir, mode(0o755))?;
            }
            fsync(&dir)?;
            Ok(fsync(&self.workspaces)?)
        };
        finish().inspect_err(|_| self.discard(id))
    }

    /// Takes an empty workspace away again.
    pub fn discard(&self, id: WorkspaceId) {
        if let Err(error) = self.remove_empty(id) {
            tracing::warn!(workspace = %id, %error, "an unused workspace directory is left over");
        }
    }

    /// Removes a workspace's directory where nothing is in it (else ENOTEMPTY).
    pub fn remove_empty(&self, id: WorkspaceId) -> io::Result<()> {
        unlinkat(
            &self.workspaces,
            name(id).as_c_str(),
            UnlinkatFlags::RemoveDir,
        )?;
        Ok(fsync(&self.workspaces)?)
    }

    /// Moves a workspace to the trash; done already, it stays there.
    pub fn trash(&self, id: WorkspaceId) -> io::Result<()> {
        self.transfer(&self.workspaces, &self.trash, id)
    }

    /// Moves a workspace back from the trash; done already, it stays in the tree.
    pub fn untrash(&self, id: WorkspaceId) -> io::Result<()> {
        self.transfer(&self.trash, &self.workspaces, id)
    }

    fn transfer(&self, from: &OwnedFd, to: &OwnedFd, id: WorkspaceId) -> io::Result<()> {
        let name = name(id);
        match rename_directory(from, &name, to, &name) {
            Err(error) if is_missing(&error) && exists(to, &name)? => Ok(()),
            Err(error) => Err(error),
            Ok(()) => {
                fsync(to)?;
                Ok(fsync(from)?)
            }
        }
    }

    /// Deletes a workspace's files in the trash. From its first moment on they can't be restored.
    /// Begun before and interrupted, it goes on; with nothing there, it is done.
    pub fn delete(&self, id: WorkspaceId, cancelled: &AtomicBool) -> io::Result<DeleteStats> {
        self.remember(id)?;
        let (name, doomed) = (name(id), doomed(id));
        match rename_directory(&self.trash, &name, &self.trash, &doomed) {
            Ok(()) => fsync(&self.trash)?,
            Err(error) if is_missing(&error) => {}
            Err(error) => return Err(error),
        }
        if !exists(&self.trash, &doomed)? {
            return Ok(DeleteStats {
                complete: true,
                ..DeleteStats::default()
            });
        }
        let stats = delete::delete(&self.trash, &doomed, cancelled)?;
        fsync(&self.trash)?;
        Ok(stats)
    }

    /// What a workspace in the tree takes on the disk.
    pub fn usage(&self, id: WorkspaceId) -> io::Result<Usage> {
        usage::usage(|| open_directory(&self.workspaces, &name(id)))
    }

    /// The space on the store's disk.
    pub fn disk(&self) -> io::Result<Disk> {
        let stat = fstatvfs(&self.workspaces)?;
        let unit = stat.fragment_size();
        Ok(Disk {
            size: stat.blocks().saturating_mul(unit),
            available: stat.blocks_available().saturating_mul(unit),
        })
    }

    /// What `workspaces/` holds.
    pub fn list_workspaces(&self) -> io::Result<Listing> {
        list(&self.workspaces)
    }

    /// What `trash/` holds.
    pub fn list_trash(&self) -> io::Result<Listing> {
        list(&self.trash)
    }

    /// The top directory of a workspace in the tree.
    pub fn stat_workspace(&self, id: WorkspaceId) -> io::Result<FileStat> {
        let flags = AtFlags::AT_SYMLINK_NOFOLLOW;
        Ok(fstatat(&self.workspaces, name(id).as_c_str(), flags)?)
    }

    /// The top directory of a workspace in the trash.
    pub fn stat_trash(&self, id: WorkspaceId) -> io::Result<FileStat> {
        let flags = AtFlags::AT_SYMLINK_NOFOLLOW;
        Ok(fstatat(&self.trash, name(id).as_c_str(), flags)?)
    }
}

/// Makes the directory of a store that isn't there yet.
pub(super) fn create_store(path: &Path) -> io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    std::fs::create_dir_all(parent)?;
    DirBuilder::new().mode(0o700).create(path)?;
    File::open(parent)?.sync_all()
}

fn mode(bits: u32) -> Mode {
    Mode::from_bits_truncate(bits)
}

fn name(id: WorkspaceId) -> CString {
    // An id has no NUL in it, so this is never the empty name.
    CString::new(id.to_string()).unwrap_or_default()
}

fn doomed(id: WorkspaceId) -> CString {
    CString::new(format!("{id}{DELETING}")).unwrap_or_default()
}

fn is_missing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

fn exists(dir: &OwnedFd, name: &CStr) -> io::Result<bool> {
    match fstatat(dir, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(_) => Ok(true),
        Err(Errno::ENOENT) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Renames a directory, also one that its owner may not write (EACCES for an ordinary user, as
/// its `..` changes). Nothing with content is ever replaced.
fn rename_directory(from: &OwnedFd, old: &CStr, to: &OwnedFd, new: &CStr) -> io::Result<()> {
    match renameat(from, old, to, new) {
        Err(Errno::EACCES) => {}
        renamed => return Ok(renamed?),
    }
    let handle = open_handle(from, old)?;
    let mode = fstat(&handle)?.st_mode & 0o7777;
    set_mode(&handle, mode | 0o200)?;
    let renamed = renameat(from, old, to, new);
    set_mode(&handle, mode)?;
    Ok(renamed?)
}

fn list(dir: &OwnedFd) -> io::Result<Listing> {
    let mut listing = Listing::default();
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    for entry in Dir::openat(dir, c".", flags, Mode::empty())?.iter() {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let directory = fstatat(dir, name, AtFlags::AT_SYMLINK_NOFOLLOW)?.st_mode & libc::S_IFMT
            == libc::S_IFDIR;
        let text = name.to_string_lossy();
        let id = WorkspaceId::parse(&text);
        let deleting = text.strip_suffix(DELETING).and_then(WorkspaceId::parse);
        match (directory, id, deleting) {
            (true, Some(id), _) => listing.workspaces.push(id),
            (true, None, Some(id)) => listing.deleting.push(id),
            _ => listing.others.push(text.into_owned()),
        }
    }
    listing.workspaces.sort_unstable();
    listing.deleting.sort_unstable();
    listing.others.sort_unstable();
    Ok(listing)
}

fn read_highest(root: &OwnedFd) -> io::Result<u32> {
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
    let file = match openat(root, HIGHEST, flags, Mode::empty()) {
        Err(Errno::ENOENT) => return Ok(0),
        file => file?,
    };
    let mut text = String::new();
    File::from(file).read_to_string(&mut text)?;
    match WorkspaceId::parse(text.trim()) {
        Some(id) => Ok(id.number()),
        None => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("`highest` holds {text:?}, which is no workspace"),
        )),
    }
}
