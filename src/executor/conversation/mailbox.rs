//! Reading the inbox, off the thread that drains the program.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::model::InboxEntry;
use crate::spool::{InboxReader, SpoolError};

/// Between two looks at an inbox that could not be read.
const PAUSE: Duration = Duration::from_secs(1);

type News = Result<Vec<Option<InboxEntry>>, SpoolError>;

/// See the module.
#[derive(Debug)]
pub struct Mailbox {
    reader: Option<InboxReader>,
    reading: Option<JoinHandle<(InboxReader, News)>>,
    /// It has grown since the reading began.
    again: bool,
    /// It could not be read; that may have passed then.
    retry: Option<Instant>,
}

impl Mailbox {
    /// From its beginning; what is there already is read first.
    pub fn new(reader: InboxReader) -> Mailbox {
        Mailbox { reader: Some(reader), reading: None, again: true, retry: None }
    }

    /// There may be more: it is read on.
    pub fn look(&mut self) {
        self.again = true;
    }

    /// Nothing is being read or about to be.
    pub fn is_quiet(&self) -> bool {
        self.reading.is_none() && !self.again
    }

    /// The next entries; for ever while nobody said that there may be any. What could not be read is looked at again
    /// after a while. Safe to drop at any await.
    pub async fn next(&mut self) -> News {
        match (self.again || self.reading.is_some(), self.retry) {
            (true, _) => {}
            (false, Some(at)) => tokio::time::sleep_until(at).await,
            (false, None) => return std::future::pending().await,
        }
        let news = self.read().await;
        self.retry = news.is_err().then(|| Instant::now() + PAUSE);
        news
    }

    async fn read(&mut self) -> News {
        if self.reading.is_none() {
            self.again = false;
            let Some(mut reader) = self.reader.take() else { return Ok(Vec::new()) };
            self.reading = Some(tokio::task::spawn_blocking(move || {
                let news = reader.read_on();
                (reader, news)
            }));
        }
        let Some(reading) = &mut self.reading else { return Ok(Vec::new()) };
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
            all = self.read().await?;
        }
        all.extend(self.read().await?);
        Ok(all)
    }
}
