use std::os::fd::OwnedFd;

use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::unix::pipe::Receiver;

use super::Error;
use crate::model::Entry;

/// What [`follow`](super::Client::follow) gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FollowOptions {
    /// Include the program's exact lines.
    pub raw: bool,
    /// Go on with what happens from now on, until the session ends.
    pub live: bool,
}

impl Default for FollowOptions {
    fn default() -> Self {
        FollowOptions { raw: false, live: true }
    }
}

/// A session's activity, record by record, from a pipe that the service writes.
///
/// A reader may be as slow as it likes: the kernel holds the service back, and nobody else notices. The stream ends
/// after the session's last record ([`Follow::ended`] is true), after what was there if it was not asked to go on
/// live, and when the service dies: then go on with a new connection from [`Follow::position`].
#[derive(Debug)]
pub struct Follow {
    pipe: BufReader<Receiver>,
    line: Vec<u8>,
    position: String,
    ended: bool,
}

/// What of a record is needed to keep the place.
#[derive(Deserialize)]
struct Head {
    cursor: String,
    kind: String,
}

impl Follow {
    pub(super) fn new(descriptor: OwnedFd, cursor: &str) -> Result<Follow, Error> {
        let receiver = Receiver::from_owned_fd(descriptor).map_err(Error::answer)?;
        Ok(Follow {
            pipe: BufReader::with_capacity(64 << 10, receiver),
            line: Vec::new(),
            position: cursor.to_owned(),
            ended: false,
        })
    }

    /// The next record as the line of JSON that the service wrote, without its line feed; `None` at the end. Nothing
    /// is lost if this future is dropped before it is ready.
    ///
    /// # Errors
    /// The pipe cannot be read, or a line is not a record.
    pub async fn next_line(&mut self) -> Result<Option<String>, Error> {
        loop {
            // What a dropped call has read stays in `self.line`.
            let read = self.pipe.read_until(b'\n', &mut self.line).await;
            read.map_err(|error| Error::Lost(error.to_string()))?;
            if self.line.pop_if(|last| *last == b'\n').is_none() {
                // A record without its end: the service died while it wrote. The position is still before it.
                self.line.clear();
                return Ok(None);
            }
            let line = String::from_utf8(std::mem::take(&mut self.line)).map_err(Error::answer)?;
            if line.is_empty() {
                continue;
            }
            let head: Head = serde_json::from_str(&line).map_err(Error::answer)?;
            self.ended |= head.kind == "ended";
            self.position = head.cursor;
            return Ok(Some(line));
        }
    }

    /// The next record; `None` at the end. Nothing is lost if this future is dropped before it is ready.
    ///
    /// # Errors
    /// As [`Follow::next_line`].
    pub async fn next(&mut self) -> Result<Option<Entry>, Error> {
        match self.next_line().await? {
            Some(line) => serde_json::from_str(&line).map(Some).map_err(Error::answer),
            None => Ok(None),
        }
    }

    /// The cursor after the last record that was given.
    pub fn position(&self) -> &str {
        &self.position
    }

    /// The session's last record was given.
    pub fn ended(&self) -> bool {
        self.ended
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[tokio::test]
    async fn a_torn_record_is_not_given_and_not_passed() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let mut follow = Follow::new(reader.into(), "start").unwrap();
        let entry = |cursor: &str, kind: &str| {
            format!("{{\"cursor\":\"{cursor}\",\"seq\":1,\"time\":2,\"kind\":\"{kind}\",\"details\":{{}}}}\n")
        };
        writer.write_all(entry("e-1", "started").as_bytes()).unwrap();
        writer.write_all(&entry("e-2", "ended").as_bytes()[..20]).unwrap();
        assert_eq!(follow.next().await.unwrap().unwrap().cursor, "e-1");
        drop(writer);
        assert_eq!(follow.next().await.unwrap(), None);
        assert_eq!((follow.position(), follow.ended()), ("e-1", false));
    }

    #[tokio::test]
    async fn a_dropped_call_loses_nothing() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let mut follow = Follow::new(reader.into(), "start").unwrap();
        let line = r#"{"cursor":"e-9","seq":1,"time":2,"kind":"ended","details":{}}"#;
        writer.write_all(&line.as_bytes()[..30]).unwrap();
        let dropped = tokio::time::timeout(std::time::Duration::from_millis(20), follow.next_line()).await;
        assert!(dropped.is_err(), "half a record is not one");
        writer.write_all(&line.as_bytes()[30..]).unwrap();
        writer.write_all(b"\n").unwrap();
        assert_eq!(follow.next_line().await.unwrap().as_deref(), Some(line));
        assert!(follow.ended());
    }
}
