//! Long commands: each runs aside, answers at once if it is quick, and as a job otherwise.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use serde_json::{Value, json};

use crate::model::{JobId, NewEvent, Refusal, Rule, Timestamp, WindowId};
use crate::store::{JobRow, JobState, Transaction};

use super::Control;
use super::reply::{Failure, Reply, refusal_from, to_json};

/// What finishes within this time is answered as if it had been no job.
const PROMPT: Duration = Duration::from_millis(300);

/// How long `wait` and `cancel` look on, at most: a write answers within a second.
const PATIENCE: Duration = Duration::from_millis(700);

/// What a command came to.
type Outcome = Result<Reply, Refusal>;

/// One long command.
#[derive(Debug)]
pub struct Job {
    command: String,
    window: Option<WindowId>,
    started: Timestamp,
    cancelled: AtomicBool,
    progress: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Progress {
    /// Given when the command turned out not to be quick.
    id: Option<JobId>,
    /// JSON lines.
    log: String,
    /// The text said last.
    summary: String,
    outcome: Option<Outcome>,
    /// Of the last line of the log.
    changed: Option<Timestamp>,
}

impl Job {
    fn new(command: &str, window: Option<WindowId>) -> Self {
        Self {
            command: command.to_owned(),
            window,
            started: Timestamp::now(),
            cancelled: AtomicBool::new(false),
            progress: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// A job of an earlier life of the daemon.
    fn remembered(row: &JobRow) -> Self {
        let job = Self {
            started: row.started,
            ..Self::new(&row.command, None)
        };
        *job.progress.lock() = Progress {
            id: Some(row.id),
            log: row.log.clone(),
            summary: String::new(),
            outcome: match &row.result {
                None => None,
                Some(result) if result["ok"] == true => Some(Ok(Reply::ok().with_all(result))),
                Some(result) => Some(Err(refusal_from(&result["error"]))),
            },
            changed: row.ended,
        };
        job
    }

    /// The window that it works for; none for the mount's owner.
    pub fn window(&self) -> Option<WindowId> {
        self.window
    }

    /// Whether somebody asked it to stop.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Tells those who wait how far it is.
    pub fn say(&self, text: impl Into<String>) {
        let text = text.into();
        let now = Timestamp::now();
        let mut progress = self.progress.lock();
        let line = json!({"at": now, "stream": "progress", "text": text});
        progress.log.push_str(&format!("{line}\n"));
        progress.summary = text;
        progress.changed = Some(now);
    }

    /// The same, unless it was said last.
    pub fn say_once(&self, text: String) {
        if self.progress.lock().summary != text {
            self.say(text);
        }
    }

    /// What it came to, after at most `patience`.
    fn wait(&self, patience: Duration) -> Option<Outcome> {
        let until = Instant::now() + patience;
        let mut progress = self.progress.lock();
        while progress.outcome.is_none() {
            if self.changed.wait_until(&mut progress, until).timed_out() {
                break;
            }
        }
        progress.outcome.clone()
    }

    fn state(progress: &Progress) -> JobState {
        match progress.outcome {
            None => JobState::Running,
            Some(Ok(_)) => JobState::Done,
            Some(Err(_)) => JobState::Failed,
        }
    }

    fn row(&self, id: JobId) -> JobRow {
        let progress = self.progress.lock();
        let state = Self::state(&progress);
        JobRow {
            id,
            command: self.command.clone(),
            state,
            result: progress.outcome.as_ref().map(to_value),
            log: progress.log.clone(),
            started: self.started,
            ended: progress.changed.filter(|_| state != JobState::Running),
        }
    }

    /// The job as `show` and `list` have it.
    pub fn item(&self) -> Value {
        let progress = self.progress.lock();
        let state = Self::state(&progress);
        json!({
            "job": progress.id,
            "command": self.command,
            "window": self.window,
            "state": state.as_str(),
            "summary": progress.summary,
            "started_at": self.started,
            "ended_at": progress.changed.filter(|_| state != JobState::Running),
            "result": progress.outcome.as_ref().map(to_value),
        })
    }

    /// Whether it is in this state.
    pub fn is(&self, state: JobState) -> bool {
        Self::state(&self.progress.lock()) == state
    }

    fn log(&self) -> (Vec<u8>, Timestamp) {
        let progress = self.progress.lock();
        let changed = progress.changed.unwrap_or(self.started);
        (progress.log.clone().into_bytes(), changed)
    }
}

fn to_value(outcome: &Outcome) -> Value {
    match outcome {
        Ok(reply) => reply.to_value(),
        Err(refusal) => refusal.to_json(),
    }
}

/// Every job that was not quick, of all time.
#[derive(Debug, Default)]
pub struct Jobs {
    all: Mutex<BTreeMap<JobId, Arc<Job>>>,
}

impl Jobs {
    /// The jobs of the registry, and what is left to be written about them: those that ran when
    /// the daemon ended have failed.
    pub fn remember(rows: Vec<JobRow>) -> (Self, Transaction) {
        let mut unfinished = Transaction::default();
        let mut all = BTreeMap::new();
        for mut row in rows {
            if row.state == JobState::Running {
                let refusal = Refusal::new(
                    Rule::Internal,
                    format!("the daemon ended while {} ran ({})", row.id, row.command),
                    "Look at what it left with `list workspaces`, then give the command again.",
                );
                row.state = JobState::Failed;
                row.ended = Some(Timestamp::now());
                row.result = Some(refusal.to_json());
                unfinished.events.push(finished(row.id, &row, None));
                row.log.push_str(&last_line(&row));
                unfinished.jobs.push(row.clone());
            }
            all.insert(row.id, Arc::new(Job::remembered(&row)));
        }
        let all = Mutex::new(all);
        (Self { all }, unfinished)
    }

    /// # Errors
    /// [`Rule::JobNotFound`].
    pub fn find(&self, id: JobId) -> Result<Arc<Job>, Refusal> {
        self.all.lock().get(&id).cloned().ok_or_else(|| {
            Refusal::new(
                Rule::JobNotFound,
                format!("there is no job {id}"),
                "See `list jobs` for the jobs of this mount.",
            )
        })
    }

    /// Every job, by number.
    pub fn all(&self) -> Vec<Arc<Job>> {
        self.all.lock().values().cloned().collect()
    }

    /// Every job's name, by number.
    pub fn ids(&self) -> Vec<JobId> {
        self.all.lock().keys().copied().collect()
    }

    /// Asks every running job to stop.
    pub fn cancel_all(&self) {
        for job in self.all.lock().values() {
            job.cancelled.store(true, Ordering::Relaxed);
        }
    }

    fn next_id(&self) -> Result<JobId, Refusal> {
        let last = self
            .all
            .lock()
            .keys()
            .next_back()
            .map_or(0, |id| id.number());
        JobId::new(last + 1).ok_or_else(|| {
            Refusal::new(
                Rule::QuotaExceeded,
                "no number is left for another job",
                "Start a new store.",
            )
        })
    }
}

fn finished(id: JobId, row: &JobRow, window: Option<WindowId>) -> NewEvent {
    let rule = row
        .result
        .as_ref()
        .and_then(|r| r["error"]["rule"].as_str());
    NewEvent::new("job.finished", window)
        .with("job", id.to_string())
        .with("command", row.command.clone())
        .with("state", row.state.as_str())
        .with("rule", rule)
}

fn last_line(row: &JobRow) -> String {
    let state = to_json(row.state.as_str());
    format!(
        "{{\"state\":{state},\"result\":{}}}\n",
        to_json(&row.result)
    )
}

impl Control {
    /// Runs `work` aside and answers what it came to, if that is within a moment; otherwise it
    /// becomes a job. `window` is the one that it works for.
    pub(super) fn as_job(
        &self,
        command: &str,
        window: Option<WindowId>,
        work: impl FnOnce(&Control, &Job) -> Outcome + Send + 'static,
    ) -> Outcome {
        let control = self.shared()?;
        let job = Arc::new(Job::new(command, window));
        let working = Arc::clone(&job);
        self.runtime.spawn_blocking(move || {
            let outcome = work(&control, &working);
            control.end_job(&working, outcome);
        });
        match job.wait(PROMPT) {
            Some(outcome) => outcome,
            None => self.promote(&job),
        }
    }

    /// Gives a command that takes its time a number and a row.
    fn promote(&self, job: &Arc<Job>) -> Outcome {
        // `end_job` takes the same lock first, so a job ends either before or after this.
        let deciding = self.decide();
        if let Some(outcome) = job.wait(Duration::ZERO) {
            return outcome;
        }
        let id = self.jobs.next_id()?;
        let event = NewEvent::new("job.started", job.window)
            .with("job", id.to_string())
            .with("command", job.command.clone())
            .with("window", job.window.map(|window| window.to_string()));
        let started = deciding.commit(Transaction {
            jobs: vec![job.row(id)],
            events: vec![event],
            ..Transaction::default()
        });
        if let Err(refusal) = started {
            job.cancelled.store(true, Ordering::Relaxed);
            return Err(refusal);
        }
        job.progress.lock().id = Some(id);
        self.jobs.all.lock().insert(id, Arc::clone(job));
        drop(deciding);
        self.tree(|tree| tree.windows_changed());
        Ok(Reply::ok()
            .with("job", id)
            .with("state", JobState::Running.as_str()))
    }

    fn end_job(&self, job: &Job, outcome: Outcome) {
        let deciding = self.decide();
        let id = job.progress.lock().id;
        if let Some(id) = id {
            let mut row = job.row(id);
            row.ended = Some(Timestamp::now());
            row.result = Some(to_value(&outcome));
            row.state = match outcome {
                Ok(_) => JobState::Done,
                Err(_) => JobState::Failed,
            };
            let line = last_line(&row);
            row.log.push_str(&line);
            job.progress.lock().log.push_str(&line);
            let ended = deciding.commit(Transaction {
                events: vec![finished(id, &row, job.window)],
                jobs: vec![row],
                ..Transaction::default()
            });
            if let Err(refusal) = ended {
                tracing::error!(job = %id, "its end is not in the registry: {refusal}");
            }
        }
        let mut progress = job.progress.lock();
        progress.changed = Some(Timestamp::now());
        progress.outcome = Some(outcome);
        job.changed.notify_all();
    }

    /// `wait`: the state so far, or what the command itself would have answered.
    pub(super) fn wait_job(&self, id: JobId, timeout: Option<Duration>) -> Result<Reply, Failure> {
        let job = self.jobs.find(id)?;
        match job.wait(timeout.unwrap_or(PATIENCE).min(PATIENCE)) {
            Some(Err(refusal)) => Err(Failure {
                refusal,
                job: Some(id),
            }),
            Some(Ok(reply)) => Ok(reply
                .with("job", id)
                .with("state", "done")
                .with("summary", job.summary())),
            None => Ok(Self::state_of(&job, id)),
        }
    }

    /// `cancel`: asks a job to stop, and answers its state.
    pub(super) fn cancel_job(
        &self,
        id: JobId,
        timeout: Option<Duration>,
    ) -> Result<Reply, Refusal> {
        let job = self.jobs.find(id)?;
        job.cancelled.store(true, Ordering::Relaxed);
        job.wait(timeout.unwrap_or(PATIENCE).min(PATIENCE));
        Ok(Self::state_of(&job, id))
    }

    fn state_of(job: &Job, id: JobId) -> Reply {
        let state = Job::state(&job.progress.lock());
        Reply::ok()
            .with("job", id)
            .with("state", state.as_str())
            .with("summary", job.summary())
    }

    /// The content of `jobs/<id>`, and when it grew last.
    pub fn job_log(&self, id: JobId) -> Option<(Vec<u8>, Timestamp)> {
        self.jobs.find(id).ok().map(|job| job.log())
    }

    /// Every job, by number.
    pub fn jobs(&self) -> Vec<JobId> {
        self.jobs.ids()
    }
}

impl Job {
    fn summary(&self) -> String {
        self.progress.lock().summary.clone()
    }
}
