//! `download`: a file from the web into the workspace.
//!
//! The file appears when it is whole and right, in one step, and never over another one unless that is asked for. What
//! is there stays as it is until then; whatever ends the call leaves nothing behind. Addresses are judged hop by hop;
//! queries, in which keys travel, are sent and never shown.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};
use url::Url;

use super::reach::{self, Step, ended, fault, wrong};
use crate::cancellation::CancelReason;
use crate::context::ToolContext;
use crate::declaration::{Capabilities, OutputKind};
use crate::digest::{Digest, RunningDigest};
use crate::download::probe::Probed;
use crate::download::{
    BYTES_DEFAULT, BYTES_MAX, CONNECTIONS_MAX, Destination, DownloadError, Got, Job, Meter, file_name,
};
use crate::effects::files::{Expected, FileError, FileKind, Files, Links};
use crate::ids::ToolName;
use crate::outcome::{ToolErrorKind, ToolOutcome, Trust};
use crate::tool::{FixedSpec, Lane, Needs, Subject, Tool, ToolFuture, ToolSpec};
use crate::web::{self, ADDRESS_BYTES_MAX, WebError, shown};
use crate::workspace_path::{PATH_BYTES_MAX, WorkspacePath};

/// The time a download may take when its caller says nothing, in seconds.
pub const TIMEOUT_S_DEFAULT: u64 = 300;
/// The most time a download may take, in seconds.
pub const TIMEOUT_S_MAX: u64 = 3600;
/// How long the threads of a download may take to end once nobody wants it any more.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(4);
/// Bytes hashed at a time.
const BUFFER_BYTES: usize = 256 * 1024;
/// One MiB in bytes.
const MIB: u64 = 1024 * 1024;

/// The tool.
pub struct DownloadTool;

/// The tool, ready to register.
pub fn tool() -> Arc<dyn Tool> {
    Arc::new(DownloadTool)
}

#[derive(Deserialize)]
struct Arguments {
    url: String,
    file_path: Option<String>,
    #[serde(default)]
    overwrite: bool,
    connections: Option<u64>,
    max_bytes: Option<u64>,
    timeout: Option<u64>,
    expected_sha256: Option<String>,
}

static SPEC: FixedSpec = FixedSpec::new(spec);

fn spec() -> ToolSpec {
    ToolSpec {
        name: ToolName::new("download"),
        description: "Download a file from an http or https address into the workspace, of any type and size. Use it \
            for data, archives and binaries; use web_fetch to read a page. The file appears only when it is complete; \
            an existing file is kept unless overwrite is set. Without file_path the name comes from the server or the \
            address and the file lands in the workspace's own folder. Give expected_sha256 when it is known. Private \
            addresses are refused. The result names the file, its size and its sha256."
            .into(),
        parameters: json!({
            "type": "object",
            "additionalProperties": false,
            "required": ["url"],
            "properties": {
                "url": {
                    "type": "string", "minLength": 1, "maxLength": ADDRESS_BYTES_MAX,
                    "description": "The address; a name or password in it is refused.",
                },
                "file_path": {
                    "type": "string", "minLength": 1, "maxLength": PATH_BYTES_MAX,
                    "description": "The file to write, relative to the workspace; folders above it are made.",
                },
                "overwrite": {"type": "boolean", "default": false, "description": "Replace a file that is there."},
                "connections": {
                    "type": "integer", "minimum": 1, "maximum": CONNECTIONS_MAX,
                    "description": "Most connections; as many as the size is worth when left out.",
                },
                "max_bytes": {
                    "type": "integer", "minimum": 1, "maximum": BYTES_MAX, "default": BYTES_DEFAULT,
                    "description": "Refuse a file that is larger.",
                },
                "timeout": {
                    "type": "integer", "minimum": 1, "maximum": TIMEOUT_S_MAX, "default": TIMEOUT_S_DEFAULT,
                    "description": "Seconds for all of it.",
                },
                "expected_sha256": {
                    "type": "string", "pattern": "^[0-9A-Fa-f]{64}$",
                    "description": "Refuse a file with another digest.",
                },
            },
        }),
        model_parameters: None,
        model_visible: true,
        lane: Lane::Network,
        needs: Needs { write: true, web: true, ..Needs::default() },
    }
}

impl Tool for DownloadTool {
    fn spec(&self) -> &ToolSpec {
        SPEC.get()
    }

    fn fixed(&self) -> Option<&'static FixedSpec> {
        Some(&SPEC)
    }

    fn capabilities(&self, _arguments: &Value) -> Capabilities {
        Capabilities { cancellation_safe: true, output_kind: OutputKind::Mixed, ..Capabilities::conservative() }
    }

    fn subject(&self, arguments: &Value) -> Subject {
        // A name that comes from the server lands in the workspace's own folder, and is judged once it is known.
        let path = arguments.get("file_path").and_then(Value::as_str).unwrap_or(".");
        Subject::Paths { paths: vec![path.to_owned()], write: true }
    }

    fn call<'a>(&'a self, ctx: &'a ToolContext, arguments: Value) -> ToolFuture<'a> {
        Box::pin(async move {
            let outcome = download(ctx, arguments).await.unwrap_or_else(|ended| *ended);
            outcome.trusted(Trust::External)
        })
    }
}

