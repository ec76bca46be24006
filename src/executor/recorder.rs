//! From bytes to records: lines, dialect, encoder, committer, in the order in which a program's output passes.
//!
//! Whatever cannot be recorded is counted, and said in a record as soon as records can be written again: readers can
//! always tell "nothing happened" from "you missed something".

use base64::Engine;
use serde_json::{Map, json};

use super::clock::now_us;
use super::committer::Committer;
use super::lines::{Line, Lines};
use crate::dialect::{Reader, Reading};
use crate::model::{Event, Plan, kind::notice};
use crate::spool::journal::Encoder;

/// The longest piece of standard error in one record.
const STDERR_PIECE: u64 = 64 * 1024;

/// See the module.
pub struct Recorder {
    reader: Box<dyn Reader>,
    encoder: Encoder,
    committer: Committer,
    events: Vec<Event>,
    stdout: Lines,
    stderr: Lines,
    stderr_left: u64,
    stderr_cut: u64,
    journal_max: u64,
    /// Kept free below the limit, for the records that end a session.
    reserve: u64,
    full: bool,
    lost: Lost,
    complete: bool,
    /// The whole lines that were recorded since they were last asked for, where somebody listens.
    heard: Option<Vec<Vec<u8>>>,
}

/// Output that is not in the journal and not yet said to be missing.
#[derive(Debug, Default)]
struct Lost {
    bytes: u64,
    lines: u64,
    /// The next bytes belong to a line whose beginning is lost.
    inside_line: bool,
}

impl Recorder {
    /// A recorder into a new journal.
    pub fn new(plan: &Plan, reader: Box<dyn Reader>, encoder: Encoder, committer: Committer) -> Recorder {
        Recorder {
            reader,
            encoder,
            committer,
            events: Vec::new(),
            stdout: Lines::new(plan.line_max),
            stderr: Lines::new(STDERR_PIECE),
            stderr_left: plan.stderr_max,
            stderr_cut: 0,
            journal_max: plan.journal_max,
            reserve: (64 << 10).min(plan.journal_max / 4),
            full: false,
            lost: Lost::default(),
            complete: true,
            heard: None,
        }
    }

    /// Records a fact of the executor itself. It may use the reserve.
    pub fn fact(&mut self, event: &Event) {
        let record = self.encoder.encode(now_us(), event, None);
        self.committer.push(&record);
    }

    /// Records what somebody said, or asks, as far as the journal's limit goes; `false`: it has no room, and is full.
    pub fn letter(&mut self, event: &Event) -> bool {
        let before = self.encoder.clone();
        let record = self.encoder.encode(now_us(), event, None);
        if self.full || !self.fits(record.len()) {
            self.encoder = before;
            self.full = true;
            return false;
        }
        self.committer.push(&record);
        true
    }

    /// Where the next record will begin.
    pub fn offset(&self) -> u64 {
        self.committer.offset()
    }

    /// From here on the lines are kept for [`Recorder::heard`].
    pub fn listen(&mut self) {
        self.heard = Some(Vec::new());
    }

