//! Typed commands, from the words of a line.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::time::Duration;

use crate::model::{
    JobId, Owner, Reclaim, Refusal, Rule, Target, Title, WindowId, WindowState, WorkspaceRef,
    WorkspaceState,
};

use super::grammar::Line;
use crate::store::JobState;

use super::values;
use super::verb::Verb;

/// What becomes of a window's processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MembersDo {
    /// They stay its members.
    Keep,
    /// They become the new window's.
    Move,
    /// They are ended.
    End,
}

/// What a handoff does about files that are open for writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandoffMode {
    /// It is refused.
    Refuse,
    /// It waits for their close.
    Wait,
}

/// What is bound or unbound. An id of 0 is the writer's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// A process.
    Process(u32),
    /// A thread.
    Thread(u32),
    /// A control group with all below it.
    Cgroup(String),
}

/// `allocate`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocation {
    /// The window; none for the next free one.
    pub window: Option<WindowId>,
    /// Its task.
    pub title: Option<Title>,
    /// Who owns it; none for the asker.
    pub owner: Option<Owner>,
    /// Kept by every sweep.
    pub keep: bool,
}

/// `handoff`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandoffOrder {
    /// The holder, or the released tail of a chain.
    pub from: WindowId,
    /// The new window; none for the next free one.
    pub to: Option<WindowId>,
    /// The new window's task.
    pub title: Option<Title>,
    /// About open files.
    pub mode: HandoffMode,
    /// About processes.
    pub members: MembersDo,
    /// How long `mode=wait` waits.
    pub timeout: Duration,
}

/// What `list` lists, and in which state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listing {
    /// Windows.
    Windows(Option<WindowState>),
    /// Workspaces.
    Workspaces(Option<WorkspaceState>),
    /// Processes and threads of every window.
    Members,
    /// Jobs.
    Jobs(Option<JobState>),
    /// What `exec` and `enter` started.
    Sessions,
}

/// What `show` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// A window.
    Window(WindowId),
    /// A workspace.
    Workspace(WorkspaceRef),
    /// A job.
    Job(JobId),
}

