//! JSON to the wire's variants and back: what the service takes and gives are dictionaries with the same keys as the
//! JSON of [`model`](crate::model).

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Number, Value};
use zbus::{OwnedVariant, Variant};

/// A dictionary as it travels.
pub(crate) type Dictionary = HashMap<String, Variant<'static>>;

/// The variants of a JSON object. What is `null` is left out: D-Bus has no such value.
pub(crate) fn to_dictionary(object: &Map<String, Value>) -> Dictionary {
    object.iter().filter_map(|(key, value)| Some((key.clone(), to_variant(value)?))).collect()
}

fn to_variant(value: &Value) -> Option<Variant<'static>> {
    Some(match value {
        Value::Null => return None,
        Value::Bool(value) => Variant::new(*value),
        Value::Number(number) => number_to_variant(number),
        Value::String(text) => Variant::new(text.clone()),
        Value::Array(items) => array_to_variant(items),
        Value::Object(object) => Variant::new(to_dictionary(object)),
    })
}

fn number_to_variant(number: &Number) -> Variant<'static> {
    match (number.as_u64(), number.as_i64()) {
        (Some(value), _) => Variant::new(value),
        (None, Some(value)) => Variant::new(value),
        // Every number that is neither is a float.
        (None, None) => Variant::new(number.as_f64().unwrap_or(f64::NAN)),
    }
}

/// `as` where all items are texts, `aa{sv}` where all are objects, otherwise `av`.
fn array_to_variant(items: &[Value]) -> Variant<'static> {
    let texts: Option<Vec<String>> = items.iter().map(|item| item.as_str().map(str::to_owned)).collect();
    if let Some(texts) = texts {
        return Variant::new(texts);
    }
    let objects: Option<Vec<Dictionary>> =
        items.iter().map(|item| item.as_object().map(to_dictionary)).collect();
    match objects {
        Some(objects) => Variant::new(objects),
        None => Variant::new(items.iter().filter_map(to_variant).collect::<Vec<Variant<'static>>>()),
    }
}

/// A table of texts as `a{ss}`.
pub(super) fn texts_to_variant(table: &BTreeMap<String, String>) -> Variant<'static> {
    Variant::new(table.iter().map(|(key, value)| (key.clone(), value.clone())).collect::<HashMap<_, _>>())
}

/// The JSON object of a dictionary that the service gave.
pub(crate) fn to_object(dictionary: HashMap<String, OwnedVariant>) -> Map<String, Value> {
    dictionary.into_iter().map(|(key, value)| (key, to_json(&value))).collect()
}

fn to_json(variant: &Variant<'_>) -> Value {
    match variant {
        Variant::U8(value) => Value::from(*value),
        Variant::Bool(value) => Value::from(*value),
        Variant::I16(value) => Value::from(*value),
        Variant::U16(value) => Value::from(*value),
        Variant::I32(value) => Value::from(*value),
        Variant::U32(value) => Value::from(*value),
        Variant::I64(value) => Value::from(*value),
        Variant::U64(value) => Value::from(*value),
        // A float that is not finite has no JSON.
        Variant::F64(value) => Number::from_f64(*value).map_or(Value::Null, Value::Number),
        Variant::Str(text) => Value::from(text.as_str()),
        Variant::Signature(signature) => Value::from(signature.to_string()),
        Variant::ObjectPath(path) => Value::from(path.as_str()),
        Variant::Variant(inner) => to_json(inner),
        Variant::Array(array) => array.inner().iter().map(to_json).collect(),
        Variant::Dict(dict) => {
            Value::Object(dict.iter().map(|(key, value)| (key_text(key), to_json(value))).collect())
        }
        Variant::Structure(structure) => structure.fields().iter().map(to_json).collect(),
        // A descriptor is nothing that JSON can carry; the calls that give one return it typed.
        Variant::Fd(_) => Value::Null,
    }
}

fn key_text(key: &Variant<'_>) -> String {
    match to_json(key) {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn json_comes_back_as_it_went() {
        let value = json!({
            "text": "ä\n", "count": 3, "large": u64::MAX, "negative": -1, "half": 0.5, "yes": true,
            "texts": ["a", "b"], "objects": [{"pid": 7}, {"pid": 8}], "mixed": [1, "a", {"b": [false]}],
            "inner": {"deeper": {"key": "value"}}, "empty": {}, "none": []
        });
        let object = value.as_object().unwrap();
        let wire: HashMap<String, OwnedVariant> = to_dictionary(object)
            .into_iter()
            .map(|(key, value)| (key, value.try_into_owned().unwrap()))
            .collect();
        assert_eq!(&to_object(wire), object);
    }

    #[test]
    fn the_wire_types_are_those_of_the_interface() {
        let signature = |value: Value| to_variant(&value).unwrap().value_signature().to_string();
        assert_eq!(signature(json!(["a"])), "as");
        assert_eq!(signature(json!([{"a": 1}])), "aa{sv}");
        assert_eq!(signature(json!([1, "a"])), "av");
        assert_eq!(signature(json!({"a": 1})), "a{sv}");
        assert_eq!(signature(json!(1)), "t");
        assert_eq!(signature(json!(-1)), "x");
        assert_eq!(signature(json!(1.5)), "d");
        assert_eq!(texts_to_variant(&BTreeMap::new()).value_signature().to_string(), "a{ss}");
        assert!(to_variant(&Value::Null).is_none());
    }
}
