//! The command line's words as values.

use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::model::{End, Phase, State};

/// Of a session's states.
const STATES: [&str; 5] = ["queued", "accepted", "driving", "finished", "reconciliation-required"];
/// Of a run's phases.
const PHASES: [&str; 5] = ["pending", "running", "complete", "failed", "cancelled"];
/// Of a session's ends.
const ENDS: [&str; 16] = [
    "completed",
    "failed",
    "cancelled",
    "deadline",
    "idle",
    "lease-lost",
    "out-of-memory",
    "journal-full",
    "journal-failed",
    "spawn-failed",
    "no-output",
    "limit-reached",
    "killed",
    "stopped-with-service",
    "interrupted",
    "invalid-output",
];

/// Takes a state by its word.
pub fn state() -> impl TypedValueParser<Value = State> {
    one_of(&STATES)
}

/// Takes a phase by its word.
pub fn phase() -> impl TypedValueParser<Value = Phase> {
    one_of(&PHASES)
}

/// Takes an end by its word.
pub fn end() -> impl TypedValueParser<Value = End> {
    one_of(&ENDS)
}

/// Help, manual pages and completions have the words too.
fn one_of<T>(words: &'static [&'static str]) -> impl TypedValueParser<Value = T>
where
    T: DeserializeOwned + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(words).try_map(|word| serde_json::from_value::<T>(Value::from(word)))
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
        let command = clap::Command::new("x");
        let parse = |word: &str| end().parse_ref(&command, None, word.as_ref());
        assert_eq!(ENDS.map(|word| parse(word).expect(word)), End::ALL);
        for word in STATES {
            assert_eq!(state().parse_ref(&command, None, word.as_ref()).expect(word).to_string(), word);
        }
        for word in PHASES {
            assert_eq!(phase().parse_ref(&command, None, word.as_ref()).expect(word).to_string(), word);
        }
        assert!(parse("done").is_err());
    }
}
