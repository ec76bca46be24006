//! Our types as D-Bus dictionaries: JSON values, as serde makes them of the vocabulary, to `a{sv}`.
//!
//! | JSON | D-Bus |
//! |---|---|
//! | integer | `t`; `x` if it is negative |
//! | other number | `d` |
//! | boolean, string, object | `b`, `s`, `a{sv}` |
//! | array of strings, of objects, of anything else | `as`, `aa{sv}`, `av` |
//! | null | the key is left out |
//!
//! What D-Bus cannot carry is changed visibly, and a key beside it says so:
//!
//! | key beside `k` | meaning |
//! |---|---|
//! | `k-replaced` (b) | each NUL of the text was replaced by U+FFFD |
//! | `k-cut` (t) | only the beginning is here; the number is the full length, in bytes of a text, elements of a list |
//! | `k-json` (b) | the value is nested deeper than D-Bus allows, or holds a null in a list: it is here as JSON text |
//!
//! The exact bytes are always in `Follow`.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::{Map, Value};
use zbus::wire::{Array, Dict, Signature, Variant};

use super::BusError;

/// A dictionary for a reply or a signal.
pub type Vardict = HashMap<String, Variant<'static>>;

/// How many bytes may go out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Of one text.
    pub text: usize,
    /// Of everything together. What is short (numbers, texts up to [`SHORT`]) goes out beyond it.
    pub total: usize,
}

/// A text up to this many bytes is never cut.
pub const SHORT: usize = 256;

/// Deeper nesting than this goes out as JSON text: the D-Bus specification ends at 64 containers, three a level.
const MAX_DEPTH: usize = 12;

impl Budget {
    /// For a reply: texts up to 4 MiB, 24 MiB in all, well below what a bus disconnects a service for.
    pub const REPLY: Budget = Budget { text: 4 << 20, total: 24 << 20 };

    fn take(&mut self, bytes: usize) {
        self.total = self.total.saturating_sub(bytes);
    }
}

/// Any of our types that serialises to a JSON object, as a dictionary.
pub fn vardict<T: Serialize>(value: &T) -> Result<Vardict, BusError> {
    vardict_within(value, &mut Budget::REPLY.clone())
}

/// The same, for one of several that share a reply.
pub fn vardict_within<T: Serialize>(value: &T, budget: &mut Budget) -> Result<Vardict, BusError> {
    match serde_json::to_value(value) {
        Ok(Value::Object(map)) => {
            let mut dict = Vardict::new();
            append(&mut dict, &map, budget);
            Ok(dict)
        }
        Ok(_) => Err(BusError::new("Internal", "an answer is no dictionary")),
        Err(error) => Err(BusError::new("Internal", format_args!("an answer cannot be written: {error}"))),
    }
}

/// Adds all of `map` to `dict`. Returns whether anything had to be cut.
pub fn append(dict: &mut Vardict, map: &Map<String, Value>, budget: &mut Budget) -> bool {
    let mut cut = false;
    for (key, value) in map {
        cut |= put(dict, key, value, budget, 0);
    }
    cut
}

/// Adds one text to `dict`, cut to what the budget allows. Returns whether it was cut.
pub fn append_text(dict: &mut Vardict, key: &str, text: &str, budget: &mut Budget) -> bool {
    put_text(dict, key, text, budget)
}

fn put(dict: &mut Vardict, key: &str, value: &Value, budget: &mut Budget, depth: usize) -> bool {
    let (key, _) = carriable(key);
    // Name, signature and padding of an entry.
    budget.take(key.len() + 16);
    let variant = match value {
        Value::Null => return false,
        Value::Bool(b) => Variant::from(*b),
        Value::Number(n) => number(n),
        Value::String(text) => return put_text(dict, &key, text, budget),
        Value::Array(_) | Value::Object(_) if depth >= MAX_DEPTH || unlistable(value) => {
            dict.insert(format!("{key}-json"), Variant::from(true));
            return put_text(dict, &key, &value.to_string(), budget);
        }
        Value::Array(items) => return put_list(dict, &key, items, budget, depth),
        Value::Object(map) => {
            let (inner, cut) = object(map, budget, depth + 1);
            if cut {
                dict.insert(format!("{key}-cut"), Variant::from(map.len() as u64));
            }
            dict.insert(key, Variant::Dict(inner));
            return cut;
        }
    };
    dict.insert(key, variant);
    false
}

