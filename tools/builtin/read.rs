//! `read`: lines of one file, or of several within one budget.
//!
//! A small file is read inline, a large one on the blocking pool through one buffer; nothing is held whole. In which
//! state the session saw a file is remembered, so that a later write over a change is refused: by digest, and of a
//! large file by its stamp. Where its lines begin is remembered too, so that the next window is near at hand.

mod batch;
mod line_index;
mod window;

use std::fmt::Write as _;
use std::io::{Read as _, SeekFrom};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use self::line_index::{Known, LineIndexes};
use self::window::{BUFFER_BYTES, LINE_BYTES_MAX, Wanted, Window, WindowError};
use super::reach::{self, Step, Stop, fault, wrong};
use crate::context::ToolContext;
use crate::declaration::Capabilities;
use crate::digest::{Digest, RunningDigest};
use crate::effects::files::OpenFile;
use crate::ids::ToolName;
use crate::outcome::{Attachment, ToolErrorKind, ToolOutcome};
use crate::tool::{FixedSpec, Lane, Needs, Subject, Tool, ToolFuture, ToolSpec};
use crate::workspace_path::{PATH_BYTES_MAX, WorkspacePath};

/// Most lines of one call.
pub const READ_LINES_MAX: u64 = 2000;
/// Most text of one call, in bytes.
pub const OUTPUT_BYTES_MAX: usize = 100 * 1024;
/// Up to this size a file is read to its end for its digest, whatever lines are wanted.
pub const WHOLE_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// From this size on where lines begin is remembered.
const INDEXED_BYTES_MIN: u64 = 256 * 1024;
/// Up to this size a file that changed just now is read once more for its digest: its stamp says too little yet.
const FRESH_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Largest image that is attached, in bytes.
pub const IMAGE_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Room that is kept for the notes behind the lines, in bytes.
const NOTES_BYTES: usize = 1024;
/// Facts about the lines of one file.
const RANGE_FACTS: usize = 9;
/// Facts about one read, with room for what is added when it settles.
const READ_FACTS: usize = 8;
/// How many reads may run beside each other.
const PARALLELISM: usize = 16;

/// The tool.
pub struct ReadTool {
    indexes: Arc<LineIndexes>,
}

/// The tool, ready to register.
pub fn tool() -> Arc<dyn Tool> {
    Arc::new(ReadTool { indexes: Arc::default() })
}

#[derive(Deserialize)]
struct Arguments {
    file_path: Option<String>,
    offset: Option<u64>,
    limit: Option<u64>,
    files: Option<Vec<batch::Entry>>,
    max_output_bytes: Option<usize>,
}

static SPEC: FixedSpec = FixedSpec::new(spec);

fn spec() -> ToolSpec {
    let window = json!({
        "offset": {"type": "integer", "minimum": 0, "description": "Lines to skip, so the first line has offset 0."},
        "limit": {
            "type": "integer", "minimum": 1, "maximum": READ_LINES_MAX,
            "description": format!("Most lines to show; {READ_LINES_MAX} when left out."),
        },
    });
    let model = json!({
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "file_path": {
                "type": "string", "minLength": 1, "maxLength": PATH_BYTES_MAX,
                "description": "The file, relative to the workspace. Give this or files.",
            },
            "offset": window["offset"],
            "limit": window["limit"],
            "files": {
                "type": "array", "minItems": 1, "maxItems": batch::FILES_MAX,
                "description": "Several files in one call instead of file_path; each with its own offset and limit.",
                "items": {
                    "type": "object",
                    "additionalProperties": false,
                    "required": ["path"],
                    "properties": {
                        "path": {"type": "string", "minLength": 1, "maxLength": PATH_BYTES_MAX},
                        "offset": window["offset"],
                        "limit": window["limit"],
                    },
                },
            },
            "max_output_bytes": {
                "type": "integer", "minimum": batch::BUDGET_BYTES_MIN, "maximum": batch::BUDGET_BYTES_MAX,
                "default": batch::BUDGET_BYTES_DEFAULT,
                "description": "With files: most bytes of text for all of them together.",
            },
        },
    });
    let mut parameters = model.clone();
    parameters["oneOf"] = json!([{"required": ["file_path"]}, {"required": ["files"]}]);
    ToolSpec {
        name: ToolName::new("read"),
        description: format!(
            "Read a text file, or several with files. Each line is shown as its number, a tab, and its text; number \
             and tab are not part of the file. At most {READ_LINES_MAX} lines and {} KiB come back at a time, and a \
             last line in brackets gives the offset to go on with when there is more. Lines longer than \
             {LINE_BYTES_MAX} bytes are cut and named. Files of any size work; other encodings are decoded and \
             named; png, jpeg, gif and webp images are attached. Use search to find where something stands, ls for \
             folders. Read a file before you write or edit it: a change made since is then noticed.",
            OUTPUT_BYTES_MAX / 1024
        ),
        parameters,
        model_parameters: Some(model),
        model_visible: true,
        lane: Lane::Query,
        needs: Needs::default(),
    }
}

