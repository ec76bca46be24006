use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use super::content;
use super::sealed::seal;
use super::session::{INPUT, OWNER_LOCK, RECORD, RESERVE, SUBMISSION};
use super::{INCOMPLETE, Place, Record, Result, SessionDir, Spool, SpoolError};
use crate::model::{RunId, Submission};

/// The room kept for an outcome on a full disk, in bytes.
pub(super) const RESERVE_SIZE: u64 = 64 << 10;

impl Spool {
    /// Where the folder of a session is while it is not settled.
    pub fn active_path(&self, run_id: RunId) -> PathBuf {
        self.active.path().join(run_id.to_string())
    }

    /// Admits a session without attachments; see [`Spool::admit_with`].
    pub fn admit(
        &self,
        submission: &Submission,
        input: Option<&[u8]>,
        record: &Record,
    ) -> Result<SessionDir> {
        self.admit_with(submission, input, &[] as &[&[u8]], record)
    }

    /// Admits a session, durably: its whole folder is there or nothing. [`SpoolError::Exists`] if one of that name is or
    /// was here. `attachments` are the bytes of the submission's, in their order.
    pub fn admit_with(
        &self,
        submission: &Submission,
        input: Option<&[u8]>,
        attachments: &[impl AsRef<[u8]>],
        record: &Record,
    ) -> Result<SessionDir> {
        let run_id = submission.run_id();
        match self.locate(run_id)? {
            Place::Absent => {}
            Place::Damaged(why) => return Err(SpoolError::damaged(self.path(), why)),
            _ => return Err(SpoolError::Exists(run_id)),
        }
        let name = run_id.to_string();
        let number = self.admissions.fetch_add(1, Ordering::Relaxed);
        let incomplete = format!("{INCOMPLETE}{name}-{number}");
        let filled = self.fill(&incomplete, submission, input, attachments, record);
        let admitted = filled.and_then(|()| {
            if !self.active.rename_new(&incomplete, &self.active, &name)? {
                return Err(SpoolError::Exists(run_id));
            }
            Ok(())
        });
        if let Err(e) = admitted {
            // What cannot be cleared away now is at the next opening.
            let _ = self.active.remove_tree(OsStr::new(&incomplete));
            return Err(e);
        }
        if let Err(e) = self.active.sync() {
            // Not acknowledged, so it must not be found later.
            let _ = self.active.remove_tree(OsStr::new(&name));
            return Err(e);
        }
        self.open_session(&self.active, run_id)?
            .ok_or(SpoolError::Missing { run_id, place: "among the active ones" })
    }

    fn fill(
        &self,
        name: &str,
        submission: &Submission,
        input: Option<&[u8]>,
        attachments: &[impl AsRef<[u8]>],
        record: &Record,
    ) -> Result<()> {
        let dir = self.active.make_dir(name)?;
        let sealed = |file: &str, json: serde_json::Result<Vec<u8>>| {
            json.map_err(|e| SpoolError::malformed(dir.path().join(file), &e))
        };
        dir.create_with(SUBMISSION, &sealed(SUBMISSION, seal(submission))?)?;
        dir.create_with(RECORD, &sealed(RECORD, seal(record))?)?;
        if let Some(input) = input {
            dir.create_with(INPUT, input)?;
        }
        content::fill(&dir, submission, attachments)?;
        dir.create_with(OWNER_LOCK, b"")?;
        dir.create_reserve(RESERVE, RESERVE_SIZE)?;
        dir.sync()
    }
}
