//! Windows, workspaces, bindings and jobs as rows of the registry's tables, and back.

use rusqlite::{Connection, Row, named_params, params};

use super::error::RegistryError;
use super::registry::{BindingChange, JobRow, JobState};
use crate::model::{
    Binding, BindingKind, JobId, Owner, Quota, Timestamp, Window, WindowId, WindowState, Workspace,
    WorkspaceId, WorkspaceState,
};

/// The first schema. `chain` is a JSON array of window numbers.
pub(super) const SCHEMA_1: &str = "
CREATE TABLE windows (
    number INTEGER PRIMARY KEY, workspace INTEGER, state TEXT NOT NULL, continues INTEGER,
    continued_by INTEGER, title TEXT, cwd TEXT, uid INTEGER NOT NULL, gid INTEGER NOT NULL,
    opened_at INTEGER NOT NULL, ended_at INTEGER
) STRICT;
CREATE TABLE workspaces (
    number INTEGER PRIMARY KEY, occupation INTEGER, state TEXT NOT NULL, holder INTEGER,
    chain TEXT NOT NULL, title TEXT, uid INTEGER NOT NULL, gid INTEGER NOT NULL,
    quota_bytes INTEGER, quota_files INTEGER, keep INTEGER NOT NULL, epoch INTEGER NOT NULL,
    created_at INTEGER NOT NULL, released_at INTEGER, reclaimed_at INTEGER,
    purged INTEGER NOT NULL
) STRICT;
CREATE TABLE bindings (
    kind TEXT NOT NULL, id INTEGER NOT NULL, cgroup TEXT NOT NULL, start INTEGER NOT NULL,
    tgid INTEGER NOT NULL, window INTEGER, boot TEXT NOT NULL,
    PRIMARY KEY (kind, id, cgroup)
) STRICT, WITHOUT ROWID;
CREATE INDEX bindings_of_window ON bindings (window);
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY, command TEXT NOT NULL, state TEXT NOT NULL, result TEXT,
    log TEXT NOT NULL, started INTEGER NOT NULL, ended INTEGER
) STRICT;
CREATE TABLE events (
    seq INTEGER PRIMARY KEY, at INTEGER NOT NULL, line TEXT NOT NULL,
    end_offset INTEGER NOT NULL UNIQUE
) STRICT;
CREATE TABLE window_events (
    window INTEGER NOT NULL, end_offset INTEGER NOT NULL, seq INTEGER NOT NULL,
    PRIMARY KEY (window, end_offset)
) STRICT, WITHOUT ROWID;
";

pub(super) fn put_window(db: &Connection, window: &Window) -> rusqlite::Result<()> {
    db.prepare_cached(
        "INSERT OR REPLACE INTO windows VALUES (:number, :workspace, :state, :continues,
         :continued_by, :title, :cwd, :uid, :gid, :opened_at, :ended_at)",
    )?
    .execute(named_params! {
        ":number": window.id.number(),
        ":workspace": window.workspace.map(WorkspaceId::number),
        ":state": window.state.as_str(),
        ":continues": window.continues.map(WindowId::number),
        ":continued_by": window.continued_by.map(WindowId::number),
        ":title": window.title.as_ref().map(|title| title.as_str()),
        ":cwd": window.cwd,
        ":uid": window.owner.uid,
        ":gid": window.owner.gid,
        ":opened_at": window.opened_at.millis(),
        ":ended_at": window.ended_at.map(Timestamp::millis),
    })?;
    Ok(())
}

pub(super) fn put_workspace(db: &Connection, workspace: &Workspace) -> rusqlite::Result<()> {
    let chain: Vec<u32> = workspace.chain.iter().map(|id| id.number()).collect();
    db.prepare_cached(
        "INSERT OR REPLACE INTO workspaces VALUES (:number, :occupation, :state, :holder, :chain,
         :title, :uid, :gid, :quota_bytes, :quota_files, :keep, :epoch, :created_at, :released_at,
         :reclaimed_at, :purged)",
    )?
    .execute(named_params! {
        ":number": workspace.id.number(),
        ":occupation": workspace.occupation,
        ":state": workspace.state.as_str(),
        ":holder": workspace.holder.map(WindowId::number),
        ":chain": serde_json::Value::from(chain).to_string(),
        ":title": workspace.title.as_ref().map(|title| title.as_str()),
        ":uid": workspace.owner.uid,
        ":gid": workspace.owner.gid,
        ":quota_bytes": workspace.quota.bytes,
        ":quota_files": workspace.quota.files,
        ":keep": workspace.keep,
        ":epoch": workspace.epoch,
        ":created_at": workspace.created_at.millis(),
        ":released_at": workspace.released_at.map(Timestamp::millis),
        ":reclaimed_at": workspace.reclaimed_at.map(Timestamp::millis),
        ":purged": workspace.purged,
    })?;
    Ok(())
}

