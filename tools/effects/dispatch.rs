//! The dispatch port: child runs that are carried somewhere else, each by a contract that holds all it needs.
//!
//! Without it child runs are nodes of the parent's own tree. A contract is plain data: whoever takes it needs nothing of
//! the parent's memory, and a second one of the same key is the same work and not more of it. What must stay true: a
//! contract comes to one answer or one error, however the other side behaves; it asks for nothing that the parent may not
//! do itself; and after a cancel, or when the other side is gone, whoever waits is told within a bounded time.

pub mod socket;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use crate::cancellation::{CancelReason, Cancellation};
use crate::ids::{SessionId, TaskId, ToolName};

/// The version of the contract that is written and read here.
pub const CONTRACT_VERSION: u32 = 1;

/// Longest contract or answer, in bytes of JSON.
pub const CONTRACT_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Carries child runs somewhere else.
pub trait Dispatch: Send + Sync {
    /// Has a contract carried out, and gives what came of it. Once `cancel` is given the other side is told, and has a
    /// bounded time to answer. Dropping the future gives the other side to know that nobody waits.
    fn carry_out(
        &self,
        contract: ChildContract,
        cancel: Cancellation,
    ) -> BoxFuture<'_, Result<ChildAnswer, DispatchError>>;
}

/// One child run, whole in itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChildContract {
    /// The version of this form.
    pub version: u32,
    /// Which task it is: the same key is the same work, done once.
    pub idempotency_key: TaskId,
    /// The child's session.
    pub session: SessionId,
    /// Whose child it is.
    pub parent_session: SessionId,
    /// Who works.
    pub agent: ContractAgent,
    /// What is asked, the form of the answer with it.
    pub prompt: String,
    /// Permission policies, as their JSON; a call needs the leave of all of them.
    pub policies: Vec<Value>,
    /// What may be used.
    pub budget: ContractBudget,
    /// The time that it has from when it is taken, in milliseconds; none for as long as it takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
}

/// Who works on a contract.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContractAgent {
    /// The agent's name.
    pub name: String,
    /// What it is for.
    pub purpose: String,
    /// Its instructions.
    pub instructions: String,
    /// The only tools that it may use, of those that there are on the other side.
    pub tools: Vec<ToolName>,
    /// The most model rounds with tools.
    pub rounds_max: u32,
}

/// What a contract may use; none where nothing limits it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ContractBudget {
    /// Calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls: Option<u64>,
    /// Tokens in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    /// Tokens out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// Millionths of a US dollar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_microusd: Option<u64>,
    /// Bytes of tool output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<u64>,
}

/// What a contract came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChildAnswer {
    /// Whether there is an answer.
    pub success: bool,
    /// The answer, or why there is none.
    pub output: String,
    /// Files and addresses that its calls named.
    pub source_anchors: Vec<String>,
    /// What was used.
    pub used: ContractUse,
}

/// What was used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContractUse {
    /// Calls.
    pub calls: u64,
    /// Tokens in.
    pub input_tokens: u64,
    /// Tokens out.
    pub output_tokens: u64,
    /// Millionths of a US dollar.
    pub cost_microusd: u64,
    /// Bytes of tool output.
    pub output_bytes: u64,
}

/// Why a contract came to no answer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DispatchError {
    /// Nobody takes contracts there.
    #[error("nobody takes child runs at {place} ({message}); start what should, or run them here")]
    Unreachable {
        /// Where.
        place: String,
        /// What the system said.
        message: String,
    },
    /// The other side does not take it.
    #[error("the other side does not take this child run: {message}")]
    Refused {
        /// Its words.
        message: String,
    },
    /// The other side is gone, or says nothing any more.
    #[error("the other side of the child run is gone ({message}); what it had done by then is unknown")]
    PeerGone {
        /// How that showed.
        message: String,
    },
    /// The other side said something that is no answer.
    #[error("the other side of the child run does not keep to the protocol: {message}")]
    Malformed {
        /// What was wrong.
        message: String,
    },
    /// The contract is too large to be sent.
    #[error("the child run's contract has {bytes} bytes; at most {CONTRACT_BYTES_MAX} are sent")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// It was told to end, and did not say what it had come to in time.
    #[error("{reason}")]
    Cancelled {
        /// Why.
        reason: CancelReason,
    },
}
