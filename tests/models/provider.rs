//! A provider behind the HTTP port: speaks the three protocols, goes on from what a conversation holds, and breaks as told.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::{BoxFuture, FutureExt as _};
use futures_util::stream;
use serde_json::{Value, json};
use toolwarden_tools::effects::http::{Http, HttpError, HttpRequest, HttpResponse};

/// How long the text is that a call carries, in characters: half a call shows by its length.
pub(crate) const PAD_CHARS: usize = 60;
/// Bytes of a piece of an answer.
const PIECE_BYTES: usize = 48;

/// What happens to one answer.
#[derive(Debug, Clone)]
pub(crate) enum Fault {
    None,
    /// Ends after so many pieces, cleanly.
    Cut(usize),
    /// Breaks after so many pieces.
    Reset(usize),
    /// Says nothing more after so many pieces.
    Silence(usize),
    /// Sends this piece twice.
    Twice(usize),
    /// Puts a byte that is no text into this piece.
    Garble(usize),
    /// Waits before this piece, in milliseconds.
    Delay(usize, u64),
    /// Answers with this status instead.
    Status(u16),
    /// A page instead of an answer.
    Page,
    /// There is no connection.
    Refused,
}

/// Gives a call after another, each with its number, then a last word.
pub(crate) struct Provider {
    rounds: usize,
    plan: Box<dyn Fn(usize) -> Fault + Send + Sync>,
    asked: AtomicUsize,
    /// Bodies that were given up before their end.
    pub(crate) dropped: Arc<AtomicUsize>,
    requests: Mutex<Vec<Value>>,
}

impl std::fmt::Debug for Provider {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Provider").field("asked", &self.asked).finish_non_exhaustive()
    }
}

impl Provider {
    /// `plan` says what happens to the n-th answer, counted from 0.
    pub(crate) fn new(rounds: usize, plan: impl Fn(usize) -> Fault + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            rounds,
            plan: Box::new(plan),
            asked: AtomicUsize::new(0),
            dropped: Arc::default(),
            requests: Mutex::default(),
        })
    }

    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    pub(crate) fn requests(&self) -> Vec<Value> {
        self.requests.lock().unwrap().clone()
    }
}

