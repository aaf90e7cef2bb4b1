//! What the runtime tells while it works; the `type` names are those that hosts of this kind already read.
//!
//! The set is open: a reader needs a branch for types that it does not know. Every invocation opens with
//! `tool_proposed` and ends with exactly one `tool_end`, refused calls included.

use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;
use toolwarden_actors::journal::{Entry, JournalEvent, Moment};
use toolwarden_tools::background::ring::RingCounts;
use toolwarden_tools::background::{BackgroundOutcome, BackgroundStatus};
use toolwarden_tools::cancellation::CancelReason;
use toolwarden_tools::canonical_json::json_bytes;
use toolwarden_tools::context::DeltaStreams;
use toolwarden_tools::digest::Digest;
use toolwarden_tools::effects::processes::ProcessStatus;
use toolwarden_tools::ids::{BackgroundId, InvocationId, RunId, SessionId, TaskId, ToolName};

use crate::call_result::CallResult;
use crate::models::{TokenUsage, is_zero};
use crate::origin::Origin;
use crate::settlement::sanitise::Sanitiser;
use crate::verification::VerificationSummary;

/// One event and where it belongs.
#[derive(Debug)]
pub struct Event {
    /// The session that a host opened; its readers get the events of its child sessions too.
    pub root_session: SessionId,
    /// The session it happened in.
    pub session: SessionId,
    /// The run it happened in, when it was one.
    pub run: Option<RunId>,
    /// What happened.
    pub kind: EventKind,
}

