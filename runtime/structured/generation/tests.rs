//! Rounds with a model that is played: what it streams, when, and how it ends.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use toolwarden_tools::cancellation::CancelReason;
use toolwarden_tools::effects::clock::Clock;
use toolwarden_tools::generation::{GeneratedObject, ObjectFailure, ObjectMode, ObjectRequest, Partials};

use super::{Ask, Generation};
use crate::models::object_support::{ObjectSupport, StrictDialect};
use crate::models::transcript::check_pairing;
use crate::models::{
    CallArguments, CallDelta, Message, ModelCall, ModelRequest, ModelTurn, StopReason, TokenUsage, TurnSink,
};

#[derive(Debug, Clone)]
enum Step {
    Text(&'static str),
    Thought(&'static str),
    Call(&'static str),
    /// A piece of another call than the first.
    Other(&'static str),
    Wait(u64),
    Again,
    End(ModelTurn),
    Fail(fn() -> ObjectFailure),
    Silence,
}

/// Plays one list of steps a request.
struct Played {
    rounds: Mutex<VecDeque<Vec<Step>>>,
    asked: Mutex<Vec<ModelRequest>>,
    support: ObjectSupport,
    /// How long the first slot is waited for.
    queue_ms: u64,
}

impl Played {
    fn new(rounds: impl IntoIterator<Item = Vec<Step>>) -> Self {
        Self {
            rounds: Mutex::new(rounds.into_iter().collect()),
            asked: Mutex::default(),
            support: ObjectSupport::all(StrictDialect::OpenAi),
            queue_ms: 0,
        }
    }
}

impl Ask for Played {
    fn object_support(&self) -> ObjectSupport {
        self.support
    }

    fn concurrency_max(&self) -> usize {
        7
    }

    fn ask<'a>(
        &'a self,
        request: &'a ModelRequest,
        sink: &'a dyn TurnSink,
    ) -> BoxFuture<'a, Result<ModelTurn, ObjectFailure>> {
        check_pairing(&request.messages).unwrap();
        self.asked.lock().unwrap().push(request.clone());
        let steps = self.rounds.lock().unwrap().pop_front().expect("a round that was not planned");
        async move {
            sleep(Duration::from_millis(self.queue_ms)).await;
            sink.begun();
            for step in steps {
                match step {
                    Step::Text(text) => sink.text_delta(text),
                    Step::Thought(text) => sink.reasoning_delta(text),
                    Step::Call(text) => {
                        sink.call_delta(CallDelta { place: 1, id: "c", tool: "emit_result", arguments: text });
                    }
                    Step::Other(text) => {
                        sink.call_delta(CallDelta { place: 2, id: "d", tool: "emit_result", arguments: text });
                    }
                    Step::Wait(ms) => sleep(Duration::from_millis(ms)).await,
                    Step::Again => sink.restarted(),
                    Step::End(turn) => return Ok(turn),
                    Step::Fail(failure) => return Err(failure()),
                    Step::Silence => std::future::pending().await,
                }
            }
            panic!("the round does not end");
        }
        .boxed()
    }
}

/// The time of the paused clock.
struct Paused(Instant);

impl Clock for Paused {
    fn monotonic(&self) -> Duration {
        self.0.elapsed()
    }

    fn unix_ms(&self) -> u64 {
        0
    }
}

#[derive(Default)]
struct Views(Mutex<Vec<String>>);

impl Partials for Views {
    fn partial(&self, json: &str) {
        self.0.lock().unwrap().push(json.to_owned());
    }

    fn omitted(&self, bytes: usize) {
        self.0.lock().unwrap().push(format!("{bytes} bytes"));
    }
}

fn request(mode: ObjectMode) -> ObjectRequest {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    ObjectRequest { mode, ..ObjectRequest::new(schema, "count") }
}

async fn generate(played: &Played, request: &ObjectRequest) -> (Result<GeneratedObject, ObjectFailure>, Vec<String>) {
    let views = Views::default();
    let clock: Arc<dyn Clock> = Arc::new(Paused(Instant::now()));
    let generation = Generation { ask: played, request, partials: &views, clock: &clock, cache_key: "s" };
    let ended = generation.run().await;
    (ended, views.0.into_inner().unwrap())
}

fn calling(arguments: &str) -> ModelTurn {
    let arguments = CallArguments::parse(arguments);
    let usage = TokenUsage { input_tokens: 10, output_tokens: 4, cache_read_tokens: 6, ..TokenUsage::default() };
    let call = ModelCall { id: "c".into(), tool: "emit_result".into(), arguments };
    ModelTurn { usage, ..ModelTurn::calling("", vec![call]) }
}

#[tokio::test(start_paused = true)]
async fn a_call_gives_the_object_with_every_digit() {
    let text = "{\"n\": 123456789012345678901234567890}";
    let rounds =
        [vec![Step::Call("{\"n\": 1234567890"), Step::Call("12345678901234567890}"), Step::End(calling(text))]];
    let played = Played::new(rounds);
    let (ended, _) = generate(&played, &request(ObjectMode::Auto)).await;
    let object = ended.unwrap();
    assert_eq!(object.json, "{\"n\":123456789012345678901234567890}");
    assert_eq!((object.mode_used, object.repair_rounds), (ObjectMode::Tool, 0));
    assert_eq!((object.usage.total_tokens, object.usage.cache_read_tokens), (14, 6));
    assert_eq!((object.admission.max_concurrency, object.admission.active_timeout_ms), (7, 120_000));
    assert_eq!(object.raw_text, text);
}

#[tokio::test(start_paused = true)]
async fn what_does_not_fit_is_mended_with_the_validators_words() {
    let rounds = [
        vec![Step::Call("{\"n\":\"x\"}"), Step::Other("{\"n\":5}"), Step::End(calling("{\"n\":\"x\"}"))],
        vec![Step::Text("I cannot count."), Step::End(ModelTurn::answer("I cannot count."))],
        vec![Step::Call("{\"n\":3}"), Step::End(calling("{\"n\":3}"))],
    ];
    let played = Played::new(rounds);
    let (ended, _) = generate(&played, &request(ObjectMode::Tool)).await;
    let object = ended.unwrap();
    assert_eq!((object.json.as_str(), object.repair_rounds), ("{\"n\":3}", 2));
    assert_eq!((object.usage.prompt_tokens, object.usage.completion_tokens), (20, 8));
    let asked = played.asked.lock().unwrap();
    let Message::ToolResults { results } = &asked[1].messages[2] else { panic!("{:?}", asked[1].messages) };
    assert!(!results[0].success && results[0].output.contains("/n: "), "{}", results[0].output);
    assert!(results[0].output.contains("Call emit_result again"));
    let Message::User { text } = &asked[2].messages[4] else { panic!("{:?}", asked[2].messages) };
    assert!(text.contains("no JSON value") && text.contains("I cannot count."), "{text}");
}

#[tokio::test(start_paused = true)]
async fn after_the_last_repair_there_is_no_object() {
    let bad = || vec![Step::End(calling("{\"n\":\"x\"}"))];
    let played = Played::new([bad(), bad()]);
    let asked = ObjectRequest { repairs_max: 1, ..request(ObjectMode::Tool) };
    let failure = generate(&played, &asked).await.0.unwrap_err();
    assert!(
        matches!(&failure, ObjectFailure::NoFit { repair_rounds: 1, faults } if faults.contains("/n")),
        "{failure}"
    );
    let long: &'static str = Box::leak("x".repeat(5000).into_boxed_str());
    let played = Played::new([vec![Step::End(ModelTurn::answer(long))], bad()]);
    generate(&played, &asked).await.0.unwrap_err();
    let asked = played.asked.lock().unwrap();
    let Message::User { text } = &asked[1].messages[2] else { panic!() };
    assert!((2000..2400).contains(&text.len()), "{}", text.len());
}

#[tokio::test(start_paused = true)]
async fn the_object_is_looked_for_in_calls_then_words_then_thoughts() {
    let fits = ModelTurn::answer("So: {\"n\": 1}");
    let (ended, _) =
        generate(&Played::new([vec![Step::Text("So: {\"n\": 1}"), Step::End(fits)]]), &request(ObjectMode::Auto)).await;
    assert_eq!(ended.unwrap().json, "{\"n\":1}");
    let steps = vec![Step::Thought("it must be {\"n\": 2}"), Step::End(ModelTurn::answer("Done."))];
    let (ended, _) = generate(&Played::new([steps]), &request(ObjectMode::Prompt)).await;
    assert_eq!(ended.unwrap().json, "{\"n\":2}");
}

#[tokio::test(start_paused = true)]
async fn one_deadline_is_kept_over_all_rounds_and_begins_with_the_slot() {
    let slow = || vec![Step::Wait(700), Step::End(calling("{}"))];
    let mut played = Played::new([slow(), slow()]);
    played.queue_ms = 60_000;
    let asked = ObjectRequest { timeout: Duration::from_secs(61), ..request(ObjectMode::Tool) };
    let began = Instant::now();
    let failure = generate(&played, &asked).await.0.unwrap_err();
    assert!(matches!(failure, ObjectFailure::Timeout { timeout_ms: 61_000 }), "{failure}");
    // The first wait is not counted, the second one is.
    assert_eq!(began.elapsed(), Duration::from_secs(60 + 61));
    let mut played = Played::new([vec![Step::End(calling("{\"n\":1}"))]]);
    played.queue_ms = 5000;
    let asked = ObjectRequest { timeout: Duration::from_secs(1), ..asked };
    assert_eq!(generate(&played, &asked).await.0.unwrap().admission.queue_wait_ms, 5000);
}

#[tokio::test(start_paused = true)]
async fn a_whole_object_is_taken_when_its_stream_goes_silent() {
    let began = Instant::now();
    let played = Played::new([vec![Step::Call("{\"n\":"), Step::Wait(900), Step::Call("7}"), Step::Silence]]);
    let object = generate(&played, &request(ObjectMode::Tool)).await.0.unwrap();
    assert_eq!((object.json.as_str(), object.usage.total_tokens), ("{\"n\":7}", 0));
    assert_eq!(began.elapsed(), Duration::from_millis(1150));
    // What comes within the grace counts; what does not fit is never taken.
    let steps = vec![Step::Text("{\"n\":7}"), Step::Wait(200), Step::Text(" or 8"), Step::Silence];
    let asked = ObjectRequest { timeout: Duration::from_secs(2), ..request(ObjectMode::Json) };
    assert!(matches!(generate(&Played::new([steps]), &asked).await.0, Err(ObjectFailure::Timeout { .. })));
    let steps = vec![Step::Text("{\"n\":\"x\"}"), Step::Silence];
    assert!(matches!(generate(&Played::new([steps]), &asked).await.0, Err(ObjectFailure::Timeout { .. })));
    // The stream breaks behind the object.
    let broken = || ObjectFailure::Model { message: "broken".into(), kind: None };
    let steps = vec![Step::Text("{\"n\":7}"), Step::Fail(broken)];
    assert_eq!(generate(&Played::new([steps]), &asked).await.0.unwrap().json, "{\"n\":7}");
    let steps = vec![Step::Text("{\"n\":7"), Step::Fail(broken)];
    assert!(matches!(generate(&Played::new([steps]), &asked).await.0, Err(ObjectFailure::Model { .. })));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_left_of_a_stream_that_began_again() {
    let steps = vec![
        Step::Call("{\"n\":1, \"half\":\"ab"),
        Step::Again,
        Step::Call("{\"n\":2}"),
        Step::End(calling("{\"n\":2}")),
    ];
    let (ended, _) = generate(&Played::new([steps]), &request(ObjectMode::Tool)).await;
    assert_eq!(ended.unwrap().json, "{\"n\":2}");
    let steps = vec![Step::Call("{\"n\":1}"), Step::Again, Step::Silence];
    let asked = ObjectRequest { timeout: Duration::from_secs(2), ..request(ObjectMode::Tool) };
    assert!(matches!(generate(&Played::new([steps]), &asked).await.0, Err(ObjectFailure::Timeout { .. })));
}

#[tokio::test(start_paused = true)]
async fn views_come_at_their_pace_and_only_of_the_first_round() {
    let steps = vec![
        Step::Call("{\"n\":12345,"),
        Step::Call("\"more\":\"abcdefgh"),
        Step::Wait(100),
        Step::Call("ijklmnop"),
        Step::Wait(50),
        Step::Call("qrstuvwx"),
        Step::Call("\", \"list\": [1, 2"),
        Step::Wait(100),
        Step::Call(", 3], \"rest\": 1"),
        Step::End(calling("{\"n\":\"x\"}")),
    ];
    let played = Played::new([steps, vec![Step::Call("{\"n\":99999999}"), Step::End(calling("{\"n\":99999999}"))]]);
    let (ended, views) = generate(&played, &request(ObjectMode::Tool)).await;
    assert!(ended.is_ok());
    assert_eq!(
        views,
        [
            "{\"n\":12345}",
            "{\"n\":12345,\"more\":\"abcdefghijklmnop\"}",
            "{\"n\":12345,\"more\":\"abcdefghijklmnopqrstuvwx\",\"list\":[1,2,3]}"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_refusal_a_cut_and_a_pause_are_what_they_are() {
    let refused = ModelTurn { stop: StopReason::Refusal, ..ModelTurn::answer("no") };
    let ended = generate(&Played::new([vec![Step::End(refused)]]), &request(ObjectMode::Auto)).await.0;
    assert!(matches!(ended, Err(ObjectFailure::Refused)));
    let cut = ModelTurn { stop: StopReason::MaxTokens, ..ModelTurn::answer("{\"n\":1, \"m\"") };
    let played = Played::new([vec![Step::End(cut)], vec![Step::End(ModelTurn::answer("{\"n\":1}"))]]);
    assert!(generate(&played, &request(ObjectMode::Prompt)).await.0.is_ok());
    let Message::User { text } = played.asked.lock().unwrap()[1].messages[2].clone() else { panic!() };
    assert!(text.contains("cut off"), "{text}");
    let paused = || vec![Step::End(ModelTurn { stop: StopReason::Paused, ..ModelTurn::answer("wait") })];
    let played = Played::new([paused(), paused(), vec![Step::End(ModelTurn::answer("{\"n\":1}"))]]);
    let object = generate(&played, &request(ObjectMode::Prompt)).await.0.unwrap();
    assert_eq!(object.repair_rounds, 0);
    let cancelled = vec![Step::Text("{\"n\":1}"), Step::Fail(|| ObjectFailure::Cancelled(CancelReason::Requested))];
    let ended = generate(&Played::new([cancelled]), &request(ObjectMode::Prompt)).await.0;
    assert!(matches!(ended, Err(ObjectFailure::Cancelled(_))), "a cancel wins over an object");
}

#[tokio::test(start_paused = true)]
async fn bad_requests_ask_nobody() {
    let played = Played::new([]);
    let asked = ObjectRequest { schema: json!({"$ref": "file:///etc/passwd"}), ..request(ObjectMode::Auto) };
    let failure = generate(&played, &asked).await.0.unwrap_err();
    assert!(failure.to_string().contains("file:///etc/passwd"), "{failure}");
    let bomb: Value = json!({"allOf": [{"$ref": "#"}, {"$ref": "#"}]});
    let failure = generate(&played, &ObjectRequest { schema: bomb, ..asked }).await.0.unwrap_err();
    assert!(matches!(failure, ObjectFailure::Request(_)), "{failure}");
}
