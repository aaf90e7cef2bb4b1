//! One GET, along the redirects that may be followed.
//!
//! Every hop is judged anew and connected to by the addresses that were judged. What leaves its origin leaves its
//! credentials behind, and does not get them back: only what says which bytes are wanted goes along.

use std::time::Duration;

use tokio::time::timeout;
use url::Url;

use super::ssrf::{Origin, Way, admit};
use super::{Web, WebError, shown};
use crate::effects::http::{HttpHeaders, HttpMethod, HttpRequest, HttpResponse};

/// Most redirects that are followed.
pub const REDIRECTS_MAX: usize = 10;
/// How long a server may take until it begins to answer.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// What goes along to another origin: all other header fields may be credentials.
const CARRIED: [&str; 3] = ["accept", "accept-encoding", "range"];
/// How this program names itself.
const USER_AGENT: &str = concat!("toolwarden/", env!("CARGO_PKG_VERSION"));

/// Which redirects are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follow {
    /// All that lead to where may be asked.
    Anywhere,
    /// Those that stay within the origin.
    SameOrigin,
}

/// An answer, and where it came from.
#[derive(Debug)]
pub struct Answer {
    /// The address that answered.
    pub url: Url,
    /// The answer.
    pub response: HttpResponse,
}

/// Asks for an address. The headers are sent as they are while the origin stays the same.
///
/// # Errors
/// [`WebError`]; a status of 400 or 500 is an answer.
pub async fn get(web: &Web, url: &Url, headers: &HttpHeaders, follow: Follow) -> Result<Answer, WebError> {
    let mut url = url.clone();
    let mut headers = headers.clone();
    for _ in 0..=REDIRECTS_MAX {
        let response = exchange(web, &url, &headers).await?;
        if !matches!(response.status, 301 | 302 | 303 | 307 | 308) {
            return Ok(Answer { url, response });
        }
        let next = target(&url, &response)?;
        let is_elsewhere = Origin::of(&url) != Origin::of(&next);
        if is_elsewhere && follow == Follow::SameOrigin {
            return Err(refused(&url, "it leads to another origin in the middle of a file"));
        }
        if is_elsewhere {
            headers = headers.iter().filter(|(name, _)| is_carried(name)).collect();
        }
        url = next;
    }
    Err(refused(&url, &format!("{REDIRECTS_MAX} have been followed already")))
}

fn is_carried(name: &str) -> bool {
    CARRIED.iter().any(|carried| name.eq_ignore_ascii_case(carried))
}

/// One hop.
async fn exchange(web: &Web, url: &Url, headers: &HttpHeaders) -> Result<HttpResponse, WebError> {
    let way = admit(web, url).await?;
    let host = || url.host_str().unwrap_or_default().to_owned();
    let mut request = HttpRequest::new(HttpMethod::Get, url.as_str());
    request.headers = headers.clone();
    if request.headers.get("user-agent").is_none() {
        request.headers.push("user-agent", USER_AGENT);
    }
    let mut pinned = None;
    match way {
        Way::Direct(addresses) => request.pinned = pinned.insert(addresses).clone(),
        Way::Proxy(proxy) => request.proxy = Some(proxy),
    }
    let answered = timeout(HEAD_TIMEOUT, web.http.exchange(request)).await;
    let timeout_ms = u64::try_from(HEAD_TIMEOUT.as_millis()).unwrap_or(u64::MAX);
    let response = answered.map_err(|_elapsed| WebError::Silent { host: host(), timeout_ms })??;
    match response.peer.zip(pinned) {
        Some((peer, pinned)) if !pinned.iter().any(|pin| pin.ip().to_canonical() == peer.ip().to_canonical()) => {
            Err(WebError::Peer { host: host(), peer: peer.ip().to_string() })
        }
        _ => Ok(response),
    }
}

/// Where a redirect leads.
fn target(from: &Url, response: &HttpResponse) -> Result<Url, WebError> {
    let location = response.headers.get("location").ok_or_else(|| refused(from, "it names no place"))?;
    let mut next =
        from.join(location.trim()).map_err(|error| refused(from, &format!("its place cannot be read ({error})")))?;
    next.set_fragment(None);
    if next.as_str().len() > super::ADDRESS_BYTES_MAX {
        return Err(refused(from, "its address is too long"));
    }
    super::ssrf::check_form(&next).map_err(|error| refused(from, &error.to_string()))?;
    Ok(next)
}

