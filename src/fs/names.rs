//! Making, moving and removing names of backing files: what the caller's window decides.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use nix::fcntl::{OFlag, RenameFlags};
use nix::sys::stat::{Mode, SFlag};
use nix::unistd::{LinkatFlags, UnlinkatFlags};

use super::Fs;
use super::access::Request;
use super::attr::Entry;
use super::error::{Error, Result};
use super::node::{Node, Place};
use crate::sys::creds::{self};
use crate::sys::file;

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
    fd: Arc<OwnedFd>,
    id: u64,
    kind: u32,
    links: u64,
}

/// The name stays, and so does the place where the node was seen.
fn restore(before: Option<(Arc<Node>, Place)>) {
    if let Some((node, place)) = before {
        *node.place.lock() = place;
    }
}

/// A directory and a name in it, for reports.
fn child(parent: &Node, name: &OsStr) -> PathBuf {
    parent.path().join(name)
}

impl Fs {
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
            Place::Named(Arc::clone(&parent), name.into())
        });
        let opened = self.opened(request, &node, flags, fd, Some(&admitted), register);
        if opened.is_err() {
            self.nodes.forget(request.mount.id, node.id, 1);
        }
        let opened = opened?;
        entry.attr_ttl = self.attr_ttl(request, &node, stat.st_mode);
        drop(admitted);
        self.name_followed_by_main(request, parent.id, name);
        Ok((entry, opened))
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
            fd: Arc::new(fd),
        })
    }

    /// A node was seen under a new name.
    fn found(&self, file: &Victim, parent: &Arc<Node>, name: &OsStr) {
        if let Some(node) = self.nodes.get(file.id) {
            *node.place.lock() = Place::Named(Arc::clone(parent), name.into());
        }
    }

    /// The name is about to go from a node that the kernel may still use: the descriptor keeps the
    /// inode, and so its number, until the kernel forgets it or a new name is known. Gives the
    /// node and where it was seen, for the case that the name stays.
    fn hold(&self, victim: &Victim, parent: &Node, name: &OsStr) -> Option<(Arc<Node>, Place)> {
        let node = self.nodes.get(victim.id)?;
        if node.kind != victim.kind {
            return None;
        }
        let last = node.is_directory() || victim.links <= 1;
        if !last && (node.handle.is_some() || !node.is_at(parent, name)) {
            return None;
        }
        let path = node.path();
        let pinned = Place::Pinned(Arc::clone(&victim.fd), path);
        let before = std::mem::replace(&mut *node.place.lock(), pinned);
        Some((node, before))
    }

    /// The name has gone. Whoever looked it up at the same time made the node known only now, and
    /// finds the name gone after that, and looks again.
    fn lost_name(&self, victim: &Victim, parent: &Node, name: &OsStr) {
        if let Some((node, _)) = self.hold(victim, parent, name)
            && node.is_directory()
        {
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
        let before = victim.as_ref().and_then(|v| self.hold(v, &parent, name));
        let removed = {
            let _acting = self.act_as(request.asker, Some(admitted.start))?;
            nix::unistd::unlinkat(&*dir, name, flag)
        };
        if let Err(errno) = removed {
            restore(before);
            return Err(errno.into());
        }
        let id = victim.as_ref().map(|victim| victim.id);
        if let Some(victim) = victim {
            self.lost_name(&victim, &parent, name);
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
        let ids = [&source, &target].map(|file| file.as_ref().map(|file| file.id));
        // Renaming one name of an inode over another one of it changes nothing.
        let moves = ids[0] != ids[1];
        let mut held = Vec::new();
        if moves {
            held.extend(
                source
                    .as_ref()
                    .map(|file| self.hold(file, &from_parent, from_name)),
            );
            held.extend(
                target
                    .as_ref()
                    .map(|file| self.hold(file, &to_parent, to_name)),
            );
        }
        let renamed = {
            let _acting = self.act_as(request.asker, Some(admitted.start))?;
            nix::fcntl::renameat2(&*from_dir, from_name, &*to_dir, to_name, flags)
        };
        if let Err(errno) = renamed {
            held.into_iter().for_each(restore);
            return Err(errno.into());
        }
        if moves {
            if let Some(source) = &source {
                self.found(source, &to_parent, to_name);
            }
            match &target {
                Some(target) if exchange => self.found(target, &from_parent, from_name),
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
}
