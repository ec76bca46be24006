//! The check itself, which knows nothing of processes.

use jsonschema::error::ValidationErrorKind as Kind;
use jsonschema::{PatternOptions, ValidationError, Validator};
use serde_json::Value;

/// The most of a place in a schema or an answer that is told, in characters: names in it can be of any length.
const PLACE_MAX: usize = 200;

/// What is wrong with a schema or an answer, and where. It holds names of properties and words of JSON Schema, and never a
/// value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Fault(pub String);

/// A schema that can be checked against.
#[derive(Debug)]
pub struct Schema(Validator);

impl Schema {
    /// Reads a schema: JSON Schema of any draft, 2020-12 where it does not say which.
    ///
    /// # Errors
    /// It is not JSON, no schema, refers to something outside of itself, or has a pattern that needs backtracking.
    pub fn compile(text: &str) -> Result<Schema, Fault> {
        let schema: Value =
            serde_json::from_str(text).map_err(|error| Fault(format!("is not JSON: {error}")))?;
        // The engine whose time is linear in the text, whatever the pattern.
        let options = jsonschema::options().offline().with_pattern_options(PatternOptions::regex());
        options.build(&schema).map(Schema).map_err(|error| Fault(schema_fault(&error)))
    }

    /// The value that an answer is, if it fits. The whole text must be JSON; space around it does not count.
    ///
    /// # Errors
    /// It is not JSON, or does not fit.
    pub fn check(&self, answer: &str) -> Result<Value, Fault> {
        let value: Value = serde_json::from_str(answer)
            .map_err(|error| Fault(format!("the answer is not JSON and nothing else: {error}")))?;
        match self.0.validate(&value) {
            Ok(()) => Ok(value),
            Err(error) => Err(Fault(format!(
                "the answer does not fit output-schema {}: {}",
                place(error.instance_path().as_str()),
                keyword(&error),
            ))),
        }
    }
}

fn schema_fault(error: &ValidationError<'_>) -> String {
    let place = place(error.instance_path().as_str());
    match error.kind() {
        Kind::Referencing(_) => {
            "refers to something that is not in it; only references within the schema are followed, and the metaschemas \
             of JSON Schema are known"
                .to_owned()
        }
        Kind::Format { format } if format == "regex" => {
            format!("has a pattern {place} that is not taken: lookaround, back-references and huge repetitions are not")
        }
        _ => format!("is no JSON Schema {place}: {}", keyword(error)),
    }
}

/// The keyword that is not satisfied.
fn keyword(error: &ValidationError<'_>) -> String {
    let keyword = match error.kind() {
        // `false` stands where a schema is, or as the value of a keyword such as `additionalProperties`.
        Kind::FalseSchema => error.schema_path().as_str().rsplit('/').next().unwrap_or("false").to_owned(),
        kind => kind.keyword().to_owned(),
    };
    format!("{} is not satisfied", cut(&keyword))
}

fn place(pointer: &str) -> String {
    match pointer {
        "" => "at its top".to_owned(),
        pointer => format!("at {}", cut(pointer)),
    }
}

