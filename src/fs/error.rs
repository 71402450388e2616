//! Errors of the filesystem: an errno, as the kernel hands it to the caller.

use std::io;

use crate::gate::Denied;
use crate::model::Refusal;

/// An errno.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Error(pub i32);

/// What an operation of the filesystem gives.
pub type Result<T> = std::result::Result<T, Error>;

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<nix::errno::Errno> for Error {
    fn from(errno: nix::errno::Errno) -> Self {
        Self(errno as i32)
    }
}

impl From<Denied> for Error {
    fn from(_: Denied) -> Self {
        Self(libc::EROFS)
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self(refusal.errno())
    }
}
