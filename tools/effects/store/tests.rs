//! What every store promises, and what the one in a folder does when the disk, a hand or another process gets in its way.

#![expect(clippy::disallowed_methods, reason = "tests prepare real files")]

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::effects::store::directory::medium::{Disk, Medium};
use crate::effects::store::directory::{DirectoryStore, Durability};
use crate::effects::store::memory::MemoryStore;
use crate::effects::store::record::Recovered;
use crate::effects::store::{Append, OnDamage, Store, StoreError};
use crate::ids::SessionId;

fn id(name: &str) -> SessionId {
    name.into()
}

fn fact(session: &str, sequence: u64) -> Append {
    Append { session: id(session), sequence, payload: format!("{session} {sequence}").into_bytes().into() }
}

fn at(folder: &Path) -> DirectoryStore {
    DirectoryStore::at(folder, Durability::Synced).unwrap()
}

fn texts(found: &Recovered) -> Vec<String> {
    found.log.iter().map(|(_, bytes)| String::from_utf8(bytes.to_vec()).unwrap()).collect()
}

fn log_of(folder: &Path, session: &str) -> std::path::PathBuf {
    folder.join("sessions").join(session).join("facts.log")
}

/// Fails from the step `fails_at` on, counted from 1: a write leaves half of its bytes.
struct Failing {
    fails_at: u64,
    steps: AtomicU64,
    kind: io::ErrorKind,
}

impl Failing {
    fn step(&self) -> io::Result<()> {
        match self.steps.fetch_add(1, Ordering::Relaxed) + 1 >= self.fails_at {
            true => Err(self.kind.into()),
            false => Ok(()),
        }
    }
}

impl Medium for Failing {
    fn create_folder(&self, path: &Path) -> io::Result<()> {
        self.step().and_then(|()| Disk.create_folder(path))
    }

    fn create_file(&self, path: &Path) -> io::Result<File> {
        self.step().and_then(|()| Disk.create_file(path))
    }

    fn write(&self, file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.step().inspect_err(|_| Disk.write(file, offset, &bytes[..bytes.len() / 2]).unwrap())?;
        Disk.write(file, offset, bytes)
    }

    fn truncate(&self, file: &File, bytes: u64) -> io::Result<()> {
        self.step().and_then(|()| Disk.truncate(file, bytes))
    }

    // Nothing loses its power here, so nothing is waited for.
    fn sync(&self, _file: &File) -> io::Result<()> {
        self.step()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step().and_then(|()| Disk.rename(from, to))
    }

    fn sync_folder(&self, _path: &Path) -> io::Result<()> {
        self.step()
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.step().and_then(|()| Disk.remove(path))
    }
}

