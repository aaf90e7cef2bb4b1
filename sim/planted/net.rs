//! Planted faults of downloading: answers that are taken for more than they say, and guards that are gone round.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use toolwarden_tools::effects::http::{Http, HttpError, HttpHeaders, HttpRequest, HttpResponse};

use super::{Planted, Wrap};

/// Most redirects that the blind one follows.
const BLIND_REDIRECTS_MAX: usize = 5;

/// All of them.
pub(super) const NET: [Planted; 5] = [
    net(
        "part-unchecked",
        "any part is taken for the one that was asked for",
        |http| Slack::over(http, Slip::Part),
        "downloads",
        400,
    ),
    net(
        "version-unchecked",
        "parts of two versions are put together",
        |http| Slack::over(http, Slip::Version),
        "downloads",
        400,
    ),
    net(
        "length-unchecked",
        "a body that ends early is taken for the whole",
        |http| Slack::over(http, Slip::Length),
        "downloads",
        400,
    ),
    net(
        "led-away",
        "a redirect is followed without a look at where it leads",
        |http| Slack::over(http, Slip::Blind),
        "origins",
        200,
    ),
    net(
        "not-pinned",
        "a name is looked up again when it is connected to",
        |http| Slack::over(http, Slip::Unpinned),
        "origins",
        20,
    ),
];

const fn net(
    name: &'static str,
    about: &'static str,
    wrap: fn(Arc<dyn Http>) -> Arc<dyn Http>,
    watcher: &'static str,
    seeds_max: u64,
) -> Planted {
    Planted { name, about, scenario: "world-downloads", watcher, seeds_max, wrap: Wrap::Http(wrap) }
}

/// What is not looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slip {
    Part,
    Version,
    Length,
    Blind,
    Unpinned,
}

/// Stands between a tool and the network, and hides from the tool what it is to notice.
struct Slack {
    http: Arc<dyn Http>,
    slip: Slip,
    /// The version that each address had first.
    versions: Arc<Mutex<BTreeMap<String, String>>>,
}

impl fmt::Debug for Slack {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Slack({:?})", self.slip)
    }
}

impl Slack {
    fn over(http: Arc<dyn Http>, slip: Slip) -> Arc<dyn Http> {
        Arc::new(Self { http, slip, versions: Arc::default() })
    }

    fn ask(&self, mut request: HttpRequest) -> BoxFuture<'static, Result<HttpResponse, HttpError>> {
        match self.slip {
            Slip::Version => request.headers = without(&request.headers, "if-range"),
            Slip::Unpinned => request.pinned = Vec::new(),
            _ => {}
        }
        self.http.exchange(request)
    }
}

fn without(headers: &HttpHeaders, name: &str) -> HttpHeaders {
    headers.iter().filter(|(field, _)| !field.eq_ignore_ascii_case(name)).collect()
}

/// The same with another value.
fn with(headers: &HttpHeaders, name: &str, value: String) -> HttpHeaders {
    let mut changed = without(headers, name);
    changed.push(name, value);
    changed
}

impl Http for Slack {
    fn exchange(&self, request: HttpRequest) -> BoxFuture<'static, Result<HttpResponse, HttpError>> {
        let this = Self { http: Arc::clone(&self.http), slip: self.slip, versions: Arc::clone(&self.versions) };
        async move {
            let mut response = this.ask(request.clone()).await?;
            match this.slip {
                Slip::Part => {
                    let asked = request.headers.get("range").and_then(|range| range.strip_prefix("bytes="));
                    let total = response.headers.get("content-range").and_then(|range| range.split('/').nth(1));
                    if let (Some((first, last)), Some(total)) = (asked.and_then(|asked| asked.split_once('-')), total) {
                        let last = match (last, total.parse::<u64>()) {
                            ("", Ok(total)) => total.saturating_sub(1).to_string(),
                            _ => last.to_owned(),
                        };
                        let range = format!("bytes {first}-{last}/{total}");
                        response.headers = with(&response.headers, "content-range", range);
                    }
                }
                Slip::Version => {
                    if let Some(now) = response.headers.get("etag").map(str::to_owned) {
                        let mut versions = this.versions.lock().unwrap_or_else(PoisonError::into_inner);
                        let first = versions.entry(request.url.clone()).or_insert(now).clone();
                        response.headers = with(&response.headers, "etag", first);
                    }
                }
                Slip::Length => response.headers = without(&response.headers, "content-length"),
                Slip::Blind => {
                    for _ in 0..BLIND_REDIRECTS_MAX {
                        let Some(to) = response.headers.get("location").map(str::to_owned) else { break };
                        response = this.ask(HttpRequest { url: to, ..request.clone() }).await?;
                    }
                }
                Slip::Unpinned => {}
            }
            Ok(response)
        }
        .boxed()
    }
}
