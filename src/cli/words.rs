//! The command line's words as values.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::model::{End, Phase, State};

/// A state by its word.
pub fn state(word: &str) -> Result<State, String> {
    known(word, &["queued", "accepted", "driving", "finished", "reconciliation-required"])
}

/// A phase by its word.
pub fn phase(word: &str) -> Result<Phase, String> {
    known(word, &["pending", "running", "complete", "failed", "cancelled"])
}

/// An end by its word.
pub fn end(word: &str) -> Result<End, String> {
    let words: Vec<String> = End::ALL.iter().map(End::to_string).collect();
    known(word, &words)
}

fn known<T: DeserializeOwned>(word: &str, words: &[impl AsRef<str>]) -> Result<T, String> {
    serde_json::from_value(Value::from(word)).map_err(|_| {
        let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
        format!("use one of {}", words.join(", "))
    })
}

/// A duration: a number of seconds, or one with `s`, `m`, `h` or `d`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let (digits, unit) = match text.strip_suffix(['s', 'm', 'h', 'd']) {
        Some(digits) => (digits, &text[digits.len()..]),
        None => (text, "s"),
    };
    let factor = match unit {
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => 1,
    };
    let seconds = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
    seconds.map(Duration::from_secs).ok_or_else(|| "use seconds, or a number with s, m, h or d".to_owned())
}

/// The same in seconds.
pub fn seconds(text: &str) -> Result<u64, String> {
    duration(text).map(|duration| duration.as_secs())
}

/// A size: a number of bytes, or one with `K`, `M`, `G` or `T` (powers of 1024).
pub fn bytes(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.char_indices().last() {
        Some((at, 'K' | 'k')) => (&text[..at], 10),
        Some((at, 'M' | 'm')) => (&text[..at], 20),
        Some((at, 'G' | 'g')) => (&text[..at], 30),
        Some((at, 'T' | 't')) => (&text[..at], 40),
        _ => (text, 0),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    bytes.ok_or_else(|| "use bytes, or a number with K, M, G or T".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes_have_units() {
        assert_eq!(duration("90"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("2h"), Ok(Duration::from_secs(7200)));
        assert_eq!(bytes("4G"), Ok(4 << 30));
        assert_eq!(bytes("17"), Ok(17));
        for wrong in ["", "h", "-1", "1.5h", "1 h", "99999999999999999999", "18446744073709551615d", "5ä"] {
            assert!(duration(wrong).is_err(), "{wrong}");
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_word_of_the_interface_is_known() {
        for word in End::ALL {
            assert_eq!(end(&word.to_string()), Ok(word));
        }
        assert_eq!(state("reconciliation-required"), Ok(State::ReconciliationRequired));
        assert!(phase("done").unwrap_err().contains("complete"));
    }
}
