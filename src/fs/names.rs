//! Names and attributes of backing files: what the caller's window decides.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use nix::fcntl::{AtFlags, OFlag, RenameFlags};
use nix::sys::stat::{FchmodatFlags, Mode, SFlag, UtimensatFlags};
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, LinkatFlags, Uid, UnlinkatFlags};

use super::access::Request;
use super::attr::{Attr, Entry, Ttl};
use super::backing::REPLACED_AT_MOST;
use super::error::{Error, Result};
use super::handle::{DataPath, Handle};
use super::node::{Node, Place};
use super::{Fs, data};
use crate::gate::Gate;
use crate::sys::creds::{self, Without};
use crate::sys::file::FileHandle;
use crate::sys::{dir, file, xattr};

/// A time to set.
#[derive(Debug, Clone, Copy)]
pub enum NewTime {
    /// The moment of the call.
    Now,
    /// Seconds and nanoseconds since the epoch.
    At(i64, i64),
}

/// Attributes to set, all at once.
#[derive(Debug, Clone, Copy, Default)]
pub struct AttrChange {
    /// Permissions.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size, with the handle where ftruncate(2) was called.
    pub size: Option<(u64, Option<u64>)>,
    /// Last access.
    pub atime: Option<NewTime>,
    /// Last change of content.
    pub mtime: Option<NewTime>,
}

/// How to create a file.
#[derive(Debug, Clone, Copy)]
pub struct CreateHow {
    /// Permissions, before the umask.
    pub mode: u32,
    /// The caller's umask.
    pub umask: u32,
    /// Flags of open(2).
    pub flags: i32,
}

/// The file under a name that is about to go.
struct Victim {
    fd: OwnedFd,
    id: u64,
    kind: u32,
    links: u64,
}

fn time_spec(time: Option<NewTime>) -> TimeSpec {
    match time {
        None => TimeSpec::UTIME_OMIT,
        Some(NewTime::Now) => TimeSpec::UTIME_NOW,
        Some(NewTime::At(seconds, nanos)) => TimeSpec::new(seconds, nanos),
    }
}

/// A directory and a name in it, for reports.
fn child(parent: &Node, name: &OsStr) -> PathBuf {
    parent.path().join(name)
}

impl Fs {
    /// Counts a lookup of a file with these attributes and this handle.
    pub(super) fn entry(
        &self,
        request: Request<'_>,
        gate: &Arc<Gate>,
        stat: &libc::stat,
        handle: Option<FileHandle>,
        place: impl FnOnce() -> Place,
    ) -> (Arc<Node>, Entry) {
        let id = self.backing.nodeid(stat.st_ino);
        let kind = stat.st_mode & libc::S_IFMT;
        let node = self
            .nodes
            .look_up(request.mount.id, id, kind, handle, |generation, handle| {
                Node {
                    id,
                    generation,
                    kind,
                    gate: Arc::clone(gate),
                    handle,
                    place: parking_lot::Mutex::new(place()),
                    data: parking_lot::Mutex::default(),
                }
            });
        let entry = self.entry_of(request, &node, stat);
        (node, entry)
    }

    fn entry_of(&self, request: Request<'_>, node: &Arc<Node>, stat: &libc::stat) -> Entry {
        Entry {
            nodeid: node.id,
            generation: node.generation,
            attr: Attr::from_stat(node.id, stat),
            entry_ttl: if request.mount.is_view() {
                Ttl::Never
            } else {
                Ttl::UntilChanged
            },
            attr_ttl: self.attr_ttl(request, node),
        }
    }

    /// How long the kernel may believe a node's attributes.
    pub(super) fn attr_ttl(&self, request: Request<'_>, node: &Arc<Node>) -> Ttl {
        if request.mount.is_view() || (node.is_regular() && !self.settle(node)) {
            Ttl::Never
        } else {
            Ttl::UntilChanged
        }
    }

