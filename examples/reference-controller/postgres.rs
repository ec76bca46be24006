//! Runs in PostgreSQL, for several hosts. Leases count by the database's clock alone, so that the hosts' clocks do not matter.
//!
//! A connection that is lost is made again by the next call. What was asked for then failed, and is asked again by whoever
//! needs it: every change here may be repeated.

use async_trait::async_trait;
use tokio::sync::{Mutex, MutexGuard};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, NoTls, Row};

use crate::store::{Denied, NewRun, Renewal, Run, Store, may_renew, phase_of};

/// Two that start at once must not both make the table.
const SCHEMA: &str = "
BEGIN; SELECT pg_advisory_xact_lock(7304221);
CREATE TABLE IF NOT EXISTS runs (
  place bigserial PRIMARY KEY, run_id text NOT NULL UNIQUE, application text NOT NULL, host text,
  task_id text NOT NULL UNIQUE, lease_id text, worker text, operation text NOT NULL, phase text NOT NULL,
  lease_expires timestamptz, cancel_requested boolean NOT NULL DEFAULT false, submission text NOT NULL, outcome text,
  deliveries bigint NOT NULL DEFAULT 0, reported text);
COMMIT";
const COLUMNS: &str = "run_id, application, host, task_id, lease_id, worker, operation, phase, \
    (extract(epoch FROM lease_expires) * 1000000)::bigint, coalesce(lease_expires <= clock_timestamp(), false), \
    cancel_requested, submission, outcome, deliveries, reported";

pub struct Postgres {
    connection: String,
    client: Mutex<Client>,
}

impl Postgres {
    pub async fn open(connection: &str) -> Result<Postgres, tokio_postgres::Error> {
        let client = connect(connection).await?;
        client.batch_execute(SCHEMA).await?;
        Ok(Postgres { connection: connection.to_owned(), client: Mutex::new(client) })
    }

    async fn client(&self) -> Result<MutexGuard<'_, Client>, Denied> {
        let mut client = self.client.lock().await;
        if client.is_closed() {
            *client = connect(&self.connection).await?;
        }
        Ok(client)
    }

    /// The first row of an answer.
    async fn row(&self, query: &str, values: &[&(dyn ToSql + Sync)]) -> Result<Option<Row>, Denied> {
        Ok(self.client().await?.query_opt(query, values).await?)
    }

    async fn rows(&self, query: &str, values: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Denied> {
        Ok(self.client().await?.query(query, values).await?)
    }

    async fn find(&self, column: &str, value: &str) -> Result<Option<Run>, Denied> {
        let row = self.row(&format!("SELECT {COLUMNS} FROM runs WHERE {column} = $1"), &[&value]).await?;
        row.map(|row| run_of(&row)).transpose()
    }

    async fn known(&self, column: &str, value: &str) -> Result<Run, Denied> {
        self.find(column, value).await?.ok_or(Denied::UnknownRun)
    }
}

async fn connect(connection: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, wire) = tokio_postgres::connect(connection, NoTls).await?;
    // It ends with the client, or shows in it.
    tokio::spawn(wire);
    Ok(client)
}

impl From<tokio_postgres::Error> for Denied {
    fn from(error: tokio_postgres::Error) -> Denied {
        let said = error.as_db_error().map(|error| error.message().to_owned());
        Denied::Failed(said.unwrap_or_else(|| error.to_string()))
    }
}

fn run_of(row: &Row) -> Result<Run, Denied> {
    Ok(Run {
        run_id: row.try_get(0)?,
        application: row.try_get(1)?,
        host: row.try_get(2)?,
        task_id: row.try_get(3)?,
        lease_id: row.try_get(4)?,
        worker: row.try_get(5)?,
        operation: row.try_get(6)?,
        phase: row.try_get(7)?,
        lease_expires: row.try_get(8)?,
        expired: row.try_get(9)?,
        cancel_requested: row.try_get(10)?,
        submission: row.try_get(11)?,
        outcome: row.try_get(12)?,
        deliveries: row.try_get(13)?,
        reported: row.try_get(14)?,
    })
}

#[async_trait]
impl Store for Postgres {
    async fn add(&self, run: &NewRun) -> Result<(), Denied> {
        let NewRun { run_id, application, task_id, operation, submission, host, lease_id, worker, .. } = run;
        let seconds = run.lease_id.as_ref().map(|_| f64::from(run.lease_seconds));
        self.rows(
            "INSERT INTO runs (run_id, application, host, task_id, lease_id, worker, operation, phase, lease_expires, \
             submission) VALUES ($1, $2, $3, $4, $5, $6, $7, 'pending', clock_timestamp() + \
             make_interval(secs => $8), $9)",
            &[run_id, application, host, task_id, lease_id, worker, operation, &seconds, submission],
        )
        .await?;
        Ok(())
    }

