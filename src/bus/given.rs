//! Dictionaries that callers give: decoded without trusting their size, then taken key by key.
//!
//! zbus decodes a variant element by element: 8 MiB of `ay` would take half a gigabyte. [`Given`] decodes what our
//! dictionaries can hold directly (bytes as bytes), keeps integers of all widths as one type, since `busctl` and
//! scripting languages pick a width by themselves, and of anything else keeps only the signature, for the refusal.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;

use serde::de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use zbus::wire::{Signature, Type};

use super::BusError;
use crate::model::shown;

/// A value that a caller gave.
#[derive(Debug)]
pub enum Given {
    /// `s`, `o` or `g`.
    Text(String),
    /// `b`.
    Bool(bool),
    /// An integer of any width.
    Integer(i128),
    /// `d`.
    Float,
    /// `ay`.
    Bytes(Vec<u8>),
    /// `as`.
    Texts(Vec<String>),
    /// `a{ss}`.
    TextDict(BTreeMap<String, String>),
    /// `a{sv}`.
    Dict(GivenDict),
    /// `aa{sv}`.
    Dicts(Vec<GivenDict>),
    /// `h`.
    Descriptor(OwnedFd),
    /// Something that no key takes; its signature.
    Other(String),
}

impl Given {
    fn kind(&self) -> String {
        match self {
            Given::Text(_) => "s (text)".into(),
            Given::Bool(_) => "b (true or false)".into(),
            Given::Integer(_) => "an integer".into(),
            Given::Float => "d (a fraction)".into(),
            Given::Bytes(_) => "ay (bytes)".into(),
            Given::Texts(_) => "as (texts)".into(),
            Given::TextDict(_) => "a{ss}".into(),
            Given::Dict(_) => "a{sv}".into(),
            Given::Dicts(_) => "aa{sv}".into(),
            Given::Descriptor(_) => "h (a file descriptor)".into(),
            Given::Other(signature) => signature.clone(),
        }
    }
}

/// A dictionary `a{sv}` that a caller gave. A key that stands in it twice refuses the whole.
#[derive(Debug, Default)]
pub struct GivenDict(BTreeMap<String, Given>);

impl Type for GivenDict {
    const SIGNATURE: &'static Signature =
        <std::collections::HashMap<String, zbus::OwnedVariant> as Type>::SIGNATURE;
}

impl<'de> Deserialize<'de> for GivenDict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        unique_map::<Given, D>(deserializer).map(GivenDict)
    }
}

/// A map without a key that stands in it twice.
fn unique_map<'de, V: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, V>, D::Error> {
    struct Unique<V>(PhantomData<V>);
    impl<'de, V: Deserialize<'de>> Visitor<'de> for Unique<V> {
        type Value = BTreeMap<String, V>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a dictionary")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
            let mut map = BTreeMap::new();
            while let Some((key, value)) = entries.next_entry::<String, V>()? {
                if map.contains_key(&key) {
                    return Err(A::Error::custom(format_args!("the key {:?} is given twice", shown(&key))));
                }
                map.insert(key, value);
            }
            Ok(map)
        }
    }
    deserializer.deserialize_map(Unique(PhantomData))
}

impl<'de> Deserialize<'de> for Given {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InVariant;
        impl<'de> Visitor<'de> for InVariant {
            type Value = Given;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a variant")
            }

            // zbus presents a variant as a sequence of its signature and its value.
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Given, A::Error> {
                let signature =
                    seq.next_element::<Signature>()?.ok_or_else(|| A::Error::missing_field("signature"))?;
                value_of(&signature.to_string(), &mut seq)
            }
        }
        deserializer.deserialize_any(InVariant)
    }
}

