//! Each promise is broken once, and its watcher says so; a watcher that was never seen to fail proves little.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use toolwarden::call_result::CallResult;
use toolwarden::event::{Event, EventKind, REQUEST_SNAPSHOT_SCHEMA, RequestSnapshot};
use toolwarden::fact_book::StoredFact;
use toolwarden::facts::state::State;
use toolwarden::facts::{Fact, RunBounds, Settings};
use toolwarden::models::{CallArguments, ModelCall, ModelTurn};
use toolwarden::origin::Origin;
use toolwarden::policy::PermissionPolicy;
use toolwarden::run_status::RunStatus;
use toolwarden::settlement::projection_policy::ProjectionPolicy;
use toolwarden::snapshot::{encode, forked};
use toolwarden_actors::budget::{Amount, BudgetLimits};
use toolwarden_actors::journal::Entry;
use toolwarden_tools::cancellation::CancelReason;
use toolwarden_tools::digest::Digest;
use toolwarden_tools::effects::dispatch::{ChildContract, ContractAgent, ContractBudget, ContractUse};
use toolwarden_tools::effects::store::memory::MemoryStore;
use toolwarden_tools::effects::store::{Append, Store as _};
use toolwarden_tools::ids::{InvocationId, SessionId, TaskId, ToolName};
use toolwarden_tools::outcome::{ToolErrorKind, Trust};
use toolwarden_tools::workflow::event::{Entry as LogEntry, Event as WorkflowEvent, ScheduledStep};
use toolwarden_tools::workflow::retry::{Backoff, RetryPolicy};
use toolwarden_tools::workspace::WorkspaceCapabilities;

use super::heed::Heed;
use crate::play::{Offer, Play};
use crate::sight::{Aftermath, LaneRest, Sight, Told, Watcher};
use crate::twins::http::offer::content;

fn entry(sequence: u64, kind: EventKind) -> Entry<Event> {
    let event = Event { root_session: "s".into(), session: "s".into(), run: Some("r".into()), kind };
    Entry { sequence, unix_ms: 1, event }
}

fn proposed(id: &str, parent: Option<&str>) -> EventKind {
    EventKind::ToolProposed {
        id: id.into(),
        name: "chore".into(),
        origin: Origin::Agent,
        parent: parent.map(InvocationId::from),
    }
}

fn bound(id: &str) -> EventKind {
    let snapshot = RequestSnapshot {
        schema: REQUEST_SNAPSHOT_SCHEMA,
        origin: Origin::Agent,
        tool_name_digest: Digest::of(b""),
        arguments_bytes: 0,
        arguments_digest: Digest::of(b""),
    };
    EventKind::ToolRequestBound { tool_id: id.into(), tool_name: "chore".into(), snapshot }
}

fn started(id: &str) -> EventKind {
    EventKind::ToolExecutionStart { id: id.into(), name: "chore".into(), args: Value::Null }
}

fn ended(id: &str) -> EventKind {
    EventKind::ToolEnd(Arc::new(CallResult {
        id: id.into(),
        name: "chore".into(),
        output: String::new(),
        exit_code: 0,
        metadata: Map::new(),
        error_kind: None,
        trust: Trust::default(),
        attachments: Vec::new(),
    }))
}

fn asked(id: &str) -> EventKind {
    EventKind::ConfirmationRequired {
        tool_id: id.into(),
        tool_name: "chore".into(),
        args: Value::Null,
        digest: Digest::of(b""),
        reason: String::new(),
        timeout_ms: None,
    }
}

fn approved(id: &str) -> EventKind {
    EventKind::ConfirmationReceived { tool_id: id.into(), approved: true, reason: None }
}

fn agent_end() -> EventKind {
    EventKind::AgentEnd {
        text: String::new(),
        usage: Default::default(),
        status: "completed".to_owned(),
        verification_summary: None,
    }
}

/// Shows sights to whoever wants to see them.
type Show<'a> = dyn Fn(&mut dyn FnMut(&Sight<'_>)) + 'a;

/// Shows all watchers these sights and then what is left; gives the name of the first that complains.
fn complains(show: &Show<'_>, aftermath: &Aftermath) -> Option<(&'static str, String)> {
    let play = Play { permits: Some(1), calls_max: Some(2), ..Play::default() };
    let mut watchers = super::all(&play);
    watchers.push(Box::<Heed>::default());
    let mut found = None;
    show(&mut |sight| {
        for watcher in &mut watchers {
            let text = watcher.see(Duration::ZERO, sight);
            if let (Err(text), None) = (text, &found) {
                found = Some((watcher.name(), text));
            }
        }
    });
    let finish = |watcher: &mut Box<dyn Watcher>| Some((watcher.name(), watcher.finish(aftermath).err()?));
    found.or_else(|| watchers.iter_mut().find_map(finish))
}

/// The watcher that complains about these entries, numbered from 1.
fn about(kinds: Vec<EventKind>) -> Option<&'static str> {
    let entries: Vec<Entry<Event>> = kinds.into_iter().zip(1..).map(|(kind, sequence)| entry(sequence, kind)).collect();
    let show = |see: &mut dyn FnMut(&Sight<'_>)| entries.iter().for_each(|entry| see(&Sight::Entry(entry)));
    complains(&show, &Aftermath::default()).map(|(name, _)| name)
}

