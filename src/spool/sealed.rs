//! Lines of the spool's own logs, and its small files: a JSON object that ends with a checksum over what stands before
//! it, so that it is either exactly what was written or is known not to be.

use sha2::{Digest, Sha256};

use super::record::hex;

const MARK: &[u8] = b",\"sum\":\"";
/// `,"sum":"` + 16 hex + `"}`.
const TAIL: usize = MARK.len() + 16 + 2;

fn sum(body: &[u8]) -> String {
    hex(&Sha256::digest(body)[..8])
}

/// The line for a JSON object, with its line feed.
pub(crate) fn seal(value: &impl serde::Serialize) -> Result<Vec<u8>, serde_json::Error> {
    let mut line = serde_json::to_vec(value)?;
    line.pop();
    let sum = sum(&line);
    line.extend_from_slice(MARK);
    line.extend_from_slice(sum.as_bytes());
    line.extend_from_slice(b"\"}\n");
    Ok(line)
}

/// The value of a line (with or without its line feed); `None` if it is not exactly what was written.
pub(crate) fn unseal<T: serde::de::DeserializeOwned>(line: &[u8]) -> Option<T> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let (body, tail) = line.split_at_checked(line.len().checked_sub(TAIL)?)?;
    let written = tail.strip_prefix(MARK)?.strip_suffix(b"\"}")?;
    if written != sum(body).as_bytes() {
        return None;
    }
    let object = [body, b"}"].concat();
    serde_json::from_slice(&object).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_line_is_what_was_written_or_nothing() {
        let value = BTreeMap::from([("a", "x\ny"), ("b", "ü")].map(|(k, v)| (k.to_owned(), v.to_owned())));
        let line = seal(&value).expect("sealed");
        assert_eq!(unseal(&line), Some(value.clone()));
        for bit in 0..(line.len() - 1) * 8 {
            let mut bad = line.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(unseal::<BTreeMap<String, String>>(&bad), None, "bit {bit}");
        }
        for length in 0..line.len() - 1 {
            assert_eq!(unseal::<BTreeMap<String, String>>(&line[..length]), None, "length {length}");
        }
    }
}
