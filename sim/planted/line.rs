//! Planted faults of asking models: a cut taken for an answer, a second attempt that is not told, calls and results that
//! are parted, a call made twice.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use toolwarden::models::object_support::ObjectSupport;
use toolwarden::models::{Message, Model, ModelError, ModelRequest, ModelTurn, TokenUsage, TurnSink};
use toolwarden_tools::effects::http::{Http, HttpError, HttpRequest, HttpResponse};

use super::{Planted, Wrap};
use crate::play::Wire;

/// All of them.
pub(super) const LINE: [Planted; 5] = [
    model(
        "not-called-back",
        "a second attempt does not say that the first is void",
        |model| Bent::over(model, Slip::Silent),
        "world-models",
        "turns",
        200,
    ),
    model(
        "pair-parted",
        "the oldest messages go without regard to calls",
        |model| Bent::over(model, Slip::Parts),
        "world-models",
        "pairing",
        20,
    ),
    model(
        "call-doubled",
        "each call of a turn is made twice",
        |model| Bent::over(model, Slip::Doubles),
        "world-models",
        "effects",
        20,
    ),
    model(
        "word-lost",
        "of a turn that was shown a part is not kept",
        |model| Bent::over(model, Slip::Forgets),
        "world-models",
        "turns",
        20,
    ),
    line(
        "cut-believed",
        "a stream that was cut is taken for a whole turn",
        |wire, http| Arc::new(Lax { wire, http }),
        20,
    ),
];

const fn model(
    name: &'static str,
    about: &'static str,
    wrap: fn(Arc<dyn Model>) -> Arc<dyn Model>,
    scenario: &'static str,
    watcher: &'static str,
    seeds_max: u64,
) -> Planted {
    Planted { name, about, scenario, watcher, seeds_max, wrap: Wrap::Model(wrap) }
}

const fn line(
    name: &'static str,
    about: &'static str,
    tap: fn(Wire, Arc<dyn Http>) -> Arc<dyn Http>,
    seeds_max: u64,
) -> Planted {
    Planted { name, about, scenario: "world-long-answers", watcher: "turns", seeds_max, wrap: Wrap::Line(tap) }
}

/// How the way to a model is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slip {
    Silent,
    Parts,
    Doubles,
    Forgets,
}

/// A model behind something that is broken in one way.
struct Bent {
    model: Arc<dyn Model>,
    slip: Slip,
}

impl Bent {
    fn over(model: Arc<dyn Model>, slip: Slip) -> Arc<dyn Model> {
        Arc::new(Self { model, slip })
    }
}

impl Model for Bent {
    fn name(&self) -> &str {
        self.model.name()
    }

    fn context_tokens(&self) -> Option<u64> {
        self.model.context_tokens()
    }

    fn object_support(&self) -> ObjectSupport {
        self.model.object_support()
    }

    fn cost_microusd(&self, usage: TokenUsage) -> u64 {
        self.model.cost_microusd(usage)
    }

    fn turn<'a>(
        &'a self,
        request: &'a ModelRequest,
        sink: &'a dyn TurnSink,
    ) -> BoxFuture<'a, Result<ModelTurn, ModelError>> {
        Box::pin(async move {
            match self.slip {
                Slip::Silent => match self.model.turn(request, sink).await {
                    Err(error) if error.is_retryable() => self.model.turn(request, sink).await,
                    answer => answer,
                },
                Slip::Parts => {
                    let mut parted = request.clone();
                    if let Some(at) = parted.messages.iter().position(|at| matches!(at, Message::Assistant { .. })) {
                        parted.messages.drain(..=at);
                    }
                    self.model.turn(&parted, sink).await
                }
                Slip::Doubles => {
                    let mut turn = self.model.turn(request, sink).await?;
                    turn.calls = turn.calls.into_iter().flat_map(|call| [call.clone(), call]).collect();
                    Ok(turn)
                }
                Slip::Forgets => {
                    let mut turn = self.model.turn(request, sink).await?;
                    sink.text_delta(" and more");
                    turn.request_id = None;
                    Ok(turn)
                }
            }
        })
    }
}

/// A line whose reader believes too much: it ends what does not end.
struct Lax {
    wire: Wire,
    http: Arc<dyn Http>,
}

impl fmt::Debug for Lax {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Lax({:?})", self.wire)
    }
}

impl Http for Lax {
    fn exchange(&self, request: HttpRequest) -> BoxFuture<'static, Result<HttpResponse, HttpError>> {
        let (answer, wire) = (self.http.exchange(request), self.wire);
        async move {
            let mut response = answer.await?;
            let (mut all, mut broke) = (Vec::new(), false);
            while let Some(piece) = response.body.next().await {
                match piece {
                    Ok(piece) => all.extend_from_slice(&piece),
                    Err(_) => broke = true,
                }
            }
            let text = String::from_utf8_lossy(&all).into_owned();
            // What came whole stays, and the last word is put behind it.
            let body = if broke || !text.contains(last_kind(wire)) {
                let whole: String = text.split_inclusive("\n\n").filter(|event| event.ends_with("\n\n")).collect();
                whole + last_word(wire)
            } else {
                text
            };
            response.body = stream::iter([Ok(Bytes::from(body))]).boxed();
            Ok(response)
        }
        .boxed()
    }
}

/// What the last event of a turn is known by.
fn last_kind(wire: Wire) -> &'static str {
    match wire {
        Wire::Chat => "[DONE]",
        Wire::Responses => "response.completed",
        Wire::Claude => "message_stop",
    }
}

/// What ends a turn in a protocol.
fn last_word(wire: Wire) -> &'static str {
    match wire {
        Wire::Chat => {
            "data: {\"choices\": [{\"index\": 0, \"delta\": {}, \"finish_reason\": \"stop\"}]}\n\ndata: [DONE]\n\n"
        }
        Wire::Responses => "data: {\"type\": \"response.completed\", \"response\": {\"status\": \"completed\"}}\n\n",
        Wire::Claude => {
            "data: {\"type\": \"message_delta\", \"delta\": {\"stop_reason\": \"end_turn\"}}\n\ndata: {\"type\": \
             \"message_stop\"}\n\n"
        }
    }
}