impl Tool for ReadTool {
    fn spec(&self) -> &ToolSpec {
        SPEC.get()
    }

    fn fixed(&self) -> Option<&'static FixedSpec> {
        Some(&SPEC)
    }

    fn capabilities(&self, _arguments: &Value) -> Capabilities {
        Capabilities::read_only_paginated(PARALLELISM)
    }

    fn subject(&self, arguments: &Value) -> Subject {
        let one = arguments.get("file_path").and_then(Value::as_str);
        let many = arguments.get("files").and_then(Value::as_array).into_iter().flatten();
        let many = many.filter_map(|entry| entry.get("path").and_then(Value::as_str));
        Subject::Paths { paths: one.into_iter().chain(many).map(str::to_owned).collect(), write: false }
    }

    fn call<'a>(&'a self, ctx: &'a ToolContext, arguments: Value) -> ToolFuture<'a> {
        Box::pin(async move { read(ctx, &self.indexes, arguments).await.unwrap_or_else(|ended| *ended) })
    }
}

async fn read(ctx: &ToolContext, indexes: &Arc<LineIndexes>, arguments: Value) -> Step<ToolOutcome> {
    let arguments = Arguments::deserialize(arguments).map_err(|error| wrong(error.to_string()))?;
    match (arguments.file_path, arguments.files) {
        (Some(_), Some(_)) => Err(wrong("give file_path or files, not both")),
        (None, None) => Err(wrong("file_path or files is required")),
        (None, Some(_)) if arguments.offset.or(arguments.limit).is_some() => {
            Err(wrong("offset and limit belong to file_path; with files give them inside each entry"))
        }
        (Some(_), None) if arguments.max_output_bytes.is_some() => {
            Err(wrong("max_output_bytes belongs to files; with file_path use limit"))
        }
        (None, Some(files)) => batch::read(ctx, indexes, files, arguments.max_output_bytes).await,
        (Some(path), None) => single(ctx, indexes, &path, arguments.offset, arguments.limit).await,
    }
}

async fn single(
    ctx: &ToolContext,
    indexes: &Arc<LineIndexes>,
    text: &str,
    offset: Option<u64>,
    limit: Option<u64>,
) -> Step<ToolOutcome> {
    let path = reach::path(ctx, text)?;
    let mut file = open(ctx, &path)?;
    if let Some(media_type) = image_type(&path, file.as_mut()).map_err(|error| io_fault(&path, error))? {
        if offset.or(limit).is_some() {
            return Err(wrong(format!("{path} is an image; read it without offset and limit")));
        }
        return image(ctx, &path, file, media_type).await;
    }
    let offset = offset.unwrap_or(0);
    let requested_limit = limit.unwrap_or(READ_LINES_MAX);
    let applied_limit = requested_limit.min(READ_LINES_MAX);
    let wanted = Wanted { offset, limit: applied_limit, text_bytes_max: OUTPUT_BYTES_MAX - NOTES_BYTES, whole: false };
    let Shown { window: found, changed_meanwhile } = lines(ctx, indexes, path.clone(), file, wanted).await?;
    let returned_lines = found.returned_lines();
    let mut text = found.text;
    if returned_lines == 0 && !found.more {
        let total = found.total_lines.unwrap_or(0);
        if offset > total {
            return Err(wrong(format!("{path} has {}; offset {offset} lies behind its end", count(total))));
        }
        let _ = match total {
            0 => writeln!(text, "({path} is an empty file)"),
            _ => writeln!(text, "({path} has {}; nothing follows offset {offset})", count(total)),
        };
    }
    let next_offset = found.more.then(|| offset + returned_lines);
    if let Some(next) = next_offset {
        let of = found.total_lines.map_or_else(String::new, |total| format!(" of {total}"));
        let _ = writeln!(text, "[lines {}-{next}{of}; there is more, go on with offset {next}]", offset + 1);
    }
    note_cut_lines(&mut text, &found.cut_lines);
    if !found.encoding.is_certain() {
        let _ = writeln!(text, "[decoded as {}, by guess]", found.encoding);
    } else if found.replaced {
        let _ = writeln!(text, "[bytes that are not {} are shown as \u{fffd}]", found.encoding);
    }
    if changed_meanwhile {
        let _ = writeln!(text, "[{path} changed while it was read; read it again]");
    }
    // Maps of the right size: most calls of most sessions are reads.
    let mut range = Map::with_capacity(RANGE_FACTS);
    let mut put = |key: &str, value: Value| range.insert(key.to_owned(), value);
    put("offset", offset.into());
    put("requested_limit", requested_limit.into());
    put("applied_limit", applied_limit.into());
    put("returned_lines", returned_lines.into());
    put("next_offset", next_offset.into());
    put("eof", next_offset.is_none().into());
    put("total_lines", found.total_lines.into());
    put("limit_clamped", (requested_limit > applied_limit).into());
    put("output_bytes", text.len().into());
    let outcome = ToolOutcome { metadata: Map::with_capacity(READ_FACTS), ..ToolOutcome::success(text) };
    Ok(outcome
        .with("source_anchors", vec![path.to_string()])
        .with("range", range)
        .with("encoding", found.encoding.to_string())
        .with("cut_lines", found.cut_lines)
        .with("changed_meanwhile", changed_meanwhile)
        .with("content_digest", json!(found.digest)))
}

