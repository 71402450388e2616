//! Control files other than `ctl`: what they show, and what a write to them means.

use crate::model::{BindingKind, Refusal, Rule, WindowId};

use super::render::{WindowItem, ids};
use super::reply::to_json;
use super::{Caller, Control, help};

/// A control file that is read or written whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ControlFile {
    /// `.panefs/help`
    Help,
    /// `.panefs/whoami`
    Whoami,
    /// `.panefs/operators`
    Operators,
    /// `.panefs/acting`
    Acting,
    /// `.panefs/windows.jsonl`
    Windows,
    /// `.panefs/workspaces.jsonl`
    Workspaces,
    /// `.panefs/metrics`, this room's part of it
    Metrics,
    /// `.panefs/windows/cN/help`
    WindowHelp,
    /// `.panefs/windows/cN/window.json`
    WindowJson(WindowId),
    /// `.panefs/windows/cN/procs`
    Procs(WindowId),
    /// `.panefs/windows/cN/threads`
    Threads(WindowId),
    /// `.panefs/windows/cN/sessions`
    Sessions(WindowId),
}

impl Control {
    /// Takes a write to a control file: one word, with or without a newline.
    ///
    /// # Errors
    /// Why it was refused; nothing changed then.
    pub fn write_file(
        &self,
        file: ControlFile,
        caller: &Caller,
        bytes: &[u8],
    ) -> Result<(), Refusal> {
        let text = String::from_utf8_lossy(bytes);
        // Nothing that these files take is long.
        let text = text.trim().get(..text.trim().len().min(64)).unwrap_or("?");
        let written = match file {
            ControlFile::Procs(window) => self.join(caller, window, BindingKind::Process, text),
            ControlFile::Threads(window) => self.join(caller, window, BindingKind::Thread, text),
            ControlFile::Sessions(window) => self.join(caller, window, BindingKind::Session, text),
            ControlFile::Operators => self.add_operator(caller, text),
            ControlFile::Acting => self.act(caller, text),
            _ => Err(Refusal::new(
                Rule::CommandNotAllowed,
                "this file is only read",
                "Write commands to .panefs/ctl.",
            )),
        };
        if let Err(refusal) = &written {
            let rule = refusal.rule.as_str();
            tracing::info!(?file, pid = caller.who.pid, rule, "refused: {refusal}");
        }
        written
    }

    /// The whole content of a control file, as this caller sees it.
    pub fn read_file(&self, file: ControlFile, caller: &Caller) -> Vec<u8> {
        let lines = |ids: Vec<u32>| ids.iter().map(|id| format!("{id}\n")).collect::<String>();
        let bound = |kind, window| {
            let bindings = self.members.bindings().into_iter();
            let bindings = bindings.filter(move |b| b.kind == kind && b.window == window);
            let mut ids: Vec<_> = bindings.map(|binding| binding.id).collect();
            ids.sort_unstable();
            ids
        };
        let text = match file {
            ControlFile::Help => help::text(false),
            ControlFile::WindowHelp => help::text(true),
            ControlFile::Whoami => to_json(self.whoami(caller)) + "\n",
            ControlFile::Operators => lines(bound(BindingKind::Operator, None)),
            ControlFile::Acting => self
                .members
                .bindings()
                .iter()
                .filter(|binding| binding.kind == BindingKind::Acting)
                .filter_map(|binding| Some(format!("{} {}\n", binding.id, binding.window?)))
                .collect(),
            ControlFile::Windows => self.window_items(None).iter().map(json_line).collect(),
            ControlFile::Workspaces => self.workspace_items(None).iter().map(json_line).collect(),
            ControlFile::Metrics => self.metrics(),
            ControlFile::WindowJson(id) => {
                let members = self.members.members_of(id);
                self.world(|world| {
                    let window = world.window(id);
                    window.map(|window| {
                        json_line(WindowItem::new(window, &members, &self.options.mount))
                    })
                })
                .unwrap_or_default()
            }
            ControlFile::Procs(window) => {
                let members = self.members.members_of(window);
                let processes: Vec<_> = members.into_iter().filter(|m| m.tid.is_none()).collect();
                lines(ids(&processes))
            }
            ControlFile::Threads(window) => lines(bound(BindingKind::Thread, Some(window))),
            ControlFile::Sessions(window) => lines(bound(BindingKind::Session, Some(window))),
        };
        text.into_bytes()
    }
}

fn json_line(item: impl serde::Serialize) -> String {
    to_json(item) + "\n"
}
