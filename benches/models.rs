//! What a model over the network costs: reading streams, a turn against a bare exchange of the same bytes, and the loop.
//!
//! Plain loops and medians: the server stands on the same machine and answers at once, so what is measured is ours. The
//! bare exchange is the HTTP port's own, without a protocol around it.

#![expect(clippy::expect_used, reason = "a bench that cannot set up its work has nothing to measure")]
#![expect(clippy::disallowed_methods, reason = "a bench measures real time")]

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use toolwarden::embedding::Runtime;
use toolwarden::models::claude_messages::ClaudeMessages;
use toolwarden::models::openai_chat::OpenAiChat;
use toolwarden::models::openai_responses::OpenAiResponses;
use toolwarden::models::price::TokenPrice;
use toolwarden::models::remote::{ModelTimeouts, RemoteModel, RemoteSettings};
use toolwarden::models::sse::SseReader;
use toolwarden::models::turn_options::TurnOptions;
use toolwarden::models::wire::{Protocol, WireSettings};
use toolwarden::models::{Message, Model as _, ModelRequest, NoSink};
use toolwarden::policy::PermissionPolicy;
use toolwarden::run::RunLimits;
use toolwarden_tools::effects::Effects;
use toolwarden_tools::effects::http::{HttpMethod, HttpRequest};

/// Bytes of a stream that is read, about.
const STREAM_BYTES: usize = 8 * 1024 * 1024;
/// Bytes of a piece, as they come from a socket.
const PIECE_BYTES: usize = 16 * 1024;
/// Times of which the median is taken.
const TIMES: usize = 15;
/// Exchanges and turns of which the median is taken.
const EXCHANGES: usize = 2000;
/// Rounds of the loop.
const ROUNDS: usize = 100;

fn main() {
    for (name, protocol, event) in protocols() {
        read(name, &*protocol, &event.repeat(STREAM_BYTES / event.len()));
    }
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads");
    tokio.block_on(async {
        turns().await;
        rounds().await;
    });
}

/// The protocols, each with the event that most of its streams consist of.
fn protocols() -> [(&'static str, Box<dyn Protocol>, String); 3] {
    let chat = json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices":
        [{"index": 0, "delta": {"content": " some words"}, "finish_reason": null, "logprobs": null}]});
    let responses = json!({"type": "response.output_text.delta", "sequence_number": 4, "item_id": "msg_0",
        "output_index": 0, "content_index": 0, "delta": " some words", "logprobs": []});
    let claude =
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": " some words"}});
    [
        ("openai_chat", Box::new(OpenAiChat), format!("data: {chat}\n\n")),
        (
            "openai_responses",
            Box::new(OpenAiResponses),
            format!("event: response.output_text.delta\ndata: {responses}\n\n"),
        ),
        ("claude_messages", Box::new(ClaudeMessages), format!("event: content_block_delta\ndata: {claude}\n\n")),
    ]
}

fn read(name: &str, protocol: &dyn Protocol, stream: &str) {
    let start = json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}});
    let begin = format!("data: {start}\n\n");
    let events = median(|| {
        let (mut reader, mut events) = (SseReader::default(), 0_usize);
        for piece in stream.as_bytes().chunks(PIECE_BYTES) {
            let pushed = reader.push(piece, &mut |event| {
                events += event.data.len();
                true
            });
            pushed.expect("events");
        }
        black_box(events);
    });
    let turn = median(|| {
        let (mut reader, mut decoder) = (SseReader::default(), protocol.decoder());
        let mut take = |event: toolwarden::models::sse::SseEvent<'_>| {
            decoder.event(&event, &NoSink).expect("an event of the protocol");
            true
        };
        if name == "claude_messages" {
            reader.push(begin.as_bytes(), &mut take).expect("events");
        }
        for piece in stream.as_bytes().chunks(PIECE_BYTES) {
            reader.push(piece, &mut take).expect("events");
        }
        black_box(decoder.finish().is_ok());
    });
    let rate = |span: Duration| stream.len() as f64 / 1e6 / span.as_secs_f64();
    println!("{name}: events {:.0} MB/s, turn {:.0} MB/s", rate(events), rate(turn));
}

fn median(mut work: impl FnMut()) -> Duration {
    let mut spans: Vec<Duration> = (0..TIMES)
        .map(|_| {
            let began = Instant::now();
            work();
            began.elapsed()
        })
        .collect();
    spans.sort_unstable();
    spans[TIMES / 2]
}