fn put_text(dict: &mut Vardict, key: &str, text: &str, budget: &mut Budget) -> bool {
    let room = budget.text.min(budget.total).max(SHORT);
    let shown = head(text, room);
    let cut = shown.len() < text.len();
    if cut {
        dict.insert(format!("{key}-cut"), Variant::from(text.len() as u64));
    }
    budget.take(shown.len());
    let (shown, replaced) = carriable(shown);
    if replaced {
        dict.insert(format!("{key}-replaced"), Variant::from(true));
    }
    dict.insert(key.to_owned(), Variant::from(shown));
    cut
}

fn put_list(dict: &mut Vardict, key: &str, items: &[Value], budget: &mut Budget, depth: usize) -> bool {
    let all_text = !items.is_empty() && items.iter().all(Value::is_string);
    let all_objects = !items.is_empty() && items.iter().all(Value::is_object);
    let element = if all_text {
        Signature::Str
    } else if all_objects {
        dict_signature()
    } else {
        Signature::Variant
    };
    let mut list = Array::new(&element);
    let (mut cut, mut replaced) = (false, false);
    for item in items {
        if budget.total == 0 {
            cut = true;
            break;
        }
        budget.take(16);
        // A list has no key beside an element: what happens to any of them is said of the list.
        let mut one = Vardict::new();
        cut |= put(&mut one, "e", item, budget, depth + 1);
        replaced |= one.contains_key("e-replaced");
        let Some(variant) = one.remove("e") else { continue };
        let variant = if all_text || all_objects { variant } else { Variant::Variant(Box::new(variant)) };
        if list.append(variant).is_err() {
            cut = true;
        }
    }
    if cut {
        dict.insert(format!("{key}-cut"), Variant::from(items.len() as u64));
    }
    if replaced {
        dict.insert(format!("{key}-replaced"), Variant::from(true));
    }
    dict.insert(key.to_owned(), Variant::Array(list));
    cut
}

fn object(map: &Map<String, Value>, budget: &mut Budget, depth: usize) -> (Dict<'static, 'static>, bool) {
    let mut inner = Vardict::new();
    let mut cut = false;
    for (key, value) in map {
        if budget.total == 0 {
            cut = true;
            break;
        }
        cut |= put(&mut inner, key, value, budget, depth);
    }
    (inner.into(), cut)
}

fn number(n: &serde_json::Number) -> Variant<'static> {
    if let Some(unsigned) = n.as_u64() {
        Variant::from(unsigned)
    } else if let Some(signed) = n.as_i64() {
        Variant::from(signed)
    } else {
        Variant::from(n.as_f64().unwrap_or(f64::NAN))
    }
}

/// A list with a null: dropping it would move the others, and D-Bus has no null. Lists of lists stay lists of
/// variants; only what is directly in the list counts.
fn unlistable(value: &Value) -> bool {
    matches!(value, Value::Array(items) if items.iter().any(|item| item.is_null() || unlistable(item)))
}

/// The text without what D-Bus strings cannot hold (specification: "must not contain U+0000").
fn carriable(text: &str) -> (String, bool) {
    if text.contains('\0') { (text.replace('\0', "\u{fffd}"), true) } else { (text.to_owned(), false) }
}

