//! The JSON Schema agrees with the reader, as far as a schema can express its rules.

use std::fs;

use jsonschema::Validator;
use saphyr::{LoadableYamlNode, Scalar, Yaml};
use serde_json::{Map, Value};
use tollgate_config::schema::schema;

use crate::documentation::examples;
use crate::support::{files, outcome};

/// Parses YAML like an editor: with a different library than ours, without expanding variables.
fn json(text: &str) -> Value {
    let documents = Yaml::load_from_str(text).unwrap();
    value(&documents[0])
}

fn value(yaml: &Yaml<'_>) -> Value {
    match yaml {
        Yaml::Value(Scalar::Null) => Value::Null,
        Yaml::Value(Scalar::Boolean(flag)) => Value::from(*flag),
        Yaml::Value(Scalar::Integer(number)) => Value::from(*number),
        Yaml::Value(Scalar::FloatingPoint(number)) => Value::from(number.into_inner()),
        Yaml::Value(Scalar::String(text)) => Value::from(text.as_ref()),
        Yaml::Sequence(items) => items.iter().map(value).collect(),
        Yaml::Mapping(entries) => {
            let entry = |(key, node): (&Yaml<'_>, &Yaml<'_>)| {
                (key.as_str().unwrap_or_default().to_owned(), value(node))
            };
            Value::Object(entries.iter().map(entry).collect::<Map<_, _>>())
        }
        other => panic!("{other:?}"),
    }
}

fn validator() -> Validator {
    jsonschema::validator_for(&schema()).unwrap()
}

#[test]
fn schema_is_valid() {
    assert!(jsonschema::meta::is_valid(&schema()));
}

#[test]
fn schema_accepts_valid_files() {
    let validator = validator();
    let corpus = ["good", "odd"].into_iter().flat_map(files).map(|file| {
        assert!(outcome(&file).plan.is_some());
        (file.display().to_string(), fs::read_to_string(&file).unwrap())
    });
    let mut seen = 0;
    for (name, text) in corpus.chain(examples()) {
        let errors: Vec<_> = validator.iter_errors(&json(&text)).map(|it| it.to_string()).collect();
        assert!(errors.is_empty(), "{name}: {errors:#?}");
        seen += 1;
    }
    assert!(seen > 15, "{seen}");
}

#[test]
fn schema_rejects_malformed_files() {
    let validator = validator();
    for name in [
        "api-without-path",
        "costs",
        "empty-list",
        "flags-of-yaml-1.1",
        "identity-unknown",
        "jwt-two-keys",
        "keys-at-the-root",
        "limit-in-quotes",
        "limit-is-a-word",
        "limit-is-no-integer",
        "limit-negative",
        "limit-too-large",
        "limit-zero",
        "list-for-a-section",
        "members",
        "method-in-lower-case",
        "bad-targets",
        "api-key-in-the-clear",
        "no-rate-limiter",
        "null-section",
        "root-is-a-list",
        "root-is-a-text",
        "section-for-a-list",
        "store-both",
        "store-unknown",
        "telemetry",
        "tracing-without-endpoint",
        "unknown-keys",
        "unknown-strategy",
        "window-twice",
    ] {
        let file = format!("{}/tests/broken/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
        let text = fs::read_to_string(file).unwrap();
        assert!(!validator.is_valid(&json(&text)), "{name}");
    }
}
