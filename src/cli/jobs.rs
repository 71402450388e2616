//! Waiting for what takes longer than a write may.

use std::io::{IsTerminal, Write};
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use serde_json::Value;

use super::control::{Channel, Command, Reply};
use super::failure::{Failure, Outcome};
use super::locate::Mount;
use super::text::{plain, span};

/// The status of a command that Ctrl-C ended, as shells have it.
const INTERRUPTED: i32 = 130;

/// Repeats `wait` until the job that `reply` names is over; gives its last reply.
///
/// The mount answers each `wait` within a second, so that Ctrl-C is heeded within one; it ends the
/// waiting, not the job.
pub fn wait(
    channel: &mut Channel<'_>,
    mount: &Mount,
    mut reply: Reply,
    timeout: Option<&String>,
) -> Outcome<Reply> {
    let Some(job) = reply
        .job()
        .filter(|_| reply.is_running())
        .map(str::to_owned)
    else {
        return Ok(reply);
    };
    let limit = timeout
        .map(|text| humantime::parse_duration(text))
        .transpose()
        .map_err(|e| Failure::usage(format!("--timeout: {e}"), "Give a time such as 30s or 5m."))?;
    say_on_interrupt(job.clone())?;
    let start = Instant::now();
    let progress = std::io::stderr().is_terminal();
    while reply.is_running() {
        if limit.is_some_and(|limit| start.elapsed() >= limit) {
            break;
        }
        if progress {
            show(mount, &job, start.elapsed(), &reply.value);
        }
        reply = channel.ask(&Command::new("wait", [job.clone()]))?;
    }
    if progress {
        eprint!("\r\x1b[K");
    }
    if reply.is_running() {
        return Err(Failure::new(
            format!("{job} is still running"),
            format!("Wait on with panefs wait {job}, or stop it with panefs cancel {job}."),
        ));
    }
    Ok(reply)
}

/// Repeats `wait` until the job is over, saying nothing.
pub fn wait_silently(channel: &mut Channel<'_>, mut reply: Reply) -> Outcome<Reply> {
    while let Some(job) = reply.job().filter(|_| reply.is_running()) {
        reply = channel.ask(&Command::new("wait", [job.to_owned()]))?;
    }
    Ok(reply)
}

/// One line that is written over: what the job does, and for how long.
fn show(mount: &Mount, job: &str, since: Duration, reply: &Value) {
    let said = reply.get("summary").and_then(Value::as_str);
    let said = said.map(str::to_owned).or_else(|| last_words(mount, job));
    let said = plain(&said.unwrap_or_default()).replace('\n', " ");
    let said: String = said.chars().take(50).collect();
    eprint!("\r\x1b[K{job} is running, {} so far  {said}", span(since));
    let _ = std::io::stderr().flush();
}

/// The last text in the job's log.
fn last_words(mount: &Mount, job: &str) -> Option<String> {
    let log = std::fs::read_to_string(mount.control("jobs").join(job)).ok()?;
    let last = log.lines().next_back()?;
    let line: Value = serde_json::from_str(last).ok()?;
    Some(line.get("text")?.as_str()?.trim().to_owned())
}

/// On Ctrl-C says that the job goes on, and ends this process.
fn say_on_interrupt(job: String) -> Outcome {
    let mut interrupt = SigSet::empty();
    interrupt.add(Signal::SIGINT);
    // Blocked here, so that the thread that waits for it is the one to get it.
    interrupt
        .thread_block()
        .map_err(|e| Failure::io("signals", &e.into()))?;
    thread::spawn(move || {
        if interrupt.wait().is_ok() {
            eprintln!("\npanefs: no longer waiting; {job} goes on");
            eprintln!("  try: panefs wait {job}, or panefs cancel {job}");
            process::exit(INTERRUPTED);
        }
    });
    Ok(())
}