fn cut(text: &str) -> String {
    let visible: String =
        text.chars().take(PLACE_MAX).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if visible.len() < text.len() && text.chars().nth(PLACE_MAX).is_some() {
        return visible + "…";
    }
    visible
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(schema: &str) -> String {
        Schema::compile(schema).expect_err("must be refused").to_string()
    }

    fn misfit(schema: &Value, answer: &str) -> String {
        let schema = Schema::compile(&schema.to_string()).expect("a schema");
        schema.check(answer).expect_err("must not fit").to_string()
    }

    #[test]
    fn what_fits_is_given_as_a_value() {
        let schema = json!({"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}});
        let schema = Schema::compile(&schema.to_string()).unwrap();
        assert_eq!(schema.check(" {\"n\": 1, \"m\": [null]}\n"), Ok(json!({"n": 1, "m": [null]})));
        let old = r#"{"$schema": "http://json-schema.org/draft-07/schema#", "type": "string"}"#;
        assert_eq!(Schema::compile(old).unwrap().check("\"x\""), Ok(json!("x")));
        assert_eq!(Schema::compile("true").unwrap().check("7"), Ok(json!(7)));
    }

    #[test]
    fn refusals_of_schemas_say_where_and_no_value() {
        assert!(refused("{").starts_with("is not JSON: EOF"));
        assert_eq!(refused("5"), "is no JSON Schema at its top: type is not satisfied");
        let typed = r#"{"properties":{"a":{"type":"topsecret"}}}"#;
        assert_eq!(refused(typed), "is no JSON Schema at /properties/a/type: anyOf is not satisfied");
        let deep = format!("{}true{}", "{\"not\":".repeat(200), "}".repeat(200));
        assert!(refused(&deep).contains("recursion limit"));
    }

    #[test]
    fn nothing_outside_of_a_schema_is_looked_at() {
        let outside = [
            "https://example.com/x.json",
            "file:///etc/hostname",
            "other.json",
            "#/$defs/none",
            "urn:example:topsecret",
        ];
        for reference in outside {
            let text = refused(&json!({"properties": {"a": {"$ref": reference}}}).to_string());
            assert!(text.starts_with("refers to something that is not in it"), "{text}");
            assert!(!text.contains(reference), "{text}");
        }
        assert!(refused(r#"{"$schema": "https://example.com/meta"}"#).starts_with("refers to"));
    }

    #[test]
    fn patterns_are_linear_or_refused() {
        for pattern in ["(?=a)topsecret", r"(a)\1", "((", "((a{1000}){1000}){1000}"] {
            let text = refused(&json!({"properties": {"a": {"pattern": pattern}}}).to_string());
            assert!(text.starts_with("has a pattern at /properties/a/pattern"), "{text}");
        }
        let answer = format!("\"{}!\"", "a".repeat(50_000));
        let text = misfit(&json!({"pattern": "^(a+)+$"}), &answer);
        assert_eq!(text, "the answer does not fit output-schema at its top: pattern is not satisfied");
    }

    #[test]
    fn misfits_say_where_and_no_value() {
        let schema = json!({
            "properties": {"list": {"items": {"enum": ["topsecret", 1]}}, "not": false},
            "additionalProperties": false
        });
        let text = |answer| misfit(&schema, answer).replace("the answer does not fit output-schema ", "");
        assert_eq!(text(r#"{"list": [1, "mine"]}"#), "at /list/1: enum is not satisfied");
        assert_eq!(text(r#"{"mine": 1}"#), "at its top: additionalProperties is not satisfied");
        assert_eq!(text(r#"{"not": 1}"#), "at /not: not is not satisfied");
        let text = misfit(&json!(true), "Here it is: {}");
        assert!(text.starts_with("the answer is not JSON and nothing else: expected value"), "{text}");
        assert!(misfit(&json!(true), "{} {}").contains("trailing characters"));
        assert!(misfit(&json!(true), "```json\n{}\n```").contains("not JSON"));
    }

    #[test]
    fn places_have_a_bound() {
        let long = "x\n".repeat(500);
        let schema = json!({"properties": {&long: {"type": "string"}}});
        let text = misfit(&schema, &json!({&long: 1}).to_string());
        assert!(text.len() < 700 && text.contains('…') && !text.contains('\n'), "{text}");
    }

    #[test]
    fn schemas_that_refer_to_themselves_end() {
        let list = json!({"properties": {"next": {"$ref": "#"}}, "required": ["n"]});
        let schema = Schema::compile(&list.to_string()).unwrap();
        assert!(schema.check(r#"{"n": 1, "next": {"n": 2}}"#).is_ok());
        for circle in [
            json!({"$ref": "#"}),
            json!({"allOf": [{"$ref": "#"}], "anyOf": [{"$ref": "#"}]}),
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
            json!({"not": {"$ref": "#"}}),
        ] {
            // Whatever it means, it ends.
            let _ = Schema::compile(&circle.to_string()).map(|schema| schema.check("1"));
        }
    }
}