/// The longest beginning of `text` of at most `max` bytes that ends between two characters.
fn head(text: &str, max: usize) -> &str {
    if text.len() <= max {
        return text;
    }
    let mut end = max;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn dict_signature() -> Signature {
    Signature::dict(Signature::Str, Signature::Variant)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use zbus::wire::{Endian, serialized::Context, to_bytes};

    use super::*;

    fn convert(value: &Value, budget: Budget) -> (Vardict, bool) {
        let mut dict = Vardict::new();
        let cut = append(&mut dict, value.as_object().expect("an object"), &mut budget.clone());
        // Whatever comes out must be something that D-Bus can carry.
        to_bytes(Context::new(Endian::Little, 0), &dict).expect("a valid D-Bus value");
        (dict, cut)
    }

    fn signature(dict: &Vardict, key: &str) -> String {
        dict[key].value_signature().to_string()
    }

    #[test]
    fn each_json_type_has_its_dbus_type() {
        let (dict, cut) = convert(
            &json!({"t": 5, "x": -5, "d": 0.0, "b": true, "s": "a", "as": ["a"], "objects": [{"a": 1}],
                    "av": [1, "a"], "empty": [], "object": {"a": [1]}, "null": null}),
            Budget::REPLY,
        );
        assert!(!cut);
        for (key, expected) in [
            ("t", "t"),
            ("x", "x"),
            ("d", "d"),
            ("b", "b"),
            ("s", "s"),
            ("as", "as"),
            ("objects", "aa{sv}"),
            ("av", "av"),
            ("empty", "av"),
            ("object", "a{sv}"),
        ] {
            assert_eq!(signature(&dict, key), expected, "{key}");
        }
        assert!(!dict.contains_key("null"));
        assert_eq!(dict.len(), 10);
    }

    #[test]
    fn nul_is_replaced_and_flagged_at_every_level() {
        let (dict, _) =
            convert(&json!({"a": "x\u{0}y", "l": ["\u{0}"], "o": {"k\u{0}": "\u{0}"}}), Budget::REPLY);
        assert_eq!(dict["a"], Variant::from("x\u{fffd}y"));
        assert_eq!(dict["a-replaced"], Variant::from(true));
        assert_eq!(dict["l-replaced"], Variant::from(true));
        let Variant::Dict(inner) = &dict["o"] else { panic!("not a dictionary") };
        assert!(inner.iter().any(|(key, _)| *key == Variant::from("k\u{fffd}-replaced")));
    }

    #[test]
    fn a_long_text_is_cut_between_characters_and_says_its_length() {
        let text = "é".repeat(1000);
        let (dict, cut) = convert(&json!({"text": text, "n": 1}), Budget { text: 301, total: 1 << 20 });
        assert!(cut);
        assert_eq!(dict["text-cut"], Variant::from(2000_u64));
        assert_eq!(dict["text"], Variant::from("é".repeat(150)));
        assert_eq!(dict["n"], Variant::from(1_u64));
    }

    #[test]
    fn the_total_bounds_lists_and_objects() {
        let many: Vec<Value> = (0..10_000).map(|n| json!({"n": n})).collect();
        let (dict, cut) = convert(&json!({"many": many, "z": "kept"}), Budget { text: 1 << 20, total: 4096 });
        assert!(cut);
        assert_eq!(dict["many-cut"], Variant::from(10_000_u64));
        let (_, cut) = convert(
            &json!({"inside": {"many": [1, "x".repeat(5000)]}}),
            Budget { text: 1 << 20, total: 999 },
        );
        assert!(cut, "a cut inside is a cut");
        let Variant::Array(list) = &dict["many"] else { panic!("not a list") };
        assert!(list.len() < 300, "{}", list.len());
        assert_eq!(dict["z"], Variant::from("kept"));
    }

    #[test]
    fn what_dbus_cannot_nest_goes_out_as_json() {
        let mut deep = json!("bottom");
        for _ in 0..100 {
            deep = json!({ "d": deep });
        }
        let (_, cut) = convert(&json!({ "deep": deep }), Budget::REPLY);
        assert!(!cut);
        let mut lists = json!(1);
        for _ in 0..100 {
            lists = json!([lists]);
        }
        convert(&json!({ "lists": lists }), Budget::REPLY);
        let (dict, _) = convert(&json!({"holes": [1, null, 2]}), Budget::REPLY);
        assert_eq!(dict["holes"], Variant::from("[1,null,2]"));
        assert_eq!(dict["holes-json"], Variant::from(true));
    }
}