impl Http for Provider {
    fn exchange(&self, request: HttpRequest) -> BoxFuture<'static, Result<HttpResponse, HttpError>> {
        let number = self.asked.fetch_add(1, Ordering::SeqCst);
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        let done = results_in(&body);
        self.requests.lock().unwrap().push(body);
        let text = answer(&request.url, done, self.rounds);
        let (fault, dropped) = ((self.plan)(number), Arc::clone(&self.dropped));
        async move {
            let plain = |status, kind: &str, text: &str| HttpResponse {
                status,
                headers: [("content-type", kind)].into_iter().collect(),
                peer: None,
                body: stream::iter([Ok(text.as_bytes().to_vec().into())]).boxed(),
            };
            match fault {
                Fault::Status(status) => {
                    return Ok(plain(status, "application/json", r#"{"error":{"message":"told so"}}"#));
                }
                Fault::Page => return Ok(plain(200, "text/html", "<html>log in</html>")),
                Fault::Refused => return Err(HttpError::Connect { host: "h".into(), reason: "refused".into() }),
                _ => {}
            }
            let guard = Guard { dropped, ended: false };
            let pieces: Vec<Vec<u8>> = text.as_bytes().chunks(PIECE_BYTES).map(<[u8]>::to_vec).collect();
            let body = stream::unfold((pieces, 0_usize, false, guard), move |(pieces, at, again, guard)| {
                let fault = fault.clone();
                async move {
                    let mut piece = pieces.get(at).cloned();
                    match fault {
                        Fault::Cut(end) if at >= end => piece = None,
                        Fault::Reset(end) if at == end => {
                            let error = HttpError::Reset { reason: "told so".into() };
                            return Some((Err(error), (Vec::new(), at + 1, false, guard)));
                        }
                        Fault::Silence(end) if at >= end => std::future::pending().await,
                        Fault::Delay(place, span_ms) if at == place => {
                            tokio::time::sleep(Duration::from_millis(span_ms)).await;
                        }
                        Fault::Garble(place) if at == place => {
                            piece.iter_mut().for_each(|piece| *piece.last_mut().unwrap() = 0xff);
                        }
                        Fault::Twice(place) if at == place && !again && piece.is_some() => {
                            return Some((Ok(piece.unwrap().into()), (pieces, at, true, guard)));
                        }
                        _ => {}
                    }
                    match piece {
                        Some(piece) => Some((Ok(piece.into()), (pieces, at + 1, false, guard))),
                        None => {
                            guard.end();
                            None
                        }
                    }
                }
            });
            let headers = [("content-type", "text/event-stream")].into_iter().collect();
            Ok(HttpResponse { status: 200, headers, peer: None, body: body.boxed() })
        }
        .boxed()
    }
}

/// Counts bodies that nobody read to their end.
struct Guard {
    dropped: Arc<AtomicUsize>,
    ended: bool,
}

impl Guard {
    fn end(mut self) {
        self.ended = true;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.ended {
            self.dropped.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// How many results a conversation holds.
pub(crate) fn results_in(body: &Value) -> usize {
    body.to_string().matches(r#""type":"tool_result""#).count()
        + body.to_string().matches(r#""type":"function_call_output""#).count()
        + body.to_string().matches(r#""role":"tool""#).count()
}

pub(crate) fn answer(url: &str, done: usize, rounds: usize) -> String {
    let arguments = json!({"n": done, "pad": "x".repeat(PAD_CHARS)}).to_string();
    let call = (done < rounds).then_some(arguments.as_str());
    let events = if url.ends_with("/messages") {
        claude(done, call)
    } else if url.ends_with("/responses") {
        responses(done, call)
    } else {
        chat(done, call)
    };
    events.concat()
}

fn event(kind: &str, mut fields: Value) -> String {
    fields["type"] = json!(kind);
    format!("event: {kind}\ndata: {fields}\n\n")
}

fn halves(text: &str) -> [&str; 2] {
    let (one, other) = text.split_at(text.len() / 2);
    [one, other]
}

fn chat(done: usize, call: Option<&str>) -> Vec<String> {
    let chunk = |delta: Value, reason: Value| {
        format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}))
    };
    let part = |fields: Value| chunk(json!({"tool_calls": [fields]}), Value::Null);
    let mut events = vec![chunk(json!({"role": "assistant", "content": "Hello there. "}), Value::Null)];
    if let Some(arguments) = call {
        events.push(part(json!({"index": 0, "id": format!("c{done}"), "function": {"name": "echo", "arguments": ""}})));
        events.extend(halves(arguments).map(|half| part(json!({"index": 0, "function": {"arguments": half}}))));
    }
    events.push(chunk(json!({}), json!(if call.is_some() { "tool_calls" } else { "stop" })));
    events.push("data: [DONE]\n\n".to_owned());
    events
}

fn claude(done: usize, call: Option<&str>) -> Vec<String> {
    let block = |index: u8, start: Value, deltas: Vec<Value>| {
        let mut events = vec![event("content_block_start", json!({"index": index, "content_block": start}))];
        events.extend(
            deltas.into_iter().map(|delta| event("content_block_delta", json!({"index": index, "delta": delta}))),
        );
        events.push(event("content_block_stop", json!({"index": index})));
        events.concat()
    };
    let text = vec![json!({"type": "text_delta", "text": "Hello there. "})];
    let mut events = vec![event("message_start", json!({"message": {"usage": {"input_tokens": 1}}}))];
    events.push(block(0, json!({"type": "text", "text": ""}), text));
    if let Some(arguments) = call {
        let parts = halves(arguments).map(|half| json!({"type": "input_json_delta", "partial_json": half}));
        let start = json!({"type": "tool_use", "id": format!("c{done}"), "name": "echo", "input": {}});
        events.push(block(1, start, parts.into()));
    }
    let reason = if call.is_some() { "tool_use" } else { "end_turn" };
    events.push(event("message_delta", json!({"delta": {"stop_reason": reason}, "usage": {"output_tokens": 1}})));
    events.push(event("message_stop", json!({})));
    events
}

fn responses(done: usize, call: Option<&str>) -> Vec<String> {
    let content = json!([{"type": "output_text", "text": "Hello there. ", "annotations": []}]);
    let message = json!({"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": content});
    let mut output = vec![message.clone()];
    let mut events = vec![
        event("response.created", json!({"response": {"status": "in_progress"}})),
        event(
            "response.output_item.added",
            json!({"output_index": 0, "item": {"id": "m", "type": "message", "content": []}}),
        ),
        event(
            "response.output_text.delta",
            json!({"item_id": "m", "output_index": 0, "content_index": 0, "delta": "Hello there. "}),
        ),
        event("response.output_item.done", json!({"output_index": 0, "item": message})),
    ];
    if let Some(arguments) = call {
        let item = |arguments: &str| json!({"id": "f", "type": "function_call", "call_id": format!("c{done}"), "name": "echo", "arguments": arguments});
        let kind = "response.function_call_arguments";
        events.push(event("response.output_item.added", json!({"output_index": 1, "item": item("")})));
        events
            .extend(halves(arguments).map(|half| {
                event(&format!("{kind}.delta"), json!({"item_id": "f", "output_index": 1, "delta": half}))
            }));
        events.push(event(&format!("{kind}.done"), json!({"item_id": "f", "output_index": 1, "arguments": arguments})));
        events.push(event("response.output_item.done", json!({"output_index": 1, "item": item(arguments)})));
        output.push(item(arguments));
    }
    let response = json!({"status": "completed", "output": output, "usage": {"input_tokens": 1, "output_tokens": 1}});
    events.push(event("response.completed", json!({"response": response})));
    events
}
