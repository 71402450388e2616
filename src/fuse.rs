//! The only file that knows fuser: each operation converts, calls the tree, and replies.

use std::any::Any;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    AccessFlags, BackingId, BsdFileFlags, Config, CopyFileRangeFlags, Errno, FileAttr, FileHandle,
    FileType, FopenFlags, Generation, INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner,
    Notifier, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs,
    ReplyWrite, ReplyXattr, SessionACL, TimeOrNow, WriteFlags,
};
use tokio::runtime::Handle as Runtime;

use crate::fs::{
    Asker, Attr, AttrChange, Entry, Error, Fs, Kernel, Mount, NewTime, Opened, Operation, Reached,
    Register, Request, Synthetic, Ttl,
};
use crate::sys::creds::Without;

/// The longest write in one request.
const MAX_WRITE: u32 = 1024 * 1024;
/// Readahead and other background requests that the kernel may have waiting.
const MAX_BACKGROUND: u16 = 64;
/// What the kernel may believe until it changes it itself.
const LONG: Duration = Duration::from_secs(24 * 60 * 60);

impl Ttl {
    fn duration(self) -> Duration {
        match self {
            Self::UntilChanged => LONG,
            Self::Never => Duration::ZERO,
        }
    }
}

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        Errno::from_i32(error.0)
    }
}

fn system_time((seconds, nanos): (i64, i64)) -> SystemTime {
    let nanos = Duration::from_nanos(nanos.try_into().unwrap_or(0));
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let moment = if seconds < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(whole)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(whole)
    };
    moment.map_or(SystemTime::UNIX_EPOCH, |moment| moment + nanos)
}

fn new_time(time: TimeOrNow) -> NewTime {
    match time {
        TimeOrNow::Now => NewTime::Now,
        TimeOrNow::SpecificTime(time) => match time.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(since) => NewTime::At(since.as_secs().cast_signed(), since.subsec_nanos().into()),
            // fuser gives seconds and nanoseconds one sign; on the wire, and for the disk, the
            // nanoseconds count forwards.
            Err(before) => {
                let before = before.duration();
                let seconds = -before.as_secs().cast_signed();
                NewTime::At(seconds, before.subsec_nanos().into())
            }
        },
    }
}

fn file_type(mode: u32) -> FileType {
    match mode & libc::S_IFMT {
        libc::S_IFDIR => FileType::Directory,
        libc::S_IFLNK => FileType::Symlink,
        libc::S_IFIFO => FileType::NamedPipe,
        libc::S_IFSOCK => FileType::Socket,
        libc::S_IFCHR => FileType::CharDevice,
        libc::S_IFBLK => FileType::BlockDevice,
        _ => FileType::RegularFile,
    }
}

fn dirent_type(kind: u8) -> FileType {
    // DT_ constants are the file type bits of st_mode.
    file_type(u32::from(kind) << 12)
}

fn file_attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino),
        size: attr.size,
        blocks: attr.blocks,
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: SystemTime::UNIX_EPOCH,
        kind: file_type(attr.mode),
        perm: (attr.mode & 0o7777) as u16,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: attr.blksize,
        flags: 0,
    }
}

fn reply_entry(reply: ReplyEntry, entry: Result<Entry, Error>) {
    match entry {
        Ok(entry) => reply.entry_with_ttls(
            &entry.attr_ttl.duration(),
            &entry.entry_ttl.duration(),
            &file_attr(&entry.attr),
            Generation(entry.generation),
        ),
        Err(error) => reply.error(error.into()),
    }
}

fn reply_attr(reply: ReplyAttr, attr: Result<(Attr, Ttl), Error>) {
    match attr {
        Ok((attr, ttl)) => reply.attr(&ttl.duration(), &file_attr(&attr)),
        Err(error) => reply.error(error.into()),
    }
}

fn reply_empty(reply: ReplyEmpty, done: Result<(), Error>) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error.into()),
    }
}

