//! The real side of the HTTP port: a pooled client over TCP and TLS.
//!
//! A client fixes its pins, its proxy, its connect timeout and whether it unpacks, and a pooled connection asks no
//! resolver; so there is one client for each such set, and requests with different pins never share a connection. The trusted
//! roots are those of the system together with Mozilla's, read once, when the first `https` address is asked for.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _};
use futures_util::stream::StreamExt as _;
use reqwest::header::{HeaderName, HeaderValue};
use rustls::{ClientConfig, RootCertStore};
use url::{Host, Url};

use super::proxy::HttpProxy;
use super::{Http, HttpError, HttpHeaders, HttpMethod, HttpRequest, HttpResponse};

/// Clients kept for later requests.
const CLIENTS_MAX: usize = 16;
/// Idle connections kept for one host.
const IDLE_CONNECTIONS_MAX: usize = 16;
/// How long an idle connection is kept; servers that close theirs sooner are noticed when they do.
const IDLE_TIMEOUT: Duration = Duration::from_secs(50);
/// The size of all header fields of an HTTP/2 answer, in bytes; HTTP/1 allows 100 fields.
const HEADERS_BYTES_MAX: u32 = 64 * 1024;
/// Causes of an error that are looked at.
const CAUSES_MAX: usize = 16;

/// The network of this machine.
#[derive(Debug, Default)]
pub struct SystemHttp {
    clients: Mutex<Clients>,
    trusting: OnceLock<Result<ClientConfig, HttpError>>,
    trusting_nobody: OnceLock<Result<ClientConfig, HttpError>>,
}

#[derive(Debug, Default)]
struct Clients {
    by_setting: BTreeMap<Setting, Kept>,
    uses: u64,
}

#[derive(Debug)]
struct Kept {
    client: reqwest::Client,
    used_at: u64,
}

/// What is fixed for the life of a client.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Setting {
    secure: bool,
    decompress: bool,
    connect_timeout: Duration,
    pinned: Option<(String, Vec<SocketAddr>)>,
    proxy: Option<HttpProxy>,
}

impl SystemHttp {
    /// Connects when it is first asked.
    pub fn new() -> Self {
        Self::default()
    }

    fn client(&self, setting: Setting) -> Result<reqwest::Client, HttpError> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        clients.uses += 1;
        let used_at = clients.uses;
        if let Some(kept) = clients.by_setting.get_mut(&setting) {
            kept.used_at = used_at;
            return Ok(kept.client.clone());
        }
        if clients.by_setting.len() >= CLIENTS_MAX {
            let oldest = clients.by_setting.iter().min_by_key(|(_, kept)| kept.used_at).map(|(key, _)| key.clone());
            oldest.and_then(|key| clients.by_setting.remove(&key));
        }
        let client = self.build(&setting)?;
        clients.by_setting.insert(setting, Kept { client: client.clone(), used_at });
        Ok(client)
    }

    #[expect(clippy::disallowed_methods, reason = "the real side of the http port")]
    fn build(&self, setting: &Setting) -> Result<reqwest::Client, HttpError> {
        let tls = if setting.secure {
            self.trusting.get_or_init(|| tls_config(system_roots())).clone()?
        } else {
            self.trusting_nobody.get_or_init(|| tls_config(RootCertStore::empty())).clone()?
        };
        let mut builder = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .redirect(reqwest::redirect::Policy::none())
            .referer(false)
            .retry(reqwest::retry::never())
            .connect_timeout(setting.connect_timeout)
            .gzip(setting.decompress)
            .brotli(setting.decompress)
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .http2_max_header_list_size(HEADERS_BYTES_MAX)
            .tcp_nodelay(true);
        let refused = |error: reqwest::Error| HttpError::Request { reason: reason(&links(&error)) };
        builder = match &setting.proxy {
            Some(proxy) => builder.proxy(reqwest::Proxy::all(proxy.address()).map_err(refused)?),
            // Nor one that the environment names.
            None => builder.no_proxy(),
        };
        if let Some((host, addresses)) = &setting.pinned {
            builder = builder.resolve_to_addrs(host, addresses);
        }
        builder.build().map_err(refused)
    }
}

impl Http for SystemHttp {
    fn exchange(&self, request: HttpRequest) -> BoxFuture<'static, Result<HttpResponse, HttpError>> {
        let prepared = Target::of(&request)
            .and_then(|target| Ok((self.client(target.setting.clone())?, native(&request, &target)?, target)));
        async move {
            let (client, native, target) = prepared?;
            let response = client.execute(native).await.map_err(|error| target.error(&error))?;
            let headers = response
                .headers()
                .iter()
                .map(|(name, value)| (name.as_str(), String::from_utf8_lossy(value.as_bytes())))
                .collect::<HttpHeaders>();
            let (status, peer) = (response.status().as_u16(), response.remote_addr());
            let body = response.bytes_stream().map(move |piece| piece.map_err(|error| target.error(&error)));
            Ok(HttpResponse { status, headers, peer, body: body.boxed() })
        }
        .boxed()
    }
}

/// Who is asked, and how.
#[derive(Debug)]
struct Target {
    url: Url,
    host: String,
    setting: Setting,
}

