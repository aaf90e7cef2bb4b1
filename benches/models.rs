//! What a model over the network costs: reading streams, a turn against a bare exchange of the same bytes, and the loop.
//!
//! Plain loops and medians: the server stands on the same machine and answers at once, so what is measured is ours. The
//! bare exchange is the HTTP port's own, without a protocol around it.

#![expect(clippy::expect_used, reason = "a bench that cannot set up its work has nothing to measure")]
#![expect(clippy::disallowed_methods, reason = "a bench measures real time")]

#[path = "models/stream.rs"]
mod stream;

use std::hint::black_box;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use toolwarden::embedding::Runtime;
use toolwarden::event::EventKind;
use toolwarden::lanes::LaneLimits;
use toolwarden::models::openai_chat::OpenAiChat;
use toolwarden::models::price::TokenPrice;
use toolwarden::models::remote::{ModelTimeouts, RemoteModel, RemoteSettings};
use toolwarden::models::sse::{SseEvent, SseReader};
use toolwarden::models::turn_options::TurnOptions;
use toolwarden::models::wire::{Protocol as _, WireSettings};
use toolwarden::models::{Message, Model as _, ModelRequest, NoSink};
use toolwarden::policy::PermissionPolicy;
use toolwarden::run::RunLimits;
use toolwarden_actors::journal::Reading;
use toolwarden_actors::permit_pool::BulkheadLimits;
use toolwarden_tools::effects::Effects;
use toolwarden_tools::effects::http::{HttpMethod, HttpRequest};
use toolwarden_tools::offer::Offer;
use toolwarden_tools::tool::Lane;

use self::stream::Dialect;

/// The program's own allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

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
/// Child runs of one call, how many of them at a time, and how long each one's model takes.
const CHILDREN: usize = 32;
const CHILDREN_WIDTH: usize = 8;
const LATENCY: Duration = Duration::from_millis(50);
/// Sessions that stream beside each other.
const CROWD: usize = 1000;

/// With this argument the bench is the server of the crowd, so that its memory is not counted.
const SERVER: &str = "--serve-the-crowd";

fn main() {
    if std::env::args().any(|argument| argument == SERVER) {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a thread");
        return tokio.block_on(serve_the_crowd());
    }
    Dialect::all().iter().for_each(read);
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads");
    tokio.block_on(async {
        turns().await;
        rounds().await;
        children().await;
        crowd().await;
    });
}

/// Events alone, and the whole way to a turn, for each kind of stream.
fn read(dialect: &Dialect) {
    for (kind, stream) in dialect.streams(STREAM_BYTES) {
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
            let (mut reader, mut decoder) = (SseReader::default(), dialect.protocol.decoder());
            let mut take = |event: SseEvent<'_>| {
                decoder.event(&event, &NoSink).expect("an event of the protocol");
                true
            };
            for piece in stream.as_bytes().chunks(PIECE_BYTES) {
                reader.push(piece, &mut take).expect("events");
            }
            black_box(decoder.finish().expect("a turn"));
        });
        let rate = |span: Duration| stream.len() as f64 / 1e6 / span.as_secs_f64();
        println!("{}, {kind}: events {:.0} MB/s, turn {:.0} MB/s", dialect.name, rate(events), rate(turn));
    }
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
        tools: Offer::default(),
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

/// Child runs against a server that takes its time.
async fn children() {
    let folder = Folder::new("children");
    let base = serve_slowly(LATENCY, |_| answer(None)).await;
    let runtime = Runtime::builder().build().await.expect("a runtime");
    let session = runtime.session(&folder.0).model(Arc::new(model(&base))).open().await.expect("a session");
    let task = json!({"agent": "explore", "description": "d", "prompt": "p"});
    let mut spans = Vec::new();
    for _ in 0..9 {
        let began = Instant::now();
        let result = session.tool("task", json!({"tasks": vec![task.clone(); CHILDREN]})).await.expect("a call");
        assert!(result.is_success(), "{}", result.output);
        spans.push(began.elapsed());
    }
    spans.sort_unstable();
    let ideal = LATENCY * u32::try_from(CHILDREN / CHILDREN_WIDTH).unwrap_or(u32::MAX);
    let times = spans[4].as_secs_f64() / ideal.as_secs_f64();
    println!(
        "{CHILDREN} child runs, {CHILDREN_WIDTH} at a time, {LATENCY:?} each: {:?}, {times:.2} times {ideal:?}",
        spans[4]
    );
    runtime.shut_down().await;
}

