//! The synthetic part of the tree: MNT itself, `.panefs`, and the links that depend on who reads.

use std::ffi::{OsStr, OsString};
use std::sync::Arc;

use super::access::Request;
use super::attr::{Attr, Entry, Ttl};
use super::error::{Error, Result};
use super::handle::Handle;
use super::nodeid::{PANEFS_LISTED, Synthetic, WindowEntry};
use super::{Fs, Opened, Reached};
use crate::control::{ControlFile, Removal, Scope};
use crate::gate::Gate;
use crate::model::{JobId, Owner, Timestamp, WindowId, WorkspaceId, World};

/// Where `self` and `cwd` lead for who belongs to no window.
const NOWHERE: &str = ".panefs/windows/none";

/// What a name in a synthetic directory stands for.
#[derive(Debug, Clone)]
pub enum Target {
    /// Another synthetic entry.
    Synthetic(Synthetic),
    /// The top of a workspace.
    Workspace(Arc<Gate>),
}

/// One entry of a synthetic directory.
#[derive(Debug, Clone)]
pub struct Listed {
    /// The offset of the entry after this one.
    pub next: u64,
    /// Its name.
    pub name: OsString,
    /// What it stands for.
    pub target: Target,
}

/// At most this many entries are made at once; the kernel asks for more than fit one reply.
const LISTED_AT_ONCE: usize = 512;

/// Offsets below this one are for fixed entries; a numbered entry's is this plus its number.
const NUMBERED: u64 = 16;

fn window_is_shown(world: &World, id: WindowId) -> bool {
    world
        .window(id)
        .is_some_and(|window| match window.workspace {
            None => true,
            Some(workspace) => world.workspace(workspace).is_some_and(|w| w.in_tree()),
        })
}

impl Synthetic {
    fn is_directory(self) -> bool {
        matches!(
            self,
            Self::Root
                | Self::Panefs
                | Self::Jobs
                | Self::Windows
                | Self::Window(_, WindowEntry::Directory)
        )
    }

    fn is_link(self) -> bool {
        matches!(
            self,
            Self::SelfWindow
                | Self::SelfWorkspace
                | Self::Cwd
                | Self::Window(_, WindowEntry::Workspace | WindowEntry::Cwd)
        )
    }

    /// File type and permissions, as `st_mode`.
    pub fn mode(self) -> u32 {
        if self.is_link() {
            return libc::S_IFLNK | 0o777;
        }
        if self.is_directory() {
            return libc::S_IFDIR | if self == Self::Windows { 0o755 } else { 0o555 };
        }
        libc::S_IFREG
            | match self {
                Self::Ctl | Self::Operators | Self::Window(..) => 0o600,
                Self::Acting => 0o666,
                _ => 0o444,
            }
    }

    /// What its content is, where control answers it whole.
    fn control_file(self) -> Option<ControlFile> {
        Some(match self {
            Self::Help => ControlFile::Help,
            Self::Whoami => ControlFile::Whoami,
            Self::Operators => ControlFile::Operators,
            Self::Acting => ControlFile::Acting,
            Self::WindowsList => ControlFile::Windows,
            Self::WorkspacesList => ControlFile::Workspaces,
            Self::Metrics => ControlFile::Metrics,
            Self::Window(id, WindowEntry::Procs) => ControlFile::Procs(id),
            Self::Window(id, WindowEntry::Threads) => ControlFile::Threads(id),
            Self::Window(id, WindowEntry::Sessions) => ControlFile::Sessions(id),
            Self::Window(_, WindowEntry::Help) => ControlFile::WindowHelp,
            Self::Window(id, WindowEntry::Json) => ControlFile::WindowJson(id),
            _ => return None,
        })
    }

    /// The scope of a control channel.
    fn channel(self) -> Option<Scope> {
        match self {
            Self::Ctl => Some(Scope::Root),
            Self::Window(id, WindowEntry::Ctl) => Some(Scope::Window(id)),
            _ => None,
        }
    }

    /// Whether the file grows under a reader.
    fn grows(self) -> bool {
        matches!(
            self,
            Self::Events | Self::Job(_) | Self::Window(_, WindowEntry::Events)
        )
    }

    fn takes_writes(self) -> bool {
        matches!(
            self,
            Self::Ctl
                | Self::Operators
                | Self::Acting
                | Self::Window(
                    _,
                    WindowEntry::Procs
                        | WindowEntry::Threads
                        | WindowEntry::Sessions
                        | WindowEntry::Ctl
                )
        )
    }
}

