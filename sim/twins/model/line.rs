//! The line to a pretended provider: the HTTP port of one request to a model, answered with a turn in its protocol.
//!
//! Faults: the stream is cut (with an error or as if it had ended), pauses for longer than anybody waits, says an event
//! twice, or has an event whose JSON is damaged; the provider answers that it is overloaded or wants to be asked later,
//! says so inside of a stream that began well, or answers with a page of HTML. Where the play is paced, the pieces come a
//! span apart, and the stream may go silent before its last word.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::future::{BoxFuture, FutureExt as _};
use futures_util::stream;
use tokio::time::sleep;
use toolwarden::models::ModelTurn;
use toolwarden_tools::effects::http::{Http, HttpError, HttpHeaders, HttpRequest, HttpResponse};

use super::stream::{Conversation, events, last_events, unpaired};
use crate::fate::Fate;
use crate::play::Wire;

/// Into how many pieces a text usually comes.
const TEXT_PIECES: [usize; 3] = [1, 2, 5];
/// How many bytes usually arrive at once.
const PACKET_BYTES: [usize; 4] = [usize::MAX, 1_000, 97, 13];
/// Spans between two pieces of a paced stream, in milliseconds.
const PIECE_MS: [u64; 4] = [0, 20, 60, 250];
/// How long a stream pauses that nobody waits for.
const PAUSE: Duration = Duration::from_secs(300);

/// Answers one request.
pub(super) struct Line {
    pub(super) fate: Fate,
    pub(super) faulty: bool,
    /// Whether it is only cut, of all that may happen.
    pub(super) only_cuts: bool,
    pub(super) paced: bool,
    pub(super) wire: Wire,
    pub(super) sent: ModelTurn,
    /// Whether what arrives can be told from what was sent: set when something was done that nobody can notice.
    pub(super) is_bent: Arc<AtomicBool>,
    /// Told what is wrong with how calls and results of the request fit together.
    pub(super) unpaired: Arc<dyn Fn(String) + Send + Sync>,
}

/// What goes wrong with one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Cut,
    EndsEarly,
    Pauses,
    Twice,
    Damaged,
    Overloaded,
    Later,
    FailsInside,
    Page,
    /// Everything but the last word comes, and then nothing.
    NoEnd,
}

/// All of them, in the order of their numbers.
const FAULTS: [Fault; 12] = [
    Fault::Cut,
    Fault::EndsEarly,
    Fault::Pauses,
    Fault::Twice,
    Fault::Damaged,
    Fault::Overloaded,
    Fault::Later,
    Fault::FailsInside,
    Fault::Page,
    // What a slow line is for.
    Fault::NoEnd,
    Fault::NoEnd,
    Fault::NoEnd,
];
/// How many of them there are where a stream is not paced.
const PLAIN_FAULTS: usize = 9;

/// How many of them are cuts; those come first.
const CUTS: usize = 2;

impl fmt::Debug for Line {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Line({:?})", self.wire)
    }
}

/// What comes of a body, piece by piece.
type Step = Result<Bytes, HttpError>;

impl Line {
    fn fault(&self) -> Option<Fault> {
        let kinds = match (self.only_cuts, self.paced) {
            (true, _) => CUTS,
            (false, true) => FAULTS.len(),
            (false, false) => PLAIN_FAULTS,
        };
        let kinds = u32::try_from(kinds).unwrap_or(u32::MAX);
        let fault = if self.faulty { FAULTS.get(self.fate.rare(kinds)? as usize).copied() } else { None };
        if fault.is_some() {
            self.fate.met("a stream that is not well");
        }
        fault
    }