fn refused(from: &Url, reason: &str) -> WebError {
    WebError::Redirect { from: shown(from).to_string(), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    use futures_util::future::BoxFuture;
    use futures_util::{FutureExt as _, StreamExt as _};
    use url::Url;

    use super::{Follow, REDIRECTS_MAX, get};
    use crate::effects::http::{Http, HttpError, HttpHeaders, HttpRequest, HttpResponse};
    use crate::web::ssrf::tests::NamesTwin;
    use crate::web::ssrf::{AllowedOrigins, Origin};
    use crate::web::{Web, WebError};

    /// Answers by address: a redirect to somewhere, or 200 where nothing is said. Writes down who was asked with what.
    #[derive(Debug, Default)]
    struct Redirecting {
        to: BTreeMap<String, String>,
        asked: Mutex<Vec<String>>,
    }

    impl Http for Redirecting {
        fn exchange(&self, request: HttpRequest) -> BoxFuture<'static, Result<HttpResponse, HttpError>> {
            let names: Vec<&str> =
                request.headers.iter().map(|(name, _)| name).filter(|name| *name != "user-agent").collect();
            self.asked.lock().unwrap().push(format!("{} {}", request.url, names.join(",")));
            assert!(!request.pinned.is_empty());
            let to = self.to.get(&request.url).map(|to| ("location", to.clone()));
            let status = if to.is_some() { 302 } else { 200 };
            let headers: HttpHeaders = to.into_iter().collect();
            let body = futures_util::stream::empty().boxed();
            async move { Ok(HttpResponse { status, headers, peer: None, body }) }.boxed()
        }
    }

    async fn follow(redirects: &[(&str, &str)], start: &str, how: Follow) -> (Result<String, WebError>, Vec<String>) {
        let to = redirects.iter().map(|(from, to)| ((*from).to_owned(), (*to).to_owned())).collect();
        let http = Arc::new(Redirecting { to, ..Redirecting::default() });
        let names = [("a.example", "1.1.1.1"), ("b.example", "1.1.1.2"), ("inner.example", "10.0.0.1")];
        let names = names.iter().map(|(name, address)| ((*name).to_owned(), vec![address.parse().unwrap()])).collect();
        let allowed: AllowedOrigins = [Origin::parse("http://127.0.0.1:8080").unwrap()].into_iter().collect();
        let (http_port, resolver) = (Arc::clone(&http) as _, Arc::new(NamesTwin(names)));
        let web = Web { http: http_port, resolver, allowed: Arc::new(allowed), proxy: None };
        let headers: HttpHeaders =
            [("Authorization", "x"), ("X-Api-Key", "x"), ("Cookie", "x"), ("If-Range", "x"), ("Range", "x")]
                .into_iter()
                .collect();
        let answer = get(&web, &Url::parse(start).unwrap(), &headers, how).await;
        let asked = http.asked.lock().unwrap().clone();
        (answer.map(|answer| answer.url.to_string()), asked)
    }

    // Case C105: a change of scheme, host or port leaves every credential behind, for good.
    #[tokio::test]
    async fn credentials_stay_with_their_origin() {
        const ALL: &str = "Authorization,X-Api-Key,Cookie,If-Range,Range";
        for (from, to) in [
            ("http://127.0.0.1:8080/", "http://a.example/"),
            ("https://a.example/", "http://a.example/"),
            ("https://a.example/", "https://a.example:444/"),
            ("https://a.example/", "https://b.example/"),
        ] {
            let (answer, asked) = follow(&[(from, to)], from, Follow::Anywhere).await;
            assert_eq!(answer.unwrap(), to);
            assert_eq!(asked, [format!("{from} {ALL}"), format!("{to} Range")]);
        }
        let there_and_back =
            [("http://a.example/", "http://b.example/"), ("http://b.example/", "http://a.example/end")];
        let (_, asked) = follow(&there_and_back, "http://a.example/", Follow::Anywhere).await;
        assert_eq!(asked[2], "http://a.example/end Range");
        let (_, asked) = follow(&[("http://a.example/", "/x#y")], "http://a.example/", Follow::SameOrigin).await;
        assert_eq!(asked[1], format!("http://a.example/x {ALL}"));
    }

    #[tokio::test]
    async fn every_hop_is_judged_and_their_number_is_bounded() {
        for to in [
            "http://inner.example/",
            "http://127.0.0.1/",
            "http://2130706433/",
            "http://0x7f.1/",
            "http://[::1]/",
            "http://u:p@b.example/",
            "file:///etc/passwd",
            "ftp://b.example/",
            "http://",
            "http://169.254.169.254/",
        ] {
            let (answer, asked) =
                follow(&[("http://a.example/?sig=hush", to)], "http://a.example/?sig=hush", Follow::Anywhere).await;
            let error = answer.unwrap_err();
            assert!(matches!(error, WebError::Redirect { .. } | WebError::Private { .. }), "{to}: {error}");
            assert!(!error.to_string().contains("hush"), "{error}");
            assert_eq!(asked.len(), 1, "{to}");
        }
        let (answer, asked) =
            follow(&[("http://a.example/", "http://a.example/")], "http://a.example/", Follow::Anywhere).await;
        assert!(matches!(answer, Err(WebError::Redirect { .. })));
        assert_eq!(asked.len(), REDIRECTS_MAX + 1);
        let elsewhere = [("http://a.example/", "http://b.example/")];
        let (answer, _) = follow(&elsewhere, "http://a.example/", Follow::SameOrigin).await;
        assert!(matches!(answer, Err(WebError::Redirect { .. })));
    }
}