impl Fs {
    fn owner_of(&self, entry: Synthetic) -> Owner {
        let own = self.control.options().owner;
        match entry {
            Synthetic::Window(id, _) => self
                .control
                .world(|world| world.window(id).map(|window| window.owner))
                .unwrap_or(own),
            _ => own,
        }
    }

    fn length_and_time(&self, entry: Synthetic) -> (u64, Option<Timestamp>) {
        let store = self.control.store();
        match entry {
            Synthetic::Events => (store.events_size(None), store.last_event(None)),
            Synthetic::Window(id, WindowEntry::Events) => {
                (store.events_size(Some(id)), store.last_event(Some(id)))
            }
            Synthetic::Job(id) => self
                .control
                .job_log(id)
                .map_or((0, None), |(log, at)| (log.len() as u64, Some(at))),
            _ => (0, None),
        }
    }

    /// Attributes of a synthetic entry.
    pub fn synthetic_attr(&self, request: Request<'_>, entry: Synthetic) -> (Attr, Ttl) {
        let owner = self.owner_of(entry);
        let (size, changed) = self.length_and_time(entry);
        let changed = changed.unwrap_or(self.started);
        let time = (
            changed.millis().div_euclid(1000),
            changed.millis().rem_euclid(1000) * 1_000_000,
        );
        let attr = Attr {
            ino: entry.ino(),
            mode: entry.mode(),
            nlink: 1,
            uid: owner.uid,
            gid: owner.gid,
            rdev: 0,
            size,
            blocks: size.div_ceil(512),
            blksize: 4096,
            atime: time,
            mtime: time,
            ctime: time,
        };
        let ttl = if request.mount.is_view() || entry.grows() {
            Ttl::Never
        } else {
            Ttl::UntilChanged
        };
        (attr, ttl)
    }

    fn synthetic_entry(&self, request: Request<'_>, entry: Synthetic) -> Entry {
        let (attr, attr_ttl) = self.synthetic_attr(request, entry);
        // What comes and goes with windows and jobs is asked for each time.
        let comes_and_goes = matches!(
            entry,
            Synthetic::Job(_) | Synthetic::Window(_, WindowEntry::Directory)
        );
        Entry {
            nodeid: entry.nodeid(),
            generation: 0,
            attr,
            entry_ttl: if comes_and_goes || request.mount.is_view() {
                Ttl::Never
            } else {
                Ttl::UntilChanged
            },
            attr_ttl,
        }
    }

    fn target(&self, parent: Synthetic, name: &OsStr) -> Option<Target> {
        let name = name.to_str()?;
        let entry = match parent {
            Synthetic::Root => match name {
                ".panefs" => Synthetic::Panefs,
                "self" => Synthetic::SelfWorkspace,
                "cwd" => Synthetic::Cwd,
                other => {
                    let id = WorkspaceId::parse(other)?;
                    return self.control.gates().get(id).map(Target::Workspace);
                }
            },
            Synthetic::Panefs => PANEFS_LISTED.iter().find(|(_, n)| *n == name)?.0,
            Synthetic::Windows => {
                let id = WindowId::parse(name)?;
                if !self.control.world(|world| window_is_shown(world, id)) {
                    return None;
                }
                Synthetic::Window(id, WindowEntry::Directory)
            }
            Synthetic::Window(id, WindowEntry::Directory) => {
                let (entry, _) = WindowEntry::LISTED.iter().find(|(_, n)| *n == name)?;
                Synthetic::Window(id, *entry)
            }
            Synthetic::Jobs => {
                let id = JobId::parse(name)?;
                self.control.job_log(id)?;
                Synthetic::Job(id)
            }
            _ => return None,
        };
        Some(Target::Synthetic(entry))
    }

    /// Looks up a name in a synthetic directory.
    ///
    /// # Errors
    /// ENOENT.
    pub fn synthetic_lookup(
        &self,
        request: Request<'_>,
        parent: Synthetic,
        name: &OsStr,
    ) -> Result<Entry> {
        let target = self.target(parent, name).ok_or(Error(libc::ENOENT))?;
        self.target_entry(request, &target)
    }

