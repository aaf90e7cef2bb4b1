//! What a script gets for a call: the whole result, its text, the plain text of a file, or paths.
//!
//! A tool that failed is an answer and not an exception, so that a script can look at it; only where an answer has no
//! room for a failure (the text of a file, a list of paths) is one thrown. Nothing is passed off as the whole of a
//! file or a list that it is not.

use rquickjs::{Ctx, Object, Value};
use serde_json::{Map, Value as Json};

use super::value::{Kit, give};
use crate::outcome::ToolOutcome;

/// What of a call's arguments its answer is judged by.
pub(super) struct CallWindow {
    /// Whether the caller named how many lines it wants.
    pub(super) limit: Option<u64>,
}

/// What a call is answered with; the numbers stand in the prelude.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// `{name, output, text, exitCode, success, truncated, metadata, error}`.
    Result,
    /// What the tool said.
    Text,
    /// The lines of a file, as they stand in it.
    File,
    /// A page of paths.
    Paths,
}

impl Shape {
    pub(super) fn of(number: i32) -> Self {
        match number {
            1 => Self::Text,
            2 => Self::File,
            3 => Self::Paths,
            _ => Self::Result,
        }
    }
}

/// The answer, or what to throw.
///
/// # Errors
/// What the engine says when it has no room.
pub(super) fn answer<'js>(
    ctx: &Ctx<'js>,
    kit: &Kit<'js>,
    shape: Shape,
    tool: &str,
    window: &CallWindow,
    mut outcome: ToolOutcome,
    output_bytes_max: usize,
) -> rquickjs::Result<Result<Value<'js>, String>> {
    let whole_bytes = outcome.output.len();
    outcome.output.truncate(outcome.output.floor_char_boundary(output_bytes_max.min(whole_bytes)));
    let cut = outcome.output.len() < whole_bytes;
    let truncated = cut || is_projected(&outcome.metadata);
    let text = |text: &str| rquickjs::String::from_str(ctx.clone(), text).map(rquickjs::String::into_value);
    Ok(match shape {
        Shape::Text => Ok(text(&outcome.output)?),
        Shape::File | Shape::Paths if !outcome.is_success() => {
            Err(format!("{tool} failed: {}", outcome.output.trim_end()))
        }
        Shape::File | Shape::Paths if truncated => Err(format!(
            "{tool} gave {whole_bytes} bytes, more than reach a script at a time (limits.maxOutputBytes is \
             {output_bytes_max}); ask for less at a time with limit"
        )),
        Shape::File => match lines_of_file(&outcome, window) {
            Ok(plain) => Ok(text(&plain)?),
            Err(problem) => Err(problem),
        },
        Shape::Paths => Ok(give(ctx, kit, &page_of_paths(&outcome))?),
        Shape::Result => {
            let result = Object::new(ctx.clone())?;
            let output = text(&outcome.output)?;
            result.set("name", tool)?;
            result.set("output", output.clone())?;
            result.set("text", output)?;
            result.set("exitCode", outcome.exit_code)?;
            result.set("success", outcome.is_success())?;
            result.set("truncated", truncated)?;
            result.set("metadata", give(ctx, kit, &Json::Object(outcome.metadata))?)?;
            let error = outcome.error.and_then(|kind| serde_json::to_value(kind).ok()).unwrap_or_default();
            result.set("error", give(ctx, kit, &error)?)?;
            Ok(result.into_value())
        }
    })
}

/// Whether the evidence of a result says that its text is not the whole.
fn is_projected(metadata: &Map<String, Json>) -> bool {
    let evidence = metadata.get("a3s_tool_result_evidence");
    let loss = evidence.and_then(|evidence| evidence.get("loss_mode")).and_then(Json::as_str);
    loss.is_some_and(|loss| loss != "none")
}

/// The plain text behind numbered lines.
fn lines_of_file(outcome: &ToolOutcome, window: &CallWindow) -> Result<String, String> {
    let range = outcome.metadata.get("range");
    let number = |key: &str| range.and_then(|range| range.get(key)).and_then(Json::as_u64);
    let Some(returned) = number("returned_lines") else {
        return Err("this is no text file; read it with ctx.read and look at the result".to_owned());
    };
    let cut: Vec<&Json> = outcome.metadata.get("cut_lines").and_then(Json::as_array).into_iter().flatten().collect();
    if let Some(line) = cut.first() {
        return Err(format!("line {line} is too long to be read whole; use ctx.bash to take the part that you need"));
    }
    if let Some(next) = number("next_offset")
        && window.limit.is_none_or(|limit| returned < limit)
    {
        return Err(format!(
            "the file goes on behind its first {next} lines, more than one call reads; read it piece by piece with \
             offset and limit"
        ));
    }
    let mut text = String::with_capacity(outcome.output.len());
    let mut rest = outcome.output.as_str();
    for _ in 0..returned {
        let (line, after) = rest.split_once('\n').unwrap_or((rest, ""));
        let Some((_, line)) = line.split_once('\t') else {
            return Err("what read gave has another form than numbered lines; use ctx.read".to_owned());
        };
        text.push_str(line);
        text.push('\n');
        rest = after;
    }
    Ok(text)
}

/// The paths of one page of `search` in glob mode, and where the next one begins.
fn page_of_paths(outcome: &ToolOutcome) -> Json {
    let page = outcome.metadata.get("page");
    let returned = page.and_then(|page| page.get("returned_items")).and_then(Json::as_u64).unwrap_or_default();
    let cursor = page.and_then(|page| page.get("next_cursor")).cloned().unwrap_or_default();
    let returned = usize::try_from(returned).unwrap_or(usize::MAX);
    let paths: Vec<&str> = outcome.output.lines().take(returned).collect();
    serde_json::json!({"paths": paths, "cursor": cursor})
}
