//! Who belongs where: `bind`, `unbind`, and the files that do the same for the writer.

use crate::control::command::Subject;
use crate::control::reply::Reply;
use crate::control::{Caller, Control, render, values};
use crate::model::{Binding, BindingKind, NewEvent, Refusal, Role, Rule, WindowId, live_window};
use crate::store::{BindingChange, Transaction};
use crate::sys::proc;

impl Control {
    /// `bind`: the mount's owner makes anything a member, whatever it was before.
    pub(super) fn bind(
        &self,
        caller: &Caller,
        window: WindowId,
        subject: &Subject,
    ) -> Result<Reply, Refusal> {
        self.world(|world| live_window(world, window).map(drop))?;
        let binding = match subject {
            Subject::Process(pid) => {
                let pid = self.named(caller, *pid, BindingKind::Process)?;
                self.members
                    .binding_for_process(BindingKind::Process, pid, Some(window))?
            }
            Subject::Thread(tid) => {
                let tid = self.named(caller, *tid, BindingKind::Thread)?;
                self.members
                    .binding_for_process(BindingKind::Thread, tid, Some(window))?
            }
            Subject::Cgroup(path) => self.members.binding_for_cgroup(path, window)?,
        };
        match subject {
            Subject::Process(_) | Subject::Thread(_) => self.put_bound_by(caller, binding)?,
            Subject::Cgroup(_) => self.put_binding(binding)?,
        }
        let members = self.members.members_of(window);
        Ok(Reply::ok()
            .with("window", window)
            .with("members", render::ids(&members)))
    }

    /// `unbind`: takes every binding of the subject itself away. What an ancestor, a control
    /// group or a session makes it, it stays, and the answer says so.
    pub(super) fn unbind(&self, caller: &Caller, subject: &Subject) -> Result<Reply, Refusal> {
        let mut named = None;
        let bindings: Vec<_> = match subject {
            Subject::Process(pid) => {
                let pid = self.named(caller, *pid, BindingKind::Process)?;
                named = Some(pid);
                let kinds = [
                    BindingKind::Process,
                    BindingKind::Session,
                    BindingKind::Operator,
                ];
                kinds
                    .into_iter()
                    .filter_map(|kind| self.members.find(kind, pid))
                    .collect()
            }
            Subject::Thread(tid) => {
                let tid = self.named(caller, *tid, BindingKind::Thread)?;
                named = Some(tid);
                let kinds = [BindingKind::Thread, BindingKind::Acting];
                kinds
                    .into_iter()
                    .filter_map(|kind| self.members.find(kind, tid))
                    .collect()
            }
            Subject::Cgroup(path) => self.bindings_of_cgroup(path)?,
        };
        let alive = |id: u32| std::path::Path::new(&format!("/proc/{id}")).exists();
        if let (true, Some(id)) = (bindings.is_empty(), named)
            && !alive(id)
        {
            return Err(no_process(id));
        }
        let unbound = bindings.len();
        self.remove_bindings(bindings)?;
        let window = named.and_then(|id| self.members.who(id).role.window());
        Ok(Reply::ok().with("unbound", unbound).with("window", window))
    }

    fn bindings_of_cgroup(&self, path: &str) -> Result<Vec<Binding>, Refusal> {
        let bound = self.members.bindings().into_iter();
        let groups: Vec<_> = bound
            .filter(|binding| binding.kind == BindingKind::Cgroup)
            .collect();
        // The path is understood as `bind` understands it; for that any window will do.
        let Some(window) = groups.iter().find_map(|binding| binding.window) else {
            return Ok(Vec::new());
        };
        let wanted = self.members.binding_for_cgroup(path, window)?;
        Ok(groups
            .into_iter()
            .filter(|binding| binding.cgroup == wanted.cgroup)
            .collect())
    }