/// Many sessions that stream at the same time: what each of them takes, and that each has all of its events.
async fn crowd() {
    let folder = Folder::new("crowd");
    let this = std::env::current_exe().expect("this program");
    let mut server = tokio::process::Command::new(this)
        .arg(SERVER)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("a server");
    let mut told = BufReader::new(server.stdout.take().expect("its output")).lines();
    let base = told.next_line().await.expect("a line").expect("an address");
    let lanes =
        LaneLimits::default().with(Lane::Model, BulkheadLimits { permits: CROWD, queue_max: CROWD, breaker: None });
    let runtime = Runtime::builder().lanes(lanes).build().await.expect("a runtime");
    let model = Arc::new(model_with(&base, Some(CROWD)));
    let before = resident_bytes();
    let mut runs = tokio::task::JoinSet::new();
    for _ in 0..CROWD {
        let session = runtime.session(&folder.0).model(Arc::clone(&model) as _).open().await.expect("a session");
        runs.spawn(async move {
            let mut stream = session.stream("go").await.expect("a run");
            let (mut text, mut missed) = (String::new(), 0);
            while let Some(reading) = stream.next().await {
                match reading {
                    Reading::Entry(entry) => {
                        if let EventKind::TextDelta { delta } = &entry.event.kind {
                            text.push_str(delta);
                        }
                    }
                    Reading::Missed { count } => missed += count,
                    Reading::SinkFailed(_) => {}
                }
            }
            let outcome = stream.outcome().await.expect("an outcome");
            (outcome.text == text && !text.is_empty(), missed)
        });
    }
    told.next_line().await.expect("a line").expect("word that all of them wait");
    // What was sent is read, and every stream stands half-way.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let each_kib = resident_bytes().saturating_sub(before) / CROWD as u64 / 1024;
    drop(server.stdin.take());
    let (mut whole, mut missed) = (0, 0);
    while let Some(ended) = runs.join_next().await {
        let (is_whole, lost) = ended.expect("a run's end");
        whole += usize::from(is_whole);
        missed += lost;
    }
    println!(
        "{CROWD} sessions that stream at once: {each_kib} KiB each (to be under 200), {whole} whole, {missed} events lost"
    );
    server.wait().await.expect("the server's end");
    runtime.shut_down().await;
}

/// A folder for one part, gone with it.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("toolwarden-bench-models-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    line.trim().trim_end_matches("kB").trim().parse::<u64>().expect("a number") * 1024
}

fn wire() -> WireSettings {
    WireSettings { model: "m".into(), stream: true, ..WireSettings::default() }
}

fn model(base: &str) -> RemoteModel {
    model_with(base, None)
}

fn model_with(base: &str, concurrency_max: Option<usize>) -> RemoteModel {
    let settings = RemoteSettings {
        name: "bench".into(),
        base_url: base.to_owned(),
        key: None,
        wire: wire(),
        context_tokens: None,
        timeouts: ModelTimeouts::default(),
        price: TokenPrice::default(),
        object_support: None,
        concurrency_max,
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

/// Says its address, and when all wait for the second half; sends that and ends when its input does.
async fn serve_the_crowd() {
    let (open, is_open) = tokio::sync::watch::channel(false);
    let waiting = Arc::new(AtomicUsize::new(0));
    println!("{}", serve_in_two(Arc::clone(&waiting), is_open).await);
    while waiting.load(Ordering::SeqCst) < CROWD {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("all wait");
    let ended = tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
    ended.await.expect("no panic").expect("an end");
    open.send_replace(true);
    while waiting.load(Ordering::SeqCst) > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A server that begins each answer, and ends it when it is let.
async fn serve_in_two(waiting: Arc<AtomicUsize>, is_open: tokio::sync::watch::Receiver<bool>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (waiting, mut is_open) = (Arc::clone(&waiting), is_open.clone());
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                request(&mut stream).await?;
                let text = answer(None);
                let (one, other) = text.split_at(text.len() / 2);
                let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
                stream.get_mut().write_all(format!("{head}{one}").as_bytes()).await.ok()?;
                waiting.fetch_add(1, Ordering::SeqCst);
                is_open.wait_for(|is_open| *is_open).await.ok()?;
                let sent = stream.get_mut().write_all(other.as_bytes()).await.ok();
                waiting.fetch_sub(1, Ordering::SeqCst);
                sent
            });
        }
    });
    format!("http://{address}")
}

/// A server that answers at once, and keeps connections.
async fn serve(answer: impl Fn(usize) -> String + Send + Sync + 'static) -> String {
    serve_slowly(Duration::ZERO, answer).await
}

/// A server that answers after this span.
async fn serve_slowly(span: Duration, answer: impl Fn(usize) -> String + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let answer = Arc::new(answer);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = Arc::clone(&answer);
            tokio::spawn(async move { converse(stream, span, &*answer).await });
        }
    });
    format!("http://{address}")
}

/// Reads a request; gives the length of its body.
async fn request(stream: &mut BufReader<TcpStream>) -> Option<usize> {
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
    Some(length)
}

async fn converse(stream: TcpStream, span: Duration, answer: &(impl Fn(usize) -> String + Sync)) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut stream = BufReader::new(stream);
    loop {
        let length = request(&mut stream).await?;
        if !span.is_zero() {
            tokio::time::sleep(span).await;
        }
        let text = answer(length);
        let head =
            format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\r\n", text.len());
        stream.get_mut().write_all(format!("{head}{text}").as_bytes()).await.ok()?;
    }
}
