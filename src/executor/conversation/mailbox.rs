//! Reading the inbox, off the thread that drains the program.

use tokio::task::JoinHandle;

use crate::model::InboxEntry;
use crate::spool::{InboxReader, SpoolError};

type News = Result<Vec<Option<InboxEntry>>, SpoolError>;

/// See the module.
#[derive(Debug)]
pub struct Mailbox {
    reader: Option<InboxReader>,
    reading: Option<JoinHandle<(InboxReader, News)>>,
    /// It has grown since the reading began.
    again: bool,
}

impl Mailbox {
    /// From its beginning; what is there already is read first.
    pub fn new(reader: InboxReader) -> Mailbox {
        Mailbox { reader: Some(reader), reading: None, again: true }
    }

    /// There may be more: it is read on.
    pub fn look(&mut self) {
        self.again = true;
    }

    /// Nothing is being read or about to be.
    pub fn is_quiet(&self) -> bool {
        self.reading.is_none() && !self.again
    }

    /// The next entries; for ever while nobody said that there may be any. Safe to drop at any await.
    pub async fn next(&mut self) -> News {
        if self.reading.is_none() {
            let Some(mut reader) = self.reader.take_if(|_| self.again) else {
                return std::future::pending().await;
            };
            self.again = false;
            self.reading = Some(tokio::task::spawn_blocking(move || {
                let news = reader.read_on();
                (reader, news)
            }));
        }
        let Some(reading) = &mut self.reading else { return std::future::pending().await };
        let done = reading.await;
        self.reading = None;
        match done {
            Ok((reader, news)) => {
                self.reader = Some(reader);
                news
            }
            // The runtime is going down.
            Err(_) => Ok(Vec::new()),
        }
    }

    /// Everything that is there now and was not read yet.
    pub async fn rest(&mut self) -> News {
        let mut all = Vec::new();
        if self.reading.is_some() {
            all = self.next().await?;
        }
        self.look();
        if self.reader.is_some() {
            all.extend(self.next().await?);
        }
        Ok(all)
    }
}
