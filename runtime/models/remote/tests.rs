//! One attempt at a remote model: every recorded stream at every split, and every way in which an answer is none.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use toolwarden_tools::effects::Effects;
use toolwarden_tools::effects::http::HttpError;
use toolwarden_tools::offer::Offer;

use super::{ModelTimeouts, Reading, RemoteModel, RemoteSettings, endpoint};
use crate::models::canned_http::{Canned, CannedHttp, Step};
use crate::models::claude_messages::ClaudeMessages;
use crate::models::openai_chat::OpenAiChat;
use crate::models::openai_responses::OpenAiResponses;
use crate::models::price::TokenPrice;
use crate::models::turn_options::TurnOptions;
use crate::models::wire::{Progress, Protocol, WireSettings};
use crate::models::{CallArguments, Message, Model as _, ModelError, ModelRequest, ModelTurn, StopReason, TurnSink};

#[derive(Default)]
struct Shown(Mutex<String>);

impl TurnSink for Shown {
    fn text_delta(&self, text: &str) {
        self.0.lock().unwrap().push_str(text);
    }
}

fn request() -> ModelRequest {
    ModelRequest {
        system: String::new(),
        messages: vec![Message::User { text: "hi".into() }],
        tools: Offer::default(),
        tool_calls_allowed: true,
        agent: "general".into(),
        fan_out: 1,
        options: TurnOptions::default(),
    }
}

fn protocol(name: &str) -> Box<dyn Protocol> {
    match name.split('.').next() {
        Some("chat") => Box::new(OpenAiChat),
        Some("messages") => Box::new(ClaudeMessages),
        _ => Box::new(OpenAiResponses),
    }
}

fn model(name: &str, stream: bool, http: &Arc<CannedHttp>) -> RemoteModel {
    let wire = WireSettings { model: "m".into(), stream, ..WireSettings::default() };
    let settings = RemoteSettings {
        name: format!("test:{name}"),
        base_url: "http://127.0.0.1:9/v1".into(),
        key: Some("very-secret-key".into()),
        wire,
        context_tokens: None,
        timeouts: ModelTimeouts::default(),
        price: TokenPrice::default(),
        object_support: None,
        concurrency_max: None,
    };
    let http: Arc<CannedHttp> = Arc::clone(http);
    RemoteModel::new(settings, protocol(name), http, Effects::real().clock).unwrap()
}

type Answer = (Result<ModelTurn, ModelError>, String);

async fn ask(name: &str, stream: bool, answer: Canned) -> Answer {
    let shown = Shown::default();
    let turn = model(name, stream, &CannedHttp::new([answer])).turn(&request(), &shown).await;
    (turn, shown.0.into_inner().unwrap())
}

async fn streamed(name: &str, text: &str) -> Answer {
    ask(name, true, Canned::stream([text.as_bytes()])).await
}

