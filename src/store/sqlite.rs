//! The registry as an SQLite database: one transaction a command, in the write-ahead log and
//! fsynced before the commit returns.
//!
//! Lock order: `writer` before `journal`; `reader` alone.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use rusqlite::{Connection, OpenFlags, TransactionBehavior, params};
use serde::ser::{SerializeMap, Serializer};

use super::error::RegistryError;
use super::registry::{Event, Loaded, Registry, Transaction};
use super::rows;
use crate::model::{NewEvent, Timestamp, WindowId, World};

/// The schema that this version writes.
const SCHEMA: i64 = 1;
/// Marks the file as a panefs registry ("pane").
const APPLICATION_ID: i64 = 0x7061_6e65;

/// The registry in one database file.
#[derive(Debug)]
pub struct SqliteRegistry {
    /// Names this start of the machine; what was bound before it is gone.
    boot: String,
    /// Reads events, without waiting for a commit. (Dropped first: the last connection that may
    /// write folds the log back into the database.)
    reader: Mutex<Connection>,
    /// The one connection that writes.
    writer: Mutex<Connection>,
    /// What is committed, so that sizes cost no I/O.
    journal: RwLock<Journal>,
}

/// How far each `events.jsonl` reaches.
#[derive(Debug, Clone, Default)]
struct Journal {
    seq: u64,
    whole: Extent,
    windows: HashMap<WindowId, Extent>,
}

/// How far one `events.jsonl` reaches, in bytes, and when its last line was written.
#[derive(Debug, Clone, Copy, Default)]
struct Extent {
    end: u64,
    last: Option<Timestamp>,
}

impl Extent {
    /// With one more line, given its length without the newline.
    fn after(self, line: usize, at: Timestamp) -> Self {
        Self {
            end: self.end + line as u64 + 1,
            last: Some(at),
        }
    }
}

impl SqliteRegistry {
    /// Opens the database, and makes it where it is missing.
    ///
    /// # Errors
    /// [`RegistryError::Newer`] and [`RegistryError::Foreign`] leave the file as it was.
    pub fn open(path: &Path) -> Result<Self, RegistryError> {
        let failed = || RegistryError::sqlite("the registry can't be opened");
        let mut writer = Connection::open(path).map_err(failed())?;
        writer
            .busy_timeout(Duration::from_secs(5))
            .map_err(failed())?;
        prepare(&mut writer, path)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let reader = Connection::open_with_flags(path, flags).map_err(failed())?;
        limit_cache(&reader).map_err(failed())?;
        reader
            .busy_timeout(Duration::from_secs(5))
            .map_err(failed())?;
        let journal = read_journal(&writer).map_err(failed())?;
        Ok(Self {
            boot: boot_id(),
            reader: Mutex::new(reader),
            writer: Mutex::new(writer),
            journal: RwLock::new(journal),
        })
    }

    fn extent(&self, window: Option<WindowId>) -> Extent {
        let journal = self.journal.read();
        match window {
            None => journal.whole,
            Some(window) => journal.windows.get(&window).copied().unwrap_or_default(),
        }
    }
}

impl Registry for SqliteRegistry {
    fn load(&self) -> Result<Loaded, RegistryError> {
        let db = self.writer.lock();
        db.execute("DELETE FROM bindings WHERE boot <> ?", [&self.boot])
            .map_err(RegistryError::sqlite(
                "bindings of an earlier boot can't be dropped",
            ))?;
        let mut world = World::default();
        world.apply(&crate::model::Changes {
            windows: rows::windows(&db)?,
            workspaces: rows::workspaces(&db)?,
        });
        Ok(Loaded {
            world,
            bindings: rows::bindings(&db)?,
            jobs: rows::jobs(&db)?,
        })
    }

