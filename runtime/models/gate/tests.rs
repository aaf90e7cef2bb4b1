//! The gate: what is tried again, after which wait, and what is called back.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _};
use toolwarden_actors::waiting_line::Holder;
use toolwarden_tools::cancellation::{CancelReason, Cancellation};
use toolwarden_tools::effects::Effects;
use toolwarden_tools::effects::clock::Clock;
use toolwarden_tools::effects::entropy::Entropy;
use toolwarden_tools::offer::Offer;

use super::{Asking, ModelGate, RetryPolicy, TurnFailure};
use crate::models::turn_options::TurnOptions;
use crate::models::{Model, ModelError, ModelRequest, ModelTurn, TurnSink};

/// Fails as told, after it has said a word.
struct Failing(Mutex<VecDeque<ModelError>>);

impl Model for Failing {
    fn name(&self) -> &str {
        "failing"
    }

    fn turn<'a>(
        &'a self,
        _request: &'a ModelRequest,
        sink: &'a dyn TurnSink,
    ) -> BoxFuture<'a, Result<ModelTurn, ModelError>> {
        async move {
            sink.text_delta("Hel");
            match self.0.lock().unwrap().pop_front() {
                Some(error) => Err(error),
                None => Ok(ModelTurn::answer("Hello")),
            }
        }
        .boxed()
    }
}

#[derive(Default)]
struct Seen(Mutex<Vec<String>>);

impl TurnSink for Seen {
    fn begun(&self) {
        self.0.lock().unwrap().push("begun".into());
    }
    fn text_delta(&self, text: &str) {
        self.0.lock().unwrap().push(text.into());
    }
    fn restarted(&self) {
        self.0.lock().unwrap().push("restarted".into());
    }
}

/// Tokio's paused clock, and no chance.
#[derive(Debug)]
struct Paused(tokio::time::Instant);

impl Clock for Paused {
    fn monotonic(&self) -> Duration {
        self.0.elapsed()
    }
    fn unix_ms(&self) -> u64 {
        0
    }
}

impl Entropy for Paused {
    fn random_u128(&self) -> u128 {
        0
    }
}

fn gate() -> ModelGate {
    let now = tokio::time::Instant::now();
    let effects = Effects { clock: Arc::new(Paused(now)), entropy: Arc::new(Paused(now)), ..Effects::real() };
    ModelGate::new(None, effects, RetryPolicy::default())
}

async fn ask(
    gate: &ModelGate,
    errors: Vec<ModelError>,
    cancel: &Cancellation,
) -> (Result<ModelTurn, TurnFailure>, Vec<String>, Duration) {
    let (model, seen) = (Failing(Mutex::new(errors.into())), Seen::default());
    let request = ModelRequest {
        system: String::new(),
        messages: Vec::new(),
        tools: Offer::default(),
        tool_calls_allowed: true,
        agent: String::new(),
        fan_out: 1,
        options: TurnOptions::default(),
    };
    let began = tokio::time::Instant::now();
    let holder = Holder { session: "s".into(), invocation: "r".into() };
    let answer = gate.turn(Asking { model: &model, request: &request, sink: &seen, holder, cancel }).await;
    (answer, seen.0.into_inner().unwrap(), began.elapsed())
}

fn broken() -> ModelError {
    ModelError::Unreachable { message: "reset".into() }
}

#[tokio::test(start_paused = true)]
async fn what_was_shown_of_a_failed_attempt_is_called_back() {
    // Case C124.
    let (turn, seen, after) = ask(&gate(), vec![broken(), broken()], &Cancellation::new()).await;
    assert_eq!(turn.unwrap().text, "Hello");
    assert_eq!(seen, ["begun", "Hel", "restarted", "Hel", "restarted", "Hel"]);
    assert_eq!(after, Duration::from_millis(500 + 1000));
}

#[tokio::test(start_paused = true)]
async fn attempts_are_bounded_and_what_cannot_help_is_not_tried() {
    let (turn, _, after) = ask(&gate(), vec![broken(); 9], &Cancellation::new()).await;
    assert_eq!((turn, after), (Err(broken().into()), Duration::from_millis(500 + 1000 + 2000)));
    for error in [
        ModelError::NoConnection { message: "refused".into() },
        ModelError::Unauthorized { message: "no".into() },
        ModelError::Invalid { message: "no".into() },
    ] {
        let (turn, seen, after) = ask(&gate(), vec![error.clone()], &Cancellation::new()).await;
        assert_eq!((turn, seen.len(), after), (Err(error.into()), 2, Duration::ZERO));
    }
}

