//! The allocator.

/// Gives memory that is free inside the process back to the system.
pub fn give_back() {
    // SAFETY: malloc_trim only releases what is free, and may be called at any time.
    unsafe { libc::malloc_trim(0) };
}