pub(super) fn put_job(db: &Connection, job: &JobRow) -> rusqlite::Result<()> {
    db.prepare_cached("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?)")?
        .execute(params![
            job.id.number(),
            job.command,
            job.state.as_str(),
            job.result.as_ref().map(ToString::to_string),
            job.log,
            job.started.millis(),
            job.ended.map(Timestamp::millis),
        ])?;
    Ok(())
}

pub(super) fn change_binding(
    db: &Connection,
    change: &BindingChange,
    boot: &str,
) -> rusqlite::Result<()> {
    match change {
        BindingChange::Put(binding) => db
            .prepare_cached("INSERT OR REPLACE INTO bindings VALUES (?, ?, ?, ?, ?, ?, ?)")?
            .execute(params![
                binding.kind.as_str(),
                binding.id,
                binding.cgroup,
                binding.start,
                binding.tgid,
                binding.window.map(WindowId::number),
                boot,
            ])?,
        BindingChange::Remove(binding) => db
            .prepare_cached(
                "DELETE FROM bindings WHERE kind = ? AND id = ? AND cgroup = ? AND start = ?",
            )?
            .execute(params![
                binding.kind.as_str(),
                binding.id,
                binding.cgroup,
                binding.start
            ])?,
        BindingChange::Move { from, to } => db
            .prepare_cached("UPDATE bindings SET window = ? WHERE window = ?")?
            .execute([to.number(), from.number()])?,
    };
    Ok(())
}

pub(super) fn windows(db: &Connection) -> Result<Vec<Window>, RegistryError> {
    read(
        db,
        "windows",
        "SELECT * FROM windows ORDER BY number",
        |r| {
            Ok(Window {
                id: r.window("number")?,
                workspace: r.optional("workspace", WorkspaceId::new)?,
                state: r.word("state", WindowState::parse)?,
                continues: r.optional("continues", WindowId::new)?,
                continued_by: r.optional("continued_by", WindowId::new)?,
                title: r.title()?,
                cwd: r.get("cwd")?,
                owner: r.owner()?,
                opened_at: r.time("opened_at")?,
                ended_at: r.optional_time("ended_at")?,
            })
        },
    )
}

pub(super) fn workspaces(db: &Connection) -> Result<Vec<Workspace>, RegistryError> {
    read(
        db,
        "workspaces",
        "SELECT * FROM workspaces ORDER BY number",
        |r| {
            Ok(Workspace {
                id: r.number("number", WorkspaceId::new)?,
                occupation: r.get("occupation")?,
                state: r.word("state", WorkspaceState::parse)?,
                holder: r.optional("holder", WindowId::new)?,
                chain: r.chain()?,
                title: r.title()?,
                owner: r.owner()?,
                quota: Quota {
                    bytes: r.get("quota_bytes")?,
                    files: r.get("quota_files")?,
                },
                keep: r.get("keep")?,
                epoch: r.get("epoch")?,
                created_at: r.time("created_at")?,
                released_at: r.optional_time("released_at")?,
                reclaimed_at: r.optional_time("reclaimed_at")?,
                purged: r.get("purged")?,
            })
        },
    )
}

pub(super) fn bindings(db: &Connection) -> Result<Vec<Binding>, RegistryError> {
    // A row of this table has no number of its own; its id serves to find it.
    read(
        db,
        "bindings",
        "SELECT id AS number, * FROM bindings",
        |r| {
            let parse = |text: &str| {
                BindingKind::ALL
                    .into_iter()
                    .find(|kind| kind.as_str() == text)
            };
            Ok(Binding {
                kind: r.word("kind", parse)?,
                id: r.get("id")?,
                start: r.get("start")?,
                tgid: r.get("tgid")?,
                cgroup: r.get("cgroup")?,
                window: r.optional("window", WindowId::new)?,
            })
        },
    )
}

