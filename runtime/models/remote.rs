//! A model at the other end of a network: one request, one turn or one error.
//!
//! This is one attempt and never more: what is tried again, and when, is decided by the
//! [gate](crate::models::gate). Each wait has its own time: for the connection, for the first byte, between two
//! pieces, and for the whole. What must stay true: a turn is taken on its protocol's last word and not on the end of the
//! connection, which some servers leave open; dropping the future closes the connection; the key shows nowhere.

mod failure;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::future::{BoxFuture, FutureExt as _};
use thiserror::Error;
use tokio::time::{Instant, timeout_at};
use toolwarden_tools::effects::clock::Clock;
use toolwarden_tools::effects::http::{Http, HttpBody, HttpError, HttpMethod, HttpRequest, HttpResponse};
use toolwarden_tools::json_tree::{Node, Rounded};

use self::failure::Failure;
use super::object_support::ObjectSupport;
use super::price::TokenPrice;
use super::sse::SseReader;
use super::wire::{Decoder, Progress, Protocol, WireSettings};
use super::{Model, ModelError, ModelRequest, ModelTurn, StopReason, TokenUsage, TurnSink};

/// Largest request, in bytes.
pub const REQUEST_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Largest answer, in bytes; a streamed one says everything up to three times.
pub const ANSWER_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Largest body of a failure that is read, in bytes.
const FAILURE_BYTES_MAX: usize = 64 * 1024;
/// How long a turn that is whole is waited for to be closed: its usage may still come.
const LAST_WORD_GRACE: Duration = Duration::from_secs(2);

/// How long a model may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelTimeouts {
    /// For name, connection and TLS.
    pub connect: Duration,
    /// From there to the first byte of a streamed answer.
    pub first_byte: Duration,
    /// Between two pieces of it.
    pub idle: Duration,
    /// For the whole turn.
    pub total: Duration,
}

impl Default for ModelTimeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            first_byte: Duration::from_secs(120),
            idle: Duration::from_secs(90),
            total: Duration::from_secs(900),
        }
    }
}

/// Where a model is and how it is asked.
pub struct RemoteSettings {
    /// What the model is called here, such as `anthropic:claude-sonnet-5`.
    pub name: String,
    /// The provider's base address, with or without its version.
    pub base_url: String,
    /// The key; none where nobody asks for one.
    pub key: Option<String>,
    /// The model, and how it is set.
    pub wire: WireSettings,
    /// The model's window, in tokens, where it is known.
    pub context_tokens: Option<u64>,
    /// How long it may take.
    pub timeouts: ModelTimeouts,
    /// What its tokens cost.
    pub price: TokenPrice,
    /// By which means it can be held to the form of an object; those of its protocol, when not said.
    pub object_support: Option<ObjectSupport>,
    /// How many requests there may be to it beside each other; the gate's own limit, when not said.
    pub concurrency_max: Option<usize>,
}

/// A model behind a wire protocol.
pub struct RemoteModel {
    settings: RemoteSettings,
    endpoint: String,
    protocol: Box<dyn Protocol>,
    http: Arc<dyn Http>,
    clock: Arc<dyn Clock>,
}

/// Why an address is no base address.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{base_url:?} is no base address of a provider: {reason}; write it like https://host or http://127.0.0.1:8080/v1"
)]
pub struct BaseUrlError {
    /// The address.
    pub base_url: String,
    /// What is wrong with it.
    pub reason: String,
}

impl RemoteModel {
    /// A model that is asked through `http`.
    ///
    /// # Errors
    /// [`BaseUrlError`].
    pub fn new(
        settings: RemoteSettings,
        protocol: Box<dyn Protocol>,
        http: Arc<dyn Http>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, BaseUrlError> {
        let endpoint = endpoint(&settings.base_url, protocol.path())?;
        Ok(Self { settings, endpoint, protocol, http, clock })
    }

    /// The address that requests go to.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    async fn attempt(&self, request: &ModelRequest, sink: &dyn TurnSink) -> Result<ModelTurn, ModelError> {
        let times = &self.settings.timeouts;
        let whole_by = Instant::now() + times.total;
        let streams = self.settings.wire.stream;
        // A turn that comes as one piece is written before its first byte is sent.
        let head_by = if streams { whole_by.min(Instant::now() + times.connect + times.first_byte) } else { whole_by };
        let exchange = self.http.exchange(self.request(request)?);
        let response = match timeout_at(head_by, exchange).await {
            Ok(response) => response.map_err(http_error)?,
            Err(_) if streams => return Err(timed_out("no first byte", times.first_byte, true)),
            Err(_) => return Err(timed_out("no answer", times.total, false)),
        };
        let request_id = response.headers.get(self.protocol.request_id_header()).map(str::to_owned);
        let mut turn = self.read(response, sink, whole_by).await?;
        turn.request_id = request_id;
        Ok(turn)
    }

