use sha2::{Digest, Sha256};

const MARK: &[u8] = b",\"sum\":\"";
const SUM: usize = 32;
/// The bytes that end every line: `,"sum":"`, 32 digits, `"}` and the line feed.
pub(super) const TAIL: usize = MARK.len() + SUM + 3;

/// A line's sum: 32 digits of lower-case hex.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sum([u8; SUM]);

impl Sum {
    /// What the header continues from.
    pub(super) const ORIGIN: Sum = Sum([b'0'; SUM]);

    /// The sum of a line that follows one with this sum; `body` is the line before its own `sum` key.
    pub(super) fn next(&self, body: &[u8]) -> Sum {
        let mut hash = Sha256::new();
        hash.update(self.0);
        hash.update(body);
        let digest = hash.finalize();
        let mut sum = [0; SUM];
        for (digits, byte) in sum.chunks_exact_mut(2).zip(&digest[..SUM / 2]) {
            digits[0] = b"0123456789abcdef"[usize::from(byte >> 4)];
            digits[1] = b"0123456789abcdef"[usize::from(byte & 15)];
        }
        Sum(sum)
    }

    /// Ends the line whose body begins at `start` of `out`, and gives its sum.
    pub(super) fn close(&self, out: &mut Vec<u8>, start: usize) -> Sum {
        let sum = self.next(&out[start..]);
        out.extend_from_slice(MARK);
        out.extend_from_slice(&sum.0);
        out.extend_from_slice(b"\"}\n");
        sum
    }
}

/// The sum that stands in a line's last [`TAIL`] bytes, if they have the form of one.
pub(super) fn written(tail: &[u8]) -> Option<Sum> {
    let sum = tail.strip_prefix(MARK)?.strip_suffix(b"\"}\n")?;
    let digits = sum.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    sum.try_into().ok().filter(|_| digits).map(Sum)
}

/// A whole line as body and tail; `None` if it is too short to be one.
pub(super) fn split(line: &[u8]) -> Option<(&[u8], &[u8])> {
    line.len().checked_sub(TAIL).filter(|&body| body > 0).map(|body| line.split_at(body))
}