#[test]
fn both_stores_keep_the_same_promises() {
    let folder = tempfile::tempdir().unwrap();
    let stores: [Box<dyn Store>; 3] = [
        Box::new(at(folder.path())),
        Box::new(DirectoryStore::at(&folder.path().join("b"), Durability::Buffered).unwrap()),
        Box::new(MemoryStore::default()),
    ];
    for store in stores {
        assert!(matches!(store.open(&id("a"), OnDamage::Refuse), Err(StoreError::Unknown { .. })));
        store.create(&id("a"), None, None).unwrap();
        assert_eq!(store.create(&id("a"), None, None), Err(StoreError::Exists { session: id("a") }));
        store.create(&id("b"), Some(b"snapshot of b"), None).unwrap();
        let batch = [fact("a", 1), fact("b", 8), fact("a", 2), fact("gone", 1)];
        let answers = store.append(&batch);
        assert_eq!(answers[..3], [Ok(()), Ok(()), Ok(())]);
        assert_eq!(answers[3], Err(StoreError::NotHeld { session: id("gone") }));
        assert!(matches!(store.open(&id("a"), OnDamage::Refuse), Err(StoreError::Held { .. })));
        store.save_snapshot(&id("a"), b"one").unwrap();
        store.save_snapshot(&id("a"), b"two").unwrap();
        assert_eq!(texts(&store.look(&id("a")).unwrap()), ["a 1", "a 2"]);
        store.release(&id("a"));
        store.release(&id("b"));
        assert!(matches!(store.save_snapshot(&id("a"), b""), Err(StoreError::NotHeld { .. })));
        assert!(matches!(store.append(&[fact("a", 3)])[0], Err(StoreError::NotHeld { .. })));
        let found = store.open(&id("a"), OnDamage::Refuse).unwrap();
        assert_eq!((texts(&found), found.snapshot.as_deref()), (vec!["a 1".into(), "a 2".into()], Some(&b"two"[..])));
        assert_eq!(store.append(&[fact("a", 3)]), [Ok(())]);
        let found = store.look(&id("b")).unwrap();
        assert_eq!((found.log.first_sequence(), found.snapshot.as_deref()), (Some(8), Some(&b"snapshot of b"[..])));
        assert_eq!(store.sessions().unwrap(), [id("a"), id("b")]);
        assert_eq!([store.next_epoch(), store.next_epoch()], [Ok(1), Ok(2)]);
        for bad in ["", "..", ".x", "a/b", "a\0", "\u{e9}", &"x".repeat(129)] {
            assert!(matches!(store.create(&id(bad), None, None), Err(StoreError::Name { .. })), "{bad:?}");
        }
    }
}

#[test]
fn a_second_writer_is_refused_and_told_who_the_first_is() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (at(folder.path()), at(folder.path()));
    one.create(&id("a"), None, None).unwrap();
    let refused = two.open(&id("a"), OnDamage::Refuse).err().unwrap();
    assert!(refused.to_string().contains(&format!("process {}", std::process::id())), "{refused}");
    // Looking needs no lock.
    assert!(two.look(&id("a")).is_ok());
    drop(one);
    assert!(two.open(&id("a"), OnDamage::Refuse).is_ok());
}

#[test]
fn a_torn_end_is_cut_and_what_is_appended_then_is_there() {
    // Case C140.
    let folder = tempfile::tempdir().unwrap();
    let store = at(folder.path());
    store.create(&id("a"), None, None).unwrap();
    store.append(&[fact("a", 1), fact("a", 2)]);
    store.release(&id("a"));
    let path = log_of(folder.path(), "a");
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    let found = store.open(&id("a"), OnDamage::Refuse).unwrap();
    assert_eq!((texts(&found), found.torn_bytes), (vec!["a 1".to_owned()], 26));
    assert_eq!(store.append(&[fact("a", 2)]), [Ok(())]);
    store.release(&id("a"));
    let found = store.open(&id("a"), OnDamage::Refuse).unwrap();
    assert_eq!((texts(&found).len(), found.torn_bytes), (2, 0));
}

#[test]
fn damage_is_refused_untouched_and_put_aside_when_it_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let store = at(folder.path());
    store.create(&id("a"), None, None).unwrap();
    store.append(&[fact("a", 1), fact("a", 2), fact("a", 3)]);
    store.release(&id("a"));
    let path = log_of(folder.path(), "a");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[24 + 3 + 24 + 1] = b'X';
    std::fs::write(&path, &bytes).unwrap();
    let refused = store.open(&id("a"), OnDamage::Refuse).err().unwrap();
    assert!(matches!(refused, StoreError::Damaged { whole: 1, offset: 27, .. }), "{refused}");
    assert!(refused.to_string().contains("1 facts are whole"), "{refused}");
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
    let found = store.open(&id("a"), OnDamage::Quarantine).unwrap();
    let damage = found.damage.unwrap();
    assert_eq!((found.log.len(), damage.later_records), (1, 1));
    assert_eq!(std::fs::read(damage.quarantined_at.unwrap()).unwrap(), bytes[27..]);
    assert_eq!(store.append(&[fact("a", 2)]), [Ok(())]);
    store.release(&id("a"));
    assert!(store.open(&id("a"), OnDamage::Refuse).unwrap().damage.is_none());
}

