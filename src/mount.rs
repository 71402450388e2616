//! The daemon: puts the rooms together, serves MNT and its views, and ends cleanly.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use parking_lot::Mutex;
use tokio::signal::unix::SignalKind;

use crate::control::{self, Control, Tree};
use crate::fs::{self, Fs, Kernel, Mount, MountId, ROOT, Synthetic};
use crate::fuse;
use crate::gate::Gates;
use crate::member::Members;
use crate::model::{Owner, Refusal, Rule, WindowId, WorkspaceId};
use crate::store::{Store, StoreError};
use crate::sys::mount::{FuseMount, detach, is_dead, mount, mounted, wait_until_gone};

/// The subtype of MNT in /proc/self/mountinfo: `fuse.panefs`.
pub const SUBTYPE: &str = "panefs";
/// The subtype of view mounts.
pub const VIEW_SUBTYPE: &str = "panefs-view";
/// The subtype of what covers an ordinary user's STORE/workspaces.
pub const COVER_SUBTYPE: &str = "panefs-cover";

/// How long a clean end waits for dirty pages to be written and for requests to finish.
const LAST_CALLS: Duration = Duration::from_secs(3);
/// A view mount serves few callers.
const VIEW_THREADS: usize = 2;

/// How to mount.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// The store's directory.
    pub store: PathBuf,
    /// The mountpoint.
    pub mountpoint: PathBuf,
    /// Serve other users too.
    pub allow_other: bool,
    /// Let the kernel read and write backing files by itself, where it can.
    pub passthrough: bool,
    /// Request threads; none for a number that suits the machine.
    pub threads: Option<usize>,
    /// How long the trash keeps files.
    pub trash_keep: Option<Duration>,
    /// The age at which `expire` takes released workspaces.
    pub retention: Option<Duration>,
    /// Options of mount(8): `noexec`, `suid`, …
    pub options: Vec<String>,
}

/// Why the daemon could not start, or ended badly.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The store can't be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The mount failed.
    #[error("can't mount on {path}: {source}")]
    Mount {
        /// The mountpoint.
        path: PathBuf,
        /// What the kernel or fusermount3 said.
        source: io::Error,
    },
    /// Something beneath failed.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What came of it.
        source: io::Error,
    },
}

impl MountError {
    /// One sentence that the reader can act on.
    pub fn next_action(&self) -> String {
        match self {
            Self::Store(error) => error.next_action(),
            Self::Mount { .. } => "See what this host lacks with: panefs doctor".to_owned(),
            Self::System { .. } => "See the daemon's log, and: panefs doctor".to_owned(),
        }
    }
}

fn system(what: &'static str) -> impl Fn(io::Error) -> MountError {
    move |source| MountError::System { what, source }
}

/// A view mount.
#[derive(Debug)]
struct View {
    dir: PathBuf,
    mount: Arc<Mount>,
}

/// The tree's mounts, as control commands them.
struct Mounts {
    fs: Arc<Fs>,
    kernel: Box<dyn Kernel>,
    runtime: tokio::runtime::Handle,
    source: String,
    allow_other: bool,
    next: AtomicU32,
    views: Mutex<Vec<View>>,
    this: Weak<Mounts>,
}

impl Mounts {
    fn view_ended(&self, id: MountId) {
        self.views.lock().retain(|view| view.mount.id != id);
    }

    fn detach_all(&self) {
        for view in std::mem::take(&mut *self.views.lock()) {
            if let Err(error) = detach(&view.dir) {
                tracing::warn!(dir = %view.dir.display(), %error, "a view mount stays");
            }
        }
    }
}

fn argument(dir: &Path, problem: &str, next_action: &str) -> Refusal {
    Refusal::new(
        Rule::ArgumentInvalid,
        format!("{} {problem}", dir.display()),
        next_action,
    )
}

impl Tree for Mounts {
    fn windows_changed(&self) {
        self.kernel.forget_inode(ROOT, Some(0));
        for directory in [Synthetic::Windows, Synthetic::Jobs] {
            self.kernel.forget_inode(directory.nodeid(), Some(0));
        }
    }

    fn workspace_gone(&self, id: WorkspaceId) {
        self.kernel.forget_name(ROOT, id.to_string().as_ref());
        self.windows_changed();
    }

