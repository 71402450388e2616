//! Attributes and extended attributes of backing files, and who may access them.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use nix::fcntl::AtFlags;
use nix::sys::stat::{FchmodatFlags, Mode, UtimensatFlags};
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, Uid};

use super::Fs;
use super::access::Request;
use super::attr::{Attr, Ttl};
use super::error::{Error, Result};
use super::handle::{DataPath, Handle};
use super::node::{Node, Place};
use crate::sys::creds::Without;
use crate::sys::{file, xattr};

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

fn time_spec(time: Option<NewTime>) -> TimeSpec {
    match time {
        None => TimeSpec::UTIME_OMIT,
        Some(NewTime::Now) => TimeSpec::UTIME_NOW,
        Some(NewTime::At(seconds, nanos)) => TimeSpec::new(seconds, nanos),
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

impl Fs {
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
            self.attr_ttl(request, &node, stat.st_mode),
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
            self.attr_ttl(request, &node, stat.st_mode),
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
        if !self.privileged || (request.asker.uid == 0 && self.keeps_set_id(request)) {
            return Ok(None);
        }
        Ok(Some(Without::set_id_and_resource()?))
    }

    /// The kernel walks cached names without asking: where the owner takes its own right to
    /// search or list a directory away, what is cached of it must go. Its own name is dropped, and
    /// with it the names beneath; a workspace's top keeps its name, whatever its mode. The
    /// kernel holds the directory locked until the change is answered, and who removes it waits
    /// for that with the parent locked, so the change can't wait for this.
    fn forget_closed_directory(&self, request: Request<'_>, node: &Arc<Node>, mode: u32) {
        if self.privileged || request.mount.is_view() || !node.is_directory() {
            return;
        }
        if mode & 0o500 == 0o500 {
            return;
        }
        self.backing.let_go(node.id);
        let (this, node) = (self.this.clone(), Arc::clone(node));
        std::thread::spawn(move || {
            let Some(fs) = this.upgrade() else { return };
            let Some(kernel) = fs.kernel.get() else {
                return;
            };
            kernel.forget_inode(node.id, Some(0));
            let place = node.place.lock().clone();
            if let Place::Named(parent, name) = place {
                kernel.forget_name(parent.id, &name);
            }
        });
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
}
