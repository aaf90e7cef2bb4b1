//! Runs whose records are refused, or whose calls end before a record: what is done is recorded later, and not done again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::{Stage, facts, script, stage};
use crate::builtin::dynamic_workflow::DynamicWorkflowTool;
use crate::builtin::dynamic_workflow::unrecorded::run_key;
use crate::builtin::testing::call;
use crate::cancellation::{CancelReason, Cancellation};
use crate::context::Invoke;
use crate::effects::files::{Expected, FileError, FileStat, Files, FolderEntry, Links, LogFile, OpenFile, Replacement};
use crate::outcome::ToolOutcome;
use crate::workflow::event::Entry;
use crate::workspace::local::LocalFiles;
use crate::workspace::{Workspace, WorkspaceCapabilities};
use crate::workspace_path::WorkspacePath;

/// A real folder in whose logs one record is refused: half of it is written, and then the disk is full.
struct FullOnce {
    files: LocalFiles,
    /// How many records are taken before that.
    room: Arc<AtomicUsize>,
}

struct FullLog {
    file: Box<dyn LogFile>,
    room: Arc<AtomicUsize>,
}

impl Files for FullOnce {
    fn canonical(&self, path: &WorkspacePath) -> Result<WorkspacePath, FileError> {
        self.files.canonical(path)
    }

    fn stat(&self, path: &WorkspacePath, links: Links) -> Result<FileStat, FileError> {
        self.files.stat(path, links)
    }

    fn open(&self, path: &WorkspacePath) -> Result<Box<dyn OpenFile>, FileError> {
        self.files.open(path)
    }

    fn list(&self, path: &WorkspacePath) -> Result<Vec<FolderEntry>, FileError> {
        self.files.list(path)
    }

    fn replace(&self, path: &WorkspacePath, replacement: &Replacement<'_>) -> Result<FileStat, FileError> {
        self.files.replace(path, replacement)
    }

    fn remove(&self, path: &WorkspacePath, expected: &Expected) -> Result<(), FileError> {
        self.files.remove(path, expected)
    }

    fn open_log(&self, path: &WorkspacePath) -> Result<Box<dyn LogFile>, FileError> {
        Ok(Box::new(FullLog { file: self.files.open_log(path)?, room: Arc::clone(&self.room) }))
    }
}

impl LogFile for FullLog {
    fn read(&mut self, bytes_max: u64) -> std::io::Result<Vec<u8>> {
        self.file.read(bytes_max)
    }

