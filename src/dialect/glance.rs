//! What a talk must know of a line before it reads all of it: most lines are nothing to a talk, and some are very large.

use serde::Deserialize;
use serde_json::Value;

use super::json::{Line, parse_object, text};

/// The keys by which talks know their lines.
#[derive(Debug, Default, Deserialize)]
struct Head {
    #[serde(rename = "type")]
    kind: Option<String>,
    subtype: Option<String>,
    method: Option<String>,
    id: Option<Value>,
    #[serde(rename = "isReplay")]
    replay: Option<bool>,
    #[serde(rename = "willRetry")]
    will_retry: Option<bool>,
}

/// A line of which only the outermost keys were looked at.
#[derive(Debug)]
pub(super) struct Glance<'a> {
    bytes: &'a [u8],
    whole: Option<Line>,
    head: Head,
}

impl<'a> Glance<'a> {
    /// Looks at a line; `None` where it is no JSON object.
    pub fn at(bytes: &'a [u8]) -> Option<Glance<'a>> {
        if bytes.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
            return None;
        }
        if let Ok(head) = serde_json::from_slice(bytes) {
            return Some(Glance { bytes, whole: None, head });
        }
        // Keys twice, other types, lone surrogates: the tolerant way.
        let line = parse_object(bytes)?;
        let flag = |key| line.value().get(key).and_then(Value::as_bool);
        let word = |key| text(line.value(), key).map(str::to_owned);
        let head = Head {
            kind: word("type"),
            subtype: word("subtype"),
            method: word("method"),
            id: line.value().get("id").cloned(),
            replay: flag("isReplay"),
            will_retry: flag("willRetry"),
        };
        Some(Glance { bytes, whole: Some(line), head })
    }

    /// Its `type`.
    pub fn kind(&self) -> Option<&str> {
        self.head.kind.as_deref()
    }

    /// Its `subtype`.
    pub fn subtype(&self) -> Option<&str> {
        self.head.subtype.as_deref()
    }

    /// Its `method`.
    pub fn method(&self) -> Option<&str> {
        self.head.method.as_deref()
    }

    /// It has an `id`.
    pub fn has_id(&self) -> bool {
        self.head.id.is_some()
    }

    /// It says `isReplay`.
    pub fn is_replay(&self) -> bool {
        self.head.replay == Some(true)
    }

    /// What it says of `willRetry`.
    pub fn will_retry(&self) -> Option<bool> {
        self.head.will_retry
    }

    /// All of it.
    pub fn whole(self) -> Option<Line> {
        self.whole.or_else(|| parse_object(self.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_glance_sees_what_the_whole_line_says() {
        for line in [
            r#"{"type":"user","isReplay":true,"method":"m","willRetry":false}"#,
            r#" {"willRetry":false,"x":"\ud83d","method":"m","isReplay":true,"type":"user"}"#,
            r#"{"type":"other","isReplay":7,"isReplay":true,"method":"m","willRetry":false,"type":"user"}"#,
        ] {
            let glance = Glance::at(line.as_bytes()).expect("an object");
            assert_eq!(
                (glance.kind(), glance.method(), glance.is_replay(), glance.will_retry()),
                (Some("user"), Some("m"), true, Some(false)),
                "{line}"
            );
            assert!(glance.whole().is_some());
        }
        for line in ["", "[]", "{", "\"x\"", "{\"type\":}", "type"] {
            assert!(Glance::at(line.as_bytes()).is_none(), "{line}");
        }
        assert_eq!(Glance::at(b"{\"type\":5}").expect("an object").kind(), None);
    }
}
