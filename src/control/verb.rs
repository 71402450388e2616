//! The table of verbs: who may use them, which words and keys they take, what they are for.

use crate::model::{Refusal, Rule};

/// One verb.
#[derive(Debug, PartialEq, Eq)]
pub struct Verb {
    /// How it is spelled.
    pub name: &'static str,
    /// Whether only the mount's owner may use it, not a window.
    pub owner_only: bool,
    /// Its words and keys, for readers.
    pub usage: &'static str,
    /// The keys that it takes; one that ends with a dot takes any name behind it, and `*` any.
    pub keys: &'static [&'static str],
    /// The most words that it takes.
    pub words: usize,
    /// What it does.
    pub about: &'static str,
}

impl Verb {
    /// The verb of this name.
    ///
    /// # Errors
    /// [`Rule::VerbUnknown`], with every verb listed.
    pub fn find(name: &str) -> Result<&'static Self, Refusal> {
        VERBS.iter().find(|verb| verb.name == name).ok_or_else(|| {
            let all: Vec<_> = VERBS.iter().map(|verb| verb.name).collect();
            Refusal::new(
                Rule::VerbUnknown,
                format!("there is no verb {name:?}"),
                format!("Use one of: {}.", all.join(", ")),
            )
        })
    }

    /// Whether it takes this key.
    pub fn takes(&self, key: &str) -> bool {
        self.keys.iter().any(|known| match known.strip_suffix('.') {
            Some(_) => key.len() > known.len() && key.starts_with(known),
            None => *known == key || *known == "*",
        })
    }

    /// `allocate [cN] …`
    pub fn synopsis(&self) -> String {
        format!("{} {}", self.name, self.usage)
            .trim_end()
            .to_owned()
    }
}

macro_rules! verbs {
    ($($name:literal $($dagger:ident)? ($words:literal) [$($key:literal),*] $usage:literal $about:literal)+) => {
        /// Every verb, in the order of the help text.
        pub static VERBS: &[Verb] = &[$(Verb {
            name: $name,
            owner_only: verbs!(@ $($dagger)?),
            usage: $usage,
            keys: &[$($key),*],
            words: $words,
            about: $about,
        }),+];
    };
    (@ owner) => { true };
    (@) => { false };
}

verbs! {
    "allocate" owner (1)
        ["title", "owner", "definition", "project", "param.", "quota.bytes", "quota.files", "visibility", "keep"]
        "[cN] [title=…] [owner=UID[:GID]] [definition=…] [project=…] [param.K=V …] [quota.bytes=10GiB] [quota.files=100000] [visibility=private] [keep=true]"
        "Opens a window (left out: the next free one) and gives it a workspace of its own. Repeated, it answers the same with created=false."
    "bind" owner (1) ["pid", "tid", "cgroup"]
        "cN pid=P | tid=T | cgroup=PATH"
        "Makes a process, a thread or a control group with all below it a member of the window; 0 is the writer. Rebinds what belongs to another window."
    "unbind" owner (0) ["pid", "tid", "cgroup"]
        "pid=P | tid=T | cgroup=PATH"
        "Takes a binding away."
    "handoff" (2) ["mode", "members", "timeout", "title"]
        "cA [cB] [mode=refuse|wait|fence] [members=keep|move|end] [timeout=30s] [title=…]"
        "Makes cB, a new window, the holder of cA's workspace: same directory, same path. mode says what happens while files are open for writing: refuse (default), wait for their close, or fence them off. members says what becomes of cA's processes: keep (default), move to cB, or end."
    "release" (1) ["members"]
        "cN [members=keep|end]"
        "Ends the window; its files are kept, and handoff may continue it."
    "reclaim" owner (1) ["force", "purge"]
        "cN | wsN [force=true] [purge=true]"
        "Takes a workspace out of the tree. force also where a window holds it, which then ends with its processes; purge also deletes the files."
    "restore" owner (1) []
        "wsN"
        "Undoes a reclaim while the trash still has the files."
    "purge" owner (1) []
        "wsN"
        "Deletes a reclaimed workspace's files now."
    "expire" owner (0) ["older_than", "idle", "unsaved"]
        "[older_than=7d] [idle=7d] [unsaved=true]"
        "Reclaims the released workspaces older than that (or than the store's retention), and releases live windows without members and changes for idle. Keeps and names those whose git repositories hold work that exists nowhere else, unless unsaved=true."
    "path" (1) []
        "cN | wsN"
        "Where a workspace is, and whether the asker may write there."
    "quota" (1) ["bytes", "files"]
        "cN | wsN [bytes=…|none] [files=…|none]"
        "What a workspace uses, and its limits; only the owner's control file sets them."
    "show" (1) []
        "cN | wsN | JOB"
        "One window, workspace or job."
    "list" (1) ["state"]
        "windows | workspaces | members | jobs | sessions [state=…]"
        "All of them, or those in one state."
    "cd" (2) []
        "cN [PATH]"
        "Sets or shows a window's working directory."
    "ensure" (1) []
        "cN"
        "Restores a window's working directory where it is gone."
    "definitions" (0) ["project", "check"]
        "project=… [check=true]"
        "A project's recipes for prepared workspaces."
    "run" (2) ["*"]
        "cN | wsN COMMAND [K=V …]"
        "Runs a command of a workspace's definition."
    "wait" (1) ["timeout"]
        "JOB [timeout=…]"
        "A job's state, within a second; once it has ended, what the command itself answers."
    "cancel" (1) ["timeout"]
        "JOB [timeout=…]"
        "Asks a job to stop."
    "resolve" owner (2) []
        "wsN occupied|available|removed"
        "Settles a workspace in state unknown."
    "activity" (1) []
        "wsN"
        "What happened in a workspace."
    "share" (1) ["with"]
        "wsN with=cA,cB|all|none"
        "Lets others see a private workspace."
    "refresh" owner (1) []
        "wsN"
        "Reads a workspace anew, after its files were changed behind the daemon's back."
    "index" (9) ["*"] "[cN | wsN] …" "Builds a workspace's graph of modules, files and symbols."
    "map" (9) ["*"] "[cN | wsN] …" "An overview of a workspace's graph."
    "find" (9) ["*"] "[cN | wsN] QUERY …" "Finds nodes of a workspace's graph."
    "expand" (9) ["*"] "[cN | wsN] ID …" "The neighbours of a node."
    "context" (9) ["*"] "[cN | wsN] ID …" "What to read before a change."
    "view" owner (1) ["dir", "read-only"]
        "cN dir=PATH | dir=PATH read-only=true"
        "Mounts the tree once more at PATH, acting for cN whoever asks; read-only: for a guest."
    "leave" owner (0) ["dir"]
        "dir=PATH"
        "Unmounts a view."
    "help" (1) []
        "[VERB]"
        "The grammar, or one verb."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_are_found_by_their_exact_name() {
        assert!(Verb::find("allocate").unwrap().owner_only);
        assert!(!Verb::find("handoff").unwrap().owner_only);
        let refusal = Verb::find("Allocate").unwrap_err();
        assert_eq!(refusal.rule, Rule::VerbUnknown);
        assert!(
            refusal
                .next_action
                .contains("allocate, bind, unbind, handoff")
        );
    }

    #[test]
    fn keys_may_be_families() {
        let allocate = Verb::find("allocate").unwrap();
        assert!(allocate.takes("title") && allocate.takes("param.rust"));
        assert!(!allocate.takes("param.") && !allocate.takes("param") && !allocate.takes("force"));
        assert!(Verb::find("run").unwrap().takes("anything"));
    }
}