    /// The whole lines of standard output since the last time. Those that are too long or lost are not among them.
    pub fn heard(&mut self) -> Vec<Vec<u8>> {
        self.heard.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Records what was read from standard output.
    pub fn stdout(&mut self, mut bytes: &[u8]) {
        if self.lost.inside_line {
            let Some(end) = bytes.iter().position(|&byte| byte == b'\n') else {
                self.lost.bytes += bytes.len() as u64;
                return;
            };
            self.lost.bytes += end as u64 + 1;
            self.lost.lines += 1;
            self.lost.inside_line = false;
            bytes = &bytes[end + 1..];
        }
        if !self.full {
            self.say_what_is_lost();
        }
        let mut lines = std::mem::replace(&mut self.stdout, Lines::new(1));
        lines.feed(bytes, |line| self.line(line));
        self.stdout = lines;
    }

    /// Counts output that is thrown away because records cannot be written fast enough.
    pub fn lose(&mut self, bytes: &[u8]) {
        self.complete = false;
        if let Some(line) = self.stdout.finish() {
            self.line(line);
        }
        self.lost.bytes += bytes.len() as u64;
        self.lost.lines += bytes.iter().filter(|&&byte| byte == b'\n').count() as u64;
        self.lost.inside_line = bytes.last() != Some(&b'\n');
    }

    /// Standard output is over.
    pub fn stdout_end(&mut self) {
        if let Some(line) = self.stdout.finish() {
            self.line(line);
        }
    }

    /// Records what was read from standard error, up to its limit.
    pub fn stderr(&mut self, bytes: &[u8]) {
        let kept = bytes.len().min(usize::try_from(self.stderr_left).unwrap_or(usize::MAX));
        self.stderr_left -= kept as u64;
        self.stderr_cut += (bytes.len() - kept) as u64;
        let mut lines = std::mem::replace(&mut self.stderr, Lines::new(1));
        lines.feed(&bytes[..kept], |line| self.stderr_line(line));
        self.stderr = lines;
    }

    /// Output still came when reading had to end, from processes that the program left behind.
    pub fn cut_short(&mut self) {
        self.complete = false;
        self.fact(&Event::notice(
            notice::GAP,
            "what processes left behind by the program still printed after its exit was not read",
        ));
    }

    /// Standard error is over.
    pub fn stderr_end(&mut self) {
        if let Some(line) = self.stderr.finish() {
            self.stderr_line(line);
        }
        if self.stderr_cut > 0 {
            let cut = std::mem::take(&mut self.stderr_cut);
            self.fact(&Event::Notice {
                reason: notice::STDERR_CUT.into(),
                text: format!("{cut} more bytes of standard error were not kept"),
                more: Map::from_iter([("bytes".to_owned(), json!(cut))]),
            });
        }
    }

    /// The program is gone: what the dialect makes of that.
    pub fn reader_end(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        self.reader.end(&mut events);
        for event in events.drain(..) {
            self.fact(&event);
        }
        self.events = events;
        self.say_what_is_lost();
    }

    /// What the lines so far add up to.
    pub fn reading(&self) -> &Reading {
        self.reader.reading()
    }

    /// The journal has reached its limit.
    pub fn full(&self) -> bool {
        self.full
    }

    /// Every line so far is in the journal.
    pub fn complete(&self) -> bool {
        self.complete
    }

    /// The journal's writer.
    pub fn committer(&self) -> &Committer {
        &self.committer
    }

    fn line(&mut self, line: Line) {
        let mut events = std::mem::take(&mut self.events);
        let mut whole = true;
        let (bytes, partial) = match line {
            Line::Whole { bytes, partial } => {
                self.reader.line(&bytes, &mut events);
                if events.is_empty() {
                    events.push(Event::Raw {});
                }
                (bytes, partial)
            }
            Line::TooLong { head, length, sha256 } => {
                self.complete = false;
                whole = false;
                events.push(Event::Notice {
                    reason: notice::LINE_TOO_LONG.into(),
                    text: format!("a line of {length} bytes was not kept whole"),
                    more: Map::from_iter([
                        ("bytes".to_owned(), json!(length)),
                        ("sha256".to_owned(), json!(sha256)),
                    ]),
                });
                (head, false)
            }
        };
        let before = self.encoder.clone();
        let mut records = Vec::new();
        for (index, event) in events.iter().enumerate().take_while(|_| !self.full) {
            // The source line stands with the first event that it gave.
            records.extend(match index {
                0 => self.encoder.encode_line(now_us(), event, &bytes, partial),
                _ => self.encoder.encode(now_us(), event, None),
            });
        }
        if self.full || !self.fits(records.len()) {
            // What was numbered is not written: the chain goes on from before it.
            self.encoder = before;
            self.full = true;
            self.lost.bytes += bytes.len() as u64 + u64::from(!partial);
            self.lost.lines += 1;
        } else {
            self.committer.push(&records);
            if let Some(heard) = self.heard.as_mut().filter(|_| whole) {
                heard.push(bytes);
            }
        }
        events.clear();
        self.events = events;
    }

    fn fits(&self, more: usize) -> bool {
        self.committer.offset() + more as u64 + self.reserve <= self.journal_max
    }

    fn stderr_line(&mut self, line: Line) {
        let bytes = match line {
            Line::Whole { bytes, .. } => bytes,
            Line::TooLong { head, length, .. } => {
                self.stderr_cut += length - head.len() as u64;
                head
            }
        };
        let bytes64 = std::str::from_utf8(&bytes)
            .is_err()
            .then(|| base64::engine::general_purpose::STANDARD.encode(&bytes));
        let event = Event::Stderr { text: String::from_utf8_lossy(&bytes).into_owned(), bytes64 };
        let before = self.encoder.clone();
        let record = self.encoder.encode(now_us(), &event, None);
        if self.full || !self.fits(record.len()) {
            self.encoder = before;
            self.stderr_cut += bytes.len() as u64 + 1;
        } else {
            self.committer.push(&record);
        }
    }

    fn say_what_is_lost(&mut self) {
        if self.lost.bytes == 0 {
            return;
        }
        let lost = std::mem::take(&mut self.lost);
        self.complete = false;
        let why = if self.full { "the journal is full" } else { "the disk was too slow" };
        self.fact(&Event::Notice {
            reason: notice::GAP.into(),
            text: format!("{} bytes of standard output are missing here: {why}", lost.bytes),
            more: Map::from_iter([
                ("bytes".to_owned(), json!(lost.bytes)),
                ("lines".to_owned(), json!(lost.lines)),
            ]),
        });
    }
}