    fn request(&self, request: &ModelRequest) -> Result<HttpRequest, ModelError> {
        let body = self.protocol.request(request, &self.settings.wire);
        let body = serde_json::to_vec(&body).map_err(|error| ModelError::Invalid { message: error.to_string() })?;
        if body.len() > REQUEST_BYTES_MAX {
            let message = format!("it has {} bytes; at most {REQUEST_BYTES_MAX} are sent", body.len());
            return Err(ModelError::ContextOverflow { message });
        }
        let accept = if self.settings.wire.stream { "text/event-stream" } else { "application/json" };
        let mut http = HttpRequest::new(HttpMethod::Post, self.endpoint.as_str())
            .header("content-type", "application/json")
            .header("accept", accept)
            .header("user-agent", concat!("toolwarden/", env!("CARGO_PKG_VERSION")))
            .body(body);
        for (name, value) in self.protocol.headers() {
            http = http.header(*name, *value);
        }
        if let Some(key) = &self.settings.key {
            let (name, value) = self.protocol.key_header(key);
            http = http.header(name, value);
        }
        http.connect_timeout = self.settings.timeouts.connect;
        Ok(http)
    }

    async fn read(
        &self,
        response: HttpResponse,
        sink: &dyn TurnSink,
        whole_by: Instant,
    ) -> Result<ModelTurn, ModelError> {
        let mut body = Body { pieces: response.body, times: self.settings.timeouts, whole_by, bytes: 0 };
        if !(200..300).contains(&response.status) {
            let said = body.collect(FAILURE_BYTES_MAX).await.unwrap_or_default();
            let failure = Failure { status: response.status, headers: &response.headers, body: &said };
            return failure.outcome(self.clock.unix_ms()).map(|()| filtered());
        }
        let kind = response.headers.get("content-type").unwrap_or("").to_ascii_lowercase();
        if kind.contains("json") || (kind.is_empty() && !self.settings.wire.stream) {
            let text = body.collect(ANSWER_BYTES_MAX).await?;
            let not_json = |error: String| ModelError::Incomplete { message: format!("it is not JSON: {error}") };
            let text = String::from_utf8(text).map_err(|error| not_json(error.to_string()))?;
            // A number beyond every double is JSON all the same.
            let value = serde_json::from_str(&text).or_else(|error| {
                let node = Node::read(&text).map_err(|_| not_json(error.to_string()))?;
                Ok(node.to_value(&mut Rounded::default()))
            })?;
            return self.protocol.whole(&value, &text, sink);
        }
        if !(kind.contains("event-stream") || kind.contains("text/plain") || kind.is_empty()) {
            let message = format!("it is {kind:?} and not JSON; is {} the address of this protocol?", self.endpoint);
            return Err(ModelError::Unreadable { message });
        }
        stream(body, self.protocol.decoder(), sink).await
    }
}

impl Model for RemoteModel {
    fn name(&self) -> &str {
        &self.settings.name
    }

    fn context_tokens(&self) -> Option<u64> {
        self.settings.context_tokens
    }

    fn concurrency_max(&self) -> Option<usize> {
        self.settings.concurrency_max
    }

    fn object_support(&self) -> ObjectSupport {
        let set = self.settings.object_support;
        set.unwrap_or_else(|| self.protocol.object_support())
    }

    fn cost_microusd(&self, usage: TokenUsage) -> u64 {
        self.settings.price.cost_microusd(usage)
    }

    fn turn<'a>(
        &'a self,
        request: &'a ModelRequest,
        sink: &'a dyn TurnSink,
    ) -> BoxFuture<'a, Result<ModelTurn, ModelError>> {
        async move {
            let turn = self.attempt(request, sink).await;
            turn.map_err(|error| error.without(self.settings.key.as_deref().unwrap_or_default()))
        }
        .boxed()
    }
}

impl fmt::Debug for RemoteModel {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("RemoteModel")
            .field("name", &self.settings.name)
            .field("endpoint", &self.endpoint)
            .field("protocol", &self.protocol)
            .finish_non_exhaustive()
    }
}

/// The body of an answer, within its times and bounds.
struct Body {
    pieces: HttpBody,
    times: ModelTimeouts,
    whole_by: Instant,
    bytes: usize,
}

impl Body {
    /// The next piece; none at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, ModelError> {
        let idle_by = Instant::now() + self.times.idle;
        let piece = match timeout_at(idle_by.min(self.whole_by), self.pieces.next()).await {
            Ok(piece) => piece.transpose().map_err(http_error)?,
            Err(_) if self.whole_by <= idle_by => return Err(timed_out("no whole answer", self.times.total, false)),
            Err(_) => return Err(timed_out("nothing more", self.times.idle, true)),
        };
        self.bytes = self.bytes.saturating_add(piece.as_ref().map_or(0, Bytes::len));
        if self.bytes > ANSWER_BYTES_MAX {
            return Err(ModelError::TooLarge { message: format!("it has more than {ANSWER_BYTES_MAX} bytes") });
        }
        Ok(piece)
    }

    /// All of it, as far as the bound.
    async fn collect(&mut self, bytes_max: usize) -> Result<Vec<u8>, ModelError> {
        let mut all = Vec::new();
        while let Some(piece) = self.next().await? {
            let room = bytes_max.saturating_sub(all.len());
            all.extend_from_slice(&piece[..piece.len().min(room)]);
            if all.len() >= bytes_max {
                break;
            }
        }
        Ok(all)
    }
}

