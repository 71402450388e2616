//! Files by handle, by descriptor and by lease.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;

/// Longest handle that the kernel knows (MAX_HANDLE_SZ).
const MAX_HANDLE: usize = 128;

/// What names an inode on its filesystem for as long as it exists, whatever its names are.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FileHandle {
    kind: i32,
    bytes: Box<[u8]>,
}

#[repr(C)]
struct RawHandle {
    handle_bytes: u32,
    handle_type: i32,
    bytes: [u8; MAX_HANDLE],
}

pub(crate) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

pub(crate) fn check_size(result: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// A name for the kernel.
///
/// # Errors
/// EINVAL where the name has a NUL in it.
pub fn c_string(name: &OsStr) -> io::Result<CString> {
    CString::new(name.as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// The handle of `name` in `dir`, which isn't followed where it is a link.
///
/// # Errors
/// EOPNOTSUPP where the filesystem has none; name_to_handle_at(2).
pub fn name_to_handle(dir: impl AsFd, name: &OsStr) -> io::Result<FileHandle> {
    let name = c_string(name)?;
    let mut raw = RawHandle {
        handle_bytes: MAX_HANDLE as u32,
        handle_type: 0,
        bytes: [0; MAX_HANDLE],
    };
    let mut mount_id: libc::c_int = 0;
    // SAFETY: `raw` has the layout of struct file_handle with room for `handle_bytes` bytes, and
    // all pointers live until the call returns.
    check(unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            dir.as_fd().as_raw_fd(),
            name.as_ptr(),
            &raw mut raw,
            &raw mut mount_id,
            if name.is_empty() {
                libc::AT_EMPTY_PATH
            } else {
                0
            },
        ) as libc::c_int
    })?;
    let length = (raw.handle_bytes as usize).min(MAX_HANDLE);
    Ok(FileHandle {
        kind: raw.handle_type,
        bytes: raw.bytes[..length].into(),
    })
}

/// Opens the inode that a handle names. Needs CAP_DAC_READ_SEARCH.
///
/// # Errors
/// ESTALE where the inode is gone; open_by_handle_at(2).
pub fn open_by_handle(
    mount: impl AsFd,
    handle: &FileHandle,
    flags: libc::c_int,
) -> io::Result<OwnedFd> {
    let mut raw = RawHandle {
        handle_bytes: handle.bytes.len() as u32,
        handle_type: handle.kind,
        bytes: [0; MAX_HANDLE],
    };
    raw.bytes[..handle.bytes.len()].copy_from_slice(&handle.bytes);
    // SAFETY: `raw` has the layout of struct file_handle and lives until the call returns.
    let fd = check(unsafe {
        libc::syscall(
            libc::SYS_open_by_handle_at,
            mount.as_fd().as_raw_fd(),
            &raw mut raw,
            flags | libc::O_CLOEXEC,
        ) as libc::c_int
    })?;
    // SAFETY: the kernel just gave us this descriptor, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The path by which this process reaches what `fd` is open on, also an `O_PATH` descriptor.
pub fn proc_path(fd: BorrowedFd<'_>) -> CString {
    let fd: RawFd = fd.as_raw_fd();
    // A decimal number has no NUL, so the fallback is never taken.
    CString::new(format!("/proc/self/fd/{fd}")).unwrap_or_default()
}

/// Opens anew what `fd` is open on, with the caller's rights and other flags.
///
/// # Errors
/// Those of open(2).
pub fn reopen(fd: impl AsFd, flags: libc::c_int) -> io::Result<OwnedFd> {
    let path = proc_path(fd.as_fd());
    // SAFETY: `path` is a C string that lives until the call returns.
    let fd = check(unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC) })?;
    // SAFETY: the kernel just gave us this descriptor, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The attributes of what `fd` is open on, also an `O_PATH` descriptor.
///
/// # Errors
/// Those of fstat(2).
pub fn stat(fd: impl AsFd) -> io::Result<libc::stat> {
    Ok(nix::sys::stat::fstat(fd)?)
}

/// The attributes of `name` in `dir`, which isn't followed where it is a link.
///
/// # Errors
/// Those of fstatat(2).
pub fn stat_at(dir: impl AsFd, name: &OsStr) -> io::Result<libc::stat> {
    Ok(nix::sys::stat::fstatat(
        dir,
        name,
        nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW,
    )?)
}

/// Writes at the end of the file, wherever that is now.
///
/// # Errors
/// Those of pwritev2(2).
pub fn append(fd: impl AsFd, data: &[u8]) -> io::Result<usize> {
    let part = libc::iovec {
        iov_base: data.as_ptr().cast_mut().cast(),
        iov_len: data.len(),
    };
    // SAFETY: `part` describes `data`, which the kernel only reads, until the call returns.
    check_size(unsafe {
        libc::pwritev2(
            fd.as_fd().as_raw_fd(),
            &raw const part,
            1,
            0,
            libc::RWF_APPEND,
        )
    })
}

/// Whether no descriptor and no mapping of this file is open for writing: a read lease on `fd`,
/// a fresh read-only descriptor, is granted only then. The lease is given back at once.
///
/// # Errors
/// Those of fcntl(2) other than that refusal, for instance EACCES without CAP_LEASE on
/// somebody else's file.
pub fn is_quiet(fd: impl AsFd) -> io::Result<bool> {
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: F_SETLEASE takes an integer and touches no memory.
    match check(unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_RDLCK) }) {
        Ok(_) => {
            // SAFETY: as above.
            check(unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK) })?;
            Ok(true)
        }
        Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Ok(false),
        Err(error) => Err(error),
    }
}

/// One of the inode-flag ioctls (`FS_IOC_GETFLAGS` and its kin): at most 64 bytes each way.
///
/// # Errors
/// Those of ioctl(2).
pub fn flags_ioctl(fd: impl AsFd, command: u32, data: &mut [u8; 64]) -> io::Result<()> {
    // SAFETY: the callers pass only commands whose argument is at most 64 bytes, and `data`
    // lives until the call returns.
    check(unsafe {
        libc::ioctl(
            fd.as_fd().as_raw_fd(),
            libc::c_ulong::from(command),
            data.as_mut_ptr(),
        )
    })?;
    Ok(())
}

/// Whether the caller of this thread may access what `fd` is open on, by its effective ids.
///
/// # Errors
/// EACCES and the like of faccessat2(2).
pub fn access(fd: impl AsFd, mask: libc::c_int) -> io::Result<()> {
    // SAFETY: the empty path is a C string; the call reads nothing else.
    check(unsafe {
        libc::syscall(
            libc::SYS_faccessat2,
            fd.as_fd().as_raw_fd(),
            c"".as_ptr(),
            mask,
            libc::AT_EACCESS | libc::AT_EMPTY_PATH,
        ) as libc::c_int
    })?;
    Ok(())
}

/// Has everything of the filesystem beneath `fd` written back.
///
/// # Errors
/// Those of syncfs(2).
pub fn syncfs(fd: impl AsFd) -> io::Result<()> {
    // SAFETY: syncfs takes a descriptor and touches no memory.
    check(unsafe { libc::syncfs(fd.as_fd().as_raw_fd()) })?;
    Ok(())
}
