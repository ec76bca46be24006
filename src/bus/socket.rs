//! The two halves of a Unix socket under a D-Bus connection.
//!
//! zbus would wait for ever for a peer that stops reading, and everybody else who writes to that connection would
//! wait behind it. The writing half here gives up on a peer that takes nothing for [`PATIENCE`] and shuts the
//! socket, which also wakes whoever reads from it. A message of which only a part was written (its sender was
//! cancelled) shuts the socket as well: the next message would be read as the rest of it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, Shutdown, recvmsg, sendmsg, shutdown};
use tokio::io::Interest;
use tokio::net::UnixStream;
use zbus::connection::socket::{ReadHalf, WriteHalf};
use zbus::message::{Message, Type};

use super::gate::Traffic;

/// How long a peer may take nothing at all of what is written to it.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// The most descriptors that the kernel passes with one message (`SCM_MAX_FD`).
const MOST_DESCRIPTORS: usize = 253;

/// A connected Unix socket that both halves share.
#[derive(Debug)]
pub struct Wire(UnixStream);

impl Wire {
    /// Shares `stream`.
    pub fn new(stream: UnixStream) -> Arc<Self> {
        Arc::new(Wire(stream))
    }

    /// Ends the connection at once, also under a blocked write.
    pub fn shut(&self) {
        // A socket that is already shut or whose peer is gone answers ENOTCONN: that is what is wanted.
        let _ = shutdown(self.0.as_raw_fd(), Shutdown::Both);
    }

