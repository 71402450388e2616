//! panefs: one tree, the same paths for everybody, and each context window sees its own
//! workspace writable and all others read-only.
//!
//! Rooms, top down; a room imports rooms below it, never above: `cli`, `exec` → `fuse` → `fs` →
//! `control` → `gate` → `member` → `store` → `model` → `sys`.

#![warn(missing_docs)]

pub mod control;
pub mod fs;
pub mod fuse;
pub mod gate;
pub mod member;
pub mod model;
pub mod mount;
pub mod store;
#[allow(unsafe_code)]
pub mod sys;
