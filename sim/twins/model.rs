//! The twin of a model: a script, told by somebody who is not always well.
//!
//! The script is the shipped [`ScriptedModel`]'s, so that the same conversation always gets the same turn. Where the play
//! names a protocol, the turn is sent over a pretended line (`model/line.rs`, which has faults of its own) and read by the
//! shipped reader of that protocol.
//!
//! Faults: it is slow, fails (retryable or not), breaks off, does not answer for an hour; its turn is malformed
//! (arguments that are no JSON), hostile (tools that do not exist, paths that climb out, ids given twice, far too many
//! calls, control sequences and planted secrets in its words, calls although none are allowed) or cut, with calls. Where it
//! is asked for an object, what its script says is that object, in the form in which it is asked for; and it may not fit,
//! be prose, be cut, or be declined.

mod line;
mod stream;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use tokio::time::sleep;
use toolwarden::models::claude_messages::ClaudeMessages;
use toolwarden::models::object_support::ObjectSupport;
use toolwarden::models::openai_chat::OpenAiChat;
use toolwarden::models::openai_responses::OpenAiResponses;
use toolwarden::models::price::TokenPrice;
use toolwarden::models::remote::{ModelTimeouts, RemoteModel, RemoteSettings};
use toolwarden::models::scripted::ScriptedModel;
use toolwarden::models::transcript::check_pairing;
use toolwarden::models::turn_options::ToolChoice;
use toolwarden::models::wire::{Protocol, WireSettings};
use toolwarden::models::{
    CallArguments, Message, Model, ModelCall, ModelError, ModelRequest, ModelTurn, NoSink, StopReason, TokenUsage,
    TurnSink,
};
use toolwarden::structured::directive::AGENT;
use toolwarden_tools::effects::clock::Clock;
use toolwarden_tools::effects::http::Http;

use self::line::Line;
use crate::fate::Fate;
use crate::play::{Play, Wire};
use crate::sight::Sight;

/// Spans that a turn usually takes, in milliseconds.
const TURN_MS: [u64; 4] = [0, 2, 40, 700];
/// How long a slow turn takes.
const SLOW: Duration = Duration::from_secs(30);
/// How long one takes that nobody gets.
const FOR_EVER: Duration = Duration::from_secs(3_600);
/// How deep the arguments of a call are nested that are far too deep.
const DEEP_LEVELS: usize = 2_000;
/// An object that fits no schema of a play: all of them want members that it lacks.
const UNFIT: &str = r#"{"unfit": [1, 2, 3], "and": "more"}"#;
/// Calls of a turn that has far too many.
const FLOOD_CALLS: usize = 70;

/// Tells a script.
pub struct PretendedModel {
    fate: Fate,
    script: Arc<ScriptedModel>,
    faulty: bool,
    only_cuts: bool,
    hostile: bool,
    /// A word that nobody must see.
    secret: String,
    wire: Option<Wire>,
    paced: bool,
    window_tokens: Option<u64>,
    clock: Arc<dyn Clock>,
    /// What stands between a reader of a protocol and its line.
    tap: Option<Tap>,
}

/// Puts something between a reader of a protocol and its line.
pub type Tap = fn(Wire, Arc<dyn Http>) -> Arc<dyn Http>;

impl PretendedModel {
    /// The model of a play, which tells this script.
    pub fn new(fate: Fate, script: Arc<ScriptedModel>, play: &Play, clock: Arc<dyn Clock>, tap: Option<Tap>) -> Self {
        Self {
            fate,
            script,
            faulty: play.faults.model,
            only_cuts: play.only_cuts,
            hostile: play.hostile,
            secret: play.secret.clone(),
            wire: play.wire,
            paced: play.paced,
            window_tokens: play.window_tokens,
            clock,
            tap,
        }
    }

