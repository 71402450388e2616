//! Descriptors that stand for one process or thread, and never for its successor.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

/// A process or a thread, held by descriptor.
#[derive(Debug)]
pub struct PidFd(OwnedFd);

impl PidFd {
    /// The process with this id.
    ///
    /// # Errors
    /// ESRCH where there is none; another error where it is a thread that is not the first of its
    /// process; EMFILE.
    pub fn of_process(pid: u32) -> io::Result<Self> {
        Self::open(pid, 0)
    }

    /// The thread with this id.
    ///
    /// # Errors
    /// ESRCH where there is none; EINVAL where the kernel is older than 6.9; EMFILE.
    pub fn of_thread(tid: u32) -> io::Result<Self> {
        Self::open(tid, libc::PIDFD_THREAD)
    }

    fn open(id: u32, flags: libc::c_uint) -> io::Result<Self> {
        // SAFETY: pidfd_open takes two integers and touches no memory of ours.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, id, flags) };
        owned(fd).map(Self)
    }

    /// Whether it has not ended. A process that only waits to be reaped has.
    pub fn is_alive(&self) -> bool {
        none_ended([self])
    }

    /// Sends a signal to it alone.
    ///
    /// # Errors
    /// ESRCH where it has ended, EPERM where it is another user's.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        self.signal_number(signal as libc::c_int)
    }

    /// Sends the signal with this number, a real-time signal for instance.
    ///
    /// # Errors
    /// Those of [`signal`](Self::signal), and EINVAL where there is no such signal.
    pub fn signal_number(&self, number: i32) -> io::Result<()> {
        // SAFETY: pidfd_send_signal takes a descriptor, an integer, no siginfo and no flags.
        let sent = unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                self.0.as_raw_fd(),
                number,
                std::ptr::null::<libc::siginfo_t>(),
                0,
            )
        };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    fn to_poll(&self) -> PollFd<'_> {
        PollFd::new(self.0.as_fd(), PollFlags::POLLIN)
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether none of them has ended, in one system call.
pub fn none_ended<'a>(fds: impl IntoIterator<Item = &'a PidFd>) -> bool {
    let mut fds: Vec<_> = fds.into_iter().map(PidFd::to_poll).collect();
    loop {
        match poll(&mut fds, PollTimeout::ZERO) {
            Ok(ready) => return ready == 0,
            Err(nix::Error::EINTR) => {}
            Err(_) => return false,
        }
    }
}

/// Waits until at least one of them has ended or `timeout` is over; tells of each whether it has
/// ended.
///
/// # Errors
/// EINVAL where they are more than the limit of open files.
pub fn wait_any_ended(fds: &[&PidFd], timeout: Duration) -> io::Result<Vec<bool>> {
    let deadline = Instant::now() + timeout;
    let mut polled: Vec<_> = fds.iter().map(|fd| fd.to_poll()).collect();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // Rounded up, so that the last millisecond is waited for, not spun through.
        let millis = left.as_micros().div_ceil(1000);
        let timeout = PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX);
        match poll(&mut polled, timeout) {
            Err(nix::Error::EINTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return Ok(polled.iter().map(|fd| fd.any() != Some(false)).collect()),
        }
    }
}

/// Waits for the end of any number of processes.
#[derive(Debug)]
pub struct Watch {
    epoll: OwnedFd,
    wake: OwnedFd,
}

/// What ended a [`Watch::wait`].
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Wakeup {
    /// Somebody called [`Watch::wake`].
    pub woken: bool,
    /// The tokens of what has ended.
    pub ended: Vec<u32>,
}

/// The token of the wake-up itself; no process's, since those fit 32 bits.
const WAKE: u64 = u64::MAX;