fn recorded(name: &str) -> Vec<u8> {
    #[expect(clippy::disallowed_methods, reason = "tests read recorded streams")]
    std::fs::read(format!("{}/../tests/data/streams/{name}.sse", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// What a recorded stream comes to: its stop and text, its calls, or the kind of its error.
fn told(turn: &Result<ModelTurn, ModelError>) -> String {
    match turn {
        Ok(turn) => {
            let calls = turn.calls.iter().map(|call| match &call.arguments {
                CallArguments::Parsed(arguments) => format!(" {}={}{arguments}", call.id, call.tool),
                CallArguments::Malformed { text, .. } => format!(" {}={}?{text}", call.id, call.tool),
            });
            format!("{:?} {:?}{}", turn.stop, turn.text, calls.collect::<String>())
        }
        Err(error) => {
            let debug = format!("{error:?}");
            debug.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned()
        }
    }
}

const RECORDED: [(&str, &str); 28] = [
    ("chat.content_filter", r#"ContentFilter "par""#),
    ("chat.error_midstream", "Provider"),
    ("chat.interleaved_parallel", r#"ToolUse "" a=f{"x":1} b=g{}"#),
    ("chat.length", r#"MaxTokens "par""#),
    ("chat.length_in_arguments", r#"MaxTokens "" a=f?{"x":"#),
    ("chat.no_done", r#"EndTurn "x""#),
    ("chat.refusal", r#"Refusal "I can't""#),
    ("chat.text_unicode", r#"EndTurn "Héllo 🌍""#),
    ("chat.truncated", "Incomplete"),
    ("messages.cut_in_input", "Incomplete"),
    ("messages.error_midstream", "Provider"),
    ("messages.max_tokens", r#"MaxTokens "par""#),
    ("messages.max_tokens_in_input", r#"MaxTokens "" toolu_1=f?{"x":"#),
    ("messages.model_context_window_exceeded", r#"ContextOverflow "par""#),
    ("messages.pause_turn", r#"Paused "par""#),
    ("messages.refusal", r#"Refusal """#),
    ("messages.stop_sequence", r#"EndTurn "a""#),
    ("messages.text_unicode", r#"EndTurn "Héllo 🌍""#),
    ("messages.thinking_parallel_tools", r#"ToolUse "Let me look" toolu_1=f{"x":1} toolu_2=g{}"#),
    ("responses.crlf_comments", r#"EndTurn "ok""#),
    ("responses.cut_in_arguments", "Incomplete"),
    ("responses.error_event", "RateLimited"),
    ("responses.failed", "Provider"),
    ("responses.incomplete", r#"MaxTokens "cut""#),
    ("responses.reasoning_parallel_calls", r#"ToolUse "" call_a=get_weather{"city":"Paris"} call_b=get_time{}"#),
    ("responses.refusal", r#"Refusal "I can't help""#),
    ("responses.text_unicode", r#"EndTurn "Héllo 🌍\u{2028}x""#),
    ("responses.unknown_event", r#"EndTurn "ok""#),
];

#[tokio::test(start_paused = true)]
async fn recorded_streams_come_to_what_they_say_however_they_are_split() {
    // Cases C118, C120, C121, C123, C130 and C134.
    for (name, expected) in RECORDED {
        let bytes = recorded(name);
        let whole = ask(name, true, Canned::stream([&bytes[..]])).await;
        assert_eq!(told(&whole.0), expected, "{name}: {:?}", whole.0);
        if let Ok(turn) = &whole.0 {
            assert_eq!(whole.1, turn.text, "{name}: what was shown");
            assert_eq!(
                (turn.usage.input_tokens > 0, turn.usage.output_tokens),
                (name != "chat.no_done", if name == "chat.no_done" { 0 } else { 5 }),
                "{name}"
            );
        }
        for cut in 0..=bytes.len() {
            assert_eq!(decoded(name, [&bytes[..cut], &bytes[cut..]]), whole, "{name} cut at {cut}");
        }
        assert_eq!(ask(name, true, Canned::stream(bytes.chunks(1))).await, whole, "{name} byte by byte");
    }
}

/// As the model reads them, without the network's times around it.
fn decoded<'a>(name: &str, pieces: impl IntoIterator<Item = &'a [u8]>) -> Answer {
    let (reading, shown) = (Reading::new(protocol(name).decoder()), Shown::default());
    let read = |mut reading: Reading| {
        for piece in pieces {
            if reading.take(piece, &shown)? == Progress::Done {
                return reading.decoder.finish();
            }
        }
        reading.end(&shown)
    };
    let turn = read(reading);
    (turn, shown.0.into_inner().unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_stream_cut_anywhere_is_whole_or_an_error_and_never_a_shorter_turn() {
    // Case C121.
    for (name, _) in RECORDED {
        let bytes = recorded(name);
        let whole = decoded(name, [&bytes[..]]).0;
        let check = |cut: usize, turn: Result<ModelTurn, ModelError>| {
            if let Ok(turn) = turn {
                let whole = whole.as_ref().unwrap();
                assert_eq!(
                    (&turn.text, &turn.calls, turn.stop),
                    (&whole.text, &whole.calls, whole.stop),
                    "{name} {cut}"
                );
            }
        };
        for cut in 0..bytes.len() {
            check(cut, decoded(name, [&bytes[..cut]]).0);
        }
        for cut in (0..bytes.len()).step_by(61) {
            let reset = Step::Fail(HttpError::Reset { reason: "cut".into() });
            check(cut, ask(name, true, Canned::steps([Step::Bytes(bytes[..cut].to_vec()), reset])).await.0);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_comes_after_the_last_word_is_not_waited_for() {
    for (name, expected) in [
        ("chat.text_unicode", r#"EndTurn "Héllo 🌍""#),
        ("chat.no_done", r#"EndTurn "x""#),
        ("messages.text_unicode", r#"EndTurn "Héllo 🌍""#),
        ("responses.text_unicode", r#"EndTurn "Héllo 🌍\u{2028}x""#),
    ] {
        let began = tokio::time::Instant::now();
        let open = Canned::steps([Step::Bytes(recorded(name)), Step::Silence]);
        assert_eq!(told(&ask(name, true, open).await.0), expected, "{name}");
        assert!(began.elapsed() <= Duration::from_secs(2), "{name}: {:?}", began.elapsed());
        // Neither do signs of life keep it open.
        let alive = (0..10_000).flat_map(|_| [Step::Wait(Duration::from_secs(1)), Step::Bytes(b": ping\n\n".to_vec())]);
        let began = tokio::time::Instant::now();
        let open = Canned::steps([Step::Bytes(recorded(name))].into_iter().chain(alive));
        assert_eq!(told(&ask(name, true, open).await.0), expected, "{name}");
        assert!(began.elapsed() <= Duration::from_secs(3), "{name}: {:?}", began.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn each_wait_has_its_own_time() {
    let times = ModelTimeouts::default();
    let error = |answer| async move {
        let began = tokio::time::Instant::now();
        let error = ask("messages", true, answer).await.0.unwrap_err();
        (error, began.elapsed())
    };
    let (first, after) = error(Canned::Silence).await;
    assert!(matches!(first, ModelError::TimedOut { what: "no first byte", retryable: true, .. }), "{first:?}");
    assert_eq!(after, times.connect + times.first_byte);
    let (idle, after) = error(Canned::steps([Step::Bytes(b": ping\n".to_vec()), Step::Silence])).await;
    assert!(matches!(idle, ModelError::TimedOut { what: "nothing more", retryable: true, .. }), "{idle:?}");
    assert_eq!(after, times.idle);
    let pings = (0..10_000).flat_map(|_| [Step::Wait(Duration::from_secs(30)), Step::Bytes(b": ping\n".to_vec())]);
    let (total, after) = error(Canned::steps(pings)).await;
    assert!(matches!(total, ModelError::TimedOut { what: "no whole answer", retryable: false, .. }), "{total:?}");
    assert_eq!(after, times.total);
    let (none, after) = {
        let began = tokio::time::Instant::now();
        (ask("messages", false, Canned::Silence).await.0.unwrap_err(), began.elapsed())
    };
    assert!(matches!(none, ModelError::TimedOut { what: "no answer", retryable: false, .. }), "{none:?}");
    assert_eq!(after, times.total);
}

#[tokio::test]
async fn failures_without_an_answer_are_told_apart() {
    let host = || "h".to_owned();
    let reason = || "r".to_owned();
    let cases = [
        (HttpError::Resolve { host: host(), reason: reason() }, false),
        (HttpError::Connect { host: host(), reason: reason() }, false),
        (HttpError::Tls { host: host(), reason: reason() }, false),
        (HttpError::ConnectTimeout { host: host(), timeout_ms: 1 }, true),
        (HttpError::Reset { reason: reason() }, true),
        (HttpError::Protocol { reason: reason() }, true),
        (HttpError::Request { reason: reason() }, false),
    ];
    for (error, retryable) in cases {
        let told = ask("chat", true, Canned::Fail(error.clone())).await.0.unwrap_err();
        assert_eq!(told.is_retryable(), retryable, "{error:?}: {told:?}");
    }
}

#[tokio::test]
async fn whole_answers_are_read_also_where_a_stream_was_asked_for() {
    let chat = json!({"choices": [{"index": 0, "finish_reason": "tool_calls", "message": {"role": "assistant", "content": null,
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{\"x\":1}"}},
                       {"id": "b", "type": "function", "function": {"name": "g", "arguments": ""}}]}}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}});
    let messages = json!({"type": "message", "role": "assistant", "stop_reason": "tool_use", "content": [
        {"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "look"},
        {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}}, {"type": "tool_use", "id": "b", "name": "g", "input": {}}],
        "usage": {"input_tokens": 1, "cache_read_input_tokens": 1, "cache_creation_input_tokens": 1, "output_tokens": 2}});
    let responses = json!({"status": "completed", "output": [
        {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": "look", "annotations": []}]},
        {"type": "function_call", "id": "fc", "call_id": "a", "name": "f", "arguments": "{\"x\":1}"},
        {"type": "function_call", "id": "fd", "call_id": "b", "name": "g", "arguments": "{}"}],
        "usage": {"input_tokens": 3, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 1}}});
    for (name, body) in [("chat", chat), ("messages", messages), ("responses", responses)] {
        for stream in [false, true] {
            let (turn, shown) = ask(name, stream, Canned::json(&body)).await;
            let turn = turn.unwrap();
            assert!(told(&Ok(turn.clone())).ends_with(r#" a=f{"x":1} b=g{}"#), "{name}: {turn:?}");
            assert_eq!(
                (turn.usage.input_tokens, turn.usage.output_tokens, turn.usage.cache_read_tokens),
                (3, 2, 1),
                "{name}"
            );
            assert_eq!(shown, turn.text);
        }
    }
}

#[tokio::test]
async fn what_is_no_answer_is_told_as_such() {
    let page = Canned::with(200, &[("content-type", "text/html")], "<html>please log in</html>");
    let json = |text: &str| Canned::with(200, &[("content-type", "application/json")], text);
    for name in ["chat", "messages", "responses"] {
        let (error, _) = ask(name, true, page.clone()).await;
        let error = error.unwrap_err();
        assert!(matches!(error, ModelError::Unreadable { .. }) && error.to_string().contains("127.0.0.1:9"), "{error}");
        // 200 with an error inside.
        let inside = json(r#"{"error": {"type": "overloaded_error", "code": "overloaded_error", "message": "busy"}}"#);
        let error = ask(name, false, inside).await.0.unwrap_err();
        assert!(error.is_retryable() && error.to_string().contains("busy"), "{name}: {error:?}");
        for (text, retryable) in [("{", true), ("{\"a\"", true), ("[]", false), ("\"text\"", false)] {
            let error = ask(name, false, json(text)).await.0.unwrap_err();
            assert!(!error.is_retryable() || retryable, "{name} {text}: {error:?}");
        }
        // Nothing, and garbage.
        for text in ["", "data: {\"half\n\n", "data: 7\n\n", "\u{0}\u{1}"] {
            let error = streamed(name, text).await.0.unwrap_err();
            assert!(matches!(error, ModelError::Incomplete { .. }), "{name} {text:?}: {error:?}");
        }
    }
    let empty = r#"data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#.to_owned() + "\n\n";
    assert!(matches!(streamed("chat", &empty).await.0, Err(ModelError::Incomplete { .. })));
    let odd = empty.replace("stop", "tired");
    assert!(
        matches!(streamed("chat", &odd).await.0, Err(ModelError::Unreadable { message }) if message.contains("tired"))
    );
}

/// The beginning of a call, a piece of its arguments, and the end of its turn.
fn call_events(name: &str) -> (String, impl Fn(&str) -> String, String) {
    let event = |fields: Value| format!("data: {fields}\n\n");
    let protocol = name.to_owned();
    let (begun, end) = match name {
        "chat" => (
            json!({"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}}]}}]}),
            event(json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})),
        ),
        "messages" => (
            json!({"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "a", "name": "f", "input": {}}}),
            event(json!({"type": "content_block_stop", "index": 0}))
                + &event(json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}}))
                + &event(json!({"type": "message_stop"})),
        ),
        _ => (
            json!({"type": "response.output_item.added", "output_index": 0, "item": {"type": "function_call", "id": "i", "call_id": "a", "name": "f", "arguments": ""}}),
            event(json!({"type": "response.completed", "response": {"status": "completed"}})),
        ),
    };
    let piece = move |text: &str| {
        let fields = match protocol.as_str() {
            "chat" => {
                json!({"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}}]})
            }
            "messages" => {
                json!({"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": text}})
            }
            _ => json!({"type": "response.function_call_arguments.delta", "output_index": 0, "delta": text}),
        };
        format!("data: {fields}\n\n")
    };
    (event(begun), piece, end)
}

/// Bytes of the arguments that a call may not have.
const FAR_TOO_MANY: usize = 50 * 1024 * 1024;

#[test]
fn arguments_of_fifty_megabytes_are_told_and_held_only_in_part() {
    for name in ["chat", "messages", "responses"] {
        let (begun, piece, end) = call_events(name);
        let part = piece(&"x".repeat(1024 * 1024));
        let parts = std::iter::repeat_n(part.as_bytes(), FAR_TOO_MANY / (1024 * 1024));
        let first = piece("{\"text\": \"");
        let all = [begun.as_bytes(), first.as_bytes()].into_iter().chain(parts).chain([end.as_bytes()]);
        let turn = decoded(name, all).0.unwrap();
        let CallArguments::Malformed { text, error } = &turn.calls[0].arguments else { panic!("{name}: it is parsed") };
        assert!(text.len() <= crate::models::MALFORMED_BYTES_MAX, "{name}: {} bytes are held", text.len());
        assert!(error.contains("bytes; at most 8388608 are taken"), "{name}: {error}");
    }
}

#[test]
fn a_text_without_end_is_bounded() {
    for name in ["chat", "messages", "responses"] {
        let words = "x".repeat(1024 * 1024);
        let delta = match name {
            "chat" => json!({"choices": [{"index": 0, "delta": {"content": words}}]}),
            "messages" => {
                json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": words}})
            }
            _ => json!({"type": "response.output_text.delta", "output_index": 0, "delta": words}),
        };
        let begun = json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}});
        let begun = if name == "messages" { format!("data: {begun}\n\n") } else { String::new() };
        let part = format!("data: {delta}\n\n");
        let (mut reading, mut pieces) = (Reading::new(protocol(name).decoder()), 0);
        reading.take(begun.as_bytes(), &Shown::default()).unwrap();
        let error = loop {
            pieces += 1;
            assert!(pieces < 100, "{name}: it goes on for ever");
            if let Err(error) = reading.take(part.as_bytes(), &crate::models::NoSink) {
                break error;
            }
        };
        assert!(matches!(&error, ModelError::TooLarge { .. }), "{name}: {error:?}");
    }
}

/// Calls that the deadline of the whole turn ends, whatever is still sent.
#[tokio::test(start_paused = true)]
async fn a_server_that_never_closes_is_left_at_the_end_of_the_time() {
    for name in ["chat", "messages", "responses"] {
        let (begun, piece, _) = call_events(name);
        let part = piece("x");
        let steps =
            (0..10_000).flat_map(|_| [Step::Wait(Duration::from_secs(1)), Step::Bytes(part.clone().into_bytes())]);
        let answer = Canned::steps([Step::Bytes(begun.into_bytes())].into_iter().chain(steps));
        let began = tokio::time::Instant::now();
        let error = ask(name, true, answer).await.0.unwrap_err();
        assert!(matches!(error, ModelError::TimedOut { what: "no whole answer", .. }), "{name}: {error:?}");
        assert_eq!(began.elapsed(), ModelTimeouts::default().total, "{name}");
    }
}

#[tokio::test]
async fn a_failure_never_shows_the_key() {
    let body =
        json!({"error": {"type": "invalid_request_error", "message": "Incorrect API key provided: very-secret-key"}});
    let (error, _) = ask("chat", true, Canned::with(401, &[], &body.to_string())).await;
    let error = error.unwrap_err();
    assert!(matches!(&error, ModelError::Unauthorized { message } if message.contains("[key]")), "{error:?}");
    assert!(!format!("{error:?} {error}").contains("very-secret-key"));
}

#[tokio::test]
async fn keys_and_versions_travel_in_headers() {
    for (name, key, value) in [
        ("chat", "authorization", "Bearer very-secret-key"),
        ("responses", "authorization", "Bearer very-secret-key"),
        ("messages", "x-api-key", "very-secret-key"),
    ] {
        let http = CannedHttp::new([Canned::with(200, &[("x-request-id", "r1"), ("request-id", "r1")], "")]);
        let _ = model(name, true, &http).turn(&request(), &Shown::default()).await;
        let asked = &http.asked()[0];
        assert_eq!(asked.headers.get(key), Some(value));
        assert_eq!(asked.headers.get("anthropic-version").is_some(), name == "messages");
        let body: Value = serde_json::from_slice(&asked.body).unwrap();
        assert_eq!((body["model"].as_str(), body["stream"].as_bool()), (Some("m"), Some(true)));
    }
    let http = CannedHttp::new([Canned::with(
        200,
        &[("request-id", "r1"), ("content-type", "application/json")],
        r#"{"content":[{"type":"text","text":"a"}],"stop_reason":"end_turn"}"#,
    )]);
    let turn = model("messages", false, &http).turn(&request(), &Shown::default()).await.unwrap();
    assert_eq!((turn.request_id.as_deref(), turn.stop), (Some("r1"), StopReason::EndTurn));
}

#[test]
fn a_base_address_may_have_its_version_or_not() {
    let of = |base: &str| endpoint(base, "/chat/completions").unwrap();
    for base in [
        "https://h",
        "https://h/",
        "https://h/v1",
        "https://h/v1/",
        "https://h/v1/chat/completions",
        " https://h/v1/chat/completions/ ",
    ] {
        assert_eq!(of(base), "https://h/v1/chat/completions", "{base}");
    }
    assert_eq!(of("http://h:1/openai"), "http://h:1/openai/v1/chat/completions");
    assert_eq!(of("http://h/v1beta/openai"), "http://h/v1beta/openai/chat/completions");
    for wrong in ["", "h", "ftp://h", "https://", "https://h?x=1", "https://user:pass@h/v1", "https://h/a b"] {
        let error = endpoint(wrong, "/messages").unwrap_err();
        assert!(!error.to_string().contains("pass@"), "{error}");
    }
}