/// What happened.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum EventKind {
    /// An invocation exists; nothing was decided about it yet.
    ToolProposed {
        /// The invocation.
        id: InvocationId,
        /// Its tool.
        name: ToolName,
        /// Who proposed it.
        origin: Origin,
        /// The invocation that it is nested in.
        #[serde(skip_serializing_if = "Option::is_none")]
        parent: Option<InvocationId>,
    },
    /// The final arguments stand, before any decision about them.
    ToolRequestBound {
        /// The invocation.
        tool_id: InvocationId,
        /// Its tool.
        tool_name: ToolName,
        /// Digests of what was asked, without the text.
        snapshot: RequestSnapshot,
    },
    /// Somebody said no.
    PermissionDenied {
        /// The invocation.
        tool_id: InvocationId,
        /// Its tool.
        tool_name: ToolName,
        /// The arguments that were judged.
        args: Value,
        /// Who said no, and why.
        reason: String,
    },
    /// A person is asked.
    ConfirmationRequired {
        /// The invocation.
        tool_id: InvocationId,
        /// Its tool.
        tool_name: ToolName,
        /// The arguments that will run.
        args: Value,
        /// Binds the answer to these arguments and to the content that was shown.
        digest: Digest,
        /// Why it is asked.
        reason: String,
        /// When the question is rejected, in milliseconds; none when it waits for as long as it takes.
        timeout_ms: Option<u64>,
    },
    /// The person answered, or the question was withdrawn.
    ConfirmationReceived {
        /// The invocation.
        tool_id: InvocationId,
        /// The answer.
        approved: bool,
        /// Words with it.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// Nobody answered in time.
    ConfirmationTimeout {
        /// The invocation.
        tool_id: InvocationId,
        /// Always `rejected`: nothing approves by a timer.
        action_taken: &'static str,
    },
    /// A budget crossed its warning line, or refused.
    BudgetThresholdHit {
        /// Which resource.
        resource: String,
        /// `soft` (went on) or `hard` (refused).
        kind: &'static str,
        /// What is used.
        consumed: u64,
        /// What there is.
        limit: u64,
        /// Words for people.
        message: String,
    },
    /// The tool starts; no side effect came before this event.
    ToolExecutionStart {
        /// The invocation.
        id: InvocationId,
        /// Its tool.
        name: ToolName,
        /// Its final arguments.
        args: Value,
    },
    /// Text while the tool works.
    ToolOutputDelta {
        /// The invocation.
        id: InvocationId,
        /// Its tool.
        name: ToolName,
        /// The text.
        delta: String,
        /// Whose it is, when it is that of a command: `stdout`, `stderr`, or both, each alone.
        #[serde(skip_serializing_if = "Option::is_none")]
        streams: Option<DeltaStreams>,
    },
    /// The one ending of an invocation.
    ToolEnd(Arc<CallResult>),
    /// The one ending of a background process, however it ended.
    BackgroundEnd {
        /// The process, by the name that its session has for it.
        id: BackgroundId,
        /// The invocation that started it, or whose command left it running.
        tool_id: InvocationId,
        /// Its command line, cut to 1,024 bytes.
        command: String,
        /// When it was started or left, in milliseconds since 1970.
        started_at_ms: u64,
        /// When it ended, in milliseconds since 1970.
        ended_at_ms: u64,
        /// Its exit code, when it ended by itself or in answer to a stop.
        exit_code: Option<i32>,
        /// The number of the signal that ended it.
        #[serde(skip_serializing_if = "Option::is_none")]
        signal: Option<i32>,
        /// Why it was stopped, when somebody had it stopped.
        #[serde(skip_serializing_if = "Option::is_none")]
        stopped: Option<CancelReason>,
        /// Why nothing is known of its end: it could not be started, was lost, or was given up with its session.
        #[serde(skip_serializing_if = "Option::is_none")]
        failure: Option<String>,
        /// Pids that are known to be left of it.
        survivors: Vec<u32>,
        /// What it printed, as counts.
        printed: RingCounts,
    },
    /// A run began.
    AgentStart {
        /// What it was asked.
        prompt: String,
        /// Which model answers.
        model: String,
    },
    /// A model is asked for a turn; the same number again means that the turn before it is void.
    TurnStart {
        /// 1 for the first.
        turn: u32,
    },
    /// Text of the model while it arrives.
    TextDelta {
        /// The text.
        delta: String,
    },
    /// What the model thinks aloud while it arrives.
    ReasoningDelta {
        /// The text.
        delta: String,
    },
    /// The conversation was shortened to fit into the model's window.
    ContextCompacted {
        /// How many of its messages one summary now stands for.
        messages: u64,
        /// Tokens that it was estimated to have.
        tokens_before: u64,
        /// And has now.
        tokens_after: u64,
    },
    /// A turn is whole.
    TurnEnd {
        /// Its number.
        turn: u32,
        /// What it used.
        usage: TurnUsage,
        /// Why it ended.
        stop: String,
    },
    /// A run came to its end by itself.
    AgentEnd {
        /// The answer.
        text: String,
        /// What the whole run used.
        usage: TurnUsage,
        /// How it ended: `completed`, or the bound that ended it (`tool_round_limit`, …).
        status: String,
        /// What was verified in the session so far, where anything was.
        #[serde(skip_serializing_if = "Option::is_none")]
        verification_summary: Option<Box<VerificationSummary>>,
    },
    /// A run failed.
    Error {
        /// Why.
        message: String,
        /// The kind, for programs.
        kind: String,
    },
    /// A child run began.
    SubagentStart {
        /// The task.
        task_id: TaskId,
        /// Its session.
        session_id: SessionId,
        /// Whose child it is.
        parent_session_id: SessionId,
        /// The invocation of `task` that started it.
        parent_invocation: InvocationId,
        /// Its agent.
        agent: String,
        /// A few words.
        description: String,
    },
    /// A child run ended.
    SubagentEnd {
        /// The task.
        task_id: TaskId,
        /// Its session.
        session_id: SessionId,
        /// Its agent.
        agent: String,
        /// Its answer, cut to 4,000 bytes.
        output: String,
        /// Whether it came to an answer.
        success: bool,
    },
    /// A session opened.
    SessionOpened {
        /// Where it works.
        workspace: String,
    },
    /// A session closed; everything in it has ended.
    SessionClosed,
}