/// A place in the workspace that may be written.
struct Place {
    path: WorkspacePath,
    canonical: WorkspacePath,
    /// What must be there when the file gets its place.
    expected: Expected,
}

async fn download(ctx: &ToolContext, arguments: Value) -> Step<ToolOutcome> {
    let wanted = Arguments::deserialize(arguments).map_err(|error| wrong(error.to_string()))?;
    let Some(web) = ctx.web.clone() else {
        let message = "this host gives its tools no way to the web".to_owned();
        return Err(Box::new(ToolOutcome::error(ToolErrorKind::Unsupported { message: message.clone() }, message)));
    };
    let url = web::address(&wanted.url).map_err(|error| told(&DownloadError::Web(error)))?;
    if ctx.workspace.is_sandboxed_read_only() {
        let path = wanted.file_path.clone().unwrap_or_else(|| ".".to_owned());
        return Err(fault(&FileError::Sandboxed { path }));
    }
    let named = match &wanted.file_path {
        Some(text) => Some(place(ctx, reach::path(ctx, text)?, wanted.overwrite, true).await?),
        None => None,
    };
    let progress = Arc::clone(&ctx.progress);
    let job = Job {
        web,
        url: url.clone(),
        connections: wanted.connections,
        bytes_max: wanted.max_bytes.unwrap_or(BYTES_DEFAULT),
        clock: Arc::clone(&ctx.clock),
        meter: Meter::new(move |bytes| progress.delta(&format!("{} MiB\n", bytes / MIB))),
    };
    let timeout_s = wanted.timeout.unwrap_or(TIMEOUT_S_DEFAULT);
    let (alive, mut all_ended) = mpsc::channel(1);
    let fetched = {
        let deadline = Instant::now() + Duration::from_secs(timeout_s);
        let fetch = timeout_at(deadline, fetch(ctx, &job, &wanted, named, alive));
        tokio::select! {
            biased;
            fetched = fetch => fetched.unwrap_or_else(|_elapsed| {
                Err(ended("download", &CancelReason::Deadline { timeout_ms: timeout_s.saturating_mul(1000) }))
            }),
            reason = ctx.cancel.cancelled() => Err(ended("download", &reason)),
        }
    };
    let fetched = match fetched {
        Ok(fetched) => fetched,
        Err(outcome) => {
            // What was fetched was dropped; nothing of it is worked on any more when this call ends.
            let _late = timeout(SETTLE_TIMEOUT, all_ended.recv()).await;
            return Err(outcome);
        }
    };
    land(ctx, &url, &wanted, fetched).await
}

/// What was fetched, before it has its place.
struct Fetched {
    place: Place,
    to: Destination,
    got: Got,
    answered: Url,
    content_type: Option<String>,
    gives_parts: bool,
}

async fn fetch(
    ctx: &ToolContext,
    job: &Job,
    wanted: &Arguments,
    named: Option<Place>,
    alive: mpsc::Sender<()>,
) -> Step<Fetched> {
    let probed: Probed = job.probe().await.map_err(|error| told(&error))?;
    let place = match named {
        Some(place) => place,
        None => {
            let name = file_name::infer(probed.disposition.as_deref(), &probed.answered);
            place(ctx, WorkspacePath::root().child(name.as_ref()), wanted.overwrite, false).await?
        }
    };
    let files = Arc::clone(ctx.workspace.files());
    let path = place.canonical.clone();
    let begun = reach::blocking(ctx, "download", false, move |_stop| files.begin(&path)).await?;
    let to = Destination { file: begun.map_err(|error| fault(&error))?.into(), alive };
    let (answered, content_type, gives_parts) =
        (probed.answered.clone(), probed.content_type.clone(), probed.gives_parts);
    let got = job.fetch(probed, &to).await.map_err(|error| told(&error))?;
    Ok(Fetched { place, to, got, answered, content_type, gives_parts })
}