#[test]
fn what_one_sync_made_durable_for_many_is_there_after_the_machine_lost_its_logs() {
    let folder = tempfile::tempdir().unwrap();
    let store = at(folder.path());
    for session in ["a", "b", "c"] {
        store.create(&id(session), None, None).unwrap();
    }
    store.append(&[fact("a", 1)]);
    let synced = std::fs::read(log_of(folder.path(), "a")).unwrap();
    assert!(store.append(&[fact("a", 2), fact("b", 1), fact("c", 1), fact("c", 2)]).iter().all(Result::is_ok));
    store.catch_up();
    // The process dies with the machine: what was not synced is gone, or there in part.
    drop(store);
    std::fs::write(log_of(folder.path(), "a"), &synced).unwrap();
    std::fs::write(log_of(folder.path(), "b"), b"").unwrap();
    let torn = std::fs::read(log_of(folder.path(), "c")).unwrap();
    std::fs::write(log_of(folder.path(), "c"), &torn[..torn.len() - 2]).unwrap();
    let store = at(folder.path());
    assert_eq!(texts(&store.open(&id("a"), OnDamage::Refuse).unwrap()), ["a 1", "a 2"]);
    assert_eq!(texts(&store.open(&id("b"), OnDamage::Refuse).unwrap()), ["b 1"]);
    assert_eq!(texts(&store.open(&id("c"), OnDamage::Refuse).unwrap()), ["c 1", "c 2"]);
    let left = std::fs::read_dir(folder.path().join("commit")).unwrap().count();
    assert_eq!(left, 0, "a commit log that was used up is gone");
}

#[test]
fn logs_that_are_written_behind_the_answers_lack_nothing_for_whoever_reads_them() {
    let folder = tempfile::tempdir().unwrap();
    let store = at(folder.path());
    for session in ["a", "b", "c"] {
        store.create(&id(session), None, None).unwrap();
    }
    let length = |session| std::fs::read(log_of(folder.path(), session)).unwrap().len();
    let both = |number| [fact("a", number), fact("b", number)];
    assert!(store.append(&both(1)).iter().all(Result::is_ok));
    assert_eq!((length("a"), length("b")), (0, 0));
    assert_eq!(texts(&store.look(&id("a")).unwrap()), ["a 1"], "a look of the one who holds it");
    assert_eq!(store.append(&[fact("b", 2)]), [Ok(())]);
    assert!(store.append(&[fact("b", 3), fact("c", 1)]).iter().all(Result::is_ok));
    store.release(&id("b"));
    let other = at(folder.path());
    assert_eq!(texts(&other.open(&id("b"), OnDamage::Refuse).unwrap()), ["b 1", "b 2", "b 3"], "a release");
    other.release(&id("b"));
    // Somebody else looks: at what a living process has not written yet, and once it is dead at all of it.
    assert_eq!(length("c"), 0);
    drop(store);
    assert_eq!(texts(&at(folder.path()).look(&id("c")).unwrap()), ["c 1"]);
    assert_eq!(texts(&at(folder.path()).open(&id("a"), OnDamage::Refuse).unwrap()), ["a 1"]);
}

#[test]
fn what_logs_lack_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let store = at(folder.path());
    for session in ["a", "b"] {
        store.create(&id(session), None, None).unwrap();
    }
    let length = |session| std::fs::metadata(log_of(folder.path(), session)).unwrap().len();
    let large = |session: &str, sequence| Append { payload: vec![b'x'; 1 << 20].into(), ..fact(session, sequence) };
    for number in 1..=12 {
        assert!(store.append(&[large("a", number), fact("b", number)]).iter().all(Result::is_ok));
        let (there, lacking) = (length("a"), number * (1 << 20) - length("a").min(number * (1 << 20)));
        assert!(lacking <= 5 << 20, "{lacking} bytes are to be written after {number} facts; {there} are there");
    }
    assert!(length("a") > 4 << 20);
    assert_eq!(store.look(&id("a")).unwrap().log.len(), 12);
    store.release(&id("b"));
    assert_eq!(store.look(&id("a")).unwrap().log.len(), 12);
    assert!(store.is_behind());
    store.catch_up();
    assert!(!store.is_behind() && length("a") > 12 << 20);
}