impl EventKind {
    /// The ending of a background process; none while it runs.
    pub(crate) fn background_end(status: &BackgroundStatus) -> Option<Self> {
        let end = status.end.as_ref()?;
        let (mut exit_code, mut signal, mut stopped, mut failure, mut survivors) = (None, None, None, None, Vec::new());
        match &end.how {
            BackgroundOutcome::Ended(ended) => {
                match ended.status {
                    ProcessStatus::Exited { code } => exit_code = Some(code),
                    ProcessStatus::Signalled { signal: number } => signal = Some(number),
                    ProcessStatus::Unknown => failure = Some("how it ended is not known".to_owned()),
                }
                stopped.clone_from(&ended.stopped);
                survivors.clone_from(&ended.survivors);
            }
            BackgroundOutcome::Failed(error) => failure = Some(error.to_string()),
            BackgroundOutcome::GivenUp { reason } => {
                stopped.clone_from(reason);
                failure = Some("it was killed with what it hung on".to_owned());
            }
        }
        Some(Self::BackgroundEnd {
            id: status.id.clone(),
            tool_id: status.invocation.clone(),
            command: status.line.clone(),
            started_at_ms: status.started_at_ms,
            ended_at_ms: end.ended_at_ms,
            exit_code,
            signal,
            stopped,
            failure,
            survivors,
            printed: status.output,
        })
    }

    /// Takes secrets and control sequences out of every text that a model or a person wrote.
    pub(crate) fn clean(&mut self, sanitiser: &Sanitiser) {
        let clean = |text: &mut String| *text = sanitiser.clean(std::mem::take(text)).0;
        match self {
            Self::PermissionDenied { args, reason, .. } => {
                clean(reason);
                sanitiser.clean_value(args);
            }
            Self::ConfirmationRequired { args, reason, .. } => {
                clean(reason);
                sanitiser.clean_value(args);
            }
            Self::ConfirmationReceived { reason: Some(text), .. }
            | Self::AgentStart { prompt: text, .. }
            | Self::TextDelta { delta: text }
            | Self::ReasoningDelta { delta: text }
            | Self::AgentEnd { text, .. }
            | Self::Error { message: text, .. }
            | Self::SubagentStart { description: text, .. }
            | Self::BackgroundEnd { command: text, failure: None, .. }
            | Self::SubagentEnd { output: text, .. } => clean(text),
            Self::BackgroundEnd { command, failure: Some(failure), .. } => {
                clean(command);
                clean(failure);
            }
            Self::ToolOutputDelta { delta, streams, .. } => {
                clean(delta);
                if let Some(DeltaStreams::Both { out, err }) = streams {
                    clean(out);
                    clean(err);
                }
            }
            Self::ToolExecutionStart { args, .. } => {
                sanitiser.clean_value(args);
            }
            // Results are sanitised when they settle; the rest holds no free text.
            Self::ToolEnd(_)
            | Self::ToolProposed { .. }
            | Self::ToolRequestBound { .. }
            | Self::ConfirmationReceived { reason: None, .. }
            | Self::ConfirmationTimeout { .. }
            | Self::BudgetThresholdHit { .. }
            | Self::TurnStart { .. }
            | Self::ContextCompacted { .. }
            | Self::TurnEnd { .. }
            | Self::SessionOpened { .. }
            | Self::SessionClosed => {}
        }
    }
}

/// What a model turn or a run used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct TurnUsage {
    /// Tokens read, all together.
    pub input_tokens: u64,
    /// Tokens written, all together.
    pub output_tokens: u64,
    /// Tokens read that the provider had kept.
    #[serde(skip_serializing_if = "is_zero")]
    pub cache_read_tokens: u64,
    /// Tokens read that the provider keeps from now on.
    #[serde(skip_serializing_if = "is_zero")]
    pub cache_write_tokens: u64,
    /// Tokens written that were thought and not said.
    #[serde(skip_serializing_if = "is_zero")]
    pub reasoning_tokens: u64,
}

impl From<TokenUsage> for TurnUsage {
    fn from(used: TokenUsage) -> Self {
        Self {
            input_tokens: used.input_tokens,
            output_tokens: used.output_tokens,
            cache_read_tokens: used.cache_read_tokens,
            cache_write_tokens: used.cache_write_tokens,
            reasoning_tokens: used.reasoning_tokens,
        }
    }
}

