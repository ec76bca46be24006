//! A D-Bus connection to systemd's private socket: no bus between, one call at a time.
//!
//! systemd signs what it sends there with `org.freedesktop.systemd1` as sender. The specification allows a sender that
//! is no unique name only to a bus, and zbus refuses such messages. So messages are made and their bodies read with
//! zbus, but carried and taken apart here. The format is the specification's: "Message Protocol", "Authentication
//! Protocol" (EXTERNAL).

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use zbus::wire::serialized::{Context, Data};
use zbus::wire::{Endian, Type};
use zbus::{Message, Variant};

/// The largest message that is taken, in bytes. What is read here is small.
const MAX_MESSAGE: usize = 1 << 20;
/// The longest answer in the handshake, in bytes.
const MAX_LINE: usize = 1024;

/// Why the conversation failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum DirectError {
    /// Nobody listens.
    #[error("nobody answers at {path}: {source}")]
    Absent { path: PathBuf, source: io::Error },
    /// Somebody else does.
    #[error("the socket {path} belongs to the account {uid}, not to ours")]
    Foreign { path: PathBuf, uid: u32 },
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
    /// It is not D-Bus, or not as it should be.
    #[error("what came is not as the protocol has it: {0}")]
    Protocol(&'static str),
    /// A message could not be made or read.
    #[error("a message could not be made or read: {0}")]
    Message(#[from] zbus::Error),
    /// The other side refuses.
    #[error("{name}: {text}")]
    Refused { name: String, text: String },
}

/// See the module.
#[derive(Debug)]
pub(super) struct Direct {
    stream: UnixStream,
    early: VecDeque<Incoming>,
}

/// A message that came.
#[derive(Debug)]
struct Incoming {
    kind: u8,
    reply_to: Option<u32>,
    /// The member of a signal, the name of an error.
    name: String,
    body: Vec<u8>,
    endian: Endian,
}

/// Message types and header fields of the specification.
const METHOD_RETURN: u8 = 2;
const ERROR: u8 = 3;
const SIGNAL: u8 = 4;
const FIELD_MEMBER: u8 = 3;
const FIELD_ERROR_NAME: u8 = 4;
const FIELD_REPLY_SERIAL: u8 = 5;

impl Direct {
    /// Connects, if the socket's listener is of our own account (SO_PEERCRED).
    pub(super) async fn connect(path: &Path) -> Result<Direct, DirectError> {
        let absent = |source| DirectError::Absent { path: path.to_owned(), source };
        let mut stream = UnixStream::connect(path).await.map_err(absent)?;
        let (uid, ours) = (stream.peer_cred()?.uid(), nix::unistd::geteuid().as_raw());
        if uid != ours {
            return Err(DirectError::Foreign { path: path.to_owned(), uid });
        }
        authenticate(&mut stream, ours).await?;
        Ok(Direct { stream, early: VecDeque::new() })
    }

    /// Calls a method and reads its reply. Signals that come before the reply are kept.
    pub(super) async fn call<B, R>(
        &mut self,
        path: &'static str,
        interface: &'static str,
        member: &'static str,
        body: &B,
    ) -> Result<R, DirectError>
    where
        B: Serialize + zbus::DynamicType + Sync,
        R: DeserializeOwned + Type,
    {
        let call = Message::method_call(path, member).interface(interface).build(body)?;
        let serial = call.primary_header().serial_num().get();
        self.stream.write_all(call.data().bytes()).await?;
        loop {
            let incoming = self.receive().await?;
            match incoming.kind {
                METHOD_RETURN if incoming.reply_to == Some(serial) => return incoming.read(),
                ERROR if incoming.reply_to == Some(serial) => {
                    let text = incoming.read::<(String,)>().map(|(text,)| text).unwrap_or_default();
                    return Err(DirectError::Refused { name: incoming.name, text });
                }
                SIGNAL => self.early.push_back(incoming),
                _ => {}
            }
        }
    }

    /// The next signal of that name. Others are skipped: the manager tells all that happens to everybody here.
    pub(super) async fn signal<R: DeserializeOwned + Type>(
        &mut self,
        member: &str,
    ) -> Result<R, DirectError> {
        loop {
            let incoming = match self.early.pop_front() {
                Some(incoming) => incoming,
                None => self.receive().await?,
            };
            if incoming.kind == SIGNAL && incoming.name == member {
                return incoming.read();
            }
        }
    }

    async fn receive(&mut self) -> Result<Incoming, DirectError> {
        let mut message = vec![0; 16];
        self.stream.read_exact(&mut message).await?;
        let endian = match message[0] {
            b'l' => Endian::Little,
            b'B' => Endian::Big,
            _ => return Err(DirectError::Protocol("a message begins with its byte order")),
        };
        let number = |at: usize| {
            let bytes = message[at..at + 4].try_into().unwrap_or_default();
            let number = match endian {
                Endian::Little => u32::from_le_bytes(bytes),
                Endian::Big => u32::from_be_bytes(bytes),
            };
            usize::try_from(number).unwrap_or(usize::MAX)
        };
        let (body, fields) = (number(4), number(12));
        if body > MAX_MESSAGE || fields > MAX_MESSAGE {
            return Err(DirectError::Protocol("a message is longer than any that was asked for"));
        }
        let header = 16 + fields;
        let start = header.next_multiple_of(8);
        message.resize(start + body, 0);
        self.stream.read_exact(&mut message[16..]).await?;
        Incoming::parse(&message, header, start, endian)
    }
}

impl Incoming {
    fn parse(message: &[u8], header: usize, start: usize, endian: Endian) -> Result<Incoming, DirectError> {
        type Header<'m> = (u8, u8, u8, u8, u32, u32, Vec<(u8, Variant<'m>)>);
        let data = Data::new(&message[..header], Context::new(endian, 0));
        let (head, _): (Header<'_>, usize) = data.deserialize()?;
        let mut incoming = Incoming {
            kind: head.1,
            reply_to: None,
            name: String::new(),
            body: message[start..].to_owned(),
            endian,
        };
        for (field, value) in &head.6 {
            match *field {
                FIELD_REPLY_SERIAL => incoming.reply_to = value.downcast_ref().ok(),
                FIELD_MEMBER | FIELD_ERROR_NAME => {
                    incoming.name = value.downcast_ref::<&str>().unwrap_or_default().to_owned();
                }
                _ => {}
            }
        }
        Ok(incoming)
    }

    fn read<R: DeserializeOwned + Type>(&self) -> Result<R, DirectError> {
        let data = Data::new(self.body.as_slice(), Context::new(self.endian, 0));
        Ok(data.deserialize()?.0)
    }
}