    /// Sends a turn over a line and gives what is read of it.
    async fn over_the_line(
        &self,
        wire: Wire,
        sent: ModelTurn,
        request: &ModelRequest,
        sink: &dyn TurnSink,
    ) -> Result<ModelTurn, ModelError> {
        let is_bent = Arc::new(AtomicBool::new(false));
        let unpaired = Arc::new(Mutex::new(None));
        let told = Arc::clone(&unpaired);
        let line = Line {
            fate: self.fate.clone(),
            faulty: self.faulty,
            only_cuts: self.only_cuts,
            paced: self.paced,
            wire,
            sent: sent.clone(),
            is_bent: Arc::clone(&is_bent),
            unpaired: Arc::new(move |words| *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(words)),
        };
        let line: Arc<dyn Http> = match self.tap {
            Some(tap) => tap(wire, Arc::new(line)),
            None => Arc::new(line),
        };
        let settings = RemoteSettings {
            name: self.script.name().to_owned(),
            base_url: "http://provider.test".to_owned(),
            key: Some("pretended-key".to_owned()),
            wire: WireSettings { model: "m".to_owned(), stream: true, ..WireSettings::default() },
            context_tokens: self.window_tokens,
            timeouts: ModelTimeouts::default(),
            price: TokenPrice::default(),
            object_support: None,
            concurrency_max: None,
        };
        let remote = RemoteModel::new(settings, protocol(wire), line, Arc::clone(&self.clock))
            .map_err(|error| ModelError::Invalid { message: error.to_string() })?;
        let read = remote.turn(request, sink).await;
        let words = unpaired.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(words) = words {
            let (agent, messages) = (request.agent.as_str(), request.messages.len());
            self.fate.see(&Sight::Asked { agent, messages, unpaired: Some(&words) });
        }
        let is_intact = !is_bent.load(Ordering::Relaxed);
        self.fate.see(&Sight::Turned { sent: &sent, read: read.as_ref().ok(), is_intact });
        read
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
                Some(ModelError::Provider { message: "pretended".to_owned(), retryable: false, retry_after_ms: None })
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

    /// Tells that it is asked, and what for.
    fn see_asked(&self, request: &ModelRequest) {
        let unpaired = check_pairing(&request.messages).err().map(|error| error.to_string());
        let (agent, messages) = (request.agent.as_str(), request.messages.len());
        self.fate.see(&Sight::Asked { agent, messages, unpaired: unpaired.as_deref() });
        if agent == AGENT
            && let Some(Message::User { text }) = request.messages.first()
        {
            let session = request.options.cache_key.as_deref().unwrap_or_default();
            self.fate.see(&Sight::AskedForObject { session, prompt: text, messages });
        }
    }

    /// Gives an object in the form in which it is asked for.
    fn give_object(&self, request: &ModelRequest, turn: &mut ModelTurn) {
        match if self.faulty { self.fate.rare(4) } else { None } {
            Some(0) => {
                self.fate.met("an object that does not fit");
                turn.text = UNFIT.to_owned();
            }
            Some(1) => {
                self.fate.met("an object in prose");
                turn.text = "I would rather talk about it.".to_owned();
                return;
            }
            Some(2) => {
                self.fate.met("an object that is cut");
                turn.text.truncate(turn.text.floor_char_boundary(turn.text.len() / 2));
                turn.stop = StopReason::MaxTokens;
            }
            Some(_) => {
                self.fate.met("an object that is declined");
                turn.stop = StopReason::ContentFilter;
                turn.text = "no".to_owned();
                return;
            }
            None => {}
        }
        if let ToolChoice::Named(tool) = &request.options.tool_choice {
            let arguments = CallArguments::parse(&std::mem::take(&mut turn.text));
            turn.calls = vec![ModelCall { id: "object".to_owned(), tool: tool.as_str().into(), arguments }];
            if turn.stop == StopReason::EndTurn {
                turn.stop = StopReason::ToolUse;
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
            8 => {
                turn.usage =
                    TokenUsage { input_tokens: u64::MAX / 4, output_tokens: u64::MAX / 4, ..TokenUsage::default() }
            }
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

/// Who reads and writes a protocol.
fn protocol(wire: Wire) -> Box<dyn Protocol> {
    match wire {
        Wire::Chat => Box::new(OpenAiChat),
        Wire::Responses => Box::new(OpenAiResponses),
        Wire::Claude => Box::new(ClaudeMessages),
    }
}

impl Model for PretendedModel {
    fn name(&self) -> &str {
        self.script.name()
    }

    fn context_tokens(&self) -> Option<u64> {
        self.window_tokens
    }

    fn object_support(&self) -> ObjectSupport {
        self.wire.map_or_else(ObjectSupport::default, |wire| protocol(wire).object_support())
    }

    fn turn<'a>(
        &'a self,
        request: &'a ModelRequest,
        sink: &'a dyn TurnSink,
    ) -> BoxFuture<'a, Result<ModelTurn, ModelError>> {
        Box::pin(async move {
            if request.agent != AGENT && request.messages.len() == 1 && request.tools.is_empty() {
                self.fate.met("a summary that is asked for");
            }
            self.see_asked(request);
            let span_ms = TURN_MS[self.fate.usual(TURN_MS.len())];
            if span_ms > 0 {
                sleep(Duration::from_millis(span_ms)).await;
            }
            if let Some(error) = self.fault().await {
                return Err(error);
            }
            let Some(wire) = self.wire else {
                let mut turn = self.script.turn(request, sink).await?;
                self.bend(request, &mut turn);
                return Ok(turn);
            };
            let mut turn = self.script.turn(request, &NoSink).await?;
            match request.agent == AGENT {
                true => self.give_object(request, &mut turn),
                false => self.bend(request, &mut turn),
            }
            self.over_the_line(wire, turn, request, sink).await
        })
    }
}
