//! The control room: a line of a control file → a command → a decision → a reply.
//!
//! `model` decides, the store remembers, and only then is a decision seen: by the world, the
//! gates, the members and the tree, in that order. Knows nothing of FUSE.
//!
//! Lock order: `Channel::turn`, then a gate, then [`Control::deciding`], then `world` and the
//! small locks, each of which is held for moments only. Nothing but a gate and `deciding` is
//! held while the disk is waited for.

mod channel;
mod command;
mod ended;
mod files;
mod grammar;
mod handoff;
mod help;
mod holders;
mod jobs;
mod metrics;
mod refused;
mod render;
mod reply;
mod repos;
mod trash;
mod usage;
mod values;
mod verb;
mod verbs;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::gate::{ClosedGate, Gates};
use crate::member::{Members, Who};
use crate::model::{
    Decision, Owner, Refusal, Rule, Timestamp, WindowId, Workspace, WorkspaceId, World,
};
use crate::store::{Opened, Store, Transaction};

pub use channel::Channel;
pub use files::ControlFile;
pub use grammar::WRITE_LIMIT;
pub use verbs::Removal;

use command::Command;
use grammar::Line;
use jobs::Jobs;
use metrics::Counters;
use refused::Refusals;
use reply::{Failure, Reply};
use usage::UsageCache;

/// A write that took this long answers what it did so far; the writer goes on with the rest.
const ENOUGH: Duration = Duration::from_millis(150);

/// Who writes or reads a control file.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Its role, and by what.
    pub who: Who,
    /// Its thread id; 0 where it can't be seen from here.
    pub tid: u32,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

/// Whose control file it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The mount owner's, `.panefs/ctl`.
    Root,
    /// A window's, `.panefs/windows/cN/ctl`.
    Window(WindowId),
}

/// How the daemon was started.
#[derive(Debug, Clone)]
pub struct Options {
    /// The mountpoint, absolute.
    pub mount: PathBuf,
    /// How long the trash keeps files; none for the store's setting.
    pub trash_keep: Option<Duration>,
    /// The age at which `expire` takes released workspaces; none for the store's setting.
    pub retention: Option<Duration>,
    /// Whether other users may use the mount.
    pub allow_other: bool,
    /// The daemon's user and group.
    pub owner: Owner,
}

/// What the tree shows must follow what control decides.
pub trait Tree: Send + Sync {
    /// Drops cached listings of the mountpoint, `.panefs/windows` and `.panefs/jobs`.
    fn windows_changed(&self);
    /// Forgets the name of a workspace that is gone.
    fn workspace_gone(&self, id: WorkspaceId);
    /// Drops everything cached of a workspace.
    fn refresh(&self, id: WorkspaceId);
    /// Mounts the tree once more, acting for a window; for none it is read-only.
    ///
    /// # Errors
    /// What stands in the way of the mount.
    fn open_view(&self, window: Option<WindowId>, dir: &Path) -> Result<(), Refusal>;
    /// Unmounts such a view.
    ///
    /// # Errors
    /// What stands in the way of the unmount.
    fn close_view(&self, dir: &Path) -> Result<(), Refusal>;
    /// Every view, and for whom it acts.
    fn views(&self) -> Vec<(PathBuf, Option<WindowId>)>;
    /// Views of `from` act for `to` from now on.
    fn moved(&self, from: WindowId, to: WindowId);
}

/// Everything that is decided and answered.
pub struct Control {
    store: Arc<Store>,
    members: Arc<Members>,
    gates: Arc<Gates>,
    options: Options,
    runtime: tokio::runtime::Handle,
    tree: RwLock<Option<Weak<dyn Tree>>>,
    /// Held from a decision until it is durable and visible.
    deciding: Mutex<()>,
    /// Changed only under `deciding`.
    world: RwLock<World>,
    jobs: Jobs,
    usage: UsageCache,
    refusals: Refusals,
    counters: Counters,
    /// Wakes the task that empties the trash.
    sweep: Arc<tokio::sync::Notify>,
    /// Purged workspaces whose files may still be in the trash.
    to_delete: Mutex<Vec<WorkspaceId>>,
    this: Weak<Control>,
}

/// The right to decide: nobody else does meanwhile.
pub(in crate::control) struct Deciding<'a> {
    control: &'a Control,
    _turn: MutexGuard<'a, ()>,
}

impl Deciding<'_> {
    /// Makes a transaction durable, then visible to the world.
    fn commit(&self, transaction: Transaction) -> Result<(), Refusal> {
        let control = self.control;
        if transaction.is_empty() {
            return Ok(());
        }
        let events = control.store.commit(&transaction, Timestamp::now())?;
        control.counters.commit(events.len());
        control.world.write().apply(&transaction.changes);
        Ok(())
    }

    /// Makes a decision of the model durable and visible.
    fn commit_decision<T>(&self, decision: Decision<T>) -> Result<T, Refusal> {
        self.commit(Transaction {
            changes: decision.changes,
            events: decision.events,
            ..Transaction::default()
        })?;
        Ok(decision.answer)
    }
}

