//! The daemon's end of a connection to an executor.

use std::collections::VecDeque;
use std::io;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::Path;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use crate::executor::control::{MAX_CONTROL_LINE, Report, Request, encode};

/// How the line of a renewal begins.
const RENEWAL: &[u8] = b"{\"request\":\"renew\"";

/// See the module.
#[derive(Debug)]
pub(super) struct Link {
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    line: Vec<u8>,
    /// Requests that the socket did not take yet.
    waiting: VecDeque<Vec<u8>>,
    /// Bytes of the first that it has.
    written: usize,
}

impl Link {
    /// Over the socket pair that the executor was started with.
    pub(super) fn over(stream: StdUnixStream) -> io::Result<Link> {
        Ok(Link::new(UnixStream::from_std(stream)?))
    }

    /// To an executor that was started by an earlier daemon.
    pub(super) async fn connect(socket: &Path) -> io::Result<Link> {
        Ok(Link::new(UnixStream::connect(socket).await?))
    }

    fn new(stream: UnixStream) -> Link {
        let (reader, writer) = stream.into_split();
        Link {
            reader: BufReader::new(reader),
            writer,
            line: Vec::new(),
            waiting: VecDeque::new(),
            written: 0,
        }
    }

    /// The next report; `None` when the executor is gone, or says what no executor of ours says. Sends meanwhile what
    /// waits. Safe to drop at any await: what was read of a line is kept.
    pub(super) async fn report(&mut self) -> Option<Report> {
        loop {
            let waits = !self.waiting.is_empty();
            let got = tokio::select! {
                got = self.reader.read_until(b'\n', &mut self.line) => got.ok()?,
                ready = self.writer.writable(), if waits => {
                    ready.and_then(|()| self.flush()).ok()?;
                    continue;
                }
            };
            if got == 0 || self.line.len() > MAX_CONTROL_LINE {
                return None;
            }
            if self.line.last() == Some(&b'\n') {
                let report = serde_json::from_slice(&self.line).ok();
                self.line.clear();
                return report;
            }
        }
    }

    /// Sends a request, without ever waiting: an executor may be stopped for hours. What waits to be sent already is not
    /// sent twice, since every request asks for something that is so or is not.
    ///
    /// # Errors
    /// The executor is gone, which shows in [`Link::report`] too.
    pub(super) fn send(&mut self, request: &Request) -> io::Result<()> {
        let line = encode(request);
        let begun = usize::from(self.written > 0);
        if matches!(request, Request::Renew { .. }) {
            // The latest says until when.
            let mut at = 0;
            self.waiting.retain(|waiting| {
                at += 1;
                at <= begun || !waiting.starts_with(RENEWAL)
            });
        }
        if !self.waiting.iter().skip(begun).any(|waiting| *waiting == line) {
            self.waiting.push_back(line);
        }
        self.flush()
    }

    /// Writes what the socket takes.
    fn flush(&mut self) -> io::Result<()> {
        while let Some(first) = self.waiting.front() {
            match self.writer.try_write(&first[self.written..]) {
                Ok(taken) => self.written += taken,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if self.written == first.len() {
                self.waiting.pop_front();
                self.written = 0;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::time::Duration;

    use super::*;
    use crate::model::End;

    #[tokio::test]
    async fn an_executor_that_does_not_read_holds_nothing_up_and_misses_nothing() {
        let (ours, theirs) = StdUnixStream::pair().expect("a pair");
        ours.set_nonblocking(true).expect("flags");
        let mut link = Link::over(ours).expect("a link");
        for until in 0..200_000 {
            link.send(&Request::Renew { until: Some(until) }).expect("is there");
            link.send(&Request::Mail).expect("is there");
        }
        let stop = Request::Stop { end: End::Cancelled };
        link.send(&stop).expect("is there");
        assert!(link.waiting.len() <= 4, "{}", link.waiting.len());
        let reading = std::thread::spawn(move || {
            let mut seen = Vec::new();
            for line in BufReader::new(theirs).lines() {
                let line = line.expect("a line");
                seen.push(serde_json::from_str::<Request>(&line).expect("a whole request"));
                if matches!(seen.last(), Some(Request::Stop { .. })) {
                    break;
                }
            }
            seen
        });
        // It sends what waits while it listens, and hears that the other end is gone.
        let heard = tokio::time::timeout(Duration::from_secs(20), link.report()).await.expect("in time");
        assert_eq!(heard, None);
        let seen = reading.join().expect("no panic");
        let last: Vec<_> = seen.iter().rev().take(3).cloned().collect();
        assert!(seen.len() < 200_000 && last[0] == stop, "{last:?}");
        assert!(last[1..].contains(&Request::Mail), "{last:?}");
        assert!(last[1..].contains(&Request::Renew { until: Some(199_999) }), "the latest: {last:?}");
    }
}
