//! Signals: what they do by default, and ending as a child ended.

use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, raise, signal, sigprocmask};

/// Gives a signal its default action, as a freshly started program has it.
pub fn set_default(which: Signal) {
    // SAFETY: SIG_DFL installs no handler, so no code of ours can run in signal context.
    // It fails only for SIGKILL and SIGSTOP, which have their default anyway.
    let _ = unsafe { signal(which, SigHandler::SigDfl) };
}

/// Ignores a signal.
///
/// # Errors
/// Those of sigaction(2).
pub fn ignore(which: Signal) -> nix::Result<()> {
    // SAFETY: SIG_IGN installs no handler, so no code of ours can run in signal context.
    unsafe { signal(which, SigHandler::SigIgn) }?;
    Ok(())
}

/// Ends this process by the signal `number`, without a core file of its own.
///
/// Returns only where that is no signal that ends a process.
pub fn die_of(number: i32) {
    let Ok(which) = Signal::try_from(number) else {
        return;
    };
    // The child left the core file, if one is wanted; ours would replace it.
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    set_default(which);
    let mut only = SigSet::empty();
    only.add(which);
    if sigprocmask(SigmaskHow::SIG_UNBLOCK, Some(&only), None).is_ok() {
        let _ = raise(which);
    }
}
