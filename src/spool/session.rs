use std::fs::File;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::error::SpoolError;
use super::inbox::{Inbox, InboxReader};
use super::journal::{self, Appender, Encoder, JournalError, JournalReader, Repaired};
use super::lock::{self, OwnerLock, Ownership};
use super::private::{Dir, TEMPORARY};
use super::record::{Claim, Record, digest};
use super::sealed::{seal, unseal};
use crate::model::{Outcome, RunId, Submission};

type Result<T, E = SpoolError> = std::result::Result<T, E>;

pub(crate) const SUBMISSION: &str = "submission.json";
pub(crate) const INPUT: &str = "input";
pub(crate) const RECORD: &str = "record.json";
pub(crate) const CLAIM: &str = "claim.json";
pub(crate) const OWNER_LOCK: &str = "owner.lock";
pub(crate) const OUTCOME: &str = "outcome.json";
pub(crate) const RESERVE: &str = "outcome.reserve";
pub(crate) const ACKNOWLEDGED: &str = "acknowledged.json";
pub(crate) const CONTROL: &str = "control.sock";

/// The largest JSON file that is read, in bytes. An outcome whose text would make it longer is written without it.
const FILE_MAX: u64 = 17 << 20;
/// The largest input that is read whole, in bytes: more than any configuration admits.
const INPUT_MAX: u64 = 1 << 30;

/// The folder of one session, open. Everything in it is reached through its descriptor, so that it stays this session
/// also while the folder is moved. Clones share the descriptor.
#[derive(Debug, Clone)]
pub struct SessionDir {
    dir: Dir,
    run_id: RunId,
}

impl SessionDir {
    /// Opens the folder at an absolute path; its name is the session's.
    pub fn open(path: &Path) -> Result<SessionDir> {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let run_id = name.parse().ok().filter(|id: &RunId| id.to_string() == name).ok_or_else(|| {
            SpoolError::refused(path, "is not named like a session (a lower-case UUID with hyphens)")
        })?;
        Ok(SessionDir { dir: Dir::open(path)?, run_id })
    }

    pub(crate) fn new(dir: Dir, run_id: RunId) -> SessionDir {
        SessionDir { dir, run_id }
    }

    /// The session's name.
    pub fn run_id(&self) -> RunId {
        self.run_id
    }

    /// Where the folder was when it was opened.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(super) fn dir(&self) -> &Dir {
        &self.dir
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(super) fn read_json<T: DeserializeOwned>(
        &self,
        name: &str,
        id: fn(&T) -> RunId,
    ) -> Result<Option<T>> {
        let Some(bytes) = self.dir.read(name, FILE_MAX)? else { return Ok(None) };
        let value: T = unseal(&bytes).ok_or_else(|| {
            SpoolError::damaged(self.file(name), "its checksum does not match what stands in it")
        })?;
        match id(&value) == self.run_id {
            true => Ok(Some(value)),
            false => Err(SpoolError::damaged(
                self.file(name),
                format!("it is of session {}, not of {}", id(&value), self.run_id),
            )),
        }
    }