    /// The answer to a lookup of what a listing showed.
    ///
    /// # Errors
    /// As for [`Fs::lookup_top`].
    pub fn target_entry(&self, request: Request<'_>, target: &Target) -> Result<Entry> {
        match target {
            Target::Synthetic(entry) => Ok(self.synthetic_entry(request, *entry)),
            Target::Workspace(gate) => self.lookup_top(request, gate),
        }
    }

    /// The attributes of what a listing showed, without counting a lookup.
    ///
    /// # Errors
    /// EIO where a workspace's directory is gone.
    pub fn target_attr(&self, request: Request<'_>, target: &Target) -> Result<Attr> {
        match target {
            Target::Synthetic(entry) => Ok(self.synthetic_attr(request, *entry).0),
            Target::Workspace(gate) => self.top_attr(gate),
        }
    }

    /// Entries of a synthetic directory from `offset` on, without `.` and `..`.
    pub fn synthetic_list(&self, directory: Synthetic, offset: u64) -> Vec<Listed> {
        let fixed: Vec<(Synthetic, &str)> = match directory {
            Synthetic::Root => vec![
                (Synthetic::Panefs, ".panefs"),
                (Synthetic::SelfWorkspace, "self"),
                (Synthetic::Cwd, "cwd"),
            ],
            Synthetic::Panefs => PANEFS_LISTED.to_vec(),
            Synthetic::Window(id, WindowEntry::Directory) => WindowEntry::LISTED
                .iter()
                .map(|(entry, name)| (Synthetic::Window(id, *entry), *name))
                .collect(),
            _ => Vec::new(),
        };
        let mut listed: Vec<Listed> = fixed
            .into_iter()
            .enumerate()
            // Offsets 1 and 2 follow `.` and `..`.
            .map(|(place, (entry, name))| Listed {
                next: place as u64 + 3,
                name: name.into(),
                target: Target::Synthetic(entry),
            })
            .filter(|listed| listed.next > offset)
            .collect();
        let after = u32::try_from(offset.saturating_sub(NUMBERED)).unwrap_or(u32::MAX);
        match directory {
            Synthetic::Root => {
                let ids: Vec<WorkspaceId> = self.control.world(|world| {
                    world
                        .workspaces_after(after)
                        .filter(|workspace| workspace.in_tree())
                        .map(|workspace| workspace.id)
                        .take(LISTED_AT_ONCE)
                        .collect()
                });
                listed.extend(ids.into_iter().filter_map(|id| {
                    Some(Listed {
                        next: NUMBERED + u64::from(id.number()),
                        name: id.to_string().into(),
                        target: Target::Workspace(self.control.gates().get(id)?),
                    })
                }));
            }
            Synthetic::Windows => {
                let ids: Vec<WindowId> = self.control.world(|world| {
                    world
                        .windows_after(after)
                        .map(|window| window.id)
                        .filter(|id| window_is_shown(world, *id))
                        .take(LISTED_AT_ONCE)
                        .collect()
                });
                listed.extend(ids.into_iter().map(|id| Listed {
                    next: NUMBERED + u64::from(id.number()),
                    name: id.to_string().into(),
                    target: Target::Synthetic(Synthetic::Window(id, WindowEntry::Directory)),
                }));
            }
            Synthetic::Jobs => {
                let mut ids = self.control.jobs();
                ids.sort_unstable();
                let ids = ids.into_iter().filter(|id| id.number() > after);
                listed.extend(ids.take(LISTED_AT_ONCE).map(|id| Listed {
                    next: NUMBERED + u64::from(id.number()),
                    name: id.to_string().into(),
                    target: Target::Synthetic(Synthetic::Job(id)),
                }));
            }
            _ => {}
        }
        listed
    }

    /// The number of a directory's parent, for `..`.
    pub fn synthetic_parent(directory: Synthetic) -> Synthetic {
        match directory {
            Synthetic::Jobs | Synthetic::Windows => Synthetic::Panefs,
            Synthetic::Window(_, WindowEntry::Directory) => Synthetic::Windows,
            _ => Synthetic::Root,
        }
    }

