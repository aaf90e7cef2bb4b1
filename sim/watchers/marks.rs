//! What a call that changes files put down is there: all of it once it was told, all of it or nothing always, once at the
//! most, and for the calls of one batch in their order. What somebody outside wrote is never lost.
//!
//! Words of the form `mark-…` in what a call writes stand for its work. A play that uses them takes none away again.
//!
//! Where several changes are made one by one, a crash may leave some of them, and so may a second failure on the way back;
//! then the call names the files that it could not put back, and its marks may be in those and nowhere else.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;
use toolwarden::event::EventKind;
use toolwarden_tools::ids::InvocationId;

use super::must;
use crate::sight::{Aftermath, Call, Sight, Watcher};
use crate::twins::files::disk::is_temporary;

/// How every mark begins.
const BEGINNING: &str = "mark-";
/// Most batches whose order is looked at.
const BATCHES_MAX: usize = 256;

/// The calls that put marks down.
#[derive(Debug, Default)]
pub struct Marks {
    /// Several changes are made one by one here: a crash may leave some of them.
    plain: bool,
    crashed: bool,
    calls: BTreeMap<InvocationId, Written>,
    /// The marks of each batch, in the order of its calls.
    batches: Vec<Vec<String>>,
    outside: Vec<String>,
}

#[derive(Debug)]
struct Written {
    marks: Vec<String>,
    told: bool,
    /// The files that it says it could not put back.
    unrestored: BTreeSet<String>,
}

impl Marks {
    /// For a play whose several changes are made together, or one by one.
    pub fn new(plain: bool) -> Self {
        Self { plain, ..Self::default() }
    }

    fn start(&mut self, id: &InvocationId, tool: &str, arguments: &Value) {
        let tool = tool.trim_start_matches("broken_");
        if tool == "batch" && self.batches.len() < BATCHES_MAX {
            let calls = arguments.get("invocations").and_then(Value::as_array).into_iter().flatten();
            let of =
                |call: &Value| written(call.get("tool")?.as_str()?.trim_start_matches("broken_"), call.get("args")?);
            self.batches.push(calls.filter_map(of).flatten().collect());
        }
        if let Some(marks) = written(tool, arguments).filter(|marks| !marks.is_empty()) {
            self.calls.insert(id.clone(), Written { marks, told: false, unrestored: BTreeSet::new() });
        }
    }
}

/// The marks that a call writes; none for a tool that writes nothing.
fn written(tool: &str, arguments: &Value) -> Option<Vec<String>> {
    let text = |key: &str| arguments.get(key).and_then(Value::as_str).unwrap_or_default();
    let added = |diff: &str| diff.lines().filter(|line| line.starts_with('+')).collect::<Vec<_>>().join("\n");
    match tool {
        "edit" => Some(marks(text("new_string")).map(|(_, mark)| mark).collect()),
        "write" => Some(marks(text("content")).map(|(_, mark)| mark).collect()),
        "patch" => Some(marks(&added(text("diff"))).map(|(_, mark)| mark).collect()),
        _ => None,
    }
}

/// The marks of a text, with where they stand.
fn marks(text: &str) -> impl Iterator<Item = (usize, String)> + '_ {
    text.match_indices(BEGINNING).map(|(at, _)| {
        let is_part = |letter: &char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || *letter == '-';
        (at, text[at..].chars().take_while(is_part).collect())
    })
}

impl Watcher for Marks {
    fn name(&self) -> &'static str {
        "marks"
    }

    fn promise(&self) -> &'static str {
        "a change is there whole and once, or not at all, and in its turn"
    }

    fn see(&mut self, _at: Duration, sight: &Sight<'_>) -> Result<(), String> {
        match sight {
            Sight::Entry(entry) => match &entry.event.kind {
                EventKind::ToolExecutionStart { id, name, args } => self.start(id, name.as_str(), args),
                EventKind::ToolEnd(result) => {
                    if let Some(call) = self.calls.get_mut(&result.id) {
                        call.told = result.is_success();
                        let named = result.metadata.get("unrestored").and_then(Value::as_array).into_iter().flatten();
                        call.unrestored = named.filter_map(Value::as_str).map(str::to_owned).collect();
                    }
                }
                _ => {}
            },
            Sight::Outside { mark, .. } => self.outside.push((*mark).to_owned()),
            Sight::Crashed => self.crashed = true,
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self, aftermath: &Aftermath) -> Result<(), String> {
        // Not everybody who has large files has marks in them.
        if self.calls.is_empty() && self.outside.is_empty() && self.batches.iter().all(Vec::is_empty) {
            return Ok(());
        }
        let mut places: BTreeMap<String, Vec<(&str, usize)>> = BTreeMap::new();
        for (path, bytes) in aftermath.files.iter().filter(|(path, _)| !is_temporary(path)) {
            for (at, mark) in marks(&String::from_utf8_lossy(bytes)) {
                places.entry(mark).or_default().push((path, at));
            }
        }
        let count = |mark: &String| places.get(mark).map_or(0, Vec::len);
        for (id, call) in &self.calls {
            for mark in &call.marks {
                must(count(mark) <= 1, || format!("{mark} of {} is there {} times", Call(id), count(mark)))?;
                must(!call.told || count(mark) == 1, || {
                    format!("{} was told to be done, and {mark} is not there", Call(id))
                })?;
            }
            let there = call.marks.iter().filter(|mark| count(mark) > 0).count();
            let is_told = |mark: &String| {
                let mut at = places.get(mark).into_iter().flatten();
                at.all(|(path, _)| call.unrestored.contains(*path))
            };
            let may_be_half = self.plain && (self.crashed || call.marks.iter().all(is_told));
            must(there == 0 || there == call.marks.len() || may_be_half, || {
                format!("{} is there in part: {there} of {} marks", Call(id), call.marks.len())
            })?;
        }
        for mark in &self.outside {
            must(count(mark) == 1, || format!("{mark}, which somebody outside wrote, is there {} times", count(mark)))?;
        }
        for batch in &self.batches {
            let mut last: BTreeMap<&str, (usize, &String)> = BTreeMap::new();
            for mark in batch {
                let Some((path, at)) = places.get(mark).and_then(|places| places.first()) else { continue };
                if let Some((before, earlier)) = last.insert(path, (*at, mark)) {
                    must(before < *at, || format!("in {path}, {mark} stands before {earlier}, which came first"))?;
                }
            }
        }
        Ok(())
    }
}
