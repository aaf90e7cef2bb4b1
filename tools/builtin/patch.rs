//! `patch`: a unified diff, carried out on one file or many.
//!
//! Everything is worked out in memory first; then all files change or none does, also when one of them fails or the
//! process dies half-way. A hunk goes where its lines stand, never to a place that only might be meant, and what was
//! not as the diff stated is told. Bytes outside of the hunks stay: encoding, byte-order mark, line ends, the end of
//! the file, mode, links.

pub mod diff;
pub mod header;
mod intent;
pub mod place;
mod plan;
mod report;
pub mod splice;

use std::fmt::Write as _;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use self::diff::Diff;
use self::intent::{Intent, IntentError, intents};
use self::plan::{Planned, Planning};
use super::reach::{self, Step, Stop, fault, wrong};
use super::target::{CHANGED_BYTES_MAX, Target};
use crate::cancellation::CancelReason;
use crate::context::ToolContext;
use crate::declaration::{Capabilities, OutputKind};
use crate::digest::Digest;
use crate::effects::files::Expected;
use crate::effects::files::together::{FileChange, TogetherError};
use crate::ids::ToolName;
use crate::outcome::ToolOutcome;
use crate::tool::{FixedSpec, Lane, Needs, Subject, Tool, ToolFuture, ToolSpec};
use crate::workspace_path::{PATH_BYTES_MAX, WorkspacePath};

/// How many dry runs may run beside each other.
const PARALLELISM: usize = 16;
/// Most files named in a message.
const NAMED_FILES_MAX: usize = 32;

/// The tool.
pub struct PatchTool;

/// The tool, ready to register.
pub fn tool() -> Arc<dyn Tool> {
    Arc::new(PatchTool)
}

#[derive(Deserialize)]
struct Arguments {
    diff: String,
    file_path: Option<String>,
    #[serde(default)]
    strict: bool,
    #[serde(default)]
    dry_run: bool,
}

static SPEC: FixedSpec = FixedSpec::new(spec);

fn spec() -> ToolSpec {
    ToolSpec {
        name: ToolName::new("patch"),
        description: format!(
            "Change several places of a file, or several files, by a unified diff (--- and +++ lines with the names, \
             @@ -LINE,COUNT +LINE,COUNT @@ before each hunk). Use edit for one text in one file, write for a whole \
             file. All files change or none does. A new file has --- /dev/null, a deleted one +++ /dev/null and all of \
             its lines with -, a renamed one the lines \"rename from A\" and \"rename to B\" before its ---. With \
             file_path the diff is for that file and needs no names. Lines with a blank or - must stand in the file \
             exactly as in the diff, copied from read without the line numbers. A wrong line number is mended when \
             the lines stand in one place only, and wrong counts are; the result says so, and strict refuses it. \
             Line ends, byte-order mark, encoding and the end of the file stay as they are. A file that changed \
             since this session last read it is not patched: read it again first. dry_run writes nothing. Files up \
             to {} MiB.",
            CHANGED_BYTES_MAX / (1024 * 1024)
        ),
        parameters: json!({
            "type": "object",
            "additionalProperties": false,
            "required": ["diff"],
            "properties": {
                "diff": {"type": "string", "minLength": 1, "description": "The unified diff, of one file or many."},
                "file_path": {
                    "type": "string", "minLength": 1, "maxLength": PATH_BYTES_MAX,
                    "description": "The one file that the diff is for, relative to the workspace; names in the diff \
                        must be the same. Leave it out for a diff of several files.",
                },
                "strict": {
                    "type": "boolean", "default": false,
                    "description": "Refuse whatever is not exactly as the diff states it.",
                },
                "dry_run": {"type": "boolean", "default": false, "description": "Say what it would do, write nothing."},
            },
        }),
        model_parameters: None,
        model_visible: true,
        lane: Lane::Execute,
        needs: Needs { write: true, ..Needs::default() },
    }
}

fn is_dry_run(arguments: &Value) -> bool {
    arguments.get("dry_run").and_then(Value::as_bool).unwrap_or(false)
}

impl Tool for PatchTool {
    fn spec(&self) -> &ToolSpec {
        SPEC.get()
    }

    fn fixed(&self) -> Option<&'static FixedSpec> {
        Some(&SPEC)
    }

    fn capabilities(&self, arguments: &Value) -> Capabilities {
        let now = if is_dry_run(arguments) {
            Capabilities::parallel_safe_read(PARALLELISM)
        } else {
            Capabilities::conservative()
        };
        Capabilities { output_kind: OutputKind::Diff, ..now }
    }

    /// Every file that the diff names: all of them must be allowed. A diff that cannot be read touches none.
    fn subject(&self, arguments: &Value) -> Subject {
        let mut paths: Vec<String> =
            arguments.get("file_path").and_then(Value::as_str).into_iter().map(str::to_owned).collect();
        let text = arguments.get("diff").and_then(Value::as_str).unwrap_or_default();
        if let Ok(diff) = Diff::parse(text.as_bytes()) {
            paths.extend(intent::names(&diff).into_iter().filter(|name| !paths.contains(name)).collect::<Vec<_>>());
        }
        Subject::Paths { paths, write: !is_dry_run(arguments) }
    }

    fn call<'a>(&'a self, ctx: &'a ToolContext, arguments: Value) -> ToolFuture<'a> {
        Box::pin(async move { patch(ctx, arguments).await.unwrap_or_else(|ended| *ended) })
    }
}

