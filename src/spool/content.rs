//! The files that go along with a submission: its attachments, and its schema as a file that programs can open.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::private::Dir;
use super::record::hex;
use super::{Result, SessionDir, SpoolError};
use crate::model::{Attachment, Submission};

/// The folder of the attachments in a session's.
pub(super) const ATTACHMENTS: &str = "attachments";
/// The schema of the answer.
pub(super) const OUTPUT_SCHEMA: &str = "output-schema.json";
/// The largest schema that is read, in bytes: more than any configuration admits.
const SCHEMA_MAX: u64 = 16 << 20;

/// The file of an attachment of the session in `folder`.
pub fn attachment_path(folder: &Path, attachment: &Attachment) -> PathBuf {
    folder.join(ATTACHMENTS).join(attachment.file_name())
}

/// The file of the schema of the session in `folder`, whether there is one or not.
pub fn output_schema_path(folder: &Path) -> PathBuf {
    folder.join(OUTPUT_SCHEMA)
}

/// The SHA-256 of bytes, as lower-case hex.
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Writes the files of a submission into its folder, synced, each content once. `attachments` are the bytes of the
/// submission's, in their order.
pub(super) fn fill(dir: &Dir, submission: &Submission, attachments: &[impl AsRef<[u8]>]) -> Result<()> {
    if submission.attachments.len() != attachments.len() {
        return Err(SpoolError::refused(dir.path(), "does not get the bytes of every attachment"));
    }
    if !attachments.is_empty() {
        let folder = dir.make_dir(ATTACHMENTS)?;
        for (attachment, bytes) in submission.attachments.iter().zip(attachments) {
            let name = attachment.file_name();
            if !folder.has(&name)? {
                folder.create_with(&name, bytes.as_ref())?;
            }
        }
        folder.sync()?;
    }
    if let Some(schema) = &submission.output_schema {
        dir.create_with(OUTPUT_SCHEMA, schema.as_bytes())?;
    }
    Ok(())
}

impl SessionDir {
    /// The absolute file of an attachment.
    pub fn attachment_path(&self, attachment: &Attachment) -> PathBuf {
        attachment_path(self.path(), attachment)
    }

    /// The bytes of an attachment, which are still those that were submitted. Anything else is damage.
    pub fn attachment(&self, attachment: &Attachment) -> Result<Vec<u8>> {
        let damaged = |why: &str| SpoolError::damaged(self.attachment_path(attachment), why);
        let folder = self.dir().dir(ATTACHMENTS)?.ok_or_else(|| damaged("it is missing"))?;
        let bytes =
            folder.read(&attachment.file_name(), attachment.size)?.ok_or_else(|| damaged("it is missing"))?;
        match bytes.len() as u64 == attachment.size && sha256(&bytes) == attachment.sha256 {
            true => Ok(bytes),
            false => Err(damaged("it is not what was admitted; submit it again under a new run_id")),
        }
    }

    /// The schema that was submitted; `None` where there was none. Its file is what programs open, and may be harmed by
    /// them: this is what the sealed submission says.
    ///
    /// # Errors
    /// The submission cannot be read.
    pub fn admitted_schema(&self) -> Result<Option<String>> {
        Ok(self.submission()?.output_schema)
    }

    /// The schema in its file; `None` where there is none.
    pub fn output_schema(&self) -> Result<Option<String>> {
        let Some(bytes) = self.dir().read(OUTPUT_SCHEMA, SCHEMA_MAX)? else { return Ok(None) };
        let text = String::from_utf8(bytes);
        text.map(Some).map_err(|_| SpoolError::damaged(output_schema_path(self.path()), "it is not UTF-8"))
    }

    pub(super) fn same_schema(&self, schema: &str) -> Result<()> {
        let damaged = |why: &str| Err(SpoolError::damaged(output_schema_path(self.path()), why));
        match self.output_schema()? {
            Some(found) if found == schema => Ok(()),
            Some(_) => damaged("it is not what was admitted; submit it again under a new run_id"),
            None => damaged("it is missing"),
        }
    }
}
