//! Many sessions that stream beside each other: each has all of its events, in order, and nobody else's.

use toolwarden::run_status::RunStatus;
use toolwarden_actors::journal::Reading;

use super::peer::{PROTOCOLS, model_for};
use super::provider::{Fault, Provider};
use super::support::tool::echo;
use super::support::world::{World, allowing};

const SESSIONS: usize = 200;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_sessions_that_stream_at_once_lose_no_event() {
    let world = World::new().await;
    let mut runs = tokio::task::JoinSet::new();
    for number in 0..SESSIONS {
        // Each piece comes a moment later, so that all are under way together.
        let provider = Provider::new(1, |_| Fault::Delay(6, 30));
        let protocol = PROTOCOLS[number % PROTOCOLS.len()];
        let model = model_for(protocol, "http://127.0.0.1:9", true, provider, Some(SESSIONS));
        let session = world.session().policy(allowing(&["echo"])).tool(echo("echo").shared()).model(model);
        let session = session.open().await.unwrap();
        runs.spawn(async move {
            let mut stream = session.stream("go").await.unwrap();
            let (mut kinds, mut text, mut last) = (Vec::new(), String::new(), 0);
            while let Some(reading) = stream.next().await {
                let Reading::Entry(entry) = reading else { panic!("{number}: {reading:?}") };
                assert!(entry.sequence > last, "{number}: out of order");
                last = entry.sequence;
                assert_eq!(&entry.event.root_session, session.id());
                let line = serde_json::to_value(&entry.event.kind).unwrap();
                text.push_str(if line["type"] == "text_delta" { line["delta"].as_str().unwrap() } else { "" });
                kinds.push(line["type"].as_str().unwrap().to_owned());
            }
            let outcome = stream.outcome().await.unwrap();
            session.close().await;
            (outcome, kinds, text)
        });
    }
    let mut ended = 0;
    while let Some(run) = runs.join_next().await {
        let (outcome, kinds, text) = run.unwrap();
        assert_eq!((outcome.status, outcome.turns), (RunStatus::Completed, 2));
        assert_eq!(text, "Hello there. Hello there. ");
        for (kind, count) in
            [("agent_start", 1), ("turn_start", 2), ("tool_start", 1), ("tool_end", 1), ("agent_end", 1)]
        {
            assert_eq!(kinds.iter().filter(|found| *found == kind).count(), count, "{kind}: {kinds:?}");
        }
        ended += 1;
    }
    assert_eq!(ended, SESSIONS);
    world.at_rest(&[]).await;
    world.end().await;
}
