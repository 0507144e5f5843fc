//! Responses and streams of each API, written from its public reference.

use serde_json::{Value, json};
use tollgate_llm::{Request, Usage, UsageReader};

use crate::{model, read};

fn reported(response: &Value) -> Option<Usage> {
    read(UsageReader::json(), &response.to_string()).reported()
}

/// A stream as OpenAI writes it, without names of events.
fn stream(events: &[Value]) -> String {
    let events = events.iter().map(|event| format!("data: {event}\n\n"));
    events.chain(["data: [DONE]\n\n".to_owned()]).collect()
}

/// A stream with the type of each event as its name.
fn named_stream(events: &[Value]) -> String {
    let name = |event: &Value| event["type"].as_str().expect("a type").to_owned();
    events.iter().map(|event| format!("event: {}\ndata: {event}\n\n", name(event))).collect()
}

/// A usage from its token counts: input, cached, written to the cache, output, reasoning.
fn usage([input, cached_input, cache_write, output, reasoning]: [u64; 5]) -> Usage {
    let mut usage = Usage::new(input, output);
    (usage.cached_input, usage.cache_write, usage.reasoning) =
        (cached_input, cache_write, reasoning);
    usage
}

#[test]
fn usage_of_whole_responses() {
    for (response, expected) in [
        // OpenAI chat completions.
        (
            json!({
                "object": "chat.completion",
                "choices": [{
                    "index": 0,
                    "message": {"role": "assistant", "content": "{\"usage\": {\"prompt_tokens\": 1}}"},
                    "finish_reason": "stop",
                }],
                "usage": {
                    "prompt_tokens": 2006,
                    "completion_tokens": 300,
                    "total_tokens": 2306,
                    "prompt_tokens_details": {"cached_tokens": 1920, "audio_tokens": 0},
                    "completion_tokens_details": {"reasoning_tokens": 256, "audio_tokens": 0},
                },
                "service_tier": "default",
            }),
            [86, 1920, 0, 300, 256],
        ),
        // A compatible server without details.
        (
            json!({"usage": {"prompt_tokens": 9, "completion_tokens": 12, "total_tokens": 21,
                "prompt_tokens_details": null}}),
            [9, 0, 0, 12, 0],
        ),
        // OpenAI responses.
        (
            json!({
                "object": "response",
                "status": "completed",
                "output": [{"type": "message", "content": [{"type": "output_text", "text": "Aye."}]}],
                "usage": {
                    "input_tokens": 328,
                    "input_tokens_details": {"cached_tokens": 100},
                    "output_tokens": 52,
                    "output_tokens_details": {"reasoning_tokens": 40},
                    "total_tokens": 380,
                },
            }),
            [228, 100, 0, 52, 40],
        ),
        // OpenAI embeddings.
        (
            json!({
                "object": "list",
                "data": [{"object": "embedding", "embedding": [-0.007, 1.5e-3], "index": 0}],
                "usage": {"prompt_tokens": 5, "total_tokens": 5},
            }),
            [5, 0, 0, 0, 0],
        ),
        // Anthropic messages: cached tokens are reported separately.
        (
            json!({
                "type": "message",
                "content": [{"type": "text", "text": "Hi!"}],
                "usage": {
                    "input_tokens": 21,
                    "cache_creation_input_tokens": 188_086,
                    "cache_read_input_tokens": 30,
                    "cache_creation": {"ephemeral_5m_input_tokens": 188_086},
                    "output_tokens": 393,
                },
            }),
            [21, 30, 188_086, 393, 0],
        ),
        // A proxy that adds Anthropic's names to OpenAI's.
        (
            json!({"usage": {
                "prompt_tokens": 100, "completion_tokens": 5,
                "cache_read_input_tokens": 60, "cache_creation_input_tokens": 30,
            }}),
            [10, 60, 30, 5, 0],
        ),
        // Details that exceed their number are not part of it.
        (
            json!({"usage": {
                "prompt_tokens": 7, "completion_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": 9},
                "cache_creation_input_tokens": 9,
                "completion_tokens_details": {"reasoning_tokens": 9},
            }}),
            [7, 9, 9, 14, 9],
        ),
        // DeepSeek, Moonshot and OpenRouter.
        (
            json!({"usage": {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105,
                "prompt_cache_hit_tokens": 60, "prompt_cache_miss_tokens": 40}}),
            [40, 60, 0, 5, 0],
        ),
        (
            json!({"usage": {"prompt_tokens": 100, "completion_tokens": 5, "cached_tokens": 60}}),
            [40, 60, 0, 5, 0],
        ),
        (
            json!({"usage": {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details":
                {"cached_tokens": 60, "cache_write_tokens": 30}}}),
            [10, 60, 30, 5, 0],
        ),
        // LiteLLM.
        (
            json!({"usage": {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105,
                "prompt_tokens_details": {"cached_tokens": 60, "cache_creation_tokens": 30,
                    "cache_creation_token_details": {"ephemeral_5m_input_tokens": 30}}}}),
            [10, 60, 30, 5, 0],
        ),
        (
            json!({"usage": {"prompt_tokens": 10_u64.pow(18), "completion_tokens": u64::MAX}}),
            [10_u64.pow(18), 0, 0, u64::MAX, 0],
        ),
    ] {
        assert_eq!(reported(&response), Some(usage(expected)), "{response}");
    }
}