    /// A write to `procs`, `threads` or `sessions`: the writer, or a process that it names,
    /// becomes a member. Nobody leaves another window this way.
    pub(in crate::control) fn join(
        &self,
        caller: &Caller,
        window: WindowId,
        kind: BindingKind,
        text: &str,
    ) -> Result<(), Refusal> {
        let asked = values::process(kind.as_str(), text)?;
        if kind == BindingKind::Session && asked != 0 {
            return Err(values::invalid(
                kind.as_str(),
                text,
                "0: it is always the writer's",
            ));
        }
        self.world(|world| live_window(world, window).map(drop))?;
        bound_elsewhere("you are", caller.who.role, window)?;
        let id = self.named(caller, asked, kind)?;
        if asked != 0 {
            bound_elsewhere(&format!("{id} is"), self.members.who(id).role, window)?;
        }
        let binding = self.members.binding_for_process(kind, id, Some(window))?;
        self.put_bound_by(caller, binding)
    }

    /// Binds a process that is the caller's to bind: it will be ended with the window, if asked,
    /// with the daemon's rights.
    fn put_bound_by(&self, caller: &Caller, binding: Binding) -> Result<(), Refusal> {
        let denied = |what: &str| {
            Refusal::new(
                Rule::CommandNotAllowed,
                format!("process {} {what}", binding.tgid),
                "Bind processes of your own, or have the mount's owner do it.",
            )
        };
        if binding.tgid == 1 {
            return Err(denied(
                "is the first of this machine, and all others descend from it",
            ));
        }
        let trusted = caller.uid == 0 || caller.uid == self.options.owner.uid;
        let own = || {
            proc::status(binding.id).is_ok_and(|status| {
                let uid = status.uid;
                [uid.real, uid.effective, uid.saved] == [caller.uid; 3]
            })
        };
        if !trusted && !own() {
            return Err(denied("is another user's"));
        }
        self.put_binding(binding)
    }

    /// A write to `operators`.
    pub(in crate::control) fn add_operator(
        &self,
        caller: &Caller,
        text: &str,
    ) -> Result<(), Refusal> {
        let asked = values::process("operators", text)?;
        if let Some(window) = caller.who.role.window() {
            return Err(Refusal::new(
                Rule::CommandNotAllowed,
                format!("you belong to {window}, and members make no operators"),
                "Ask the mount's owner, who writes to .panefs/operators.",
            ));
        }
        let pid = self.named(caller, asked, BindingKind::Operator)?;
        let binding = self
            .members
            .binding_for_process(BindingKind::Operator, pid, None)?;
        self.put_bound_by(caller, binding)
    }

    /// A write to `acting`: the writing thread of an operator acts for one window, or stops.
    pub(in crate::control) fn act(&self, caller: &Caller, text: &str) -> Result<(), Refusal> {
        let operator = self.members.find(BindingKind::Operator, caller.who.pid);
        if operator.is_none() {
            return Err(Refusal::new(
                Rule::CommandNotAllowed,
                "you are no operator, and only an operator's threads act for windows",
                "Write 0 to .panefs/operators first, or join the window with its procs file.",
            ));
        }
        if text == "-" {
            let acting = self.members.find(BindingKind::Acting, caller.tid);
            return self.remove_bindings(acting.into_iter().collect());
        }
        let window: WindowId = text.parse()?;
        self.world(|world| live_window(world, window).map(drop))?;
        let tid = self.named(caller, 0, BindingKind::Acting)?;
        let binding = self
            .members
            .binding_for_process(BindingKind::Acting, tid, Some(window))?;
        self.put_bound_by(caller, binding)
    }

    /// The id that is meant: 0 is the writer. An id from elsewhere means nothing here.
    fn named(&self, caller: &Caller, asked: u32, kind: BindingKind) -> Result<u32, Refusal> {
        let writer = match kind {
            BindingKind::Thread | BindingKind::Acting => caller.tid,
            _ => caller.who.pid,
        };
        match asked {
            0 if writer == 0 => Err(Refusal::new(
                Rule::ProcessNotFound,
                "you can't be seen from the daemon's pid namespace",
                "Use a view mount (`panefs view cN DIR`), which acts for a window whoever asks.",
            )),
            0 => Ok(writer),
            id if self.members.caller_sees_our_pids(caller.tid) => Ok(id),
            id => Err(Refusal::new(
                Rule::ProcessNotFound,
                format!("{id} is a number of your pid namespace, which isn't the daemon's"),
                "Write 0 from the process itself.",
            )),
        }
    }