    fn append(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        // Beyond zero it wraps to a number that is never come to: the disk is full once.
        if self.room.fetch_sub(1, Ordering::Relaxed) == 0 {
            self.file.append(&bytes[..bytes.len() / 2])?;
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        self.file.append(bytes)
    }

    fn cut(&mut self, bytes: u64) -> std::io::Result<()> {
        self.file.cut(bytes)
    }
}

/// A stage whose logs take so many records before one is refused.
fn full_at(room: usize) -> Stage {
    let mut stage = stage();
    let files = FullOnce { files: LocalFiles::open(stage.folder.path()).unwrap().0, room: Arc::new(room.into()) };
    stage.ctx.workspace = Workspace::new("/ws", WorkspaceCapabilities::local_default(), Arc::new(files), None);
    stage
}

/// A step, one that fails once, and a task.
fn short() -> Value {
    let source = "
async function run(ctx, inputs) {
  if (inputs.kind === 'step') {
    if (inputs.input.fails >= inputs.attempt) throw new Error('not yet');
    return (await ctx.tool('work', inputs.input)).output;
  }
  const { steps } = inputs;
  if (!steps.a) return { type: 'schedule_step', step_id: 'a', step_name: 'work', input: { what: 'a' } };
  if (!steps.odd) return { type: 'schedule_step', step_id: 'odd', step_name: 'work', retry: { max_attempts: 2 },
    input: { what: 'odd', fails: 1 } };
  if (!steps.child) return { type: 'schedule_step', step_id: 'child', step_name: 'task', input: { what: 'child' } };
  return { type: 'complete', output: [steps.a.output, steps.odd.output, steps.child.output.output] };
}";
    json!({"source": source, "run_id": "short"})
}

// Found by the simulation: a step whose end could not be recorded did its work again at the next call.
#[tokio::test]
async fn a_step_whose_record_was_refused_is_recorded_by_the_next_call_and_does_not_run_again() {
    let whole = full_at(usize::MAX);
    let tool = DynamicWorkflowTool::new();
    let done = call(&tool, &whole.ctx, short()).await;
    assert!(done.is_success(), "{}", done.output);
    assert_eq!(facts(&done)["unrecorded"], json!([]));
    let (mut refused, mut kept) = (0, 0);
    for room in 0.. {
        let stage = full_at(room);
        let tool = DynamicWorkflowTool::new();
        let first = call(&tool, &stage.ctx, short()).await;
        if first.is_success() {
            break;
        }
        refused += 1;
        assert!(first.output.contains("the log of the run cannot be used"), "{room}: {}", first.output);
        let unrecorded = facts(&first)["unrecorded"].as_array().unwrap().len();
        assert_eq!(first.output.contains("done, and not in the log"), unrecorded > 0, "{room}: {}", first.output);
        kept += unrecorded;
        let again = call(&tool, &stage.ctx, short()).await;
        assert!(again.is_success(), "{room}: {}", again.output);
        assert_eq!(stage.log("short"), whole.log("short"), "{room}");
        assert_eq!(stage.done(), whole.done(), "{room}: nothing is done twice");
        assert_eq!(facts(&again)["unrecorded"], json!([]));
    }
    // Three steps, one of which failed once before it was done.
    assert_eq!((refused, kept), (13, 4));
}

// Another process knows nothing of it, and can only do the step again, under the same key.
#[tokio::test]
async fn another_process_does_the_step_again() {
    let source = script(
        "return steps.a ? {type: 'complete', output: steps.a.output}
             : {type: 'schedule_step', step_id: 'a', step_name: 'work', input: {what: 'a'}}",
    );
    let asked = json!({"source": source, "run_id": "r"});
    // The run, its step, the step's start; then its end is refused.
    let stage = full_at(3);
    let first = call(&DynamicWorkflowTool::new(), &stage.ctx, asked.clone()).await;
    assert_eq!(facts(&first)["unrecorded"], json!(["a"]), "{}", first.output);
    assert!(call(&DynamicWorkflowTool::new(), &stage.ctx, asked).await.is_success());
    assert_eq!(stage.done(), ["work:a", "work:a"]);
}

/// A call that is cancelled while its first step hangs and its second one is done.
async fn cut_off(stage: &Stage, tool: &DynamicWorkflowTool, asked: &Value) -> ToolOutcome {
    let cancel = async {
        stage.twin.hanging.notified().await;
        let first = stage.log("c").lines().next().map(serde_json::from_str::<Entry>).unwrap().unwrap();
        let key = run_key(stage.ctx.workspace.display_root(), &first);
        while tool.unrecorded.steps(&key) != ["b"] {
            tokio::task::yield_now().await;
        }
        stage.ctx.cancel.cancel(CancelReason::Requested);
    };
    tokio::join!(call(tool, &stage.ctx, asked.clone()), cancel).0
}

#[tokio::test]
async fn a_step_that_was_done_before_its_turn_is_not_done_again_after_a_cancel_of_the_call() {
    let source = script(
        "if (inputs.cancel) return {type: 'complete'};
         if (!steps.a) return {type: 'schedule_steps', steps: [
             {step_id: 'a', step_name: inputs.input.first, input: {what: 'a'}},
             {step_id: 'b', step_name: 'work', input: {what: 'b'}}]};
         return {type: 'complete', output: steps.b.output.what}",
    );
    let asked = json!({"source": source, "run_id": "c", "input": {"first": "hang"}});
    for wants_its_end in [false, true] {
        let mut stage = stage();
        let tool = DynamicWorkflowTool::new();
        let first = cut_off(&stage, &tool, &asked).await;
        assert_eq!((&facts(&first)["status"], &facts(&first)["unrecorded"]), (&json!("running"), &json!(["b"])));
        // The next call: the step that hung does so again, until somebody ends that; or the run is to end.
        stage.ctx.cancel = Cancellation::new();
        stage.twin.cancel = stage.ctx.cancel.clone();
        stage.ctx.invoke = Some(Arc::new(stage.twin.clone()) as Arc<dyn Invoke>);
        if wants_its_end {
            let mut ending = asked.clone();
            ending["cancel"] = json!("nobody wants it");
            let done = call(&tool, &stage.ctx, ending).await;
            assert!(done.output.contains("- a (hang): failed\n- b (work): completed"), "{}", done.output);
        } else {
            cut_off(&stage, &tool, &asked).await;
        }
        let done = stage.done();
        assert_eq!(done.iter().filter(|call| *call == "work:b").count(), 1, "{done:?}");
    }
}
