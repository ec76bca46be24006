//! Runs in SQLite: one file, for one host. Leases count by this machine's wall clock.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, TransactionBehavior, params};

use crate::store::{Denied, NewRun, Renewal, Run, Store, may_renew, phase_of};

const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS runs (
  place INTEGER PRIMARY KEY, run_id TEXT NOT NULL UNIQUE, application TEXT NOT NULL, host TEXT,
  task_id TEXT NOT NULL UNIQUE, lease_id TEXT, worker TEXT, operation TEXT NOT NULL, phase TEXT NOT NULL,
  lease_expires INTEGER, cancel_requested INTEGER NOT NULL DEFAULT 0, submission TEXT NOT NULL, outcome TEXT,
  deliveries INTEGER NOT NULL DEFAULT 0, reported TEXT);
";
const COLUMNS: &str = "run_id, application, host, task_id, lease_id, worker, operation, phase, lease_expires, \
                       cancel_requested, submission, outcome, deliveries, reported";

pub struct Sqlite {
    connection: Mutex<Connection>,
}

impl Sqlite {
    pub fn open(path: &str) -> rusqlite::Result<Sqlite> {
        let connection = Connection::open(path)?;
        connection.busy_timeout(Duration::from_secs(10))?;
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.pragma_update(None, "synchronous", "full")?;
        connection.execute_batch(SCHEMA)?;
        Ok(Sqlite { connection: Mutex::new(connection) })
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A change that is whole and durable when this returns, or did not happen.
    fn change<T>(&self, work: impl FnOnce(&Transaction) -> Result<T, Denied>) -> Result<T, Denied> {
        let mut connection = self.connection();
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let done = work(&transaction)?;
        transaction.commit()?;
        Ok(done)
    }
}

impl From<rusqlite::Error> for Denied {
    fn from(error: rusqlite::Error) -> Denied {
        Denied::Failed(error.to_string())
    }
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

fn after(seconds: u32) -> i64 {
    now() + i64::from(seconds) * 1_000_000
}

fn run_of(row: &Row<'_>) -> rusqlite::Result<Run> {
    let lease_expires: Option<i64> = row.get(8)?;
    Ok(Run {
        run_id: row.get(0)?,
        application: row.get(1)?,
        host: row.get(2)?,
        task_id: row.get(3)?,
        lease_id: row.get(4)?,
        worker: row.get(5)?,
        operation: row.get(6)?,
        phase: row.get(7)?,
        lease_expires,
        expired: lease_expires.is_some_and(|expires| expires <= now()),
        cancel_requested: row.get(9)?,
        submission: row.get(10)?,
        outcome: row.get(11)?,
        deliveries: row.get(12)?,
        reported: row.get(13)?,
    })
}

fn find(connection: &Connection, column: &str, value: &str) -> Result<Option<Run>, Denied> {
    let query = format!("SELECT {COLUMNS} FROM runs WHERE {column} = ?1");
    Ok(connection.query_row(&query, [value], run_of).optional()?)
}

fn known(connection: &Connection, column: &str, value: &str) -> Result<Run, Denied> {
    find(connection, column, value)?.ok_or(Denied::UnknownRun)
}

#[async_trait]
impl Store for Sqlite {
    async fn add(&self, run: &NewRun) -> Result<(), Denied> {
        let expires = run.lease_id.as_ref().map(|_| after(run.lease_seconds));
        self.connection().execute(
            "INSERT INTO runs (run_id, application, host, task_id, lease_id, worker, operation, phase, lease_expires, \
             submission) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 'pending', ?8, ?9)",
            params![
                run.run_id,
                run.application,
                run.host,
                run.task_id,
                run.lease_id,
                run.worker,
                run.operation,
                expires,
                run.submission
            ],
        )?;
        Ok(())
    }

    async fn run(&self, run_id: &str) -> Result<Option<Run>, Denied> {
        find(&self.connection(), "run_id", run_id)
    }

