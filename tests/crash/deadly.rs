//! A store whose steps are counted, and which kills its process at a chosen one.
//!
//! A write has three instants (before, with half of its bytes there, after), every other step one before it. Nothing
//! is synced, for a process that dies takes no written byte with it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use toolwarden_tools::digest::Digest;
use toolwarden_tools::effects::store::directory::medium::{Disk, Medium};
use toolwarden_tools::effects::store::directory::{DirectoryStore, Durability};
use toolwarden_tools::effects::store::record::Recovered;
use toolwarden_tools::effects::store::{Append, OnDamage, Store, StoreError};
use toolwarden_tools::ids::SessionId;

/// Counts steps, and kills the process at one of them.
pub(crate) struct Steps {
    kill_at: u64,
    taken: AtomicU64,
}

impl Steps {
    /// Kills at this step, counted from 1; never at 0.
    pub(crate) fn new(kill_at: u64) -> Arc<Self> {
        Arc::new(Self { kill_at, taken: AtomicU64::new(0) })
    }

    /// An instant at which the process may die.
    pub(crate) fn step(&self) {
        if self.taken.fetch_add(1, Ordering::SeqCst) + 1 == self.kill_at {
            kill(Pid::this(), Signal::SIGKILL).unwrap();
            loop {
                std::thread::park();
            }
        }
    }
}

/// The real disk, step by step.
pub(crate) struct Deadly(pub(crate) Arc<Steps>);

impl Medium for Deadly {
    fn create_folder(&self, path: &Path) -> io::Result<()> {
        self.0.step();
        Disk.create_folder(path)
    }

    fn create_file(&self, path: &Path) -> io::Result<File> {
        self.0.step();
        Disk.create_file(path)
    }

    fn write(&self, file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.step();
        let half = bytes.len() / 2;
        Disk.write(file, offset, &bytes[..half])?;
        self.0.step();
        Disk.write(file, offset + half as u64, &bytes[half..])?;
        self.0.step();
        Ok(())
    }

    fn truncate(&self, file: &File, bytes: u64) -> io::Result<()> {
        self.0.step();
        Disk.truncate(file, bytes)
    }

    fn sync(&self, _file: &File) -> io::Result<()> {
        self.0.step();
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.step();
        Disk.rename(from, to)
    }

    fn sync_folder(&self, _path: &Path) -> io::Result<()> {
        self.0.step();
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.step();
        Disk.remove(path)
    }
}

/// A store that writes down, for another process, which facts it has acknowledged.
pub(crate) struct Telling {
    inside: DirectoryStore,
    acknowledged: PathBuf,
    steps: Arc<Steps>,
}

impl Telling {
    pub(crate) fn at(root: &Path, acknowledged: &Path, steps: Arc<Steps>) -> Result<Self, StoreError> {
        let medium = Arc::new(Deadly(Arc::clone(&steps)));
        let inside = DirectoryStore::with_medium(root, Durability::Synced, medium)?;
        Ok(Self { inside, acknowledged: acknowledged.to_owned(), steps })
    }

    fn tell(&self, fact: &Append) {
        let mut file = OpenOptions::new().create(true).append(true).open(&self.acknowledged).unwrap();
        let line = format!("{} {} {}\n", fact.session, fact.sequence, Digest::of(&fact.payload));
        file.write_all(line.as_bytes()).unwrap();
    }
}

impl Store for Telling {
    fn create(&self, session: &SessionId, snapshot: Option<&[u8]>, first: Option<&Append>) -> Result<(), StoreError> {
        self.inside.create(session, snapshot, first)?;
        first.into_iter().for_each(|fact| self.tell(fact));
        Ok(())
    }

    fn open(&self, session: &SessionId, damage: OnDamage) -> Result<Recovered, StoreError> {
        self.inside.open(session, damage)
    }

    fn append(&self, batch: &[Append]) -> Vec<Result<(), StoreError>> {
        let answers = self.inside.append(batch);
        for (fact, _) in batch.iter().zip(&answers).filter(|(_, answer)| answer.is_ok()) {
            self.tell(fact);
        }
        self.steps.step();
        answers
    }

    fn is_behind(&self) -> bool {
        self.inside.is_behind()
    }

    fn catch_up(&self) {
        self.inside.catch_up();
    }

    fn save_snapshot(&self, session: &SessionId, bytes: &[u8]) -> Result<(), StoreError> {
        self.inside.save_snapshot(session, bytes)
    }

    fn begin_anew(&self, session: &SessionId) -> Result<String, StoreError> {
        self.inside.begin_anew(session)
    }

    fn compact(&self, session: &SessionId, through: u64, kept_bytes: u64) -> Result<u64, StoreError> {
        self.inside.compact(session, through, kept_bytes)
    }

    fn release(&self, session: &SessionId) {
        self.inside.release(session);
    }

    fn look(&self, session: &SessionId) -> Result<Recovered, StoreError> {
        self.inside.look(session)
    }

    fn next_epoch(&self) -> Result<u64, StoreError> {
        self.inside.next_epoch()
    }

    fn sessions(&self) -> Result<Vec<SessionId>, StoreError> {
        self.inside.sessions()
    }
}
