//! Laws of the reader: chunking has no effect, it agrees with serde_json, and its memory is
//! bounded.

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Map, Value};
use tollgate_llm::{Usage, UsageEventFilter, UsageReader};

/// Texts that matter to the reader, in any order, with arbitrary bytes between them.
fn responses() -> impl Strategy<Value = Vec<u8>> {
    let known = prop::sample::select(vec![
        "data:",
        "data: ",
        "\n",
        "\r",
        "\r\n",
        "\n\n",
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"",
        "\\",
        "\\u00e9",
        "{\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":9}}",
        "\"usage\":",
        "\"response\":",
        "\"message\":",
        "\"choices\":[{\"delta\":{\"content\":\"",
        "\"delta\":\"",
        "{\"input_tokens\":",
        "\"output_tokens\":",
        "18446744073709551615",
        "null",
        "[DONE]",
    ]);
    let bytes = vec(any::<u8>(), 0..6);
    let piece = prop_oneof![4 => known.prop_map(|it| it.as_bytes().to_vec()), 1 => bytes];
    vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

fn state(reader: &UsageReader) -> (Option<Usage>, u64) {
    (reader.reported(), reader.text_bytes())
}

/// Any JSON value, often with the names of responses.
fn values() -> impl Strategy<Value = Value> {
    let text = prop_oneof![Just("한\"\n".to_owned()), "[a-z \\\\]{0,6}"];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0_u64..100).prop_map(Value::from),
        text.prop_map(Value::from),
    ];
    let names = prop::sample::select(vec![
        "usage",
        "response",
        "message",
        "choices",
        "delta",
        "text",
        "content",
        "output",
        "role",
        "id",
        "prompt_tokens",
        "completion_tokens",
        "a name that is longer than others",
    ]);
    leaf.prop_recursive(6, 60, 5, move |inner| {
        let object = vec((names.clone(), inner.clone()), 0..5).prop_map(|members| {
            members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>()
        });
        prop_oneof![3 => object.prop_map(Value::Object), 1 => vec(inner, 0..4).prop_map(Value::from)]
    })
}

/// The bytes of the model's text, computed from the parsed value.
fn text_of(value: &Value) -> u64 {
    fn all(value: &Value) -> u64 {
        match value {
            Value::String(text) => text.len() as u64,
            Value::Array(values) => values.iter().map(all).sum(),
            Value::Object(members) => {
                let text = members.iter().filter(|(name, _)| !["role", "id"].contains(&&***name));
                text.map(|(_, value)| all(value)).sum()
            }
            _ => 0,
        }
    }
    fn among(value: &Value, names: &[&str]) -> u64 {
        match value {
            Value::Array(values) => values.iter().map(|value| among(value, names)).sum(),
            Value::Object(members) => {
                names.iter().filter_map(|name| members.get(*name)).map(all).sum()
            }
            _ => 0,
        }
    }
    let choices = value.get("choices").map_or(0, |it| among(it, &["delta", "message", "text"]));
    among(value, &["delta", "output", "content"]) + choices
}

/// A stream event, and whether it passes the filter.
fn events() -> impl Strategy<Value = (String, bool)> {
    let end = prop::sample::select(vec!["\n\n", "\r\n\r\n", "\r\r", "\n", "\r\n", "\r"]);
    let data = prop::sample::select(vec![
        ("data: {\"choices\": [], \"usage\": {\"prompt_tokens\": 7}}", false),
        ("id: 1\ndata:{\"usage\":{},\"choices\":[]}", false),
        ("retry: 1\r\nevent: usage\r\ndata: {\"usage\": 7, \"choices\": []} ", false),
        ("event: ping", true),
        ("", true),
        ("data: {\"choices\": [], \"usage\": null}", true),
        ("data: {\"choices\": [{}], \"usage\": {\"prompt_tokens\": 7}}", true),
        ("data: {\"choices\": [{\"delta\": {\"content\": \"\\\"usage\\\": 1\"}}]}", true),
        ("data: {\"type\": \"message_delta\", \"usage\": {\"output_tokens\": 7}}", true),
        ("data: {\"choices\": [], \"usage\": {", true),
        (": \"usage\":1", true),
        ("data: [DONE]", true),
    ]);
    (data, end).prop_map(|((data, passes), end)| (format!("{data}{end}"), passes))
}