/// What was asked, as digests: proof without plain text.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestSnapshot {
    /// Which form this is.
    pub schema: &'static str,
    /// Who proposed the call.
    pub origin: Origin,
    /// Digest of the tool's name.
    pub tool_name_digest: Digest,
    /// Length of the arguments as JSON, in bytes.
    pub arguments_bytes: usize,
    /// Digest of the arguments in canonical form.
    pub arguments_digest: Digest,
}

/// The form of [`RequestSnapshot`].
pub const REQUEST_SNAPSHOT_SCHEMA: &str = "a3s.code.tool-request-snapshot.v1";

impl JournalEvent for Event {
    fn root_session(&self) -> &SessionId {
        &self.root_session
    }

    fn moment(&self) -> Moment<'_> {
        match &self.kind {
            EventKind::ToolProposed { id, .. } => Moment::Opens(id),
            EventKind::ToolEnd(result) => Moment::Ends(&result.id),
            _ => Moment::Other,
        }
    }

    fn bytes(&self) -> usize {
        let text = match &self.kind {
            EventKind::ToolEnd(result) => result.output.len(),
            EventKind::TextDelta { delta }
            | EventKind::ReasoningDelta { delta }
            | EventKind::ToolOutputDelta { delta, .. } => delta.len(),
            EventKind::AgentStart { prompt: text, .. }
            | EventKind::AgentEnd { text, .. }
            | EventKind::SubagentEnd { output: text, .. } => text.len(),
            EventKind::ToolExecutionStart { args, .. } => json_bytes(args),
            _ => 0,
        };
        size_of::<Self>() + text
    }
}

/// An entry as one flat JSON object: `sequence`, `timestamp_ms`, `session_id`, `run_id`, then the event's own
/// fields, `type` first. No key stands twice: an event about a child run names the child in its own `session_id`.
#[derive(Debug, Serialize)]
pub struct EventLine<'a> {
    sequence: u64,
    timestamp_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<&'a SessionId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_id: Option<&'a RunId>,
    #[serde(flatten)]
    kind: &'a EventKind,
}

impl<'a> From<&'a Entry<Event>> for EventLine<'a> {
    fn from(entry: &'a Entry<Event>) -> Self {
        Self {
            sequence: entry.sequence,
            timestamp_ms: entry.unix_ms,
            session_id: (!names_a_session(&entry.event.kind)).then_some(&entry.event.session),
            run_id: entry.event.run.as_ref(),
            kind: &entry.event.kind,
        }
    }
}

/// Whether the event has a `session_id` of its own.
fn names_a_session(kind: &EventKind) -> bool {
    matches!(kind, EventKind::SubagentStart { .. } | EventKind::SubagentEnd { .. })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use toolwarden_actors::journal::Entry;

    use super::{Event, EventKind, EventLine};

    fn line(kind: EventKind) -> String {
        let event = Event { root_session: "s".into(), session: "s".into(), run: Some("r".into()), kind };
        serde_json::to_string(&EventLine::from(&Entry { sequence: 7, unix_ms: 8, event })).unwrap()
    }

    #[test]
    fn a_line_is_flat_and_begins_with_its_place() {
        let line = line(EventKind::TurnStart { turn: 2 });
        assert_eq!(
            line,
            r#"{"sequence":7,"timestamp_ms":8,"session_id":"s","run_id":"r","type":"turn_start","turn":2}"#
        );
    }

    #[test]
    fn no_key_stands_twice_in_a_line() {
        let start = EventKind::SubagentStart {
            task_id: "t".into(),
            session_id: "child".into(),
            parent_session_id: "s".into(),
            parent_invocation: "i".into(),
            agent: "explore".into(),
            description: "d".into(),
        };
        let end = EventKind::SubagentEnd {
            task_id: "t".into(),
            session_id: "child".into(),
            agent: "explore".into(),
            output: "o".into(),
            success: true,
        };
        for line in [line(start), line(end)] {
            assert_eq!(line.matches("\"session_id\":").count(), 1, "{line}");
            assert_eq!(serde_json::from_str::<Value>(&line).unwrap()["session_id"], "child");
        }
    }
}