/// Checks a place before anything is fetched for it.
async fn place(ctx: &ToolContext, path: WorkspacePath, overwrite: bool, chosen: bool) -> Step<Place> {
    let files = Arc::clone(ctx.workspace.files());
    let seen = Arc::clone(&ctx.seen);
    reach::blocking(ctx, "download", false, move |stop| {
        let canonical = files.canonical(&path).map_err(|error| fault(&error))?;
        if [&path, &canonical].iter().any(|path| path.names().any(|name| name == ".git")) {
            let message = format!("{path} lies in .git, which tools do not write; give another file_path");
            return Err(Box::new(ToolOutcome::error(ToolErrorKind::Unsupported { message: message.clone() }, message)));
        }
        for path in [&path, &canonical] {
            files.may_write(path).map_err(|error| fault(&error))?;
        }
        let is_link = files.stat(&path, Links::Stay).is_ok_and(|stat| stat.kind == FileKind::Link);
        if is_link && !chosen {
            return Err(wrong(format!("the server names the file {path}, which is a link here; give a file_path")));
        }
        let expected = match files.stat(&canonical, Links::Follow) {
            Err(FileError::NotFound { .. }) => Expected::Absent,
            Err(error) => return Err(fault(&error)),
            Ok(stat) if stat.kind == FileKind::Folder => {
                return Err(wrong(format!("{path} is a folder; name the file in it, such as {path}/FILE")));
            }
            Ok(stat) if stat.kind != FileKind::File => {
                let kind = stat.kind.as_str();
                return Err(fault(&FileError::NotAFile { path: path.to_string(), kind }));
            }
            Ok(_) if !overwrite => return Err(exists(&path)),
            Ok(_) => match seen.digest(&canonical) {
                None => Expected::Any,
                Some(known) => {
                    let now = digest_of(files.as_ref(), &canonical, stop)?;
                    if now != known {
                        let (path, expected) = (path.to_string(), known.to_string());
                        let actual = now.to_string();
                        return Err(fault(&FileError::Changed { path, expected, actual }));
                    }
                    Expected::Content(known)
                }
            },
        };
        Ok(Place { path, canonical, expected })
    })
    .await?
}

fn exists(path: &WorkspacePath) -> Box<ToolOutcome> {
    let text = format!("{path} is there already; set overwrite to replace it, or give another file_path");
    let kind = ToolErrorKind::VersionConflict { path: path.to_string(), expected: "absent".to_owned(), actual: None };
    Box::new(ToolOutcome::error(kind, text))
}

/// The digest of a file as it is now.
fn digest_of(files: &dyn Files, path: &WorkspacePath, stop: &reach::Stop) -> Step<Digest> {
    let failed = |source| fault(&FileError::Io { op: "read", path: path.to_string(), source });
    let mut file = files.open(path).map_err(|error| fault(&error))?;
    let mut digest = RunningDigest::default();
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        if let Some(reason) = stop.reason() {
            return Err(ended("download", &reason));
        }
        match file.read(&mut buffer) {
            Ok(0) => return Ok(digest.finish()),
            Ok(read) => digest.update(&buffer[..read]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(error)),
        }
    }
}

/// Gives the file its place and tells of it.
async fn land(ctx: &ToolContext, url: &Url, wanted: &Arguments, fetched: Fetched) -> Step<ToolOutcome> {
    let Fetched { place, to, got, answered, content_type, gives_parts } = fetched;
    let overwritten = place.expected != Expected::Absent;
    let turn = tokio::select! {
        biased;
        turn = ctx.seen.turn(std::slice::from_ref(&place.canonical)) => turn,
        reason = ctx.cancel.cancelled() => return Err(ended("download", &reason)),
    };
    let sha256 = wanted.expected_sha256.as_deref();
    match Job::promote(&to, &got, sha256, place.expected, &ctx.cancel).await {
        Ok(()) => {}
        Err(DownloadError::File(FileError::Exists { .. })) => return Err(exists(&place.path)),
        Err(error) => return Err(told(&error)),
    }
    ctx.seen.record(place.canonical, got.digest.clone());
    drop(turn);
    let (path, bytes, hex) = (&place.path, got.bytes, got.digest.hex());
    let mut text = format!("Downloaded {} to {path}: {bytes} bytes", shown(url));
    if let Some(kind) = &content_type {
        let _ = write!(text, " ({})", kind);
    }
    let _ = writeln!(text, ", sha256 {hex}.");
    let mut anchors = vec![shown(url).to_string()];
    if answered.origin() != url.origin() || answered.path() != url.path() {
        anchors.push(shown(&answered).to_string());
    }
    Ok(ToolOutcome::success(text)
        .with("file_path", path.to_string())
        .with("bytes", bytes)
        .with("content_type", json!(content_type))
        .with("strategy", got.strategy.as_str())
        .with("connections", got.connections)
        .with("range_supported", gives_parts)
        .with("overwritten", overwritten)
        .with("source_anchors", json!(anchors))
        .with("sha256", hex))
}

/// The outcome of a download that came to nothing.
fn told(error: &DownloadError) -> Box<ToolOutcome> {
    let text = format!("{error}; nothing was written");
    let kind = match error {
        DownloadError::File(error) => return fault(error),
        DownloadError::Web(WebError::Address { .. } | WebError::Private { .. } | WebError::Redirect { .. })
        | DownloadError::TooLarge { .. } => ToolErrorKind::InvalidArgument { message: text.clone() },
        DownloadError::Web(WebError::Offline { .. }) => ToolErrorKind::Unsupported { message: text.clone() },
        DownloadError::RateLimited { wait } => ToolErrorKind::RateLimited {
            retry_after_ms: wait.map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)),
        },
        DownloadError::Web(_) | DownloadError::Broken { .. } | DownloadError::Truncated { .. } => {
            ToolErrorKind::Transport { op: "download".to_owned() }
        }
        // The server's own word, and the caller's: trying again the same way changes neither.
        DownloadError::Status { .. } | DownloadError::Digest { .. } => return Box::new(ToolOutcome::failure(text)),
    };
    Box::new(ToolOutcome::error(kind, text))
}
