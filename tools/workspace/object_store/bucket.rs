//! Where a bucket is and how to get in: its address, its endpoint, its credentials.
//!
//! Credentials are values that were handed in; nothing here reads an environment or asks a machine for some, and none of
//! them is ever shown. Plain HTTP is taken for this machine alone unless the host says otherwise: a signature keeps the
//! key, but not what is read and written.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path as Key;
use object_store::{BackoffConfig, ClientOptions, RetryConfig};
use thiserror::Error;
use url::{Host, Url};

use crate::effects::files::FileError;
use crate::workspace_path::WorkspacePath;

/// How an address of a bucket begins.
pub(super) const SCHEME: &str = "s3://";
/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a store may be silent within an answer.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// How often a request is repeated that failed on the way or that the store turned away for now.
const RETRIES: usize = 3;
/// The first wait before a request is repeated; each further one is twice as long.
const BACKOFF: Duration = Duration::from_millis(100);
/// The longest wait before a request is repeated.
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// After this long nothing is repeated any more.
const RETRY_TIMEOUT: Duration = Duration::from_secs(40);
/// The region of a store that has none of its own.
const REGION_DEFAULT: &str = "us-east-1";

/// A bucket, and the prefix in it that is the workspace: `s3://bucket/some/prefix`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketPlace {
    bucket: String,
    /// Names joined by `/`, without one at either end; empty for the whole bucket.
    prefix: String,
}

/// How to get into a bucket.
#[derive(Debug, Clone, Default)]
pub struct BucketAccess {
    /// The store's address; Amazon's own when none.
    pub endpoint: Option<String>,
    /// The store's region; `us-east-1` when none.
    pub region: Option<String>,
    /// Who asks; none asks without a signature.
    pub credentials: Option<BucketCredentials>,
    /// Whether plain HTTP may be spoken to another machine.
    pub plain_http: bool,
    /// How long one access may take; [`super::ACCESS_TIMEOUT`] when none.
    pub timeout: Option<Duration>,
}

/// Keys of a store; never shown.
#[derive(Clone)]
pub struct BucketCredentials {
    /// The name of the key.
    pub access_key_id: String,
    /// The key.
    pub secret_access_key: String,
    /// For keys that were given for some time only.
    pub session_token: Option<String>,
}

impl fmt::Debug for BucketCredentials {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("BucketCredentials")
    }
}

/// Why a bucket cannot be a workspace.
#[derive(Debug, Error)]
pub enum BucketError {
    /// Not the address of a bucket.
    #[error("{address:?} is not the address of a bucket ({reason}); give s3://BUCKET or s3://BUCKET/PREFIX")]
    Address {
        /// As it was given.
        address: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// Not the address of a store.
    #[error("{endpoint:?} is not the address of a store ({reason}); give https://HOST or https://HOST:PORT")]
    Endpoint {
        /// As it was given, without what may be secret.
        endpoint: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// Nobody to ask as.
    #[error(
        "no credentials for {place}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a \
         bucket that is open to all"
    )]
    NoCredentials {
        /// The bucket.
        place: String,
    },
    /// The client cannot be made.
    #[error("the store cannot be reached: {reason}")]
    Client {
        /// Why.
        reason: String,
    },
    /// The bucket is not there, or lets nobody in.
    #[error(transparent)]
    Files(#[from] FileError),
}

impl BucketPlace {
    /// Whether a text is meant as the address of a bucket.
    pub fn is_address(text: &str) -> bool {
        text.get(..SCHEME.len()).is_some_and(|start| start.eq_ignore_ascii_case(SCHEME))
    }

    /// Reads `s3://bucket/prefix`.
    ///
    /// # Errors
    /// [`BucketError::Address`].
    pub fn parse(address: &str) -> Result<Self, BucketError> {
        let wrong = |reason| BucketError::Address { address: address.to_owned(), reason };
        let rest = Self::is_address(address).then(|| &address[SCHEME.len()..]).ok_or_else(|| wrong("no s3://"))?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let is_name =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.' | b'_');
        if !(3..=63).contains(&bucket.len()) || !bucket.bytes().all(|byte| is_name(byte) || byte.is_ascii_uppercase()) {
            return Err(wrong("a bucket has 3 to 63 letters, digits, dots and hyphens"));
        }
        let prefix = prefix.trim_matches('/');
        Key::parse(prefix).map_err(|_| wrong("its prefix is no path"))?;
        Ok(Self { bucket: bucket.to_owned(), prefix: prefix.to_owned() })
    }

    /// The key of a path.
    pub(super) fn key(&self, path: &WorkspacePath) -> Result<Key, FileError> {
        let wrong = |reason: &'static str| FileError::Io {
            op: "name",
            path: path.to_string(),
            source: std::io::Error::new(std::io::ErrorKind::InvalidFilename, reason),
        };
        let text = std::str::from_utf8(path.as_bytes()).map_err(|_| wrong("a key of a bucket is UTF-8"))?;
        let whole = match (self.prefix.is_empty(), text.is_empty()) {
            (true, _) => text.to_owned(),
            (false, true) => self.prefix.clone(),
            (false, false) => format!("{}/{text}", self.prefix),
        };
        Key::parse(&whole).map_err(|_| wrong("a key of a bucket holds no control characters"))
    }