    fn entry_at(
        &self,
        request: Request<'_>,
        parent: &Arc<Node>,
        dir: &OwnedFd,
        name: &OsStr,
    ) -> Result<(Arc<Node>, Entry)> {
        // Whoever removes the name meanwhile keeps the inode only if the node is known by then: so
        // the name must still be there once it is.
        for _ in 0..REPLACED_AT_MOST {
            let (stat, handle) = self.backing.identify(dir, name)?;
            let place = || Place::Named(Arc::clone(parent), name.to_owned());
            let (node, entry) = self.entry(request, &parent.gate, &stat, handle, place);
            match self.backing.stat_at(dir, name) {
                Ok(again) if again.st_ino == stat.st_ino => return Ok((node, entry)),
                Ok(_) => self.nodes.forget(request.mount.id, node.id, 1),
                Err(error) => {
                    self.nodes.forget(request.mount.id, node.id, 1);
                    return Err(error.into());
                }
            }
        }
        Err(Error(libc::EAGAIN))
    }

    /// Looks up a name in a directory of a workspace.
    ///
    /// # Errors
    /// Those of stat(2).
    pub fn lookup(&self, request: Request<'_>, parent: u64, name: &OsStr) -> Result<Entry> {
        let parent = self.node(parent)?;
        let dir = self.backing.locate(&parent)?;
        Ok(self.entry_at(request, &parent, &dir, name)?.1)
    }

    /// Looks up the top directory of a workspace.
    ///
    /// # Errors
    /// ENOENT where the tree has none of that name; EIO where its directory is gone.
    pub fn lookup_top(&self, request: Request<'_>, gate: &Arc<Gate>) -> Result<Entry> {
        let id = gate.workspace();
        let top = self.backing.open_top(id).map_err(|error| {
            tracing::error!(workspace = %id, %error, "a workspace's directory can't be opened");
            Error(libc::EIO)
        })?;
        let stat = file::stat(&top)?;
        let handle = self.backing.handle_of(&top);
        let (_, mut entry) = self.entry(request, gate, &stat, handle, || Place::Top(id));
        // Mounts on a top and Landlock rules hang on its dentry: it is never looked up anew by
        // MNT while it exists.
        if !request.mount.is_view() {
            entry.entry_ttl = Ttl::UntilChanged;
        }
        Ok(entry)
    }

    /// The attributes of a workspace's top directory.
    ///
    /// # Errors
    /// EIO where its directory is gone.
    pub fn top_attr(&self, gate: &Gate) -> Result<Attr> {
        let top = self
            .backing
            .open_top(gate.workspace())
            .map_err(|_| Error(libc::EIO))?;
        let stat = file::stat(&top)?;
        Ok(Attr::from_stat(self.backing.nodeid(stat.st_ino), &stat))
    }

    /// Takes back lookups that the kernel has forgotten.
    pub fn forget(&self, request: Request<'_>, nodeid: u64, lookups: u64) {
        self.nodes.forget(request.mount.id, nodeid, lookups);
    }

    /// Attributes.
    ///
    /// # Errors
    /// ESTALE where the file can't be found any more.
    pub fn getattr(
        &self,
        request: Request<'_>,
        nodeid: u64,
        fh: Option<u64>,
    ) -> Result<(Attr, Ttl)> {
        let node = self.node(nodeid)?;
        let open = fh.and_then(|fh| self.handles.get(fh));
        let stat = match open.as_deref() {
            Some(Handle::File(open)) if open.node.id == nodeid => file::stat(&open.path)?,
            _ => self.backing.stat(&node)?,
        };
        Ok((
            Attr::from_stat(node.id, &stat),
            self.attr_ttl(request, &node),
        ))
    }

    /// Sets attributes.
    ///
    /// # Errors
    /// EROFS; those of chmod(2), chown(2), truncate(2) and utimensat(2).
    pub fn setattr(
        &self,
        request: Request<'_>,
        nodeid: u64,
        change: &AttrChange,
    ) -> Result<(Attr, Ttl)> {
        let node = self.node(nodeid)?;
        let open = match change.size {
            Some((_, Some(fh))) => self.handles.get(fh),
            _ => None,
        };
        let handle = match open.as_deref() {
            Some(Handle::File(open)) => open.pass.map(|pass| (open, pass)),
            _ => None,
        };
        // ftruncate(2) is judged by its handle; everything else by who asks.
        let only_size = change.mode.is_none() && change.uid.is_none() && change.gid.is_none();
        match handle {
            Some((open, pass)) if only_size => {
                let _access = self.admit_handle(request, &node.gate, pass, || node.path())?;
                self.set_size_by_handle(request, open, change)?;
            }
            _ => {
                let admitted = self.admit(request, &node.gate, || node.path())?;
                let at = self.backing.locate(&node)?;
                let _acting = self.act_as(request.asker, Some(admitted.start))?;
                self.set_attributes(request, &node, &at, change)?;
            }
        }
        let data_from = change
            .size
            .map(|(size, _)| i64::try_from(size).unwrap_or(0));
        self.followed_by_main(request, &[(node.id, data_from.map(|_| 0))]);
        if let Some(mode) = change.mode {
            self.forget_closed_directory(request, &node, mode);
        }
        let stat = self.backing.stat(&node)?;
        Ok((
            Attr::from_stat(node.id, &stat),
            self.attr_ttl(request, &node),
        ))
    }

