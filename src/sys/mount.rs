//! Mounting and unmounting, as root by mount(2) and as an ordinary user through fusermount3.

use std::ffi::OsString;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::mount::{MntFlags, MsFlags};
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg, socketpair,
};

/// What is mounted, and how.
#[derive(Debug, Clone)]
pub struct FuseMount<'a> {
    /// The filesystem's subtype: /proc/self/mountinfo shows `fuse.SUBTYPE`.
    pub subtype: &'a str,
    /// The source column.
    pub source: &'a str,
    /// Serve other users too, by the files' modes, which the kernel checks.
    pub allow_other: bool,
    /// Options of mount(8): `noexec`, `suid`, …
    pub options: &'a [String],
}

impl FuseMount<'_> {
    /// Without setuid bits and device nodes, unless they are asked for; the last word wins.
    fn flags(&self) -> MsFlags {
        let mut flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        for option in self.options {
            let (on, flag) = match option.as_str() {
                "nosuid" => (true, MsFlags::MS_NOSUID),
                "suid" => (false, MsFlags::MS_NOSUID),
                "nodev" => (true, MsFlags::MS_NODEV),
                "dev" => (false, MsFlags::MS_NODEV),
                "ro" => (true, MsFlags::MS_RDONLY),
                "noexec" => (true, MsFlags::MS_NOEXEC),
                "exec" => (false, MsFlags::MS_NOEXEC),
                "noatime" => (true, MsFlags::MS_NOATIME),
                "nodiratime" => (true, MsFlags::MS_NODIRATIME),
                "sync" => (true, MsFlags::MS_SYNCHRONOUS),
                "dirsync" => (true, MsFlags::MS_DIRSYNC),
                _ => continue,
            };
            flags.set(flag, on);
        }
        flags
    }
}

/// Mounts, and gives the connection to the kernel.
///
/// # Errors
/// Those of open(2) on /dev/fuse and mount(2); fusermount3's own words for an ordinary user.
pub fn mount(target: &Path, how: &FuseMount<'_>) -> io::Result<OwnedFd> {
    if nix::unistd::geteuid().is_root() {
        mount_as_root(target, how)
    } else {
        mount_as_user(target, how)
    }
}

fn mount_as_root(target: &Path, how: &FuseMount<'_>) -> io::Result<OwnedFd> {
    let device: OwnedFd = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/fuse")?
        .into();
    let mut data = format!(
        "fd={},rootmode=40755,user_id={},group_id={}",
        device.as_raw_fd(),
        nix::unistd::geteuid(),
        nix::unistd::getegid()
    );
    if how.allow_other {
        data.push_str(",allow_other,default_permissions");
    }
    let kind = format!("fuse.{}", how.subtype);
    nix::mount::mount(
        Some(how.source),
        target,
        Some(kind.as_str()),
        how.flags(),
        Some(data.as_str()),
    )?;
    Ok(device)
}

fn mount_as_user(target: &Path, how: &FuseMount<'_>) -> io::Result<OwnedFd> {
    let (ours, theirs) = socketpair(
        AddressFamily::Unix,
        SockType::Stream,
        None,
        SockFlag::SOCK_CLOEXEC,
    )?;
    let source = how.source.replace('\\', "\\\\").replace(',', "\\,");
    let mut options = format!("fsname={source},subtype={}", how.subtype);
    for option in ["ro", "noexec", "noatime", "nodiratime", "sync", "dirsync"] {
        if how.options.iter().any(|wanted| wanted == option) {
            options.push(',');
            options.push_str(option);
        }
    }
    let mut command = Command::new("fusermount3");
    let socket = theirs.as_raw_fd();
    command
        .args(["-o", &options, "--"])
        .arg(target)
        .env("_FUSE_COMMFD", socket.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    // SAFETY: between fork and exec only fcntl(2) is called, which is async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            super::file::check(libc::fcntl(socket, libc::F_SETFD, 0))?;
            Ok(())
        });
    }
    let child = command.spawn()?;
    drop(theirs);
    let device = receive_descriptor(&ours);
    let output = child.wait_with_output()?;
    if output.status.success() {
        return device;
    }
    let words = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(words.trim().to_owned()))
}