impl Watch {
    /// Watches nothing yet.
    ///
    /// # Errors
    /// EMFILE.
    pub fn new() -> io::Result<Self> {
        // SAFETY: epoll_create1 takes flags only.
        let epoll = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }.into())?;
        // SAFETY: eventfd takes a number and flags only.
        let wake =
            owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }.into())?;
        let watch = Self { epoll, wake };
        watch.control(libc::EPOLL_CTL_ADD, watch.wake.as_fd(), libc::EPOLLIN, WAKE)?;
        Ok(watch)
    }

    /// Tells once, under `token`, when it ends, or at once where it has. Forgotten by closing it.
    ///
    /// # Errors
    /// ENOSPC beyond the user's limit of watches.
    pub fn add(&self, fd: &PidFd, token: u32) -> io::Result<()> {
        let events = libc::EPOLLIN | libc::EPOLLONESHOT;
        match self.control(libc::EPOLL_CTL_ADD, fd.as_fd(), events, token.into()) {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
                self.control(libc::EPOLL_CTL_MOD, fd.as_fd(), events, token.into())
            }
            result => result,
        }
    }

    fn control(&self, op: i32, fd: BorrowedFd<'_>, events: i32, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: events.cast_unsigned(),
            u64: token,
        };
        // SAFETY: both descriptors are open for the call, and `event` outlives it.
        let done =
            unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), op, fd.as_raw_fd(), &raw mut event) };
        if done < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Ends the present or the next wait.
    pub fn wake(&self) {
        // The only failure is a counter at its limit: then it is awake anyway.
        nix::unistd::write(&self.wake, &1_u64.to_ne_bytes()).ok();
    }

    /// Waits for an end, a wake-up, or `timeout`.
    ///
    /// # Errors
    /// None is known but a closed descriptor.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<Wakeup> {
        let millis = timeout.map_or(-1, |t| t.as_millis().try_into().unwrap_or(i32::MAX));
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 256];
        // SAFETY: `events` has room for 256 events and outlives the call.
        let ready =
            unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), 256, millis) };
        if ready < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::Interrupted => Ok(Wakeup::default()),
                _ => Err(error),
            };
        }
        let mut wakeup = Wakeup::default();
        for event in events.iter().take(ready.cast_unsigned() as usize) {
            match u32::try_from(event.u64) {
                Ok(token) => wakeup.ended.push(token),
                Err(_) => wakeup.woken = true,
            }
        }
        if wakeup.woken {
            nix::unistd::read(&self.wake, &mut [0; 8]).ok();
        }
        Ok(wakeup)
    }
}

fn owned(fd: libc::c_long) -> io::Result<OwnedFd> {
    match RawFd::try_from(fd) {
        // SAFETY: a descriptor that the kernel has just made for us; nobody else knows it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn an_end_is_seen_and_waited_for() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let fd = PidFd::of_process(child.id()).unwrap();
        let watch = Watch::new().unwrap();
        watch.add(&fd, 7).unwrap();
        assert!(fd.is_alive());
        watch.wake();
        assert_eq!(
            watch.wait(None).unwrap(),
            Wakeup {
                woken: true,
                ended: vec![]
            }
        );
        assert_eq!(watch.wait(Some(Duration::ZERO)).unwrap(), Wakeup::default());
        fd.signal(Signal::SIGKILL).unwrap();
        assert_eq!(watch.wait(None).unwrap().ended, [7]);
        assert!(!fd.is_alive(), "a zombie has ended");
        let own = PidFd::of_process(std::process::id()).unwrap();
        let ended = wait_any_ended(&[&own, &fd], Duration::from_secs(9)).unwrap();
        assert_eq!(ended, [false, true]);
        watch.add(&fd, 8).unwrap();
        assert_eq!(
            watch.wait(None).unwrap().ended,
            [8],
            "told again when asked again"
        );
        child.wait().unwrap();
        assert!(fd.signal(Signal::SIGTERM).is_err());
    }

    #[test]
    fn a_thread_is_no_process() {
        let (tell, tid) = std::sync::mpsc::channel();
        let (end, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tell.send(nix::unistd::gettid().as_raw().cast_unsigned())
                .unwrap();
            wait.recv().ok();
        });
        let tid = tid.recv().unwrap();
        assert!(PidFd::of_process(tid).is_err());
        let fd = PidFd::of_thread(tid).unwrap();
        assert!(fd.is_alive());
        drop(end);
        thread.join().unwrap();
        wait_any_ended(&[&fd], Duration::from_secs(9)).unwrap();
        assert!(!fd.is_alive());
    }
}
