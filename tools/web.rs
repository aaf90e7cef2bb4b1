//! How tools reach the web: every hop judged before it is taken, and held to what was judged.
//!
//! A tool that holds a [`Web`] can ask only where its guard lets it: public addresses, and the private origins that the
//! host named. Nothing here shows a query, a fragment or credentials of an address: keys travel in them.

pub mod redirects;
pub mod ssrf;

use std::fmt;
use std::future::ready;
use std::net::IpAddr;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use thiserror::Error;
use url::Url;

use self::ssrf::AllowedOrigins;
use crate::effects::http::proxy::HttpProxy;
use crate::effects::http::{Http, HttpError, HttpRequest, HttpResponse};
use crate::effects::resolver::{ResolveError, Resolver};

/// Longest address that is taken, in bytes.
pub const ADDRESS_BYTES_MAX: usize = 8192;
/// Longest path of an address that is shown, in bytes.
const SHOWN_PATH_BYTES_MAX: usize = 512;

/// The way to the web; cheap to clone.
#[derive(Debug, Clone)]
pub struct Web {
    /// Carries out one exchange at a time.
    pub http: Arc<dyn Http>,
    /// Resolves names, so that the answer can be judged.
    pub resolver: Arc<dyn Resolver>,
    /// What the host allows although it is not public.
    pub allowed: Arc<AllowedOrigins>,
    /// The proxy that everything public is asked through; none when it is asked directly. Names are then resolved by the
    /// proxy alone, so what they stand for cannot be judged here; allowed private origins are asked directly.
    pub proxy: Option<HttpProxy>,
}

/// Why nothing was got from the web.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum WebError {
    /// Not an address that can be asked.
    #[error("{reason}; give an http or https address")]
    Address {
        /// What is wrong with it.
        reason: String,
    },
    /// It leads to where nothing is asked.
    #[error(
        "{host} is not on the public internet{}, so it is not asked; the host of this session can allow its origin",
        .address.as_ref().map(|address| format!(" ({address})")).unwrap_or_default()
    )]
    Private {
        /// Name or address.
        host: String,
        /// What the name stands for.
        address: Option<String>,
    },
    /// The session has no network.
    #[error(
        "{host} is not asked: the sandbox of this session has no network (--no-network, Confinement::without_network); \
         open the session with a network to reach the web"
    )]
    Offline {
        /// Who was to be asked.
        host: String,
    },
    /// The name leads nowhere.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// A redirect that is not followed.
    #[error("the redirect from {from} is not followed: {reason}")]
    Redirect {
        /// Who sent it, as far as it may be shown.
        from: String,
        /// Why not.
        reason: String,
    },
    /// Another machine answered than was allowed to.
    #[error("{host} was answered by {peer}, which is none of its addresses; nothing of it was taken")]
    Peer {
        /// Who was asked.
        host: String,
        /// Who answered.
        peer: String,
    },
    /// It did not begin to answer.
    #[error("{host} did not begin to answer within {timeout_ms} ms")]
    Silent {
        /// Who was asked.
        host: String,
        /// What was allowed.
        timeout_ms: u64,
    },
    /// The exchange failed.
    #[error(transparent)]
    Http(#[from] HttpError),
}

impl Web {
    /// No way to the web: every question is refused before a name is looked up or a connection made.
    pub fn offline() -> Self {
        Self {
            http: Arc::new(Unreachable),
            resolver: Arc::new(Unreachable),
            allowed: Arc::new(AllowedOrigins::offline()),
            proxy: None,
        }
    }
}

/// The ports of a session without a network.
#[derive(Debug, Clone, Copy)]
struct Unreachable;

/// What they say.
const NO_NETWORK: &str = "the sandbox of this session has no network (--no-network)";

impl Http for Unreachable {
    fn exchange(&self, _request: HttpRequest) -> BoxFuture<'static, Result<HttpResponse, HttpError>> {
        Box::pin(ready(Err(HttpError::Request { reason: NO_NETWORK.to_owned() })))
    }
}

impl Resolver for Unreachable {
    fn resolve(&self, name: String) -> BoxFuture<'static, Result<Vec<IpAddr>, ResolveError>> {
        Box::pin(ready(Err(ResolveError { name, reason: NO_NETWORK.to_owned() })))
    }
}

impl WebError {
    /// Whether the same request may fare better a little later.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Silent { .. } | Self::Resolve(_) => true,
            Self::Http(error) => !matches!(error, HttpError::Request { .. } | HttpError::Tls { .. }),
            Self::Address { .. }
            | Self::Private { .. }
            | Self::Offline { .. }
            | Self::Redirect { .. }
            | Self::Peer { .. } => false,
        }
    }
}

/// An address as a person or a model may see it: scheme, host, port and path.
pub fn shown(url: &Url) -> Shown<'_> {
    Shown(url)
}

/// See [`shown`].
pub struct Shown<'u>(&'u Url);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = self.0;
        write!(out, "{}://{}", url.scheme(), url.host_str().unwrap_or_default())?;
        if let Some(port) = url.port() {
            write!(out, ":{port}")?;
        }
        let path = url.path();
        out.write_str(&path[..path.floor_char_boundary(SHOWN_PATH_BYTES_MAX)])
    }
}

/// Reads an address that somebody gave: http or https, with a host, without credentials; its fragment is dropped.
///
/// # Errors
/// [`WebError::Address`], which shows nothing of what may be secret.
pub fn address(text: &str) -> Result<Url, WebError> {
    let wrong = |reason: String| WebError::Address { reason };
    if text.len() > ADDRESS_BYTES_MAX {
        return Err(wrong(format!("the address has {} bytes; at most {ADDRESS_BYTES_MAX} are taken", text.len())));
    }
    let mut url = Url::parse(text.trim()).map_err(|error| wrong(format!("the address cannot be read ({error})")))?;
    ssrf::check_form(&url)?;
    url.set_fragment(None);
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::{WebError, address, shown};

    #[test]
    fn what_is_shown_holds_no_query_and_no_credentials() {
        let url = address("https://a.example:8443/x/y?X-Amz-Signature=hush#part").unwrap();
        assert_eq!(shown(&url).to_string(), "https://a.example:8443/x/y");
        assert_eq!((url.query(), url.fragment()), (Some("X-Amz-Signature=hush"), None));
        for wrong in
            ["https://me:hush@a.example/", "ftp://a.example/hush", "data:,hush", "hush", "http://", "file:///hush"]
        {
            let error = address(wrong).unwrap_err();
            assert!(matches!(error, WebError::Address { .. }), "{wrong}");
            assert!(!error.to_string().contains("hush"), "{wrong}: {error}");
        }
        assert!(address(&format!("http://a.example/{}", "x".repeat(9000))).is_err());
    }
}