pub(super) fn jobs(db: &Connection) -> Result<Vec<JobRow>, RegistryError> {
    read(db, "jobs", "SELECT * FROM jobs ORDER BY number", |r| {
        let result: Option<String> = r.get("result")?;
        Ok(JobRow {
            id: r.number("number", JobId::new)?,
            command: r.get("command")?,
            state: r.word("state", JobState::parse)?,
            result: match result {
                Some(text) => Some(
                    serde_json::from_str(&text).map_err(|e| r.damaged(format!("result: {e}")))?,
                ),
                None => None,
            },
            log: r.get("log")?,
            started: r.time("started")?,
            ended: r.optional_time("ended")?,
        })
    })
}

/// Reads a whole table.
fn read<T>(
    db: &Connection,
    table: &'static str,
    query: &str,
    one: impl Fn(&Fields<'_>) -> Result<T, RegistryError>,
) -> Result<Vec<T>, RegistryError> {
    let failed = || RegistryError::sqlite("the registry can't be read");
    let mut statement = db.prepare(query).map_err(failed())?;
    let mut rows = statement.query([]).map_err(failed())?;
    let mut all = Vec::new();
    while let Some(row) = rows.next().map_err(failed())? {
        all.push(one(&Fields { table, row })?);
    }
    Ok(all)
}

/// A row, whose fields are read as the model's types.
struct Fields<'a> {
    table: &'static str,
    row: &'a Row<'a>,
}

impl Fields<'_> {
    fn damaged(&self, what: impl Into<String>) -> RegistryError {
        RegistryError::Damaged {
            table: self.table,
            row: self.row.get("number").unwrap_or(0),
            what: what.into(),
        }
    }

    fn get<T: rusqlite::types::FromSql>(&self, column: &str) -> Result<T, RegistryError> {
        let value = self.row.get(column);
        value.map_err(|e| self.damaged(format!("{column}: {e}")))
    }

    fn optional<T>(
        &self,
        column: &str,
        new: fn(u32) -> Option<T>,
    ) -> Result<Option<T>, RegistryError> {
        match self.get::<Option<u32>>(column)? {
            None => Ok(None),
            Some(n) => match new(n) {
                Some(id) => Ok(Some(id)),
                None => Err(self.damaged(format!("{column} is {n}"))),
            },
        }
    }

    fn number<T>(&self, column: &str, new: fn(u32) -> Option<T>) -> Result<T, RegistryError> {
        let id = self.optional(column, new)?;
        id.ok_or_else(|| self.damaged(format!("{column} is null")))
    }

    fn window(&self, column: &str) -> Result<WindowId, RegistryError> {
        self.number(column, WindowId::new)
    }

    fn word<T>(&self, column: &str, parse: impl Fn(&str) -> Option<T>) -> Result<T, RegistryError> {
        let text: String = self.get(column)?;
        parse(&text).ok_or_else(|| self.damaged(format!("{column} is {text:?}")))
    }

    fn title<T: std::str::FromStr>(&self) -> Result<Option<T>, RegistryError> {
        let text: Option<String> = self.get("title")?;
        let Some(text) = text else { return Ok(None) };
        let title = text
            .parse()
            .map_err(|_| self.damaged(format!("title is {text:?}")))?;
        Ok(Some(title))
    }

    fn owner(&self) -> Result<Owner, RegistryError> {
        Ok(Owner {
            uid: self.get("uid")?,
            gid: self.get("gid")?,
        })
    }

    fn time(&self, column: &str) -> Result<Timestamp, RegistryError> {
        Ok(Timestamp::from_millis(self.get(column)?))
    }

    fn optional_time(&self, column: &str) -> Result<Option<Timestamp>, RegistryError> {
        Ok(self.get::<Option<i64>>(column)?.map(Timestamp::from_millis))
    }

    fn chain(&self) -> Result<Vec<WindowId>, RegistryError> {
        let text: String = self.get("chain")?;
        let numbers: Option<Vec<u32>> = serde_json::from_str(&text).ok();
        let ids = numbers.and_then(|all| all.into_iter().map(WindowId::new).collect());
        ids.ok_or_else(|| self.damaged(format!("chain is {text:?}")))
    }
}