    /// How the keys of everything in a folder begin.
    pub(super) fn inside(&self, folder: &WorkspacePath) -> Result<String, FileError> {
        let key = self.key(folder)?;
        Ok(if key.as_ref().is_empty() { String::new() } else { format!("{key}/") })
    }
}

impl fmt::Display for BucketPlace {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slash = if self.prefix.is_empty() { "" } else { "/" };
        write!(out, "{SCHEME}{}{slash}{}", self.bucket, self.prefix)
    }
}

impl BucketAccess {
    /// Reads the variables that other programs for such stores read: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`,
    /// `AWS_SESSION_TOKEN`, `AWS_REGION` or `AWS_DEFAULT_REGION`, `AWS_ENDPOINT_URL_S3` or `AWS_ENDPOINT_URL`,
    /// `AWS_ALLOW_HTTP`, `AWS_SKIP_SIGNATURE`.
    ///
    /// # Errors
    /// [`BucketError::NoCredentials`] when there are none and it is not said that none are needed.
    pub fn from_variables(variables: &BTreeMap<String, String>, place: &BucketPlace) -> Result<Self, BucketError> {
        let text = |name: &str| variables.get(name).map(|value| value.trim()).filter(|value| !value.is_empty());
        let owned = |names: &[&str]| names.iter().find_map(|name| text(name)).map(str::to_owned);
        let is_set = |name: &str| text(name).is_some_and(|value| value.eq_ignore_ascii_case("true") || value == "1");
        let credentials = match (text("AWS_ACCESS_KEY_ID"), text("AWS_SECRET_ACCESS_KEY")) {
            _ if is_set("AWS_SKIP_SIGNATURE") => None,
            (Some(id), Some(secret)) => Some(BucketCredentials {
                access_key_id: id.to_owned(),
                secret_access_key: secret.to_owned(),
                session_token: owned(&["AWS_SESSION_TOKEN"]),
            }),
            _ => return Err(BucketError::NoCredentials { place: place.to_string() }),
        };
        Ok(Self {
            endpoint: owned(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]),
            region: owned(&["AWS_REGION", "AWS_DEFAULT_REGION"]),
            credentials,
            plain_http: is_set("AWS_ALLOW_HTTP"),
            timeout: None,
        })
    }

    /// What must never be told.
    pub(super) fn secrets(&self) -> Vec<String> {
        let Some(keys) = &self.credentials else { return Vec::new() };
        let all = [Some(&keys.secret_access_key), keys.session_token.as_ref(), Some(&keys.access_key_id)];
        all.into_iter().flatten().filter(|secret| !secret.is_empty()).cloned().collect()
    }

    /// A client for a bucket.
    pub(super) fn client(&self, place: &BucketPlace) -> Result<AmazonS3, BucketError> {
        // Without a provider a client cannot be made; that one is there already is as good.
        let _present = rustls::crypto::ring::default_provider().install_default();
        let retry = RetryConfig {
            backoff: BackoffConfig { init_backoff: BACKOFF, max_backoff: BACKOFF_MAX, base: 2.0 },
            max_retries: RETRIES,
            retry_timeout: RETRY_TIMEOUT,
        };
        // The time of the whole is limited by whoever waits; a large object may come for longer than one access.
        let options = ClientOptions::new()
            .with_allow_http(true)
            .with_timeout_disabled()
            .with_connect_timeout(CONNECT_TIMEOUT)
            .with_read_timeout(READ_TIMEOUT);
        let mut builder = AmazonS3Builder::new()
            .with_client_options(options)
            .with_retry(retry)
            .with_bucket_name(&place.bucket)
            .with_region(self.region.as_deref().unwrap_or(REGION_DEFAULT));
        builder = match &self.credentials {
            None => builder.with_skip_signature(true),
            Some(keys) => {
                let builder =
                    builder.with_access_key_id(&keys.access_key_id).with_secret_access_key(&keys.secret_access_key);
                match &keys.session_token {
                    Some(token) => builder.with_token(token),
                    None => builder,
                }
            }
        };
        if let Some(endpoint) = &self.endpoint {
            builder = builder.with_endpoint(self.checked_endpoint(endpoint)?);
        }
        builder.build().map_err(|error| BucketError::Client { reason: error.to_string() })
    }

    /// The endpoint without a `/` at its end.
    fn checked_endpoint(&self, endpoint: &str) -> Result<String, BucketError> {
        let url = Url::parse(endpoint);
        let shown = |url: &Url| {
            let mut shown = url.clone();
            // Neither can fail for an address with a host, and one without is shown as it is.
            let _ = shown.set_username("");
            let _ = shown.set_password(None);
            shown.set_query(None);
            shown.to_string()
        };
        let wrong = |reason: &'static str| BucketError::Endpoint {
            endpoint: url.as_ref().map_or_else(|_| endpoint.rsplit('@').next().unwrap_or_default().to_owned(), shown),
            reason,
        };
        let Ok(found) = &url else { return Err(wrong("it cannot be read as an address")) };
        if !found.username().is_empty() || found.password().is_some() {
            return Err(wrong("credentials do not belong into it"));
        }
        if found.query().is_some() || found.fragment().is_some() {
            return Err(wrong("it ends with the host or a path"));
        }
        let is_here = match found.host() {
            Some(Host::Domain(name)) => name == "localhost",
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            None => return Err(wrong("it names no host")),
        };
        match found.scheme() {
            "https" => {}
            "http" if is_here || self.plain_http => {}
            "http" => return Err(wrong("plain HTTP to another machine; use https, or set AWS_ALLOW_HTTP=true")),
            _ => return Err(wrong("only http and https are spoken")),
        }
        Ok(found.as_str().trim_end_matches('/').to_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{BucketAccess, BucketCredentials, BucketError, BucketPlace};
    use crate::workspace_path::WorkspacePath;

    #[test]
    fn an_address_names_a_bucket_and_maybe_a_prefix() {
        let shown = |text: &str| BucketPlace::parse(text).map(|place| place.to_string());
        assert_eq!(shown("s3://data").unwrap(), "s3://data");
        assert_eq!(shown("S3://data/").unwrap(), "s3://data");
        assert_eq!(shown("s3://data/a/b c/").unwrap(), "s3://data/a/b c");
        for wrong in ["data", "s3://", "s3://ab", "s3:///x", "s3://a b c", "s3://data/a//b", "s3://data/../x", "s3:"] {
            assert!(matches!(shown(wrong), Err(BucketError::Address { .. })), "{wrong}");
        }
    }

    #[test]
    fn a_path_is_a_key_beneath_the_prefix() {
        let path = |text: &str| WorkspacePath::parse(text, "").unwrap();
        let (whole, part) = (BucketPlace::parse("s3://data").unwrap(), BucketPlace::parse("s3://data/p/q").unwrap());
        assert_eq!(whole.key(&path("a/b %é")).unwrap().as_ref(), "a/b %é");
        assert_eq!(part.key(&path("a")).unwrap().as_ref(), "p/q/a");
        assert_eq!((whole.inside(&path(".")).unwrap(), part.inside(&path(".")).unwrap()), ("".into(), "p/q/".into()));
        assert_eq!(part.inside(&path("a")).unwrap(), "p/q/a/");
        for odd in ["\"new\\nline\"", "\"bad\\377\""] {
            assert!(part.key(&path(odd)).is_err(), "{odd}");
        }
    }

    fn variables(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn the_usual_variables_are_read_and_nothing_is_guessed() {
        let place = BucketPlace::parse("s3://data").unwrap();
        let read = |pairs: &[(&str, &str)]| BucketAccess::from_variables(&variables(pairs), &place);
        let keys = [("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "secret")];
        let both = read(&[keys[0], keys[1], ("AWS_ENDPOINT_URL", "http://a"), ("AWS_ENDPOINT_URL_S3", "http://b")]);
        let both = both.unwrap();
        assert_eq!((both.endpoint.as_deref(), both.region, both.plain_http), (Some("http://b"), None, false));
        assert!(!format!("{:?}", both.credentials).contains("secret"));
        let error = read(&keys[..1]).unwrap_err();
        assert!(error.to_string().contains("AWS_SECRET_ACCESS_KEY"), "{error}");
        assert!(read(&[("AWS_SKIP_SIGNATURE", "true")]).unwrap().credentials.is_none());
    }

    #[test]
    fn an_endpoint_is_safe_and_shows_no_credentials() {
        let place = BucketPlace::parse("s3://data").unwrap();
        let credentials = || {
            let (access_key_id, secret_access_key) = ("id".to_owned(), "secret".to_owned());
            Some(BucketCredentials { access_key_id, secret_access_key, session_token: None })
        };
        let client = |endpoint: &str, plain_http: bool| {
            let endpoint = Some(endpoint.to_owned());
            BucketAccess { endpoint, plain_http, credentials: credentials(), ..Default::default() }.client(&place)
        };
        for good in ["https://store.example", "http://127.0.0.1:9000/", "http://localhost:1", "http://[::1]:2"] {
            assert!(client(good, false).is_ok(), "{good}");
        }
        assert!(client("http://store.example", true).is_ok());
        for wrong in
            ["http://store.example", "ftp://x", "store", "https://me:pass@x", "https://x/?token=hush", "://me:pass@"]
        {
            let error = client(wrong, false).unwrap_err();
            assert!(matches!(&error, BucketError::Endpoint { .. }), "{wrong}: {error}");
            assert!(!error.to_string().contains("pass") && !error.to_string().contains("hush"), "{error}");
        }
    }
}
