//! Windows, workspaces and members as readers get them.

use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use crate::member::Member;
use crate::model::{
    Owner, Quota, Timestamp, Title, Window, WindowId, WindowState, Workspace, WorkspaceId,
    WorkspaceRef, WorkspaceState,
};
use crate::store::Usage;

/// A window.
#[derive(Debug, Serialize)]
pub struct WindowItem {
    window: WindowId,
    workspace: Option<WorkspaceId>,
    state: WindowState,
    continues: Option<WindowId>,
    continued_by: Option<WindowId>,
    title: Option<Title>,
    cwd: Option<String>,
    owner: Owner,
    members: Vec<u32>,
    opened_at: Timestamp,
    ended_at: Option<Timestamp>,
}

impl WindowItem {
    /// A window with its processes; threads that were bound apart go by their own ids. Its working
    /// directory is its workspace's top until it is changed.
    pub fn new(window: &Window, members: &[Member], mount: &Path) -> Self {
        let cwd = window.cwd.clone();
        let cwd = cwd.or_else(|| window.workspace.map(|workspace| workspace.to_string()));
        Self {
            window: window.id,
            workspace: window.workspace,
            state: window.state,
            continues: window.continues,
            continued_by: window.continued_by,
            title: window.title.clone(),
            cwd: cwd.map(|cwd| mount.join(cwd).display().to_string()),
            owner: window.owner,
            members: ids(members),
            opened_at: window.opened_at,
            ended_at: window.ended_at,
        }
    }
}

/// The ids of members: of processes, and of threads that were bound apart.
pub fn ids(members: &[Member]) -> Vec<u32> {
    members.iter().map(|m| m.tid.unwrap_or(m.pid)).collect()
}

/// What is used, and how much may be; none is unknown or unlimited.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Amount {
    used: Option<u64>,
    limit: Option<u64>,
}

/// Bytes and files of a workspace.
pub fn amounts(quota: Quota, usage: Option<Usage>) -> (Amount, Amount) {
    let bytes = Amount {
        used: usage.map(|usage| usage.bytes),
        limit: quota.bytes,
    };
    let files = Amount {
        used: usage.map(|usage| usage.files),
        limit: quota.files,
    };
    (bytes, files)
}

/// A workspace.
#[derive(Debug, Serialize)]
pub struct WorkspaceItem {
    workspace: WorkspaceId,
    r#ref: WorkspaceRef,
    path: String,
    state: WorkspaceState,
    holder: Option<WindowId>,
    chain: Vec<WindowId>,
    definition: Option<String>,
    project: Option<String>,
    params: Option<Value>,
    commands: Option<Value>,
    title: Option<Title>,
    bytes: Amount,
    files: Amount,
    created_at: Timestamp,
    released_at: Option<Timestamp>,
    reclaimed_at: Option<Timestamp>,
    owner: Owner,
    keep: bool,
    purged: bool,
}

impl WorkspaceItem {
    /// A workspace at its path in the mount.
    pub fn new(workspace: &Workspace, path: String, usage: Option<Usage>) -> Self {
        let (bytes, files) = amounts(workspace.quota, usage);
        Self {
            workspace: workspace.id,
            r#ref: workspace.current_ref(),
            path,
            state: workspace.state,
            holder: workspace.holder,
            chain: workspace.chain.clone(),
            definition: None,
            project: None,
            params: None,
            commands: None,
            title: workspace.title.clone(),
            bytes,
            files,
            created_at: workspace.created_at,
            released_at: workspace.released_at,
            reclaimed_at: workspace.reclaimed_at,
            owner: workspace.owner,
            keep: workspace.keep,
            purged: workspace.purged,
        }
    }
}

/// A process or thread of a window.
#[derive(Debug, Serialize)]
pub struct MemberItem {
    window: WindowId,
    pid: u32,
    tid: Option<u32>,
    command: String,
    by: &'static str,
}

impl MemberItem {
    /// A member of `window`.
    pub fn new(window: WindowId, member: &Member) -> Self {
        Self {
            window,
            pid: member.pid,
            tid: member.tid,
            command: member.command.clone(),
            by: member.by,
        }
    }
}
