//! How runs over the network end: cancelled in the middle, taken back and sent again, long, and with a full window.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _};
use serde_json::{Value, json};
use toolwarden::models::gate::RetryPolicy;
use toolwarden::models::transcript::check_pairing;
use toolwarden::models::{CallArguments, Model, ModelCall, ModelError, ModelRequest, ModelTurn, TurnSink};
use toolwarden::run_status::RunStatus;
use toolwarden::session::Session;
use toolwarden_tools::cancellation::CancelReason;

use super::peer::{PROTOCOLS, model};
use super::provider::{Fault, Provider};
use super::support::tool::echo;
use super::support::until;
use super::support::world::{World, allowing};

async fn session(world: &World, model: Arc<dyn Model>) -> Session {
    world.session().policy(allowing(&["echo"])).tool(echo("echo").shared()).model(model).open().await.unwrap()
}

fn remote(protocol: &str, provider: &Arc<Provider>) -> Arc<dyn Model> {
    let provider: Arc<Provider> = Arc::clone(provider);
    model(protocol, "http://127.0.0.1:9", true, provider)
}

/// Starts a run, waits for `moment`, and cancels everything.
async fn cancelled_at(session: &Session, moment: impl Future<Output = ()>) -> RunStatus {
    let run = session.run("go");
    let cancel = async {
        moment.await;
        session.close_because(CancelReason::Requested).await;
    };
    let (outcome, ()) = tokio::join!(run, cancel);
    outcome.unwrap().status
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_ends_a_stream_half_way_and_closes_its_connection() {
    for protocol in PROTOCOLS {
        let world = World::new().await;
        let provider = Provider::new(0, |_| Fault::Silence(2));
        let session = session(&world, remote(protocol, &provider)).await;
        let streaming = async { drop(world.record.wait("turn_start", |_| true).await) };
        let status = cancelled_at(&session, streaming).await;
        assert_eq!(status, RunStatus::Cancelled { reason: CancelReason::Requested }, "{protocol}");
        until("the connection's end", async || (provider.dropped.load(Ordering::SeqCst) == 1).then_some(())).await;
        assert_eq!(provider.asked(), 1);
        world.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_ends_a_wait_for_another_attempt() {
    let hour = Duration::from_secs(3600);
    let waiting = RetryPolicy { attempts_max: 4, wait_min: hour, wait_max: hour, asked_wait_max: hour };
    let world = World::with(|builder| builder.model_retries(waiting)).await;
    let provider = Provider::new(0, |_| Fault::Status(529));
    let session = session(&world, remote("messages", &provider)).await;
    let asked = until("the first attempt", async || (provider.asked() == 1).then_some(()));
    let status = cancelled_at(&session, asked).await;
    assert_eq!(status, RunStatus::Cancelled { reason: CancelReason::Requested });
    assert_eq!(provider.asked(), 1);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_that_breaks_is_taken_back_and_sent_again_under_its_number() {
    // Case C124.
    for protocol in PROTOCOLS {
        let soon = RetryPolicy { wait_min: Duration::from_millis(1), ..RetryPolicy::default() };
        let world = World::with(|builder| builder.model_retries(soon)).await;
        // Far enough in for text to be there, and half a call.
        let place = if protocol == "chat" { 8 } else { 14 };
        let provider = Provider::new(1, move |number| if number == 0 { Fault::Reset(place) } else { Fault::None });
        let session = session(&world, remote(protocol, &provider)).await;
        let outcome = session.run("go").await.unwrap();
        assert_eq!((outcome.status, outcome.text.as_str(), outcome.turns), (RunStatus::Completed, "Hello there. ", 2));
        let starts: Vec<Value> =
            world.record.of_type("turn_start").into_iter().map(|line| line["turn"].clone()).collect();
        assert_eq!(starts, [json!(1), json!(1), json!(2)], "{protocol}");
        // What stands since the last start of each turn is the turn.
        let mut shown = String::new();
        for line in world.record.lines() {
            match line["type"].as_str().unwrap() {
                "turn_start" => shown.clear(),
                "text_delta" => shown.push_str(line["delta"].as_str().unwrap()),
                "turn_end" => assert_eq!(shown, "Hello there. ", "{protocol}"),
                _ => {}
            }
        }
        let ran = world.record.of_type("tool_execution_start");
        assert_eq!((ran.len(), &ran[0]["args"]["n"]), (1, &json!(0)), "{protocol}");
        world.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_different_calls_in_a_row_are_not_cut_off() {
    // Case R12.
    let world = World::new().await;
    let provider = Provider::new(13, |_| Fault::None);
    let session = session(&world, remote("chat", &provider)).await;
    let outcome = session.run("go").await.unwrap();
    assert_eq!((outcome.status, outcome.turns), (RunStatus::Completed, 14));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn words_without_tools_cost_one_small_request() {
    // Case R11.
    for protocol in PROTOCOLS {
        let world = World::new().await;
        let provider = Provider::new(0, |_| Fault::None);
        let session = world.session().model(remote(protocol, &provider)).open().await.unwrap();
        assert_eq!(session.run("hello").await.unwrap().status, RunStatus::Completed);
        let requests = provider.requests();
        assert_eq!(requests.len(), 1);
        let tools = requests[0]["tools"].to_string().len();
        let rest = requests[0].to_string().len() - tools;
        assert!(rest < 4000, "{protocol}: {rest} bytes beside the tools");
        world.end().await;
    }
}

/// Refuses long conversations as some providers do: with a status and prose, and no code that says why.
struct InProse {
    bytes_max: usize,
    summaries: AtomicUsize,
    refused: AtomicUsize,
    turns: AtomicUsize,
}

impl Model for InProse {
    fn name(&self) -> &str {
        "in prose"
    }

    fn turn<'a>(
        &'a self,
        request: &'a ModelRequest,
        _sink: &'a dyn TurnSink,
    ) -> BoxFuture<'a, Result<ModelTurn, ModelError>> {
        async move {
            check_pairing(&request.messages).unwrap();
            if serde_json::to_string(&request.messages).unwrap().len() > self.bytes_max {
                self.refused.fetch_add(1, Ordering::SeqCst);
                return Err(ModelError::Invalid { message: "prompt is too long: 210000 tokens".to_owned() });
            }
            if request.tools.is_empty() {
                self.summaries.fetch_add(1, Ordering::SeqCst);
                return Ok(ModelTurn::answer("They read a lot."));
            }
            let turn = self.turns.fetch_add(1, Ordering::SeqCst);
            if turn == 20 {
                return Ok(ModelTurn::answer("done"));
            }
            let arguments = CallArguments::Parsed(json!({"n": turn, "pad": "x".repeat(6000)}));
            Ok(ModelTurn::calling("", vec![ModelCall { id: format!("c{turn}"), tool: "echo".into(), arguments }]))
        }
        .boxed()
    }
}

fn in_prose(bytes_max: usize) -> Arc<InProse> {
    let zero = || AtomicUsize::new(0);
    Arc::new(InProse { bytes_max, summaries: zero(), refused: zero(), turns: zero() })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_window_that_is_told_in_prose_alone_is_found_by_rule() {
    let world = World::new().await;
    let model = in_prose(120_000);
    let long = session(&world, model.clone()).await;
    let outcome = long.run("the task").await.unwrap();
    assert_eq!((outcome.status, outcome.text.as_str()), (RunStatus::Completed, "done"));
    let (refused, summaries) = (model.refused.load(Ordering::SeqCst), model.summaries.load(Ordering::SeqCst));
    assert!(refused > 0 && refused == summaries, "{refused} refusals, {summaries} summaries");
    // A short request that is refused is told at once, in its provider's words.
    let model = in_prose(10);
    let short = session(&world, model.clone()).await;
    let outcome = short.run("the task").await.unwrap();
    assert!(matches!(&outcome.status, RunStatus::ModelFailed { message } if message.contains("too long")));
    assert_eq!((model.refused.load(Ordering::SeqCst), model.summaries.load(Ordering::SeqCst)), (1, 0));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_is_told_while_the_model_writes_it() {
    for protocol in PROTOCOLS {
        let world = World::new().await;
        let provider = Provider::new(1, |_| Fault::None);
        let session = session(&world, remote(protocol, &provider)).await;
        assert_eq!(session.run("go").await.unwrap().status, RunStatus::Completed);
        let lines = world.record.lines();
        let at = |kind: &str| lines.iter().position(|line| line["type"] == kind).unwrap();
        let (begun, ended, started) = (at("tool_start"), at("turn_end"), at("tool_execution_start"));
        assert!(begun < ended && ended < started, "{protocol}: {begun} {ended} {started}");
        assert_eq!((&lines[begun]["id"], &lines[begun]["name"]), (&json!("c0"), &json!("echo")), "{protocol}");
        let pieces: Vec<&Value> = lines.iter().filter(|line| line["type"] == "tool_input_delta").collect();
        assert!(pieces.iter().all(|piece| piece["id"] == "c0"), "{protocol}");
        let text: String = pieces.iter().map(|piece| piece["delta"].as_str().unwrap()).collect();
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), lines[started]["args"], "{protocol}");
        world.end().await;
    }
}

/// A model with a small window, which checks that what it gets fits into it.
struct Windowed {
    tokens: u64,
    turns: AtomicUsize,
    summaries: AtomicUsize,
    /// Whether it fails to summarise.
    fails: bool,
}

impl Model for Windowed {
    fn name(&self) -> &str {
        "windowed"
    }

    fn context_tokens(&self) -> Option<u64> {
        Some(self.tokens)
    }

    fn turn<'a>(
        &'a self,
        request: &'a ModelRequest,
        _sink: &'a dyn TurnSink,
    ) -> BoxFuture<'a, Result<ModelTurn, ModelError>> {
        async move {
            check_pairing(&request.messages).unwrap();
            let bytes = serde_json::to_string(&request.messages).unwrap().len() as u64;
            if bytes / 4 > self.tokens {
                return Err(ModelError::ContextOverflow { message: format!("{bytes} bytes") });
            }
            if request.tools.is_empty() {
                self.summaries.fetch_add(1, Ordering::SeqCst);
                let failed = ModelError::Invalid { message: "no summary today".to_owned() };
                return if self.fails { Err(failed) } else { Ok(ModelTurn::answer("They read a lot.")) };
            }
            let turn = self.turns.fetch_add(1, Ordering::SeqCst);
            if turn == 11 {
                return Ok(ModelTurn::answer("done"));
            }
            let arguments = CallArguments::Parsed(json!({"n": turn, "pad": "x".repeat(6000)}));
            Ok(ModelTurn::calling("", vec![ModelCall { id: format!("c{turn}"), tool: "echo".into(), arguments }]))
        }
        .boxed()
    }
}

fn windowed(tokens: u64, fails: bool) -> Arc<Windowed> {
    Arc::new(Windowed { tokens, turns: AtomicUsize::new(0), summaries: AtomicUsize::new(0), fails })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conversation_that_fills_the_window_gives_way_to_a_summary() {
    let world = World::new().await;
    let probe = session(&world, windowed(u64::MAX, false)).await;
    // The tools alone take their part of the window.
    assert_eq!(probe.run("go").await.unwrap().status, RunStatus::Completed);
    let model = windowed(30_000, false);
    let session = session(&world, model.clone()).await;
    let outcome = session.run("the task in its own words").await.unwrap();
    assert_eq!((outcome.status, outcome.text.as_str()), (RunStatus::Completed, "done"));
    assert!(model.summaries.load(Ordering::SeqCst) > 0);
    let told = world.record.of_type("context_compacted");
    assert!(told.iter().all(|line| line["tokens_after"].as_u64() < line["tokens_before"].as_u64()), "{told:?}");
    assert_eq!(told.len(), model.summaries.load(Ordering::SeqCst));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_summary_the_conversation_stays_and_the_run_says_that_it_is_full() {
    let world = World::new().await;
    let session = session(&world, windowed(30_000, true)).await;
    let outcome = session.run("go").await.unwrap();
    assert_eq!(outcome.status, RunStatus::ContextFull);
    assert!(world.record.of_type("context_compacted").is_empty());
    world.end().await;
}