fn reply_written(reply: ReplyWrite, written: Result<usize, Error>) {
    match written {
        Ok(written) => reply.written(u32::try_from(written).unwrap_or(u32::MAX)),
        Err(error) => reply.error(error.into()),
    }
}

fn reply_xattr(reply: ReplyXattr, size: u32, read: impl FnOnce(&mut [u8]) -> Result<usize, Error>) {
    let mut buffer = vec![0; size as usize];
    match read(&mut buffer) {
        Ok(length) if size == 0 => reply.size(u32::try_from(length).unwrap_or(u32::MAX)),
        Ok(length) => reply.data(&buffer[..length]),
        Err(error) => reply.error(error.into()),
    }
}

fn backing_id(backing: &Arc<dyn Any + Send + Sync>) -> Option<&BackingId> {
    backing.downcast_ref()
}

fn reply_open(reply: ReplyOpen, opened: Result<Opened, Error>) {
    match opened {
        Err(error) => reply.error(error.into()),
        Ok(opened) => {
            let handle = FileHandle(opened.handle);
            match opened.reached {
                Reached::Direct => reply.opened(handle, FopenFlags::FOPEN_DIRECT_IO),
                Reached::Cached => reply.opened(handle, FopenFlags::FOPEN_KEEP_CACHE),
                Reached::Passthrough(backing) => match backing_id(&backing) {
                    Some(id) => reply.opened_passthrough(handle, FopenFlags::empty(), id),
                    None => reply.error(Errno::EIO),
                },
            }
        }
    }
}

/// Registers with `open`, without the capabilities that a write through it must not have.
struct Registrar<'a>(&'a dyn Fn(BorrowedFd<'_>) -> io::Result<BackingId>);

impl Register for Registrar<'_> {
    fn register(&self, file: BorrowedFd<'_>) -> io::Result<Arc<dyn Any + Send + Sync>> {
        let _without = Without::set_id_and_resource()?;
        Ok(Arc::new((self.0)(file)?))
    }
}

/// One mount's connection to the kernel.
#[derive(Debug)]
pub struct Connection {
    fs: Arc<Fs>,
    mount: Arc<Mount>,
    runtime: Runtime,
}

/// Tells the kernel side of a mount what to forget.
#[derive(Debug)]
struct Notices(Notifier);

impl Kernel for Notices {
    fn forget_inode(&self, nodeid: u64, data_from: Option<i64>) {
        let (offset, length) = data_from.map_or((-1, 0), |from| (from, 0));
        if let Err(error) = self.0.inval_inode(INodeNo(nodeid), offset, length) {
            tracing::debug!(nodeid, %error, "the kernel could not forget an inode");
        }
    }

    fn forget_name(&self, parent: u64, name: &OsStr) {
        if let Err(error) = self.0.inval_entry(INodeNo(parent), name) {
            tracing::debug!(parent, ?name, %error, "the kernel could not forget a name");
        }
    }
}

/// A mount that is being served.
#[derive(Debug)]
pub struct Served {
    session: fuser::BackgroundSession,
}

impl Served {
    /// Waits until the kernel has ended the connection.
    ///
    /// # Errors
    /// What ended it, other than an unmount.
    pub fn join(self) -> io::Result<()> {
        self.session.join()
    }

    /// What the kernel side can be told.
    pub fn kernel(&self) -> Box<dyn Kernel> {
        Box::new(Notices(self.session.notifier()))
    }
}

/// Serves a tree over a connection, with this many threads.
///
/// # Errors
/// Where the kernel is too old, or the connection ended at once.
pub fn serve(
    fs: Arc<Fs>,
    mount: Arc<Mount>,
    device: OwnedFd,
    threads: usize,
    runtime: Runtime,
) -> io::Result<Served> {
    let connection = Connection { fs, mount, runtime };
    let mut config = Config::default();
    config.n_threads = Some(threads);
    // Who may use the mount is the kernel's to say; a descriptor that was handed to another
    // user stays good.
    let session = fuser::Session::from_fd(connection, device, SessionACL::All, config)?;
    Ok(Served {
        session: session.spawn()?,
    })
}

