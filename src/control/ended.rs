//! Bindings that end because their processes do.

use std::sync::Arc;

use crate::member::Ended;
use crate::store::{BindingChange, Transaction};

use super::Control;
use super::verbs::bind::{bound_event, unbound_event};

impl Control {
    /// Listens for the end of bound processes.
    pub(super) fn watch_members(self: &Arc<Self>) {
        let weak = Arc::downgrade(self);
        self.members.set_watcher(Box::new(move |ended| {
            if let Some(control) = weak.upgrade() {
                control.note_ended(ended);
            }
        }));
    }

    /// Makes durable, then effective, what the end of processes changes. Where that fails, it is
    /// told again.
    fn note_ended(&self, ended: Ended) {
        let Ended { removed, added } = ended;
        let deciding = self.decide();
        // The gone go first: one of the new may bear the number of one of the gone.
        let gone = removed.iter().cloned().map(BindingChange::Remove);
        let new = added.iter().cloned().map(BindingChange::Put);
        let events = removed
            .iter()
            .filter_map(unbound_event)
            .chain(added.iter().filter_map(bound_event));
        let committed = deciding.commit(Transaction {
            bindings: gone.chain(new).collect(),
            events: events.collect(),
            ..Transaction::default()
        });
        if let Err(refusal) = committed {
            tracing::error!("ended bindings are not in the registry: {refusal}");
            return;
        }
        for binding in &removed {
            self.members.remove(binding);
        }
        for binding in added {
            self.members.put(binding);
        }
    }
}
