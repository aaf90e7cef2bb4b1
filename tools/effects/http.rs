//! The HTTP port: one request, one answer, its body in pieces as they arrive.
//!
//! The port decides nothing: it follows no redirect, keeps no cookie, repeats nothing that a server may have seen,
//! unpacks a body only when asked, and reads no proxy from the environment. Whoever calls decides about all of it, so
//! that a guard which checked an address once is not gone round by the second hop. It waits for the connection alone;
//! every other time is the caller's, who drops the exchange or its body, which closes the connection (or, with
//! HTTP/2, the stream). Header values never show in `Debug`, because keys travel in them.

pub mod proxy;
pub mod system;

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use thiserror::Error;

use self::proxy::HttpProxy;

/// Exchanges requests for answers.
pub trait Http: fmt::Debug + Send + Sync {
    /// Sends a request and comes back with the head of the answer. Dropping the future, or the body of the answer,
    /// ends the exchange.
    ///
    /// # Errors
    /// [`HttpError`]; a status of 400 or 500 is an answer, not an error.
    fn exchange(&self, request: HttpRequest) -> BoxFuture<'static, Result<HttpResponse, HttpError>>;
}

/// A request.
#[derive(Clone)]
pub struct HttpRequest {
    /// What is asked for.
    pub method: HttpMethod,
    /// Where: an absolute `http` or `https` address.
    pub url: String,
    /// Header fields, in order. `host` and `content-length` are the port's.
    pub headers: HttpHeaders,
    /// The body; none is sent when it is empty, but for POST, PUT and PATCH.
    pub body: Bytes,
    /// How long name, connection and TLS may take together.
    pub connect_timeout: Duration,
    /// When not empty: the only addresses that may be connected to; the name is not looked up, and the ports in them
    /// do not matter. A host that is an address itself must be among them.
    pub pinned: Vec<SocketAddr>,
    /// The proxy to send it to, which then finds the server; it is connected to directly when none.
    pub proxy: Option<HttpProxy>,
    /// Whether to ask for a packed body and to unpack it. The length that the server named is then that of the packed
    /// body.
    pub decompress: bool,
}

/// How long a connection may take when nobody says otherwise.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

impl HttpRequest {
    /// A request without a body.
    pub fn new(method: HttpMethod, url: impl Into<String>) -> Self {
        Self {
            method,
            url: url.into(),
            headers: HttpHeaders::default(),
            body: Bytes::new(),
            connect_timeout: CONNECT_TIMEOUT,
            pinned: Vec::new(),
            proxy: None,
            decompress: false,
        }
    }

    /// With one more header field.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push(name, value);
        self
    }

    /// With a body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }
}

impl fmt::Debug for HttpRequest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("HttpRequest")
            .field("method", &self.method)
            .field("url", &self.url)
            .field("headers", &self.headers)
            .field("body_bytes", &self.body.len())
            .field("pinned", &self.pinned)
            .field("proxy", &self.proxy)
            .finish_non_exhaustive()
    }
}

/// What can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpMethod {
    /// Read.
    Get,
    /// Read the head alone.
    Head,
    /// Give something to be worked on.
    Post,
    /// Put something in place.
    Put,
    /// Change something.
    Patch,
    /// Remove something.
    Delete,
}

/// Header fields in the order they were sent; names are compared without case.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct HttpHeaders {
    fields: Vec<(String, String)>,
}

impl HttpHeaders {
    /// Adds a field; one of the same name stays beside it.
    pub fn push(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.fields.push((name.into(), value.into()));
    }

    /// The first field of a name. Bytes that are no text came as U+FFFD.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// All fields, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.fields.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for HttpHeaders {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(fields: I) -> Self {
        Self { fields: fields.into_iter().map(|(name, value)| (name.into(), value.into())).collect() }
    }
}

/// Names only: keys travel in values.
impl fmt::Debug for HttpHeaders {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_list().entries(self.fields.iter().map(|(name, _)| name)).finish()
    }
}

/// An answer: its head, and its body while it arrives.
pub struct HttpResponse {
    /// The status, 200 to 599.
    pub status: u16,
    /// Header fields.
    pub headers: HttpHeaders,
    /// Who answered, where that is known: the address that was really connected to.
    pub peer: Option<SocketAddr>,
    /// The body.
    pub body: HttpBody,
}

impl fmt::Debug for HttpResponse {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("HttpResponse")
            .field("status", &self.status)
            .field("headers", &self.headers)
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

/// A body in pieces, as they arrive; never longer in memory than what has arrived and was not taken yet. It ends after
/// its last byte or after its first error.
pub type HttpBody = BoxStream<'static, Result<Bytes, HttpError>>;

/// Why there is no answer, or no more of it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HttpError {
    /// The request cannot be sent as it is; nothing went out.
    #[error("the request cannot be sent: {reason}")]
    Request {
        /// What is wrong with it.
        reason: String,
    },
    /// The name leads nowhere; nothing went out.
    #[error("the name {host:?} cannot be resolved: {reason}; check its spelling and the network")]
    Resolve {
        /// The name.
        host: String,
        /// What the resolver said.
        reason: String,
    },
    /// No connection; nothing went out.
    #[error("no connection to {host:?}: {reason}; check that it runs and can be reached")]
    Connect {
        /// Who was called.
        host: String,
        /// What the system said.
        reason: String,
    },
    /// No connection in time; nothing went out.
    #[error("no connection to {host:?} within {timeout_ms} ms")]
    ConnectTimeout {
        /// Who was called.
        host: String,
        /// What was allowed, in milliseconds.
        timeout_ms: u64,
    },
    /// The connection is not trusted; nothing went out.
    #[error("no safe connection to {host:?}: {reason}")]
    Tls {
        /// Who was called.
        host: String,
        /// What is wrong.
        reason: String,
    },
    /// The other side went away before its answer was whole. It may have seen the request.
    #[error("the connection broke before the answer was whole: {reason}")]
    Reset {
        /// What was seen.
        reason: String,
    },
    /// What came is not HTTP.
    #[error("the answer is not valid HTTP: {reason}")]
    Protocol {
        /// What is wrong.
        reason: String,
    },
    /// The body cannot be unpacked.
    #[error("the body cannot be unpacked: {reason}")]
    Decode {
        /// What is wrong.
        reason: String,
    },
}

impl HttpError {
    /// Whether it is certain that no byte of the request reached a server.
    pub fn nothing_was_sent(&self) -> bool {
        matches!(
            self,
            Self::Request { .. }
                | Self::Resolve { .. }
                | Self::Connect { .. }
                | Self::ConnectTimeout { .. }
                | Self::Tls { .. }
        )
    }
}