/// For whom a command is: what it may do, and which window it means.
#[derive(Debug, Clone, Copy)]
struct Asker {
    /// The window whose rights it has; none for the mount's owner.
    own: Option<WindowId>,
    /// The window that is meant where none is named.
    implied: Option<WindowId>,
}

/// A command line on its way to its reply.
struct Request<'a> {
    caller: &'a Caller,
    asker: Asker,
    line: &'a str,
}

impl Control {
    /// Takes over what the store remembers, opens a gate for each workspace in the tree, and
    /// starts what runs aside. `runtime` needs its time driver.
    pub fn new(
        opened: Opened,
        gates: Arc<Gates>,
        members: Arc<Members>,
        options: Options,
        runtime: tokio::runtime::Handle,
    ) -> Arc<Self> {
        for workspace in opened.world.workspaces().filter(|w| w.in_tree()) {
            gates.set(workspace);
        }
        let (jobs, unfinished) = Jobs::remember(opened.jobs);
        let control = Arc::new_cyclic(|this: &Weak<Control>| Self {
            store: Arc::new(opened.store),
            members,
            gates,
            options,
            runtime,
            tree: RwLock::new(None),
            deciding: Mutex::new(()),
            world: RwLock::new(opened.world),
            jobs,
            usage: UsageCache::default(),
            refusals: Refusals::default(),
            counters: Counters::default(),
            sweep: Arc::default(),
            to_delete: Mutex::new(opened.leftovers),
            this: this.clone(),
        });
        if let Err(refusal) = control.decide().commit(unfinished) {
            tracing::error!("jobs that the last daemon left are not in the registry: {refusal}");
        }
        control.watch_members();
        control.watch_refusals();
        control.watch_trash();
        control
    }

    /// Asks running jobs to stop, as the daemon ends.
    pub fn stop(&self) {
        self.jobs.cancel_all();
    }

    /// From now on `tree` follows what is decided.
    pub fn set_tree(&self, tree: Weak<dyn Tree>) {
        *self.tree.write() = Some(tree);
    }

    /// Looks at the world, for a moment.
    pub fn world<R>(&self, look: impl FnOnce(&World) -> R) -> R {
        look(&self.world.read())
    }

    /// Who belongs where.
    pub fn members(&self) -> &Arc<Members> {
        &self.members
    }

    /// Who may change what.
    pub fn gates(&self) -> &Arc<Gates> {
        &self.gates
    }

    /// What is on disk.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// How the daemon was started.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// A channel for one open control file.
    pub fn open_channel(&self, scope: Scope, readable: bool) -> Arc<Channel> {
        Arc::new(Channel::new(scope, readable))
    }

