//! Standard output cut into lines: on the byte 0x0A and on nothing else, whatever the size.

use sha2::{Digest, Sha256};

/// How much of a line beyond the limit is kept.
const HEAD: usize = 64 * 1024;

/// One line without its line feed.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// As the program printed it. `partial`: the output ended before a line feed came.
    Whole {
        /// The bytes.
        bytes: Vec<u8>,
        /// No line feed followed.
        partial: bool,
    },
    /// Longer than the limit.
    TooLong {
        /// Its first 64 KiB.
        head: Vec<u8>,
        /// All its bytes, counted.
        length: u64,
        /// All its bytes, SHA-256, hexadecimal.
        sha256: String,
    },
}

/// Splits a stream into [`Line`]s; holds at most one line of the limit in memory.
#[derive(Debug)]
pub struct Lines {
    limit: usize,
    buffer: Vec<u8>,
    over: Option<Over>,
}

#[derive(Debug)]
struct Over {
    digest: Sha256,
    length: u64,
}

impl Lines {
    /// A splitter whose lines are whole up to `limit` bytes.
    pub fn new(limit: u64) -> Lines {
        Lines { limit: usize::try_from(limit).unwrap_or(usize::MAX).max(1), buffer: Vec::new(), over: None }
    }

    /// Takes what was read and hands on every line that is finished by it.
    pub fn feed(&mut self, mut bytes: &[u8], mut hand_on: impl FnMut(Line)) {
        while let Some(end) = memchr(bytes) {
            self.extend(&bytes[..end]);
            hand_on(self.take(false));
            bytes = &bytes[end + 1..];
        }
        self.extend(bytes);
    }

    /// The stream is over: what stands after the last line feed, if anything.
    pub fn finish(&mut self) -> Option<Line> {
        (self.over.is_some() || !self.buffer.is_empty()).then(|| self.take(true))
    }

    fn extend(&mut self, bytes: &[u8]) {
        if let Some(over) = &mut self.over {
            over.digest.update(bytes);
            over.length += bytes.len() as u64;
        } else if self.buffer.len() + bytes.len() > self.limit {
            let mut digest = Sha256::new();
            digest.update(&self.buffer);
            digest.update(bytes);
            self.over = Some(Over { digest, length: (self.buffer.len() + bytes.len()) as u64 });
            let wanted = HEAD.saturating_sub(self.buffer.len()).min(bytes.len());
            self.buffer.extend_from_slice(&bytes[..wanted]);
            self.buffer.truncate(HEAD);
            self.buffer.shrink_to_fit();
        } else {
            self.buffer.extend_from_slice(bytes);
        }
    }

    fn take(&mut self, partial: bool) -> Line {
        let bytes = std::mem::take(&mut self.buffer);
        match self.over.take() {
            None => Line::Whole { bytes, partial },
            Some(over) => {
                Line::TooLong { head: bytes, length: over.length, sha256: hex(&over.digest.finalize()) }
            }
        }
    }
}

fn memchr(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|&byte| byte == b'\n')
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split(limit: u64, pieces: &[&[u8]]) -> Vec<Line> {
        let mut lines = Lines::new(limit);
        let mut found = Vec::new();
        for piece in pieces {
            lines.feed(piece, |line| found.push(line));
        }
        found.extend(lines.finish());
        found
    }

    fn whole(bytes: &[u8]) -> Line {
        Line::Whole { bytes: bytes.to_vec(), partial: false }
    }

    #[test]
    fn only_the_line_feed_splits() {
        let line = "a\u{2028}b\u{85}c\rd\u{b}\u{c}\0".as_bytes();
        assert_eq!(split(99, &[line, b"\n\n"]), [whole(line), whole(b"")]);
    }

    #[test]
    fn the_remainder_is_partial() {
        assert_eq!(split(99, &[b"a\nb"])[1], Line::Whole { bytes: b"b".to_vec(), partial: true });
        assert_eq!(split(99, &[b"a\n"]).len(), 1);
    }

    #[test]
    fn a_line_over_the_limit_keeps_head_length_and_digest() {
        let long = vec![b'x'; 200_000];
        let mut stream = long.clone();
        stream.extend_from_slice(b"\nnext\n");
        let found = split(100_000, &[&stream[..70_000], &stream[70_000..]]);
        let digest = hex(&Sha256::digest(&long));
        assert_eq!(found[0], Line::TooLong { head: vec![b'x'; HEAD], length: 200_000, sha256: digest });
        assert_eq!(found[1], whole(b"next"));
    }

    proptest! {
        #[test]
        fn lines_join_to_what_was_fed_however_it_was_torn(
            stream in proptest::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..300),
            step in 1usize..40,
        ) {
            let pieces: Vec<&[u8]> = stream.chunks(step).collect();
            let mut joined = Vec::new();
            for line in split(1000, &pieces) {
                let Line::Whole { bytes, partial } = line else { panic!("nothing is too long here") };
                joined.extend(bytes);
                if !partial {
                    joined.push(b'\n');
                }
            }
            prop_assert_eq!(joined, stream);
        }
    }
}
