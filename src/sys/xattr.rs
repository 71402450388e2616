//! Extended attributes, by the path of a descriptor (also `O_PATH`).

use std::ffi::{CStr, OsStr};
use std::io;

use super::file::{c_string, check, check_size};

/// # Errors
/// Those of getxattr(2).
pub fn get(path: &CStr, name: &OsStr, buffer: &mut [u8]) -> io::Result<usize> {
    let name = c_string(name)?;
    // SAFETY: both strings and the buffer live until the call returns, which writes at most
    // `buffer.len()` bytes.
    check_size(unsafe {
        libc::getxattr(
            path.as_ptr(),
            name.as_ptr(),
            buffer.as_mut_ptr().cast(),
            buffer.len(),
        )
    })
}

/// # Errors
/// Those of listxattr(2).
pub fn list(path: &CStr, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: as in `get`.
    check_size(unsafe { libc::listxattr(path.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len()) })
}

/// # Errors
/// Those of setxattr(2).
pub fn set(path: &CStr, name: &OsStr, value: &[u8], flags: i32) -> io::Result<()> {
    let name = c_string(name)?;
    // SAFETY: the strings and the value live until the call returns, which only reads them.
    check(unsafe {
        libc::setxattr(
            path.as_ptr(),
            name.as_ptr(),
            value.as_ptr().cast(),
            value.len(),
            flags,
        )
    })?;
    Ok(())
}

/// # Errors
/// Those of removexattr(2).
pub fn remove(path: &CStr, name: &OsStr) -> io::Result<()> {
    let name = c_string(name)?;
    // SAFETY: both strings live until the call returns.
    check(unsafe { libc::removexattr(path.as_ptr(), name.as_ptr()) })?;
    Ok(())
}