    async fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
        loop {
            self.0.readable().await?;
            match self.0.try_io(Interest::READABLE, || receive_now(self.0.as_raw_fd(), buffer)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }

    /// Sends a beginning of `data`, with `descriptors`.
    async fn send(&self, data: &[u8], descriptors: &[RawFd], patience: Duration) -> io::Result<usize> {
        loop {
            tokio::time::timeout(patience, self.0.writable()).await.map_err(|_| {
                io::Error::new(io::ErrorKind::TimedOut, "the peer does not read what is written to it")
            })??;
            match self.0.try_io(Interest::WRITABLE, || send_now(self.0.as_raw_fd(), data, descriptors)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }
}

fn receive_now(socket: RawFd, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut control = nix::cmsg_space!([RawFd; MOST_DESCRIPTORS]);
    let mut parts = [io::IoSliceMut::new(buffer)];
    let received = recvmsg::<()>(socket, &mut parts, Some(&mut control), MsgFlags::MSG_CMSG_CLOEXEC)
        .map_err(io::Error::from)?;
    let mut descriptors = Vec::new();
    // The iterator fails where the kernel truncated the list, which it does when we have no descriptors left: those
    // that did not fit are closed already, and a call that misses one is refused where it looks for it.
    if let Ok(messages) = received.cmsgs() {
        for message in messages {
            if let ControlMessageOwned::ScmRights(raw) = message {
                // SAFETY: the kernel has just installed these descriptors for this message; nobody else has them.
                descriptors.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
            }
        }
    }
    Ok((received.bytes, descriptors))
}

fn send_now(socket: RawFd, data: &[u8], descriptors: &[RawFd]) -> io::Result<usize> {
    let rights = [ControlMessage::ScmRights(descriptors)];
    let control = if descriptors.is_empty() { &rights[..0] } else { &rights[..] };
    sendmsg::<()>(socket, &[io::IoSlice::new(data)], control, MsgFlags::MSG_NOSIGNAL, None)
        .map_err(Into::into)
}

/// The reading half: bytes and descriptors, without judging them.
#[derive(Debug)]
pub struct Reader {
    wire: Arc<Wire>,
    /// Descriptors that came with bytes which were read ahead; they belong to the message that is read next.
    ahead: Vec<OwnedFd>,
}

impl Reader {
    /// The reading half of `wire`.
    pub fn new(wire: Arc<Wire>) -> Self {
        Reader { wire, ahead: Vec::new() }
    }

    /// Fills `buffer`, keeping descriptors for the message that these bytes begin. `false`: the peer closed the
    /// socket before the first byte.
    pub async fn read_ahead(&mut self, buffer: &mut [u8]) -> io::Result<bool> {
        let mut have = 0;
        while have < buffer.len() {
            let (read, descriptors) = self.wire.receive(&mut buffer[have..]).await?;
            self.ahead.extend(descriptors);
            if read == 0 {
                return if have == 0 { Ok(false) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
            have += read;
        }
        Ok(true)
    }

    /// Reads `bytes` and forgets them, with any descriptors.
    pub async fn skip(&mut self, mut bytes: usize) -> io::Result<()> {
        let mut chunk = vec![0; (64 << 10).min(bytes)];
        while bytes > 0 {
            let most = chunk.len().min(bytes);
            let (read, _) = self.wire.receive(&mut chunk[..most]).await?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            bytes -= read;
        }
        Ok(())
    }

    /// Closes descriptors that no message took.
    pub fn drop_ahead(&mut self) {
        self.ahead.clear();
    }
}

#[async_trait]
impl ReadHalf for Reader {
    async fn recvmsg(&mut self, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
        let (read, descriptors) = self.wire.receive(buffer).await?;
        let mut all = std::mem::take(&mut self.ahead);
        all.extend(descriptors);
        Ok((read, all))
    }

    fn can_pass_unix_fd(&self) -> bool {
        true
    }
}

/// The writing half: bounded in time, and the place where a call is known to be answered.
#[derive(Debug)]
pub struct Writer {
    wire: Arc<Wire>,
    traffic: Arc<Traffic>,
    patience: Duration,
    descriptors: bool,
    /// A message was begun and not ended.
    torn: bool,
}

impl Writer {
    /// The writing half of `wire`; `descriptors`: the peer takes file descriptors.
    pub fn new(wire: Arc<Wire>, traffic: Arc<Traffic>, descriptors: bool, patience: Duration) -> Self {
        Writer { wire, traffic, patience, descriptors, torn: false }
    }

    async fn write_whole(&self, message: &Message) -> io::Result<()> {
        let data = message.data();
        let descriptors: Vec<RawFd> = data.fds().iter().map(|fd| fd.as_fd().as_raw_fd()).collect();
        let mut sent = 0;
        while sent < data.len() {
            let with = if sent == 0 { &descriptors[..] } else { &[] };
            sent += self.wire.send(&data[sent..], with, self.patience).await?;
        }
        Ok(())
    }
}

#[async_trait]
impl WriteHalf for Writer {
    async fn send_message(&mut self, message: &Message) -> zbus::Result<()> {
        if self.torn {
            self.wire.shut();
            return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
        }
        self.torn = true;
        let written = self.write_whole(message).await;
        if matches!(message.message_type(), Type::MethodReturn | Type::Error) {
            self.traffic.answered(&message.header());
        }
        match written {
            Ok(()) => {
                self.torn = false;
                Ok(())
            }
            Err(error) => {
                self.wire.shut();
                Err(error.into())
            }
        }
    }

    async fn sendmsg(&mut self, data: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
        let raw: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        self.wire.send(data, &raw, self.patience).await
    }

    async fn close(&mut self) -> io::Result<()> {
        self.wire.shut();
        Ok(())
    }

    fn can_pass_unix_fd(&self) -> bool {
        self.descriptors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writer(patience: Duration) -> (Writer, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Writer::new(Wire::new(ours), Traffic::private(), true, patience), theirs)
    }

    fn signal(size: usize) -> Message {
        Message::signal("/a", "a.b", "C").build(&"x".repeat(size)).unwrap()
    }

    #[tokio::test]
    async fn a_peer_that_takes_nothing_is_shut() {
        let (mut writer, peer) = writer(Duration::from_millis(50));
        let error = writer.send_message(&signal(8 << 20)).await.expect_err("nobody reads");
        assert!(error.to_string().contains("does not read"), "{error}");
        // Shut, not merely given up: the peer comes to the end of what was sent.
        let mut rest = Vec::new();
        let mut peer = peer;
        tokio::io::AsyncReadExt::read_to_end(&mut peer, &mut rest).await.unwrap();
        assert!(rest.len() < 8 << 20);
    }

    #[tokio::test]
    async fn a_message_cut_off_in_the_middle_ends_the_connection() {
        let (mut writer, _peer) = writer(Duration::from_secs(60));
        let big = signal(8 << 20);
        let cut = tokio::time::timeout(Duration::from_millis(20), writer.send_message(&big)).await;
        assert!(cut.is_err(), "the peer reads nothing, so this cannot end");
        let error = writer.send_message(&signal(1)).await.expect_err("the stream is torn");
        assert!(matches!(error, zbus::Error::InputOutput(_)), "{error}");
    }
}