// A commit log went away with the last session although a log that it covered could not be written.
#[test]
fn a_commit_log_stays_for_a_log_that_cannot_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let medium = Arc::new(Failing { fails_at: 1000, steps: AtomicU64::new(0), kind: io::ErrorKind::StorageFull });
    let store = DirectoryStore::with_medium(folder.path(), Durability::Synced, Arc::clone(&medium) as _).unwrap();
    for session in ["a", "b"] {
        store.create(&id(session), None, None).unwrap();
    }
    assert!(store.append(&[fact("a", 1), fact("b", 1)]).iter().all(Result::is_ok));
    medium.steps.store(1000, Ordering::Relaxed);
    store.release(&id("a"));
    store.release(&id("b"));
    // There is room again.
    medium.steps.store(0, Ordering::Relaxed);
    for session in ["a", "b"] {
        assert_eq!(texts(&store.open(&id(session), OnDamage::Refuse).unwrap()), [format!("{session} 1")]);
    }
}

#[test]
fn a_commit_log_goes_when_the_last_session_is_released() {
    let folder = tempfile::tempdir().unwrap();
    let store = at(folder.path());
    store.create(&id("a"), None, None).unwrap();
    store.create(&id("b"), None, None).unwrap();
    store.append(&[fact("a", 1), fact("b", 1)]);
    let count = || std::fs::read_dir(folder.path().join("commit")).unwrap().count();
    store.release(&id("a"));
    assert_eq!(count(), 1);
    store.release(&id("b"));
    assert_eq!(count(), 0);
}

#[test]
fn a_disk_that_fails_at_any_step_loses_nothing_that_was_acknowledged() {
    for kind in [io::ErrorKind::StorageFull, io::ErrorKind::ReadOnlyFilesystem] {
        let mut fails_at = 0;
        loop {
            fails_at += 1;
            let folder = tempfile::tempdir().unwrap();
            let medium = Arc::new(Failing { fails_at, steps: AtomicU64::new(0), kind });
            let (acknowledged, error) = work(folder.path(), Arc::clone(&medium) as _);
            let Some(error) = error else { break };
            assert!(matches!(&error, StoreError::Io { .. } | StoreError::Broken { .. }), "step {fails_at}: {error}");
            if let StoreError::Io { .. } = &error {
                let advice = if kind == io::ErrorKind::StorageFull { "make room" } else { "can be written" };
                assert!(error.to_string().contains(advice), "{error}");
            }
            let store = DirectoryStore::at(folder.path(), Durability::Buffered).unwrap();
            for (session, count) in ["a", "b"].into_iter().zip(acknowledged) {
                let found = store.open(&id(session), OnDamage::Refuse);
                let there = found.map_or(0, |found| found.log.len());
                assert!(there >= count, "step {fails_at}: {there} of {count} facts of {session}");
            }
        }
        assert!(fails_at > 20, "only {fails_at} steps");
    }
}

/// Makes two sessions, appends alone and together, saves a snapshot; gives how many facts of each were acknowledged,
/// and the first failure.
fn work(folder: &Path, medium: Arc<dyn Medium>) -> ([usize; 2], Option<StoreError>) {
    let (mut acknowledged, mut failure) = ([0, 0], None);
    let store = match DirectoryStore::with_medium(folder, Durability::Synced, medium) {
        Ok(store) => store,
        Err(error) => return (acknowledged, Some(error)),
    };
    let mut keep = |result: Result<(), StoreError>| {
        if let Err(error) = result {
            failure.get_or_insert(error);
        }
    };
    let made = store.create(&id("a"), None, Some(&fact("a", 1)));
    acknowledged[0] += usize::from(made.is_ok());
    keep(made);
    keep(store.create(&id("b"), Some(b"snapshot"), None));
    for round in 0..3 {
        for batch in [vec![fact("a", 2 * round + 2)], vec![fact("a", 2 * round + 3), fact("b", round + 1)]] {
            for (fact, answer) in batch.iter().zip(store.append(&batch)) {
                acknowledged[usize::from(fact.session == id("b"))] += usize::from(answer.is_ok());
                keep(answer);
            }
            if round == 1 {
                store.catch_up();
            }
        }
        keep(store.save_snapshot(&id("a"), b"more"));
    }
    (acknowledged, failure)
}

