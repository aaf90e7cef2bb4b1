//! The twin of a model: a script, told by somebody who is not always well.
//!
//! The script is the shipped [`ScriptedModel`]'s, so that the same conversation always gets the same turn.
//!
//! Faults: it is slow, fails (retryable or not), breaks off, does not answer for an hour; its turn is malformed
//! (arguments that are no JSON), hostile (tools that do not exist, paths that climb out, ids given twice, far too many
//! calls, control sequences and planted secrets in its words, calls although none are allowed) or cut, with calls.

use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use tokio::time::sleep;
use toolwarden::models::scripted::ScriptedModel;
use toolwarden::models::{
    CallArguments, Model, ModelCall, ModelError, ModelRequest, ModelTurn, StopReason, TokenUsage, TurnSink,
};

use crate::fate::Fate;
use crate::sight::Sight;

/// Spans that a turn usually takes, in milliseconds.
const TURN_MS: [u64; 4] = [0, 2, 40, 700];
/// How long a slow turn takes.
const SLOW: Duration = Duration::from_secs(30);
/// How long one takes that nobody gets.
const FOR_EVER: Duration = Duration::from_secs(3_600);
/// How deep the arguments of a call are nested that are far too deep.
const DEEP_LEVELS: usize = 2_000;
/// Calls of a turn that has far too many.
const FLOOD_CALLS: usize = 70;

/// Tells a script.
pub struct PretendedModel {
    fate: Fate,
    script: ScriptedModel,
    faulty: bool,
    hostile: bool,
    /// A word that nobody must see.
    secret: String,
}

impl PretendedModel {
    /// A model that tells this script; a `faulty` one fails, a `hostile` one means harm.
    pub fn new(fate: Fate, script: ScriptedModel, faulty: bool, hostile: bool, secret: String) -> Self {
        Self { fate, script, faulty, hostile, secret }
    }

    /// What goes wrong before there is a turn.
    async fn fault(&self) -> Option<ModelError> {
        if !self.faulty {
            return None;
        }
        match self.fate.rare(5)? {
            0 => {
                self.fate.met("a slow model");
                sleep(SLOW).await;
                None
            }
            1 => {
                self.fate.met("a model that fails");
                Some(ModelError::Provider { message: "pretended".to_owned(), retryable: false })
            }
            2 => {
                self.fate.met("a model that is out of reach");
                Some(ModelError::Unreachable { message: "pretended".to_owned() })
            }
            3 => {
                self.fate.met("a model that breaks off");
                Some(ModelError::Incomplete { message: "pretended".to_owned() })
            }
            _ => {
                self.fate.met("a model that does not answer");
                sleep(FOR_EVER).await;
                Some(ModelError::Unreachable { message: "pretended".to_owned() })
            }
        }
    }

    /// Bends a turn.
    fn bend(&self, request: &ModelRequest, turn: &mut ModelTurn) {
        let Some(kind) = (if self.hostile { self.fate.rare(10) } else { None }) else { return };
        self.fate.met("a hostile turn");
        let call = |id: &str, tool: &str, arguments: Value| ModelCall {
            id: id.to_owned(),
            tool: tool.into(),
            arguments: CallArguments::from_value(arguments),
        };
        match kind {
            0 => turn.calls.push(ModelCall {
                id: "broken".to_owned(),
                tool: "write".into(),
                arguments: CallArguments::parse("{\"file_path\": \"a\", \"content\": \"abc"),
            }),
            1 => turn.calls.push(call("unknown", "format_the_disk", json!({}))),
            2 => turn.calls.push(call("climbing", "write", json!({ "file_path": "../../etc/passwd", "content": "x" }))),
            3 => turn.calls.extend((0..2).map(|_| call("twice", "peek", json!({})))),
            4 => {
                turn.calls.extend((0..FLOOD_CALLS).map(|at| call(&format!("flood-{at}"), "peek", json!({ "at": at }))))
            }
            5 => turn.text = format!("\u{1b}]0;title\u{7}\u{1b}[2J the key is {} \u{202e}\0", self.secret),
            6 => turn.calls.push(call("telling", "peek", json!({ "says": self.secret.clone() }))),
            7 => turn.stop = StopReason::MaxTokens,
            8 => turn.usage = TokenUsage { input_tokens: u64::MAX / 4, output_tokens: u64::MAX / 4 },
            _ => {
                // Built by moving: the macro would walk what it is given, to copy it.
                let deep = (0..DEEP_LEVELS).fold(json!(1), |inner, _| Value::Array(vec![inner]));
                let arguments = Value::Object([("deep".to_owned(), deep)].into_iter().collect());
                turn.calls.push(call("deep", "peek", arguments));
            }
        }
        let calls = !turn.calls.is_empty();
        if calls && turn.stop == StopReason::EndTurn {
            turn.stop = StopReason::ToolUse;
        }
        if calls && !request.tool_calls_allowed {
            self.fate.met("calls that were not allowed");
        }
    }
}

impl Model for PretendedModel {
    fn name(&self) -> &str {
        self.script.name()
    }

    fn turn<'a>(
        &'a self,
        request: &'a ModelRequest,
        sink: &'a dyn TurnSink,
    ) -> BoxFuture<'a, Result<ModelTurn, ModelError>> {
        Box::pin(async move {
            self.fate.see(&Sight::Asked { agent: &request.agent, messages: request.messages.len() });
            let span_ms = TURN_MS[self.fate.usual(TURN_MS.len())];
            if span_ms > 0 {
                sleep(Duration::from_millis(span_ms)).await;
            }
            if let Some(error) = self.fault().await {
                return Err(error);
            }
            let mut turn = self.script.turn(request, sink).await?;
            self.bend(request, &mut turn);
            Ok(turn)
        })
    }
}