    fn refresh(&self, id: WorkspaceId) {
        self.fs.refresh(id);
    }

    fn open_view(&self, window: Option<WindowId>, dir: &Path) -> Result<(), Refusal> {
        if !dir.is_absolute() {
            return Err(argument(
                dir,
                "is not an absolute path",
                "Give the directory's path from the root.",
            ));
        }
        if self.views.lock().iter().any(|view| view.dir == dir) {
            return Err(argument(
                dir,
                "has a view mount already",
                "Choose another directory, or take that view away with `leave`.",
            ));
        }
        // What an ended daemon left there answers so; it is nobody's any more.
        let looked_at = std::fs::read_dir(dir);
        if looked_at
            .as_ref()
            .is_err_and(|e| e.raw_os_error() == Some(libc::ENOTCONN))
        {
            detach(dir).map_err(|error| Refusal::internal("a dead view mount stays", error))?;
        }
        match std::fs::read_dir(dir).map(|mut entries| entries.next().is_none()) {
            Ok(true) => {}
            Ok(false) => {
                return Err(argument(
                    dir,
                    "is not empty",
                    "Give an empty directory for the view mount.",
                ));
            }
            Err(error) => {
                return Err(argument(
                    dir,
                    &format!("is no directory to mount on: {error}"),
                    "Make it with mkdir first.",
                ));
            }
        }
        // Where nobody may write, the kernel itself refuses, with a read-only mount's errnos.
        let options = match window {
            None => vec!["ro".to_owned()],
            Some(_) => Vec::new(),
        };
        let how = FuseMount {
            subtype: VIEW_SUBTYPE,
            source: &self.source,
            allow_other: self.allow_other,
            options: &options,
        };
        let failed = |error| Refusal::internal(format!("can't mount on {}", dir.display()), error);
        let device = mount(dir, &how).map_err(failed)?;
        let id = MountId(self.next.fetch_add(1, Ordering::Relaxed));
        let view = Arc::new(Mount::view(id, window));
        let (fs, runtime) = (Arc::clone(&self.fs), self.runtime.clone());
        let served = fuse::serve(fs, Arc::clone(&view), device, VIEW_THREADS, runtime);
        let served = served.map_err(|error| {
            if let Err(error) = detach(dir) {
                tracing::warn!(dir = %dir.display(), %error, "a failed view mount stays");
            }
            failed(error)
        })?;
        self.views.lock().push(View {
            dir: dir.to_owned(),
            mount: view,
        });
        let this = self.this.clone();
        std::thread::spawn(move || {
            if let Err(error) = served.join() {
                tracing::warn!(%error, "a view mount ended");
            }
            if let Some(mounts) = this.upgrade() {
                mounts.view_ended(id);
            }
        });
        Ok(())
    }

    fn close_view(&self, dir: &Path) -> Result<(), Refusal> {
        if !self.views.lock().iter().any(|view| view.dir == dir) {
            return Err(argument(
                dir,
                "has no view mount",
                "See `list sessions` for the view mounts there are.",
            ));
        }
        detach(dir).map_err(|error| {
            Refusal::internal(format!("can't unmount {}", dir.display()), error)
        })?;
        self.views.lock().retain(|view| view.dir != dir);
        Ok(())
    }

    fn views(&self) -> Vec<(PathBuf, Option<WindowId>)> {
        let views = self.views.lock();
        views
            .iter()
            .map(|view| (view.dir.clone(), view.mount.window()))
            .collect()
    }

    fn moved(&self, from: WindowId, to: WindowId) {
        for view in self.views.lock().iter() {
            view.mount.move_window(from, to);
        }
    }
}

/// As many descriptors as the host allows: every open file of every window may need one.
fn raise_descriptor_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::warn!(%error, "the descriptor limit stays as it is");
    }
}

fn ignore_signals() -> nix::Result<()> {
    for ignored in [Signal::SIGPIPE, Signal::SIGIO] {
        crate::sys::signals::ignore(ignored)?;
    }
    Ok(())
}

/// Serves until the mount is gone or a signal asks for the end. `ready` is called once: when the
/// mount is usable, or with what stands in its way.
///
/// # Errors
/// As told to `ready`; later, what ended the mount other than an unmount or a signal.
pub fn serve(
    options: &MountOptions,
    ready: impl FnOnce(Result<(), &MountError>),
) -> Result<(), MountError> {
    match Daemon::start(options) {
        Ok(daemon) => {
            ready(Ok(()));
            daemon.run()
        }
        Err(error) => {
            ready(Err(&error));
            Err(error)
        }
    }
}

