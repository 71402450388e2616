//! The ground of the suite: a real mount of the real binary, and real processes that use it.
//!
//! A [`Mount`] has its own store, mountpoint and home below one temporary directory, so tests
//! run side by side. What it starts bears that directory in its environment; when the mount
//! drops, whatever of it still lives is ended, also after a panic.

mod agent;
mod mount;
mod process;
mod shell;

pub use agent::Agent;
pub use mount::{Flavor, Mount, assert_refusal, is_root};
pub use process::{cargo, eventually, need, run, text};
pub use shell::Shell;

/// Makes a test of each function for each flavor that is named: `flavors! { f: passthrough; }`
/// gives `f::passthrough`.
macro_rules! flavors {
    ($($body:ident: $($flavor:ident),+;)+) => {
        $(mod $body {
            $(
                #[test]
                fn $flavor() {
                    super::$body($crate::common::Flavor::$flavor());
                }
            )+
        })+
    };
}
pub(crate) use flavors;

/// Errnos by the names that the tests use.
pub mod errno {
    pub const EPERM: i32 = libc::EPERM;
    pub const ENOENT: i32 = libc::ENOENT;
    pub const EACCES: i32 = libc::EACCES;
    pub const EBUSY: i32 = libc::EBUSY;
    pub const EXDEV: i32 = libc::EXDEV;
    pub const EINVAL: i32 = libc::EINVAL;
    pub const EROFS: i32 = libc::EROFS;
    pub const ENOTEMPTY: i32 = libc::ENOTEMPTY;
    pub const ESTALE: i32 = libc::ESTALE;
    pub const ETIMEDOUT: i32 = libc::ETIMEDOUT;
    pub const EOPNOTSUPP: i32 = libc::EOPNOTSUPP;
}
