//! What /proc tells of a process, parsed.
//!
//! Only files that answer for every process, non-dumpable ones included, and that never wait for
//! the process's memory map: a process may hold that while it waits for this very daemon, so
//! `cmdline`, `maps` and `environ` are not read here.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Read};
use std::str::FromStr;

/// A worker thread that io_uring runs on behalf of another thread of the process.
const PF_IO_WORKER: u32 = 0x0000_0010;
/// A thread of the kernel itself.
const PF_KTHREAD: u32 = 0x0020_0000;

/// `/proc/ID/stat`, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// The id that was asked for: a process or a thread.
    pub pid: u32,
    /// The name of the thread, at most 15 bytes for a user's.
    pub comm: String,
    /// `R`, `S`, `D`, `T`, `Z`, …
    pub state: u8,
    /// The parent process; 0 where it has none in this pid namespace.
    pub ppid: u32,
    /// The session's number, which is its leader's; 0 where that lies outside this pid namespace.
    pub session: u32,
    /// The kernel's PF_* flags.
    pub flags: u32,
    /// Threads of the process.
    pub threads: u32,
    /// When the process or thread started, in clock ticks after boot. A process keeps it over
    /// execve(2), so id and start together name one process for the time between two boots.
    pub start: u64,
}

impl Stat {
    /// Whether the process is over and only waits to be reaped. (A first thread that has ended
    /// before the others looks like a zombie too, but its process lives on.)
    pub fn has_ended(&self) -> bool {
        matches!(self.state, b'X' | b'x') || (self.state == b'Z' && self.threads <= 1)
    }

    /// Whether this is a thread of the kernel.
    pub fn is_kernel_thread(&self) -> bool {
        self.flags & PF_KTHREAD != 0
    }

    /// For an io_uring worker, the thread that it works for, as numbered in the first pid
    /// namespace.
    pub fn works_for(&self) -> Option<u32> {
        if self.flags & PF_IO_WORKER == 0 {
            return None;
        }
        let comm = self.comm.as_str();
        comm.strip_prefix("iou-wrk-")
            .or_else(|| comm.strip_prefix("iou-sqp-"))?
            .parse()
            .ok()
    }

    /// The name stands in parentheses and may hold spaces and parentheses itself.
    fn parse(text: &[u8]) -> Option<Self> {
        let open = text.iter().position(|&b| b == b'(')?;
        let close = text.iter().rposition(|&b| b == b')')?;
        let mut fields = text.get(close + 2..)?.split(|&b| b == b' ');
        let state = *fields.next()?.first()?;
        let ppid = number(fields.next()?)?;
        let session = number(fields.nth(1)?)?;
        let flags = number(fields.nth(2)?)?;
        let threads = number(fields.nth(10)?)?;
        let start = number(fields.nth(1)?)?;
        Some(Self {
            pid: number(text.get(..open)?.trim_ascii())?,
            comm: String::from_utf8_lossy(text.get(open + 1..close)?).into_owned(),
            state,
            ppid,
            session,
            flags,
            threads,
            start,
        })
    }
}

/// Real, effective, saved and filesystem id.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ids {
    /// Whose process it is.
    pub real: u32,
    /// What it acts as.
    pub effective: u32,
    /// What it may return to.
    pub saved: u32,
    /// What filesystems judge by.
    pub fs: u32,
}

/// `/proc/ID/status`, as far as it matters here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// The process of the thread.
    pub tgid: u32,
    /// The parent process; 0 where it has none in this pid namespace.
    pub ppid: u32,
    /// User ids.
    pub uid: Ids,
    /// Group ids.
    pub gid: Ids,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Effective capabilities, a bit each.
    pub cap_eff: u64,
    /// The thread's id in each pid namespace from the reader's inwards: one where both are the
    /// same.
    pub ns_pids: Vec<u32>,
}

impl Status {
    fn parse(text: &[u8]) -> Option<Self> {
        let mut status = Self::default();
        let mut seen_tgid = false;
        for line in text.split(|&b| b == b'\n') {
            let Some(colon) = line.iter().position(|&b| b == b':') else {
                continue;
            };
            let (key, value) = (&line[..colon], line[colon + 1..].trim_ascii());
            match key {
                b"Tgid" => {
                    status.tgid = number(value)?;
                    seen_tgid = true;
                }
                b"PPid" => status.ppid = number(value)?,
                b"Uid" => status.uid = ids(value)?,
                b"Gid" => status.gid = ids(value)?,
                b"Groups" => status.groups = numbers(value).collect(),
                b"NSpid" => status.ns_pids = numbers(value).collect(),
                b"CapEff" => {
                    status.cap_eff = u64::from_str_radix(str::from_utf8(value).ok()?, 16).ok()?;
                }
                _ => {}
            }
        }
        seen_tgid.then_some(status)
    }
}

