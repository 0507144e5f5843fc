//! Requests of each API, written from its public reference.

use serde_json::{Value, json};
use tollgate_llm::{Call, Model, Models, OutputHistory, Price, Request};

use crate::model;

fn parse(body: &Value) -> Request {
    Request::parse(body.to_string().as_bytes()).expect("a valid request")
}

#[test]
fn requests_of_each_api() {
    let chat = parse(&json!({
        "model": "gpt-5-mini",
        "messages": [
            {"role": "developer", "content": "Answer briefly."},
            {"role": "user", "content": [
                {"type": "text", "text": "What is this?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
            ]},
        ],
        "max_completion_tokens": 200,
        "n": 3,
        "stream": true,
        "stream_options": {"include_usage": true},
    }));
    assert_eq!((&*chat.model, chat.max_output, chat.streams), ("gpt-5-mini", Some(600), true));
    assert!(chat.includes_usage);
    assert_eq!(chat.attachments, 1);

    let responses = parse(&json!({
        "model": "gpt-5",
        "instructions": "You are a pirate.",
        "input": [{"role": "user", "content": [
            {"type": "input_text", "text": "Where is the treasure?"},
            {"type": "input_image", "image_url": "https://example.com/map.png"},
            {"type": "input_file", "filename": "a.pdf", "file_data": "JVBERi0="},
        ]}],
        "max_output_tokens": 90,
        "stream": null,
    }));
    assert_eq!((responses.max_output, responses.streams), (Some(90), false));
    assert_eq!(responses.attachments, 2);

    let embeddings =
        parse(&json!({"model": "text-embedding-3-small", "input": [[9906, 1917], [0]]}));
    assert_eq!((embeddings.max_output, embeddings.numbers), (None, 3));

    let anthropic = parse(&json!({
        "model": "claude-sonnet-4-5",
        "max_tokens": 1024,
        "system": "Be kind.",
        "messages": [{"role": "user", "content": [
            {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": "/9j/4AA="}},
            {"type": "text", "text": "What is in this image?"},
        ]}],
    }));
    assert_eq!((&*anthropic.model, anthropic.max_output), ("claude-sonnet-4-5", Some(1024)));
    assert_eq!((anthropic.attachments, anthropic.includes_usage), (1, false));
}

#[test]
fn text_and_names_count() {
    let bytes = |body| parse(&body).text_bytes;
    assert_eq!(bytes(json!({"model": "m", "stream": false, "n": 1})), 0);
    assert_eq!(bytes(json!({"prompt": "four", "system": "한국어"})), 6 + 4 + 6 + 9);
    assert_eq!(bytes(json!({"messages": [{"role": "user", "content": "hi"}]})), 8 + 4 + 4 + 7 + 2);
    // Prose is never an attachment.
    assert_eq!(bytes(json!({"url": "not an image"})), 3 + 12);
    assert_eq!(bytes(json!({"text": "data:image/png;base64,AAAA"})), 4 + 26);
    // Only a single text is an attachment. Lists and objects may contain a prompt.
    for (member, words, attachments) in [
        (json!("iVBORw0KGgo="), 0, 1),
        (json!(["tell", "me"]), 6, 0),
        (json!([["tell"], ["me"]]), 6, 0),
        (json!({"x": "tell"}), 5, 0),
        (json!({"x": ["tell", "me"]}), 7, 0),
        (json!({"url": "tell"}), 3, 1),
        (json!([{"url": "tell"}, "me"]), 5, 1),
        (json!("tell\tme"), 7, 0),
        (json!("tell\u{a0}me"), 8, 0),
    ] {
        for name in ["data", "url", "image_url", "file_data"] {
            let request = parse(&json!({"input": {name: member.clone()}}));
            let text = request.text_bytes - 5 - name.len() as u64;
            assert_eq!((text, request.attachments), (words, attachments), "{name}: {member}");
        }
    }
}

#[test]
fn estimates_use_the_model() {
    let request = parse(&json!({"input": ["x".repeat(995), {"data": "AAAA"}], "seed": 7}));
    assert_eq!(request.text_bytes, 5 + 995 + 4 + 4);
    let estimate = request.estimate(&model());
    assert_eq!((estimate.total_input(), estimate.output), (303 + 1 + 1500, 4096));
    let dense = Model::new(Price::per_million(0, 0))
        .tokens_per_kilobyte(1000)
        .tokens_per_attachment(10)
        .max_output(5);
    let estimate = request.estimate(&dense);
    assert_eq!((estimate.total_input(), estimate.output), (1008 + 1 + 10, 5));
    let stated = parse(&json!({"max_tokens": 0}));
    assert_eq!(stated.estimate(&dense).output, 0);
}

#[test]
fn higher_maximum_counts_and_saturates() {
    let maximum = |body| parse(&body).max_output;
    assert_eq!(maximum(json!({"max_tokens": 1, "max_completion_tokens": 9})), Some(9));
    assert_eq!(maximum(json!({"max_tokens": null})), None);
    assert_eq!(maximum(json!({"max_tokens": u64::MAX, "n": u64::MAX})), Some(u64::MAX));
    assert_eq!(maximum(json!({"max_tokens": 7, "n": 0})), Some(7));
    for name in ["max_tokens", "max_completion_tokens", "max_output_tokens"] {
        for negative in [json!(-1), json!(-2), json!(i64::MIN)] {
            assert_eq!(maximum(json!({ name: negative })), None, "{name}");
        }
        assert_eq!(maximum(json!({name: 3, "n": 2})), Some(6), "{name}");
    }
    assert_eq!(maximum(json!({"max_tokens": -1, "max_completion_tokens": 9})), Some(9));
}

#[test]
fn each_prompt_and_candidate_reserves_its_output() {
    let models = Models::new(Model::new(Price::per_million(0, 0)).max_output(100));
    for (body, expected) in [
        (json!({"prompt": "a"}), 100),
        (json!({"prompt": ["a", "b", "c"]}), 300),
        (json!({"prompt": ["a", "b", "c"], "max_tokens": 7}), 21),
        (json!({"prompt": ["a", "b", "c"], "max_tokens": -1, "n": 2}), 600),
        (json!({"prompt": [["a"], ["b", "c"]], "max_tokens": 7}), 14),
        (json!({"prompt": [[1, 2, 3], [4]], "max_tokens": 7}), 14),
        (json!({"prompt": [1, 2, 3], "max_tokens": 7}), 7),
        (json!({"prompt": [], "max_tokens": 7}), 7),
        (json!({"prompt": null, "max_tokens": 7}), 7),
        (json!({"n": 3, "max_tokens": 7}), 21),
        (json!({"n": 3}), 300),
        (json!({"best_of": 5, "n": 2, "max_tokens": 7}), 35),
        (json!({"best_of": 1, "n": 2, "max_tokens": 7}), 14),
        (json!({"best_of": null, "n": null, "max_tokens": 7}), 7),
        (json!({"prompt": ["a", "b"], "n": 3, "best_of": 4, "max_tokens": 7}), 56),
        (json!({"prompt": ["a", "b"], "n": u64::MAX, "max_tokens": 7}), u64::MAX),
        // Only completions have several prompts.
        (json!({"input": ["a", "b"], "max_output_tokens": 7}), 7),
    ] {
        let (call, _) = Call::parse("/v1/completions", body.to_string().as_bytes(), &models)
            .expect("a valid request");
        assert_eq!(call.estimate().output, expected, "{body}");
    }
}

#[test]
fn usual_output_is_of_one_text() {
    let models = Models::new(Model::new(Price::per_million(0, 0)).max_output(100));
    let history = OutputHistory::new(10);
    let call = |body: Value| {
        let call = Call::parse("/v1/completions", body.to_string().as_bytes(), &models);
        call.expect("a valid request").0.learning(&history, "client")
    };
    for _ in 0..20 {
        let mut meter = call(json!({"n": 4})).meter("");
        meter.read(br#"{"usage": {"prompt_tokens": 1, "completion_tokens": 20}}"#);
    }
    assert_eq!(call(json!({})).estimate().output, 5);
    assert_eq!(call(json!({"n": 8, "prompt": ["a", "b"]})).estimate().output, 80);
    assert_eq!(call(json!({"n": 8, "max_tokens": 50})).estimate().output, 400);
}

#[test]
fn other_bodies_are_errors_without_their_text() {
    let deep = "[".repeat(100_000);
    let deep = format!("{{\"messages\": {deep}");
    for (body, line) in [
        (&b""[..], 1),
        (b"\x1f\x8b\x08secret", 1),
        (b"[]", 1),
        (b"{\"model\": \"secret", 1),
        (b"{\"model\": \"a\",\n \"model\": \"secret\"}", 2),
        (b"{\"max_tokens\": 1,\n\n\"max_tokens\": 2}", 3),
        (b"{\"max_tokens\": \"secret\"}", 1),
        (b"{\"max_tokens\": 1.5}", 1),
        (b"{\"max_tokens\": -1.5}", 1),
        (b"{\"n\": -1}", 1),
        (b"{\n\"background\": \"secret\"}", 2),
        (b"{\"stream\": \"secret\"}", 1),
        (b"{\"input\": \"\xff\"}", 1),
        (deep.as_bytes(), 1),
    ] {
        let error = Request::parse(body).unwrap_err();
        assert_eq!(error.line, line, "{}", body.escape_ascii());
        let text = format!("{error} {error:?}");
        assert!(
            text.contains(&format!("line {line} column")) && !text.contains("secret"),
            "{text}"
        );
    }
}

#[test]
fn usage_is_requested_once() {
    let asked = |body: &str| {
        let request = Request::parse(body.as_bytes()).unwrap();
        request.ask_for_usage(body.as_bytes()).map(|body| String::from_utf8(body).unwrap())
    };
    let body = " {\"temperature\": 0.10, \"stream\": true}";
    let asking = asked(body).unwrap();
    assert_eq!(
        asking,
        " {\"stream_options\":{\"include_usage\":true},\"temperature\": 0.10, \"stream\": true}"
    );
    assert!(Request::parse(asking.as_bytes()).unwrap().includes_usage);
    assert_eq!(asked(&asking), None);
    assert_eq!(asked("{\"stream\": false}"), None);
}

/// Otherwise a client could avoid the price of hidden reasoning.
#[test]
fn own_stream_options_request_the_usage() {
    for (options, expected) in [
        (r#"null"#, r#"{"include_usage":true}"#),
        (r#"{}"#, r#"{"include_usage":true}"#),
        (r#"{ }"#, r#"{"include_usage":true }"#),
        (r#"{"include_usage": false}"#, r#"{"include_usage": true}"#),
        (r#"{"include_usage":null }"#, r#"{"include_usage":true }"#),
        (r#"{"a": "}", "b": [{}]}"#, r#"{"include_usage":true,"a": "}", "b": [{}]}"#),
        (r#"{"a": 1.50,"include_usage" :false}"#, r#"{"a": 1.50,"include_usage" :true}"#),
    ] {
        for (start, end) in [
            (r#"{"stream": true, "stream_options": "#, "}"),
            ("{\"stream_options\" :\n", r#","stream":true, "n": 1} "#),
            (r#"{"prompt": "\"stream_options\": {}", "stream_options":"#, r#", "stream": true}"#),
            (r#"{"stream\u005foptions":"#, r#", "stream": true}"#),
        ] {
            let body = format!("{start}{options}{end}");
            let request = Request::parse(body.as_bytes()).expect("a request");
            let changed = request.ask_for_usage(body.as_bytes()).expect("a change");
            assert_eq!(String::from_utf8_lossy(&changed), format!("{start}{expected}{end}"));
        }
    }
}

#[test]
fn only_streamed_completions_request_their_usage() {
    let models = || Models::new(model());
    for (path, stream, models, changes) in [
        ("/v1/chat/completions", true, models(), true),
        ("/v1/completions", true, models(), true),
        ("/v1/chat/completions", false, models(), false),
        ("/v1/responses", true, models(), false),
        ("/v1/messages", true, models(), false),
        ("/v1/chat/completions", true, models().keep_stream_options(), false),
    ] {
        let body = json!({"stream": stream}).to_string();
        let (call, changed) = Call::parse(path, body.as_bytes(), &models).unwrap();
        let meter = call.meter("text/event-stream");
        assert_eq!((changed.is_some(), meter.shortens()), (changes, changes), "{path} {models:?}");
    }
}

#[test]
fn tokenizer_counts_each_text() {
    let models = Models::new(model()).tokenizer(|text| text.split_whitespace().count() as u64);
    let body = r#"{"max_tokens": 9, "messages": [{"role": "user", "content": "one two three"}]}"#;
    let (call, _) = Call::parse("/v1/completions", body.as_bytes(), &models).unwrap();
    // Three words, the name `messages`, two names of members, and the role.
    assert_eq!((call.estimate().input, call.estimate().output), (7, 9));
}