impl Connection {
    fn request<'a>(&'a self, asked: &fuser::Request, operation: Operation) -> Request<'a> {
        self.fs.count(operation);
        Request {
            mount: &self.mount,
            asker: Asker {
                tid: asked.pid(),
                uid: asked.uid(),
                gid: asked.gid(),
            },
            operation,
        }
    }

    /// A panic in one request is an EIO for that request, which a dropped reply sends, and a line
    /// in the log.
    fn guarded(&self, operation: Operation, work: impl FnOnce()) {
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            tracing::error!(operation = operation.label(), "a request panicked");
        }
    }

    /// Does what may block on a thread that serves no requests.
    fn later(
        &self,
        asked: &fuser::Request,
        operation: Operation,
        work: impl FnOnce(&Fs, Request<'_>) + Send + 'static,
    ) {
        let asker = self.request(asked, operation).asker;
        let (fs, mount) = (Arc::clone(&self.fs), Arc::clone(&self.mount));
        self.runtime.spawn_blocking(move || {
            let request = Request {
                mount: &mount,
                asker,
                operation,
            };
            work(&fs, request);
        });
    }

    /// Makes a name, which nothing synthetic but `windows/` can hold.
    fn make(
        &self,
        asked: &fuser::Request,
        operation: Operation,
        parent: INodeNo,
        reply: ReplyEntry,
        make: impl FnOnce(Request<'_>) -> Result<Entry, Error>,
    ) {
        let request = self.request(asked, operation);
        self.guarded(operation, || {
            let made = match Synthetic::from_nodeid(parent.0) {
                Some(_) => Err(Error(libc::EPERM)),
                None => make(request),
            };
            reply_entry(reply, made);
        });
    }
}

impl fuser::Filesystem for Connection {
    fn init(&mut self, _: &fuser::Request, config: &mut KernelConfig) -> io::Result<()> {
        let mut wanted = vec![
            InitFlags::FUSE_ASYNC_READ,
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_DONT_MASK,
            InitFlags::FUSE_HAS_IOCTL_DIR,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        ];
        if self.mount.is_view() {
            wanted.push(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);
        } else {
            wanted.push(InitFlags::FUSE_NO_OPENDIR_SUPPORT);
        }
        if self.fs.allow_other() {
            wanted.push(InitFlags::FUSE_POSIX_ACL);
        }
        if self.fs.passthrough() && !self.mount.is_view() {
            wanted.push(InitFlags::FUSE_PASSTHROUGH);
            if config.set_max_stack_depth(1).is_err() {
                tracing::warn!("the kernel offers no stacking, and so no passthrough");
            }
        }
        for flag in wanted {
            if config.add_capabilities(flag).is_err() {
                tracing::info!(?flag, "the kernel doesn't offer it");
            }
        }
        let limits = (
            config.set_max_write(MAX_WRITE),
            config.set_max_background(MAX_BACKGROUND),
        );
        tracing::debug!(?limits, "connected");
        Ok(())
    }

    fn destroy(&mut self) {
        self.fs.unmounted(self.mount.id);
    }

    fn lookup(&self, asked: &fuser::Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let request = self.request(asked, Operation::Lookup);
        self.guarded(Operation::Lookup, || {
            let Some(synthetic) = Synthetic::from_nodeid(parent.0) else {
                let entry = self.fs.lookup(request, parent.0, name);
                if entry.as_ref().is_err_and(|e| e.0 == libc::ENOENT) && !self.mount.is_view() {
                    return reply_missing(reply);
                }
                return reply_entry(reply, entry);
            };
            reply_entry(reply, self.fs.synthetic_lookup(request, synthetic, name));
        });
    }

    fn forget(&self, asked: &fuser::Request, ino: INodeNo, lookups: u64) {
        let request = self.request(asked, Operation::Forget);
        self.guarded(Operation::Forget, || {
            self.fs.forget(request, ino.0, lookups)
        });
    }

    fn getattr(
        &self,
        asked: &fuser::Request,
        ino: INodeNo,
        fh: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        let request = self.request(asked, Operation::Getattr);
        self.guarded(Operation::Getattr, || {
            let attr = match Synthetic::from_nodeid(ino.0) {
                Some(entry) => Ok(self.fs.synthetic_attr(request, entry)),
                None => self.fs.getattr(request, ino.0, fh.map(|fh| fh.0)),
            };
            reply_attr(reply, attr);
        });
    }

    fn setattr(
        &self,
        asked: &fuser::Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = AttrChange {
            mode,
            uid,
            gid,
            size: size.map(|size| (size, fh.map(|fh| fh.0))),
            atime: atime.map(new_time),
            mtime: mtime.map(new_time),
        };
        let request = self.request(asked, Operation::Setattr);
        self.guarded(Operation::Setattr, || {
            let attr = match Synthetic::from_nodeid(ino.0) {
                Some(entry) => self.fs.synthetic_setattr(request, entry, &change),
                None => self.fs.setattr(request, ino.0, &change),
            };
            reply_attr(reply, attr);
        });
    }

    fn readlink(&self, asked: &fuser::Request, ino: INodeNo, reply: ReplyData) {
        let request = self.request(asked, Operation::Readlink);
        self.guarded(Operation::Readlink, || {
            let target = match Synthetic::from_nodeid(ino.0) {
                Some(entry) => self.fs.synthetic_readlink(request, entry),
                None => self.fs.readlink(ino.0),
            };
            match target {
                Ok(target) => reply.data(target.as_encoded_bytes()),
                Err(error) => reply.error(error.into()),
            }
        });
    }

    fn mknod(
        &self,
        asked: &fuser::Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        self.make(asked, Operation::Mknod, parent, reply, |request| {
            self.fs.mknod(request, parent.0, name, mode, umask, rdev)
        });
    }

    fn mkdir(
        &self,
        asked: &fuser::Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        if let Some(synthetic) = Synthetic::from_nodeid(parent.0) {
            let name = name.to_owned();
            return self.later(asked, Operation::Mkdir, move |fs, request| {
                reply_entry(reply, fs.synthetic_mkdir(request, synthetic, &name));
            });
        }
        self.make(asked, Operation::Mkdir, parent, reply, |request| {
            self.fs.mkdir(request, parent.0, name, mode, umask)
        });
    }

    fn unlink(&self, asked: &fuser::Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let request = self.request(asked, Operation::Unlink);
        self.guarded(Operation::Unlink, || {
            let done = match Synthetic::from_nodeid(parent.0) {
                Some(_) => Err(Error(libc::EPERM)),
                None => self.fs.unlink(request, parent.0, name),
            };
            reply_empty(reply, done);
        });
    }

    fn rmdir(&self, asked: &fuser::Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        if let Some(synthetic) = Synthetic::from_nodeid(parent.0) {
            let name = name.to_owned();
            return self.later(asked, Operation::Rmdir, move |fs, request| {
                reply_empty(reply, fs.synthetic_rmdir(request, synthetic, &name));
            });
        }
        let request = self.request(asked, Operation::Rmdir);
        self.guarded(Operation::Rmdir, || {
            reply_empty(reply, self.fs.rmdir(request, parent.0, name));
        });
    }

    fn symlink(
        &self,
        asked: &fuser::Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        self.make(asked, Operation::Symlink, parent, reply, |request| {
            self.fs.symlink(request, parent.0, name, target.as_os_str())
        });
    }

    fn rename(
        &self,
        asked: &fuser::Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let request = self.request(asked, Operation::Rename);
        self.guarded(Operation::Rename, || {
            let synthetic = Synthetic::from_nodeid(parent.0).is_some()
                || Synthetic::from_nodeid(newparent.0).is_some();
            let done = if synthetic {
                Err(Error(libc::EPERM))
            } else {
                let (from, to) = ((parent.0, name), (newparent.0, newname));
                self.fs.rename(request, from, to, flags.bits())
            };
            reply_empty(reply, done);
        });
    }

    fn link(
        &self,
        asked: &fuser::Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        self.make(asked, Operation::Link, newparent, reply, |request| {
            if Synthetic::from_nodeid(ino.0).is_some() {
                return Err(Error(libc::EPERM));
            }
            self.fs.link(request, ino.0, newparent.0, newname)
        });
    }

    fn open(&self, asked: &fuser::Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if let Some(entry) = Synthetic::from_nodeid(ino.0) {
            if Fs::opens_at_once(entry, flags.0) {
                let request = self.request(asked, Operation::Open);
                return self.guarded(Operation::Open, || {
                    reply_open(reply, self.fs.synthetic_open(request, entry, flags.0));
                });
            }
            return self.later(asked, Operation::Open, move |fs, request| {
                reply_open(reply, fs.synthetic_open(request, entry, flags.0));
            });
        }
        let request = self.request(asked, Operation::Open);
        self.guarded(Operation::Open, || {
            let register = |fd: BorrowedFd<'_>| reply.open_backing(fd);
            let opened = self.fs.open(request, ino.0, flags.0, &Registrar(&register));
            reply_open(reply, opened);
        });
    }

    fn read(
        &self,
        asked: &fuser::Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if self.fs.is_synthetic(fh.0) {
            return self.later(asked, Operation::Read, move |fs, request| {
                match fs.synthetic_read(request, fh.0, offset, size as usize) {
                    Ok(content) => reply.data(&content),
                    Err(error) => reply.error(error.into()),
                }
            });
        }
        self.request(asked, Operation::Read);
        self.guarded(Operation::Read, || {
            let mut buffer = vec![0; size as usize];
            match self.fs.read(fh.0, offset, &mut buffer) {
                Ok(length) => reply.data(&buffer[..length]),
                Err(error) => reply.error(error.into()),
            }
        });
    }

    fn write(
        &self,
        asked: &fuser::Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if self.fs.is_synthetic(fh.0) {
            let data = data.to_vec();
            return self.later(asked, Operation::Write, move |fs, request| {
                reply_written(reply, fs.synthetic_write(request, fh.0, &data));
            });
        }
        let request = self.request(asked, Operation::Write);
        self.guarded(Operation::Write, || {
            let how = crate::fs::WriteHow {
                appends: flags.0 & libc::O_APPEND != 0,
                from_cache: write_flags.contains(WriteFlags::FUSE_WRITE_CACHE),
                kill_set_id: write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
            };
            reply_written(reply, self.fs.write(request, fh.0, offset, data, how));
        });
    }

    fn flush(
        &self,
        asked: &fuser::Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // Ends these requests for the connection: a close is then no round trip.
        self.request(asked, Operation::Flush);
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        asked: &fuser::Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.request(asked, Operation::Release);
        self.guarded(Operation::Release, || {
            self.fs.release(fh.0);
            reply.ok();
        });
    }

    fn fsync(
        &self,
        asked: &fuser::Request,
        _ino: INodeNo,
        fh: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.later(asked, Operation::Fsync, move |fs, _| {
            reply_empty(reply, fs.fsync(fh.0, datasync));
        });
    }

    fn opendir(&self, asked: &fuser::Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let request = self.request(asked, Operation::Opendir);
        self.guarded(Operation::Opendir, || {
            if !self.mount.is_view() {
                // Ends these requests for the connection, and lets the kernel cache listings.
                return reply.error(Errno::ENOSYS);
            }
            match self.fs.may_list(request, ino.0) {
                Ok(()) => reply.opened(FileHandle(0), FopenFlags::empty()),
                Err(error) => reply.error(error.into()),
            }
        });
    }

    fn readdir(
        &self,
        asked: &fuser::Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let request = self.request(asked, Operation::Readdir);
        self.guarded(Operation::Readdir, || {
            if let Some(directory) = Synthetic::from_nodeid(ino.0) {
                for (place, name) in [(1, "."), (2, "..")] {
                    let kind = FileType::Directory;
                    if offset < place && reply.add(INodeNo(directory.ino()), place, kind, name) {
                        return reply.ok();
                    }
                }
                for listed in self.fs.synthetic_list(directory, offset) {
                    let Ok(attr) = self.fs.target_attr(request, &listed.target) else {
                        continue;
                    };
                    let kind = file_type(attr.mode);
                    if reply.add(INodeNo(attr.ino), listed.next, kind, &listed.name) {
                        break;
                    }
                }
                return reply.ok();
            }
            let done = self.fs.readdir(ino.0, offset, |_, _, number, entry| {
                let next = entry.next.cast_unsigned();
                reply.add(INodeNo(number), next, dirent_type(entry.kind), entry.name)
            });
            match done {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(error.into()),
            }
        });
    }

    fn readdirplus(
        &self,
        asked: &fuser::Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let request = self.request(asked, Operation::Readdirplus);
        self.guarded(Operation::Readdirplus, || {
            // An entry without attributes: the kernel takes the name and looks it up when needed.
            let nameless = |number: u64, mode: u32| Attr {
                ino: number,
                mode,
                nlink: 1,
                uid: 0,
                gid: 0,
                rdev: 0,
                size: 0,
                blocks: 0,
                blksize: 4096,
                atime: (0, 0),
                mtime: (0, 0),
                ctime: (0, 0),
            };
            let mut add =
                |next: u64, name: &OsStr, nodeid: u64, attr: &Attr, ttl: Ttl, generation: u64| {
                    let (nodeid, attr) = (INodeNo(nodeid), file_attr(attr));
                    reply.add(
                        nodeid,
                        next,
                        name,
                        &ttl.duration(),
                        &attr,
                        Generation(generation),
                    )
                };
            if let Some(directory) = Synthetic::from_nodeid(ino.0) {
                for (place, name) in [(1, "."), (2, "..")] {
                    let attr = nameless(directory.ino(), libc::S_IFDIR);
                    if offset < place && add(place, OsStr::new(name), 0, &attr, Ttl::Never, 0) {
                        return reply.ok();
                    }
                }
                for listed in self.fs.synthetic_list(directory, offset) {
                    let Ok(entry) = self.fs.target_entry(request, &listed.target) else {
                        continue;
                    };
                    let ttl = entry.entry_ttl;
                    if add(
                        listed.next,
                        &listed.name,
                        entry.nodeid,
                        &entry.attr,
                        ttl,
                        entry.generation,
                    ) {
                        self.fs.unlisted(request, &entry);
                        break;
                    }
                }
                return reply.ok();
            }
            let done = self.fs.readdir(ino.0, offset, |dir, node, number, entry| {
                let next = entry.next.cast_unsigned();
                let listed = match entry.name.as_encoded_bytes() {
                    b"." | b".." => None,
                    _ => self.fs.listed(request, dir, node, entry.name),
                };
                match listed {
                    Some(listed) => {
                        // One time holds for name and attributes here.
                        let ttl = if listed.attr_ttl == Ttl::Never {
                            Ttl::Never
                        } else {
                            listed.entry_ttl
                        };
                        let full = add(
                            next,
                            entry.name,
                            listed.nodeid,
                            &listed.attr,
                            ttl,
                            listed.generation,
                        );
                        if full {
                            self.fs.unlisted(request, &listed);
                        }
                        full
                    }
                    None => {
                        let attr = nameless(number, u32::from(entry.kind) << 12);
                        add(next, entry.name, 0, &attr, Ttl::Never, 0)
                    }
                }
            });
            match done {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(error.into()),
            }
        });
    }

    fn releasedir(
        &self,
        asked: &fuser::Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.request(asked, Operation::Releasedir);
        reply.ok();
    }

    fn fsyncdir(
        &self,
        asked: &fuser::Request,
        ino: INodeNo,
        _fh: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.later(asked, Operation::Fsyncdir, move |fs, _| {
            let done = match Synthetic::from_nodeid(ino.0) {
                Some(_) => Ok(()),
                None => fs.fsyncdir(ino.0, datasync),
            };
            reply_empty(reply, done);
        });
    }

    fn statfs(&self, asked: &fuser::Request, _ino: INodeNo, reply: ReplyStatfs) {
        self.request(asked, Operation::Statfs);
        self.guarded(Operation::Statfs, || match self.fs.statfs() {
            Ok(stat) => reply.statfs(
                stat.blocks(),
                stat.blocks_free(),
                stat.blocks_available(),
                stat.files(),
                stat.files_free(),
                u32::try_from(stat.block_size()).unwrap_or(4096),
                u32::try_from(stat.name_max()).unwrap_or(255),
                u32::try_from(stat.fragment_size()).unwrap_or(4096),
            ),
            Err(error) => reply.error(error.into()),
        });
    }

    fn setxattr(
        &self,
        asked: &fuser::Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let request = self.request(asked, Operation::Setxattr);
        self.guarded(Operation::Setxattr, || {
            let done = match Synthetic::from_nodeid(ino.0) {
                Some(_) => Err(Error(libc::EPERM)),
                None => self.fs.setxattr(request, ino.0, name, value, flags),
            };
            reply_empty(reply, done);
        });
    }

    fn getxattr(
        &self,
        asked: &fuser::Request,
        ino: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        let request = self.request(asked, Operation::Getxattr);
        self.guarded(Operation::Getxattr, || {
            if Synthetic::from_nodeid(ino.0).is_some() {
                return reply.error(Errno::ENODATA);
            }
            reply_xattr(reply, size, |buffer| {
                self.fs.getxattr(request, ino.0, name, buffer)
            });
        });
    }

    fn listxattr(&self, asked: &fuser::Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let request = self.request(asked, Operation::Listxattr);
        self.guarded(Operation::Listxattr, || {
            reply_xattr(reply, size, |buffer| match Synthetic::from_nodeid(ino.0) {
                Some(_) => Ok(0),
                None => self.fs.listxattr(request, ino.0, buffer),
            });
        });
    }

    fn removexattr(&self, asked: &fuser::Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let request = self.request(asked, Operation::Removexattr);
        self.guarded(Operation::Removexattr, || {
            let done = match Synthetic::from_nodeid(ino.0) {
                Some(_) => Err(Error(libc::EPERM)),
                None => self.fs.removexattr(request, ino.0, name),
            };
            reply_empty(reply, done);
        });
    }

    fn access(&self, asked: &fuser::Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let request = self.request(asked, Operation::Access);
        self.guarded(Operation::Access, || {
            let done = match Synthetic::from_nodeid(ino.0) {
                Some(entry) => Fs::synthetic_access(entry, mask.bits()),
                None => self.fs.access(request, ino.0, mask.bits()),
            };
            reply_empty(reply, done);
        });
    }

    fn create(
        &self,
        asked: &fuser::Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let request = self.request(asked, Operation::Create);
        self.guarded(Operation::Create, || {
            if Synthetic::from_nodeid(parent.0).is_some() {
                return reply.error(Errno::EPERM);
            }
            let register = |fd: BorrowedFd<'_>| reply.open_backing(fd);
            let how = crate::fs::CreateHow { mode, umask, flags };
            let created = self
                .fs
                .create(request, parent.0, name, how, &Registrar(&register));
            match created {
                Err(error) => reply.error(error.into()),
                Ok((entry, opened)) => {
                    // One time holds for name and attributes here; the name's is the longer one,
                    // and a name asked for once too often is only slower.
                    let ttl = if entry.attr_ttl == Ttl::Never {
                        Ttl::Never
                    } else {
                        entry.entry_ttl
                    };
                    let (ttl, attr) = (ttl.duration(), file_attr(&entry.attr));
                    let generation = Generation(entry.generation);
                    let handle = FileHandle(opened.handle);
                    let flags = match &opened.reached {
                        Reached::Direct => FopenFlags::FOPEN_DIRECT_IO,
                        Reached::Cached => FopenFlags::FOPEN_KEEP_CACHE,
                        Reached::Passthrough(backing) => match backing_id(backing) {
                            Some(id) => {
                                let flags = FopenFlags::empty();
                                return reply.created_passthrough(
                                    &ttl, &attr, generation, handle, flags, id,
                                );
                            }
                            None => return reply.error(Errno::EIO),
                        },
                    };
                    reply.created(&ttl, &attr, generation, handle, flags);
                }
            }
        });
    }

    fn ioctl(
        &self,
        asked: &fuser::Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        cmd: u32,
        in_data: &[u8],
        out_size: u32,
        reply: ReplyIoctl,
    ) {
        let request = self.request(asked, Operation::Ioctl);
        self.guarded(Operation::Ioctl, || {
            if Synthetic::from_nodeid(ino.0).is_some() {
                return reply.error(Errno::ENOTTY);
            }
            match self.fs.ioctl(request, ino.0, cmd, in_data) {
                Ok(data) => reply.ioctl(0, &data[..(out_size as usize).min(data.len())]),
                Err(error) => reply.error(error.into()),
            }
        });
    }

    fn fallocate(
        &self,
        asked: &fuser::Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let request = self.request(asked, Operation::Fallocate);
        self.guarded(Operation::Fallocate, || {
            reply_empty(
                reply,
                self.fs.fallocate(request, fh.0, offset, length, mode),
            );
        });
    }

    fn lseek(
        &self,
        asked: &fuser::Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        self.request(asked, Operation::Lseek);
        self.guarded(Operation::Lseek, || {
            match self.fs.lseek(fh.0, offset, whence) {
                Ok(found) => reply.offset(found),
                Err(error) => reply.error(error.into()),
            }
        });
    }

    fn copy_file_range(
        &self,
        asked: &fuser::Request,
        _ino_in: INodeNo,
        fh_in: FileHandle,
        offset_in: u64,
        _ino_out: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        length: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let request = self.request(asked, Operation::CopyFileRange);
        self.guarded(Operation::CopyFileRange, || {
            let (from, to) = ((fh_in.0, offset_in), (fh_out.0, offset_out));
            reply_written(reply, self.fs.copy_file_range(request, from, to, length));
        });
    }
}

/// Serves an empty directory that nobody may enter, over an ordinary user's STORE/workspaces.
///
/// # Errors
/// Where the connection ended at once.
pub fn serve_cover(device: OwnedFd) -> io::Result<Served> {
    let session = fuser::Session::from_fd(Cover, device, SessionACL::All, Config::default())?;
    Ok(Served {
        session: session.spawn()?,
    })
}

/// A directory with mode 0 and nothing in it.
#[derive(Debug)]
struct Cover;

impl fuser::Filesystem for Cover {
    fn lookup(&self, _: &fuser::Request, _: INodeNo, _: &OsStr, reply: ReplyEntry) {
        reply.error(Errno::EACCES);
    }

    fn getattr(&self, asked: &fuser::Request, _: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let attr = Attr {
            ino: Synthetic::Root.ino(),
            mode: libc::S_IFDIR,
            nlink: 1,
            uid: asked.uid(),
            gid: asked.gid(),
            rdev: 0,
            size: 0,
            blocks: 0,
            blksize: 4096,
            atime: (0, 0),
            mtime: (0, 0),
            ctime: (0, 0),
        };
        reply.attr(&LONG, &file_attr(&attr));
    }

    fn opendir(&self, _: &fuser::Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::EACCES);
    }

    fn access(&self, _: &fuser::Request, _: INodeNo, _: AccessFlags, reply: ReplyEmpty) {
        reply.error(Errno::EACCES);
    }
}

/// Lets the kernel remember that a name is missing: node id 0 with a time.
fn reply_missing(reply: ReplyEntry) {
    let attr = FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: SystemTime::UNIX_EPOCH,
        mtime: SystemTime::UNIX_EPOCH,
        ctime: SystemTime::UNIX_EPOCH,
        crtime: SystemTime::UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    };
    reply.entry(&LONG, &attr, Generation(0));
}