struct Daemon {
    mountpoint: PathBuf,
    runtime: tokio::runtime::Runtime,
    control: Arc<Control>,
    mounts: Arc<Mounts>,
    main: fuse::Served,
    cover: Option<(PathBuf, fuse::Served)>,
    signals: Signals,
}

struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Daemon {
    fn start(options: &MountOptions) -> Result<Self, MountError> {
        raise_descriptor_limit();
        ignore_signals().map_err(|e| system("can't ignore signals")(e.into()))?;
        let is_root = nix::unistd::geteuid().is_root();
        if !is_root {
            nix::sys::prctl::set_dumpable(false)
                .map_err(|e| system("can't hide the daemon's memory")(e.into()))?;
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(system("can't start threads"))?;
        // Before anything is mounted: a signal from then on ends the daemon cleanly.
        let signals = {
            let _entered = runtime.enter();
            Signals {
                terminate: tokio::signal::unix::signal(SignalKind::terminate())
                    .map_err(system("can't wait for signals"))?,
                interrupt: tokio::signal::unix::signal(SignalKind::interrupt())
                    .map_err(system("can't wait for signals"))?,
            }
        };
        let mountpoint = options
            .mountpoint
            .canonicalize()
            .map_err(|source| MountError::Mount {
                path: options.mountpoint.clone(),
                source,
            })?;
        if !is_root {
            // What an ended daemon left there would be in the way of the store.
            uncover(&options.store.join("workspaces"))
                .map_err(system("a dead cover of STORE/workspaces stays"))?;
        }
        let mut opened = Store::open(&options.store)?;
        for line in &opened.recovered {
            tracing::info!("recovered: {line}");
        }
        let members = Members::new(std::mem::take(&mut opened.bindings));
        let owner = Owner {
            uid: nix::unistd::geteuid().as_raw(),
            gid: nix::unistd::getegid().as_raw(),
        };
        let control = Control::new(
            opened,
            Arc::new(Gates::default()),
            members,
            control::Options {
                mount: mountpoint.clone(),
                trash_keep: options.trash_keep,
                retention: options.retention,
                allow_other: options.allow_other,
                owner,
            },
            runtime.handle().clone(),
        );
        let settings = fs::Settings {
            allow_other: options.allow_other,
            passthrough: options.passthrough,
        };
        let fs = Fs::new(Arc::clone(&control), settings)
            .map_err(system("can't look at the store's workspaces"))?;
        let source = control.store().path().to_string_lossy().into_owned();
        let how = FuseMount {
            subtype: SUBTYPE,
            source: &source,
            allow_other: options.allow_other,
            options: &options.options,
        };
        let failed = |source| MountError::Mount {
            path: mountpoint.clone(),
            source,
        };
        let threads = options.threads.unwrap_or_else(suitable_threads);
        let device = mount(&mountpoint, &how).map_err(failed)?;
        let main = fuse::serve(
            Arc::clone(&fs),
            Arc::new(Mount::main()),
            device,
            threads,
            runtime.handle().clone(),
        )
        .inspect_err(|_| give_up(&mountpoint))
        .map_err(failed)?;
        let cover = if is_root {
            None
        } else {
            let dir = control.store().path().join("workspaces");
            let covered = cover(&dir, &source).inspect_err(|_| give_up(&mountpoint));
            Some((
                dir.clone(),
                covered.map_err(|source| MountError::Mount { path: dir, source })?,
            ))
        };
        fs.connect(main.kernel());
        let mounts = Arc::new_cyclic(|this| Mounts {
            fs,
            kernel: main.kernel(),
            runtime: runtime.handle().clone(),
            source,
            allow_other: options.allow_other,
            next: AtomicU32::new(1),
            views: Mutex::default(),
            this: this.clone(),
        });
        let tree: Weak<dyn Tree> = Arc::downgrade(&(Arc::clone(&mounts) as Arc<dyn Tree>));
        control.set_tree(tree);
        tracing::info!(mount = %mountpoint.display(), threads, "mounted");
        Ok(Self {
            mountpoint,
            runtime,
            control,
            mounts,
            main,
            cover,
            signals,
        })
    }

    fn run(self) -> Result<(), MountError> {
        let Self {
            mountpoint,
            runtime,
            control,
            mounts,
            main,
            cover,
            mut signals,
        } = self;
        let gone = gone_from(&mountpoint);
        let (ended, mut end) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            // Nobody listens any more where a signal came first.
            let _ = ended.send(main.join());
        });
        let result = runtime.block_on(async {
            tokio::select! {
                ended = &mut end => ended.unwrap_or(Ok(())),
                Ok(()) = gone => Ok(()),
                _ = signals.terminate.recv() => Ok(()),
                _ = signals.interrupt.recv() => Ok(()),
            }
        });
        tracing::info!("ending");
        end_anyway();
        control.stop();
        write_back(&mountpoint);
        mounts.detach_all();
        if let Err(error) = detach(&mountpoint) {
            tracing::debug!(%error, "the mount was gone already");
        }
        if let Some((dir, _)) = &cover
            && let Err(error) = detach(dir)
        {
            tracing::warn!(%error, "the cover of the workspaces stays");
        }
        // Requests under way get their answers; who still holds something open after that gets
        // ENOTCONN when the process ends.
        runtime.block_on(async {
            let _ = tokio::time::timeout(LAST_CALLS, end).await;
        });
        runtime.shutdown_timeout(LAST_CALLS);
        result.map_err(system("the connection to the kernel ended"))
    }
}

