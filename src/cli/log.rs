//! The daemon's log: standard error, which for a daemon in the background is a file in the store.

use std::fs::OpenOptions;
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use parking_lot::Mutex;
use tracing_subscriber::EnvFilter;

/// Lines that wait for the log file; None once lines go to standard error.
///
/// A daemon that starts in the background has no file yet (the store may not even exist) and must
/// not write on its caller's terminal.
static HELD: Mutex<Option<Vec<u8>>> = Mutex::new(None);

/// Starts logging; what is logged is chosen by RUST_LOG, by default `info`. With `hold`, nothing is
/// written before [`move_to`] or [`give_up`].
pub fn start(hold: bool) {
    if hold {
        *HELD.lock() = Some(Vec::new());
    }
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    // It fails only where a log was started before.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(!hold && io::stderr().is_terminal())
        .with_writer(|| Writer)
        .try_init();
}

/// Appends to `file` from now on, what was held first.
pub fn move_to(file: &Path) -> io::Result<()> {
    let opened = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(file);
    let target = match &opened {
        Ok(log) => log,
        // Better no log than one on the caller's terminal for days.
        Err(_) => &OpenOptions::new().write(true).open("/dev/null")?,
    };
    nix::unistd::dup2_stderr(target)?;
    give_up();
    opened.map(drop)
}

/// Writes on standard error from now on, what was held first.
pub fn give_up() {
    if let Some(held) = HELD.lock().take() {
        let _ = io::stderr().write_all(&held);
    }
}

struct Writer;

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut *HELD.lock() {
            Some(held) => held.write(bytes),
            None => io::stderr().write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