fn value_of<'de, A: SeqAccess<'de>>(signature: &str, seq: &mut A) -> Result<Given, A::Error> {
    fn next<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(seq: &mut A) -> Result<T, A::Error> {
        seq.next_element::<T>()?.ok_or_else(|| A::Error::missing_field("value"))
    }
    Ok(match signature {
        "s" | "o" | "g" => Given::Text(next(seq)?),
        "b" => Given::Bool(next(seq)?),
        "y" => Given::Integer(next::<u8, A>(seq)?.into()),
        "n" => Given::Integer(next::<i16, A>(seq)?.into()),
        "q" => Given::Integer(next::<u16, A>(seq)?.into()),
        "i" => Given::Integer(next::<i32, A>(seq)?.into()),
        "u" => Given::Integer(next::<u32, A>(seq)?.into()),
        "x" => Given::Integer(next::<i64, A>(seq)?.into()),
        "t" => Given::Integer(next::<u64, A>(seq)?.into()),
        "d" => {
            next::<f64, A>(seq)?;
            Given::Float
        }
        "ay" => Given::Bytes(next::<Bytes, A>(seq)?.0),
        "as" => Given::Texts(next(seq)?),
        "a{ss}" => Given::TextDict(next::<UniqueTexts, A>(seq)?.0),
        "a{sv}" => Given::Dict(next(seq)?),
        "aa{sv}" => Given::Dicts(next(seq)?),
        "h" => Given::Descriptor(next::<zbus::OwnedFd, A>(seq)?.into()),
        other => {
            next::<Skipped, A>(seq)?;
            Given::Other(other.to_owned())
        }
    })
}

struct UniqueTexts(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for UniqueTexts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        unique_map::<String, D>(deserializer).map(UniqueTexts)
    }
}

/// Bytes in one piece, where `Vec<u8>` would be read one by one.
struct Bytes(Vec<u8>);

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AsBytes;
        impl Visitor<'_> for AsBytes {
            type Value = Bytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Bytes, E> {
                Ok(Bytes(bytes.to_vec()))
            }
        }
        deserializer.deserialize_bytes(AsBytes)
    }
}

/// A value walked over without keeping anything of it.
struct Skipped;

impl<'de> Deserialize<'de> for Skipped {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(IgnoredAny).map(|_| Skipped)
    }
}

/// Takes a dictionary's keys one after the other, and refuses what is left over.
#[derive(Debug)]
pub struct Keys {
    left: BTreeMap<String, Given>,
    known: Vec<&'static str>,
    /// Before each key in messages, such as `binding.`.
    prefix: String,
    submission: bool,
}

impl Keys {
    /// The keys of a submission, or of a dictionary in it that `prefix` names.
    pub fn of_submission(dict: GivenDict, prefix: impl Into<String>) -> Self {
        Keys { left: dict.0, known: Vec::new(), prefix: prefix.into(), submission: true }
    }

    /// The keys of another argument, with `prefix` before each in messages.
    pub fn of_argument(dict: GivenDict, prefix: &'static str) -> Self {
        Keys { left: dict.0, known: Vec::new(), prefix: prefix.to_owned(), submission: false }
    }

    /// A refusal of `key`.
    pub fn refuse(&self, key: &str, problem: impl fmt::Display) -> BusError {
        BusError::key(self.submission, &format!("{}{key}", self.prefix), problem)
    }

    /// The value of `key`, if it is given.
    pub fn take(&mut self, key: &'static str) -> Option<Given> {
        self.known.push(key);
        self.left.remove(key)
    }

    fn wrong(&self, key: &str, wanted: &str, given: &Given) -> BusError {
        self.refuse(key, format_args!("must be {wanted}, and is {}", given.kind()))
    }