async fn patch(ctx: &ToolContext, arguments: Value) -> Step<ToolOutcome> {
    let wanted = Arguments::deserialize(arguments).map_err(|error| wrong(error.to_string()))?;
    let (intents, named) = read(&wanted).map_err(|error| wrong(format!("{error}; nothing was written")))?;
    let texts: Vec<String> =
        intents.iter().flat_map(|intent| std::iter::once(&intent.path).chain(&intent.to)).cloned().collect();
    let targets = Target::take_all(ctx, "patch", &texts).await?;
    refuse_twice(&targets)?;
    if let Some(target) = targets.first() {
        refuse_other_names(ctx, target, &named)?;
    }
    let size_bytes = wanted.diff.len() as u64 + targets.iter().map(Target::size_hint_bytes).sum::<u64>();
    // Several files are synced several times each.
    let short = size_bytes <= reach::INLINE_BYTES_MAX && targets.len() <= 1;
    reach::blocking(ctx, "patch", short, move |stop| carry_out(&wanted, &intents, targets, stop)).await?
}

fn read(wanted: &Arguments) -> Result<(Vec<Intent>, Vec<String>), IntentError> {
    let diff = Diff::parse(wanted.diff.as_bytes())?;
    intents(&diff, wanted.file_path.as_deref())
}

/// Refuses a diff in which one file has two parts, under whichever names.
fn refuse_twice(targets: &[Target]) -> Step<()> {
    for (index, target) in targets.iter().enumerate() {
        if let Some(other) = targets[..index].iter().find(|other| other.canonical() == target.canonical()) {
            let (one, two) = (other.path(), target.path());
            let both =
                if one == two { format!("{one} is named twice") } else { format!("{one} and {two} are one file") };
            return Err(wrong(format!(
                "{both} in this diff; nothing was written. Put all hunks of a file under one pair of --- and +++ lines"
            )));
        }
    }
    Ok(())
}

/// Refuses a diff that names another file than the one that it was sent for.
fn refuse_other_names(ctx: &ToolContext, target: &Target, named: &[String]) -> Step<()> {
    for name in named {
        let path = reach::path(ctx, name)?;
        let canonical = target.files().canonical(&path).map_err(|error| fault(&error))?;
        if canonical != *target.canonical() {
            return Err(wrong(format!(
                "file_path is {} and the diff names {path}; nothing was written. Leave file_path out, or mend the name",
                target.path()
            )));
        }
    }
    Ok(())
}

fn carry_out(wanted: &Arguments, intents: &[Intent], targets: Vec<Target>, stop: &Stop) -> Step<ToolOutcome> {
    let diff = Diff::parse(wanted.diff.as_bytes()).map_err(|error| wrong(error.to_string()))?;
    let mut planning = Planning { strict: wanted.strict, stop, held_bytes: 0 };
    let mut targets = targets.into_iter();
    let mut planned = Vec::with_capacity(intents.len());
    for (section, intent) in diff.sections.iter().zip(intents) {
        // One target for each path of each intent, in their order.
        let Some(target) = targets.next() else { break };
        let to = intent.to.as_ref().and_then(|_| targets.next());
        planned.push(planning.file(section, intent, target, to)?);
    }
    if planned.iter().all(Planned::is_unchanged) {
        return Err(wrong(
            "the diff changes nothing: every file holds what it would hold already; nothing was written",
        ));
    }
    if !wanted.dry_run {
        make(&planned, stop)?;
    }
    Ok(report::outcome(&planned, wanted.dry_run))
}

/// Makes all planned changes, or none.
fn make(planned: &[Planned], stop: &Stop) -> Step<()> {
    let changing = || planned.iter().filter(|file| !file.is_unchanged());
    let changes: Vec<FileChange<'_>> = changing().flat_map(Planned::changes).collect();
    let Some(first) = planned.first() else { return Ok(()) };
    match changes.as_slice() {
        // One new content needs nothing but its own rename.
        [FileChange::Put { bytes, expected, mode: None, .. }] => {
            let file = changing().next().unwrap_or(first);
            let now = file.old.as_ref().filter(|_| *expected != Expected::Absent);
            file.to.as_ref().unwrap_or(&file.target).put(now, bytes, stop)?;
            return Ok(());
        }
        several => {
            let go_on = || stop.reason().is_none();
            first.target.files().change_together(several, &go_on).map_err(|failed| refused(&failed, stop))?;
        }
    }
    for file in planned {
        let now = file.to.as_ref().unwrap_or(&file.target);
        match (&file.new, &file.old) {
            (Some(new), _) => now.record(Digest::of(new)),
            (None, Some(old)) if file.to.is_some() => now.record(old.digest.clone()),
            _ => {}
        }
    }
    Ok(())
}

/// The outcome of changes that were not made.
fn refused(failed: &TogetherError, stop: &Stop) -> Box<ToolOutcome> {
    let mut outcome = if failed.is_stop() {
        reach::ended("patch", &stop.reason().unwrap_or(CancelReason::CallerGone))
    } else {
        fault(&failed.error)
    };
    let list = |paths: &mut dyn Iterator<Item = &WorkspacePath>| -> Vec<String> {
        paths.take(NAMED_FILES_MAX).map(ToString::to_string).collect()
    };
    let restored = list(&mut failed.restored.iter());
    let unrestored = list(&mut failed.unrestored.iter().map(|(path, _)| path));
    if unrestored.is_empty() {
        outcome.output.push_str("; no file is changed");
    }
    if !restored.is_empty() {
        let _ = write!(outcome.output, ". Changed and put back: {}", restored.join(", "));
    }
    if !unrestored.is_empty() {
        let _ = write!(outcome.output, ". Changed and NOT put back: {}; look at them", unrestored.join(", "));
    }
    Box::new(outcome.with("restored", json!(restored)).with("unrestored", json!(unrestored)))
}

#[cfg(test)]
mod fuzz_tests;
#[cfg(test)]
mod tests;