#[test]
fn responses_without_a_usable_usage() {
    for response in [
        json!({"choices": []}),
        json!({"usage": null}),
        json!({"usage": {}}),
        json!({"usage": {"completion_tokens": 5}}),
        json!({"usage": {"input_tokens": 5}}),
        json!({"usage": {"prompt_tokens": -1, "completion_tokens": 5}}),
        json!({"usage": {"prompt_tokens": 1.5, "completion_tokens": 5}}),
        json!({"usage": {"prompt_tokens": "9", "completion_tokens": 5}}),
        json!({"usage": {"prompt_tokens": [9], "completion_tokens": 5}}),
        json!({"usage": {"prompt_tokens": {"input_tokens": 9}, "completion_tokens": 5}}),
        json!({"usage": {"prompt_tokens": true, "completion_tokens": 5}}),
        json!({"usage": {"other": {"prompt_tokens": 9}, "completion_tokens": 5}}),
        json!({"usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}}),
        json!({"usage": [{"prompt_tokens": 1, "completion_tokens": 5}]}),
        json!({"error": {"usage": {"prompt_tokens": 1, "completion_tokens": 5}}}),
        json!({"metadata": {"usage": {"prompt_tokens": 1, "completion_tokens": 5}}}),
        json!({"output": {"usage": {"prompt_tokens": 1, "completion_tokens": 5}}}),
        json!({"choices": [{"message": {"usage": {"prompt_tokens": 1, "completion_tokens": 5}}}]}),
        json!([{"usage": {"prompt_tokens": 1, "completion_tokens": 5}}]),
    ] {
        assert_eq!(reported(&response), None, "{response}");
    }
}

/// The model may write JSON that resembles a usage.
#[test]
fn text_is_never_a_usage() {
    let usage = json!({"prompt_tokens": 1, "completion_tokens": 5});
    let quoted = json!({"usage": usage}).to_string();
    for response in [
        json!({"choices": [{"message": {"content": quoted}}]}),
        json!({"choices": [{"delta": {"usage": usage}}]}),
        json!({"output": [{"content": [{"usage": usage}]}]}),
        json!({"a \"usage\"": usage, "content": quoted}),
    ] {
        assert_eq!(reported(&response), None, "{response}");
    }
    let escaped = r#"{"us\u0061ge": {"prompt_tokens": 1, "completion_tokens": 5}}"#;
    assert_eq!(read(UsageReader::json(), escaped).reported(), None);
}

#[test]
fn chat_stream_reports_in_its_last_chunk() {
    let chunk = |delta: Value| {
        json!({"object": "chat.completion.chunk", "usage": null, "choices": [
            {"index": 0, "delta": delta, "logprobs": null, "finish_reason": null},
        ]})
    };
    let mut events = vec![
        json!({"choices": [], "prompt_filter_results": [{"prompt_index": 0}]}),
        chunk(json!({"role": "assistant", "content": ""})),
        chunk(json!({"content": "The answer"})),
        chunk(json!({"content": " is \"42\".\n"})),
        chunk(json!({"tool_calls": [{"index": 0, "id": "call_abc", "type": "function",
            "function": {"name": "add", "arguments": ""}}]})),
        chunk(json!({"tool_calls": [{"index": 0, "function": {"arguments": "{\"a\":1}"}}]})),
        json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}], "usage": null}),
    ];
    let request = Request::parse(br#"{"prompt": "six times seven?"}"#).unwrap();
    let early = read(UsageReader::sse(), &stream(&events));
    assert_eq!(early.reported(), None);
    assert_eq!(early.text_bytes(), 10 + 10 + 3 + 7);
    // The client has left, or the server reports no usage.
    assert_eq!(early.usage(&request, &model()), Usage::new(7, 9));

    let report = json!({"prompt_tokens": 8, "completion_tokens": 10, "total_tokens": 18,
        "prompt_tokens_details": {"cached_tokens": 2}});
    events.push(json!({"choices": [], "usage": report}));
    let whole = read(UsageReader::sse(), &stream(&events));
    assert_eq!(whole.reported(), Some(usage([6, 2, 0, 10, 0])));
    assert_eq!(whole.usage(&request, &model()), usage([6, 2, 0, 10, 0]));
}