    async fn renew(
        &self,
        task_id: &str,
        lease_id: &str,
        worker: &str,
        seconds: u32,
    ) -> Result<Renewal, Denied> {
        self.change(|connection| {
            let run = known(connection, "task_id", task_id)?;
            may_renew(&run, lease_id, worker)?;
            let expires = after(seconds);
            connection.execute(
                "UPDATE runs SET lease_expires = ?2, phase = 'running' WHERE run_id = ?1",
                params![run.run_id, expires],
            )?;
            Ok(Renewal { expires, cancel_requested: run.cancel_requested })
        })
    }

    async fn cancel(&self, run_id: &str, lease_id: &str) -> Result<String, Denied> {
        self.change(|connection| {
            let run = known(connection, "run_id", run_id)?;
            if run.lease_id.as_deref() != Some(lease_id) {
                return Err(Denied::ForeignLease);
            }
            connection.execute("UPDATE runs SET cancel_requested = 1 WHERE run_id = ?1", [run_id])?;
            Ok(run.phase)
        })
    }

    async fn deliver(
        &self,
        run_id: &str,
        operation: &str,
        end: &str,
        outcome: &str,
    ) -> Result<String, Denied> {
        self.change(|connection| {
            let run = known(connection, "run_id", run_id)?;
            if run.operation != operation {
                return Err(Denied::ForeignLease);
            }
            // A run that was given up stays so; what became of it after all is kept beside it.
            let phase = if run.is_over() { run.phase } else { phase_of(end).to_owned() };
            connection.execute(
                "UPDATE runs SET phase = ?2, outcome = coalesce(outcome, ?3), deliveries = deliveries + 1 \
                 WHERE run_id = ?1",
                params![run_id, phase, outcome],
            )?;
            Ok(phase)
        })
    }

    async fn ask_to_cancel(&self, run_id: &str) -> Result<(), Denied> {
        self.connection().execute("UPDATE runs SET cancel_requested = 1 WHERE run_id = ?1", [run_id])?;
        Ok(())
    }

    async fn take_back(&self, run_id: &str) -> Result<(), Denied> {
        self.connection().execute("UPDATE runs SET lease_expires = 0 WHERE run_id = ?1", [run_id])?;
        Ok(())
    }

    async fn take(
        &self,
        application: &str,
        host: &str,
        worker: &str,
        seconds: u32,
    ) -> Result<Option<Run>, Denied> {
        self.change(|connection| {
            let lease = uuid::Uuid::new_v4().to_string();
            let query = format!(
                "UPDATE runs SET host = ?2, worker = ?3, lease_id = ?4, lease_expires = ?5, phase = 'running' \
                 WHERE place = (SELECT place FROM runs WHERE application = ?1 AND phase = 'pending' AND \
                 lease_id IS NULL ORDER BY place LIMIT 1) RETURNING {COLUMNS}"
            );
            let taken = params![application, host, worker, lease, after(seconds)];
            Ok(connection.query_row(&query, taken, run_of).optional()?)
        })
    }

    async fn held_by(&self, host: &str, worker: &str) -> Result<Vec<Run>, Denied> {
        let connection = self.connection();
        let query = format!(
            "SELECT {COLUMNS} FROM runs WHERE host = ?1 AND worker = ?2 AND phase IN ('pending', 'running')"
        );
        let mut statement = connection.prepare(&query)?;
        Ok(statement.query_map([host, worker], run_of)?.collect::<Result<_, _>>()?)
    }

    async fn fence(&self) -> Result<Vec<String>, Denied> {
        self.change(|connection| {
            let mut statement = connection.prepare(
                "UPDATE runs SET phase = 'failed', reported = 'its lease ran out on host ' || host || \
                 '; what it did there is not known' WHERE phase IN ('pending', 'running') AND lease_expires <= ?1 \
                 RETURNING run_id",
            )?;
            Ok(statement.query_map([now()], |row| row.get(0))?.collect::<Result<_, _>>()?)
        })
    }
}