    /// Runs the commands of one write in order, and returns how many bytes were taken: all, or
    /// those before the first refused command. Blocks for up to a second, so it must not be
    /// called on a thread that answers requests.
    ///
    /// # Errors
    /// The errno of the first command, where that is refused.
    pub fn write(&self, channel: &Channel, caller: &Caller, bytes: &[u8]) -> Result<usize, i32> {
        let _turn = channel.turn();
        if bytes.len() > WRITE_LIMIT {
            let failure = Failure::from(grammar::too_long(bytes.len()));
            return Err(self.refuse(channel, "", &failure));
        }
        let asker = Asker::new(channel.scope(), caller);
        let began = Instant::now();
        let mut taken = 0;
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            if taken > 0 && began.elapsed() > ENOUGH {
                break;
            }
            if channel.is_full() {
                // Each command gives a line: it has to wait until there is room for its own.
                return if taken > 0 {
                    Ok(taken)
                } else {
                    Err(libc::EAGAIN)
                };
            }
            let (verb, outcome) = self.run_line(asker, caller, line);
            match outcome {
                Ok(None) => {}
                Ok(Some(reply)) => {
                    self.counters.command(verb, "ok");
                    channel.push(reply.into_line());
                }
                Err(failure) if taken == 0 => return Err(self.refuse(channel, verb, &failure)),
                // Not answered: the writer comes back with it as the first of its next write.
                Err(_) => break,
            }
            taken += line.len();
        }
        Ok(taken)
    }

    /// At most `len` bytes of the rest of one reply line; nothing where none waits.
    pub fn read(&self, channel: &Channel, len: usize) -> Vec<u8> {
        channel.read(len)
    }

    fn refuse(&self, channel: &Channel, verb: &'static str, failure: &Failure) -> i32 {
        let refusal = &failure.refusal;
        tracing::info!(verb, rule = refusal.rule.as_str(), "refused: {refusal}");
        self.counters.command(verb, refusal.rule.as_str());
        channel.push(failure.to_line());
        refusal.errno()
    }

    /// Runs one line; the verb is empty while it isn't known.
    fn run_line(
        &self,
        asker: Asker,
        caller: &Caller,
        bytes: &[u8],
    ) -> (&'static str, Result<Option<Reply>, Failure>) {
        let line = match Line::parse(bytes) {
            Ok(Some(line)) => line,
            Ok(None) => return ("", Ok(None)),
            Err(refusal) => return ("", Err(refusal.into())),
        };
        let verb = match verb::Verb::find(&line.verb) {
            Ok(verb) => verb,
            Err(refusal) => return ("", Err(refusal.into())),
        };
        let request = Request {
            caller,
            asker,
            line: std::str::from_utf8(bytes).unwrap_or_default().trim(),
        };
        let outcome = asker
            .may_use(verb)
            .and_then(|()| Command::parse(verb, line, asker.implied))
            .and_then(|command| asker.may_do(&command).map(|()| command))
            .map_err(Failure::from)
            .and_then(|command| self.execute(&request, command))
            .map_err(|failure| self.localised(failure));
        if outcome.is_ok() {
            tracing::info!(verb = verb.name, line = request.line, "done");
        }
        (verb.name, outcome.map(Some))
    }

    /// Adds the absolute path to a refusal that names a workspace.
    fn localised(&self, mut failure: Failure) -> Failure {
        let fields = &mut failure.refusal.fields;
        let workspace = fields.get("workspace").and_then(|value| value.as_str());
        if let (Some(workspace), None) = (workspace, fields.get("path")) {
            let path = self.options.mount.join(workspace);
            fields.insert("path".into(), path.display().to_string().into());
        }
        failure
    }

    /// Waits for the right to decide.
    fn decide(&self) -> Deciding<'_> {
        Deciding {
            control: self,
            _turn: self.deciding.lock(),
        }
    }

    /// Lets a closed gate judge by the workspace's present row.
    fn reopen(&self, closed: Option<&mut ClosedGate<'_>>, id: Option<WorkspaceId>) {
        if let (Some(closed), Some(id)) = (closed, id) {
            self.world(|world| {
                if let Some(workspace) = world.workspace(id) {
                    closed.set(workspace);
                }
            });
        }
    }

    /// Tells the tree, if there is one.
    fn tree(&self, tell: impl FnOnce(&dyn Tree)) {
        let tree = self.tree.read().as_ref().and_then(Weak::upgrade);
        if let Some(tree) = tree {
            tell(&*tree);
        }
    }

    /// This, for work that goes on elsewhere.
    fn shared(&self) -> Result<Arc<Self>, Refusal> {
        self.this.upgrade().ok_or_else(|| {
            Refusal::new(
                Rule::Internal,
                "the daemon is ending",
                "Mount again, then give the command again.",
            )
        })
    }

    /// The absolute path of a workspace in the mount.
    fn path_of(&self, workspace: &Workspace) -> String {
        let path = self.options.mount.join(workspace.id.to_string());
        path.display().to_string()
    }
}

impl Asker {
    /// A member asks for its window wherever it asks; anybody else for the file's.
    fn new(scope: Scope, caller: &Caller) -> Self {
        let member = caller.who.role.window();
        let named = match scope {
            Scope::Root => None,
            Scope::Window(window) => Some(window),
        };
        Self {
            own: member.or(named),
            implied: named.or(member),
        }
    }

    fn may_use(self, verb: &verb::Verb) -> Result<(), Refusal> {
        match self.own {
            Some(window) if verb.owner_only => Err(Refusal::new(
                Rule::CommandNotAllowed,
                format!(
                    "{window} may not use {}: it is the mount owner's",
                    verb.name
                ),
                "Ask the mount's owner, who uses .panefs/ctl from a process of no window.",
            )
            .with("window", window.to_string())),
            _ => Ok(()),
        }
    }

    fn may_do(self, command: &Command) -> Result<(), Refusal> {
        let Some(own) = self.own else { return Ok(()) };
        match (command, command.acts_on()) {
            (Command::Quota(_, true), _) => Err(Refusal::new(
                Rule::CommandNotAllowed,
                format!("{own} may not set a quota: it is the mount owner's to set"),
                "Read it with `quota`, or ask the mount's owner.",
            )
            .with("window", own.to_string())),
            (_, Some(window)) if window != own => Err(Refusal::new(
                Rule::WindowNotYours,
                format!("{window} is not yours: you work for {own}"),
                format!("Leave the window out, or name {own}."),
            )
            .with("window", own.to_string())),
            _ => Ok(()),
        }
    }
}
