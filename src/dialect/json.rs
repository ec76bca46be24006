//! One line of JSON, read tolerantly.
//!
//! `serde_json` does the work: keys in any order, the last of two equal keys counts, numbers that fit no `f64` and
//! nesting deeper than 128 are refused. On top of it one thing is accepted that it refuses and that programs print: an
//! escaped surrogate without its other half (`"\ud83d"`). In texts it is U+FFFD. Because a model's stream may cut a pair
//! in two, a [`Piece`] also tells with which half a text begins or ends, and [`Joiner`] puts the pair together again.

use serde_json::Value;

/// Marks a lone surrogate in [`Line::marked`]: this character and four hexadecimal digits. A U+FFFE of the text itself is
/// written there as its own code in the same way, so that no text can be taken for a mark.
const MARK: char = '\u{fffe}';

/// A line that is JSON.
#[derive(Debug)]
pub(super) struct Line {
    value: Value,
    /// The same value with lone surrogates marked; only where there are any.
    marked: Option<Value>,
}

/// A text between two others of the same message.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Piece {
    /// The text without the halves at its ends.
    text: String,
    /// It begins with the second half of a pair.
    second: Option<u16>,
    /// It ends with the first half of a pair.
    first: Option<u16>,
}

/// Puts the pieces of one text together.
#[derive(Debug, Default)]
pub(super) struct Joiner {
    held: Option<u16>,
}

/// Reads a line; `None` where it is not JSON.
pub(super) fn parse(bytes: &[u8]) -> Option<Line> {
    if let Ok(value) = serde_json::from_slice(bytes) {
        return Some(Line { value, marked: None });
    }
    let (plain, marked) = rewrite_lone_surrogates(bytes)?;
    let value = serde_json::from_slice(&plain).ok()?;
    let marked = serde_json::from_slice(&marked).ok()?;
    Some(Line { value, marked: Some(marked) })
}

/// Reads a line that is a JSON object; everything else is `None`, most of it without being parsed.
pub(super) fn parse_object(bytes: &[u8]) -> Option<Line> {
    if bytes.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        return None;
    }
    parse(bytes).filter(|line| line.value.is_object())
}

impl Line {
    /// The value, lone surrogates replaced by U+FFFD.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// The text at `path`, as a piece of a longer one.
    pub fn piece(&self, path: &[&str]) -> Option<Piece> {
        let at = |value| path.iter().try_fold(value, |value: &Value, key| value.get(key))?.as_str();
        match &self.marked {
            None => at(&self.value).map(|text| Piece { text: text.to_owned(), ..Piece::default() }),
            Some(marked) => at(marked).map(unmark),
        }
    }
}

impl Joiner {
    /// What `piece` adds to the text. The first half of a pair waits for the next piece.
    pub fn push(&mut self, piece: Piece) -> String {
        if piece == Piece::default() {
            return String::new();
        }
        let mut text = match (self.held.take(), piece.second) {
            (Some(first), Some(second)) => pair(first, second).to_string(),
            (None, None) => String::new(),
            _ => char::REPLACEMENT_CHARACTER.to_string(),
        };
        if text.is_empty() {
            text = piece.text;
        } else {
            text.push_str(&piece.text);
        }
        self.held = piece.first;
        text
    }

    /// Whether the first half of a pair waits for its second.
    pub fn is_waiting(&self) -> bool {
        self.held.is_some()
    }

    /// The text ends here: what is still to be added to it.
    pub fn finish(&mut self) -> Option<char> {
        self.held.take().map(|_| char::REPLACEMENT_CHARACTER)
    }
}

fn pair(first: u16, second: u16) -> char {
    char::decode_utf16([first, second]).next().and_then(Result::ok).unwrap_or(char::REPLACEMENT_CHARACTER)
}

fn is_first(unit: u16) -> bool {
    (0xd800..0xdc00).contains(&unit)
}

fn is_second(unit: u16) -> bool {
    (0xdc00..0xe000).contains(&unit)
}