    /// A text.
    pub fn text(&mut self, key: &'static str) -> Result<Option<String>, BusError> {
        match self.take(key) {
            None => Ok(None),
            Some(Given::Text(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(key, "s (text)", &other)),
        }
    }

    /// A boolean.
    pub fn boolean(&mut self, key: &'static str) -> Result<Option<bool>, BusError> {
        match self.take(key) {
            None => Ok(None),
            Some(Given::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(self.wrong(key, "b (true or false)", &other)),
        }
    }

    /// An integer of any width that is not negative.
    pub fn unsigned(&mut self, key: &'static str) -> Result<Option<u64>, BusError> {
        match self.take(key) {
            None => Ok(None),
            Some(Given::Integer(value)) => u64::try_from(value)
                .map(Some)
                .map_err(|_| self.refuse(key, "is negative; it must be 0 or more")),
            Some(other) => Err(self.wrong(key, "an integer, such as t", &other)),
        }
    }

    /// A list of texts. An empty list may come as a list of anything.
    pub fn texts(&mut self, key: &'static str) -> Result<Option<Vec<String>>, BusError> {
        match self.take(key) {
            None => Ok(None),
            Some(Given::Texts(texts)) => Ok(Some(texts)),
            Some(other) => Err(self.wrong(key, "as (texts)", &other)),
        }
    }

    /// A dictionary.
    pub fn dict(&mut self, key: &'static str) -> Result<Option<GivenDict>, BusError> {
        match self.take(key) {
            None => Ok(None),
            Some(Given::Dict(dict)) => Ok(Some(dict)),
            Some(Given::TextDict(texts)) => {
                Ok(Some(GivenDict(texts.into_iter().map(|(key, text)| (key, Given::Text(text))).collect())))
            }
            Some(other) => Err(self.wrong(key, "a{sv}", &other)),
        }
    }

    /// A list of dictionaries. An empty list may come as a list of anything.
    pub fn dicts(&mut self, key: &'static str) -> Result<Option<Vec<GivenDict>>, BusError> {
        match self.take(key) {
            None => Ok(None),
            Some(Given::Dicts(dicts)) => Ok(Some(dicts)),
            Some(Given::Texts(texts)) if texts.is_empty() => Ok(Some(Vec::new())),
            Some(other) => Err(self.wrong(key, "aa{sv}", &other)),
        }
    }

    /// A dictionary of texts, as `a{ss}` or as `a{sv}` that holds nothing else.
    pub fn text_dict(&mut self, key: &'static str) -> Result<Option<BTreeMap<String, String>>, BusError> {
        match self.take(key) {
            None => Ok(None),
            Some(Given::TextDict(texts)) => Ok(Some(texts)),
            Some(Given::Dict(GivenDict(dict))) => {
                let mut texts = BTreeMap::new();
                for (name, value) in dict {
                    let Given::Text(text) = value else {
                        return Err(self.wrong(&format!("{key}.{name}"), "s (text)", &value));
                    };
                    texts.insert(name, text);
                }
                Ok(Some(texts))
            }
            Some(other) => Err(self.wrong(key, "a{ss}", &other)),
        }
    }

    /// A text that is one of the words of `T`.
    pub fn word<T: serde::de::DeserializeOwned>(
        &mut self,
        key: &'static str,
        words: &str,
    ) -> Result<Option<T>, BusError> {
        match self.text(key)? {
            None => Ok(None),
            Some(text) => serde_json::from_value(serde_json::Value::String(text))
                .map(Some)
                .map_err(|_| self.refuse(key, format_args!("must be one of {words}"))),
        }
    }

    /// Refuses a key that belongs to the interface but that this version does not serve yet.
    pub fn not_yet(&mut self, key: &'static str, what: &str) -> Result<(), BusError> {
        match self.take(key) {
            None => {
                self.known.pop();
                Ok(())
            }
            Some(_) => Err(self.refuse(key, what)),
        }
    }

    /// Ends the reading: whatever was not asked for is refused by name.
    pub fn finish(self) -> Result<(), BusError> {
        let Some((key, _)) = self.left.first_key_value() else { return Ok(()) };
        let known = if self.known.is_empty() {
            "none is known here".to_owned()
        } else {
            format!("known are {}", self.known.join(", "))
        };
        Err(self.refuse(key, format_args!("is no known key; {known}")))
    }
}