    /// Where a synthetic link leads for this caller.
    ///
    /// # Errors
    /// EINVAL for what is no link.
    pub fn synthetic_readlink(&self, request: Request<'_>, entry: Synthetic) -> Result<OsString> {
        let workspace_of = |id: WindowId| {
            self.control
                .world(|world| world.window(id).and_then(|window| window.workspace))
                .map(|workspace| workspace.to_string())
        };
        let cwd_of = |id: WindowId| {
            self.control
                .world(|world| world.window(id).and_then(|window| window.cwd.clone()))
                .or_else(|| workspace_of(id))
        };
        let own = || self.who(request).role.window();
        let target = match entry {
            Synthetic::SelfWindow => own().map(|id| format!("windows/{id}")),
            Synthetic::SelfWorkspace => own().and_then(workspace_of),
            Synthetic::Cwd => own().and_then(cwd_of),
            Synthetic::Window(id, WindowEntry::Workspace) => {
                workspace_of(id).map(|to| format!("../../../{to}"))
            }
            Synthetic::Window(id, WindowEntry::Cwd) => {
                cwd_of(id).map(|to| format!("../../../{to}"))
            }
            _ => return Err(Error(libc::EINVAL)),
        };
        Ok(target.unwrap_or_else(|| NOWHERE.to_owned()).into())
    }

    /// Opens a synthetic file. May take long, where its content is made now: not for a thread
    /// that serves requests, unless [`Fs::opens_at_once`].
    ///
    /// # Errors
    /// EACCES where it isn't for reading or writing.
    pub fn synthetic_open(
        &self,
        request: Request<'_>,
        entry: Synthetic,
        flags: i32,
    ) -> Result<Opened> {
        let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
        if writes && !entry.takes_writes() {
            return Err(Error(libc::EACCES));
        }
        let handle = match (entry.channel(), entry.control_file()) {
            (Some(scope), _) if writes => {
                let readable = flags & libc::O_ACCMODE != libc::O_WRONLY;
                Handle::Channel(self.control.open_channel(scope, readable))
            }
            // To read a channel that was never written to is to ask for its grammar.
            (Some(scope), _) => Handle::Snapshot(self.control.read_file(
                match scope {
                    Scope::Root => ControlFile::Help,
                    Scope::Window(_) => ControlFile::WindowHelp,
                },
                &self.caller(request),
            )),
            (None, Some(file)) if flags & libc::O_ACCMODE != libc::O_WRONLY && !writes => {
                let mut content = self.control.read_file(file, &self.caller(request));
                if entry == Synthetic::Metrics {
                    content.extend_from_slice(self.metrics().as_bytes());
                }
                Handle::Snapshot(content)
            }
            _ => Handle::Synthetic(entry),
        };
        Ok(Opened {
            handle: self.handles.insert(handle),
            reached: Reached::Direct,
        })
    }

    /// Whether opening it makes no content.
    pub fn opens_at_once(entry: Synthetic, flags: i32) -> bool {
        let reads_only = flags & libc::O_ACCMODE == libc::O_RDONLY;
        !(reads_only && entry.control_file().is_some())
    }

    /// Whether a handle is synthetic.
    pub fn is_synthetic(&self, handle: u64) -> bool {
        self.handles
            .get(handle)
            .is_some_and(|handle| !matches!(&*handle, Handle::File(_)))
    }

    /// Reads from a synthetic file.
    ///
    /// # Errors
    /// EBADF; EIO where the registry can't be read.
    pub fn synthetic_read(
        &self,
        request: Request<'_>,
        handle: u64,
        offset: u64,
        length: usize,
    ) -> Result<Vec<u8>> {
        let handle = self.handles.get(handle).ok_or(Error(libc::EBADF))?;
        let slice = |content: &[u8]| {
            let from = usize::try_from(offset)
                .unwrap_or(usize::MAX)
                .min(content.len());
            let to = from.saturating_add(length).min(content.len());
            content[from..to].to_vec()
        };
        match &*handle {
            Handle::Channel(channel) => Ok(self.control.read(channel, length)),
            Handle::Snapshot(content) => Ok(slice(content)),
            Handle::Synthetic(Synthetic::Job(id)) => Ok(self
                .control
                .job_log(*id)
                .map(|(log, _)| slice(&log))
                .unwrap_or_default()),
            Handle::Synthetic(entry) => {
                let window = match entry {
                    Synthetic::Events => None,
                    Synthetic::Window(id, WindowEntry::Events) => Some(*id),
                    // Opened read-write: its content as it is now.
                    other => {
                        let file = other.control_file().ok_or(Error(libc::EBADF))?;
                        return Ok(slice(&self.control.read_file(file, &self.caller(request))));
                    }
                };
                self.control
                    .store()
                    .read_events(window, offset, length)
                    .map_err(|error| {
                        tracing::error!(%error, "events can't be read");
                        Error(libc::EIO)
                    })
            }
            Handle::File(_) => Err(Error(libc::EBADF)),
        }
    }