    async fn run(&self, run_id: &str) -> Result<Option<Run>, Denied> {
        self.find("run_id", run_id).await
    }

    async fn renew(
        &self,
        task_id: &str,
        lease_id: &str,
        worker: &str,
        seconds: u32,
    ) -> Result<Renewal, Denied> {
        // One statement decides and changes: whoever gives the run up meanwhile comes before it or after it.
        let renewed = self
            .row(
                "UPDATE runs SET phase = 'running', lease_expires = clock_timestamp() + make_interval(secs => $4) \
                 WHERE task_id = $1 AND lease_id = $2 AND worker = $3 AND phase IN ('pending', 'running') \
                 AND lease_expires > clock_timestamp() \
                 RETURNING (extract(epoch FROM lease_expires) * 1000000)::bigint, cancel_requested",
                &[&task_id, &lease_id, &worker, &f64::from(seconds)],
            )
            .await?;
        match renewed {
            Some(row) => Ok(Renewal { expires: row.try_get(0)?, cancel_requested: row.try_get(1)? }),
            None => {
                may_renew(&self.known("task_id", task_id).await?, lease_id, worker)?;
                Err(Denied::Failed("it changed meanwhile; ask again".into()))
            }
        }
    }

    async fn cancel(&self, run_id: &str, lease_id: &str) -> Result<String, Denied> {
        let told = self
            .row(
                "UPDATE runs SET cancel_requested = true WHERE run_id = $1 AND lease_id = $2 RETURNING phase",
                &[&run_id, &lease_id],
            )
            .await?;
        match told {
            Some(row) => Ok(row.try_get(0)?),
            None => self.known("run_id", run_id).await.and(Err(Denied::ForeignLease)),
        }
    }

    async fn deliver(
        &self,
        run_id: &str,
        operation: &str,
        end: &str,
        outcome: &str,
    ) -> Result<String, Denied> {
        // A run that was given up stays so; what became of it after all is kept beside it.
        let delivered = self
            .row(
                "UPDATE runs SET phase = CASE WHEN phase IN ('pending', 'running') THEN $3 ELSE phase END, \
                 outcome = coalesce(outcome, $4), deliveries = deliveries + 1 \
                 WHERE run_id = $1 AND operation = $2 RETURNING phase",
                &[&run_id, &operation, &phase_of(end), &outcome],
            )
            .await?;
        match delivered {
            Some(row) => Ok(row.try_get(0)?),
            None => self.known("run_id", run_id).await.and(Err(Denied::ForeignLease)),
        }
    }

    async fn ask_to_cancel(&self, run_id: &str) -> Result<(), Denied> {
        self.rows("UPDATE runs SET cancel_requested = true WHERE run_id = $1", &[&run_id]).await?;
        Ok(())
    }

    async fn take_back(&self, run_id: &str) -> Result<(), Denied> {
        self.rows("UPDATE runs SET lease_expires = clock_timestamp() WHERE run_id = $1", &[&run_id]).await?;
        Ok(())
    }

    async fn take(
        &self,
        application: &str,
        host: &str,
        worker: &str,
        seconds: u32,
    ) -> Result<Option<Run>, Denied> {
        let lease = uuid::Uuid::new_v4().to_string();
        let query = format!(
            "UPDATE runs SET host = $2, worker = $3, lease_id = $4, phase = 'running', \
             lease_expires = clock_timestamp() + make_interval(secs => $5) \
             WHERE place = (SELECT place FROM runs WHERE application = $1 AND phase = 'pending' AND lease_id IS NULL \
             ORDER BY place LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING {COLUMNS}"
        );
        let row = self.row(&query, &[&application, &host, &worker, &lease, &f64::from(seconds)]).await?;
        row.map(|row| run_of(&row)).transpose()
    }

    async fn held_by(&self, host: &str, worker: &str) -> Result<Vec<Run>, Denied> {
        let query = format!(
            "SELECT {COLUMNS} FROM runs WHERE host = $1 AND worker = $2 AND phase IN ('pending', 'running')"
        );
        self.rows(&query, &[&host, &worker]).await?.iter().map(run_of).collect()
    }

    async fn fence(&self) -> Result<Vec<String>, Denied> {
        let rows = self
            .rows(
                "UPDATE runs SET phase = 'failed', reported = 'its lease ran out on host ' || host || \
                 '; what it did there is not known' \
                 WHERE phase IN ('pending', 'running') AND lease_expires <= clock_timestamp() RETURNING run_id",
                &[],
            )
            .await?;
        rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }
}