/// A command, well formed.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Opens a window with a workspace.
    Allocate(Allocation),
    /// Makes something a member.
    Bind(WindowId, Subject),
    /// Takes a binding away.
    Unbind(Subject),
    /// Makes a new window the holder.
    Handoff(HandoffOrder),
    /// Ends a window; its processes too where the flag is set.
    Release(WindowId, bool),
    /// Takes a workspace out of the tree.
    Reclaim(Reclaim),
    /// Brings it back.
    Restore(WorkspaceRef),
    /// Deletes its files.
    Purge(WorkspaceRef),
    /// Takes what is old.
    Expire {
        /// Age of a released workspace; none for the store's retention.
        older_than: Option<Duration>,
        /// Age of a live window's last change.
        idle: Option<Duration>,
        /// Also where git repositories hold work that exists nowhere else.
        unsaved: bool,
    },
    /// Where a workspace is.
    Path(Target),
    /// What it uses; the flag is set where limits are to be set.
    Quota(Target, bool),
    /// One thing.
    Show(Shown),
    /// Many things.
    List(Listing),
    /// A job's outcome.
    Wait(JobId, Option<Duration>),
    /// Stops a job.
    Cancel(JobId, Option<Duration>),
    /// Reads a workspace anew.
    Refresh(WorkspaceRef),
    /// Mounts the tree once more, for a window or for a guest.
    View(Option<WindowId>, PathBuf),
    /// Unmounts that.
    Leave(PathBuf),
    /// The grammar.
    Help(Option<&'static Verb>),
    /// Well formed, but not offered; with what exactly, and the window that it would change.
    Later(&'static str, Option<WindowId>),
}

impl Command {
    /// Understands a line. `implied` is the window that is meant where none is named.
    ///
    /// # Errors
    /// [`Rule::ArgumentMissing`], [`Rule::ArgumentInvalid`], and those of the ids and titles in
    /// it.
    pub fn parse(
        verb: &'static Verb,
        line: Line,
        implied: Option<WindowId>,
    ) -> Result<Self, Refusal> {
        Params::new(verb, line, implied)?.command()
    }

    /// The window that it would change on behalf of its asker.
    pub fn acts_on(&self) -> Option<WindowId> {
        match self {
            Self::Handoff(order) => Some(order.from),
            Self::Release(window, _) | Self::Bind(window, _) => Some(*window),
            Self::Later(_, window) => *window,
            _ => None,
        }
    }
}

/// The words and keys of a command, as they are used up.
struct Params {
    verb: &'static Verb,
    words: VecDeque<String>,
    keys: BTreeMap<String, String>,
    implied: Option<WindowId>,
}

impl Params {
    fn new(verb: &'static Verb, line: Line, implied: Option<WindowId>) -> Result<Self, Refusal> {
        if let Some(key) = line.keys.keys().find(|key| !verb.takes(key)) {
            let allowed = match verb.keys {
                [] => format!("{} takes no keys", verb.name),
                keys => format!("{} takes {}", verb.name, keys.join(", ")),
            };
            return Err(Refusal::new(
                Rule::ArgumentInvalid,
                format!("{} has no key {key:?}; {allowed}", verb.name),
                format!("Write `{}`.", verb.synopsis()),
            ));
        }
        if let Some(word) = line.words.get(verb.words) {
            return Err(Refusal::new(
                Rule::ArgumentInvalid,
                format!("{word:?} is one word too many for {}", verb.name),
                format!("Write `{}`.", verb.synopsis()),
            ));
        }
        Ok(Self {
            verb,
            words: line.words.into(),
            keys: line.keys,
            implied,
        })
    }

    fn missing(&self, what: &str) -> Refusal {
        Refusal::new(
            Rule::ArgumentMissing,
            format!("{} needs {what}", self.verb.name),
            format!("Write `{}`.", self.verb.synopsis()),
        )
    }

    fn word(&mut self, what: &str) -> Result<String, Refusal> {
        self.words.pop_front().ok_or_else(|| self.missing(what))
    }

    /// The window that is named, or implied.
    fn window(&mut self) -> Result<WindowId, Refusal> {
        match (self.words.pop_front(), self.implied) {
            (Some(word), _) => word.parse(),
            (None, Some(implied)) => Ok(implied),
            (None, None) => Err(self.missing("a window")),
        }
    }

    /// The window or workspace that is named, or the implied window.
    fn target(&mut self) -> Result<Target, Refusal> {
        match (self.words.pop_front(), self.implied) {
            (Some(word), _) => word.parse(),
            (None, Some(implied)) => Ok(Target::Window(implied)),
            (None, None) => Err(self.missing("a window or a workspace")),
        }
    }

    fn workspace(&mut self) -> Result<WorkspaceRef, Refusal> {
        self.word("a workspace")?.parse()
    }

    fn job(&mut self) -> Result<JobId, Refusal> {
        self.word("a job")?.parse()
    }

    /// The value of a key, if it is given.
    fn key<T>(
        &self,
        key: &str,
        read: impl Fn(&str, &str) -> Result<T, Refusal>,
    ) -> Result<Option<T>, Refusal> {
        self.keys.get(key).map(|text| read(key, text)).transpose()
    }

    /// One of the words that a key may have; the first where it isn't given.
    fn choice<T: Copy>(&self, key: &str, choices: &[(&str, T)]) -> Result<T, Refusal> {
        let names = || choices.iter().map(|(name, _)| *name).collect::<Vec<_>>();
        let found = match self.keys.get(key) {
            None => choices.first(),
            Some(text) => choices.iter().find(|(name, _)| name == text),
        };
        found.map(|(_, value)| *value).ok_or_else(|| {
            let text = self.keys.get(key).map_or("", String::as_str);
            values::invalid(key, text, &names().join(", "))
        })
    }

    fn switch(&self, key: &str) -> Result<bool, Refusal> {
        Ok(self.key(key, values::switch)?.unwrap_or(false))
    }

    fn title(&self) -> Result<Option<Title>, Refusal> {
        self.key("title", |_, text| text.parse())
    }

    fn state<T>(
        &self,
        parse: impl Fn(&str) -> Option<T>,
        names: &[&str],
    ) -> Result<Option<T>, Refusal> {
        self.key("state", |key, text| {
            parse(text).ok_or_else(|| values::invalid(key, text, &names.join(", ")))
        })
    }

    fn command(&mut self) -> Result<Command, Refusal> {
        Ok(match self.verb.name {
            "allocate" => self.allocate()?,
            "bind" => Command::Bind(self.window()?, self.subject()?),
            "unbind" => Command::Unbind(self.subject()?),
            "handoff" => self.handoff()?,
            "release" => Command::Release(
                self.window()?,
                self.choice("members", &[("keep", false), ("end", true)])?,
            ),
            "reclaim" => Command::Reclaim(Reclaim {
                target: self.target()?,
                force: self.switch("force")?,
                purge: self.switch("purge")?,
            }),
            "restore" => Command::Restore(self.workspace()?),
            "purge" => Command::Purge(self.workspace()?),
            "expire" => Command::Expire {
                older_than: self.key("older_than", values::duration)?,
                idle: self.key("idle", values::duration)?,
                unsaved: self.switch("unsaved")?,
            },
            "path" => Command::Path(self.target()?),
            "quota" => self.quota()?,
            "show" => Command::Show(self.shown()?),
            "list" => Command::List(self.listing()?),
            "wait" => Command::Wait(self.job()?, self.key("timeout", values::duration)?),
            "cancel" => Command::Cancel(self.job()?, self.key("timeout", values::duration)?),
            "refresh" => Command::Refresh(self.workspace()?),
            "view" => self.view()?,
            "leave" => Command::Leave(self.directory()?),
            "help" => {
                let verb = self.words.pop_front();
                Command::Help(verb.map(|name| Verb::find(&name)).transpose()?)
            }
            _ => self.later()?,
        })
    }

    fn allocate(&mut self) -> Result<Command, Refusal> {
        let window = self
            .words
            .pop_front()
            .map(|word| word.parse())
            .transpose()?;
        let allocation = Allocation {
            window,
            title: self.title()?,
            owner: self.key("owner", values::owner)?,
            keep: self.switch("keep")?,
        };
        self.key("quota.bytes", values::size)?;
        self.key("quota.files", values::count)?;
        self.choice("visibility", &[("private", ())])?;
        Ok(
            match self
                .keys
                .keys()
                .map(String::as_str)
                .find(|key| !matches!(*key, "title" | "owner" | "keep"))
            {
                None => Command::Allocate(allocation),
                Some("quota.bytes" | "quota.files") => {
                    Command::Later("allocate with a quota", None)
                }
                Some("visibility") => Command::Later("allocate with visibility=private", None),
                Some(_) => Command::Later("allocate from a definition", None),
            },
        )
    }

    fn subject(&mut self) -> Result<Subject, Refusal> {
        let subjects = [
            self.key("pid", values::process)?.map(Subject::Process),
            self.key("tid", values::process)?.map(Subject::Thread),
            self.keys.get("cgroup").cloned().map(Subject::Cgroup),
        ];
        let mut subjects = subjects.into_iter().flatten();
        match (subjects.next(), subjects.next()) {
            (Some(subject), None) => Ok(subject),
            (None, _) => Err(self.missing("pid=, tid= or cgroup=")),
            (Some(_), Some(_)) => Err(Refusal::new(
                Rule::ArgumentInvalid,
                format!(
                    "{} takes one of pid, tid and cgroup at a time",
                    self.verb.name
                ),
                format!("Write `{}`.", self.verb.synopsis()),
            )),
        }
    }

    fn handoff(&mut self) -> Result<Command, Refusal> {
        let first: Option<WindowId> = self.words.pop_front().map(|w| w.parse()).transpose()?;
        let second = self.words.pop_front().map(|w| w.parse()).transpose()?;
        let (from, to) = match (first, second, self.implied) {
            // Inside c7, `handoff c8` names the new window.
            (Some(to), None, Some(implied)) if to != implied => (implied, Some(to)),
            (Some(from), to, _) => (from, to),
            (None, _, Some(implied)) => (implied, None),
            (None, _, None) => return Err(self.missing("the window that hands off")),
        };
        let mode = self.choice(
            "mode",
            &[
                ("refuse", Some(HandoffMode::Refuse)),
                ("wait", Some(HandoffMode::Wait)),
                ("fence", None),
            ],
        )?;
        let members = self.choice(
            "members",
            &[
                ("keep", MembersDo::Keep),
                ("move", MembersDo::Move),
                ("end", MembersDo::End),
            ],
        )?;
        let timeout = self.key("timeout", values::duration)?;
        let title = self.title()?;
        Ok(match mode {
            None => Command::Later("handoff with mode=fence", Some(from)),
            Some(mode) => Command::Handoff(HandoffOrder {
                from,
                to,
                title,
                mode,
                members,
                timeout: timeout.unwrap_or(Duration::from_secs(30)),
            }),
        })
    }

    fn quota(&mut self) -> Result<Command, Refusal> {
        let target = self.target()?;
        let none_or = |read: fn(&str, &str) -> Result<u64, Refusal>| {
            move |key: &str, text: &str| match text {
                "none" => Ok(None),
                text => read(key, text).map(Some),
            }
        };
        self.key("bytes", none_or(values::size))?;
        self.key("files", none_or(values::count))?;
        Ok(Command::Quota(target, !self.keys.is_empty()))
    }

    fn shown(&mut self) -> Result<Shown, Refusal> {
        match self.words.front().map(String::as_str) {
            Some(word) if word.starts_with('j') => self.job().map(Shown::Job),
            _ => Ok(match self.target()? {
                Target::Window(window) => Shown::Window(window),
                Target::Workspace(workspace) => Shown::Workspace(workspace),
            }),
        }
    }

    fn listing(&mut self) -> Result<Listing, Refusal> {
        let what = self.word("what to list")?;
        let listing = match what.as_str() {
            "windows" => Listing::Windows(self.state(
                WindowState::parse,
                &WindowState::ALL.map(WindowState::as_str),
            )?),
            "workspaces" => Listing::Workspaces(self.state(
                WorkspaceState::parse,
                &WorkspaceState::ALL.map(WorkspaceState::as_str),
            )?),
            "jobs" => Listing::Jobs(self.state(
                |text| {
                    JobState::ALL
                        .into_iter()
                        .find(|state| state.as_str() == text)
                },
                &JobState::ALL.map(JobState::as_str),
            )?),
            "members" => Listing::Members,
            "sessions" => Listing::Sessions,
            _ => {
                return Err(values::invalid(
                    "list",
                    &what,
                    "windows, workspaces, members, jobs or sessions",
                ));
            }
        };
        match (listing, self.keys.get("state")) {
            (Listing::Members | Listing::Sessions, Some(state)) => Err(Refusal::new(
                Rule::ArgumentInvalid,
                format!("{what} have no state, so state={state} lists none"),
                format!("Write `list {what}`."),
            )),
            _ => Ok(listing),
        }
    }

    fn directory(&self) -> Result<PathBuf, Refusal> {
        let directory = self.key("dir", |key, text| match PathBuf::from(text) {
            path if path.is_absolute() => Ok(path),
            _ => Err(values::invalid(key, text, "an absolute path")),
        })?;
        directory.ok_or_else(|| self.missing("dir="))
    }

    fn view(&mut self) -> Result<Command, Refusal> {
        let window = self
            .words
            .pop_front()
            .map(|word| word.parse())
            .transpose()?;
        let read_only = self.switch("read-only")?;
        let directory = self.directory()?;
        match (window, read_only) {
            (Some(window), false) => Ok(Command::View(Some(window), directory)),
            (None, true) => Ok(Command::View(None, directory)),
            (None, false) => Err(self.missing("a window, or read-only=true")),
            (Some(window), true) => Err(Refusal::new(
                Rule::ArgumentInvalid,
                format!("a read-only view acts for nobody, and {window} is named"),
                format!("Write `{}`.", self.verb.synopsis()),
            )),
        }
    }

    /// Verbs that are checked for form and then refused.
    fn later(&mut self) -> Result<Command, Refusal> {
        let name = self.verb.name;
        let mut window = None;
        match name {
            "cd" | "ensure" => window = Some(self.window()?),
            "run" => {
                // The last word is the command, so that the window may be left out.
                let command = self.words.pop_back();
                command.ok_or_else(|| self.missing("a command"))?;
                if let Target::Window(named) = self.target()? {
                    window = Some(named);
                }
            }
            "definitions" => {
                self.switch("check")?;
                let project = self.keys.get("project");
                project.ok_or_else(|| self.missing("project="))?;
            }
            "resolve" => {
                self.workspace()?;
                let state = self.word("occupied, available or removed")?;
                if !matches!(state.as_str(), "occupied" | "available" | "removed") {
                    return Err(values::invalid(
                        name,
                        &state,
                        "occupied, available or removed",
                    ));
                }
            }
            "activity" => {
                self.workspace()?;
            }
            "share" => {
                self.workspace()?;
                let with = self.keys.get("with");
                let with = with.ok_or_else(|| self.missing("with="))?;
                if !matches!(with.as_str(), "all" | "none") {
                    for window in with.split(',') {
                        window.parse::<WindowId>()?;
                    }
                }
            }
            _ => {}
        }
        Ok(Command::Later(name, window))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, implied: Option<u32>) -> Result<Command, Refusal> {
        let line = Line::parse(text.as_bytes()).unwrap().unwrap();
        let verb = Verb::find(&line.verb)?;
        Command::parse(verb, line, implied.and_then(WindowId::new))
    }

    fn c(number: u32) -> WindowId {
        WindowId::new(number).unwrap()
    }

    #[test]
    fn the_window_may_be_left_out_where_one_is_implied() {
        assert_eq!(
            parse("release", Some(7)).unwrap(),
            Command::Release(c(7), false)
        );
        assert_eq!(
            parse("path", Some(7)).unwrap(),
            Command::Path(Target::Window(c(7)))
        );
        for (text, from, to) in [
            ("handoff", 7, None),
            ("handoff c7", 7, None),
            ("handoff c8", 7, Some(8)),
            ("handoff c7 c8", 7, Some(8)),
            ("handoff c6 c8", 6, Some(8)),
        ] {
            let Command::Handoff(order) = parse(text, Some(7)).unwrap() else {
                panic!("{text}");
            };
            assert_eq!((order.from, order.to), (c(from), to.map(c)), "{text}");
        }
        let Command::Handoff(order) = parse("handoff c8", None).unwrap() else {
            panic!()
        };
        assert_eq!((order.from, order.to), (c(8), None));
    }

    #[test]
    fn every_refusal_of_form_has_its_rule() {
        for (text, rule) in [
            ("frobnicate", Rule::VerbUnknown),
            ("help frobnicate", Rule::VerbUnknown),
            ("release", Rule::ArgumentMissing),
            ("handoff", Rule::ArgumentMissing),
            ("wait", Rule::ArgumentMissing),
            ("list", Rule::ArgumentMissing),
            ("bind c1", Rule::ArgumentMissing),
            ("view c1", Rule::ArgumentMissing),
            ("view dir=/x", Rule::ArgumentMissing),
            ("run c1", Rule::ArgumentMissing),
            ("share ws1", Rule::ArgumentMissing),
            ("definitions", Rule::ArgumentMissing),
            ("release c1 c2", Rule::ArgumentInvalid),
            ("release c1 mode=wait", Rule::ArgumentInvalid),
            ("release c1 members=move", Rule::ArgumentInvalid),
            ("handoff c1 mode=maybe", Rule::ArgumentInvalid),
            ("handoff c1 timeout=soon", Rule::ArgumentInvalid),
            ("allocate keep=1", Rule::ArgumentInvalid),
            ("allocate quota.bytes=much", Rule::ArgumentInvalid),
            ("allocate visibility=public", Rule::ArgumentInvalid),
            ("bind c1 pid=1 tid=1", Rule::ArgumentInvalid),
            ("bind c1 pid=-1", Rule::ArgumentInvalid),
            ("list things", Rule::ArgumentInvalid),
            ("list windows state=occupied", Rule::ArgumentInvalid),
            ("list members state=live", Rule::ArgumentInvalid),
            ("view c1 dir=x", Rule::ArgumentInvalid),
            ("resolve ws1 gone", Rule::ArgumentInvalid),
            ("allocate c0", Rule::WindowRefInvalid),
            ("allocate c007", Rule::WindowRefInvalid),
            ("allocate c99999999999", Rule::WindowRefInvalid),
            ("share ws1 with=c0", Rule::WindowRefInvalid),
            ("show 'ws1 '", Rule::WorkspaceRefUnknown),
            ("restore c1", Rule::WorkspaceRefUnknown),
            ("allocate title=''", Rule::TitleInvalid),
            ("wait j0", Rule::JobNotFound),
        ] {
            let refusal = parse(text, None).unwrap_err();
            assert_eq!(refusal.rule, rule, "{text}: {}", refusal.message);
        }
        let refusal = parse("release c1 mode=wait", None).unwrap_err();
        assert!(refusal.message.contains("release takes members"));
    }

    #[test]
    fn later_verbs_are_understood() {
        for text in [
            "cd c1 src",
            "ensure c1",
            "definitions project=x check=true",
            "run c1 build k=v",
            "resolve ws1 removed",
            "activity ws1",
            "share ws1 with=c1,c2",
            "index",
            "find ws1 x limit=3",
            "handoff c1 mode=fence",
            "allocate definition=x",
            "allocate c1 quota.bytes=1GiB",
            "allocate visibility=private",
        ] {
            assert!(
                matches!(parse(text, None).unwrap(), Command::Later(..)),
                "{text}"
            );
        }
        assert_eq!(
            parse("run build", Some(7)).unwrap(),
            Command::Later("run", Some(c(7)))
        );
    }
}