fn count(lines: u64) -> String {
    if lines == 1 { "1 line".into() } else { format!("{lines} lines") }
}

fn note_cut_lines(text: &mut String, lines: &[u64]) {
    if lines.is_empty() {
        return;
    }
    let numbers: Vec<String> = lines.iter().map(ToString::to_string).collect();
    let _ = writeln!(text, "[shown up to {LINE_BYTES_MAX} bytes only: line {}]", numbers.join(", "));
}

fn open(ctx: &ToolContext, path: &WorkspacePath) -> Step<Box<dyn OpenFile>> {
    ctx.workspace.files().open(path).map_err(|error| fault(&error))
}

/// A window, and whether it can be trusted.
struct Shown {
    window: Window,
    /// Whether somebody wrote to the file while it was read, so that the lines may be of no one state of it.
    changed_meanwhile: bool,
}

/// Reads a window of lines and remembers in which state the file was.
async fn lines(
    ctx: &ToolContext,
    indexes: &Arc<LineIndexes>,
    path: WorkspacePath,
    file: Box<dyn OpenFile>,
    wanted: Wanted,
) -> Step<Shown> {
    let size_bytes = file.stat().size_bytes;
    let (files, seen, clock) = (Arc::clone(ctx.workspace.files()), Arc::clone(&ctx.seen), Arc::clone(&ctx.clock));
    let indexes = Arc::clone(indexes);
    let work = move |stop: &Stop| {
        let mut file = file;
        let stamp = file.stat().stamp();
        let canonical = file.canonical().cloned().or_else(|| files.canonical(&path).ok());
        let indexed = canonical.as_ref().filter(|_| size_bytes >= INDEXED_BYTES_MIN);
        let known = indexed.and_then(|canonical| indexes.get(canonical, &stamp));
        let known_digest = known.as_ref().and_then(|known| known.digest.clone());
        let wanted = Wanted { whole: size_bytes <= WHOLE_BYTES_MAX && known_digest.is_none(), ..wanted };
        let fault = |error| window_fault(&path, size_bytes, error);
        let read = Window::read(file.as_mut(), size_bytes, wanted, known.as_deref(), stop);
        let (mut window, marks) = read.map_err(fault)?;
        // Nothing of this counts for a file that is being written to, but for what is remembered of its state.
        let is_settled = stamp.is_settled(clock.unix_ms());
        let same = |file: &dyn OpenFile| file.stat_now().is_ok_and(|now| now.stamp() == stamp || size_bytes == 0);
        if window.digest.is_none() {
            window.digest = known_digest;
        }
        if window.digest.is_none() && !is_settled && size_bytes > WHOLE_BYTES_MAX && size_bytes <= FRESH_BYTES_MAX {
            window.digest = Some(digest_again(&path, file.as_mut(), stop)?);
        }
        let changed_meanwhile = !same(file.as_ref());
        if changed_meanwhile {
            window.digest = None;
        }
        if let Some(canonical) = canonical {
            match &window.digest {
                Some(digest) => seen.record(canonical.clone(), digest.clone()),
                None if size_bytes > 0 => seen.record_stamp(canonical.clone(), stamp),
                None => {}
            }
            if let Some(marks) = marks.filter(|_| is_settled && !changed_meanwhile && size_bytes >= INDEXED_BYTES_MIN) {
                let (encoding, total_lines, digest) = (window.encoding, window.total_lines, window.digest.clone());
                indexes.put(&canonical, Known { stamp, encoding, marks, total_lines, digest });
            }
        }
        Ok(Shown { window, changed_meanwhile })
    };
    reach::blocking(ctx, "read", size_bytes <= reach::INLINE_BYTES_MAX, work).await?
}

