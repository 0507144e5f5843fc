//! The configuration file's JSON Schema, generated from the same tables as its reader.

use serde_json::{Map, Value, json};

use crate::file::tables;
use crate::yaml::spec::{Field, Format, Presence, Section, Shape};

/// The schema of the configuration file.
pub fn schema() -> Value {
    document(tables::root(), "Configuration of the Tollgate gateway")
}

/// A test file's schema.
pub fn test_schema() -> Value {
    document(tables::test_file(), "Tests of rate limits")
}

/// A schema, draft 2020-12.
fn document(root: &Section, title: &str) -> Value {
    let mut schema = section(root);
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["title"] = json!(title);
    schema
}

fn section(section: &Section) -> Value {
    let mut properties = Map::new();
    for it in section.fields() {
        properties.insert(it.key.to_owned(), field(it));
    }
    let required = section.fields().filter(|it| it.presence == Presence::Required);
    let required: Vec<_> = required.map(|it| it.key).collect();
    let mut schema = json!({
        "type": "object",
        "description": section.doc,
        "properties": properties,
        "additionalProperties": false,
        "required": required,
    });
    if let Some(others) = section.others() {
        let shape = described(shape(&others.shape), others.doc);
        schema["patternProperties"] = json!({ others.key.pattern.unwrap_or(".+"): shape });
    }
    // Each pair of keys with the same meaning.
    let mut pairs = Vec::new();
    for keys in section.exclusive() {
        for (index, second) in keys.iter().enumerate() {
            let with = |first: &&str| json!({ "not": { "required": [first, second] } });
            pairs.extend(keys[..index].iter().map(with));
        }
    }
    if !pairs.is_empty() {
        schema["allOf"] = Value::Array(pairs);
    }
    schema
}

fn field(field: &Field) -> Value {
    let doc = match field.needs {
        Some(needs) => format!("{} {needs}", field.doc),
        None => field.doc.to_owned(),
    };
    let mut schema = described(shape(&field.shape), &doc);
    if let Presence::Default(text) = field.presence {
        schema["default"] = match field.shape {
            Shape::Flag => json!(text == "true"),
            Shape::Whole { .. } => text.parse::<u64>().map_or_else(|_| json!(text), |n| json!(n)),
            _ => json!(text),
        };
    }
    schema
}

/// The field's description replaces the shape's description.
fn described(mut schema: Value, doc: &str) -> Value {
    schema["description"] = json!(doc);
    schema
}

fn shape(shape: &Shape) -> Value {
    match shape {
        Shape::Flag => or_variable(&json!({ "type": "boolean" })),
        Shape::Whole { min, max: u64::MAX } => {
            or_variable(&json!({ "type": "integer", "minimum": min }))
        }
        Shape::Whole { min, max } => {
            or_variable(&json!({ "type": "integer", "minimum": min, "maximum": max }))
        }
        Shape::Duration { .. } => json!({ "type": "string", "examples": ["500ms", "60s", "1h"] }),
        Shape::Word(words) => {
            let word = |(word, doc): &(&str, &str)| json!({ "const": word, "description": doc });
            let words: Vec<_> = words.iter().map(word).collect();
            or_variable(&json!({ "oneOf": words }))
        }
        // Text may also look like a number or a boolean.
        Shape::Text(Format { pattern: None, .. }) => {
            json!({ "type": ["string", "number", "boolean"] })
        }
        Shape::Text(Format { pattern: Some(pattern), .. }) => {
            let text = json!({ "type": ["string", "number", "boolean"], "pattern": pattern });
            or_variable(&text)
        }
        Shape::List(of) => {
            json!({ "type": "array", "minItems": 1, "items": self::shape(of) })
        }
        Shape::Section(of) => section(of()),
        Shape::Either(shapes) => {
            json!({ "anyOf": shapes.iter().map(self::shape).collect::<Vec<_>>() })
        }
    }
}

/// A value that is not text may still come from an environment variable.
fn or_variable(schema: &Value) -> Value {
    json!({ "anyOf": [schema, { "type": "string", "pattern": r"\$\{.+\}" }] })
}