// A fact that was refused must not come back with a snapshot, whoever has heard of the refusal.
#[test]
fn no_snapshot_is_saved_behind_a_fact_that_was_not_appended() {
    let mut refusals = 0;
    for fails_at in 1..60 {
        let folder = tempfile::tempdir().unwrap();
        let medium = Arc::new(Failing { fails_at, steps: AtomicU64::new(0), kind: io::ErrorKind::StorageFull });
        let Ok(store) = DirectoryStore::with_medium(folder.path(), Durability::Synced, medium) else { continue };
        if store.create(&id("a"), None, Some(&fact("a", 1))).is_err() || store.append(&[fact("a", 2)])[0].is_ok() {
            continue;
        }
        let saved = store.save_snapshot(&id("a"), b"of two facts");
        assert!(matches!(saved, Err(StoreError::Broken { .. })), "step {fails_at}: {saved:?}");
        assert_eq!(store.look(&id("a")).unwrap().snapshot, None);
        refusals += 1;
    }
    assert!(refusals > 0);
}

#[test]
fn a_store_of_a_newer_version_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("format"), "toolwarden store 2\n").unwrap();
    let refused = DirectoryStore::at(folder.path(), Durability::Synced).err().unwrap();
    assert!(matches!(&refused, StoreError::Newer { version: 2, known: 1, .. }), "{refused}");
    std::fs::write(folder.path().join("format"), "something else").unwrap();
    let refused = DirectoryStore::at(folder.path(), Durability::Synced).err().unwrap();
    assert!(refused.to_string().contains("not a store's"), "{refused}");
    let nowhere = DirectoryStore::at(Path::new("/proc/nowhere"), Durability::Synced).err().unwrap();
    assert!(matches!(nowhere, StoreError::Io { .. }), "{nowhere}");
}

#[test]
fn a_session_is_made_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    drop(at(folder.path()));
    let mut fails_at = 4;
    loop {
        let medium = Arc::new(Failing { fails_at, steps: AtomicU64::new(0), kind: io::ErrorKind::StorageFull });
        let store = DirectoryStore::with_medium(folder.path(), Durability::Synced, medium).unwrap();
        if store.create(&id("a"), Some(b"forked"), None).is_ok() {
            break;
        }
        let listed = store.sessions().unwrap();
        drop(store);
        if !listed.is_empty() {
            let found = at(folder.path()).open(&id("a"), OnDamage::Refuse).unwrap();
            assert_eq!(found.snapshot.as_deref(), Some(&b"forked"[..]));
            std::fs::remove_dir_all(folder.path().join("sessions/a")).unwrap();
        }
        fails_at += 1;
        assert!(fails_at < 40);
    }
    // What a failed fork left is not taken for a new session's own.
    let store = at(folder.path());
    std::fs::create_dir(folder.path().join("sessions/.new-b")).unwrap();
    std::fs::write(folder.path().join("sessions/.new-b/snapshot"), "of another").unwrap();
    store.create(&id("b"), None, None).unwrap();
    assert_eq!(store.look(&id("b")).unwrap().snapshot, None);
}

