//! The server's side of the D-Bus handshake (specification, "Authentication Protocol"), EXTERNAL only.
//!
//! zbus has one, but it takes lines of any length for any time, and a line feed in the wrong place panics it. This
//! one has a limit in time and bytes. It reads byte by byte and without a control buffer: nothing that follows
//! `BEGIN` is read ahead, and descriptors sent along with the handshake are closed by the kernel.

use std::time::Duration;

use tokio::net::UnixStream;

/// How long a handshake may take.
pub const TIME: Duration = Duration::from_secs(3);
/// How many bytes a client may send in it.
pub const BYTES: usize = 4096;

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// It took too long.
    #[error("the client did not finish the D-Bus handshake within {} s", TIME.as_secs())]
    TooSlow,
    /// It sent too much.
    #[error("the client sent more than {BYTES} bytes of handshake")]
    TooLong,
    /// The first byte is not NUL, or a line does not end with CR LF.
    #[error("the client does not speak the D-Bus authentication protocol")]
    NotDBus,
    /// It went away.
    #[error("the client closed the connection in the handshake")]
    Closed,
    /// The socket failed.
    #[error("the socket failed in the handshake: {0}")]
    Io(#[from] std::io::Error),
}

/// Authenticates the client as `uid`, which the kernel says it is. Returns whether descriptors may be passed.
pub async fn authenticate(stream: &UnixStream, uid: u32, guid: &str) -> Result<bool, HandshakeError> {
    tokio::time::timeout(TIME, converse(stream, uid, guid)).await.map_err(|_| HandshakeError::TooSlow)?
}

/// Where the conversation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Auth,
    Data,
    Begin,
}

async fn converse(stream: &UnixStream, uid: u32, guid: &str) -> Result<bool, HandshakeError> {
    let mut lines = Lines { stream, left: BYTES };
    if lines.byte().await? != 0 {
        return Err(HandshakeError::NotDBus);
    }
    let mut step = Step::Auth;
    let mut descriptors = false;
    loop {
        let line = lines.line().await?;
        let mut words = line.split(' ').filter(|word| !word.is_empty());
        let command = (words.next().unwrap_or(""), words.next(), words.next());
        let answer = match (step, command) {
            (Step::Begin, ("BEGIN", ..)) => return Ok(descriptors),
            (_, ("BEGIN", ..)) => return Err(HandshakeError::NotDBus),
            (Step::Begin, ("NEGOTIATE_UNIX_FD", ..)) => {
                descriptors = true;
                "AGREE_UNIX_FD".to_owned()
            }
            (Step::Auth, ("AUTH", Some("EXTERNAL"), None)) => {
                step = Step::Data;
                "DATA".to_owned()
            }
            (Step::Auth, ("AUTH", Some("EXTERNAL"), Some(claim)))
            | (Step::Data, ("DATA", Some(claim), _)) => decide(&mut step, claims(claim, uid), guid),
            // No claim: whoever the kernel says it is.
            (Step::Data, ("DATA", None, _)) => decide(&mut step, true, guid),
            (_, ("AUTH" | "CANCEL" | "ERROR", ..)) => decide(&mut step, false, guid),
            _ => "ERROR \"this command has no place here\"".to_owned(),
        };
        write(stream, format!("{answer}\r\n").as_bytes()).await?;
    }
}

fn decide(step: &mut Step, accepted: bool, guid: &str) -> String {
    if accepted {
        *step = Step::Begin;
        format!("OK {guid}")
    } else {
        *step = Step::Auth;
        "REJECTED EXTERNAL".to_owned()
    }
}

/// Whether the claimed identity (hexadecimal of a decimal uid) is `uid`.
fn claims(hexadecimal: &str, uid: u32) -> bool {
    let expected: String = uid.to_string().bytes().map(|byte| format!("{byte:02x}")).collect();
    hexadecimal.eq_ignore_ascii_case(&expected)
}

struct Lines<'a> {
    stream: &'a UnixStream,
    left: usize,
}

