//! The program's standard input: lines that wait for the pipe, and for the disk.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;

use nix::fcntl::OFlag;
use tokio::net::unix::pipe;

/// The most that waits for a program to read its standard input, in bytes. One line is taken however long it is: the
/// opening with its attachments.
const MOST: usize = 64 << 20;

/// Whose words a line carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Carries {
    /// Nobody's: the protocol's own.
    Nothing,
    /// The message of this `request_id`.
    Message(String),
    /// The answer that is this entry of the inbox.
    Answer(usize),
}

#[derive(Debug)]
struct Line {
    bytes: Vec<u8>,
    carries: Carries,
    /// The journal must be durable up to here first: it tells of what the line carries.
    after: u64,
}

/// See the module. Once closed it takes nothing more.
#[derive(Debug)]
pub struct Outbox {
    pipe: Option<pipe::Sender>,
    lines: VecDeque<Line>,
    /// Bytes of the first line that the pipe has.
    written: usize,
    waiting: usize,
}

impl Outbox {
    /// A pipe, and the end to give to the program.
    pub fn pipe() -> io::Result<(Outbox, OwnedFd)> {
        let (reader, writer) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        let pipe = Some(pipe::Sender::from_owned_fd(writer)?);
        Ok((Outbox { pipe, lines: VecDeque::new(), written: 0, waiting: 0 }, reader))
    }

    /// The program can still be written to.
    pub fn is_open(&self) -> bool {
        self.pipe.is_some()
    }

    /// Nothing waits.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Takes a line, and adds its line feed; `false`: too much waits already. It is written once the journal is durable up
    /// to `after`.
    pub fn push(&mut self, mut line: Vec<u8>, carries: Carries, after: u64) -> bool {
        if self.pipe.is_none() {
            return true;
        }
        line.push(b'\n');
        if self.waiting > 0 && self.waiting + line.len() > MOST {
            return false;
        }
        self.waiting += line.len();
        self.lines.push_back(Line { bytes: line, carries, after });
        true
    }

    /// Waits until the pipe takes something and writes it; gives what the lines carry that are written whole by that. For
    /// ever while nothing may be written. Safe to drop at any await.
    ///
    /// # Errors
    /// The program has closed its standard input.
    pub async fn write(&mut self, durable: u64) -> io::Result<Vec<Carries>> {
        let (Some(pipe), Some(first)) = (&self.pipe, self.lines.front()) else {
            return std::future::pending().await;
        };
        if first.after > durable {
            return std::future::pending().await;
        }
        let taken = loop {
            pipe.writable().await?;
            match pipe.try_write(&first.bytes[self.written..]) {
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                result => break result?,
            }
        };
        self.waiting -= taken;
        self.written += taken;
        if self.written < first.bytes.len() {
            return Ok(Vec::new());
        }
        self.written = 0;
        Ok(self.lines.pop_front().map(|line| line.carries).into_iter().collect())
    }

    /// Takes back the messages of which nothing was written yet.
    pub fn recall(&mut self) {
        let mut at = 0;
        let begun = usize::from(self.written > 0);
        self.lines.retain(|line| {
            at += 1;
            at <= begun || !matches!(line.carries, Carries::Message(_))
        });
        self.waiting = self.lines.iter().map(|line| line.bytes.len()).sum::<usize>() - self.written;
    }

    /// Closes the pipe: the program reads its end of file. What still waits is dropped.
    pub fn close(&mut self) {
        self.pipe = None;
        self.lines.clear();
        (self.written, self.waiting) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::time::Duration;

    use super::*;

    async fn blocked(outbox: &mut Outbox, durable: u64) -> bool {
        tokio::time::timeout(Duration::from_millis(20), outbox.write(durable)).await.is_err()
    }

    #[tokio::test]
    async fn a_line_waits_for_its_record_and_for_the_lines_before_it() {
        let (mut outbox, reader) = Outbox::pipe().unwrap();
        assert!(outbox.push(b"a".to_vec(), Carries::Message("m".into()), 100));
        assert!(outbox.push(b"b".to_vec(), Carries::Nothing, 0));
        assert!(blocked(&mut outbox, 99).await);
        assert_eq!(outbox.write(100).await.unwrap(), vec![Carries::Message("m".into())]);
        assert_eq!(outbox.write(100).await.unwrap(), vec![Carries::Nothing]);
        assert!(outbox.is_empty() && blocked(&mut outbox, 100).await);
        outbox.close();
        let mut text = String::new();
        File::from(reader).read_to_string(&mut text).unwrap();
        assert_eq!(text, "a\nb\n");
    }

    #[tokio::test]
    async fn a_program_that_does_not_read_only_delays() {
        let (mut outbox, reader) = Outbox::pipe().unwrap();
        let long = vec![b'x'; 1 << 20];
        assert!(outbox.push(long.clone(), Carries::Answer(3), 0));
        while !blocked(&mut outbox, 0).await {}
        // What was begun is not taken back, what was not is.
        assert!(outbox.push(b"steer".to_vec(), Carries::Message("m".into()), 0));
        outbox.recall();
        let reading = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            File::from(reader).read_to_end(&mut bytes).unwrap();
            bytes.len()
        });
        let mut carried = Vec::new();
        while !outbox.is_empty() {
            carried.extend(outbox.write(0).await.unwrap());
        }
        assert_eq!(carried, vec![Carries::Answer(3)]);
        outbox.close();
        assert_eq!(reading.join().unwrap(), long.len() + 1);
        let (mut outbox, _reader) = Outbox::pipe().unwrap();
        assert!(outbox.push(vec![0; MOST], Carries::Nothing, 0), "the opening may be long");
        assert!(!outbox.push(vec![0], Carries::Nothing, 0), "what waits has a bound");
    }

    #[tokio::test]
    async fn a_closed_standard_input_is_an_error() {
        let (mut outbox, reader) = Outbox::pipe().unwrap();
        drop(reader);
        outbox.push(b"a".to_vec(), Carries::Nothing, 0);
        assert_eq!(outbox.write(0).await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