    fn commit(
        &self,
        transaction: &Transaction,
        at: Timestamp,
    ) -> Result<Vec<Event>, RegistryError> {
        if transaction.is_empty() {
            return Ok(Vec::new());
        }
        let mut writer = self.writer.lock();
        // In WAL mode NORMAL means: no fsync at the commit.
        let synchronous = match transaction.ends_with_the_machine() {
            true => "NORMAL",
            false => "FULL",
        };
        writer
            .pragma_update(None, "synchronous", synchronous)
            .map_err(RegistryError::sqlite("the registry can't be written"))?;
        let journal = self.journal.read();
        let (mut seq, mut whole) = (journal.seq, journal.whole);
        let mut windows: HashMap<WindowId, Extent> = HashMap::new();
        let mut events = Vec::with_capacity(transaction.events.len());
        let mut write = || -> rusqlite::Result<()> {
            let db = writer.transaction_with_behavior(TransactionBehavior::Immediate)?;
            for window in &transaction.changes.windows {
                rows::put_window(&db, window)?;
            }
            for workspace in &transaction.changes.workspaces {
                rows::put_workspace(&db, workspace)?;
            }
            for change in &transaction.bindings {
                rows::change_binding(&db, change, &self.boot)?;
            }
            for job in &transaction.jobs {
                rows::put_job(&db, job)?;
            }
            for new in &transaction.events {
                seq += 1;
                let line = line(seq, at, new)?;
                whole = whole.after(line.len(), at);
                db.prepare_cached("INSERT INTO events VALUES (?, ?, ?, ?)")?
                    .execute(params![seq, at.millis(), line, whole.end])?;
                for (place, window) in new.windows.iter().enumerate() {
                    if new.windows[..place].contains(window) {
                        continue;
                    }
                    let extent = windows.entry(*window).or_insert_with(|| {
                        journal.windows.get(window).copied().unwrap_or_default()
                    });
                    *extent = extent.after(line.len(), at);
                    db.prepare_cached("INSERT INTO window_events VALUES (?, ?, ?)")?
                        .execute(params![window.number(), extent.end, seq])?;
                }
                events.push(Event { seq, at, line });
            }
            db.commit()
        };
        write().map_err(RegistryError::sqlite("the registry can't be written"))?;

        drop(journal);
        let mut journal = self.journal.write();
        journal.seq = seq;
        journal.whole = whole;
        journal.windows.extend(windows);
        Ok(events)
    }

    fn events_size(&self, window: Option<WindowId>) -> u64 {
        self.extent(window).end
    }

    fn last_event(&self, window: Option<WindowId>) -> Option<Timestamp> {
        self.extent(window).last
    }

    fn read_events(
        &self,
        window: Option<WindowId>,
        offset: u64,
        len: usize,
    ) -> Result<Vec<u8>, RegistryError> {
        // What is being committed meanwhile isn't shown before its size is.
        let end = self
            .events_size(window)
            .min(offset.saturating_add(len as u64));
        if offset >= end {
            return Ok(Vec::new());
        }
        let reader = self.reader.lock();
        let read = || -> rusqlite::Result<Vec<u8>> {
            let mut statement = reader.prepare_cached(match window {
                None => {
                    "SELECT line, end_offset FROM events
                     WHERE end_offset > :offset ORDER BY end_offset"
                }
                Some(_) => {
                    "SELECT line, w.end_offset FROM window_events w JOIN events USING (seq)
                     WHERE w.end_offset > :offset AND w.window = :window ORDER BY w.end_offset"
                }
            })?;
            statement.raw_bind_parameter(":offset", offset)?;
            if let Some(window) = window {
                statement.raw_bind_parameter(":window", window.number())?;
            }
            let mut rows = statement.raw_query();
            let mut bytes = Vec::new();
            let mut at = offset;
            while at < end {
                let Some(row) = rows.next()? else { break };
                let mut line: String = row.get(0)?;
                line.push('\n');
                let line_end: u64 = row.get(1)?;
                let line_start = line_end.saturating_sub(line.len() as u64);
                // Both lie within the line, whose length is a usize.
                let from = at.saturating_sub(line_start) as usize;
                let to = (end.min(line_end) - line_start) as usize;
                bytes.extend_from_slice(&line.as_bytes()[from..to]);
                at = line_end;
            }
            Ok(bytes)
        };
        read().map_err(RegistryError::sqlite("events can't be read"))
    }
}