#[test]
fn a_long_log_loses_what_its_snapshot_holds_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let stores: [Box<dyn Store>; 2] = [Box::new(at(folder.path())), Box::new(MemoryStore::default())];
    for store in stores {
        store.create(&id("a"), None, None).unwrap();
        assert!(store.append(&(1..=9).map(|number| fact("a", number)).collect::<Vec<_>>()).iter().all(Result::is_ok));
        store.save_snapshot(&id("a"), b"the first seven").unwrap();
        // A log that is not long yet, and a fact that it does not hold.
        assert_eq!(store.compact(&id("a"), 7, 10_000), Ok(0));
        assert_eq!(store.compact(&id("a"), 70, 0), Ok(0));
        assert_eq!(store.compact(&id("a"), 7, 0), Ok(6 * 27));
        // The last one that is held elsewhere stays, and says where the log begins.
        assert_eq!(texts(&store.look(&id("a")).unwrap()), ["a 7", "a 8", "a 9"]);
        assert_eq!(store.compact(&id("a"), 7, 0), Ok(0), "there is nothing more before it");
        assert_eq!(store.append(&[fact("a", 10)]), [Ok(())]);
        store.release(&id("a"));
        assert!(matches!(store.compact(&id("a"), 9, 0), Err(StoreError::NotHeld { .. })));
        let found = store.open(&id("a"), OnDamage::Refuse).unwrap();
        assert_eq!(texts(&found), ["a 7", "a 8", "a 9", "a 10"]);
        assert_eq!((found.torn_bytes, found.damage), (0, None));
        assert_eq!(store.append(&[fact("a", 11)]), [Ok(())]);
    }
}

// A commit log that covers facts which were cut off since does not bring them back.
#[test]
fn what_was_cut_off_does_not_come_back_from_a_commit_log() {
    let folder = tempfile::tempdir().unwrap();
    let store = at(folder.path());
    for session in ["a", "b"] {
        store.create(&id(session), None, None).unwrap();
    }
    assert!(store.append(&[fact("a", 1), fact("a", 2), fact("b", 1)]).iter().all(Result::is_ok));
    assert_eq!(store.append(&[fact("a", 3)]), [Ok(())]);
    store.compact(&id("a"), 3, 0).unwrap();
    drop(store);
    let store = at(folder.path());
    assert_eq!(texts(&store.open(&id("a"), OnDamage::Refuse).unwrap()), ["a 3"]);
    assert_eq!(store.append(&[fact("a", 4)]), [Ok(())]);
}

#[test]
fn a_cut_that_fails_at_any_step_leaves_a_whole_log_that_goes_on() {
    let mut failures = 0;
    for fails_at in 1.. {
        let folder = tempfile::tempdir().unwrap();
        let store = at(folder.path());
        store.create(&id("a"), None, None).unwrap();
        store.append(&(1..=6).map(|number| fact("a", number)).collect::<Vec<_>>());
        drop(store);
        let medium =
            Arc::new(Failing { fails_at: u64::MAX, steps: AtomicU64::new(0), kind: io::ErrorKind::StorageFull });
        let store = DirectoryStore::with_medium(folder.path(), Durability::Synced, Arc::clone(&medium) as _).unwrap();
        store.open(&id("a"), OnDamage::Refuse).unwrap();
        medium.steps.store(u64::MAX - fails_at, Ordering::Relaxed);
        let cut = store.compact(&id("a"), 4, 0);
        medium.steps.store(0, Ordering::Relaxed);
        // There is room again.
        assert_eq!(store.append(&[fact("a", 7)]), [Ok(())], "step {fails_at}");
        drop(store);
        let found = at(folder.path()).open(&id("a"), OnDamage::Refuse).unwrap();
        assert_eq!((found.log.last_sequence(), found.torn_bytes, found.damage), (Some(7), 0, None), "step {fails_at}");
        match cut {
            Ok(gone) => {
                assert_eq!((gone, found.log.first_sequence()), (3 * 27, Some(4)));
                break;
            }
            Err(error) => {
                failures += 1;
                assert!(error.to_string().contains("make room"), "{error}");
                assert!([Some(1), Some(4)].contains(&found.log.first_sequence()), "step {fails_at}");
            }
        }
    }
    assert!(failures >= 4, "only {failures} steps failed");
}
