//! Every raw system call that no library wraps, and all of the crate's `unsafe`.

pub mod child;
pub mod creds;
pub mod dir;
pub mod file;
pub mod landlock;
pub mod memory;
pub mod mount;
pub mod pidfd;
pub mod proc;
pub mod signals;
pub mod xattr;
