//! Downloads: from an address to a file that appears when it is whole, and not before.
//!
//! A probe tells whether the server gives parts, of which version, and how many bytes there are. Parts come over several
//! connections only with a version that cannot change under them; whatever is odd about them ends in one plain request
//! for the whole. Bytes stand under no name of the workspace until size and digest are known to be right.

pub mod content_range;
pub mod file_name;
pub mod retry;

#[cfg(test)]
mod field_fuzz;
pub(crate) mod probe;
mod promote;
mod ranges;
mod sequential;
mod sink;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use thiserror::Error;
use tokio::time::{sleep, timeout};
use url::Url;

use self::probe::Probed;
use self::retry::{ATTEMPTS_MAX, RETRY_AFTER_MAX, backoff, retry_after};
use self::sink::{Alive, Closed, Sink};
use crate::cancellation::Cancellation;
use crate::digest::Digest;
use crate::effects::blocking::{Lost, off_thread};
use crate::effects::clock::Clock;
use crate::effects::files::{Expected, FileError, NewFile};
use crate::effects::http::{HttpBody, HttpError, HttpHeaders, HttpResponse};
use crate::web::{Web, WebError};

/// Most bytes that a download may have when its caller says nothing.
pub const BYTES_DEFAULT: u64 = 512 * 1024 * 1024;
/// Most bytes that a download may have at all.
pub const BYTES_MAX: u64 = 8 * 1024 * 1024 * 1024;
/// Most connections of one download.
pub const CONNECTIONS_MAX: u64 = 4;
/// How long a server may be silent within its answer.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Most requests of one download, so that a server that gives a little each time comes to an end.
const REQUESTS_MAX: u64 = 1024;
/// Bytes after which a try counts as a step forward, and the next one as the first again.
const STEP_BYTES: u64 = 64 * 1024;

/// What is wanted.
pub(crate) struct Job {
    /// The way to the web.
    pub(crate) web: Web,
    /// Where the file is.
    pub(crate) url: Url,
    /// How many connections; as many as seem right when none.
    pub(crate) connections: Option<u64>,
    /// Most bytes that are taken.
    pub(crate) bytes_max: u64,
    /// Tells the time, for waits that are asked for by date.
    pub(crate) clock: Arc<dyn Clock>,
    /// Told of bytes as they come.
    pub(crate) meter: Meter,
}

/// How it was got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Strategy {
    /// One request after the other.
    Sequential,
    /// Parts beside each other.
    ParallelRange,
    /// Parts first, and then the whole after all.
    SequentialFallback,
}

impl Strategy {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Sequential => "sequential",
            Self::ParallelRange => "parallel_range",
            Self::SequentialFallback => "sequential_fallback",
        }
    }
}

/// What was got.
pub(crate) struct Got {
    /// How.
    pub(crate) strategy: Strategy,
    /// Over how many connections.
    pub(crate) connections: u64,
    /// How many bytes.
    pub(crate) bytes: u64,
    /// Their digest.
    pub(crate) digest: Digest,
}

