//! States out of snapshots and logs: all cuts between the two, forks, short logs, facts that cannot be read.

use toolwarden_tools::effects::store::memory::MemoryStore;
use toolwarden_tools::effects::store::record::Recovered;
use toolwarden_tools::effects::store::{Append, Store, StoreError};
use toolwarden_tools::ids::SessionId;

use super::{ResumeError, fold};
use crate::fact_book::StoredFact;
use crate::facts::state::State;
use crate::facts::{Fact, RunBounds};
use crate::run_status::RunStatus;
use crate::snapshot::{encode, forked};

fn id() -> SessionId {
    "s".into()
}

fn facts(runs: usize) -> Vec<Fact> {
    let bounds = RunBounds { rounds_max: 1, malformed_rounds_max: 1, same_call_max: 1 };
    let run = |number| {
        [
            Fact::UserMessage { run: format!("r{number}").into(), text: format!("question {number}"), bounds },
            Fact::Ending { status: RunStatus::Refused, text: String::new() },
        ]
    };
    (0..runs).flat_map(run).collect()
}

/// What a store holds with the facts from this one on, counted from 1, and this snapshot.
fn kept(facts: &[Fact], from: u64, snapshot: Option<Vec<u8>>) -> Recovered {
    let store = MemoryStore::default();
    store.create(&id(), snapshot.as_deref(), None).unwrap();
    for (sequence, fact) in (from..).zip(facts) {
        let payload = serde_json::to_vec(&StoredFact { at_ms: 1, fact }).unwrap().into();
        store.append(&[Append { session: id(), sequence, payload }]);
    }
    store.look(&id()).unwrap()
}

fn snapshot(facts: &[Fact], log_from: u64) -> Vec<u8> {
    encode(&id(), &State::fold(facts.to_vec()).unwrap(), log_from).unwrap()
}

#[test]
fn snapshot_and_log_come_to_the_state_of_the_log_alone() {
    let all = facts(3);
    let whole = State::fold(all.clone()).unwrap();
    for cut in 0..=all.len() {
        let found = fold(&id(), kept(&all, 1, Some(snapshot(&all[..cut], 1))), false).unwrap();
        assert_eq!((&found.state, found.log_from), (&whole, 1), "a snapshot after fact {cut}");
        assert_eq!((found.recovery.from_snapshot, found.recovery.facts), (cut as u64, all.len() as u64));
    }
    assert_eq!(fold(&id(), kept(&all, 1, None), false).unwrap().state, whole);
}

#[test]
fn a_log_that_was_cut_goes_on_from_its_snapshot_and_from_no_older_one() {
    let all = facts(4);
    let whole = State::fold(all.clone()).unwrap();
    for first in 1..=5_u64 {
        let rest = &all[first as usize - 1..];
        let found = fold(&id(), kept(rest, first, Some(snapshot(&all[..5], 1))), false).unwrap();
        assert_eq!((&found.state, found.recovery.from_snapshot), (&whole, 5), "from fact {first} on");
    }
    // The fact right behind the snapshot is the last at which a log may begin.
    assert_eq!(fold(&id(), kept(&all[5..], 6, Some(snapshot(&all[..5], 1))), false).unwrap().state, whole);
    for accepts_damage in [false, true] {
        let error = fold(&id(), kept(&all[5..], 6, Some(snapshot(&all[..3], 1))), accepts_damage).unwrap_err();
        let told = error.to_string();
        assert!(matches!(error, ResumeError::Snapshot { .. }) && told.contains("begins with fact 6"), "{told}");
        let mut broken = snapshot(&all[..5], 1);
        broken.pop();
        let error = fold(&id(), kept(&all[5..], 6, Some(broken)), accepts_damage).unwrap_err();
        assert!(matches!(error, ResumeError::Snapshot { .. }), "{error}");
    }
}

#[test]
fn a_fork_stands_on_its_snapshot_and_goes_on_behind_it() {
    let trunk = State::fold(facts(2)).unwrap();
    let branch = forked(trunk.clone(), &"trunk".into()).unwrap();
    let bytes = encode(&id(), &branch, branch.position + 1).unwrap();
    let found = fold(&id(), kept(&[], 1, Some(bytes.clone())), false).unwrap();
    assert_eq!((found.state.runs, found.log_from), (2, 5));
    let more = facts(1);
    let found = fold(&id(), kept(&more, 5, Some(bytes)), false).unwrap();
    assert_eq!((found.state.runs, found.state.position), (3, 6));
    // Without its snapshot, a part is never taken for the whole.
    let error = fold(&id(), kept(&more, 5, None), true).unwrap_err();
    assert!(matches!(error, ResumeError::Snapshot { .. }), "{error}");
}

#[test]
fn what_is_under_way_does_not_come_along_into_a_fork() {
    let mut all = facts(1);
    all.extend(facts(1).into_iter().take(1));
    let branch = forked(State::fold(all).unwrap(), &"trunk".into()).unwrap();
    assert!(branch.run.is_none());
    assert_eq!(branch.last.unwrap().status, RunStatus::Interrupted);
}

#[test]
fn a_log_that_ends_before_its_snapshot_is_damage() {
    let all = facts(2);
    let short = || kept(&all[..2], 1, Some(snapshot(&all, 1)));
    let error = fold(&id(), short(), false).unwrap_err();
    assert!(matches!(&error, ResumeError::Store(StoreError::Damaged { whole: 2, .. })), "{error}");
    let found = fold(&id(), short(), true).unwrap();
    assert!(found.log_is_short);
    assert_eq!((found.state.position, found.log_from), (4, 5));
    // Emptied by hand: a session that was not forked has its facts in its log.
    assert!(fold(&id(), kept(&[], 1, Some(snapshot(&all, 1))), false).is_err());
}

#[test]
fn a_fact_that_cannot_be_read_or_does_not_follow_is_named() {
    let mut unknown = kept(&facts(1), 1, None);
    let store = MemoryStore::default();
    store.create(&id(), None, None).unwrap();
    let payload = br#"{"at_ms":1,"fact":{"of_the_future":{}}}"#[..].into();
    store.append(&[Append { session: id(), sequence: 1, payload }]);
    unknown.log = store.look(&id()).unwrap().log;
    let error = fold(&id(), unknown, false).unwrap_err();
    assert!(matches!(&error, ResumeError::Fact { sequence: 1, .. }), "{error}");
    assert!(error.to_string().contains("newer toolwarden"), "{error}");
    let twice = [facts(1), facts(1).into_iter().skip(1).collect()].concat();
    let error = fold(&id(), kept(&twice, 1, None), false).unwrap_err();
    assert!(error.to_string().contains("an ending without a run"), "{error}");
}