/// vLLM's `continuous_usage_stats`.
#[test]
fn latest_report_counts() {
    let chunk = |tokens: u64| {
        json!({"choices": [{"delta": {"content": "a long text of one token"}}],
            "usage": {"prompt_tokens": 4, "completion_tokens": tokens}})
    };
    let reader = read(UsageReader::sse(), &stream(&[chunk(1), chunk(2), chunk(3)]));
    assert_eq!(reader.reported(), Some(Usage::new(4, 3)));
}

#[test]
fn responses_stream_reports_when_it_ends() {
    let ends = ["response.completed", "response.incomplete", "response.failed"];
    for end in ends {
        let started = [
            json!({"type": "response.created", "response": {"status": "in_progress", "usage": null}}),
            json!({"type": "response.output_text.delta", "item_id": "msg_1", "delta": "Ahoy"}),
            json!({"type": "response.output_text.done", "item_id": "msg_1", "text": "Ahoy"}),
        ];
        let reader = read(UsageReader::sse(), &named_stream(&started));
        assert_eq!((reader.reported(), reader.text_bytes()), (None, 4));
        let ended = json!({"type": end, "response": {
            "output": [{"type": "message", "content": [{"type": "output_text", "text": "Ahoy"}]}],
            "usage": {
                "input_tokens": 37, "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": 11, "output_tokens_details": {"reasoning_tokens": 8},
            },
        }});
        let reader = read(reader, &named_stream(&[ended]));
        assert_eq!((reader.reported(), reader.text_bytes()), (Some(usage([37, 0, 0, 11, 8])), 4));
    }
}

#[test]
fn anthropic_stream_reports_input_first() {
    let started = [
        json!({"type": "message_start", "message": {"role": "assistant", "content": [], "usage": {
            "input_tokens": 472, "cache_creation_input_tokens": 5, "cache_read_input_tokens": 90,
            "output_tokens": 1,
        }}}),
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "thinking"}}),
        json!({"type": "ping"}),
        json!({"type": "content_block_delta", "index": 0,
            "delta": {"type": "thinking_delta", "thinking": "Let me"}}),
        json!({"type": "content_block_delta", "index": 0,
            "delta": {"type": "signature_delta", "signature": "EqQBCgIYAhIM"}}),
        json!({"type": "content_block_delta", "index": 1,
            "delta": {"type": "input_json_delta", "partial_json": "{\"city\":"}}),
        json!({"type": "content_block_delta", "index": 2,
            "delta": {"type": "text_delta", "text": "Okay"}}),
    ];
    let request = Request::parse(b"{}").unwrap();
    let reader = read(UsageReader::sse(), &named_stream(&started));
    assert_eq!((reader.reported(), reader.text_bytes()), (None, 6 + 8 + 4));
    assert_eq!(reader.usage(&request, &model()), usage([472, 90, 5, 6, 0]));
    let ended = [
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": null},
            "usage": {"output_tokens": 89, "cache_read_input_tokens": null}}),
        json!({"type": "message_stop"}),
    ];
    let reader = read(reader, &named_stream(&ended));
    assert_eq!(reader.reported(), Some(usage([472, 90, 5, 89, 0])));
}