    fn required<T>(&self, name: &str, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| SpoolError::damaged(self.file(name), "it is missing"))
    }

    pub(super) fn to_json<T: Serialize>(&self, name: &str, value: &T) -> Result<Vec<u8>> {
        seal(value).map_err(|e| SpoolError::malformed(self.file(name), &e))
    }

    /// What was submitted. A missing file is damage.
    pub fn submission(&self) -> Result<Submission> {
        let found = self.read_json(SUBMISSION, Submission::run_id)?;
        self.required(SUBMISSION, found)
    }

    /// What was submitted, if it is still exactly that, with its input, its attachments and its schema: what has changed
    /// since must never be run.
    pub fn submission_as_admitted(&self, admitted: &str) -> Result<Submission> {
        let submission = self.submission()?;
        let input = self.dir.read(INPUT, INPUT_MAX)?;
        if digest(&submission, input.as_deref()) != admitted {
            return Err(SpoolError::damaged(
                self.path(),
                "its submission or its input is not what was admitted; submit it again under a new run_id",
            ));
        }
        for attachment in &submission.attachments {
            self.attachment(attachment)?;
        }
        if let Some(schema) = &submission.output_schema {
            self.same_schema(schema)?;
        }
        Ok(submission)
    }

    /// The submitted input, open for reading; `None` where there was none.
    pub fn input(&self) -> Result<Option<File>> {
        self.dir.open_read(INPUT)
    }

    /// What the daemon knows of the session. A missing file is damage.
    pub fn record(&self) -> Result<Record> {
        let found = self.read_json(RECORD, |record: &Record| record.run_id)?;
        self.required(RECORD, found)
    }

    /// Replaces the record, durably. Only the daemon does that.
    pub fn write_record(&self, record: &Record) -> Result<()> {
        self.dir.replace(RECORD, &self.to_json(RECORD, record)?)
    }

    /// The claim; `None` if the session was never claimed.
    pub fn claim(&self) -> Result<Option<Claim>> {
        self.read_json(CLAIM, |claim: &Claim| claim.run_id)
    }

    /// Writes the claim, durably and once: [`SpoolError::AlreadyClaimed`] if there is one.
    pub fn write_claim(&self, claim: &Claim) -> Result<()> {
        match self.dir.publish(CLAIM, &self.to_json(CLAIM, claim)?)? {
            true => Ok(()),
            false => Err(SpoolError::AlreadyClaimed(self.run_id)),
        }
    }

    /// Takes a claim back, durably: only for a session that provably never started, which the free lock (`lock`)
    /// together with the missing journal proves.
    pub fn remove_claim(&self, lock: &OwnerLock) -> Result<()> {
        self.owned_by(lock)?;
        if self.has_journal()? {
            return Err(SpoolError::MayHaveRun(self.run_id));
        }
        self.dir.unlink(CLAIM)?;
        self.dir.sync()
    }

    /// Takes the session's lock if it is free.
    pub fn lock_owner(&self) -> Result<Ownership> {
        let file = self.lock_file()?;
        match lock::try_lock(&file, &self.dir, OWNER_LOCK)? {
            true => OwnerLock::new(file, &self.dir, OWNER_LOCK).map(Ownership::Taken),
            false => Ok(Ownership::Held),
        }
    }

    /// The lock that a process inherited as an open file: it must be this session's, and locked through that file.
    pub fn adopt_lock(&self, file: File) -> Result<OwnerLock> {
        let ours = lock::identity(&self.lock_file()?, &self.dir, OWNER_LOCK)?;
        let lock = OwnerLock::new(file, &self.dir, OWNER_LOCK)?;
        // Locking again what is locked through the same open file changes nothing.
        if !lock.is(ours) || !lock::try_lock(lock.as_file(), &self.dir, OWNER_LOCK)? {
            return Err(SpoolError::ForeignLock(self.run_id));
        }
        Ok(lock)
    }

    // A missing file must never be made again: somebody may hold the lock on the one that was removed.
    fn lock_file(&self) -> Result<File> {
        let found = self.dir.open_write(OWNER_LOCK)?;
        self.required(OWNER_LOCK, found)
    }

    fn owned_by(&self, lock: &OwnerLock) -> Result<()> {
        match lock.is(lock::identity(&self.lock_file()?, &self.dir, OWNER_LOCK)?) {
            true => Ok(()),
            false => Err(SpoolError::ForeignLock(self.run_id)),
        }
    }

    /// The outcome; `None` while there is none.
    pub fn outcome(&self) -> Result<Option<Outcome>> {
        self.read_json(OUTCOME, |outcome: &Outcome| outcome.run_id)
    }

    /// Writes the outcome, durably and once: [`SpoolError::AlreadyEnded`] if there is one. It goes into the reserve
    /// that was allocated at admission. If it is longer than that and the disk is full, its text is left out and marked
    /// as cut, and so is its structured output; the journal has both.
    pub fn write_outcome(&self, outcome: &Outcome) -> Result<()> {
        let bytes = self.to_json(OUTCOME, outcome)?;
        let written = match bytes.len() as u64 <= FILE_MAX {
            true => self.dir.publish_reserved(RESERVE, OUTCOME, &bytes),
            false => self.write_short_outcome(outcome),
        };
        let written = match written {
            Err(e) if e.is_no_space() && outcome.text.is_some() => self.write_short_outcome(outcome),
            other => other,
        };
        match written? {
            true => Ok(()),
            false => Err(SpoolError::AlreadyEnded(self.run_id)),
        }
    }

    fn write_short_outcome(&self, outcome: &Outcome) -> Result<bool> {
        let short = Outcome { text: None, text_cut: true, value: Value::Null, ..outcome.clone() };
        self.dir.publish_reserved(RESERVE, OUTCOME, &self.to_json(OUTCOME, &short)?)
    }

    /// Whether there is a journal: from its creation on, the program may have run.
    pub fn has_journal(&self) -> Result<bool> {
        self.dir.has(journal::FILE)
    }

    /// Creates the journal with its header, durably. Only the holder of the lock does that, once:
    /// [`JournalError::Exists`] if there is one. `epoch` is the claim's ([`journal::new_epoch`] makes one).
    pub fn create_journal(&self, epoch: &str) -> Result<(Encoder, Appender), JournalError> {
        journal::create(&self.dir, self.run_id, epoch)
    }

    /// Opens the journal for reading; `None` if there is none.
    pub fn journal(&self) -> Result<Option<JournalReader>, JournalError> {
        journal::open(&self.dir, self.run_id, || Ok(self.claim()?.map(|claim| claim.epoch)))
    }

    /// Verifies the whole journal, cuts off and keeps aside a torn tail, says so in a record, and gives what is needed
    /// to go on writing. `None` if there is no journal. Nobody else may write, which `lock` proves.
    pub fn repair_journal(&self, lock: &OwnerLock) -> Result<Option<Repaired>, JournalError> {
        self.owned_by(lock)?;
        journal::repair(&self.dir, self.run_id, || Ok(self.claim()?.map(|claim| claim.epoch)))
    }

    /// The inbox, for the daemon: the one writer of it.
    pub fn inbox(&self) -> Result<Inbox> {
        // From its journal on, an executor may have read in it.
        Inbox::open(&self.dir, !self.has_journal()?)
    }

    /// The inbox, for the executor, from its beginning.
    pub fn inbox_reader(&self) -> InboxReader {
        InboxReader::new(&self.dir)
    }

    /// Where the executor listens, as a path that is short enough for a socket's address (108 bytes, unix(7)) however
    /// deep the spool lies. It holds as long as this value or a clone of it, in this process.
    pub fn control_socket(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{CONTROL}", self.dir.raw_fd()))
    }

    /// Removes what only a session that is not settled needs: leftovers of crashed writes, the socket, the reserve.
    pub(crate) fn tidy(&self) -> Result<()> {
        for name in self.dir.names()? {
            if let Some(name) = name.to_str()
                && (name.starts_with(TEMPORARY) || name == CONTROL || name == RESERVE)
            {
                self.dir.unlink(name)?;
            }
        }
        Ok(())
    }
}