/// Why there is no file.
#[derive(Debug, Error)]
pub(crate) enum DownloadError {
    /// It could not be asked.
    #[error(transparent)]
    Web(#[from] WebError),
    /// The server said no.
    #[error("{host} answered with status {status}{}", hint(*.status))]
    Status {
        /// Who.
        host: String,
        /// What.
        status: u16,
    },
    /// It is larger than what is taken.
    #[error("{} at most {max} are taken: raise max_bytes if that is meant", told(*.bytes))]
    TooLarge {
        /// How large, where that is known.
        bytes: Option<u64>,
        /// The limit.
        max: u64,
    },
    /// The server wants to be asked later.
    #[error("the server wants to be asked later{}", .wait.map(|wait| format!(": in {} s", wait.as_secs())).unwrap_or_default())]
    RateLimited {
        /// How much later, where it says so.
        wait: Option<Duration>,
    },
    /// It ended before its end.
    #[error("truncated: {received} of {total} bytes came, {attempts} times over")]
    Truncated {
        /// How many bytes came.
        received: u64,
        /// How many were announced.
        total: u64,
        /// How often it was tried.
        attempts: u32,
    },
    /// It went wrong as often as it was tried.
    #[error("it went wrong {attempts} times, at last so: {reason}")]
    Broken {
        /// What was seen last.
        reason: String,
        /// How often it was tried.
        attempts: u32,
    },
    /// The bytes are others than those that were meant.
    #[error("the bytes have sha256 {actual}, not the expected {expected}; nothing was written")]
    Digest {
        /// In hex digits.
        expected: String,
        /// In hex digits.
        actual: String,
    },
    /// The file could not be written.
    #[error(transparent)]
    File(#[from] FileError),
}

fn hint(status: u16) -> &'static str {
    match status {
        401 | 403 => ": it wants to be asked by somebody it knows, or the address has expired",
        404 | 410 => ": there is nothing at this address",
        _ => "",
    }
}

fn told(bytes: Option<u64>) -> String {
    match bytes {
        Some(bytes) => format!("the file has {bytes} bytes;"),
        None => "the file is larger than what may come;".to_owned(),
    }
}

/// Why one try came to nothing.
#[derive(Debug)]
enum Failure {
    /// It may fare better a little later.
    Passing(String),
    /// It ended before its end.
    Truncated { received: u64, total: u64 },
    /// The server wants to be asked later.
    Limited(Option<Duration>),
    /// What is there now is not what it was; all must be got again.
    Changed(&'static str),
    /// Writing has failed; the sink knows why.
    Closed,
    /// For good.
    Final(DownloadError),
}

impl From<Closed> for Failure {
    fn from(_: Closed) -> Self {
        Self::Closed
    }
}

impl From<WebError> for Failure {
    fn from(error: WebError) -> Self {
        if error.is_passing() { Self::Passing(error.to_string()) } else { Self::Final(error.into()) }
    }
}

impl Failure {
    /// What to tell when it is not tried again.
    fn into_error(self, attempts: u32) -> DownloadError {
        match self {
            Self::Passing(reason) => DownloadError::Broken { reason, attempts },
            Self::Changed(reason) => DownloadError::Broken { reason: reason.to_owned(), attempts },
            Self::Truncated { received, total } => DownloadError::Truncated { received, total, attempts },
            Self::Limited(wait) => DownloadError::RateLimited { wait },
            Self::Closed => DownloadError::Broken { reason: "writing has ended".to_owned(), attempts },
            Self::Final(error) => error,
        }
    }
}

/// Counts tries, and waits between them.
#[derive(Debug, Default)]
struct Tries {
    attempts: u32,
}

impl Tries {
    /// Waits before the next try, or gives the failure back as an error when there is none. A try that got far counts
    /// as the first.
    async fn again(&mut self, failure: Failure, got_far: bool) -> Result<(), DownloadError> {
        if let Failure::Final(error) = failure {
            return Err(error);
        }
        self.attempts = if got_far { 1 } else { self.attempts + 1 };
        let wait = match &failure {
            Failure::Limited(Some(wait)) => *wait,
            _ => backoff(self.attempts),
        };
        if self.attempts >= ATTEMPTS_MAX || wait > RETRY_AFTER_MAX {
            return Err(failure.into_error(self.attempts));
        }
        sleep(wait).await;
        Ok(())
    }
}

/// Tells of progress in steps, however the bytes come.
pub(crate) struct Meter {
    requests: AtomicU64,
    received: AtomicU64,
    told: AtomicU64,
    tell: Box<dyn Fn(u64) + Send + Sync>,
}

/// Bytes after which progress is told.
const TOLD_BYTES: u64 = 32 * 1024 * 1024;

impl Meter {
    /// Tells by calling this with the number of bytes that came so far.
    pub(crate) fn new(tell: impl Fn(u64) + Send + Sync + 'static) -> Self {
        let tell = Box::new(tell);
        Self { requests: AtomicU64::new(0), received: AtomicU64::new(0), told: AtomicU64::new(0), tell }
    }

    fn add(&self, bytes: u64) {
        let received = self.received.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let told = self.told.load(Ordering::Relaxed);
        let is_due = received >= told.saturating_add(TOLD_BYTES);
        if is_due && self.told.compare_exchange(told, received, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            (self.tell)(received);
        }
    }

    fn restart(&self) {
        self.received.store(0, Ordering::Relaxed);
        self.told.store(0, Ordering::Relaxed);
    }

    /// Counts a request.
    fn ask(&self) -> Result<(), Failure> {
        if self.requests.fetch_add(1, Ordering::Relaxed) < REQUESTS_MAX {
            return Ok(());
        }
        let reason = format!("it did not come to its end within {REQUESTS_MAX} requests");
        Err(Failure::Final(DownloadError::Broken { reason, attempts: ATTEMPTS_MAX }))
    }
}

/// A file on its way, and what lets its holder see that nothing works on it any more.
#[derive(Clone)]
pub(crate) struct Destination {
    pub(crate) file: Arc<dyn NewFile>,
    pub(crate) alive: Alive,
}

impl Job {
    /// Looks at what is there, before anything is written.
    pub(crate) async fn probe(&self) -> Result<Probed, DownloadError> {
        probe::probe(self).await
    }

    /// Gets it.
    pub(crate) async fn fetch(&self, probed: Probed, to: &Destination) -> Result<Got, DownloadError> {
        let connections = probed.connections(self.connections);
        let Probed { answered, total, plan, .. } = probed;
        let mut strategy = Strategy::Sequential;
        let mut first = None;
        match plan {
            probe::Plan::Empty => {
                let (bytes, digest) = Sink::begin(&to.file, &to.alive).finish().await?;
                return Ok(Got { strategy, connections: 1, bytes, digest });
            }
            probe::Plan::Whole { answer } => first = answer,
            probe::Plan::Ranges { validator } if connections > 1 => {
                let total = total.unwrap_or(0);
                let wanted = ranges::Wanted { url: &answered, validator: &validator, total, connections };
                match ranges::fetch(self, &wanted, to).await {
                    Ok((bytes, digest)) => {
                        return Ok(Got { strategy: Strategy::ParallelRange, connections, bytes, digest });
                    }
                    Err(error @ (Failure::Final(_) | Failure::Limited(_))) => {
                        return Err(error.into_error(ATTEMPTS_MAX));
                    }
                    Err(_odd) => strategy = Strategy::SequentialFallback,
                }
            }
            probe::Plan::Ranges { .. } => {}
        }
        let (bytes, digest) = sequential::fetch(self, first, to).await?;
        Ok(Got { strategy, connections: 1, bytes, digest })
    }

