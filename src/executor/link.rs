//! The executor's end of its connections to daemons.
//!
//! Each connection is two tasks: one hands requests on, one writes the report whenever it changed. A daemon that does
//! not read holds up only its own connection, and skips to the newest report when it reads again.

use std::io;
use std::path::Path;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::control::{MAX_CONTROL_LINE, Report, Request, encode};

/// Something a connection brought.
#[derive(Debug)]
pub enum Heard {
    /// A request.
    Request(Request),
    /// The daemon that started this executor is gone.
    ParentGone,
}

/// Listens for daemons and keeps their connections.
pub struct Link {
    reports: watch::Receiver<Report>,
    heard: mpsc::Sender<Heard>,
    writers: JoinSet<()>,
    listener: UnixListener,
}

impl Link {
    /// Listens at `socket`, replacing what a dead executor of the same session left there: the caller holds the lock.
    pub fn listen(
        socket: &Path,
        parent: UnixStream,
        reports: watch::Receiver<Report>,
    ) -> io::Result<(Link, mpsc::Receiver<Heard>)> {
        match std::fs::remove_file(socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(socket)?;
        let (heard, requests) = mpsc::channel(16);
        let mut link = Link { reports, heard, writers: JoinSet::new(), listener };
        link.serve(parent, true);
        Ok((link, requests))
    }

    /// Takes one more connection, if it comes from this account. Safe to drop at any await.
    pub async fn accept(&mut self) {
        if let Ok((stream, _)) = self.listener.accept().await {
            let ours = nix::unistd::geteuid().as_raw();
            if stream.peer_cred().is_ok_and(|peer| peer.uid() == ours) {
                self.serve(stream, false);
            }
        }
        while self.writers.try_join_next().is_some() {}
    }

    /// Waits until every daemon has the last report, or does not take it within a second. The sender of the reports
    /// must be gone.
    pub async fn close(mut self) {
        let all = async { while self.writers.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(std::time::Duration::from_secs(1), all).await;
    }

    fn serve(&mut self, stream: UnixStream, parent: bool) {
        let (reader, mut writer) = stream.into_split();
        let mut reports = self.reports.clone();
        self.writers.spawn(async move {
            reports.mark_changed();
            while reports.changed().await.is_ok() {
                let line = encode(&*reports.borrow_and_update());
                if writer.write_all(&line).await.is_err() {
                    return;
                }
            }
        });
        let heard = self.heard.clone();
        tokio::spawn(async move {
            let mut reader = BufReader::new(reader);
            while let Some(request) = next_request(&mut reader).await {
                if heard.send(Heard::Request(request)).await.is_err() {
                    return;
                }
            }
            if parent {
                let _ = heard.send(Heard::ParentGone).await;
            }
        });
    }
}

/// The next request; `None` when the peer is gone or sends what is no line of ours.
async fn next_request(reader: &mut BufReader<tokio::net::unix::OwnedReadHalf>) -> Option<Request> {
    let mut line = Vec::new();
    let got = reader.take(MAX_CONTROL_LINE as u64).read_until(b'\n', &mut line).await.ok()?;
    if got == 0 || line.last() != Some(&b'\n') {
        return None;
    }
    Some(serde_json::from_slice(&line).unwrap_or(Request::Unknown))
}
