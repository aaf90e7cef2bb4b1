//! A workflow whose process is killed before, in the middle of and after every record, and gone on with: its log ends
//! byte for byte as that of a run that nobody disturbed, and no step that was recorded as done is done again.
//!
//! The other process is a whole runtime over the real folder; what stands between it and the folder only counts, and
//! kills. The date stands still in it, for the moments of a log are those of its host.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use toolwarden::embedding::Runtime;
use toolwarden_tools::effects::Effects;
use toolwarden_tools::effects::clock::{Clock, SystemClock};
use toolwarden_tools::effects::files::{
    FileError, FileStat, Files, FolderEntry, Links, LogFile, OpenFile, Replacement,
};
use toolwarden_tools::outcome::ToolOutcome;
use toolwarden_tools::workspace::{Workspace, WorkspaceCapabilities, local};
use toolwarden_tools::workspace_path::WorkspacePath;

use super::deadly::Steps;
use super::support::tool::custom;

const FOLDER: &str = "TOOLWARDEN_CRASH_WORKFLOW";
const KILL_AT: &str = "TOOLWARDEN_CRASH_WORKFLOW_KILL_AT";

/// A step, two beside each other of which one fails once, a wait, a run inside with a step, a failure that is lived
/// with, and the end.
const SOURCE: &str = "
const step = (step_id, extra) => ({ step_id, step_name: 'note', input: { what: step_id }, ...extra });
async function run(ctx, inputs) {
  if (inputs.kind === 'step') {
    if (inputs.input.fails >= inputs.attempt) throw new Error('not yet');
    await ctx.tool('note', { what: inputs.input.what, key: inputs.idempotency_key });
    return inputs.input.what;
  }
  const { steps, history, input } = inputs;
  const has = type => history.some(entry => entry.type === type);
  if (input.inner) return steps.within ? { type: 'complete', output: steps.within.output } : { type: 'schedule_step', ...step('within') };
  if (!steps.first) return { type: 'schedule_step', ...step('first') };
  if (!has('ProgressRecorded')) return { type: 'record_progress', message: 'begun' };
  if (!steps.odd) return { type: 'schedule_steps', steps: [step('even'), step('odd', {
    input: { what: 'odd', fails: 1 }, retry: { max_attempts: 2 } })] };
  if (!has('WaitStarted')) return { type: 'wait_until', delay_ms: 0 };
  if (!steps.child) return { type: 'start_child_workflow', child_id: 'child', input: { inner: true } };
  if (!steps.lost) return { type: 'schedule_step', ...step('lost', {
    input: { fails: 9 }, continue_workflow_on_failure: true }) };
  return { type: 'complete', output: [steps.first.output, steps.child.output.output, steps.lost.status] };
}";

/// Instants that are tried at a time: each is a process or two, and they wait for the disk.
const AT_A_TIME: usize = 3;

/// The date stands still.
struct Still(SystemClock);

impl Clock for Still {
    fn monotonic(&self) -> Duration {
        self.0.monotonic()
    }

    fn unix_ms(&self) -> u64 {
        1_000_000
    }
}

/// The real files, but for logs that kill their writer.
struct DeadlyFiles {
    inside: Arc<dyn Files>,
    steps: Arc<Steps>,
}

impl Files for DeadlyFiles {
    fn canonical(&self, path: &WorkspacePath) -> Result<WorkspacePath, FileError> {
        self.inside.canonical(path)
    }

    fn stat(&self, path: &WorkspacePath, links: Links) -> Result<FileStat, FileError> {
        self.inside.stat(path, links)
    }

    fn open(&self, path: &WorkspacePath) -> Result<Box<dyn OpenFile>, FileError> {
        self.inside.open(path)
    }

    fn list(&self, path: &WorkspacePath) -> Result<Vec<FolderEntry>, FileError> {
        self.inside.list(path)
    }

    fn replace(&self, path: &WorkspacePath, replacement: &Replacement<'_>) -> Result<FileStat, FileError> {
        self.inside.replace(path, replacement)
    }

    fn open_log(&self, path: &WorkspacePath) -> Result<Box<dyn LogFile>, FileError> {
        self.steps.step();
        let inside = self.inside.open_log(path)?;
        Ok(Box::new(DeadlyLog { inside, steps: Arc::clone(&self.steps) }))
    }
}

struct DeadlyLog {
    inside: Box<dyn LogFile>,
    steps: Arc<Steps>,
}

impl LogFile for DeadlyLog {
    fn read(&mut self, bytes_max: u64) -> io::Result<Vec<u8>> {
        self.inside.read(bytes_max)
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.steps.step();
        let half = bytes.len() / 2;
        self.inside.append(&bytes[..half])?;
        self.steps.step();
        // What comes right behind it is the instant before whatever is next.
        self.inside.append(&bytes[half..])
    }

    fn cut(&mut self, bytes: u64) -> io::Result<()> {
        self.steps.step();
        self.inside.cut(bytes)
    }
}

