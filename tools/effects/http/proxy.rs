//! The address of a proxy that a host named: requests go to it, and it finds the servers.

use std::fmt;

use thiserror::Error;
use url::Url;

/// A proxy: `http://host:port` or `https://host:port`, with a name and a password where it wants them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HttpProxy(String);

/// Why an address cannot be that of a proxy. It shows nothing of what may be secret.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("this is no address of a proxy: {reason}; give http://HOST:PORT or https://HOST:PORT")]
pub struct ProxyError {
    reason: String,
}

impl HttpProxy {
    /// Reads the address of a proxy as a person writes it; without a scheme it is `http`.
    ///
    /// # Errors
    /// [`ProxyError`].
    pub fn parse(text: &str) -> Result<Self, ProxyError> {
        let wrong = |reason: String| ProxyError { reason };
        let text = text.trim();
        let whole = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let url = Url::parse(&whole).map_err(|error| wrong(error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(wrong(format!("proxies of the kind {} are not spoken to", url.scheme())));
        }
        if url.host_str().is_none_or(str::is_empty) {
            return Err(wrong("it names no host".to_owned()));
        }
        if url.path() != "/" || url.query().is_some() || url.fragment().is_some() {
            return Err(wrong("there is more behind host and port".to_owned()));
        }
        Ok(Self(url.into()))
    }

    /// The address as it is, with name and password.
    pub(crate) fn address(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HttpProxy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // It was read once, so it can be read again; where not, nothing is shown.
        let Ok(mut url) = Url::parse(&self.0) else { return Ok(()) };
        let _ = url.set_username("");
        let _ = url.set_password(None);
        out.write_str(url.as_str().trim_end_matches('/'))
    }
}

impl fmt::Debug for HttpProxy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "HttpProxy({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::HttpProxy;

    #[test]
    fn addresses_are_read_and_shown_without_what_is_secret() {
        let proxy = HttpProxy::parse(" http://me:hush@proxy.example:3128/ ").unwrap();
        assert_eq!(
            (proxy.to_string(), format!("{proxy:?}")),
            ("http://proxy.example:3128".into(), "HttpProxy(http://proxy.example:3128)".into())
        );
        assert!(proxy.address().contains("me:hush@"));
        assert_eq!(HttpProxy::parse("proxy.example:3128").unwrap().to_string(), "http://proxy.example:3128");
        assert_eq!(HttpProxy::parse("https://[::1]:8443").unwrap().to_string(), "https://[::1]:8443");
        for wrong in ["", "socks5://hush@p:1080", "http://", "http://p/hush", "http://p?hush", "http://p:99999"] {
            let error = HttpProxy::parse(wrong).unwrap_err().to_string();
            assert!(error.contains("http://HOST:PORT") && !error.contains("hush"), "{wrong}: {error}");
        }
    }
}
