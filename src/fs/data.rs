//! Data of backing files: opening decides, by the caller; what goes through a handle is judged
//! by how that was opened.

use std::any::Any;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use nix::fcntl::FallocateFlags;
use nix::unistd::Whence;

use super::Fs;
use super::access::{Admitted, Request};
use super::backing::Held;
use super::error::{Error, Result};
use super::handle::{DataPath, Handle, OpenFile};
use super::node::{DataMode, Node, Shared};
use super::operation::opens_for_writing;
use crate::gate::{Pass, Writer};
use crate::sys::file;

/// From this size on a file that is only read goes straight to the backing file: the page cache
/// is one copy less, while small files are read again without any request.
const PASSTHROUGH_SIZE: i64 = 128 * 1024;

/// The longest copy in one request, so that none holds a thread for long.
const COPY_AT_ONCE: usize = 16 * 1024 * 1024;

/// Inode-flag ioctls (linux/fs.h), with whether they change the file.
const FLAG_IOCTLS: [(u32, bool); 4] = [
    (0x8008_6601, false), // FS_IOC_GETFLAGS
    (0x4008_6602, true),  // FS_IOC_SETFLAGS
    (0x801c_581f, false), // FS_IOC_FSGETXATTR
    (0x401c_5820, true),  // FS_IOC_FSSETXATTR
];

/// How the kernel is to reach the data of an open file.
#[derive(Clone)]
pub enum Reached {
    /// Straight, by this registration.
    Passthrough(Arc<dyn Any + Send + Sync>),
    /// Through the page cache, which is good as it is.
    Cached,
    /// By requests alone.
    Direct,
}

/// A file that was opened.
pub struct Opened {
    /// The number of its handle.
    pub handle: u64,
    /// How its data is reached.
    pub reached: Reached,
}

/// How to write.
#[derive(Debug, Clone, Copy)]
pub struct WriteHow {
    /// At the end of the file, wherever that is.
    pub appends: bool,
    /// Dirty pages of a mapping.
    pub from_cache: bool,
    /// Clear setuid bits.
    pub kill_set_id: bool,
}

/// Makes a file or directory durable.
pub(super) fn sync(fd: impl AsFd, data_only: bool) -> Result<()> {
    let synced = if data_only {
        nix::unistd::fdatasync(fd)
    } else {
        nix::unistd::fsync(fd)
    };
    Ok(synced?)
}

impl Fs {
    /// Opens a file.
    ///
    /// # Errors
    /// EROFS; those of open(2).
    pub fn open(
        &self,
        request: Request<'_>,
        nodeid: u64,
        flags: i32,
        register: &dyn super::Register,
    ) -> Result<Opened> {
        let node = self.node(nodeid)?;
        let admitted = if opens_for_writing(flags) {
            Some(self.admit(request, &node.gate, || node.path())?)
        } else {
            None
        };
        // What the kernel has acted on already, or does by itself, is not for the backing file;
        // O_NOFOLLOW would refuse the way by which a descriptor is opened anew.
        let own = flags
            & !(libc::O_CREAT
                | libc::O_EXCL
                | libc::O_NOCTTY
                | libc::O_NOFOLLOW
                | libc::O_DIRECT
                | libc::O_APPEND);
        let fd = {
            // Found with the daemon's rights, opened with the caller's.
            let at = self.backing.locate(&node)?;
            let start = admitted.as_ref().map(|a| a.start);
            let _acting = self.act_as(request.asker, start)?;
            file::reopen(&*at, own)?
        };
        let truncated = flags & libc::O_TRUNC != 0;
        let opened = self.opened(request, &node, flags, fd, admitted.as_ref(), register);
        drop(admitted);
        if truncated {
            self.followed_by_main(request, &[(node.id, Some(0))]);
        }
        opened
    }

