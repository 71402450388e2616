//! Every binding, found by process, by thread, by control group and by window.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::task::Task;
use crate::model::{Binding, BindingKind, WindowId};

/// A binding and the task that it names; none for a control group.
#[derive(Debug)]
pub(super) struct Bound {
    pub binding: Binding,
    pub task: Option<Arc<Task>>,
}

impl Bound {
    /// Whether its process or thread has ended. A control group never does.
    pub fn has_ended(&self) -> bool {
        self.task.as_ref().is_some_and(|task| !task.is_alive())
    }

    /// Whether it binds this very task, which the caller knows to live or asks about later.
    pub fn is_of(&self, task: &Arc<Task>) -> bool {
        self.task.as_ref().is_some_and(|bound| {
            // Two that started within one clock tick differ in that only one of them lives.
            Arc::ptr_eq(bound, task) || (bound.start == task.start && bound.is_alive())
        })
    }
}

/// What a binding is found by. An operator that is bound, or the reverse, is what it became last.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Key {
    Process(u32),
    Session(u32),
    Thread(u32),
    Acting(u32),
    Cgroup(String),
}

impl Key {
    fn of(binding: &Binding) -> Self {
        match binding.kind {
            BindingKind::Cgroup => Self::Cgroup(binding.cgroup.clone()),
            kind => Self::of_id(kind, binding.id),
        }
    }

    fn of_id(kind: BindingKind, id: u32) -> Self {
        match kind {
            BindingKind::Process | BindingKind::Operator => Self::Process(id),
            BindingKind::Session => Self::Session(id),
            BindingKind::Thread => Self::Thread(id),
            BindingKind::Acting => Self::Acting(id),
            BindingKind::Cgroup => Self::Cgroup(String::new()),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Table {
    bound: HashMap<Key, Arc<Bound>>,
    by_window: HashMap<Option<WindowId>, BTreeSet<Key>>,
    /// Bound and acting threads by process.
    threads: HashMap<u32, Vec<u32>>,
    cgroups: usize,
    sessions: usize,
}

impl Table {
    /// Adds a binding in place of whatever bound the same thing.
    pub fn put(&mut self, bound: Bound) {
        let key = Key::of(&bound.binding);
        self.take(&key);
        let binding = &bound.binding;
        match binding.kind {
            BindingKind::Cgroup => self.cgroups += 1,
            BindingKind::Session => self.sessions += 1,
            BindingKind::Thread | BindingKind::Acting => {
                self.threads
                    .entry(binding.tgid)
                    .or_default()
                    .push(binding.id);
            }
            BindingKind::Process | BindingKind::Operator => {}
        }
        self.by_window
            .entry(binding.window)
            .or_default()
            .insert(key.clone());
        self.bound.insert(key, Arc::new(bound));
    }

    /// Removes this binding, not one that took its place.
    pub fn remove(&mut self, binding: &Binding) {
        let key = Key::of(binding);
        if self
            .bound
            .get(&key)
            .is_some_and(|bound| bound.binding == *binding)
        {
            self.take(&key);
        }
    }

    fn take(&mut self, key: &Key) {
        let Some(bound) = self.bound.remove(key) else {
            return;
        };
        let binding = &bound.binding;
        match binding.kind {
            BindingKind::Cgroup => self.cgroups -= 1,
            BindingKind::Session => self.sessions -= 1,
            BindingKind::Thread | BindingKind::Acting => {
                if let Some(threads) = self.threads.get_mut(&binding.tgid) {
                    if let Some(at) = threads.iter().position(|&tid| tid == binding.id) {
                        threads.swap_remove(at);
                    }
                    if threads.is_empty() {
                        self.threads.remove(&binding.tgid);
                    }
                }
            }
            BindingKind::Process | BindingKind::Operator => {}
        }
        if let Some(keys) = self.by_window.get_mut(&binding.window) {
            keys.remove(key);
            if keys.is_empty() {
                self.by_window.remove(&binding.window);
            }
        }
    }

    /// Gives one window's bindings to another.
    pub fn move_window(&mut self, from: WindowId, to: WindowId) {
        for bound in self.of_window(from) {
            self.put(Bound {
                binding: Binding {
                    window: Some(to),
                    ..bound.binding.clone()
                },
                task: bound.task.clone(),
            });
        }
    }

    pub fn is_empty(&self) -> bool {
        self.bound.is_empty()
    }

    pub fn has_cgroups(&self) -> bool {
        self.cgroups > 0
    }

    pub fn has_sessions(&self) -> bool {
        self.sessions > 0
    }

    /// By process or thread; `Process` also finds an operator.
    pub fn get(&self, kind: BindingKind, id: u32) -> Option<Arc<Bound>> {
        self.bound.get(&Key::of_id(kind, id)).cloned()
    }

    /// What binds this control group itself.
    pub fn cgroup(&self, key: &str) -> Option<Arc<Bound>> {
        self.bound.get(&Key::Cgroup(key.to_owned())).cloned()
    }

    /// The bound and acting threads of a process.
    pub fn threads_of(&self, tgid: u32) -> &[u32] {
        self.threads.get(&tgid).map_or(&[], Vec::as_slice)
    }

    /// What binds to a window.
    pub fn of_window(&self, window: WindowId) -> Vec<Arc<Bound>> {
        self.by_window
            .get(&Some(window))
            .into_iter()
            .flatten()
            .filter_map(|key| self.bound.get(key).cloned())
            .collect()
    }

    /// Every binding.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Bound>> {
        self.bound.values()
    }

    /// Whatever binds the process or thread with this id, whether that lives or not.
    pub fn of_id(&self, id: u32) -> Vec<Arc<Bound>> {
        [
            Key::Process(id),
            Key::Session(id),
            Key::Thread(id),
            Key::Acting(id),
        ]
        .iter()
        .filter_map(|key| self.bound.get(key).cloned())
        .collect()
    }
}