fn receive_descriptor(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let mut byte = [0_u8; 1];
    let mut parts = [IoSliceMut::new(&mut byte)];
    let mut space = nix::cmsg_space!(RawFd);
    let message = loop {
        match recvmsg::<()>(
            socket.as_raw_fd(),
            &mut parts,
            Some(&mut space),
            MsgFlags::MSG_CMSG_CLOEXEC,
        ) {
            Err(nix::errno::Errno::EINTR) => {}
            other => break other?,
        }
    };
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(descriptors) = control
            && let Some(&descriptor) = descriptors.first()
        {
            // SAFETY: the kernel just installed this descriptor for us.
            return Ok(unsafe { OwnedFd::from_raw_fd(descriptor) });
        }
    }
    Err(io::Error::other("fusermount3 sent no descriptor"))
}

/// Takes the mount out of the tree, also while it is in use: who uses it keeps what is open.
///
/// # Errors
/// Those of umount2(2); fusermount3's own words for an ordinary user.
pub fn detach(target: &Path) -> io::Result<()> {
    if nix::unistd::geteuid().is_root() {
        nix::mount::umount2(target, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)?;
        return Ok(());
    }
    let output = Command::new("fusermount3")
        .args(["-u", "-z", "-q", "--"])
        .arg(target)
        .stdin(Stdio::null())
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(words.trim().to_owned()))
}

/// Whether what is mounted here is a FUSE mount whose daemon has ended. Only statfs(2) always
/// asks the daemon: attributes and listings may come from the kernel's memory.
pub fn is_dead(target: &Path) -> bool {
    nix::sys::statvfs::statvfs(target) == Err(nix::errno::Errno::ENOTCONN)
}

/// A line of /proc/self/mountinfo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mounted {
    /// The superblock's device, as `MAJOR:MINOR`.
    pub device: String,
    /// Where it is mounted.
    pub point: PathBuf,
}

/// What is mounted in this mount namespace.
///
/// # Errors
/// Those of reading /proc/self/mountinfo.
pub fn mounted() -> io::Result<Vec<Mounted>> {
    let text = std::fs::read("/proc/self/mountinfo")?;
    let lines = text.split(|byte| *byte == b'\n');
    Ok(lines
        .filter_map(|line| {
            let mut fields = line.split(|byte| *byte == b' ').skip(2);
            let device = String::from_utf8(fields.next()?.to_vec()).ok()?;
            let point = unescape(fields.nth(1)?);
            Some(Mounted {
                device,
                point: PathBuf::from(OsString::from_vec(point)),
            })
        })
        .collect())
}

/// Undoes the octal escapes of /proc for spaces and their like.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let escape = after.get(..3).filter(|_| first == b'\\');
        let code = escape
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                out.push(code);
                rest = &after[3..];
            }
            None => {
                out.push(first);
                rest = after;
            }
        }
    }
    out
}

/// Returns when this device is mounted nowhere any more in this mount namespace.
///
/// # Errors
/// Those of poll(2) and of reading /proc/self/mountinfo.
pub fn wait_until_gone(device: &str) -> io::Result<()> {
    let changes = std::fs::File::open("/proc/self/mountinfo")?;
    loop {
        if !mounted()?.iter().any(|mount| mount.device == device) {
            return Ok(());
        }
        let mut polled = [PollFd::new(changes.as_fd(), PollFlags::POLLPRI)];
        match nix::poll::poll(&mut polled, PollTimeout::NONE) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaces_in_mountpoints_are_undone() {
        assert_eq!(unescape(b"/a\\040b\\134c"), b"/a b\\c");
        assert_eq!(unescape(b"/plain\\"), b"/plain\\");
        assert!(mounted().unwrap().iter().any(|m| m.point == Path::new("/")));
    }
}