#[tokio::test(start_paused = true)]
async fn a_provider_is_given_the_time_it_asks_for_within_bounds() {
    let limited = |ms| ModelError::RateLimited { retry_after_ms: Some(ms) };
    let (turn, _, after) = ask(&gate(), vec![limited(7000)], &Cancellation::new()).await;
    assert_eq!((turn.is_ok(), after), (true, Duration::from_secs(7)));
    let (turn, _, after) = ask(&gate(), vec![limited(3_600_000)], &Cancellation::new()).await;
    assert_eq!((turn, after), (Err(limited(3_600_000).into()), Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn a_cancel_ends_a_wait_at_once() {
    let (gate, cancel) = (gate(), Cancellation::new());
    let waiting = ask(&gate, vec![broken()], &cancel);
    let cancelling = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        cancel.cancel(CancelReason::Requested);
    };
    let ((turn, _, after), ()) = tokio::join!(waiting, cancelling);
    assert_eq!(turn, Err(TurnFailure::Cancelled(CancelReason::Requested)));
    assert_eq!(after, Duration::from_millis(100));
}

#[tokio::test(start_paused = true)]
async fn a_model_that_keeps_failing_is_left_alone_and_tried_again() {
    let gate = gate();
    let refused = || vec![ModelError::NoConnection { message: "refused".into() }];
    for _ in 0..5 {
        let _ = ask(&gate, refused(), &Cancellation::new()).await;
    }
    let (turn, seen, _) = ask(&gate, Vec::new(), &Cancellation::new()).await;
    assert!(matches!(turn, Err(TurnFailure::Model(ModelError::LeftAlone { retry_after_ms: 1000, .. }))), "{turn:?}");
    assert!(seen.is_empty());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(ask(&gate, Vec::new(), &Cancellation::new()).await.0.is_ok());
    // A rate limit says nothing about its health.
    let asked_too_much = || vec![ModelError::RateLimited { retry_after_ms: Some(999_999) }];
    for _ in 0..9 {
        let _ = ask(&gate, asked_too_much(), &Cancellation::new()).await;
    }
    assert!(ask(&gate, Vec::new(), &Cancellation::new()).await.0.is_ok());
}

/// Answers when it is let, and takes so many requests beside each other.
struct Narrow {
    name: &'static str,
    inside: tokio::sync::watch::Sender<usize>,
    let_go: tokio::sync::Semaphore,
}

impl Narrow {
    fn new(name: &'static str) -> Arc<Self> {
        Arc::new(Self { name, inside: tokio::sync::watch::Sender::new(0), let_go: tokio::sync::Semaphore::new(0) })
    }
}

impl Model for Narrow {
    fn name(&self) -> &str {
        self.name
    }

    fn concurrency_max(&self) -> Option<usize> {
        Some(2)
    }

    fn turn<'a>(
        &'a self,
        _request: &'a ModelRequest,
        _sink: &'a dyn TurnSink,
    ) -> BoxFuture<'a, Result<ModelTurn, ModelError>> {
        async move {
            self.inside.send_modify(|inside| *inside += 1);
            self.let_go.acquire().await.unwrap().forget();
            Ok(ModelTurn::answer("done"))
        }
        .boxed()
    }
}

async fn ask_narrow(gate: &ModelGate, model: &Narrow, cancel: &Cancellation) -> Result<ModelTurn, TurnFailure> {
    let request = ModelRequest {
        system: String::new(),
        messages: Vec::new(),
        tools: Offer::default(),
        tool_calls_allowed: true,
        agent: String::new(),
        fan_out: 1,
        options: TurnOptions::default(),
    };
    let holder = Holder { session: "s".into(), invocation: "r".into() };
    let asking = Asking { model, request: &request, sink: &crate::models::NoSink, holder, cancel };
    gate.turn(asking).await
}

#[tokio::test(start_paused = true)]
async fn each_model_has_slots_of_its_own_and_a_slow_one_keeps_no_other_waiting() {
    let (gate, slow, quick) = (Arc::new(gate()), Narrow::new("slow"), Narrow::new("quick"));
    quick.let_go.add_permits(10);
    let asked: Vec<_> = (0..4)
        .map(|_| {
            let (gate, slow) = (Arc::clone(&gate), Arc::clone(&slow));
            tokio::spawn(async move { ask_narrow(&gate, &slow, &Cancellation::new()).await })
        })
        .collect();
    slow.inside.subscribe().wait_for(|inside| *inside == 2).await.unwrap();
    for _ in 0..5 {
        assert!(ask_narrow(&gate, &quick, &Cancellation::new()).await.is_ok());
    }
    assert_eq!(*slow.inside.borrow(), 2, "no third one is let in");
    // Whoever waits for a slot is cancelled at once, and gives up its place.
    let (cancel, began) = (Cancellation::new(), tokio::time::Instant::now());
    let waits = ask_narrow(&gate, &slow, &cancel);
    let (ended, ()) = tokio::join!(waits, async {
        tokio::task::yield_now().await;
        cancel.cancel(CancelReason::Requested);
    });
    assert_eq!((ended, began.elapsed()), (Err(TurnFailure::Cancelled(CancelReason::Requested)), Duration::ZERO));
    slow.let_go.add_permits(4);
    for one in asked {
        assert!(one.await.unwrap().is_ok());
    }
    assert_eq!(*slow.inside.borrow(), 4);
}