    /// Writes to a control file. May take up to a second: not for a thread that serves requests.
    ///
    /// # Errors
    /// The refusal's errno.
    pub fn synthetic_write(&self, request: Request<'_>, handle: u64, data: &[u8]) -> Result<usize> {
        let handle = self.handles.get(handle).ok_or(Error(libc::EBADF))?;
        let caller = self.caller(request);
        match &*handle {
            Handle::Channel(channel) => self.control.write(channel, &caller, data).map_err(Error),
            Handle::Synthetic(entry) => {
                let file = entry.control_file().ok_or(Error(libc::EBADF))?;
                self.control.write_file(file, &caller, data)?;
                Ok(data.len())
            }
            Handle::Snapshot(_) | Handle::File(_) => Err(Error(libc::EBADF)),
        }
    }

    /// Whether a synthetic entry may be accessed.
    ///
    /// # Errors
    /// EACCES; EPERM for changing the tree itself.
    pub fn synthetic_access(entry: Synthetic, mask: i32) -> Result<()> {
        if entry.is_directory() {
            return if mask & libc::W_OK != 0 && entry != Synthetic::Windows {
                Err(Error(libc::EACCES))
            } else {
                Ok(())
            };
        }
        if mask & libc::X_OK != 0 || (mask & libc::W_OK != 0 && !entry.takes_writes()) {
            return Err(Error(libc::EACCES));
        }
        Ok(())
    }

    /// Sets attributes of a synthetic entry: an empty truncation is accepted, so that a shell's
    /// `>` works on control files.
    ///
    /// # Errors
    /// EPERM for everything else.
    pub fn synthetic_setattr(
        &self,
        request: Request<'_>,
        entry: Synthetic,
        change: &super::AttrChange,
    ) -> Result<(Attr, Ttl)> {
        let truncates_only = change.size.is_some()
            && change.mode.is_none()
            && change.uid.is_none()
            && change.gid.is_none();
        if truncates_only && entry.takes_writes() {
            return Ok(self.synthetic_attr(request, entry));
        }
        Err(Error(libc::EPERM))
    }

    /// `mkdir .panefs/windows/cN` is `allocate cN`. May take long.
    ///
    /// # Errors
    /// EPERM elsewhere; the refusal's errno.
    pub fn synthetic_mkdir(
        &self,
        request: Request<'_>,
        parent: Synthetic,
        name: &OsStr,
    ) -> Result<Entry> {
        let id = window_named(parent, name)?;
        if !self.control.open_window(&self.caller(request), id)? {
            return Err(Error(libc::EEXIST));
        }
        self.synthetic_lookup(request, parent, name)
    }

    /// `rmdir .panefs/windows/cN` is `reclaim cN`. May take long.
    ///
    /// # Errors
    /// EPERM elsewhere; ENOTEMPTY where its workspace isn't empty; the refusal's errno.
    pub fn synthetic_rmdir(
        &self,
        request: Request<'_>,
        parent: Synthetic,
        name: &OsStr,
    ) -> Result<()> {
        let id = window_named(parent, name)?;
        self.control
            .remove_window(&self.caller(request), id)
            .map_err(|removal| match removal {
                Removal::NotEmpty => Error(libc::ENOTEMPTY),
                Removal::Refused(refusal) => refusal.into(),
            })
    }

    /// Prometheus text of the filesystem's own counters.
    fn metrics(&self) -> String {
        let (nodes, handles) = self.counts();
        let mut text = String::from(
            "# HELP panefs_fuse_requests_total Requests of the kernel, by operation.\n\
             # TYPE panefs_fuse_requests_total counter\n",
        );
        for (operation, count) in self.requests.counts() {
            text.push_str(&format!(
                "panefs_fuse_requests_total{{op=\"{}\"}} {count}\n",
                operation.label()
            ));
        }
        text.push_str(&format!(
            "# TYPE panefs_nodes gauge\npanefs_nodes {nodes}\n\
             # TYPE panefs_handles gauge\npanefs_handles {handles}\n",
        ));
        text
    }
}

fn window_named(parent: Synthetic, name: &OsStr) -> Result<WindowId> {
    if parent != Synthetic::Windows {
        return Err(Error(libc::EPERM));
    }
    name.to_str()
        .and_then(WindowId::parse)
        .ok_or(Error(libc::EINVAL))
}
