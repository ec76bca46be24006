use std::fmt;

use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value};

use crate::model::{Entry, kind};

/// Reads a line that verified as an entry whose cursor is still empty; `None` if it is no record.
///
/// The first `seq`, `time` and `kind` count: the encoder writes them before anything that an event may hold.
pub(super) fn parse(line: &[u8]) -> Option<Entry> {
    let mut json = serde_json::Deserializer::from_slice(line);
    let entry = json.deserialize_map(RecordVisitor).ok()?;
    json.end().ok()?;
    entry.filter(|entry| entry.seq > 0)
}

struct RecordVisitor;

impl<'de> Visitor<'de> for RecordVisitor {
    type Value = Option<Entry>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a record of a journal")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Option<Entry>, A::Error> {
        let (mut seq, mut time, mut word) = (None, None, None);
        let (mut raw, mut raw64) = (None, None);
        let mut details = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "seq" if seq.is_none() => seq = Some(map.next_value()?),
                "time" if time.is_none() => time = Some(map.next_value()?),
                "kind" if word.is_none() => word = Some(map.next_value()?),
                "raw" => raw = Some(map.next_value()?),
                "raw64" => raw64 = Some(map.next_value()?),
                "sum" => {
                    map.next_value::<String>()?;
                }
                _ => {
                    details.insert(key, map.next_value::<Value>()?);
                }
            }
        }
        let (Some(seq), Some(time), Some(kind)) = (seq, time, word) else { return Ok(None) };
        Ok(Some(Entry { cursor: String::new(), seq, time, kind, details, raw, raw64 }))
    }
}

/// The entry that stands for a stretch that cannot be shown.
pub(super) fn gap(cursor: String, time: u64, bytes: u64, records: Option<u64>) -> Entry {
    let text = match records {
        Some(records) => {
            format!("{bytes} bytes of the journal are damaged here; {records} records are missing")
        }
        None => format!("{bytes} bytes of the journal are damaged here; how many records is not known"),
    };
    let mut details = Map::new();
    details.insert("reason".into(), kind::notice::DAMAGED.into());
    details.insert("text".into(), text.into());
    details.insert("bytes".into(), bytes.into());
    if let Some(records) = records {
        details.insert("records".into(), records.into());
    }
    Entry { cursor, seq: 0, time, kind: "notice".into(), details, raw: None, raw64: None }
}