    /// The stream as it arrives, and before which of its pieces it pauses.
    fn stream(&self, fault: Option<Fault>) -> (Vec<Step>, Option<usize>) {
        let pieces = TEXT_PIECES[self.fate.usual(TEXT_PIECES.len())];
        let mut events = events(self.wire, &self.sent, pieces);
        let any = |bound: usize| self.fate.below(u32::try_from(bound).unwrap_or(u32::MAX)) as usize;
        match fault {
            Some(Fault::Twice) => {
                self.is_bent.store(true, Ordering::Relaxed);
                let at = any(events.len());
                events.insert(at, events[at].clone());
            }
            Some(Fault::Damaged) => {
                // Such that no JSON is left of it: what is damaged and still JSON can be noticed by nobody.
                let at = any(events.len());
                events[at].1 = format!("{{\"type\": \"\u{1}{}", &events[at].1);
            }
            Some(Fault::FailsInside) => {
                let at = any(events.len());
                let failure = match self.wire {
                    Wire::Chat => ("", r#"{"error": {"message": "pretended", "type": "server_error"}}"#),
                    Wire::Responses => {
                        ("error", r#"{"type": "error", "code": "server_error", "message": "pretended"}"#)
                    }
                    Wire::Claude => {
                        ("error", r#"{"type": "error", "error": {"type": "overloaded_error", "message": "pretended"}}"#)
                    }
                };
                events.truncate(at);
                events.push((failure.0, failure.1.to_owned()));
            }
            Some(Fault::NoEnd) => {
                self.fate.met("a stream without its end");
                events.truncate(events.len().saturating_sub(last_events(self.wire)));
            }
            _ => {}
        }
        let mut bytes = Vec::new();
        for (kind, data) in events {
            if !kind.is_empty() {
                bytes.extend_from_slice(format!("event: {kind}\n").as_bytes());
            }
            bytes.extend_from_slice(format!("data: {data}\n\n").as_bytes());
        }
        if matches!(fault, Some(Fault::Cut | Fault::EndsEarly)) {
            bytes.truncate(any(bytes.len()));
        }
        let packet = PACKET_BYTES[self.fate.usual(PACKET_BYTES.len())].min(bytes.len().max(1));
        let mut steps: Vec<Step> = bytes.chunks(packet).map(|part| Ok(Bytes::copy_from_slice(part))).collect();
        let mut pause = (fault == Some(Fault::Pauses)).then(|| any(steps.len().max(1)));
        if fault == Some(Fault::NoEnd) {
            pause = Some(steps.len());
            steps.push(Ok(Bytes::new()));
        }
        if fault == Some(Fault::Cut) {
            steps.push(Err(HttpError::Reset { reason: "pretended".to_owned() }));
        }
        (steps, pause)
    }
}

impl Http for Line {
    fn exchange(&self, request: HttpRequest) -> BoxFuture<'static, Result<HttpResponse, HttpError>> {
        match serde_json::from_slice::<Conversation>(&request.body) {
            Ok(body) => unpaired(self.wire, &body.messages).into_iter().for_each(|words| (self.unpaired)(words)),
            Err(error) => (self.unpaired)(format!("the request is not JSON: {error}")),
        }
        let fault = self.fault();
        let piece_ms = if self.paced { PIECE_MS[self.fate.usual(PIECE_MS.len())] } else { 0 };
        let answer = |status: u16, fields: &[(&str, &str)], steps: Vec<Step>, pause: Option<usize>| {
            let headers: HttpHeaders = fields.iter().copied().collect();
            let steps = stream::iter(steps.into_iter().enumerate()).then(move |(number, step)| async move {
                if pause == Some(number) {
                    sleep(PAUSE).await;
                } else if piece_ms > 0 {
                    sleep(Duration::from_millis(piece_ms)).await;
                }
                step
            });
            Ok(HttpResponse { status, headers, peer: None, body: steps.boxed() })
        };
        let json = ("content-type", "application/json");
        let body = |text: &'static str| vec![Ok(Bytes::from_static(text.as_bytes()))];
        let response = match fault {
            Some(Fault::Overloaded) => {
                answer(529, &[json], body(r#"{"error": {"type": "overloaded_error", "message": "pretended"}}"#), None)
            }
            Some(Fault::Later) => answer(429, &[json, ("retry-after", "3")], body(r#"{"error": {}}"#), None),
            Some(Fault::Page) => answer(200, &[("content-type", "text/html")], body("<html>pretended</html>"), None),
            _ => {
                let (steps, pause) = self.stream(fault);
                answer(200, &[("content-type", "text/event-stream")], steps, pause)
            }
        };
        async move { response }.boxed()
    }
}