proptest! {
    #[test]
    fn only_events_with_a_usage_are_removed(
        mut events in vec(events(), 0..8),
        chunk in 1_usize..200,
        cuts_the_end: bool,
    ) {
        if let Some((event, _)) = events.last_mut().filter(|_| cuts_the_end) {
            event.truncate(event.trim_end().len());
        }
        // A removed event takes the fields before it and the empty line after it along.
        let is_ambiguous = |pair: &[(String, bool)]| {
            let [(before, passes), (after, _)] = pair else { return false };
            let has_fields = !before.ends_with("\n\n") && before.starts_with("event: ping");
            has_fields || !passes && after.trim().is_empty()
        };
        prop_assume!(!events.windows(2).any(is_ambiguous));
        let stream: String = events.iter().map(|(event, _)| &**event).collect();
        let expected: String =
            events.iter().filter(|(_, passes)| *passes).map(|(event, _)| &**event).collect();
        let mut filter = UsageEventFilter::default();
        let chunks = stream.as_bytes().chunks(chunk);
        let mut passed: Vec<u8> = chunks.flat_map(|chunk| filter.filter(chunk)).collect();
        passed.extend(filter.finish());
        prop_assert_eq!(String::from_utf8_lossy(&passed), expected);
    }

    /// None of these responses is a chunk that only reports the usage.
    #[test]
    fn all_other_bytes_pass(response in responses(), cuts in vec(any::<prop::sample::Index>(), 0..8)) {
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(response.len() + 1)).collect();
        cuts.sort_unstable();
        let (mut passed, mut start) = (Vec::new(), 0);
        let mut filter = UsageEventFilter::default();
        for cut in cuts.into_iter().chain([response.len()]) {
            passed.extend(filter.filter(&response[start..cut]));
            start = cut;
        }
        passed.extend(filter.finish());
        prop_assert_eq!(passed, response);
    }

    #[test]
    fn any_chunking_equals_the_whole(
        response in responses(),
        cuts in vec(any::<prop::sample::Index>(), 0..8),
    ) {
        for new in [UsageReader::json, UsageReader::sse] {
            let [mut whole, mut chunked, mut single] = [new(), new(), new()];
            whole.read(&response);
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(response.len() + 1)).collect();
            cuts.sort_unstable();
            let mut start = 0;
            for cut in cuts.into_iter().chain([response.len()]) {
                chunked.read(&response[start..cut]);
                start = cut;
            }
            for byte in &response {
                single.read(&[*byte]);
            }
            prop_assert_eq!(state(&chunked), state(&whole));
            prop_assert_eq!(state(&single), state(&whole));
        }
    }

    #[test]
    fn text_matches_the_json_value(value in values()) {
        // An array of documents is not a response.
        prop_assume!(value.is_object());
        let event = serde_json::to_string_pretty(&value).unwrap();
        let mut json = UsageReader::json();
        json.read(event.as_bytes());
        let expected = text_of(&value);
        prop_assert_eq!(json.text_bytes(), expected, "{}", event);
        let mut sse = UsageReader::sse();
        for line in event.lines() {
            sse.read(format!("data: {line}\n").as_bytes());
        }
        prop_assert_eq!(state(&sse), state(&json));
    }
}

/// A megabyte each of names, text, numbers, arrays and usage, in a single line.
#[test]
fn memory_does_not_depend_on_the_response() {
    let long = [
        "x".repeat(1 << 20),
        format!("{{\"{}", "x".repeat(1 << 20)),
        format!("{{\"choices\": [{{\"delta\": \"{}", "x".repeat(1 << 20)),
        format!("{{\"data\": [{}", "1,".repeat(1 << 19)),
        "[".repeat(1 << 20),
        "{\"a\":".repeat(1 << 18),
        format!("{{\"usage\": {{\"{}", "x".repeat(1 << 20)),
        format!("{{\"usage\": {{{}", "\"a\": 1,".repeat(1 << 17)),
    ];
    for response in long {
        for (new, prefix) in [(UsageReader::json as fn() -> _, ""), (UsageReader::sse, "data: ")] {
            let used = allocation_counter::measure(|| {
                let mut reader: UsageReader = new();
                reader.read(prefix.as_bytes());
                for chunk in response.as_bytes().chunks(1000) {
                    reader.read(chunk);
                }
            });
            assert!(used.bytes_max < 16 * 1024, "{used:?}: {}", &response[..20]);
        }
    }
}

#[test]
fn long_events_pass_in_parts() {
    let event = format!("data: {{\"choices\": [\"{}\"], \"usage\": 1}}\n\n", "x".repeat(1 << 20));
    let mut passed = Vec::with_capacity(event.len());
    let used = allocation_counter::measure(|| {
        let mut filter = UsageEventFilter::default();
        for chunk in event.as_bytes().chunks(1000) {
            passed.extend(filter.filter(chunk));
        }
    });
    assert_eq!(passed, event.as_bytes());
    assert!(used.bytes_max < 256 * 1024, "{used:?}");
}
