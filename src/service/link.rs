//! The daemon's end of a connection to an executor.

use std::io;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::Path;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use crate::executor::control::{MAX_CONTROL_LINE, Report, Request, encode};

/// See the module.
#[derive(Debug)]
pub(super) struct Link {
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    line: Vec<u8>,
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
        Link { reader: BufReader::new(reader), writer, line: Vec::new() }
    }

    /// The next report; `None` when the executor is gone, or says what no executor of ours says. Safe to drop at any
    /// await: what was read of a line is kept.
    pub(super) async fn report(&mut self) -> Option<Report> {
        loop {
            let got = self.reader.read_until(b'\n', &mut self.line).await.ok()?;
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

    /// Sends a request. An executor that is gone shows in [`Link::report`]; one that does not read keeps it in the
    /// socket's buffer, which holds thousands.
    pub(super) async fn send(&mut self, request: &Request) -> io::Result<()> {
        self.writer.write_all(&encode(request)).await
    }
}