/// Checks whose database it is and of which schema, then makes it durable and current.
fn prepare(db: &mut Connection, path: &Path) -> Result<(), RegistryError> {
    let foreign = || RegistryError::Foreign {
        path: path.to_owned(),
    };
    let failed = || RegistryError::sqlite("the registry can't be prepared");
    let pragma = |db: &Connection, name| db.pragma_query_value(None, name, |row| row.get(0));
    let found: i64 = match pragma(db, "user_version") {
        Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::NotADatabase) => {
            return Err(foreign());
        }
        found => found.map_err(failed())?,
    };
    let application: i64 = pragma(db, "application_id").map_err(failed())?;
    let tables: i64 = db
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(failed())?;
    let fresh = tables == 0 && found == 0 && application == 0;
    if !fresh && application != APPLICATION_ID {
        return Err(foreign());
    }
    if found > SCHEMA {
        return Err(RegistryError::Newer {
            path: path.to_owned(),
            found,
            known: SCHEMA,
        });
    }
    db.pragma_update(None, "journal_mode", "WAL")
        .map_err(failed())?;
    db.pragma_update(None, "synchronous", "FULL")
        .map_err(failed())?;
    limit_cache(db).map_err(failed())?;
    if fresh {
        let create = |db: &mut Connection| -> rusqlite::Result<()> {
            let tx = db.transaction()?;
            tx.execute_batch(rows::SCHEMA_1)?;
            tx.pragma_update(None, "application_id", APPLICATION_ID)?;
            tx.pragma_update(None, "user_version", SCHEMA)?;
            tx.commit()
        };
        create(db).map_err(failed())?;
    }
    Ok(())
}

/// Far below SQLite's own choice: what is asked often is in the daemon's memory anyway.
fn limit_cache(db: &Connection) -> rusqlite::Result<()> {
    const KIB: i64 = 128;
    db.pragma_update(None, "cache_size", -KIB)
}

/// How far the events reach, by one index lookup for each file.
fn read_journal(db: &Connection) -> rusqlite::Result<Journal> {
    let mut journal = Journal::default();
    let mut last =
        db.prepare("SELECT seq, end_offset, at FROM events ORDER BY seq DESC LIMIT 1")?;
    let mut rows = last.query([])?;
    if let Some(row) = rows.next()? {
        journal.seq = row.get(0)?;
        journal.whole = extent(row.get(1)?, row.get(2)?);
    }
    let mut windows = db.prepare(
        "WITH RECURSIVE ids(id) AS (
             SELECT min(window) FROM window_events
             UNION ALL
             SELECT (SELECT min(window) FROM window_events WHERE window > id)
             FROM ids WHERE id IS NOT NULL
         )
         SELECT id, line.end_offset, events.at FROM ids
         JOIN window_events line ON line.window = id AND line.end_offset =
             (SELECT max(end_offset) FROM window_events WHERE window = id)
         JOIN events ON events.seq = line.seq",
    )?;
    let mut rows = windows.query([])?;
    while let Some(row) = rows.next()? {
        if let Some(window) = WindowId::new(row.get(0)?) {
            let known = extent(row.get(1)?, row.get(2)?);
            journal.windows.insert(window, known);
        }
    }
    Ok(journal)
}

fn extent(end: u64, last: i64) -> Extent {
    Extent {
        end,
        last: Some(Timestamp::from_millis(last)),
    }
}

/// The event's JSON object: `seq`, `at` and `kind` first, then its own fields.
fn line(seq: u64, at: Timestamp, event: &NewEvent) -> rusqlite::Result<String> {
    let mut bytes = Vec::new();
    let mut serializer = serde_json::Serializer::new(&mut bytes);
    let written = serializer.serialize_map(None).and_then(|mut map| {
        map.serialize_entry("seq", &seq)?;
        map.serialize_entry("at", &at)?;
        map.serialize_entry("kind", event.kind)?;
        for (key, value) in &event.fields {
            map.serialize_entry(key, value)?;
        }
        map.end()
    });
    let failed =
        |e: Box<dyn std::error::Error + Send + Sync>| rusqlite::Error::ToSqlConversionFailure(e);
    written.map_err(|e| failed(e.into()))?;
    String::from_utf8(bytes).map_err(|e| failed(e.into()))
}

/// Names this start of the machine. Where the kernel doesn't tell (never on Linux as we know it),
/// no binding outlives the daemon.
fn boot_id() -> String {
    match fs::read_to_string("/proc/sys/kernel/random/boot_id") {
        Ok(id) => id.trim().to_owned(),
        Err(_) => format!(
            "unknown, {} of process {}",
            Timestamp::now(),
            std::process::id()
        ),
    }
}