/// The line twice: with U+FFFD, and with marks, in the place of every lone surrogate. `None` if it has none.
///
/// It looks at backslashes only. In JSON they stand nowhere but in strings, and what is not JSON is refused afterwards.
fn rewrite_lone_surrogates(bytes: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut plain = Vec::with_capacity(bytes.len());
    let mut marked = Vec::with_capacity(bytes.len() + 64);
    let mut found = false;
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let rest = &bytes[at..];
        let mut taken = 1;
        let mut mark = None;
        if rest.starts_with("\u{fffe}".as_bytes()) {
            (taken, mark) = (3, Some(0xfffe));
        } else if byte == b'\\' {
            (taken, mark) = match escaped_unit(rest) {
                Some(first) if is_first(first) => match escaped_unit(&rest[6..]) {
                    Some(second) if is_second(second) => (12, None),
                    _ => (6, Some(first)),
                },
                Some(unit) if is_second(unit) || unit == 0xfffe => (6, Some(unit)),
                Some(_) => (6, None),
                None => (rest.len().min(2), None),
            };
        }
        match mark {
            Some(unit) => {
                let own = unit == 0xfffe;
                found |= !own;
                plain.extend_from_slice(if own { b"\\ufffe" } else { b"\\ufffd" });
                marked.extend_from_slice(format!("\\ufffe{unit:04x}").as_bytes());
            }
            None => {
                plain.extend_from_slice(&rest[..taken]);
                marked.extend_from_slice(&rest[..taken]);
            }
        }
        at += taken;
    }
    found.then_some((plain, marked))
}

/// The code unit of a `\uXXXX` at the beginning of `bytes`.
fn escaped_unit(bytes: &[u8]) -> Option<u16> {
    let digits = bytes.strip_prefix(b"\\u")?.get(..4)?;
    digits.iter().try_fold(0u16, |unit, digit| Some(unit * 16 + (*digit as char).to_digit(16)? as u16))
}

/// Reads the marks of a text back.
fn unmark(text: &str) -> Piece {
    let mut piece = Piece::default();
    let mut rest = text;
    while let Some(mark) = rest.find(MARK) {
        let (before, after) = (&rest[..mark], &rest[mark + MARK.len_utf8()..]);
        let unit = after.get(..4).and_then(|digits| u16::from_str_radix(digits, 16).ok());
        let beginning = mark == 0 && rest.len() == text.len();
        piece.text.push_str(before);
        rest = after.get(4..).unwrap_or_default();
        match unit {
            Some(unit) if is_second(unit) && beginning => piece.second = Some(unit),
            Some(unit) if is_first(unit) && rest.is_empty() => piece.first = Some(unit),
            Some(0xfffe) => piece.text.push(MARK),
            _ => piece.text.push(char::REPLACEMENT_CHARACTER),
        }
    }
    piece.text.push_str(rest);
    piece
}

/// As much of `text` as fits in so many bytes.
pub(super) fn cut_at(text: &str, bytes: usize) -> &str {
    let mut end = bytes.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// The text under `key`.
pub(super) fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key)?.as_str()
}

/// The text at the end of `path`.
pub(super) fn text_at<'a>(value: &'a Value, path: &[&str]) -> Option<&'a str> {
    path.iter().try_fold(value, |value, key| value.get(key))?.as_str()
}

/// The texts of a message's or a tool's content, a line each; pictures and the like are left out.
pub(super) fn texts(parts: &[Value]) -> String {
    let texts: Vec<&str> = parts.iter().filter_map(|part| text(part, "text")).collect();
    texts.join("\n")
}

/// The number that is not negative under `key`; a whole number that is written as `1.0` counts too.
pub(super) fn number(value: &Value, key: &str) -> Option<u64> {
    let number = value.get(key)?;
    number.as_u64().or_else(|| {
        let float = number.as_f64()?;
        (float.fract() == 0.0 && (0.0..9.0e15).contains(&float)).then_some(float as u64)
    })
}