/// A turn against the exchange of the same bytes.
async fn turns() {
    let base = serve(|_| answer(None)).await;
    let (http, model) = (Effects::real().http, model(&base));
    let request = ModelRequest {
        system: "be good".into(),
        messages: vec![Message::User { text: "hello".into() }],
        tools: Vec::new(),
        tool_calls_allowed: true,
        agent: "general".into(),
        fan_out: 1,
        options: TurnOptions::default(),
    };
    let body = OpenAiChat.request(&request, &wire()).to_string();
    let (mut bare, mut whole) = (Vec::with_capacity(EXCHANGES), Vec::with_capacity(EXCHANGES));
    for _ in 0..EXCHANGES {
        let began = Instant::now();
        let url = format!("{base}/v1/chat/completions");
        let sent =
            HttpRequest::new(HttpMethod::Post, url).header("content-type", "application/json").body(body.clone());
        let mut answer = http.exchange(sent).await.expect("an answer");
        while let Some(piece) = answer.body.next().await {
            black_box(piece.expect("a piece").len());
        }
        bare.push(began.elapsed());
        let began = Instant::now();
        black_box(model.turn(&request, &NoSink).await.expect("a turn"));
        whole.push(began.elapsed());
    }
    bare.sort_unstable();
    whole.sort_unstable();
    let (bare, whole) = (bare[EXCHANGES / 2], whole[EXCHANGES / 2]);
    println!("bare exchange {bare:?}, turn {whole:?}: {:.2} times", whole.as_secs_f64() / bare.as_secs_f64());
}

/// The whole loop: a call a round.
async fn rounds() {
    let folder = std::env::temp_dir().join(format!("toolwarden-bench-models-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let base = serve(move |_| {
        let round = counter.fetch_add(1, Ordering::Relaxed);
        answer((round < ROUNDS).then(|| format!("{{\"path\":\".\",\"limit\":{}}}", round + 1)))
    })
    .await;
    let runtime = Runtime::builder().build().await.expect("a runtime");
    let policy = PermissionPolicy::from_toml("default = \"allow\"", "bench").expect("a policy");
    let limits = RunLimits { rounds_max: Some(u32::try_from(ROUNDS).unwrap_or(u32::MAX) + 1), ..RunLimits::default() };
    let session = runtime.session(&folder).policy(policy).run_limits(limits).model(Arc::new(model(&base)));
    let session = session.open().await.expect("a session");
    let began = Instant::now();
    let outcome = session.run("go").await.expect("a run");
    let span = began.elapsed();
    println!("{} turns with a call each: {:?} a turn ({})", outcome.turns, span / outcome.turns, outcome.status);
    runtime.shut_down().await;
    std::fs::remove_dir_all(&folder).expect("the folder's end");
}

fn wire() -> WireSettings {
    WireSettings { model: "m".into(), stream: true, ..WireSettings::default() }
}

fn model(base: &str) -> RemoteModel {
    let settings = RemoteSettings {
        name: "bench".into(),
        base_url: base.to_owned(),
        key: None,
        wire: wire(),
        context_tokens: None,
        timeouts: ModelTimeouts::default(),
        price: TokenPrice::default(),
    };
    let effects = Effects::real();
    RemoteModel::new(settings, Box::new(OpenAiChat), effects.http, effects.clock).expect("a model")
}

fn answer(call: Option<String>) -> String {
    let chunk = |delta: serde_json::Value, reason: Option<&str>| {
        format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}))
    };
    let mut events = chunk(json!({"content": "Some words of an answer."}), None).repeat(8);
    let reason = if call.is_some() { "tool_calls" } else { "stop" };
    if let Some(arguments) = call {
        let call = json!({"index": 0, "id": "c", "function": {"name": "ls", "arguments": arguments}});
        events.push_str(&chunk(json!({"tool_calls": [call]}), None));
    }
    events.push_str(&chunk(json!({}), Some(reason)));
    events.push_str("data: [DONE]\n\n");
    events
}

/// A server that answers at once, and keeps connections.
async fn serve(answer: impl Fn(usize) -> String + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let answer = Arc::new(answer);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = Arc::clone(&answer);
            tokio::spawn(async move { converse(stream, &*answer).await });
        }
    });
    format!("http://{address}")
}

async fn converse(stream: TcpStream, answer: &(impl Fn(usize) -> String + Sync)) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut stream = BufReader::new(stream);
    loop {
        let (mut line, mut length) = (String::new(), 0_usize);
        loop {
            line.clear();
            if stream.read_line(&mut line).await.ok()? == 0 {
                return None;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await.ok()?;
        let text = answer(length);
        let head =
            format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\r\n", text.len());
        stream.get_mut().write_all(format!("{head}{text}").as_bytes()).await.ok()?;
    }
}