/// The digest of a file, in a pass of its own: hashing on the way would make every read in the middle of a large file
/// five times slower.
fn digest_again(path: &WorkspacePath, file: &mut dyn OpenFile, stop: &Stop) -> Step<Digest> {
    let fail = |error| io_fault(path, error);
    file.seek(SeekFrom::Start(0)).map_err(fail)?;
    let mut digest = RunningDigest::default();
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        if let Some(reason) = stop.reason() {
            return Err(reach::ended("read", &reason));
        }
        match file.read(&mut buffer).map_err(fail)? {
            0 => return Ok(digest.finish()),
            bytes => digest.update(&buffer[..bytes]),
        }
    }
}

fn io_fault(path: &WorkspacePath, source: std::io::Error) -> Box<ToolOutcome> {
    fault(&crate::effects::files::FileError::Io { op: "read", path: path.to_string(), source })
}

fn window_fault(path: &WorkspacePath, size_bytes: u64, error: WindowError) -> Box<ToolOutcome> {
    match error {
        WindowError::Io(source) => io_fault(path, source),
        WindowError::Stopped(reason) => reach::ended("read", &reason),
        WindowError::Binary { kind, nul_line } => {
            let mut message = format!("{path} is binary ({kind}, {size_bytes} bytes) and cannot be shown as lines");
            if let Some(line) = nul_line {
                let _ = write!(message, "; the first NUL stands in line {line}");
                if line > 1 {
                    let _ = write!(message, ", the lines before it can be read");
                }
            }
            Box::new(ToolOutcome::error(ToolErrorKind::Unsupported { message: message.clone() }, message))
        }
    }
}

/// The media type of an image by its name and its first bytes; a text that is only named so is read as text.
fn image_type(path: &WorkspacePath, file: &mut dyn OpenFile) -> std::io::Result<Option<&'static str>> {
    let name = path.name().map(|name| name.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
    let Some((_, "png" | "jpg" | "jpeg" | "gif" | "webp")) = name.rsplit_once('.') else { return Ok(None) };
    let mut start = [0; 12];
    let mut filled = 0;
    while filled < start.len() {
        match file.read(&mut start[filled..])? {
            0 => break,
            bytes => filled += bytes,
        }
    }
    file.seek(SeekFrom::Start(0))?;
    Ok(match start {
        [0x89, b'P', b'N', b'G', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P'] => Some("image/webp"),
        _ => None,
    })
}

async fn image(
    ctx: &ToolContext,
    path: &WorkspacePath,
    mut file: Box<dyn OpenFile>,
    media_type: &'static str,
) -> Step<ToolOutcome> {
    let size_bytes = file.stat().size_bytes;
    if size_bytes > IMAGE_BYTES_MAX {
        let message =
            format!("{path} is an image of {size_bytes} bytes; up to {IMAGE_BYTES_MAX} are attached: make it smaller");
        return Err(Box::new(ToolOutcome::error(ToolErrorKind::Unsupported { message: message.clone() }, message)));
    }
    let bytes = reach::blocking(ctx, "read", size_bytes <= reach::INLINE_BYTES_MAX, move |_| {
        let mut bytes = Vec::new();
        file.as_mut().take(IMAGE_BYTES_MAX).read_to_end(&mut bytes).map(|_| bytes)
    });
    let bytes = bytes.await?.map_err(|error| io_fault(path, error))?;
    let digest = Digest::of(&bytes);
    if let Ok(canonical) = ctx.workspace.files().canonical(path) {
        ctx.seen.record(canonical, digest.clone());
    }
    let mut outcome = ToolOutcome::success(format!("[{path}: {media_type}, {} bytes, attached]\n", bytes.len()))
        .with("source_anchors", json!([path.to_string()]))
        .with("content_digest", json!(digest));
    outcome.attachments.push(Attachment { media_type: media_type.to_owned(), bytes });
    Ok(outcome)
}

#[cfg(test)]
mod tests;
