//! Values as somebody wrote them: of any kind, checked when their key is known.
//!
//! serde's own messages on a wrong kind name no key, show the value, which may be private, and speak of types of the
//! source. So every value of the file is read as a [`Given`] and every table as a [`Section`], which refuse nothing, and
//! whoever knows the key asks for the kind that it needs.

use std::fmt;
use std::marker::PhantomData;
use std::path::PathBuf;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// What is wrong with a value: its key and the problem. The file's name is added where it is known.
pub(super) type Problem = (String, String);

/// A value of the file.
pub(super) enum Given {
    Text(String),
    Number(i128),
    Flag(bool),
    List(Vec<Given>),
    /// Anything else: a fraction, a date, a table, a number larger than any.
    Other,
}

impl Given {
    /// The text.
    pub(super) fn text(self, key: &str) -> Result<String, Problem> {
        match self {
            Given::Text(text) if text.contains('\0') => refuse(key, "holds a NUL byte"),
            Given::Text(text) => Ok(text),
            _ => refuse(key, "must be a text; put it in quotes"),
        }
    }

    /// The text as a path. Which paths are right is another question.
    pub(super) fn path(self, key: &str) -> Result<PathBuf, Problem> {
        match self {
            Given::Text(_) => Ok(self.text(key)?.into()),
            _ => refuse(key, "must be an absolute path in quotes"),
        }
    }

    /// The number, if it is from `least` to `most`.
    pub(super) fn number(self, key: &str, least: u64, most: u64) -> Result<u64, Problem> {
        let number = match self {
            Given::Number(number) => u64::try_from(number).ok(),
            _ => None,
        };
        match number.filter(|number| (least..=most).contains(number)) {
            Some(number) => Ok(number),
            None => refuse(key, format!("must be a whole number from {least} to {most}, without quotes")),
        }
    }

    /// Whether it is so.
    pub(super) fn flag(self, key: &str) -> Result<bool, Problem> {
        match self {
            Given::Flag(flag) => Ok(flag),
            _ => refuse(key, "must be true or false, without quotes"),
        }
    }

    /// What the word stands for.
    pub(super) fn word<T: Copy>(self, key: &str, words: &[(&str, T)]) -> Result<T, Problem> {
        let found = match &self {
            Given::Text(text) => words.iter().find(|(word, _)| word == text),
            _ => None,
        };
        match found {
            Some((_, meaning)) => Ok(*meaning),
            None => {
                let known: Vec<String> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
                refuse(key, format!("must be one of {}", known.join(", ")))
            }
        }
    }

    /// The texts of a list.
    pub(super) fn texts(self, key: &str) -> Result<Vec<String>, Problem> {
        let Given::List(list) = self else {
            return refuse(key, "must be a list of texts: [\"first\", \"second\"]");
        };
        // Numbered as people count.
        let numbered = list.into_iter().enumerate();
        numbered.map(|(index, given)| given.text(&format!("{key}, text {}", index + 1))).collect()
    }
}

/// A value that may be left out, by a check that needs the key.
pub(super) trait Optional {
    /// The checked value, or `None` where there is none.
    fn checked<T>(
        self,
        key: &str,
        check: impl FnOnce(Given, &str) -> Result<T, Problem>,
    ) -> Result<Option<T>, Problem>;
}

impl Optional for Option<Given> {
    fn checked<T>(
        self,
        key: &str,
        check: impl FnOnce(Given, &str) -> Result<T, Problem>,
    ) -> Result<Option<T>, Problem> {
        self.map(|given| check(given, key)).transpose()
    }
}

impl<'de> Deserialize<'de> for Given {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Given, D::Error> {
        // A number that no type holds is the one error here: the syntax was read before.
        Ok(deserializer.deserialize_any(GivenVisitor).unwrap_or(Given::Other))
    }
}

struct GivenVisitor;

impl<'de> Visitor<'de> for GivenVisitor {
    type Value = Given;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value")
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Given, E> {
        Ok(Given::Flag(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Given, E> {
        Ok(Given::Number(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Given, E> {
        Ok(Given::Number(number.into()))
    }

    fn visit_i128<E>(self, number: i128) -> Result<Given, E> {
        Ok(Given::Number(number))
    }

    fn visit_u128<E>(self, _: u128) -> Result<Given, E> {
        Ok(Given::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Given, E> {
        Ok(Given::Other)
    }

    fn visit_str<E>(self, text: &str) -> Result<Given, E> {
        Ok(Given::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Given, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element()? {
            values.push(value);
        }
        Ok(Given::List(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Given, A::Error> {
        IgnoredAny.visit_map(map).map(|_| Given::Other)
    }
}

/// A table of the file.
#[derive(Default)]
pub(super) enum Section<T> {
    /// It is not there.
    #[default]
    Absent,
    /// It is a table.
    Table(T),
    /// Something else stands in its place.
    Other,
}

impl<T: Default> Section<T> {
    /// The table, empty where it is not there.
    pub(super) fn table(self, key: &str) -> Result<T, Problem> {
        match self {
            Section::Absent => Ok(T::default()),
            Section::Table(table) => Ok(table),
            Section::Other => refuse(key, format!("must be a table: [{key}], and its keys below")),
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Section<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Section<T>, D::Error> {
        deserializer.deserialize_any(SectionVisitor(PhantomData))
    }
}

struct SectionVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for SectionVisitor<T> {
    type Value = Section<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a table")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Section<T>, E> {
        Ok(Section::Other)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Section<T>, E> {
        Ok(Section::Other)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Section<T>, E> {
        Ok(Section::Other)
    }

    fn visit_i128<E>(self, _: i128) -> Result<Section<T>, E> {
        Ok(Section::Other)
    }

    fn visit_u128<E>(self, _: u128) -> Result<Section<T>, E> {
        Ok(Section::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Section<T>, E> {
        Ok(Section::Other)
    }

    fn visit_str<E>(self, _: &str) -> Result<Section<T>, E> {
        Ok(Section::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Section<T>, A::Error> {
        IgnoredAny.visit_seq(list).map(|_| Section::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Section<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Section::Table)
    }
}

/// Refuses the value of a key.
pub(super) fn refuse<T>(key: impl Into<String>, problem: impl Into<String>) -> Result<T, Problem> {
    Err((key.into(), problem.into()))
}
