//! The twin of the HTTP port: pages and files that a play offers, behind a network that is not always well.
//!
//! Faults: a name that leads nowhere, no connection (in time), an answer that breaks before or inside of its body, one
//! that ends early as if it were whole, drips for a long time, names a length that is not its own, gives a piece of
//! its body twice, is the server's failure, is no HTTP, or leads somewhere else, also to where nobody may be asked. A
//! server of files (`offer`) changes them meanwhile, gives the whole for a part or another part than was asked for,
//! wants to be asked later, or says no for once.

pub mod offer;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream;
use tokio::time::sleep;
use toolwarden_tools::effects::http::{Http, HttpBody, HttpError, HttpHeaders, HttpMethod, HttpRequest, HttpResponse};

use crate::fate::Fate;
use crate::play::Offer;
use crate::sight::Sight;

use self::offer::{Given, Quirk, Served};

/// Spans that an answer usually takes, in milliseconds.
const ANSWER_MS: [u64; 3] = [0, 20, 400];
/// Into how many pieces a body usually comes.
const PIECES: [usize; 3] = [1, 3, 7];
/// The pause between two pieces of an answer that drips.
const DRIP: Duration = Duration::from_secs(20);

/// Where a server leads that means no good, or knows another one: the first is public, the others are not.
const AWAY: [&str; 5] = [
    "http://mirror.test/elsewhere",
    "http://127.0.0.1:8080/",
    "http://inner.test/",
    "http://[::ffff:10.0.0.7]/",
    "http://half.test/",
];

/// Answers requests.
pub struct PretendedHttp {
    fate: Fate,
    faulty: bool,
    pages: BTreeMap<String, Bytes>,
    offers: BTreeMap<String, Served>,
}

/// What goes wrong with one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Lost,
    Refused,
    Silent,
    Breaks,
    EndsEarly,
    Drips,
    WrongLength,
    Twice,
    Fails,
    Garbled,
    Away,
    Odd(Quirk),
}

/// All of them, in the order of their numbers.
const FAULTS: [Fault; 16] = [
    Fault::Breaks,
    Fault::EndsEarly,
    Fault::Drips,
    Fault::WrongLength,
    Fault::Twice,
    Fault::Fails,
    Fault::Lost,
    Fault::Refused,
    Fault::Silent,
    Fault::Garbled,
    Fault::Away,
    Fault::Odd(Quirk::Changes),
    Fault::Odd(Quirk::WholeForPart),
    Fault::Odd(Quirk::OtherPart),
    Fault::Odd(Quirk::Later),
    Fault::Odd(Quirk::Refuses),
];

impl PretendedHttp {
    /// A network with these pages, by their addresses.
    pub fn new(fate: Fate, pages: impl IntoIterator<Item = (String, String)>, faulty: bool) -> Self {
        let pages = pages.into_iter().map(|(url, text)| (url, Bytes::from(text.into_bytes())));
        Self { fate, faulty, pages: pages.collect(), offers: BTreeMap::new() }
    }

    /// With these files on its servers.
    #[must_use]
    pub fn offering(mut self, offers: impl IntoIterator<Item = Offer>) -> Self {
        self.offers = offers.into_iter().map(|offer| (offer.url.clone(), Served::new(offer))).collect();
        self
    }

    /// What a server gives, before anything goes wrong on the way.
    fn give(&self, request: &HttpRequest, fault: Option<Fault>) -> Given {
        let text = |status: u16, whole: Bytes| {
            let headers: HttpHeaders = [("content-length", whole.len().to_string())].into_iter().collect();
            Given { status, headers, whole }
        };
        if fault == Some(Fault::Fails) {
            return text(503, Bytes::from_static(b"out of order"));
        }
        let away = match fault {
            Some(Fault::Away) => AWAY.get(self.fate.below(5) as usize).copied(),
            _ => self.offers.get(&request.url).and_then(Served::leads_to),
        };
        if let Some(away) = away {
            self.fate.met("a server that leads away");
            let mut given = text(302, Bytes::new());
            given.headers.push("location", away);
            return given;
        }
        let quirk = match fault {
            Some(Fault::Odd(quirk)) => Some(quirk),
            _ => None,
        };
        match (self.offers.get(&request.url), self.pages.get(&request.url)) {
            (Some(served), _) => served.answer(&request.headers, quirk),
            (None, Some(page)) => text(200, page.clone()),
            (None, None) => text(404, Bytes::from_static(b"no such page")),
        }
    }

    fn fault(&self) -> Option<Fault> {
        let kinds = u32::try_from(FAULTS.len()).unwrap_or(u32::MAX);
        let fault = FAULTS.get(if self.faulty { self.fate.rare(kinds)? } else { return None } as usize).copied();
        if fault.is_some() {
            self.fate.met("a network that is not well");
        }
        fault
    }
}

impl fmt::Debug for PretendedHttp {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "PretendedHttp({} pages)", self.pages.len())
    }
}