    /// Registers a descriptor that was opened with `flags` as a handle.
    pub(super) fn opened(
        &self,
        request: Request<'_>,
        node: &Arc<Node>,
        flags: i32,
        fd: OwnedFd,
        admitted: Option<&Admitted<'_>>,
        register: &dyn super::Register,
    ) -> Result<Opened> {
        let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
        let (path, reached) = if request.mount.is_view() {
            (DataPath::Direct(fd), Reached::Direct)
        } else {
            self.reach(node, writes, fd, register)?
        };
        let may_map =
            flags & libc::O_ACCMODE == libc::O_RDWR && matches!(path, DataPath::Passthrough(_));
        let pass = admitted.filter(|_| writes).map(|admitted| admitted.pass);
        let mut open = OpenFile {
            node: Arc::clone(node),
            path,
            may_map,
            pass,
            writer: None,
        };
        if let (Some(admitted), Some(pass)) = (admitted, pass) {
            open.writer = Some(admitted.access.register(pass, self.held(node)));
            if may_map {
                self.note_mapped(node, pass);
            }
        }
        Ok(Opened {
            handle: self.handles.insert(Handle::File(open)),
            reached,
        })
    }

    fn held(&self, node: &Arc<Node>) -> Arc<Held> {
        Arc::new(Held {
            node: Arc::clone(node),
            backing: Arc::clone(&self.backing),
        })
    }

    fn note_mapped(&self, node: &Arc<Node>, pass: Pass) {
        let first = {
            let mut data = node.data.lock();
            data.mapping_opens += 1;
            !std::mem::replace(&mut data.may_be_mapped, true)
        };
        node.gate.note_mapped(Writer {
            pass,
            file: self.held(node),
        });
        // What the kernel believes of its times and size ends with the first store.
        if first && let Some(kernel) = self.kernel.get() {
            kernel.forget_inode(node.id, None);
        }
    }

    /// One inode has one mode at a time, and all passthrough handles share one registration.
    fn reach(
        &self,
        node: &Arc<Node>,
        writes: bool,
        fd: OwnedFd,
        register: &dyn super::Register,
    ) -> Result<(DataPath, Reached)> {
        let mut data = node.data.lock();
        match &mut data.mode {
            DataMode::Cached { opens } => {
                *opens += 1;
                return Ok((DataPath::Cached(fd), Reached::Cached));
            }
            DataMode::Passthrough(shared) => {
                shared.opens += 1;
                return Ok((
                    DataPath::Passthrough(Arc::clone(&shared.file)),
                    Reached::Passthrough(Arc::clone(&shared.backing)),
                ));
            }
            DataMode::Closed => {}
        }
        let passthrough = self.passthrough
            && (writes || data.may_be_mapped || file::stat(&fd)?.st_size >= PASSTHROUGH_SIZE);
        if passthrough {
            // No writable descriptor is kept: it would hide whether the file is quiet.
            let reader = if writes {
                file::reopen(&fd, libc::O_RDONLY)?
            } else {
                fd.try_clone()?
            };
            match register.register(reader.as_fd()) {
                Ok(backing) => {
                    let file = Arc::new(reader);
                    data.mode = DataMode::Passthrough(Box::new(Shared {
                        opens: 1,
                        file: Arc::clone(&file),
                        backing: Arc::clone(&backing),
                    }));
                    return Ok((DataPath::Passthrough(file), Reached::Passthrough(backing)));
                }
                Err(error) => {
                    tracing::debug!(node = node.id, %error, "no passthrough for this file");
                    if data.may_be_mapped {
                        return Err(error.into());
                    }
                }
            }
        }
        data.mode = DataMode::Cached { opens: 1 };
        Ok((DataPath::Cached(fd), Reached::Cached))
    }

    /// Whether no mapping that nobody sees can change the file: looked at anew where that was
    /// possible before.
    pub(super) fn settle(&self, node: &Arc<Node>) -> bool {
        {
            let data = node.data.lock();
            // The kernel opens the backing file only after the reply to an open, and until then
            // no lease could tell.
            if !data.may_be_mapped || data.mapping_opens > 0 {
                return !data.may_be_mapped;
            }
        }
        let quiet = crate::gate::HeldFile::is_quiet(&*self.held(node));
        let mut data = node.data.lock();
        if !quiet || data.mapping_opens > 0 {
            return false;
        }
        data.may_be_mapped = false;
        node.gate.forget_mapped(node.id);
        true
    }

    /// A handle was closed.
    pub fn release(&self, handle: u64) {
        let Some(closed) = self.handles.remove(handle) else {
            return;
        };
        if let Handle::File(open) = &*closed
            && open.may_map
        {
            let node = Arc::clone(&open.node);
            drop(closed);
            self.settle(&node);
        }
    }