/// Reads a streamed answer to its last word.
async fn stream(mut body: Body, decoder: Box<dyn Decoder>, sink: &dyn TurnSink) -> Result<ModelTurn, ModelError> {
    let (mut reading, mut is_whole) = (Reading::new(decoder), false);
    loop {
        let piece = match body.next().await {
            Ok(Some(piece)) => piece,
            Ok(None) => return reading.end(sink),
            // Everything was said; how the connection ends says nothing about it.
            Err(_) if is_whole => return reading.end(sink),
            Err(error) => return Err(error),
        };
        match reading.take(&piece, sink)? {
            Progress::Done => return reading.decoder.finish(),
            Progress::Whole if !is_whole => {
                is_whole = true;
                body.whole_by = body.whole_by.min(Instant::now() + LAST_WORD_GRACE);
            }
            Progress::Whole | Progress::Open => {}
        }
    }
}

/// A streamed answer while it is read.
struct Reading {
    reader: SseReader,
    decoder: Box<dyn Decoder>,
}

impl Reading {
    fn new(decoder: Box<dyn Decoder>) -> Self {
        Self { reader: SseReader::default(), decoder }
    }

    fn take(&mut self, piece: &[u8], sink: &dyn TurnSink) -> Result<Progress, ModelError> {
        let (decoder, mut state) = (&mut self.decoder, Ok(Progress::Open));
        let pushed = self.reader.push(piece, &mut |event| {
            state = decoder.event(&event, sink);
            matches!(state, Ok(Progress::Open | Progress::Whole))
        });
        let progress = state?;
        pushed.map_err(|error| ModelError::TooLarge { message: error.to_string() })?;
        Ok(progress)
    }

    /// No more comes: what stood without its empty line counts, and then the turn is whole or not.
    fn end(self, sink: &dyn TurnSink) -> Result<ModelTurn, ModelError> {
        let Self { reader, mut decoder } = self;
        let mut last = Ok(Progress::Open);
        reader.finish(&mut |event| {
            last = decoder.event(&event, sink);
            last.is_ok()
        });
        last?;
        decoder.finish()
    }
}

/// A turn that the provider's filter did not let begin.
fn filtered() -> ModelTurn {
    ModelTurn { stop: StopReason::ContentFilter, ..ModelTurn::answer("") }
}

fn http_error(error: HttpError) -> ModelError {
    let message = error.to_string();
    match error {
        HttpError::ConnectTimeout { timeout_ms, .. } => {
            ModelError::TimedOut { what: "no connection", timeout_ms, retryable: true }
        }
        HttpError::Request { .. } => ModelError::Invalid { message },
        HttpError::Resolve { .. } | HttpError::Connect { .. } | HttpError::Tls { .. } => {
            ModelError::NoConnection { message }
        }
        HttpError::Reset { .. } => ModelError::Unreachable { message },
        HttpError::Protocol { .. } | HttpError::Decode { .. } => ModelError::Unreachable { message },
    }
}

fn timed_out(what: &'static str, allowed: Duration, retryable: bool) -> ModelError {
    let timeout_ms = u64::try_from(allowed.as_millis()).unwrap_or(u64::MAX);
    ModelError::TimedOut { what, timeout_ms, retryable }
}

/// The address of an endpoint: people give bases with and without a version, and sometimes the endpoint itself.
fn endpoint(base_url: &str, path: &str) -> Result<String, BaseUrlError> {
    let wrong = |reason: &str| BaseUrlError { base_url: base_url.to_owned(), reason: reason.to_owned() };
    let base = base_url.trim().trim_end_matches('/');
    let base = base.strip_suffix(path).unwrap_or(base).trim_end_matches('/');
    let (scheme, rest) = base.split_once("://").ok_or_else(|| wrong("it names no scheme"))?;
    if !matches!(scheme, "http" | "https") {
        return Err(wrong("only http and https can be asked"));
    }
    let host = rest.split('/').next().unwrap_or("");
    if host.is_empty() {
        return Err(wrong("it names no host"));
    }
    if host.contains('@') {
        return Err(BaseUrlError {
            base_url: format!("{scheme}://…@{}", host.rsplit('@').next().unwrap_or("")),
            reason: "it holds a name or a password; give the key instead".to_owned(),
        });
    }
    if base.contains(['?', '#', ' ']) {
        return Err(wrong("it holds a query, a fragment or a space"));
    }
    let has_version = rest.split('/').skip(1).any(|segment| {
        segment.strip_prefix('v').is_some_and(|version| version.starts_with(|c: char| c.is_ascii_digit()))
    });
    Ok(if has_version { format!("{base}{path}") } else { format!("{base}/v1{path}") })
}

#[cfg(test)]
mod tests;
