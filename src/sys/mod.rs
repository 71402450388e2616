//! Every raw system call, and all `unsafe` of the crate.

pub mod child;
pub mod landlock;
pub mod signals;