/// Plays the workflow to its end from wherever it stands; gives what the caller was told.
async fn play(folder: &Path, kill_at: u64) -> Value {
    let steps = Steps::new(kill_at);
    let effects = Effects { clock: Arc::new(Still(SystemClock::new())), ..Effects::real() };
    let runtime = Runtime::builder().effects(effects).build().await.unwrap();
    let capabilities = WorkspaceCapabilities { search: false, exec: false, ..WorkspaceCapabilities::local_default() };
    let real: Workspace = local::open(folder, capabilities, None).unwrap();
    let files = DeadlyFiles { inside: Arc::clone(real.files()), steps: Arc::clone(&steps) };
    let noted = folder.join("noted");
    let note = custom("note", move |_ctx, arguments| {
        let (noted, steps) = (noted.clone(), Arc::clone(&steps));
        async move {
            let mut file = std::fs::OpenOptions::new().create(true).append(true).open(noted).unwrap();
            io::Write::write_all(&mut file, format!("{arguments}\n").as_bytes()).unwrap();
            steps.step();
            ToolOutcome::success("noted")
        }
    });
    let session = runtime.session_over(real.with_files(Arc::new(files))).tool(note.shared()).open().await.unwrap();
    // One at a time, so that the instants come in the same order each time.
    let asked = json!({"source": SOURCE, "run_id": "run", "input": {}, "limits": {"maxConcurrentSteps": 1}});
    let result = session.tool("dynamic_workflow", asked).await.unwrap();
    assert!(result.is_success(), "{}", result.output);
    session.close().await;
    runtime.shut_down().await;
    result.metadata["dynamic_workflow"]["snapshot"]["end"]["output"].clone()
}

fn play_here(folder: &Path, kill_at: u64) -> Value {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(play(folder, kill_at))
}

/// The other process: does nothing unless it is told to.
#[test]
fn a_process_that_is_killed() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    play_here(Path::new(&folder), std::env::var(KILL_AT).unwrap().parse().unwrap());
}

fn play_there(folder: &Path, kill_at: u64) -> ExitStatus {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "workflow::a_process_that_is_killed", "--nocapture"])
        .env(FOLDER, folder)
        .env(KILL_AT, kill_at.to_string())
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.signal() == Some(9) || output.status.success(), "at {kill_at}: {}: {words}", output.status);
    output.status
}

/// All logs of a folder, by name.
fn logs(folder: &Path) -> Vec<(String, String)> {
    let found = std::fs::read_dir(folder.join(".a3s/workflow")).into_iter().flatten().flatten();
    let mut logs: Vec<(String, String)> = found
        .map(|entry| {
            let text = String::from_utf8_lossy(&std::fs::read(entry.path()).unwrap()).into_owned();
            (entry.file_name().into_string().unwrap(), text)
        })
        .collect();
    logs.sort();
    logs
}

/// The steps that the whole lines of these logs record as done.
fn done(logs: &[(String, String)]) -> BTreeSet<String> {
    let lines = logs.iter().flat_map(|(_, text)| text.split_inclusive('\n').filter(|line| line.ends_with('\n')));
    let done = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
    let done = done.filter(|entry| entry["type"] == "StepCompleted");
    done.map(|entry| entry["step_id"].as_str().unwrap().to_owned()).collect()
}

fn noted(folder: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(folder.join("noted")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["what"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_workflow_that_is_killed_at_every_record_ends_with_the_log_of_one_that_was_not() {
    let undisturbed = tempfile::tempdir().unwrap();
    let answer = play_here(undisturbed.path(), 0);
    assert_eq!(answer, json!(["first", "within", "failed"]));
    let whole = logs(undisturbed.path());
    assert_eq!((whole.len(), noted(undisturbed.path()).len()), (2, 4));
    let (next, killed) = (AtomicU64::new(1), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                while is_killed_at(next.fetch_add(1, Ordering::SeqCst), &answer, &whole) {
                    killed.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    let killed = killed.into_inner();
    println!("{killed} instants");
    assert!(killed >= 50, "only {killed} instants");
}

/// Kills it there and goes on with it; false where it had ended before.
fn is_killed_at(kill_at: u64, answer: &Value, whole: &[(String, String)]) -> bool {
    let folder = tempfile::tempdir().unwrap();
    if play_there(folder.path(), kill_at).success() {
        return false;
    }
    // While it goes on it dies once more, each time somewhere else.
    if kill_at.is_multiple_of(8) {
        play_there(folder.path(), kill_at % 13 + 1);
    }
    let (kept, before) = (done(&logs(folder.path())), noted(folder.path()).len());
    assert_eq!(play_here(folder.path(), 0), *answer, "at {kill_at}");
    assert_eq!(logs(folder.path()), whole, "at {kill_at}");
    let again = noted(folder.path()).split_off(before);
    assert!(again.iter().all(|step| !kept.contains(step)), "at {kill_at}: {again:?} again after {kept:?}");
    true
}
