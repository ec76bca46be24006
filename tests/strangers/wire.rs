//! A peer without a library: it writes what it likes and reads what it likes.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde::Serialize;
use zbus::Message;
use zbus::wire::DynamicType;

use super::{NAME, OBJECT};

/// How long a peer that takes nothing is given to take something.
const STUCK: Duration = Duration::from_secs(1);

pub struct Wire(UnixStream);

impl Wire {
    /// A connection that has said Hello.
    pub fn open(address: &str) -> Wire {
        let path = address.strip_prefix("unix:path=").expect("a socket's address");
        let mut stream = UnixStream::connect(path.split(',').next().unwrap_or(path)).expect("connects");
        stream.write_all(b"\0AUTH EXTERNAL\r\nDATA\r\nNEGOTIATE_UNIX_FD\r\nBEGIN\r\n").expect("writes");
        let mut answer = Vec::new();
        while !answer.ends_with(b"AGREE_UNIX_FD\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("is answered");
            answer.push(byte[0]);
        }
        let bus = "org.freedesktop.DBus";
        let hello = Message::method_call("/org/freedesktop/DBus", "Hello").interface(bus).destination(bus);
        stream.write_all(hello.build(&()).expect("a message").data()).expect("writes");
        let mut first = [0; 16];
        stream.read_exact(&mut first).expect("is answered");
        stream.set_write_timeout(Some(STUCK)).expect("a time-out");
        Wire(stream)
    }

    /// Writes a message, whole; `false` when the other side takes no more, or has closed.
    pub fn send(&mut self, message: &Message) -> bool {
        self.write(message.data())
    }

    pub fn write(&mut self, bytes: &[u8]) -> bool {
        match self.0.write_all(bytes) {
            Ok(()) => true,
            Err(error) => {
                let known = [
                    ErrorKind::WouldBlock,
                    ErrorKind::TimedOut,
                    ErrorKind::BrokenPipe,
                    ErrorKind::ConnectionReset,
                ];
                assert!(known.contains(&error.kind()), "{error}");
                false
            }
        }
    }
}

/// A call of the service's object.
pub fn call<B: Serialize + DynamicType>(method: &str, body: &B) -> Message {
    let call = Message::method_call(OBJECT, method).interface(NAME).destination(NAME);
    call.build(body).expect("a message")
}