impl Target {
    fn of(request: &HttpRequest) -> Result<Self, HttpError> {
        let refused = |reason: String| HttpError::Request { reason };
        let url =
            Url::parse(&request.url).map_err(|error| refused(format!("{:?} is no address: {error}", request.url)))?;
        let secure = match url.scheme() {
            "https" => true,
            "http" => false,
            other => return Err(refused(format!("only http and https can be asked, not {other}"))),
        };
        let host = match url.host() {
            Some(Host::Domain(name)) => name.to_owned(),
            Some(Host::Ipv4(address)) => literal(request, IpAddr::V4(address))?,
            Some(Host::Ipv6(address)) => literal(request, IpAddr::V6(address))?,
            None => return Err(refused(format!("{:?} names no host", request.url))),
        };
        let pinned = (!request.pinned.is_empty()).then(|| {
            let mut addresses = request.pinned.clone();
            // The port is that of the address asked for.
            addresses.iter_mut().for_each(|address| address.set_port(0));
            (host.clone(), addresses)
        });
        let setting = Setting {
            // A proxy may be spoken to by TLS as well.
            secure: secure || request.proxy.as_ref().is_some_and(|proxy| proxy.address().starts_with("https:")),
            decompress: request.decompress,
            connect_timeout: request.connect_timeout,
            pinned,
            proxy: request.proxy.clone(),
        };
        Ok(Self { url, host, setting })
    }

    fn error(&self, error: &(dyn StdError + 'static)) -> HttpError {
        let (host, links) = (self.host.clone(), links(error));
        let reason = reason(&links);
        if links.iter().any(|link| link.is::<rustls::Error>()) {
            return HttpError::Tls { host, reason };
        }
        let native = error.downcast_ref::<reqwest::Error>();
        if native.is_some_and(reqwest::Error::is_builder) {
            return HttpError::Request { reason };
        }
        if let Some(native) = native.filter(|native| native.is_connect()) {
            if native.is_timeout() {
                let timeout_ms = u64::try_from(self.setting.connect_timeout.as_millis()).unwrap_or(u64::MAX);
                return HttpError::ConnectTimeout { host, timeout_ms };
            }
            return if native.is_dns() {
                HttpError::Resolve { host, reason }
            } else {
                HttpError::Connect { host, reason }
            };
        }
        let hyper = links.iter().find_map(|link| link.downcast_ref::<hyper::Error>());
        let malformed = links
            .iter()
            .filter_map(|link| link.downcast_ref::<io::Error>())
            .any(|link| matches!(link.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData));
        match hyper {
            None if self.setting.decompress => HttpError::Decode { reason },
            Some(hyper) if hyper.is_parse() || malformed => HttpError::Protocol { reason },
            _ => HttpError::Reset { reason },
        }
    }
}

/// A host that is an address asks no resolver, so a pin could not hold it.
fn literal(request: &HttpRequest, address: IpAddr) -> Result<String, HttpError> {
    let canonical = address.to_canonical();
    if request.pinned.is_empty() || request.pinned.iter().any(|pinned| pinned.ip().to_canonical() == canonical) {
        return Ok(address.to_string());
    }
    Err(HttpError::Request { reason: format!("{address} is not among the addresses that may be connected to") })
}

fn native(request: &HttpRequest, target: &Target) -> Result<reqwest::Request, HttpError> {
    let method = match request.method {
        HttpMethod::Get => reqwest::Method::GET,
        HttpMethod::Head => reqwest::Method::HEAD,
        HttpMethod::Post => reqwest::Method::POST,
        HttpMethod::Put => reqwest::Method::PUT,
        HttpMethod::Patch => reqwest::Method::PATCH,
        HttpMethod::Delete => reqwest::Method::DELETE,
    };
    let sends_body = matches!(request.method, HttpMethod::Post | HttpMethod::Put | HttpMethod::Patch);
    let mut native = reqwest::Request::new(method, target.url.clone());
    for (name, value) in request.headers.iter() {
        // The value stays out of the message: it may be a key.
        let refused = || HttpError::Request { reason: format!("the header {name:?} holds what HTTP cannot carry") };
        let field = HeaderName::try_from(name).map_err(|_| refused())?;
        let mut content = HeaderValue::try_from(value).map_err(|_| refused())?;
        content.set_sensitive(true);
        native.headers_mut().append(field, content);
    }
    if sends_body || !request.body.is_empty() {
        *native.body_mut() = Some(request.body.clone().into());
    }
    Ok(native)
}

fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots.add_parsable_certificates(webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter().cloned());
    roots
}

fn tls_config(roots: RootCertStore) -> Result<ClientConfig, HttpError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| HttpError::Request { reason: format!("TLS cannot be set up: {error}") })?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// An error and its causes.
fn links<'a>(error: &'a (dyn StdError + 'static)) -> Vec<&'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |link| cause(*link)).take(CAUSES_MAX).collect()
}

/// An `io::Error` hides what it carries from `source`, so it is asked for it.
fn cause<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a (dyn StdError + 'static)> {
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(carried) => Some(carried),
        None => error.source(),
    }
}

/// The last cause alone: those before it name the address, which may hold a secret.
fn reason(links: &[&(dyn StdError + 'static)]) -> String {
    links.last().map_or_else(|| "no reason was given".to_owned(), ToString::to_string)
}

#[cfg(test)]
mod tests;
