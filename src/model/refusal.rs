//! The one error of the control protocol: which rule refused, what is concerned, what to do next.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value, json};

/// The family of a rule; it decides the errno of the refused write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// The command is not well formed (EINVAL).
    Invalid,
    /// It names something that does not exist (ENOENT).
    NotFound,
    /// It can't happen while something else holds on (EBUSY).
    Busy,
    /// The caller may not do it (EPERM).
    Denied,
    /// It names something that has ended (ESTALE).
    Stale,
    /// A quota is used up (EDQUOT).
    Exhausted,
    /// It did not happen in time (ETIMEDOUT).
    Timeout,
    /// This build or mount does not offer it (EOPNOTSUPP).
    Unsupported,
    /// It was tried and failed (EIO).
    Failed,
}

impl Code {
    /// The word in a reply.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::NotFound => "not_found",
            Self::Busy => "busy",
            Self::Denied => "denied",
            Self::Stale => "stale",
            Self::Exhausted => "exhausted",
            Self::Timeout => "timeout",
            Self::Unsupported => "unsupported",
            Self::Failed => "failed",
        }
    }

    /// The errno that the refused write(2) returns.
    pub fn errno(self) -> i32 {
        match self {
            Self::Invalid => libc::EINVAL,
            Self::NotFound => libc::ENOENT,
            Self::Busy => libc::EBUSY,
            Self::Denied => libc::EPERM,
            Self::Stale => libc::ESTALE,
            Self::Exhausted => libc::EDQUOT,
            Self::Timeout => libc::ETIMEDOUT,
            Self::Unsupported => libc::EOPNOTSUPP,
            Self::Failed => libc::EIO,
        }
    }
}

macro_rules! rules {
    ($($name:ident = $text:literal in $code:ident),+ $(,)?) => {
        /// The rule that refused a command.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Rule {
            $(#[doc = concat!("`", $text, "`")] $name,)+
        }

        impl Rule {
            /// Every rule.
            pub const ALL: &'static [Rule] = &[$(Self::$name),+];

            /// Its name in a reply.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            /// The family that it belongs to.
            pub fn code(self) -> Code {
                match self { $(Self::$name => Code::$code,)+ }
            }
        }
    };
}

rules! {
    WindowRefInvalid = "window.ref.invalid" in Invalid,
    WorkspaceRefUnknown = "workspace.ref.unknown" in Invalid,
    TitleInvalid = "title.invalid" in Invalid,
    VerbUnknown = "verb.unknown" in Invalid,
    ArgumentInvalid = "argument.invalid" in Invalid,
    ArgumentMissing = "argument.missing" in Invalid,
    LineTooLong = "line.too_long" in Invalid,
    DefinitionInvalid = "definition.invalid" in Invalid,
    WorkingDirectoryInvalid = "working_directory.invalid" in Invalid,
    WindowNotFound = "window.not_found" in NotFound,
    WorkspaceNotFound = "workspace.not_found" in NotFound,
    ProcessNotFound = "process.not_found" in NotFound,
    JobNotFound = "job.not_found" in NotFound,
    DefinitionNotFound = "definition.not_found" in NotFound,
    CommandUnknown = "command.unknown" in NotFound,
    WorkingDirectoryNotFound = "working_directory.not_found" in NotFound,
    WorkspaceHeld = "workspace.held" in Busy,
    HandoffBusy = "handoff.busy" in Busy,
    ChainNotHolder = "chain.not_holder" in Busy,
    WindowNotYours = "window.not_yours" in Denied,
    WindowBound = "window.bound" in Denied,
    CommandNotAllowed = "command.not_allowed" in Denied,
    PolicyRefused = "policy.refused" in Denied,
    WindowEnded = "window.ended" in Stale,
    WorkspaceRefExpired = "workspace.ref.expired" in Stale,
    QuotaExceeded = "quota.exceeded" in Exhausted,
    HandoffTimeout = "handoff.timeout" in Timeout,
    HandlerTimeout = "handler.timeout" in Timeout,
    Unsupported = "unsupported" in Unsupported,
    WorkspaceNotDirectory = "workspace.not_directory" in Failed,
    HandlerFailed = "handler.failed" in Failed,
    HandlerUnknownOutcome = "handler.unknown_outcome" in Failed,
    WorkingDirectoryUnavailable = "working_directory.unavailable" in Failed,
    Internal = "internal" in Failed,
}

/// Why a command was refused. A refused command changed nothing.
#[derive(Debug, Clone)]
pub struct Refusal {
    /// The rule that refused.
    pub rule: Rule,
    /// What is concerned, by name.
    pub message: String,
    /// One sentence that the reader can act on.
    pub next_action: String,
    /// Further fields of the error, for instance `holder`.
    pub fields: Box<Map<String, Value>>,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl Refusal {
    /// A refusal by `rule`.
    pub fn new(rule: Rule, message: impl Into<String>, next_action: impl Into<String>) -> Self {
        Self {
            rule,
            message: message.into(),
            next_action: next_action.into(),
            fields: Box::default(),
            source: None,
        }
    }

    /// The failure of something beneath panefs: the disk, the registry, the kernel.
    pub fn internal(what: impl Into<String>, source: impl Error + Send + Sync + 'static) -> Self {
        let mut refusal = Self::new(
            Rule::Internal,
            format!("{}: {source}", what.into()),
            "Look at the daemon's log and at the store's disk, then try again.",
        );
        refusal.source = Some(Arc::new(source));
        refusal
    }

    /// Adds a field to the error.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.fields.insert(key.to_owned(), value.into());
        self
    }

    /// The errno of the refused write(2).
    pub fn errno(&self) -> i32 {
        self.rule.code().errno()
    }

    /// The reply line: `{"ok":false,"error":{…}}`.
    pub fn to_json(&self) -> Value {
        let mut error = Map::new();
        error.insert("code".into(), self.rule.code().as_str().into());
        error.insert("rule".into(), self.rule.as_str().into());
        error.insert("message".into(), self.message.clone().into());
        error.insert("next_action".into(), self.next_action.clone().into());
        for (key, value) in self.fields.iter() {
            error.insert(key.clone(), value.clone());
        }
        json!({ "ok": false, "error": error })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for Refusal {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