fn about_sights(sights: &[Sight<'_>]) -> Option<&'static str> {
    let show = |see: &mut dyn FnMut(&Sight<'_>)| sights.iter().for_each(&mut *see);
    complains(&show, &Aftermath::default()).map(|(name, _)| name)
}

fn about_aftermath(aftermath: Aftermath) -> Option<&'static str> {
    complains(&|_| {}, &aftermath).map(|(name, _)| name)
}

#[test]
fn nobody_complains_about_a_call_that_went_well() {
    let whole = vec![proposed("a", None), bound("a"), asked("a"), started("a"), ended("a")];
    assert_eq!(about(whole), Some("governed"), "it did not wait for the word");
    let kinds = vec![proposed("a", None), bound("a"), started("a"), proposed("b", Some("a")), ended("b"), ended("a")];
    assert_eq!(about(kinds), None);
    assert_eq!(about_aftermath(Aftermath::default()), None);
}

#[test]
fn the_journal_is_watched() {
    assert_eq!(about(vec![proposed("a", None)]), Some("journal"), "no ending");
    assert_eq!(about(vec![proposed("a", None), ended("a"), ended("a")]), Some("journal"), "two endings");
    assert_eq!(about(vec![ended("a")]), Some("journal"), "no beginning");
    let nested = vec![proposed("a", None), proposed("b", Some("a")), ended("a"), ended("b")];
    assert_eq!(about(nested), Some("journal"), "the parent first");
    let (one, three) = (entry(1, agent_end()), entry(3, agent_end()));
    assert_eq!(about_sights(&[Sight::Entry(&one), Sight::Entry(&three)]), Some("journal"), "a gap");
    assert_eq!(about_sights(&[Sight::Entry(&one), Sight::Shown { sequence: 2 }]), Some("journal"), "shown too early");
    assert_eq!(about_aftermath(Aftermath { refused_endings: 1, ..Aftermath::default() }), Some("journal"));
}

#[test]
fn stages_are_watched() {
    assert_eq!(about(vec![proposed("a", None), started("a"), ended("a")]), Some("governed"), "never bound");
    let (id, tool) = (InvocationId::from("a"), ToolName::from("chore"));
    let began = Sight::Began { invocation: &id, tool: &tool, effects: true };
    assert_eq!(about_sights(&[began]), Some("governed"), "works before its start");
    assert_eq!(about_sights(&[Sight::Effect { invocation: &id, name: "x" }]), Some("governed"));
    let denied = EventKind::PermissionDenied {
        tool_id: "a".into(),
        tool_name: "chore".into(),
        args: Value::Null,
        reason: String::new(),
    };
    let kinds = vec![proposed("a", None), bound("a"), denied, started("a"), ended("a")];
    assert_eq!(about(kinds), Some("governed"), "refused and started");
}

#[test]
fn endings_and_questions_are_watched() {
    let begin = || EventKind::AgentStart { prompt: String::new(), model: String::new() };
    assert_eq!(about(vec![begin()]), Some("terminal"), "a run without an ending");
    assert_eq!(about(vec![begin(), agent_end(), agent_end()]), Some("terminal"), "two endings of a run");
    let told = Told { session: 0, prompt: 0, outcome: None };
    let twice = Aftermath { told: vec![told.clone(), told], ..Aftermath::default() };
    assert_eq!(about_aftermath(twice), Some("terminal"));
    let kinds = vec![proposed("a", None), bound("a"), asked("a"), approved("a"), started("a"), ended("a")];
    assert_eq!(about(kinds), Some("questions"), "approved by nobody");
    assert_eq!(about_aftermath(Aftermath { questions: 1, ..Aftermath::default() }), Some("questions"));
}

#[test]
fn lanes_budgets_and_leases_are_watched() {
    let ids = ["a", "b"].map(InvocationId::from);
    let tool = ToolName::from("peek");
    let began = |at: usize| Sight::Began { invocation: &ids[at], tool: &tool, effects: false };
    assert_eq!(about_sights(&[began(0), began(1)]), Some("bulkhead"));
    let call = |id: &str| vec![proposed(id, None), bound(id), started(id), ended(id)];
    assert_eq!(about(["a", "b", "c"].iter().flat_map(|id| call(id)).collect()), Some("budget"));
    let overspent = Aftermath { overspent: vec!["s".to_owned()], ..Aftermath::default() };
    assert_eq!(about_aftermath(overspent), Some("budget"));
    let lane = LaneRest { lane: "query".to_owned(), in_use: 1, waiting: 0 };
    assert_eq!(about_aftermath(Aftermath { lanes: vec![lane], ..Aftermath::default() }), Some("leases"));
    assert_eq!(about_aftermath(Aftermath { reserved: vec!["s".to_owned()], ..Aftermath::default() }), Some("leases"));
}

#[test]
fn effects_commands_and_files_are_watched() {
    let start = [entry(1, proposed("a", None)), entry(2, bound("a")), entry(3, started("a"))];
    let id = InvocationId::from("a");
    let done = || Sight::Effect { invocation: &id, name: "once" };
    let [one, two, three] = &start;
    let sights = [Sight::Entry(one), Sight::Entry(two), Sight::Entry(three), done(), done()];
    assert_eq!(about_sights(&sights), Some("effects"));
    assert_eq!(about_sights(&[Sight::CommandStarted { command: 1 }]), Some("processes"));
    let replaced = Sight::Replaced { path: "f", bytes: b"new", number: 1 };
    assert_eq!(about_sights(&[replaced]), Some("files"), "it is not there at the end");
    let tool = ToolName::from("own");
    let began = Sight::Began { invocation: &id, tool: &tool, effects: false };
    assert_eq!(about_sights(&[began, Sight::Over { invocation: &id, tool: &tool, returned: false }]), Some("heed"));
}

// A step of a workflow may do its work again when it was interrupted and its end is not known, and else never.
#[test]
fn a_second_time_is_for_interrupted_steps_alone() {
    use WorkflowEvent as E;
    let step = ScheduledStep {
        step_id: "clean".into(),
        step_name: "work".into(),
        input: json!({ "tool": "chore", "args": { "effect": "once" } }),
        retry: None,
        continue_workflow_on_failure: false,
    };
    let created = lines(&[E::StepCreated(step)]);
    let completed = lines(&[E::StepCompleted { step_id: "clean".into(), output: Value::Null }]);
    let logged = |bytes| Sight::Logged { path: "run", bytes, is_whole: true };
    let proposed = |id: &str, name: &str, parent: Option<&str>| EventKind::ToolProposed {
        id: id.into(),
        name: name.into(),
        origin: Origin::Nested,
        parent: parent.map(InvocationId::from),
    };
    let over = |error_kind: Option<ToolErrorKind>, unrecorded: Value| {
        let EventKind::ToolEnd(result) = ended("w") else { panic!("it is an end") };
        let mut result = CallResult { error_kind, exit_code: 1, ..(*result).clone() };
        result.metadata.insert("dynamic_workflow".into(), json!({ "unrecorded": unrecorded }));
        EventKind::ToolEnd(Arc::new(result))
    };
    let cancelled =
        || Some(ToolErrorKind::Cancelled { op: "dynamic_workflow".into(), reason: Some(CancelReason::Requested) });
    let id = InvocationId::from("a");
    let about = |outer: &str, between: &[Sight<'_>]| {
        let mut effects = super::effects::Effects::default();
        let mut see = |sight: &Sight<'_>| effects.see(Duration::ZERO, sight);
        let within = proposed("b", "program", Some("w"));
        for kind in [proposed("w", outer, None), within, proposed("a", "chore", Some("b")), started("a")] {
            see(&Sight::Entry(&entry(1, kind)))?;
        }
        see(&logged(&created))?;
        see(&Sight::Effect { invocation: &id, name: "once" })?;
        between.iter().try_for_each(&mut see)?;
        see(&Sight::Effect { invocation: &id, name: "once" })
    };
    let (ended, cut_off) = (entry(2, over(None, json!([]))), entry(2, over(cancelled(), json!([]))));
    let known = entry(2, over(cancelled(), json!(["clean"])));
    let workflow = |between: &[Sight<'_>]| about("dynamic_workflow", between);
    assert_eq!(workflow(&[Sight::Crashed]), Ok(()));
    assert_eq!(workflow(&[Sight::Entry(&cut_off)]), Ok(()));
    // Planted faults, one each.
    assert!(workflow(&[]).is_err(), "nothing has happened");
    assert!(workflow(&[Sight::Entry(&ended)]).is_err(), "its record was refused, and its process lives");
    assert!(workflow(&[Sight::Entry(&known)]).is_err(), "the process said that it knows");
    assert!(workflow(&[logged(&completed), Sight::Crashed]).is_err(), "it is recorded");
    assert!(about("batch", &[Sight::Crashed]).is_err(), "no step of a workflow");
    let twice = [Sight::Crashed, Sight::Effect { invocation: &id, name: "once" }];
    assert!(workflow(&twice).is_err(), "one crash is no leave for two more times");
}

/// The files of a world at its end.
fn left(files: &[(&str, &str)]) -> Aftermath {
    let files = files.iter().map(|(path, text)| ((*path).to_owned(), text.as_bytes().to_vec()));
    Aftermath { files: files.collect(), ..Aftermath::default() }
}

/// What a watcher of marks says of one call that was told to be done, and of what is there then.
fn about_marks(tool: &str, args: Value, plain: bool, files: &[(&str, &str)]) -> Result<(), String> {
    let mut marks = super::marks::Marks::new(plain);
    let start = EventKind::ToolExecutionStart { id: "a".into(), name: tool.into(), args };
    for (sequence, kind) in (1..).zip([start, ended("a")]) {
        marks.see(Duration::ZERO, &Sight::Entry(&entry(sequence, kind))).unwrap();
    }
    marks.finish(&left(files))
}

#[test]
fn marks_are_watched() {
    let edit = |text: &str| json!({ "file_path": "f", "old_string": "x", "new_string": text });
    assert_eq!(about_marks("edit", edit("mark-1"), false, &[("f", "mark-1\n")]), Ok(()));
    assert!(about_marks("edit", edit("mark-1"), false, &[("f", "")]).is_err(), "lost");
    assert!(about_marks("edit", edit("mark-1"), false, &[("f", "mark-1 mark-1")]).is_err(), "twice");
    assert_eq!(
        about_marks("edit", edit("mark-1"), false, &[("f", "mark-1"), (".toolwarden-0-1.tmp", "mark-1")]),
        Ok(())
    );
    let patch = json!({ "diff": "+mark-1\n mark-0\n+mark-2\n" });
    assert_eq!(about_marks("patch", patch.clone(), false, &[("f", "mark-1"), ("g", "mark-2")]), Ok(()));
    assert!(about_marks("patch", patch.clone(), false, &[("f", "mark-1")]).is_err(), "half");
    // What could not be put back is named, and is all that may be left; where all is changed at once there is no such thing.
    let half = |plain, named: &[&str]| {
        let mut marks = super::marks::Marks::new(plain);
        let start = EventKind::ToolExecutionStart { id: "a".into(), name: "patch".into(), args: patch.clone() };
        let EventKind::ToolEnd(result) = ended("a") else { panic!("it is an end") };
        let mut result = CallResult { exit_code: 1, ..(*result).clone() };
        result.metadata.insert("unrestored".to_owned(), json!(named));
        for (sequence, kind) in (1..).zip([start, EventKind::ToolEnd(Arc::new(result))]) {
            marks.see(Duration::ZERO, &Sight::Entry(&entry(sequence, kind))).unwrap();
        }
        marks.finish(&left(&[("f", "mark-1")])).is_ok()
    };
    assert_eq!(
        [half(true, &["f"]), half(true, &["g"]), half(true, &[]), half(false, &["f"])],
        [true, false, false, false]
    );
    let calls = ["mark-1", "mark-2"].map(|mark| json!({ "tool": "write", "args": { "content": mark } }));
    let batch = json!({ "invocations": calls });
    assert_eq!(about_marks("batch", batch.clone(), false, &[("f", "mark-1 mark-2")]), Ok(()));
    assert!(about_marks("batch", batch, false, &[("f", "mark-2 mark-1")]).is_err(), "out of turn");
    let mut outside = super::marks::Marks::new(false);
    outside.see(Duration::ZERO, &Sight::Outside { path: "f", mark: "mark-outside-0" }).unwrap();
    assert!(outside.finish(&left(&[("f", "")])).is_err(), "somebody else's");
}

#[test]
fn downloads_and_origins_are_watched() {
    let offer: Offer = serde_json::from_value(json!({ "url": "http://a.test/", "bytes": 40, "parts": true })).unwrap();
    let play = Play { offers: vec![offer.clone()], ..Play::default() };
    let landed = |bytes: &[u8], replaces| {
        super::downloads::Downloads::new(&play).see(Duration::ZERO, &Sight::Landed { path: "f", bytes, replaces })
    };
    assert_eq!(landed(&content(&offer, 2), false), Ok(()));
    assert!(landed(&content(&offer, 2)[..39], false).is_err(), "cut");
    assert!(landed(&content(&offer, 2), true).is_err(), "in the place of another one");
    let mixed = [&content(&offer, 0)[..20], &content(&offer, 1)[20..]].concat();
    assert!(landed(&mixed, false).is_err(), "two versions");
    for (url, pins, is_fine) in [
        ("http://a.test/", vec!["1.0.0.1:80"], true),
        ("http://a.test/", vec![], false),
        ("http://a.test/", vec!["1.0.0.1:80", "10.0.0.7:80"], false),
        ("http://127.0.0.1:8080/", vec!["1.0.0.1:80"], false),
        ("http://[::1]/", vec!["1.0.0.1:80"], false),
    ] {
        let pinned: Vec<std::net::SocketAddr> = pins.iter().map(|pin| pin.parse().unwrap()).collect();
        let said = super::origins::Origins.see(Duration::ZERO, &Sight::Connected { url, pinned: &pinned });
        assert_eq!(said.is_ok(), is_fine, "{url}");
    }
}

#[test]
fn turns_and_pairs_are_watched() {
    let call = |arguments: Value| ModelCall {
        id: "c".into(),
        tool: "t".into(),
        arguments: CallArguments::from_value(arguments),
    };
    let turn = |text: &str, arguments: Value| ModelTurn::calling(text, vec![call(arguments)]);
    let sent = turn("words", json!({ "n": 1 }));
    let read = |read: &ModelTurn, is_intact| {
        let mut turns = super::turns::Turns::new(true);
        turns.see(Duration::ZERO, &Sight::Turned { sent: &sent, read: Some(read), is_intact })
    };
    assert_eq!(read(&sent, true), Ok(()));
    assert!(read(&turn("wor", json!({ "n": 1 })), true).is_err(), "cut");
    assert!(read(&turn("words", json!({})), true).is_err(), "half a call");
    assert!(read(&ModelTurn::answer("words"), true).is_err(), "no call");
    let twice = ModelTurn { calls: vec![call(json!({})), call(json!({}))], ..sent.clone() };
    assert!(read(&twice, false).is_err(), "more calls than were sent");
    let text = |delta: &str| EventKind::TextDelta { delta: delta.to_owned() };
    let begin = |turn| EventKind::TurnStart { turn };
    let end = |turn| EventKind::TurnEnd { turn, usage: Default::default(), stop: String::new() };
    let shown = |kinds: Vec<EventKind>| {
        let mut turns = super::turns::Turns::new(true);
        turns.see(Duration::ZERO, &Sight::Turned { sent: &sent, read: Some(&sent), is_intact: true }).unwrap();
        (1..)
            .zip(kinds)
            .try_for_each(|(sequence, kind)| turns.see(Duration::ZERO, &Sight::Entry(&entry(sequence, kind))))
    };
    assert_eq!(shown(vec![begin(1), text("wor"), begin(1), text("words"), end(1), begin(2)]), Ok(()));
    assert!(shown(vec![begin(1), text("wor"), text("words"), end(1)]).is_err(), "not called back");
    assert!(shown(vec![begin(1), text("words"), end(1), begin(3)]).is_err(), "another number");
    assert!(shown(vec![text("words")]).is_err(), "outside of a turn");
    assert_eq!(about_sights(&[Sight::Asked { agent: "a", messages: 3, unpaired: Some("alone") }]), Some("pairing"));
}

/// A moment of a call for an object, at so many milliseconds.
#[derive(Clone, Copy)]
enum Moment {
    Asked(u64, usize),
    View(u64, &'static str),
    End(u64, i32, &'static str),
}

/// What the watcher of objects says of a call that was asked for with one repair and a second of time.
fn about_object(moments: &[Moment]) -> Result<(), String> {
    let mut objects = super::objects::Objects::default();
    let schema = json!({ "type": "object", "required": ["n"], "properties": { "n": { "type": "integer" } } });
    let args = json!({ "schema": schema, "prompt": "count", "max_repair_attempts": 1, "timeout_ms": 1000 });
    let start = EventKind::ToolExecutionStart { id: "a".into(), name: "generate_object".into(), args };
    objects.see(Duration::ZERO, &Sight::Entry(&entry(1, start)))?;
    let asked = |messages| Sight::AskedForObject { session: "s", prompt: "count them", messages };
    for moment in moments {
        match moment {
            Moment::Asked(at_ms, messages) => objects.see(Duration::from_millis(*at_ms), &asked(*messages))?,
            Moment::View(at_ms, view) => {
                let delta = format!("{view}\n");
                let (id, name) = ("a".into(), "generate_object".into());
                see_at(&mut objects, *at_ms, EventKind::ToolOutputDelta { id, name, delta, streams: None })?;
            }
            Moment::End(at_ms, exit_code, output) => {
                let EventKind::ToolEnd(result) = ended("a") else { panic!("it is an end") };
                let result = CallResult { exit_code: *exit_code, output: (*output).to_owned(), ..(*result).clone() };
                see_at(&mut objects, *at_ms, EventKind::ToolEnd(Arc::new(result)))?;
            }
        }
    }
    objects.finish(&Aftermath::default())
}

fn see_at(watcher: &mut dyn Watcher, at_ms: u64, kind: EventKind) -> Result<(), String> {
    watcher.see(Duration::from_millis(at_ms), &Sight::Entry(&entry(2, kind)))
}

#[test]
fn objects_are_watched() {
    use Moment::{Asked, End, View};
    let part = |at_ms, view| View(at_ms, view);
    const LAST: &str = r#"{"object_partial":{"n":1},"final":true}"#;
    const GIVEN: &str = r#"{"object":{"n":1},"repair_rounds":0}"#;
    let well = [
        Asked(5, 1),
        part(10, r#"{"object_partial":{},"final":false}"#),
        part(110, r#"{"object_partial":{"s":"ab","l":[1]},"final":false}"#),
        part(210, r#"{"object_partial":{"s":"abc","l":[1,2],"n":1},"final":false}"#),
        part(211, LAST),
        End(211, 0, GIVEN),
    ];
    assert_eq!(about_object(&well), Ok(()));
    let again = [Asked(5, 1), part(10, r#"{"object_partial":{"n":7},"final":false}"#), Asked(20, 1)];
    let anew = [part(110, r#"{"object_partial":{"s":""},"final":false}"#), Asked(200, 3), part(300, LAST)];
    let whole = [again.as_slice(), anew.as_slice(), [End(300, 0, GIVEN)].as_slice()].concat();
    assert_eq!(about_object(&whole), Ok(()), "an attempt that was made again, and a repair");
    assert_eq!(about_object(&[Asked(5, 1), End(1005, 1, "no object within 1000 ms")]), Ok(()));
    // Planted faults, one each.
    let ends = |more: &[Moment]| about_object(&[[Asked(5, 1)].as_slice(), more].concat());
    let unfit = [
        part(9, r#"{"object_partial":{"n":"x"},"final":true}"#),
        End(9, 0, r#"{"object":{"n":"x"},"repair_rounds":0}"#),
    ];
    for (what, moments) in [
        ("it does not fit", &unfit[..]),
        ("there is none", &[part(9, LAST), End(9, 0, "{}")]),
        ("another one was shown", &[part(9, r#"{"object_partial":{"n":2},"final":true}"#), End(9, 0, GIVEN)]),
        ("none was shown", &[End(9, 0, GIVEN)]),
        ("a failure gives one", &[End(9, 1, GIVEN)]),
        ("a failure shows one", &[part(9, LAST), End(9, 1, "no")]),
        ("a view after the last", &[part(9, LAST), part(300, r#"{"object_partial":{"n":1},"final":false}"#)]),
        (
            "views too soon",
            &[
                part(9, r#"{"object_partial":{},"final":false}"#),
                part(108, r#"{"object_partial":{"n":1},"final":false}"#),
            ],
        ),
        (
            "a view that takes back",
            &[
                part(9, r#"{"object_partial":{"n":1},"final":false}"#),
                part(200, r#"{"object_partial":{},"final":false}"#),
            ],
        ),
        (
            "a list that changes",
            &[
                part(9, r#"{"object_partial":{"l":[1]},"final":false}"#),
                part(200, r#"{"object_partial":{"l":[2,3]},"final":false}"#),
            ],
        ),
        ("no JSON", &[part(9, "{")]),
        ("a round too many", &[Asked(9, 3), Asked(10, 5)]),
        ("too many repairs", &[part(9, LAST), End(9, 0, r#"{"object":{"n":1},"repair_rounds":2}"#)]),
        ("too late", &[part(9, LAST), End(9_000, 0, GIVEN)]),
        ("asked after the end", &[End(9, 1, "no"), Asked(10, 3)]),
    ] {
        assert!(ends(moments).is_err(), "{what}");
    }
    assert!(about_object(&[part(9, LAST), End(9, 0, GIVEN)]).is_err(), "nobody was asked");
    let form = |exit_code, structured: Option<Value>| {
        let mut objects = super::objects::Objects::default();
        let args = json!({ "prompt": "p", "output_schema": { "type": "object", "required": ["n"] } });
        let start = EventKind::ToolExecutionStart { id: "a".into(), name: "task".into(), args };
        see_at(&mut objects, 0, start)?;
        let EventKind::ToolEnd(result) = ended("a") else { panic!("it is an end") };
        let mut result = CallResult { exit_code, ..(*result).clone() };
        result.metadata.extend(structured.map(|structured| ("structured".to_owned(), structured)));
        see_at(&mut objects, 1, EventKind::ToolEnd(Arc::new(result)))
    };
    assert_eq!((form(0, Some(json!({ "n": 1 }))), form(1, None)), (Ok(()), Ok(())));
    assert!(form(0, Some(json!({}))).is_err() && form(0, None).is_err() && form(1, Some(json!({ "n": 1 }))).is_err());
}

#[test]
fn removals_and_temporaries_are_watched() {
    let replaced = || Sight::Replaced { path: "f", bytes: b"new", number: 1 };
    let seen = |sights: &[Sight<'_>], aftermath: &Aftermath| {
        let show = |see: &mut dyn FnMut(&Sight<'_>)| sights.iter().for_each(&mut *see);
        complains(&show, aftermath).map(|(name, _)| name)
    };
    let there = left(&[("f", "new")]);
    assert_eq!(seen(&[replaced()], &there), None);
    assert_eq!(seen(&[replaced(), Sight::Removed { path: "f", number: 2 }], &there), Some("files"), "not gone");
    assert_eq!(seen(&[replaced(), Sight::Removed { path: "f", number: 3 }], &left(&[])), Some("files"), "a gap");
    assert_eq!(seen(&[replaced(), Sight::Unsure { path: "f" }], &left(&[("f", "old")])), None);
    let temporaries = vec![".toolwarden-0-1.tmp".to_owned()];
    assert_eq!(about_aftermath(Aftermath { temporaries, ..Aftermath::default() }), Some("files"), "left");
}

#[test]
fn secrets_and_supervision_are_watched() {
    let session = SessionId::from("s");
    let secret = Play::default().secret;
    for sight in [
        Sight::Stored { session: &session, sequence: 1, payload: secret.as_bytes() },
        Sight::Saved { session: &session, bytes: secret.as_bytes() },
        Sight::Kept { bytes: secret.as_bytes() },
    ] {
        assert_eq!(about_sights(&[sight]), Some("secrets"));
    }
    let mut watchers = super::all(&Play::default());
    assert!(watchers.iter_mut().any(|watcher| watcher.read(format!("<{secret}>").as_bytes()).is_err()));
    // Lines are written where the word may be, and nowhere else.
    let reads = |play: &Play| super::all(play).iter().any(|watcher| watcher.reads_lines());
    assert!(!reads(&Play::default()) && reads(&Play { hostile: true, ..Play::default() }));
    assert!(reads(&Play { files: vec![("f".to_owned(), format!("the {secret}"))], ..Play::default() }));
    assert!(reads(&Play { secret: "swordfish".to_owned(), ..Play::default() }));
    let opened = || EventKind::SessionOpened { workspace: String::new() };
    assert_eq!(about(vec![opened()]), Some("supervision"), "never closed");
    assert_eq!(about(vec![opened(), EventKind::SessionClosed, EventKind::SessionClosed]), Some("supervision"));
    assert_eq!(about(vec![opened(), EventKind::SessionClosed, agent_end()]), Some("supervision"), "told afterwards");
    for aftermath in [
        Aftermath { nodes: 1, ..Aftermath::default() },
        Aftermath { nodes_after: 1, ..Aftermath::default() },
        Aftermath { tasks: 1, ..Aftermath::default() },
        Aftermath { stuck: Some(String::new()), ..Aftermath::default() },
    ] {
        assert_eq!(about_aftermath(aftermath), Some("supervision"));
    }
}

/// Each record of a log as a line.
fn lines(events: &[WorkflowEvent]) -> Vec<u8> {
    let numbered = events.iter().cloned().zip(1..);
    let entries = numbered.map(|(event, sequence)| LogEntry { sequence, at_ms: 5, event });
    entries.flat_map(|entry| serde_json::to_string(&entry).unwrap().into_bytes().into_iter().chain([b'\n'])).collect()
}

#[test]
fn logs_of_workflows_are_watched() {
    use WorkflowEvent as E;
    let created =
        E::RunCreated { run_id: "run".into(), source_hash: Digest::of(b""), input: Value::Null, timeout_ms: None };
    let retry = RetryPolicy { max_attempts: 2, backoff: Backoff::Fixed, delay_ms: 10, max_delay_ms: 10 };
    let step = |retry| {
        E::StepCreated(ScheduledStep {
            step_id: "a".into(),
            step_name: "work".into(),
            input: Value::Null,
            retry,
            continue_workflow_on_failure: false,
        })
    };
    let started = |attempt| E::StepStarted { step_id: "a".into(), attempt };
    let done = || E::StepCompleted { step_id: "a".into(), output: Value::Null };
    let retrying = |retry_at_ms| E::StepRetrying { step_id: "a".into(), attempt: 1, error: String::new(), retry_at_ms };
    let end = || E::RunCompleted { output: Value::Null };
    let about = |events: &[E]| {
        let bytes = lines(events);
        about_sights(&[Sight::Logged { path: "run", bytes: &bytes, is_whole: true }])
    };
    let begin = [created.clone(), E::RunStarted, step(None), started(1)];
    let retried = [created.clone(), step(Some(retry)), started(1)];
    let with = |begin: &[E], more: &[E]| about(&[begin, more].concat());
    assert_eq!(with(&begin, &[done(), end()]), None);
    assert_eq!(with(&retried, &[retrying(5), started(2), done(), end()]), None);
    // Planted faults, one each.
    assert_eq!(with(&begin, &[done(), started(2)]), Some("workflow"), "a step that is done begins again");
    assert_eq!(with(&begin, &[done(), done()]), Some("workflow"), "a step is done twice");
    assert_eq!(with(&begin, &[step(None)]), Some("workflow"), "a step is scheduled twice");
    assert_eq!(with(&begin, &[end()]), Some("workflow"), "the run ends before its step");
    assert_eq!(with(&begin, &[done(), end(), end()]), Some("workflow"), "the run ends twice");
    assert_eq!(with(&begin, &[started(1)]), Some("workflow"), "an attempt begins twice");
    assert_eq!(with(&begin, &[retrying(5), started(2)]), Some("workflow"), "a try too many");
    assert_eq!(with(&retried, &[retrying(9), started(2)]), Some("workflow"), "it did not wait");
    let whole = lines(&[created.clone(), E::RunStarted]);
    let again = lines(std::slice::from_ref(&created));
    let logged = |bytes| Sight::Logged { path: "run", bytes, is_whole: true };
    let refused = |bytes| Sight::Logged { path: "run", bytes, is_whole: false };
    assert_eq!(about_sights(&[logged(&whole), logged(&again)]), Some("workflow"), "a number twice");
    assert_eq!(about_sights(&[logged(&whole), logged(b"torn\n")]), Some("workflow"), "no record");
    let cut = |bytes| Sight::LogCut { path: "run", bytes };
    assert_eq!(about_sights(&[logged(&whole), logged(b"torn"), cut(whole.len() as u64)]), None, "an unfinished line");
    assert_eq!(about_sights(&[logged(&whole), cut(again.len() as u64)]), Some("workflow"), "a record is lost");
    let left = lines(&[created.clone(), E::RunStarted, step(None)]);
    let (left, taken) = (&left[whole.len()..], cut(whole.len() as u64));
    let retaken = [logged(&whole), refused(left), taken, logged(left)];
    assert_eq!(about_sights(&retaken), None, "what a refused append left is taken away");
    let acted_on = [logged(&whole), refused(left), logged(b"torn"), cut(whole.len() as u64)];
    assert_eq!(about_sights(&acted_on), Some("workflow"), "what was acted on is taken away");
}

#[test]
fn a_start_that_is_not_stored_is_seen() {
    let (id, tool) = (InvocationId::from("a"), ToolName::from("chore"));
    let session = SessionId::from("s");
    let stored = br#"{"at_ms":1,"fact":{"call_started":{"invocation":"a"}}}"#;
    for is_stored in [true, false] {
        let mut durable = super::durable::Durable::new(true);
        let mut see = |sight: &Sight<'_>| durable.see(Duration::ZERO, sight);
        see(&Sight::Entry(&entry(1, proposed("a", None)))).unwrap();
        if is_stored {
            see(&Sight::Stored { session: &session, sequence: 1, payload: stored }).unwrap();
        }
        assert_eq!(see(&Sight::Began { invocation: &id, tool: &tool, effects: true }).is_ok(), is_stored);
    }
}

#[test]
fn what_is_kept_is_watched() {
    let session = SessionId::from("s");
    let stored = |sequence| Sight::Stored { session: &session, sequence, payload: b"{}" };
    assert_eq!(about_sights(&[stored(1), stored(3)]), Some("snapshot"), "a gap");
    let store = MemoryStore::default();
    let first = Append { session: session.clone(), sequence: 1, payload: Arc::from(&b"no fact"[..]) };
    store.create(&session, None, Some(&first)).unwrap();
    let kept = vec![(session.clone(), store.look(&session).unwrap())];
    assert_eq!(about_aftermath(Aftermath { kept, ..Aftermath::default() }), Some("snapshot"), "it cannot be read");
    let empty = vec![(session.clone(), Default::default())];
    let show = |see: &mut dyn FnMut(&Sight<'_>)| see(&stored(1));
    let lost = complains(&show, &Aftermath { kept: empty, ..Aftermath::default() });
    assert_eq!(lost.map(|(name, _)| name), Some("snapshot"), "a stored fact is gone");
}

#[test]
fn an_attempt_that_comes_too_soon_and_an_end_without_a_clean_up_are_seen() {
    use WorkflowEvent as E;
    let retry = RetryPolicy { max_attempts: 2, backoff: Backoff::Fixed, delay_ms: 10, max_delay_ms: 10 };
    let step = E::StepCreated(ScheduledStep {
        step_id: "a".into(),
        step_name: "work".into(),
        input: Value::Null,
        retry: Some(retry),
        continue_workflow_on_failure: false,
    });
    let started = |attempt| E::StepStarted { step_id: "a".into(), attempt };
    let retrying = E::StepRetrying { step_id: "a".into(), attempt: 1, error: String::new(), retry_at_ms: 15 };
    let entry = |sequence, at_ms, event| serde_json::to_string(&LogEntry { sequence, at_ms, event }).unwrap() + "\n";
    let before = entry(1, 5, step) + &entry(2, 5, started(1)) + &entry(3, 5, retrying);
    // The clock of the host says that it waited, the world does not.
    for (after_ms, is_fine) in [(3, false), (10, true)] {
        let mut workflow = super::workflow::Workflow::default();
        let mut put = |at_ms, text: &str| {
            let sight = Sight::Logged { path: "run", bytes: text.as_bytes(), is_whole: true };
            workflow.see(Duration::from_millis(at_ms), &sight)
        };
        assert_eq!(put(100, &before), Ok(()));
        assert_eq!(put(100 + after_ms, &entry(4, 99, started(2))).is_ok(), is_fine);
    }
    let forced = entry(1, 5, E::RunCancelled { reason: "enough".into(), forced: true });
    for at_once in [false, true] {
        let mut workflow = super::workflow::Workflow::default();
        let args = json!({ "cancel": "enough", "cancel_at_once": at_once });
        let call = EventKind::ToolExecutionStart { id: "a".into(), name: "dynamic_workflow".into(), args };
        assert_eq!(workflow.see(Duration::ZERO, &Sight::Entry(&self::entry(1, call))), Ok(()));
        let logged = Sight::Logged { path: "run", bytes: forced.as_bytes(), is_whole: true };
        assert_eq!(workflow.see(Duration::ZERO, &logged).is_ok(), at_once);
    }
}

#[test]
fn contracts_are_watched() {
    let contract = ChildContract {
        version: 1,
        idempotency_key: "task-1".into(),
        session: "task-run-1".into(),
        parent_session: "s".into(),
        agent: ContractAgent {
            name: "general".into(),
            purpose: String::new(),
            instructions: String::new(),
            tools: Vec::new(),
            rounds_max: 1,
        },
        prompt: "look".into(),
        policies: Vec::new(),
        budget: ContractBudget { output_tokens: Some(50), ..ContractBudget::default() },
        timeout_ms: None,
    };
    let key = TaskId::from("task-1");
    let taken = || Sight::Contracted { contract: &contract };
    let used = |output_tokens| {
        let used = ContractUse { output_tokens, ..ContractUse::default() };
        Sight::Delivered { key: &key, used: Some(used) }
    };
    let lost = || Sight::Delivered { key: &key, used: None };
    let about = |sights: &[Sight<'_>], spent: u64| {
        let mut watcher = super::contracts::Contracts::default();
        let seen = sights.iter().try_for_each(|sight| watcher.see(Duration::ZERO, sight));
        let spent = Amount { output_tokens: spent, ..Amount::default() };
        seen.and_then(|()| watcher.finish(&Aftermath { spent: vec![("s".into(), spent)], ..Aftermath::default() }))
    };
    assert_eq!(about(&[taken(), used(7)], 7), Ok(()));
    assert_eq!(about(&[taken(), lost()], 50), Ok(()), "nobody knows, so all of it counts");
    // Planted faults, one each.
    assert!(about(&[taken(), used(7)], 0).is_err(), "what was used is forgotten");
    assert!(about(&[taken(), used(7)], 14).is_err(), "it is counted twice");
    assert!(about(&[taken(), lost()], 0).is_err(), "what nobody knows is given back");
    assert!(about(&[taken(), used(7), taken(), used(7)], 14).is_err(), "it is asked for twice");
    assert!(about(&[taken()], 0).is_err(), "it has no end");
    assert!(about(&[used(7)], 7).is_err(), "an answer to what was not taken");
}

#[test]
fn forks_are_watched() {
    let bounds = RunBounds { rounds_max: 1, malformed_rounds_max: 1, same_call_max: 1 };
    let said = |run: &str| Fact::UserMessage { run: run.into(), text: "hi".into(), pictures: Vec::new(), bounds };
    let over = || Fact::Ending { status: RunStatus::Completed, text: String::new() };
    let opened: Settings = serde_json::from_value(json!({
        "workspace": "/w", "capabilities": WorkspaceCapabilities::local_default(), "agent": "general",
        "tool_result_transform_policy": ProjectionPolicy::default(), "skill": null, "model": "m",
        "permission_policy": PermissionPolicy::default(), "budget": BudgetLimits::default(),
    }))
    .unwrap();
    let facts = [Fact::Opened(Box::new(opened)), said("one"), over(), said("two"), over()];
    let (from, to) = (SessionId::from("s"), SessionId::from("f"));
    let about = |spoil: fn(&mut State)| {
        let mut watcher = super::forks::Forks::default();
        let mut state = State::default();
        for (fact, sequence) in facts.iter().zip(1..) {
            let payload = serde_json::to_vec(&StoredFact { at_ms: 1, fact }).unwrap();
            watcher.see(Duration::ZERO, &Sight::Stored { session: &from, sequence, payload: &payload }).unwrap();
            state.apply(fact.clone()).unwrap();
        }
        watcher.see(Duration::ZERO, &Sight::Forking { from: &from, to: &to }).unwrap();
        let mut fork = forked(state, &from).unwrap();
        spoil(&mut fork);
        let bytes = encode(&to, &fork, fork.position + 1).unwrap();
        watcher.see(Duration::ZERO, &Sight::Forked { to: &to, bytes: &bytes })
    };
    assert_eq!(about(|_| {}), Ok(()));
    // Planted faults, one each.
    assert!(about(|fork| drop(fork.messages.pop())).is_err(), "it lacks a message");
    assert!(about(|fork| fork.settings = None).is_err(), "it does not say whose fork it is");
    let begun = |fork: &mut State| {
        let bounds = RunBounds { rounds_max: 1, malformed_rounds_max: 1, same_call_max: 1 };
        let (run, text, pictures) = ("r".into(), String::new(), Vec::new());
        fork.apply(Fact::UserMessage { run, text, pictures, bounds }).unwrap();
    };
    assert!(about(begun).is_err(), "a run is under way in it");
}

#[test]
fn what_a_script_lets_go_is_seen() {
    let (id, tool) = (InvocationId::from("b"), ToolName::from("peek"));
    let about = |is_deaf: bool, done_ms: u64| {
        let mut watcher = super::scripts::Scripts::default();
        let mut see = |at_ms: u64, sight: &Sight<'_>| watcher.see(Duration::from_millis(at_ms), sight);
        if is_deaf {
            see(0, &Sight::Deaf { invocation: &id }).unwrap();
        }
        let program =
            EventKind::ToolProposed { id: "p".into(), name: "program".into(), origin: Origin::Agent, parent: None };
        for kind in [program, proposed("a", Some("p")), proposed("b", Some("p"))] {
            see(0, &Sight::Entry(&entry(1, kind))).unwrap();
        }
        // The first is awaited and ends after 10 ms; the second is not.
        see(10, &Sight::Entry(&entry(1, ended("a")))).unwrap();
        see(done_ms, &Sight::Over { invocation: &id, tool: &tool, returned: true }).unwrap();
        let calls = json!({ "tool_calls": [{ "success": true }, { "success": false, "awaited": false }] });
        let EventKind::ToolEnd(result) = ended("p") else { panic!("it is an ending") };
        let mut result = CallResult::clone(&result);
        result.metadata.insert("program".into(), calls);
        see(done_ms, &Sight::Entry(&entry(1, EventKind::ToolEnd(Arc::new(result)))))
    };
    assert_eq!(about(false, 10), Ok(()), "it was done in the same moment");
    assert!(about(false, 500).is_err(), "it went on after the script had returned");
    assert_eq!(about(true, 500), Ok(()), "it does not hear, and has its grace");
    assert!(about(true, 4_011).is_err(), "it went on beyond its grace");
}
