//! What the kernel's Landlock offers.

use std::io;

/// The Landlock interface's version that the kernel offers, 1 or more.
///
/// # Errors
/// `ENOSYS` where the kernel has no Landlock, `EOPNOTSUPP` where it is switched off.
pub fn abi_version() -> io::Result<u32> {
    /// `LANDLOCK_CREATE_RULESET_VERSION`: ask for the version, create nothing.
    const VERSION: libc::c_uint = 1;
    // SAFETY: with this flag the kernel takes no memory: a null attribute of size 0 is what it
    // wants, and it returns a number, not a descriptor.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<libc::c_void>(),
            0_usize,
            VERSION,
        )
    };
    u32::try_from(version).map_err(|_| io::Error::last_os_error())
}
