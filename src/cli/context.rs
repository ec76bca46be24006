//! How the service is found.

use std::cell::OnceCell;
use std::path::PathBuf;
use std::time::Duration;

use super::failure::Failure;
use super::output::Output;
use super::{Global, start};
use crate::client::{Client, Connector, Error, Filter, location};
use crate::config::Config;
use crate::model::RunId;

/// The fewest characters by which a session is named.
const MIN_PREFIX: usize = 4;
/// How often a call whose reply was lost is made.
const ATTEMPTS: u32 = 3;
/// How long a service that went away is waited for.
const COMES_BACK_WITHIN: Duration = Duration::from_secs(60);
/// The longest pause between two attempts to connect.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What every command works with.
#[derive(Debug)]
pub struct Context {
    /// The arguments of every command.
    pub global: Global,
    /// Where results go.
    pub out: Output,
    socket: OnceCell<PathBuf>,
    connector: Connector,
}

impl Context {
    /// The context of a command line.
    pub fn new(global: Global) -> Context {
        let out = Output::new(global.json);
        let connector = Connector::telling(move |process| {
            let process = process.map(|pid| format!(" (process {pid})")).unwrap_or_default();
            out.note(&format!("waiting for the service{process}…"));
        });
        Context { out, global, socket: OnceCell::new(), connector }
    }

    /// The private socket: the one asked for, the configuration's, or the account's.
    ///
    /// # Errors
    /// The configuration that was asked for cannot be used, or nothing tells where the account's files are.
    pub fn socket(&self) -> Result<PathBuf, Failure> {
        if let Some(socket) = self.socket.get() {
            return Ok(socket.clone());
        }
        let socket = self.find_socket()?;
        Ok(self.socket.get_or_init(|| socket).clone())
    }

    fn find_socket(&self) -> Result<PathBuf, Failure> {
        if let Some(socket) = &self.global.socket {
            return std::path::absolute(socket).map_err(|error| Failure::io("--socket", error));
        }
        match Config::load_for_edit(self.global.config.as_deref()) {
            Ok(config) => Ok(config.socket),
            // A fault in the file must not keep the operator from the service that is running.
            Err(error) if self.global.config.is_none() => {
                self.out.note(&format!("{error} (going on with the default socket)"));
                location::socket_path().ok_or(error.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Connects to the service; without a way being asked for, to the private socket, or else to the user's bus.
    ///
    /// # Errors
    /// Nobody answers, or the wrong one.
    pub async fn connect_to_running(&self) -> Result<Client, Failure> {
        if self.global.bus {
            return Ok(self.connector.bus(None).await?);
        }
        let socket = self.socket()?;
        if self.global.socket.is_some() || self.global.config.is_some() {
            return Ok(self.connector.socket(&socket).await?);
        }
        Ok(self.connector.socket_or_bus(&socket).await?)
    }

    /// The same, after starting a daemon if nobody answers.
    ///
    /// # Errors
    /// None could be started either.
    pub async fn connect(&self) -> Result<Client, Failure> {
        match self.connect_to_running().await {
            // A daemon is started where its configuration says, not at a socket or bus that was asked for.
            Err(Failure::Client(Error::NoService { .. }))
                if !self.global.bus && self.global.socket.is_none() => {}
            other => return other,
        }
        let config = match &self.global.config {
            Some(config) => {
                Some(std::path::absolute(config).map_err(|error| Failure::io("--config", error))?)
            }
            None => None,
        };
        let socket = self.socket()?;
        let (client, log) = start::connect_or_start(&self.connector, &socket, config.as_deref()).await?;
        if let Some(log) = log {
            self.out.note(&format!(
                "no service was running: started one on {} (its log: {})",
                socket.display(),
                log.display()
            ));
        }
        Ok(client)
    }

    /// Connects again after the connection was lost. A service that is restarted is waited for, for a minute; none is
    /// started, since whoever stopped it may be about to start it.
    ///
    /// # Errors
    /// It does not come back, or something else than its absence keeps us from it.
    pub async fn reconnect(&self, lost: &Client) -> Result<Client, Failure> {
        self.out.note("the service went away; waiting for it to come back (sessions go on without it)");
        let deadline = tokio::time::Instant::now() + COMES_BACK_WITHIN;
        let mut pause = Duration::from_millis(20);
        loop {
            let error = match lost.reconnect().await {
                Ok(client) => return Ok(client),
                Err(error) if !error.is_lost() || tokio::time::Instant::now() >= deadline => error,
                Err(_) => {
                    // The socket is made anew by another process, perhaps in a directory that is not there yet: there
                    // is nothing to wait on but the next attempt.
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    continue;
                }
            };
            return Err(error.into());
        }
    }

    /// What `call` gives; where the connection is lost meanwhile, it is made again on a new one. Only for calls that
    /// change nothing when they are made twice.
    ///
    /// # Errors
    /// Those of the call, or the service does not come back.
    pub async fn insist<T>(
        &self,
        client: &mut Client,
        call: impl AsyncFn(&Client) -> Result<T, Error>,
    ) -> Result<T, Failure> {
        for _ in 1..ATTEMPTS {
            match call(client).await {
                Err(error) if error.is_lost() => *client = self.reconnect(client).await?,
                other => return Ok(other?),
            }
        }
        Ok(call(client).await?)
    }

    /// The session that `text` names: a run_id, or a prefix of one that no other session has.
    ///
    /// # Errors
    /// No session, or more than one, is named so.
    pub async fn session(&self, client: &Client, text: &str) -> Result<RunId, Failure> {
        if let Ok(run_id) = text.parse() {
            return Ok(run_id);
        }
        let prefix = text.to_ascii_lowercase();
        if prefix.len() < MIN_PREFIX || !prefix.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-') {
            return Err(Failure::Usage(format!(
                "{text:?} names no session: give its run_id, or the first {MIN_PREFIX} or more characters of it"
            )));
        }
        let found = self.with_prefix(client, &prefix).await?;
        match found.as_slice() {
            [one] => Ok(*one),
            [] => Err(Failure::Client(Error::Refused {
                name: "NotFound".to_owned(),
                text: format!(
                    "no session's run_id begins with {prefix}; `sessionctl list --all` shows them all"
                ),
            })),
            several => {
                let names: Vec<String> = several.iter().take(5).map(RunId::to_string).collect();
                Err(Failure::Usage(format!(
                    "{} sessions begin with {prefix}: {}; give more of the run_id",
                    several.len(),
                    names.join(", ")
                )))
            }
        }
    }

    async fn with_prefix(&self, client: &Client, prefix: &str) -> Result<Vec<RunId>, Failure> {
        let mut filter = Filter { limit: Some(1000), ..Filter::default() };
        let mut found = Vec::new();
        loop {
            let (sessions, next) = client.list(&filter).await?;
            for session in sessions.iter().filter(|session| session.text("run_id").starts_with(prefix)) {
                found.push(session.run_id()?);
            }
            if next.is_empty() {
                return Ok(found);
            }
            filter.cursor = Some(next);
        }
    }
}