/// Tells when MNT has been unmounted everywhere in this namespace, also lazily: who still holds
/// something open then doesn't keep the daemon.
fn gone_from(mountpoint: &Path) -> tokio::sync::oneshot::Receiver<()> {
    let (tell, gone) = tokio::sync::oneshot::channel();
    // The one on top is ours.
    let device = mounted().ok().and_then(|mounts| {
        let own = mounts.into_iter().rfind(|mount| mount.point == mountpoint);
        own.map(|mount| mount.device)
    });
    match device {
        Some(device) => {
            std::thread::spawn(move || match wait_until_gone(&device) {
                // Nobody listens any more where the daemon ends already.
                Ok(()) => drop(tell.send(())),
                Err(error) => tracing::warn!(%error, "the mount table can't be watched"),
            });
        }
        None => tracing::warn!("the mount isn't in the mount table"),
    }
    gone
}

/// Whatever hangs, a disk or fusermount3: the daemon that was asked to end ends. The kernel then
/// answers what is left with ENOTCONN.
fn end_anyway() {
    std::thread::spawn(|| {
        std::thread::sleep(LAST_CALLS * 4);
        tracing::error!("ended without waiting any longer for requests under way");
        std::process::exit(1);
    });
}

/// Has the kernel write the dirty pages of mappings, but not for longer than is fitting.
fn write_back(mountpoint: &Path) {
    let (done, wait) = std::sync::mpsc::channel();
    let mountpoint = mountpoint.to_owned();
    std::thread::spawn(move || {
        let synced =
            std::fs::File::open(&mountpoint).and_then(|dir| crate::sys::file::syncfs(dir.as_fd()));
        // Nobody listens any more where this took too long.
        let _ = done.send(synced);
    });
    match wait.recv_timeout(LAST_CALLS) {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "nothing left to write back"),
        Err(_) => tracing::warn!("dirty pages could not be written back in time"),
    }
}

fn give_up(mountpoint: &Path) {
    if let Err(error) = detach(mountpoint) {
        tracing::warn!(%error, "a failed mount stays");
    }
}

fn cover(dir: &Path, source: &str) -> io::Result<fuse::Served> {
    let how = FuseMount {
        subtype: COVER_SUBTYPE,
        source,
        allow_other: false,
        options: &[],
    };
    let device = mount(dir, &how)?;
    fuse::serve_cover(device).inspect_err(|_| give_up(dir))
}

/// Takes away what a daemon that was killed left there.
fn uncover(dir: &Path) -> io::Result<()> {
    if is_dead(dir) { detach(dir) } else { Ok(()) }
}

/// Enough that some may wait for the disk while others answer.
fn suitable_threads() -> usize {
    let cpus = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    (cpus * 2).clamp(4, 16)
}