    fn set_size_by_handle(
        &self,
        request: Request<'_>,
        open: &super::handle::OpenFile,
        change: &AttrChange,
    ) -> Result<()> {
        let Some((size, _)) = change.size else {
            return Ok(());
        };
        let size = i64::try_from(size).map_err(|_| Error(libc::EFBIG))?;
        let _without = self.without_set_id(request)?;
        match &open.path {
            DataPath::Passthrough(_) => {
                let writable = self.backing.open(&open.node, libc::O_WRONLY)?;
                nix::unistd::ftruncate(writable, size)?;
            }
            DataPath::Cached(fd) | DataPath::Direct(fd) => nix::unistd::ftruncate(fd, size)?,
        }
        if change.atime.is_some() || change.mtime.is_some() {
            set_times(&*self.backing.locate(&open.node)?, change)?;
        }
        Ok(())
    }

    fn set_attributes(
        &self,
        request: Request<'_>,
        node: &Node,
        at: &OwnedFd,
        change: &AttrChange,
    ) -> Result<()> {
        let path = file::proc_path(at.as_fd());
        if change.uid.is_some() || change.gid.is_some() {
            nix::unistd::fchownat(
                at,
                c"",
                change.uid.map(Uid::from_raw),
                change.gid.map(Gid::from_raw),
                AtFlags::AT_EMPTY_PATH,
            )?;
        }
        if let Some(mode) = change.mode {
            if node.kind == libc::S_IFLNK {
                return Err(Error(libc::EOPNOTSUPP));
            }
            nix::sys::stat::fchmodat(
                at,
                path.as_c_str(),
                Mode::from_bits_truncate(mode),
                FchmodatFlags::FollowSymlink,
            )?;
        }
        if let Some((size, _)) = change.size {
            let size = i64::try_from(size).map_err(|_| Error(libc::EFBIG))?;
            let _without = self.without_set_id(request)?;
            nix::unistd::truncate(path.as_c_str(), size)?;
        }
        if change.atime.is_some() || change.mtime.is_some() {
            set_times(at, change)?;
        }
        Ok(())
    }

    /// Without the capability to keep setuid bits, where the caller doesn't have it either.
    pub(super) fn without_set_id(&self, request: Request<'_>) -> Result<Option<Without>> {
        if !self.privileged || request.asker.uid == 0 {
            return Ok(None);
        }
        Ok(Some(Without::set_id_and_resource()?))
    }

    /// The kernel walks cached names without asking: where the owner takes its own right to
    /// search or list a directory away, what is cached of it must go. The change's reply is what
    /// unlocks the directory, so this happens on another thread.
    fn forget_closed_directory(&self, request: Request<'_>, node: &Arc<Node>, mode: u32) {
        if self.privileged || request.mount.is_view() || !node.is_directory() {
            return;
        }
        if mode & 0o500 != 0o500 {
            self.backing.let_go(node.id);
            let (this, id) = (self.this.clone(), node.id);
            std::thread::spawn(move || {
                if let Some(fs) = this.upgrade() {
                    fs.forget_names_in(id);
                }
            });
        }
    }

    /// Drops the cached names of a directory. Called from a thread that serves no requests.
    pub fn forget_names_in(&self, nodeid: u64) {
        let Some(kernel) = self.kernel.get() else {
            return;
        };
        kernel.forget_inode(nodeid, Some(0));
        let Ok(directory) = self.node(nodeid) else {
            return;
        };
        let workspace = directory.gate.workspace();
        for node in self.nodes.of_workspace(super::MountId(0), workspace) {
            let place = node.place.lock().clone();
            if let Place::Named(parent, name) = place
                && parent.id == nodeid
            {
                kernel.forget_name(nodeid, &name);
            }
        }
    }

