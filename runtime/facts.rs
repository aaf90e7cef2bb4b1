//! Facts: what happened in a session, append-only. The state is a fold over them, and the next step follows from it.
//!
//! Everything here is pure: no clock, no file, no model. A live session and one that is resumed after `kill -9` go
//! through the same fold, so they cannot come to different ends. What must stay true: a fact says what happened and
//! never what is to be done about it, a fact that does not fit where it stands is told and never bent, and whenever the
//! model may be asked, each call of the conversation has its one result.

pub mod state;

use serde::{Deserialize, Serialize};
use toolwarden_actors::budget::{Amount, BudgetLimits};
use toolwarden_tools::context::ChildTask;
use toolwarden_tools::digest::Digest;
use toolwarden_tools::ids::{InvocationId, RunId, SessionId, TaskId};
use toolwarden_tools::workspace::WorkspaceCapabilities;

use crate::content_adapter::ContentBinding;
use crate::models::picture::Picture;
use crate::models::{ModelTurn, TokenUsage, ToolResult};
use crate::policy::{PermissionPolicy, Rule};
use crate::run_status::RunStatus;
use crate::settlement::projection_policy::ProjectionPolicy;
use crate::task_limits::TaskLimits;
use crate::verification::VerificationReport;

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fact {
    /// The session was opened, or is opened again with settings that a host may change.
    Opened(Box<Settings>),
    /// Somebody asked something: a run begins.
    UserMessage {
        /// The run.
        run: RunId,
        /// Their words.
        text: String,
        /// Pictures before the words.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pictures: Vec<Picture>,
        /// The bounds that the run has for all of its life.
        bounds: RunBounds,
    },
    /// The model took a turn; its call ids are unique in the conversation.
    ModelTurn {
        /// The turn, whole.
        turn: Box<ModelTurn>,
        /// Calls whose arguments are kept without their secrets, so that they cannot be run from here.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        withheld: Vec<String>,
    },
    /// The final arguments of a call stand; nothing was decided about them yet.
    CallBound {
        /// The model's id of the call.
        call: String,
        /// The invocation that it became.
        invocation: InvocationId,
        /// Digest of the final arguments.
        arguments: Digest,
        /// Whether the tool declares that twice is as good as once.
        idempotent: bool,
    },
    /// The tool starts: from here on there may be effects.
    CallStarted {
        /// Which invocation.
        invocation: InvocationId,
    },
    /// The call has its result.
    CallEnded {
        /// What the model is told.
        result: ToolResult,
        /// Files and addresses that the call named.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        source_anchors: Vec<String>,
        /// Artifacts that the result refers to.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        artifacts: Vec<String>,
    },
    /// A person was asked about a call.
    ConfirmationAsked {
        /// Which invocation.
        invocation: InvocationId,
        /// What the answer is bound to.
        digest: Digest,
    },
    /// The question about a call has its answer; a question that ran out of time was answered no.
    ConfirmationAnswered {
        /// Which invocation.
        invocation: InvocationId,
        /// The answer.
        approved: bool,
    },
    /// Somebody put a word in while a run was under way.
    Steer {
        /// Their words.
        text: String,
    },
    /// A child run began.
    ChildStarted {
        /// The task it works on.
        task: TaskId,
        /// Its session.
        session: SessionId,
        /// Its agent.
        agent: String,
        /// The call that waits for it, where that is one of the run's own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        place: Option<ChildPlace>,
        /// What is needed to begin it later, or again, when it goes on after the call that started it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        background: Option<Box<BackgroundStart>>,
    },
    /// A child run ended.
    ChildEnded {
        /// The task.
        task: TaskId,
        /// Whether it came to an answer.
        success: bool,
        /// What the model is told of it, when it ran in the background.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        report: Option<String>,
        /// What it used, its own children included.
        #[serde(default, skip_serializing_if = "Amount::is_none")]
        used: Amount,
        /// How many child runs it had, theirs included.
        #[serde(default, skip_serializing_if = "is_zero")]
        child_runs: u64,
    },
    /// The oldest messages of the conversation gave way to a summary, so that the rest fits into the model's window.
    Compacted {
        /// How many they were.
        messages: usize,
        /// What stands for them.
        summary: String,
        /// What writing it cost.
        usage: TokenUsage,
    },
    /// The process ended while these calls were under way; what they did by then is unknown. Children that were
    /// under way ended with it.
    Interruption {
        /// The calls that are not run again, by the model's ids.
        calls: Vec<String>,
    },
    /// Commands were run that say whether work is done.
    Verified {
        /// What they came to.
        report: Box<VerificationReport>,
    },
    /// The run ended.
    Ending {
        /// How.
        status: RunStatus,
        /// The model's last words; may be empty.
        text: String,
    },
}

/// What a session was opened with. What is pinned stays for good; the rest is inherited when it is opened again,
/// and may be given anew.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Pinned: the folder, as it is shown to people.
    pub workspace: String,
    /// Pinned: what may be done there.
    pub capabilities: WorkspaceCapabilities,
    /// Pinned: who the session works as.
    pub agent: String,
    /// Pinned: how outputs are projected.
    pub tool_result_transform_policy: ProjectionPolicy,
    /// Pinned: the rules of the active skill.
    pub skill: Option<Vec<Rule>>,
    /// Pinned: what the kernel keeps commands from, in words; `off` for nothing.
    #[serde(default = "off")]
    pub sandbox: String,
    /// Pinned: who keeps what results are made of, where a host has somebody for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub immutable_content_adapter: Option<ContentBinding>,
    /// Who answers.
    pub model: String,
    /// What models are allowed.
    pub permission_policy: PermissionPolicy,
    /// What the session and its children may use.
    pub budget: BudgetLimits,
    /// The most child runs that one `task` call should start; the usual number when none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fan_out: Option<usize>,
    /// How many child runs it may have; the usual numbers when none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_limits: Option<TaskLimits>,
    /// The session that this one was made out of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<SessionId>,
}

/// Where a child run stands in the work of its parent: the same place is the same child, also when its call runs again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildPlace {
    /// The call, by the model's id.
    pub call: String,
    /// Which of the call's tasks, counted from 0.
    pub index: usize,
}

/// A task in the background, as it was asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BackgroundStart {
    /// The call that asked for it.
    pub invocation: InvocationId,
    /// The run whose turn must stand before it begins; none for a host's own call.
    pub run: Option<RunId>,
    /// The task.
    pub task: ChildTask,
    /// Whether the task is kept as it was asked, so that it can begin again; not when a secret was taken out of it.
    pub whole: bool,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn off() -> String {
    "off".to_owned()
}

/// The bounds that the fold itself knows of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunBounds {
    /// Model rounds with tools.
    pub rounds_max: u32,
    /// Rounds in a row whose calls all had malformed arguments.
    pub malformed_rounds_max: u32,
    /// How often in a row the same call may be made.
    pub same_call_max: u32,
}

#[cfg(test)]
mod tests;
