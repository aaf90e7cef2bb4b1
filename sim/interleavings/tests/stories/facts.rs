//! A fact log over a medium that takes its time: two sessions, a mark, a cut, and a new life of the log.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use toolwarden_interleavings::fact_log::{FactLog, FactLogError, start};
use toolwarden_tools::effects::store::record::Recovered;
use toolwarden_tools::effects::store::{Append, OnDamage, Store, StoreError};
use toolwarden_tools::ids::SessionId;

use crate::{end, play, root};

/// What is kept of each session.
#[derive(Default)]
struct Kept {
    facts: Vec<u64>,
    snapshot: u64,
}

/// A medium: to write a fact takes a moment in which anybody may go first.
#[derive(Default)]
struct Medium {
    sessions: Mutex<BTreeMap<SessionId, Kept>>,
    batches_under_way: Mutex<usize>,
    /// Whether a log whose former life may still be writing is looked at.
    has_lives: bool,
}

impl Medium {
    fn kept<T>(&self, session: &SessionId, change: impl FnOnce(&mut Kept) -> T) -> T {
        change(self.sessions.lock().unwrap().entry(session.clone()).or_default())
    }

    /// Whether a fact is in the log, or was cut because a snapshot holds it.
    fn has(&self, session: &SessionId, sequence: u64) -> bool {
        self.kept(session, |kept| kept.facts.contains(&sequence) || sequence < kept.snapshot)
    }
}

impl Store for Medium {
    fn create(&self, _: &SessionId, _: Option<&[u8]>, _: Option<&Append>) -> Result<(), StoreError> {
        Ok(())
    }

    fn open(&self, _: &SessionId, _: OnDamage) -> Result<Recovered, StoreError> {
        Ok(Recovered::default())
    }

    fn append(&self, batch: &[Append]) -> Vec<Result<(), StoreError>> {
        let under_way = {
            let mut under_way = self.batches_under_way.lock().unwrap();
            *under_way += 1;
            *under_way
        };
        assert!(under_way == 1 || self.has_lives, "{under_way} batches are under way");
        for fact in batch {
            tokio::switch();
            self.kept(&fact.session, |kept| {
                let last = kept.facts.last().copied().unwrap_or_default().max(kept.snapshot);
                assert!(
                    fact.sequence > last,
                    "fact {} of {} is stored behind fact {last}",
                    fact.sequence,
                    fact.session
                );
                kept.facts.push(fact.sequence);
            });
        }
        tokio::switch();
        *self.batches_under_way.lock().unwrap() -= 1;
        batch.iter().map(|_| Ok(())).collect()
    }

    fn save_snapshot(&self, session: &SessionId, bytes: &[u8]) -> Result<(), StoreError> {
        tokio::switch();
        self.kept(session, |kept| kept.snapshot = u64::from(bytes[0]));
        Ok(())
    }

    fn compact(&self, session: &SessionId, through: u64, _: u64) -> Result<u64, StoreError> {
        tokio::switch();
        self.kept(session, |kept| {
            assert!(through <= kept.snapshot, "fact {through} is cut, and the snapshot holds {} only", kept.snapshot);
            assert!(kept.facts.contains(&through), "fact {through}, which has to stay, is not there");
            kept.facts.retain(|fact| *fact >= through);
        });
        Ok(0)
    }

    fn begin_anew(&self, session: &SessionId) -> Result<String, StoreError> {
        Err(StoreError::NotHeld { session: session.clone() })
    }

    fn release(&self, _: &SessionId) {}

    fn look(&self, _: &SessionId) -> Result<Recovered, StoreError> {
        Ok(Recovered::default())
    }

    fn next_epoch(&self) -> Result<u64, StoreError> {
        Ok(1)
    }

    fn sessions(&self) -> Result<Vec<SessionId>, StoreError> {
        Ok(Vec::new())
    }
}

fn fact(session: &SessionId, sequence: u64) -> Append {
    Append { session: session.clone(), sequence, payload: Arc::from([0_u8]) }
}

/// Appends facts one behind the other, without waiting in between; those that became durable.
async fn write(log: FactLog, medium: Arc<Medium>, session: SessionId, facts: u64) -> Vec<u64> {
    let written: Vec<_> = (1..=facts).map(|sequence| (sequence, log.append(fact(&session, sequence)))).collect();
    let mut durable = Vec::new();
    for (sequence, written) in written {
        match written.durable().await {
            Ok(()) => {
                assert!(medium.has(&session, sequence), "fact {sequence} was acknowledged and is not stored");
                durable.push(sequence);
            }
            Err(FactLogError::NotRunning) => {}
            Err(error) => panic!("{error}"),
        }
    }
    durable
}

/// As a session that is kept saves where it stands: what it appended is durable at the mark, is then in a snapshot, and
/// may be cut off the log.
async fn write_and_save(log: FactLog, medium: Arc<Medium>, session: SessionId) {
    let first = log.append(fact(&session, 1));
    let second = log.append(fact(&session, 2));
    log.mark().durable().await.unwrap();
    for sequence in [1, 2] {
        assert!(medium.has(&session, sequence), "fact {sequence} stands before the mark and is not stored");
    }
    medium.save_snapshot(&session, &[2]).unwrap();
    let third = log.append(fact(&session, 3));
    medium.compact(&session, 2, 0).unwrap();
    for written in [first, second, third] {
        written.durable().await.unwrap();
    }
    medium.kept(&session, |kept| assert_eq!((kept.facts.as_slice(), kept.snapshot), (&[2, 3][..], 2)));
}

pub fn marked_and_cut() {
    play(0, async {
        let (medium, root) = (Arc::new(Medium::default()), root().await);
        let log = FactLog::new(Arc::clone(&medium) as _);
        let actor = start(&log, root.clone()).await.unwrap();
        let saves = tokio::spawn(write_and_save(log.clone(), Arc::clone(&medium), "a".into()));
        let writes = tokio::spawn(write(log.clone(), Arc::clone(&medium), "b".into(), 3));
        saves.await.unwrap();
        assert_eq!(writes.await.unwrap(), [1, 2, 3]);
        end(root, [actor]).await;
    });
}

pub fn a_new_life() {
    play(0, async {
        let (medium, root) = (Arc::new(Medium { has_lives: true, ..Medium::default() }), root().await);
        let log = FactLog::new(Arc::clone(&medium) as _);
        let actor = start(&log, root.clone()).await.unwrap();
        let writes = ["a", "b"].map(|session| tokio::spawn(write(log.clone(), Arc::clone(&medium), session.into(), 2)));
        let (again, above) = (log.clone(), root.clone());
        let restart = tokio::spawn(async move {
            actor.stop(None);
            let _ = actor.wait(None).await;
            start(&again, above).await.unwrap()
        });
        for write in writes {
            write.await.unwrap();
        }
        let actor = restart.await.unwrap();
        // Whatever the former life did not answer, the new one takes what comes.
        assert_eq!(write(log.clone(), Arc::clone(&medium), "c".into(), 1).await, [1]);
        end(root, [actor]).await;
    });
}