    /// Reads through a handle.
    ///
    /// # Errors
    /// EBADF; those of pread(2).
    pub fn read(&self, handle: u64, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let handle = self.handles.get(handle).ok_or(Error(libc::EBADF))?;
        let Handle::File(open) = &*handle else {
            return Err(Error(libc::EBADF));
        };
        let offset = i64::try_from(offset).map_err(|_| Error(libc::EINVAL))?;
        let mut done = 0;
        // A short read means the end of the file to the kernel, so only that may be short.
        while done < buffer.len() {
            match nix::sys::uio::pread(&open.path, &mut buffer[done..], offset + done as i64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(nix::errno::Errno::EINTR) => {}
                Err(errno) if done == 0 => return Err(errno.into()),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Writes through a handle. Dirty pages of a mapping are never refused: they were accepted
    /// when they were stored.
    ///
    /// # Errors
    /// EROFS for a handle of an older epoch; those of pwrite(2).
    pub fn write(
        &self,
        request: Request<'_>,
        handle: u64,
        offset: u64,
        data: &[u8],
        how: WriteHow,
    ) -> Result<usize> {
        let WriteHow {
            appends,
            from_cache,
            kill_set_id,
        } = how;
        let handle = self.handles.get(handle).ok_or(Error(libc::EBADF))?;
        let Handle::File(open) = &*handle else {
            return Err(Error(libc::EBADF));
        };
        let node = &open.node;
        let access = match open.pass {
            _ if from_cache => None,
            Some(pass) => Some(self.admit_handle(request, &node.gate, pass, || node.path())?),
            None => return Err(Error(libc::EBADF)),
        };
        let _without = if kill_set_id && self.privileged {
            Some(crate::sys::creds::Without::set_id_and_resource()?)
        } else {
            None
        };
        let writable = match &open.path {
            DataPath::Passthrough(_) => Some(self.backing.open(node, libc::O_WRONLY)?),
            DataPath::Cached(_) | DataPath::Direct(_) => None,
        };
        let fd = writable.as_ref().map_or(open.path.as_fd(), |fd| fd.as_fd());
        let offset = i64::try_from(offset).map_err(|_| Error(libc::EFBIG))?;
        let mut done = 0;
        while done < data.len() {
            let part = &data[done..];
            let written = if appends && !from_cache {
                file::append(fd, part)
            } else {
                nix::sys::uio::pwrite(fd, part, offset + done as i64).map_err(Into::into)
            };
            match written {
                Ok(written) => done += written,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) if done == 0 => return Err(error.into()),
                Err(_) => break,
            }
        }
        drop(access);
        self.followed_by_main(request, &[(node.id, Some(0))]);
        Ok(done)
    }

    /// Makes what was written through a handle durable.
    ///
    /// # Errors
    /// EBADF; those of fsync(2).
    pub fn fsync(&self, handle: u64, data_only: bool) -> Result<()> {
        match &*self.handles.get(handle).ok_or(Error(libc::EBADF))? {
            Handle::File(open) => sync(&open.path, data_only),
            Handle::Channel(_) | Handle::Snapshot(_) | Handle::Synthetic(_) => {
                Err(Error(libc::EINVAL))
            }
        }
    }

    /// Reserves, punches or collapses room in a file.
    ///
    /// # Errors
    /// EROFS; those of fallocate(2).
    pub fn fallocate(
        &self,
        request: Request<'_>,
        handle: u64,
        offset: u64,
        length: u64,
        mode: i32,
    ) -> Result<()> {
        let handle = self.handles.get(handle).ok_or(Error(libc::EBADF))?;
        let Handle::File(open) = &*handle else {
            return Err(Error(libc::ENODEV));
        };
        let (offset, length) = (
            i64::try_from(offset).map_err(|_| Error(libc::EFBIG))?,
            i64::try_from(length).map_err(|_| Error(libc::EFBIG))?,
        );
        let mode = FallocateFlags::from_bits(mode).ok_or(Error(libc::EOPNOTSUPP))?;
        self.change_by_handle(request, open, |fd| {
            Ok(nix::fcntl::fallocate(fd, mode, offset, length)?)
        })
    }

    fn change_by_handle<T>(
        &self,
        request: Request<'_>,
        open: &OpenFile,
        change: impl FnOnce(std::os::fd::BorrowedFd<'_>) -> Result<T>,
    ) -> Result<T> {
        let node = &open.node;
        let pass = open.pass.ok_or(Error(libc::EBADF))?;
        let access = self.admit_handle(request, &node.gate, pass, || node.path())?;
        let _without = self.without_set_id(request)?;
        let changed = match &open.path {
            DataPath::Passthrough(_) => {
                let fd = self.backing.open(node, libc::O_RDWR)?;
                change(fd.as_fd())?
            }
            DataPath::Cached(fd) | DataPath::Direct(fd) => change(fd.as_fd())?,
        };
        drop(access);
        self.followed_by_main(request, &[(node.id, Some(0))]);
        Ok(changed)
    }

    /// Finds data or a hole.
    ///
    /// # Errors
    /// ENXIO past the end; EINVAL for what the kernel answers by itself.
    pub fn lseek(&self, handle: u64, offset: i64, whence: i32) -> Result<i64> {
        let handle = self.handles.get(handle).ok_or(Error(libc::EBADF))?;
        let Handle::File(open) = &*handle else {
            return Err(Error(libc::EINVAL));
        };
        let whence = match whence {
            libc::SEEK_DATA => Whence::SeekData,
            libc::SEEK_HOLE => Whence::SeekHole,
            _ => return Err(Error(libc::EINVAL)),
        };
        Ok(nix::unistd::lseek(&open.path, offset, whence)?)
    }

    /// Copies within the backing filesystem; at most some MiB a call.
    ///
    /// # Errors
    /// EROFS; those of copy_file_range(2).
    pub fn copy_file_range(
        &self,
        request: Request<'_>,
        from: (u64, u64),
        to: (u64, u64),
        length: u64,
    ) -> Result<usize> {
        let source = self.handles.get(from.0).ok_or(Error(libc::EBADF))?;
        let target = self.handles.get(to.0).ok_or(Error(libc::EBADF))?;
        let (Handle::File(source), Handle::File(target)) = (&*source, &*target) else {
            return Err(Error(libc::EXDEV));
        };
        let mut read_at = i64::try_from(from.1).map_err(|_| Error(libc::EINVAL))?;
        let mut write_at = i64::try_from(to.1).map_err(|_| Error(libc::EFBIG))?;
        let length = usize::try_from(length)
            .unwrap_or(usize::MAX)
            .min(COPY_AT_ONCE);
        // A source that is open for writing alone is the kernel's to refuse (EBADF).
        self.change_by_handle(request, target, |fd| {
            Ok(nix::fcntl::copy_file_range(
                &source.path,
                Some(&mut read_at),
                fd,
                Some(&mut write_at),
                length,
            )?)
        })
    }

    /// Reads or sets inode flags (`lsattr`, `chattr`).
    ///
    /// # Errors
    /// EROFS; ENOTTY for every other ioctl.
    pub fn ioctl(
        &self,
        request: Request<'_>,
        nodeid: u64,
        command: u32,
        input: &[u8],
    ) -> Result<[u8; 64]> {
        let known = FLAG_IOCTLS.iter().find(|(number, _)| *number == command);
        let Some((_, changes)) = known else {
            return Err(Error(libc::ENOTTY));
        };
        let node = self.node(nodeid)?;
        let mut data = [0; 64];
        let length = input.len().min(data.len());
        data[..length].copy_from_slice(&input[..length]);
        let admitted = if *changes {
            Some(self.admit(request, &node.gate, || node.path())?)
        } else {
            None
        };
        let at = self.backing.locate(&node)?;
        {
            let start = admitted.as_ref().map(|a| a.start);
            let fd = file::reopen(&*at, libc::O_RDONLY)?;
            let _acting = self.act_as(request.asker, start)?;
            file::flags_ioctl(fd, command, &mut data)?;
        }
        drop(admitted);
        if *changes {
            self.followed_by_main(request, &[(node.id, None)]);
        }
        Ok(data)
    }
}
