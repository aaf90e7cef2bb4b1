//! The child runs of a session, as its host sees them: listed, waited for, read and ended one by one.
//!
//! Every child run of the session and of its child runs is here from before its call returns, whether that waits for it or
//! not.

use std::sync::Arc;

use toolwarden_tools::cancellation::CancelReason;
use toolwarden_tools::context::ChildResult;
use toolwarden_tools::ids::TaskId;

use super::Session;
use crate::agent::{Agent, Agents};
use crate::models::Message;
use crate::task_book::SubagentTask;

impl Session {
    /// The agents that the session may work with, its own included, sorted by name.
    pub fn agents(&self) -> impl Iterator<Item = &Agent> {
        Agents::iter(&self.shared.agents)
    }

    /// One child run; none when it is not known, or forgotten
    /// ([`LISTED_TASKS_MAX`](crate::task_book::LISTED_TASKS_MAX)).
    pub fn subagent_task(&self, task: &TaskId) -> Option<SubagentTask> {
        self.shared.scope.tasks.task(task)
    }

    /// The child runs, those that have ended and are not forgotten too, in the order they were started.
    pub fn subagent_tasks(&self) -> Vec<SubagentTask> {
        self.shared.scope.tasks.tasks()
    }

    /// The child runs that have not ended.
    pub fn pending_subagent_tasks(&self) -> Vec<SubagentTask> {
        self.shared.scope.tasks.pending()
    }

    /// Tells one child run to end; returns whether there was one of this id that ran. It still gets its ending.
    pub fn cancel_subagent_task(&self, task: &TaskId) -> bool {
        self.shared.scope.tasks.cancel(task, &CancelReason::Requested)
    }

    /// What a child run came to; waits until it has ended. None when it is not known, or forgotten.
    pub async fn subagent_result(&self, task: &TaskId) -> Option<Arc<ChildResult>> {
        self.shared.scope.tasks.result(task).await
    }

    /// The conversation of a child run as far as it has come; none when it has not begun, or is kept no longer
    /// ([`KEPT_TRANSCRIPTS_MAX`](crate::task_book::KEPT_TRANSCRIPTS_MAX)).
    pub fn subagent_transcript(&self, task: &TaskId) -> Option<Vec<Message>> {
        self.shared.scope.tasks.transcript(task)
    }
}