/// Whether `key` holds `true`.
pub(super) fn flag(value: &Value, key: &str) -> bool {
    value.get(key).and_then(Value::as_bool).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn string(json: &str) -> Option<String> {
        parse(json.as_bytes())?.value().as_str().map(str::to_owned)
    }

    #[test]
    fn lone_surrogates_are_replaced() {
        assert_eq!(string(r#""\ud83d""#).as_deref(), Some("\u{fffd}"));
        assert_eq!(string(r#""a\ude00b""#).as_deref(), Some("a\u{fffd}b"));
        assert_eq!(string(r#""\uD83D\uD83D\uDE00""#).as_deref(), Some("\u{fffd}\u{1f600}"));
        assert_eq!(string(r#""\\ud83d \ud83d""#).as_deref(), Some("\\ud83d \u{fffd}"));
        assert_eq!(string(r#""\ufffe￾\udc00""#).as_deref(), Some("\u{fffe}\u{fffe}\u{fffd}"));
    }

    #[test]
    fn a_pair_cut_in_two_is_put_together() {
        let mut joiner = Joiner::default();
        let mut whole = String::new();
        for line in [r#"{"a":{"t":"x\ufffe\ud83d"}}"#, r#"{"a":{"t":""}}"#, r#"{"a":{"t":"\ude00y\udc00z"}}"#]
        {
            let line = parse(line.as_bytes()).expect("json");
            whole.push_str(&joiner.push(line.piece(&["a", "t"]).expect("a text")));
        }
        whole.extend(joiner.finish());
        assert_eq!(whole, "x\u{fffe}\u{1f600}y\u{fffd}z");
    }

    #[test]
    fn what_is_not_json_is_none() {
        for line in
            ["", "NaN", "{\"a\":NaN}", "{\"a\":1", "\"\\ud83d", "{}\0", "'a'", "{\"a\":\"\\ud8\"}", "\\ud83d"]
        {
            assert!(parse(line.as_bytes()).is_none(), "{line}");
        }
        assert!(parse(b"\"\xff\"").is_none());
        assert!(parse(&vec![b'['; 100_000]).is_none());
        assert!(parse("{\"a\":".repeat(100_000).as_bytes()).is_none());
    }

    #[test]
    fn the_last_of_two_keys_counts() {
        let line = parse(br#"{"id":"item_1","type":"t","id":"ws_1"}"#).expect("json");
        assert_eq!(text(line.value(), "id"), Some("ws_1"));
    }

    fn escaped(units: &[u16]) -> String {
        let escapes: String = units.iter().map(|unit| format!("\\u{unit:04X}")).collect();
        format!("{{\"t\":\"{escapes}\"}}")
    }

    proptest! {
        #[test]
        fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn nothing_panics_near_json(line in r#"[\[\]{}:," \\ud8D9cFfEe0-]{0,80}"#) {
            let _ = parse(line.as_bytes());
        }

        #[test]
        fn it_agrees_with_serde_json(line in r#"[\[\]{}:,"a1\\unt]{0,40}"#) {
            if let Ok(value) = serde_json::from_str::<Value>(&line) {
                prop_assert_eq!(parse(line.as_bytes()).map(|line| line.value), Some(value));
            }
        }

        /// Any code units, cut anywhere: the joined text is what the whole would have been.
        #[test]
        fn cuts_change_nothing(
            units in prop::collection::vec(prop_oneof![0xd7feu16..0xe002, 0xfffcu16..=0xffff, any::<u16>()], 0..24),
            cuts in prop::collection::vec(0usize..24, 0..6),
        ) {
            let whole = String::from_utf16_lossy(&units);
            let line = escaped(&units);
            let parsed = parse(line.as_bytes()).expect("json");
            prop_assert_eq!(text(parsed.value(), "t"), Some(whole.as_str()));
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(units.len())).collect();
            cuts.extend([0, units.len()]);
            cuts.sort_unstable();
            let mut joiner = Joiner::default();
            let mut joined = String::new();
            for ends in cuts.windows(2) {
                let line = escaped(&units[ends[0]..ends[1]]);
                let line = parse(line.as_bytes()).expect("json");
                joined.push_str(&joiner.push(line.piece(&["t"]).expect("a text")));
            }
            joined.extend(joiner.finish());
            prop_assert_eq!(joined, whole);
        }
    }
}