impl Lines<'_> {
    async fn byte(&mut self) -> Result<u8, HandshakeError> {
        self.left = self.left.checked_sub(1).ok_or(HandshakeError::TooLong)?;
        let mut byte = [0];
        loop {
            self.stream.readable().await?;
            match self.stream.try_read(&mut byte) {
                Ok(0) => return Err(HandshakeError::Closed),
                Ok(_) => return Ok(byte[0]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The next line without its end.
    async fn line(&mut self) -> Result<String, HandshakeError> {
        let mut line = Vec::new();
        loop {
            match self.byte().await? {
                b'\n' if line.last() == Some(&b'\r') => break,
                byte if byte.is_ascii() && byte != b'\n' && byte != 0 => line.push(byte),
                _ => return Err(HandshakeError::NotDBus),
            }
        }
        line.pop();
        String::from_utf8(line).map_err(|_| HandshakeError::NotDBus)
    }
}

async fn write(stream: &UnixStream, mut bytes: &[u8]) -> Result<(), HandshakeError> {
    while !bytes.is_empty() {
        stream.writable().await?;
        match stream.try_write(bytes) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const GUID: &str = "0123456789abcdef0123456789abcdef";

    /// What the server makes of these bytes of a client with uid 1000, and what it answers.
    async fn talk(client_says: &[u8]) -> (Result<bool, HandshakeError>, String) {
        let (server, mut client) = UnixStream::pair().unwrap();
        client.write_all(client_says).await.unwrap();
        client.shutdown().await.unwrap();
        let result = authenticate(&server, 1000, GUID).await;
        drop(server);
        let mut answer = Vec::new();
        // A reset is what a client sees whose last bytes nobody read.
        let _ = client.read_to_end(&mut answer).await;
        (result, String::from_utf8(answer).unwrap())
    }

    #[tokio::test]
    async fn the_ways_of_the_known_libraries_work() {
        // GLib: asks first; sd-bus: everything at once without a claim; libdbus: with a claim.
        let (result, answer) =
            talk(b"\0AUTH\r\nAUTH EXTERNAL 31303030\r\nNEGOTIATE_UNIX_FD\r\nBEGIN\r\n").await;
        assert!(result.unwrap());
        assert_eq!(answer, format!("REJECTED EXTERNAL\r\nOK {GUID}\r\nAGREE_UNIX_FD\r\n"));
        let (result, answer) = talk(b"\0AUTH EXTERNAL\r\nDATA\r\nNEGOTIATE_UNIX_FD\r\nBEGIN\r\n").await;
        assert!(result.unwrap());
        assert_eq!(answer, format!("DATA\r\nOK {GUID}\r\nAGREE_UNIX_FD\r\n"));
        let (result, _) = talk(b"\0AUTH EXTERNAL 31303030\r\nBEGIN\r\n").await;
        assert!(!result.unwrap());
    }

    #[tokio::test]
    async fn nothing_after_begin_is_read() {
        let (server, mut client) = UnixStream::pair().unwrap();
        client.write_all(b"\0AUTH EXTERNAL 31303030\r\nBEGIN\r\nl\x01\n").await.unwrap();
        authenticate(&server, 1000, GUID).await.unwrap();
        let mut first = [0; 3];
        server.try_read(&mut first).unwrap();
        assert_eq!(&first, b"l\x01\n");
    }

    #[tokio::test]
    async fn other_identities_and_mechanisms_are_rejected() {
        for attempt in
            ["AUTH EXTERNAL 30", "AUTH ANONYMOUS 61", "AUTH DBUS_COOKIE_SHA1 61", "AUTH EXTERNAL zz"]
        {
            let (result, answer) = talk(format!("\0{attempt}\r\nBEGIN\r\n").as_bytes()).await;
            assert!(matches!(result, Err(HandshakeError::NotDBus)), "{attempt}: {result:?}");
            assert_eq!(answer, "REJECTED EXTERNAL\r\n", "{attempt}");
        }
    }

    #[tokio::test]
    async fn malformed_beginnings_are_refused() {
        for bytes in
            [&b"\n"[..], b"\0\n", b"\0AUTH EXTERNAL\r\n\n", b"GET / HTTP/1.1\r\n", b"\0AUTH \xff\r\n"]
        {
            let (result, _) = talk(bytes).await;
            assert!(matches!(result, Err(HandshakeError::NotDBus)), "{bytes:?}: {result:?}");
        }
        let (result, _) = talk(&[&b"\0"[..], &vec![b'A'; BYTES]].concat()).await;
        assert!(matches!(result, Err(HandshakeError::TooLong)), "{result:?}");
        let (result, _) = talk(b"\0AUTH EXT").await;
        assert!(matches!(result, Err(HandshakeError::Closed)), "{result:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_client_is_given_up() {
        let (server, _client) = UnixStream::pair().unwrap();
        let result = authenticate(&server, 1000, GUID).await;
        assert!(matches!(result, Err(HandshakeError::TooSlow)), "{result:?}");
    }
}
