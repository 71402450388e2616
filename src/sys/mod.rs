//! Every raw system call, and all `unsafe`.

pub mod pidfd;
pub mod proc;
