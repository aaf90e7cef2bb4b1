//! A disk that is full, or can only be read, from any step on: typed errors, no effect that is not stored first, and a
//! session that goes on once there is room.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::json;
use toolwarden::embedding::{BuildError, Runtime};
use toolwarden::resume::ResumeError;
use toolwarden::run_status::RunStatus;
use toolwarden_tools::effects::store::StoreError;
use toolwarden_tools::effects::store::directory::medium::{Disk, Medium};
use toolwarden_tools::effects::store::directory::{DirectoryStore, Durability};
use toolwarden_tools::outcome::ToolOutcome;

use super::support::model::script;
use super::support::tool::custom;
use super::support::world::policy;

/// A disk that fails from one step on; a write that fails leaves half of its bytes.
struct Full {
    fails_at: u64,
    steps: AtomicU64,
    kind: io::ErrorKind,
}

impl Full {
    fn step(&self) -> io::Result<()> {
        let step = self.steps.fetch_add(1, Ordering::SeqCst) + 1;
        if step >= self.fails_at { Err(self.kind.into()) } else { Ok(()) }
    }
}

impl Medium for Full {
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

/// What a session came to: an answer, or the words that a person gets.
async fn work(folder: &Path, medium: Arc<dyn Medium>, effects: &Arc<AtomicU64>) -> Result<String, String> {
    let store = DirectoryStore::with_medium(&folder.join("store"), Durability::Synced, medium);
    let store = store.map_err(|error| error.to_string())?;
    let runtime = Runtime::builder().store(Arc::new(store)).build().await.map_err(|error| error.to_string())?;
    let done = open_and_ask(&runtime, folder, effects).await;
    runtime.shut_down().await;
    done
}

async fn open_and_ask(runtime: &Runtime, folder: &Path, effects: &Arc<AtomicU64>) -> Result<String, String> {
    let turns = [json!({ "calls": [{ "tool": "count", "arguments": {} }] }), json!({ "text": "counted once" })];
    let count = {
        let effects = Arc::clone(effects);
        custom("count", move |_ctx, _arguments| {
            let effects = Arc::clone(&effects);
            async move {
                effects.fetch_add(1, Ordering::SeqCst);
                ToolOutcome::success("counted")
            }
        })
    };
    let is_known = runtime.kept_sessions().await.map_err(|error| error.to_string())?.contains(&"s".into());
    let builder = if is_known { runtime.resume("s") } else { runtime.session(folder).id("s") };
    let builder = builder.model(script(&turns)).tool(count.shared()).policy(policy("default = 'allow'"));
    let session = builder.open().await.map_err(|error| match &error {
        BuildError::Resume(
            ResumeError::Store(StoreError::Io { .. } | StoreError::Broken { .. }) | ResumeError::Facts(_),
        ) => error.to_string(),
        other => panic!("{other}"),
    })?;
    let outcome = match session.go_on().await.map_err(|error| error.to_string())? {
        Some(outcome) => outcome,
        None => session.run("count once").await.map_err(|error| error.to_string())?,
    };
    session.close().await;
    match outcome.status {
        RunStatus::Completed => Ok(outcome.text),
        RunStatus::StoreFailed { message } => Err(message),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_disk_that_is_full_at_any_step_is_told_and_nothing_is_done_that_is_not_stored_first() {
    for kind in [io::ErrorKind::StorageFull, io::ErrorKind::ReadOnlyFilesystem] {
        let mut failures = 0;
        for fails_at in 1.. {
            let folder = tempfile::tempdir().unwrap();
            let effects = Arc::new(AtomicU64::new(0));
            let full = Arc::new(Full { fails_at, steps: AtomicU64::new(0), kind });
            let first = work(folder.path(), Arc::clone(&full) as _, &effects).await;
            if full.steps.load(Ordering::SeqCst) < fails_at {
                assert_eq!(first.as_deref(), Ok("counted once"));
                break;
            }
            if let Err(words) = &first {
                failures += 1;
                let advice = if kind == io::ErrorKind::StorageFull { "make room" } else { "can be written" };
                assert!(words.contains(advice) || words.contains("takes no more facts"), "step {fails_at}: {words}");
            }
            // There is room again. The effect is there once at the most, and so it is in the end.
            let again = work(folder.path(), Arc::new(Disk), &effects).await;
            assert_eq!(again.as_deref(), Ok("counted once"), "step {fails_at}");
            assert!(effects.load(Ordering::SeqCst) <= 1, "step {fails_at}: the effect was repeated");
        }
        assert!(failures > 25, "only {failures} steps failed");
    }
}