/// Reads what is told of a process or thread.
///
/// # Errors
/// ENOENT or ESRCH where there is none (any more).
pub fn stat(id: u32) -> io::Result<Stat> {
    let mut buffer = [0; 1024];
    let length = File::open(format!("/proc/{id}/stat"))?.read(&mut buffer)?;
    Stat::parse(&buffer[..length]).ok_or_else(|| unreadable("stat", id))
}

/// Reads ids, groups and capabilities of a process or thread.
///
/// # Errors
/// ENOENT or ESRCH where there is none (any more).
pub fn status(id: u32) -> io::Result<Status> {
    let text = fs::read(format!("/proc/{id}/status"))?;
    Status::parse(&text).ok_or_else(|| unreadable("status", id))
}

/// The control groups of a thread: a line `N:CONTROLLERS:PATH` for each hierarchy.
///
/// # Errors
/// ENOENT or ESRCH where there is none (any more).
pub fn cgroup(id: u32) -> io::Result<String> {
    fs::read(format!("/proc/{id}/cgroup"))
        .map(|text| String::from_utf8(text).unwrap_or_else(|e| lossy(&e.into_bytes())))
}

/// The processes whose parent is this very thread. The kernel may leave one out when another ends
/// meanwhile.
///
/// # Errors
/// ENOENT or ESRCH where there is no such thread (any more), or the kernel keeps no such list.
pub fn children(pid: u32, tid: u32) -> io::Result<Vec<u32>> {
    fs::read(format!("/proc/{pid}/task/{tid}/children")).map(|text| numbers(&text).collect())
}

/// Every process.
///
/// # Errors
/// Whatever reading /proc gives.
pub fn processes() -> io::Result<Vec<u32>> {
    let mut pids = Vec::new();
    for entry in fs::read_dir("/proc")? {
        pids.extend(number::<u32>(entry?.file_name().as_encoded_bytes()));
    }
    Ok(pids)
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn number<T: FromStr>(text: &[u8]) -> Option<T> {
    str::from_utf8(text).ok()?.parse().ok()
}

fn numbers(text: &[u8]) -> impl Iterator<Item = u32> {
    text.split(u8::is_ascii_whitespace).filter_map(number)
}

fn ids(text: &[u8]) -> Option<Ids> {
    let mut ids = numbers(text);
    Some(Ids {
        real: ids.next()?,
        effective: ids.next()?,
        saved: ids.next()?,
        fs: ids.next()?,
    })
}

fn unreadable(file: &str, id: impl Display) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("/proc/{id}/{file} can't be read"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_look_like_anything() {
        let line = b"17 (a) R 1 (b c)) S 5 17 12 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 3 0 4711 99 1\n";
        let stat = Stat::parse(line).unwrap();
        assert_eq!(stat.comm, "a) R 1 (b c)");
        assert_eq!((stat.pid, stat.state, stat.ppid), (17, b'S', 5));
        assert_eq!((stat.session, stat.flags), (12, 4_194_560));
        assert_eq!((stat.threads, stat.start), (3, 4711));
        for cut in 0..60 {
            assert_eq!(Stat::parse(&line[..cut]), None, "{cut}");
        }
    }

    #[test]
    fn an_io_worker_names_its_thread() {
        let mut stat = stat(std::process::id()).unwrap();
        stat.comm = "iou-wrk-123".into();
        assert_eq!(stat.works_for(), None, "anybody may take that name");
        stat.flags |= PF_IO_WORKER;
        assert_eq!(stat.works_for(), Some(123));
    }

    #[test]
    fn status_of_oneself() {
        let status = status(std::process::id()).unwrap();
        assert_eq!(status.tgid, std::process::id());
        assert_eq!(status.uid.effective, nix::unistd::geteuid().as_raw());
        assert_eq!(status.gid.fs, nix::unistd::getegid().as_raw());
        assert_eq!(status.ns_pids, [std::process::id()]);
        assert_eq!(status.ppid, std::os::unix::process::parent_id());
        let groups = nix::unistd::getgroups().unwrap();
        assert_eq!(status.groups.len(), groups.len());
    }
}
