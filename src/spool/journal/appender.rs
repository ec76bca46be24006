use std::fs::File;
use std::path::PathBuf;

use super::{FILE, JournalError};
use crate::spool::private::{cut_file, sync_data, sync_file, write_at};

/// The writing end of a journal. There is one, by the session's lock.
///
/// `append` gives bytes to the kernel, `commit` makes all of them durable: one commit for as many records as there are.
/// Only what a commit covered may be shown. After the first failure nothing more is taken ([`JournalError::Failed`]).
#[derive(Debug)]
pub struct Appender {
    file: File,
    path: PathBuf,
    offset: u64,
    head: u64,
    failed: bool,
}

impl Appender {
    /// Continues a file whose first `head` bytes are durable whole lines and all that it holds.
    pub(super) fn new(file: File, path: PathBuf, head: u64) -> Appender {
        Appender { file, path, offset: head, head, failed: false }
    }

    /// Cuts off what stands after `head`, durably, and continues there.
    pub(super) fn cut(file: File, path: PathBuf, head: u64) -> Result<Appender, JournalError> {
        cut_file(&file, head, FILE).map_err(|e| JournalError::io("cut", &path, e))?;
        sync_file(&file, FILE).map_err(|e| JournalError::io("sync", &path, e))?;
        Ok(Appender::new(file, path, head))
    }

    /// Appends whole lines. They are not durable yet.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), JournalError> {
        self.usable()?;
        if let Err(e) = write_at(&self.file, bytes, self.offset, FILE) {
            self.failed = true;
            // What was not written whole must not stay. If cutting it off fails too, it is a torn tail: beyond the head, so
            // that no reader sees it, and cut off by the next repair.
            let _ = cut_file(&self.file, self.offset, FILE);
            return Err(JournalError::io("append to", &self.path, e));
        }
        self.offset += bytes.len() as u64;
        Ok(())
    }

    /// Makes everything appended durable, and gives the new head.
    pub fn commit(&mut self) -> Result<u64, JournalError> {
        self.usable()?;
        if self.head < self.offset {
            if let Err(e) = sync_data(&self.file, FILE) {
                self.failed = true;
                return Err(JournalError::io("sync", &self.path, e));
            }
            self.head = self.offset;
        }
        Ok(self.head)
    }

    /// The durable bytes: up to here readers may read.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// The bytes appended, durable or not.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    fn usable(&self) -> Result<(), JournalError> {
        match self.failed {
            true => Err(JournalError::Failed { path: self.path.clone() }),
            false => Ok(()),
        }
    }

    #[cfg(test)]
    pub(super) fn replace_file(&mut self, file: File) {
        self.file = file;
    }
}
