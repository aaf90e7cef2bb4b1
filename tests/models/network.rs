//! A network that cuts, breaks, delays, doubles and garbles what it carries, by a seed: whatever it does, every run ends
//! in a documented way, no call runs twice, and no half call runs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use toolwarden::models::Model;
use toolwarden::models::gate::RetryPolicy;

use super::peer::{PROTOCOLS, model};
use super::provider::{Fault, PAD_CHARS, Provider};
use super::support::WAIT_MAX;
use super::support::tool::echo;
use super::support::world::{World, allowing};

const SEEDS: u64 = 40;
const ROUNDS: usize = 3;
/// Every way in which a run may end here.
const ENDINGS: [&str; 5] = ["completed", "model_failed", "malformed_calls", "repeated_calls", "tool_round_limit"];
pub(crate) const RETRIES: RetryPolicy = RetryPolicy {
    attempts_max: 4,
    wait_min: Duration::from_millis(1),
    wait_max: Duration::from_millis(4),
    asked_wait_max: Duration::from_secs(5),
};

/// A number that follows from a seed and a place: splitmix64.
pub(crate) fn drawn(seed: u64, place: u64) -> u64 {
    let mut z = seed.wrapping_mul(0x1000_0001).wrapping_add(place).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn fault(seed: u64, number: usize) -> Fault {
    let number = number as u64;
    let place = usize::try_from(drawn(seed, number * 4 + 1) % 24).unwrap();
    match drawn(seed, number * 4) % 16 {
        0 => Fault::Cut(place),
        1 => Fault::Reset(place),
        2 => Fault::Silence(place),
        3 | 4 => Fault::Twice(place),
        5 | 6 => Fault::Garble(place),
        7 => Fault::Delay(place, drawn(seed, number * 4 + 2) % 20),
        8 => Fault::Status([408, 409, 429, 500, 503, 529, 400, 404][place % 8]),
        9 if place < 4 => Fault::Page,
        9 if place < 8 => Fault::Refused,
        _ => Fault::None,
    }
}

/// Checks what ran: each call once, and none that is less than the provider wrote.
fn check(protocol: &str, seed: u64, started: &[Value]) {
    let mut numbers = BTreeSet::new();
    for arguments in started.iter().map(|line| &line["args"]) {
        let fields = arguments.as_object().unwrap();
        assert_eq!(fields.len(), 2, "{protocol} {seed}: {arguments}");
        if let Some(number) = fields.get("n") {
            assert!(numbers.insert(number.to_string()), "{protocol} {seed}: call {number} ran twice");
        }
        if let Some(pad) = fields.get("pad") {
            assert!(pad.as_str().unwrap().chars().count() >= PAD_CHARS, "{protocol} {seed}: half a call: {arguments}");
        }
    }
}

/// Runs once with this model and checks how it ended and what ran; gives how it ended.
pub(crate) async fn ends_well(protocol: &str, seed: u64, model: Arc<dyn Model>) -> &'static str {
    let world = World::with(|builder| builder.model_retries(RETRIES)).await;
    let session = world.session().policy(allowing(&["echo"])).tool(echo("echo").shared()).model(model);
    let session = session.open().await.unwrap();
    let outcome = tokio::time::timeout(WAIT_MAX, session.run("go")).await.unwrap().unwrap();
    let status = outcome.status.as_str();
    assert!(ENDINGS.contains(&status), "{protocol} {seed}: {:?}", outcome.status);
    check(protocol, seed, &world.record.of_type("tool_execution_start"));
    world.at_rest(&[&session]).await;
    world.end().await;
    status
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_the_network_does_no_call_runs_twice_or_by_half() {
    let mut endings = BTreeSet::new();
    for protocol in PROTOCOLS {
        for seed in 0..SEEDS {
            let provider = Provider::new(ROUNDS, move |number| fault(seed, number));
            let model = model(protocol, "http://127.0.0.1:9", true, provider);
            endings.insert(ends_well(protocol, seed, model).await);
        }
    }
    // The seeds reach both the good end and the bad one.
    assert!(endings.contains("completed") && endings.contains("model_failed"), "{endings:?}");
}