impl Http for PretendedHttp {
    fn exchange(&self, request: HttpRequest) -> BoxFuture<'static, Result<HttpResponse, HttpError>> {
        let fault = self.fault();
        let pinned = request.pinned.first().copied();
        let waits = Duration::from_millis(ANSWER_MS[self.fate.usual(ANSWER_MS.len())]);
        let pieces = PIECES[self.fate.usual(PIECES.len())];
        self.fate.see(&Sight::Connected { url: &request.url, pinned: &request.pinned });
        let given = self.give(&request, fault);
        Box::pin(async move {
            sleep(waits).await;
            let host = host_of(&request.url);
            match fault {
                Some(Fault::Lost) => return Err(HttpError::Resolve { host, reason: "pretended".to_owned() }),
                Some(Fault::Refused) => return Err(HttpError::Connect { host, reason: "pretended".to_owned() }),
                Some(Fault::Silent) => {
                    sleep(request.connect_timeout).await;
                    let timeout_ms = u64::try_from(request.connect_timeout.as_millis()).unwrap_or(u64::MAX);
                    return Err(HttpError::ConnectTimeout { host, timeout_ms });
                }
                Some(Fault::Garbled) => return Err(HttpError::Protocol { reason: "pretended".to_owned() }),
                _ => {}
            }
            let Given { status, headers, whole } = given;
            let headers = match fault {
                Some(Fault::WrongLength) => longer(&headers, whole.len() + 7),
                _ => headers,
            };
            let peer = Some(pinned.unwrap_or(SocketAddr::from((Ipv4Addr::LOCALHOST, 80))));
            let body = match request.method {
                HttpMethod::Head => stream::empty().boxed(),
                _ => body_of(&whole, pieces, fault),
            };
            Ok(HttpResponse { status, headers, peer, body })
        })
    }
}

/// The same fields with another length.
fn longer(headers: &HttpHeaders, length: usize) -> HttpHeaders {
    let others = headers.iter().filter(|(name, _)| *name != "content-length");
    let mut changed: HttpHeaders = others.collect();
    changed.push("content-length", length.to_string());
    changed
}

fn host_of(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split(['/', ':']).next().unwrap_or_default().to_owned()
}

/// A body as it arrives.
fn body_of(whole: &Bytes, pieces: usize, fault: Option<Fault>) -> HttpBody {
    let size = whole.len().div_ceil(pieces).max(1);
    let mut parts: Vec<Result<Bytes, HttpError>> =
        (0..whole.len()).step_by(size).map(|at| Ok(whole.slice(at..(at + size).min(whole.len())))).collect();
    match fault {
        Some(Fault::Breaks) => {
            parts.truncate(parts.len() / 2);
            parts.push(Err(HttpError::Reset { reason: "pretended".to_owned() }));
        }
        Some(Fault::EndsEarly) => parts.truncate(parts.len() / 2),
        Some(Fault::Twice) => {
            if let Some(Ok(first)) = parts.first().cloned() {
                parts.insert(1, Ok(first));
            }
        }
        _ => {}
    }
    let pause = if fault == Some(Fault::Drips) { DRIP } else { Duration::ZERO };
    let arrives = move |part| async move {
        if !pause.is_zero() {
            sleep(pause).await;
        }
        part
    };
    stream::iter(parts).then(arrives).boxed()
}

#[cfg(test)]
mod tests {
    use futures_util::TryStreamExt as _;
    use toolwarden_tools::effects::http::{Http as _, HttpError, HttpMethod, HttpRequest};

    use super::{FAULTS, PretendedHttp};
    use crate::fate::Fate;
    use crate::seed::Choices;

    const URL: &str = "http://pages.test/a";

    async fn get(choices: Vec<u32>, url: &str) -> Result<(u16, Vec<u8>), HttpError> {
        let fate = Fate::new(Choices::from_list(choices), Vec::new(), true, false);
        let http = PretendedHttp::new(fate, [(URL.to_owned(), "0123456789".to_owned())], true);
        let answer = http.exchange(HttpRequest::new(HttpMethod::Get, url)).await?;
        let body: Vec<bytes::Bytes> = answer.body.try_collect().await?;
        Ok((answer.status, body.concat()))
    }

    #[tokio::test(start_paused = true)]
    async fn pages_are_there_and_each_fault_is_one_that_the_port_knows() {
        assert_eq!(get(vec![], URL).await, Ok((200, b"0123456789".to_vec())));
        assert_eq!(get(vec![0, 0, 2], URL).await, Ok((200, b"0123456789".to_vec())), "in seven pieces");
        assert_eq!(get(vec![], "http://pages.test/b").await.unwrap().0, 404);
        let mut broken = 0;
        for (number, _) in (1..).zip(FAULTS) {
            // The fault, the span, and three pieces.
            match get(vec![number, 0, 1], URL).await {
                Err(_) => broken += 1,
                Ok((503 | 302, _)) => {}
                Ok((status, body)) => assert!(status == 200 && !body.is_empty(), "{number}: {body:?}"),
            }
        }
        assert_eq!(broken, 5);
    }
}
