//! Acting with a caller's credentials on the calling thread, for the length of one operation.

use std::cell::Cell;
use std::io;

use nix::unistd::{Gid, Uid, setfsgid, setfsuid};

use super::file::check;

/// Capability bits (linux/capability.h).
const CAP_FSETID: u32 = 4;
const CAP_SYS_RESOURCE: u32 = 24;

/// The capabilities that decide about files: CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER,
/// FSETID, LINUX_IMMUTABLE, MKNOD, MAC_OVERRIDE.
pub const FILE_CAPABILITIES: u64 =
    1 | 1 << 1 | 1 << 2 | 1 << 3 | 1 << CAP_FSETID | 1 << 9 | 1 << 27 | 1 << 32;

/// Whether these capabilities let who changes a file keep its setuid and setgid bits.
pub fn keeps_set_id(capabilities: u64) -> bool {
    capabilities & (1 << CAP_FSETID) != 0
}

/// Whom to act as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Filesystem user id.
    pub uid: u32,
    /// Filesystem group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Effective capabilities, as a mask.
    pub capabilities: u64,
}

#[repr(C)]
struct CapHeader {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

const CAP_VERSION_3: u32 = 0x2008_0522;

fn capabilities() -> io::Result<[CapData; 2]> {
    let mut header = CapHeader {
        version: CAP_VERSION_3,
        pid: 0,
    };
    let mut data = [CapData::default(); 2];
    // SAFETY: version 3 has two data elements; both structs have the kernel's layout.
    check(unsafe {
        libc::syscall(libc::SYS_capget, &raw mut header, data.as_mut_ptr()) as libc::c_int
    })?;
    Ok(data)
}

fn set_capabilities(data: &[CapData; 2]) -> io::Result<()> {
    let mut header = CapHeader {
        version: CAP_VERSION_3,
        pid: 0,
    };
    // SAFETY: as in `capabilities`; the kernel changes the calling thread alone.
    check(unsafe {
        libc::syscall(libc::SYS_capset, &raw mut header, data.as_ptr()) as libc::c_int
    })?;
    Ok(())
}

/// The calling thread's effective capabilities, as a mask.
///
/// # Errors
/// Those of capget(2).
pub fn effective() -> io::Result<u64> {
    let data = capabilities()?;
    Ok(u64::from(data[0].effective) | u64::from(data[1].effective) << 32)
}

/// Takes capabilities out of the thread's effective set until dropped.
#[derive(Debug)]
pub struct Without {
    before: Option<u64>,
}

impl Without {
    fn mask(mask: u64) -> io::Result<Self> {
        let mut data = capabilities()?;
        let before = u64::from(data[0].effective) | u64::from(data[1].effective) << 32;
        let after = before & !mask;
        if after == before {
            return Ok(Self { before: None });
        }
        data[0].effective = after as u32;
        data[1].effective = (after >> 32) as u32;
        set_capabilities(&data)?;
        Ok(Self {
            before: Some(before),
        })
    }

    /// Without CAP_FSETID, so that what is written loses its setuid and setgid bits, and without
    /// CAP_SYS_RESOURCE, so that the disk's quotas bind.
    ///
    /// # Errors
    /// Those of capset(2).
    pub fn set_id_and_resource() -> io::Result<Self> {
        Self::mask(1 << CAP_FSETID | 1 << CAP_SYS_RESOURCE)
    }
}

impl Drop for Without {
    fn drop(&mut self) {
        let Some(before) = self.before else { return };
        let restored = capabilities().and_then(|mut data| {
            data[0].effective = before as u32;
            data[1].effective = (before >> 32) as u32;
            set_capabilities(&data)
        });
        if let Err(error) = restored {
            // The thread is left with fewer rights than it should have: safe, but worth a line.
            tracing::error!(%error, "could not take capabilities back");
        }
    }
}

fn set_groups(groups: &[u32]) -> io::Result<()> {
    // SAFETY: the raw call changes the calling thread alone (glibc's would change all threads)
    // and reads `groups.len()` ids.
    check(unsafe {
        libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) as libc::c_int
    })?;
    Ok(())
}

/// Acts as somebody else on this thread until dropped.
#[derive(Debug)]
pub struct Acting {
    uid: Uid,
    gid: Gid,
    groups: Option<Vec<u32>>,
    // Dropped last, by declaration order after the explicit `drop` below.
    _capabilities: Option<Without>,
}

/// Takes over `whom`'s filesystem ids, groups and lack of capabilities. Needs root.
///
/// # Errors
/// Those of setgroups(2) and capset(2); nothing is changed then.
pub fn act_as(whom: &Credentials) -> io::Result<Acting> {
    let own: Vec<u32> = nix::unistd::getgroups()?
        .iter()
        .map(|g| g.as_raw())
        .collect();
    let groups = (own != whom.groups).then_some(own);
    if groups.is_some() {
        set_groups(&whom.groups)?;
    }
    let gid = setfsgid(Gid::from_raw(whom.gid));
    // For a user other than root the kernel takes the file capabilities away by itself.
    let uid = setfsuid(Uid::from_raw(whom.uid));
    let mut acting = Acting {
        uid,
        gid,
        groups,
        _capabilities: None,
    };
    if whom.uid == 0 {
        let missing = FILE_CAPABILITIES & !whom.capabilities;
        acting._capabilities = Some(Without::mask(missing)?);
    }
    Ok(acting)
}

impl Drop for Acting {
    fn drop(&mut self) {
        self._capabilities = None;
        setfsuid(self.uid);
        setfsgid(self.gid);
        if let Some(groups) = &self.groups
            && let Err(error) = set_groups(groups)
        {
            tracing::error!(%error, "could not take groups back");
        }
    }
}

thread_local! {
    /// Whether this thread has a umask of its own.
    static OWN_UMASK: Cell<bool> = const { Cell::new(false) };
}

/// Sets the umask of this thread alone: the first call parts the thread from the process's.
///
/// # Errors
/// Those of unshare(2).
pub fn set_umask(mask: u32) -> io::Result<()> {
    if !OWN_UMASK.get() {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_FS)?;
        OWN_UMASK.set(true);
    }
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(mask));
    Ok(())
}