    /// Makes a binding durable, then effective. It takes the place of what the same process,
    /// thread or control group was bound to.
    fn put_binding(&self, binding: Binding) -> Result<(), Refusal> {
        let deciding = self.decide();
        if let Some(window) = binding.window {
            self.world(|world| live_window(world, window).map(drop))?;
        }
        let displaced = self.members.displaced_by(&binding);
        let known = match binding.kind {
            BindingKind::Cgroup => self.members.bindings().contains(&binding),
            kind => self.members.find(kind, binding.id).as_ref() == Some(&binding),
        };
        // The reaper of an `exec` is a member as it is.
        let reaper = displaced.as_ref().is_some_and(|old| {
            (old.kind, binding.kind) == (BindingKind::Session, BindingKind::Process)
                && old.window == binding.window
                && old.start == binding.start
        });
        if known || reaper {
            return Ok(());
        }
        let mut bindings: Vec<_> = displaced.into_iter().map(BindingChange::Remove).collect();
        bindings.push(BindingChange::Put(binding.clone()));
        deciding.commit(Transaction {
            bindings,
            events: bound_event(&binding).into_iter().collect(),
            ..Transaction::default()
        })?;
        self.members.put(binding);
        Ok(())
    }

    fn remove_bindings(&self, bindings: Vec<Binding>) -> Result<(), Refusal> {
        let deciding = self.decide();
        deciding.commit(Transaction {
            events: bindings.iter().filter_map(unbound_event).collect(),
            bindings: bindings
                .iter()
                .cloned()
                .map(BindingChange::Remove)
                .collect(),
            ..Transaction::default()
        })?;
        for binding in &bindings {
            self.members.remove(binding);
        }
        Ok(())
    }
}

fn bound_elsewhere(who: &str, role: Role, window: WindowId) -> Result<(), Refusal> {
    match role.window() {
        Some(own) if own != window => Err(Refusal::new(
            Rule::WindowBound,
            format!("{who} bound to {own} and can't join {window} from there"),
            format!(
                "Start the process outside {own}, or let the mount's owner move it: `bind {window} pid=…`."
            ),
        )
        .with("window", own.to_string())),
        _ => Ok(()),
    }
}

fn no_process(id: u32) -> Refusal {
    Refusal::new(
        Rule::ProcessNotFound,
        format!("there is no process {id}"),
        "Name a process that runs; see `list members`.",
    )
}

/// What a binding's event tells; none for acting threads, which come and go with every edit.
fn event(kind: &'static str, binding: &Binding) -> Option<NewEvent> {
    let event = NewEvent::new(kind, binding.window)
        .with("window", binding.window.map(|window| window.to_string()))
        .with("by", binding.kind.as_str());
    match binding.kind {
        BindingKind::Acting => None,
        BindingKind::Cgroup => Some(event.with("cgroup", binding.cgroup.clone())),
        BindingKind::Thread => Some(event.with("pid", binding.tgid).with("tid", binding.id)),
        _ => Some(event.with("pid", binding.id)),
    }
}

/// `window.bound`, or `operator.bound`.
pub(in crate::control) fn bound_event(binding: &Binding) -> Option<NewEvent> {
    let kind = match binding.window {
        Some(_) => "window.bound",
        None => "operator.bound",
    };
    event(kind, binding)
}

/// `window.unbound`, or `operator.unbound`.
pub(in crate::control) fn unbound_event(binding: &Binding) -> Option<NewEvent> {
    let kind = match binding.window {
        Some(_) => "window.unbound",
        None => "operator.unbound",
    };
    event(kind, binding)
}