    /// Where a symbolic link leads.
    ///
    /// # Errors
    /// Those of readlink(2).
    pub fn readlink(&self, nodeid: u64) -> Result<std::ffi::OsString> {
        let node = self.node(nodeid)?;
        Ok(nix::fcntl::readlinkat(&*self.backing.locate(&node)?, c"")?)
    }

    /// Makes a name in a directory, with the caller's rights and umask.
    fn make(
        &self,
        request: Request<'_>,
        parent: u64,
        name: &OsStr,
        umask: Option<u32>,
        make: impl FnOnce(&OwnedFd) -> nix::Result<()>,
    ) -> Result<Entry> {
        let parent = self.node(parent)?;
        let admitted = self.admit(request, &parent.gate, || child(&parent, name))?;
        let dir = self.backing.locate(&parent)?;
        if let Some(umask) = umask {
            creds::set_umask(umask)?;
        }
        {
            let _acting = self.act_as(request.asker, Some(admitted.start))?;
            make(&dir)?;
        }
        let (_, entry) = self.entry_at(request, &parent, &dir, name)?;
        drop(admitted);
        self.name_followed_by_main(request, parent.id, name);
        Ok(entry)
    }

    /// Makes a special or regular file.
    ///
    /// # Errors
    /// EROFS; those of mknod(2).
    pub fn mknod(
        &self,
        request: Request<'_>,
        parent: u64,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
    ) -> Result<Entry> {
        let kind = SFlag::from_bits_truncate(mode & libc::S_IFMT);
        let mode = Mode::from_bits_truncate(mode);
        let (major, minor) = (
            (rdev >> 8) & 0xfff,
            (rdev & 0xff) | ((rdev >> 12) & 0xfff00),
        );
        let device = libc::makedev(major, minor);
        self.make(request, parent, name, Some(umask), |dir| {
            nix::sys::stat::mknodat(dir, name, kind, mode, device)
        })
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// EROFS; those of mkdir(2).
    pub fn mkdir(
        &self,
        request: Request<'_>,
        parent: u64,
        name: &OsStr,
        mode: u32,
        umask: u32,
    ) -> Result<Entry> {
        let mode = Mode::from_bits_truncate(mode);
        self.make(request, parent, name, Some(umask), |dir| {
            nix::sys::stat::mkdirat(dir, name, mode)
        })
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// EROFS; those of symlink(2).
    pub fn symlink(
        &self,
        request: Request<'_>,
        parent: u64,
        name: &OsStr,
        target: &OsStr,
    ) -> Result<Entry> {
        self.make(request, parent, name, None, |dir| {
            nix::unistd::symlinkat(target, dir, name)
        })
    }

    /// Gives a file another name.
    ///
    /// # Errors
    /// EXDEV between workspaces; EROFS; those of link(2).
    pub fn link(
        &self,
        request: Request<'_>,
        nodeid: u64,
        parent: u64,
        name: &OsStr,
    ) -> Result<Entry> {
        let node = self.node(nodeid)?;
        let directory = self.node(parent)?;
        if node.gate.workspace() != directory.gate.workspace() {
            return Err(Error(libc::EXDEV));
        }
        let at = self.backing.locate(&node)?;
        let entry = self.make(request, parent, name, None, |dir| {
            nix::unistd::linkat(
                dir,
                file::proc_path(at.as_fd()).as_c_str(),
                dir,
                name,
                LinkatFlags::AT_SYMLINK_FOLLOW,
            )
        })?;
        self.followed_by_main(request, &[(nodeid, None)]);
        Ok(entry)
    }

    /// The file under a name that is about to go; none where there is no such name.
    fn victim(&self, dir: &OwnedFd, name: &OsStr) -> Option<Victim> {
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let fd = nix::fcntl::openat(dir, name, flags, Mode::empty()).ok()?;
        let stat = file::stat(&fd).ok()?;
        Some(Victim {
            id: self.backing.nodeid(stat.st_ino),
            kind: stat.st_mode & libc::S_IFMT,
            links: stat.st_nlink,
            fd,
        })
    }

    /// The name has gone from a node that the kernel may still use: the descriptor keeps the
    /// inode, and so its number, until the kernel forgets it. Whoever looked the name up at the
    /// same time finds it gone after having made the node known, and looks again.
    fn lost_name(&self, victim: Victim, parent: &Node, name: &OsStr) {
        let Some(node) = self.nodes.get(victim.id) else {
            return;
        };
        if node.kind != victim.kind {
            return;
        }
        let last = node.is_directory() || victim.links <= 1;
        if last || (node.handle.is_none() && node.is_at(parent, name)) {
            let path = node.path();
            *node.place.lock() = Place::Pinned(Arc::new(victim.fd), path);
        }
        if node.is_directory() {
            self.backing.let_go(node.id);
        }
    }

    fn remove(
        &self,
        request: Request<'_>,
        parent: u64,
        name: &OsStr,
        flag: UnlinkatFlags,
    ) -> Result<()> {
        let parent = self.node(parent)?;
        let admitted = self.admit(request, &parent.gate, || child(&parent, name))?;
        let dir = self.backing.locate(&parent)?;
        let victim = self.victim(&dir, name);
        {
            let _acting = self.act_as(request.asker, Some(admitted.start))?;
            nix::unistd::unlinkat(&*dir, name, flag)?;
        }
        let id = victim.as_ref().map(|victim| victim.id);
        if let Some(victim) = victim {
            self.lost_name(victim, &parent, name);
        }
        drop(admitted);
        if let Some(id) = id {
            self.followed_by_main(request, &[(id, None)]);
        }
        self.name_followed_by_main(request, parent.id, name);
        Ok(())
    }

    /// Removes a name of a file.
    ///
    /// # Errors
    /// EROFS; those of unlink(2).
    pub fn unlink(&self, request: Request<'_>, parent: u64, name: &OsStr) -> Result<()> {
        self.remove(request, parent, name, UnlinkatFlags::NoRemoveDir)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// EROFS; those of rmdir(2).
    pub fn rmdir(&self, request: Request<'_>, parent: u64, name: &OsStr) -> Result<()> {
        self.remove(request, parent, name, UnlinkatFlags::RemoveDir)
    }

    /// Renames, replaces or exchanges.
    ///
    /// # Errors
    /// EXDEV between workspaces; EROFS; those of renameat2(2).
    pub fn rename(
        &self,
        request: Request<'_>,
        from: (u64, &OsStr),
        to: (u64, &OsStr),
        flags: u32,
    ) -> Result<()> {
        let (from_parent, to_parent) = (self.node(from.0)?, self.node(to.0)?);
        let (from_name, to_name) = (from.1, to.1);
        if from_parent.gate.workspace() != to_parent.gate.workspace() {
            return Err(Error(libc::EXDEV));
        }
        let flags = RenameFlags::from_bits(flags).ok_or(Error(libc::EINVAL))?;
        let exchange = flags.contains(RenameFlags::RENAME_EXCHANGE);
        let admitted = self.admit(request, &from_parent.gate, || {
            child(&from_parent, from_name)
        })?;
        let from_dir = self.backing.locate(&from_parent)?;
        let to_dir = self.backing.locate(&to_parent)?;
        let source = self.victim(&from_dir, from_name);
        let target = self.victim(&to_dir, to_name);
        {
            let _acting = self.act_as(request.asker, Some(admitted.start))?;
            nix::fcntl::renameat2(&*from_dir, from_name, &*to_dir, to_name, flags)?;
        }
        let ids = [&source, &target].map(|file| file.as_ref().map(|file| file.id));
        // Renaming one name of an inode over another one of it changes nothing.
        if ids[0] != ids[1] {
            if let Some(node) = source.and_then(|source| self.nodes.get(source.id)) {
                *node.place.lock() = Place::Named(Arc::clone(&to_parent), to_name.to_owned());
            }
            match target {
                Some(target) if exchange => {
                    if let Some(node) = self.nodes.get(target.id) {
                        *node.place.lock() =
                            Place::Named(Arc::clone(&from_parent), from_name.to_owned());
                    }
                }
                Some(target) => self.lost_name(target, &to_parent, to_name),
                None => {}
            }
        }
        drop(admitted);
        for id in ids.into_iter().flatten() {
            self.followed_by_main(request, &[(id, None)]);
        }
        self.name_followed_by_main(request, from_parent.id, from_name);
        self.name_followed_by_main(request, to_parent.id, to_name);
        Ok(())
    }

    /// Reads a directory from `offset`, which is 0 or what an earlier entry gave as the next
    /// one's. `take` gets each entry, and says when it has enough.
    ///
    /// # Errors
    /// Those of open(2) and getdents64(2).
    pub fn readdir(
        &self,
        nodeid: u64,
        offset: u64,
        mut take: impl FnMut(&OwnedFd, &Arc<Node>, u64, dir::DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let node = self.node(nodeid)?;
        let directory = self
            .backing
            .open(&node, libc::O_RDONLY | libc::O_DIRECTORY)?;
        if offset > 0 {
            let offset = i64::try_from(offset).map_err(|_| Error(libc::EINVAL))?;
            nix::unistd::lseek(&directory, offset, nix::unistd::Whence::SeekSet)?;
        }
        let mut buffer = vec![0; 32 * 1024];
        loop {
            let mut any = false;
            for entry in dir::read(&directory, &mut buffer)? {
                any = true;
                let ino = if entry.name == ".." && matches!(*node.place.lock(), Place::Top(_)) {
                    super::Synthetic::Root.ino()
                } else {
                    self.backing.nodeid(entry.ino)
                };
                if take(&directory, &node, ino, entry) {
                    return Ok(());
                }
            }
            if !any {
                return Ok(());
            }
        }
    }

    /// The answer to a lookup of an entry that was just listed; none where it has gone since, or
    /// lies on another filesystem.
    pub fn listed(
        &self,
        request: Request<'_>,
        directory: &OwnedFd,
        parent: &Arc<Node>,
        name: &OsStr,
    ) -> Option<Entry> {
        self.entry_at(request, parent, directory, name)
            .ok()
            .map(|(_, entry)| entry)
    }

    /// The kernel had no room for an entry that was counted.
    pub fn unlisted(&self, request: Request<'_>, entry: &Entry) {
        self.nodes.forget(request.mount.id, entry.nodeid, 1);
    }

    /// Whether the caller may access a file.
    ///
    /// # Errors
    /// EACCES; EROFS for writing to what it may not change.
    pub fn access(&self, request: Request<'_>, nodeid: u64, mask: i32) -> Result<()> {
        let node = self.node(nodeid)?;
        let at = self.backing.locate(&node)?;
        {
            let _acting = self.act_as(request.asker, None)?;
            file::access(&*at, mask & !libc::W_OK)?;
            if mask & libc::W_OK == 0 {
                return Ok(());
            }
        }
        // A read-only mount lets special files be written to.
        if matches!(node.kind, libc::S_IFREG | libc::S_IFDIR | libc::S_IFLNK) {
            node.gate.admit(self.who(request).role)?;
        }
        let _acting = self.act_as(request.asker, None)?;
        Ok(file::access(&*at, libc::W_OK)?)
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// EROFS; those of setxattr(2).
    pub fn setxattr(
        &self,
        request: Request<'_>,
        nodeid: u64,
        name: &OsStr,
        value: &[u8],
        flags: i32,
    ) -> Result<()> {
        self.change_xattr(request, nodeid, |path| xattr::set(path, name, value, flags))
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// EROFS; those of removexattr(2).
    pub fn removexattr(&self, request: Request<'_>, nodeid: u64, name: &OsStr) -> Result<()> {
        self.change_xattr(request, nodeid, |path| xattr::remove(path, name))
    }

    fn change_xattr(
        &self,
        request: Request<'_>,
        nodeid: u64,
        change: impl FnOnce(&std::ffi::CStr) -> std::io::Result<()>,
    ) -> Result<()> {
        let node = self.node(nodeid)?;
        let admitted = self.admit(request, &node.gate, || node.path())?;
        let at = self.backing.locate(&node)?;
        {
            let _acting = self.act_as(request.asker, Some(admitted.start))?;
            change(&file::proc_path(at.as_fd()))?;
        }
        drop(admitted);
        // An ACL shows in the mode.
        self.followed_by_main(request, &[(node.id, None)]);
        Ok(())
    }

    /// Reads an extended attribute into `buffer`; an empty one asks for the size.
    ///
    /// # Errors
    /// Those of getxattr(2).
    pub fn getxattr(
        &self,
        request: Request<'_>,
        nodeid: u64,
        name: &OsStr,
        buffer: &mut [u8],
    ) -> Result<usize> {
        let node = self.node(nodeid)?;
        let at = self.backing.locate(&node)?;
        let _acting = self.act_as(request.asker, None)?;
        Ok(xattr::get(&file::proc_path(at.as_fd()), name, buffer)?)
    }

    /// Lists extended attributes into `buffer`; an empty one asks for the size.
    ///
    /// # Errors
    /// Those of listxattr(2).
    pub fn listxattr(&self, request: Request<'_>, nodeid: u64, buffer: &mut [u8]) -> Result<usize> {
        let node = self.node(nodeid)?;
        let at = self.backing.locate(&node)?;
        let _acting = self.act_as(request.asker, None)?;
        Ok(xattr::list(&file::proc_path(at.as_fd()), buffer)?)
    }

    /// Whether a directory may be opened for listing.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn may_list(&self, request: Request<'_>, nodeid: u64) -> Result<()> {
        if super::Synthetic::from_nodeid(nodeid).is_some() {
            return Ok(());
        }
        let node = self.node(nodeid)?;
        let at = self.backing.locate(&node)?;
        let _acting = self.act_as(request.asker, None)?;
        file::reopen(&*at, libc::O_RDONLY | libc::O_DIRECTORY)?;
        Ok(())
    }

    /// The filesystem beneath.
    ///
    /// # Errors
    /// Those of fstatvfs(3).
    pub fn statfs(&self) -> Result<nix::sys::statvfs::Statvfs> {
        Ok(nix::sys::statvfs::fstatvfs(self.backing.workspaces())?)
    }

    /// Makes a directory's names durable.
    ///
    /// # Errors
    /// Those of fsync(2).
    pub fn fsyncdir(&self, nodeid: u64, data_only: bool) -> Result<()> {
        let node = self.node(nodeid)?;
        let fd = self
            .backing
            .open(&node, libc::O_RDONLY | libc::O_DIRECTORY)?;
        data::sync(fd, data_only)
    }

    /// Creates and opens a file.
    ///
    /// # Errors
    /// EROFS; those of open(2).
    pub fn create(
        &self,
        request: Request<'_>,
        parent: u64,
        name: &OsStr,
        how: CreateHow,
        register: &dyn super::Register,
    ) -> Result<(Entry, super::Opened)> {
        let CreateHow { mode, umask, flags } = how;
        let parent = self.node(parent)?;
        let admitted = self.admit(request, &parent.gate, || child(&parent, name))?;
        let dir = self.backing.locate(&parent)?;
        creds::set_umask(umask)?;
        let fd = {
            let _acting = self.act_as(request.asker, Some(admitted.start))?;
            // O_NONBLOCK: a fifo that appeared under the name meanwhile must not hold the thread.
            let flags =
                flags & !libc::O_DIRECT | libc::O_CREAT | libc::O_NOFOLLOW | libc::O_NONBLOCK;
            nix::fcntl::openat(
                &*dir,
                name,
                OFlag::from_bits_truncate(flags) | OFlag::O_CLOEXEC,
                Mode::from_bits_truncate(mode),
            )?
        };
        let stat = file::stat(&fd)?;
        if stat.st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(Error(libc::EEXIST));
        }
        let handle = self.backing.handle_of(&fd);
        let (node, mut entry) = self.entry(request, &parent.gate, &stat, handle, || {
            Place::Named(Arc::clone(&parent), name.to_owned())
        });
        let opened = self.opened(request, &node, flags, fd, Some(&admitted), register);
        if opened.is_err() {
            self.nodes.forget(request.mount.id, node.id, 1);
        }
        let opened = opened?;
        entry.attr_ttl = self.attr_ttl(request, &node);
        drop(admitted);
        self.name_followed_by_main(request, parent.id, name);
        Ok((entry, opened))
    }
}

fn set_times(at: &OwnedFd, change: &AttrChange) -> Result<()> {
    nix::sys::stat::utimensat(
        at,
        file::proc_path(at.as_fd()).as_c_str(),
        &time_spec(change.atime),
        &time_spec(change.mtime),
        UtimensatFlags::FollowSymlink,
    )?;
    Ok(())
}