    /// Puts what was got in its place.
    pub(crate) async fn promote(
        to: &Destination,
        got: &Got,
        expected_sha256: Option<&str>,
        expected: Expected,
        cancel: &Cancellation,
    ) -> Result<(), DownloadError> {
        promote::promote(to, got, expected_sha256, expected, cancel).await
    }
}

/// The header fields of every request.
fn headers() -> HttpHeaders {
    [("accept", "*/*"), ("accept-encoding", "identity")].into_iter().collect()
}

/// What a status other than the wanted ones means.
fn refused(job: &Job, host: &Url, response: &HttpResponse) -> Failure {
    let field = || response.headers.get("retry-after");
    let wait = || retry_after(field()?, job.clock.unix_ms());
    match response.status {
        429 => Failure::Limited(wait()),
        503 if field().is_some() => Failure::Limited(wait()),
        408 | 500 | 502..=504 => Failure::Passing(format!("the server answered with status {}", response.status)),
        status => {
            let host = host.host_str().unwrap_or_default().to_owned();
            Failure::Final(DownloadError::Status { host, status })
        }
    }
}

/// The validator of an answer that names one version for sure: a strong etag, or a date that is older than the answer.
fn validator(headers: &HttpHeaders) -> Option<String> {
    let etag = headers.get("etag").map(str::trim);
    if let Some(etag) = etag.filter(|etag| etag.len() >= 2 && etag.starts_with('"') && etag.ends_with('"')) {
        return Some(etag.to_owned());
    }
    let date = |name: &str| headers.get(name).and_then(|text| httpdate::parse_http_date(text.trim()).ok());
    // Within its own second a file can change twice.
    let settled = date("last-modified")? + Duration::from_secs(1) <= date("date")?;
    headers.get("last-modified").filter(|_| settled).map(|text| text.trim().to_owned())
}

/// Whether an answer is of this version, as far as it says.
fn is_version(headers: &HttpHeaders, validator: &str) -> Option<bool> {
    let field = if validator.starts_with('"') { "etag" } else { "last-modified" };
    headers.get(field).map(|now| now.trim() == validator)
}

/// The next piece of a body; none at its end.
async fn next_piece(body: &mut HttpBody) -> Result<Option<Bytes>, Failure> {
    match timeout(READ_TIMEOUT, body.next()).await {
        Ok(Some(Ok(piece))) => Ok(Some(piece)),
        Ok(None) => Ok(None),
        Ok(Some(Err(error))) => Err(of_body(&error)),
        Err(_elapsed) => Err(Failure::Passing(format!("the server was silent for {} s", READ_TIMEOUT.as_secs()))),
    }
}

fn of_body(error: &HttpError) -> Failure {
    Failure::Passing(error.to_string())
}

/// Makes room for a file whose size is known, off the workers of the runtime.
async fn reserve(to: &Destination, bytes: u64) -> Result<(), Failure> {
    let held = to.clone();
    let reserved = off_thread(move || {
        let Destination { file, alive: _alive } = held;
        file.reserve(bytes)
    });
    match reserved.await {
        Ok(reserved) => reserved.map_err(|error| Failure::Final(error.into())),
        // A bug stays a bug, whichever thread it shows on.
        Err(Lost::Panicked(panic)) => std::panic::resume_unwind(panic),
        Err(Lost::Ended) => Err(Failure::Closed),
    }
}

#[cfg(test)]
mod tests {
    use super::{HttpHeaders, is_version, validator};

    fn headers(fields: &[(&'static str, &'static str)]) -> HttpHeaders {
        fields.iter().copied().collect()
    }

    // Case C100: what names no version for sure is no ground for parts.
    #[test]
    fn only_what_names_a_version_for_sure_is_a_validator() {
        let old = ("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT");
        let date = ("date", "Sun, 06 Nov 1994 08:49:38 GMT");
        for (fields, expected) in [
            (vec![("etag", "\"a\"")], Some("\"a\"")),
            (vec![("etag", "W/\"a\"")], None),
            (vec![("etag", "a")], None),
            (vec![("etag", "W/\"a\""), old, date], Some(old.1)),
            (vec![old, date], Some(old.1)),
            (vec![old, ("date", old.1)], None),
            (vec![old], None),
            (vec![], None),
        ] {
            assert_eq!(validator(&headers(&fields)).as_deref(), expected, "{fields:?}");
        }
        assert_eq!(is_version(&headers(&[("etag", "\"b\"")]), "\"a\""), Some(false));
        assert_eq!(is_version(&headers(&[("etag", "\"a\"")]), "\"a\""), Some(true));
        assert_eq!(is_version(&headers(&[]), "\"a\""), None);
    }
}