#[test]
fn unreadable_responses_keep_the_estimate() {
    let request = Request::parse(br#"{"max_tokens": 50, "prompt": "hello, you"}"#).unwrap();
    let of = |mut reader: UsageReader, bytes: &[u8]| {
        reader.read(bytes);
        reader.usage(&request, &model())
    };
    let complete = |mut reader: UsageReader, bytes: &[u8]| {
        reader.finish();
        of(reader, bytes)
    };
    for bytes in [&b"\x1f\x8b\x08\x00data"[..], b"<html>busy</html>", b"\x00", b"{", b": ping\n\n"]
    {
        // An incomplete object may still become an answer.
        let expected = if bytes == b"{" { 0 } else { 50 };
        assert_eq!(of(UsageReader::json(), bytes).output, expected, "{}", bytes.escape_ascii());
        assert_eq!(complete(UsageReader::json(), bytes), Usage::new(5, 50));
        assert_eq!(of(UsageReader::sse(), bytes), Usage::new(5, 50), "{}", bytes.escape_ascii());
    }
    for reader in [UsageReader::json, UsageReader::sse] {
        assert_eq!(of(reader(), b""), Usage::new(5, 0));
        assert_eq!(complete(reader(), b""), Usage::new(5, 50));
    }
    for (body, output) in [
        (r#"{"id": "job"}"#, 50),
        (r#"{"id": "job", "error": null}"#, 50),
        (r#"{"id": "job", "error": {"code": 529}}"#, 0),
        (r#"{"choices": [{"message": {"content": ""}}]}"#, 50),
        (r#"{"choices": [{"message": {"content": "ten tokens of text and some more."}}]}"#, 10),
    ] {
        let [json, stream] = [body.to_owned(), format!("data: {body}\n\n")];
        assert_eq!(complete(UsageReader::json(), json.as_bytes()).output, output, "{body}");
        // The work is finished when its stream closes.
        let output = if output == 50 { 0 } else { output };
        assert_eq!(complete(UsageReader::sse(), stream.as_bytes()).output, output, "{body}");
        assert_eq!(of(UsageReader::json(), json.as_bytes()).output, output, "{body}");
    }
}

/// The model continues even if the client disconnects.
#[test]
fn background_work_keeps_the_estimate() {
    let request = br#"{"background": true, "max_output_tokens": 50, "input": "hello"}"#;
    let request = Request::parse(request).expect("a request");
    for (response, output) in [
        ("", 50),
        (r#"{"status": "queued", "usage": null}"#, 50),
        (r#"{"status": "queued", "usage": {"input_tokens": 3, "output_tokens": 0}}"#, 50),
        (r#"{"status": "queued", "usage": {"input_tokens": 0, "output_tokens": 0}}"#, 50),
        (r#"{"type": "response.output_text.delta", "delta": "Ahoy"}"#, 50),
        (r#"{"response": {"usage": {"input_tokens": 3, "output_tokens": 60}}}"#, 60),
    ] {
        for (reader, text) in [
            (UsageReader::json(), response.to_owned()),
            (UsageReader::sse(), format!("data: {response}\n\n")),
        ] {
            assert_eq!(read(reader, &text).usage(&request, &model()).output, output, "{text}");
        }
    }
}

#[test]
fn content_type_chooses_the_reader() {
    // Only a reader of events starts a new document after the empty line.
    let events =
        "data: {\n\ndata: {\"usage\": {\"prompt_tokens\": 1, \"completion_tokens\": 2}}\n\n";
    for (content_type, is_stream) in [
        ("text/event-stream", true),
        ("Text/Event-Stream; charset=utf-8", true),
        ("application/json", false),
        ("application/x-ndjson", false),
        ("", false),
    ] {
        let reader = read(UsageReader::for_content_type(content_type), events);
        assert_eq!(reader.reported().is_some(), is_stream, "{content_type}");
    }
    let lines = events.replace("data: {\n", "").replace("data:", "{}");
    let reader = read(UsageReader::for_content_type("application/x-ndjson"), &lines);
    assert_eq!(reader.reported(), Some(Usage::new(1, 2)));
}

#[test]
fn lines_end_in_three_ways() {
    let text = "event: x\nid: 7\n: comment\ndata:{\"usage\":\ndata: {\"prompt_tokens\": 1,\n\
                data: \"completion_tokens\": 2}}\n\ndatax: {}\ndata\n\n";
    for end in ["\n", "\r\n", "\r"] {
        let reader = read(UsageReader::sse(), &text.replace('\n', end));
        assert_eq!(reader.reported(), Some(Usage::new(1, 2)), "{end:?}");
    }
}

/// A truncated event does not affect the next event.
#[test]
fn each_event_is_independent() {
    let text = "data: {\"choices\": [{\"delta\": \"\n\ndata: }\n\n\
                data: {\"usage\": {\"prompt_tokens\": 1, \"completion_tokens\": 2}}\n\n";
    assert_eq!(read(UsageReader::sse(), text).reported(), Some(Usage::new(1, 2)));
    // If the empty line is missing, all lines belong to a single event, which is not JSON.
    let joined = text.replace("\n\n", "\n");
    assert_eq!(read(UsageReader::sse(), &joined).reported(), None);
}