/// EXTERNAL: who we are is checked by the kernel.
async fn authenticate(stream: &mut UnixStream, uid: u32) -> Result<(), DirectError> {
    let uid: String = uid.to_string().bytes().map(|digit| format!("{digit:02x}")).collect();
    stream.write_all(format!("\0AUTH EXTERNAL {uid}\r\n").as_bytes()).await?;
    let mut line = Vec::new();
    // Byte by byte: what follows the line belongs to the messages. It is short.
    while !line.ends_with(b"\r\n") {
        if line.len() >= MAX_LINE {
            return Err(DirectError::Protocol("the answer to AUTH does not end"));
        }
        line.push(stream.read_u8().await?);
    }
    if !line.starts_with(b"OK ") {
        return Err(DirectError::Protocol("our account is not accepted"));
    }
    stream.write_all(b"BEGIN\r\n").await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_taken_apart_whoever_it_says_sent_it() {
        let message = Message::signal("/a", "b.c", "JobRemoved")
            .sender(":1.9")
            .build(&(7u32, "done"))
            .expect("a signal");
        let bytes = message.data().bytes();
        let fields = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
        let (header, start) = (16 + fields, (16 + fields).next_multiple_of(8));
        // The same length, and no unique name.
        let mut bytes = bytes.to_owned();
        let at = bytes.windows(4).position(|window| window == b":1.9").expect("the sender");
        bytes[at..at + 4].copy_from_slice(b"sys1");
        let incoming = Incoming::parse(&bytes, header, start, Endian::Little).expect("parses");
        assert_eq!((incoming.kind, incoming.name.as_str(), incoming.reply_to), (SIGNAL, "JobRemoved", None));
        assert_eq!(incoming.read::<(u32, String)>().expect("body"), (7, "done".to_owned()));
    }

    #[tokio::test]
    async fn strangers_words_end_the_conversation() {
        let directory = tempfile::tempdir().expect("scratch directory");
        let path = directory.path().join("socket");
        assert!(matches!(Direct::connect(&path).await, Err(DirectError::Absent { .. })));
        let listener = tokio::net::UnixListener::bind(&path).expect("binds");
        for (answer, error) in
            [("REJECTED\r\n", "not accepted"), ("", "broke"), (&"x".repeat(MAX_LINE + 9), "does not end")]
        {
            let (connected, accepted) = tokio::join!(Direct::connect(&path), async {
                let (mut peer, _) = listener.accept().await.expect("accepts");
                let mut hello = [0; 16];
                peer.read_exact(&mut hello).await.expect("reads");
                assert!(hello.starts_with(b"\0AUTH EXTERNAL "));
                peer.write_all(answer.as_bytes()).await
            });
            accepted.expect("writes");
            let told = connected.expect_err("no conversation").to_string();
            assert!(told.contains(error), "{told}");
        }
    }
}
