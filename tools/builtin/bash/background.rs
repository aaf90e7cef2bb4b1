//! `bash` with `background`: the command is handed to the session, and the call returns with its id.

use std::time::Duration;

use serde_json::{Map, json};

use super::Request;
use crate::background::{BackgroundError, BackgroundOutcome, BackgroundStart, BackgroundStatus, ReadFrom};
use crate::builtin::ending::unsupported;
use crate::builtin::process::{facts_of, outcome_of_end, shown};
use crate::builtin::reach::{Step, wrong};
use crate::context::ToolContext;
use crate::outcome::{ToolOutcome, Trust};

/// Bytes of output that the call shows of a command that ended right away.
const SHOWN_BYTES_MAX: usize = 32 * 1024;

impl Request {
    /// Hands the command to the session.
    ///
    /// # Errors
    /// The outcome of a session that holds no background processes, or too many.
    pub(super) async fn start(self, ctx: &ToolContext) -> Step<ToolOutcome> {
        let Some(background) = &ctx.background else {
            return Err(unsupported("no command can be left running here; run it without background"));
        };
        let timeout = self.has_timeout.then(|| Duration::from_millis(self.timeout.applied_ms));
        let start =
            BackgroundStart { invocation: ctx.invocation.clone(), line: self.line, command: self.spec, timeout };
        let status = background.start(start).await.map_err(|error| match error {
            BackgroundError::Full => Box::new(ToolOutcome::failure(error.to_string())),
            BackgroundError::Unknown { .. } => wrong(error.to_string()),
        })?;
        let mut facts = Map::new();
        facts.insert("timeout_ms".into(), json!(timeout.map(|_| self.timeout.applied_ms)));
        facts.insert("process".into(), facts_of(&status));
        let outcome = match &status.end {
            None => ToolOutcome::success(format!(
                "{id} runs in the background until it ends, is stopped, or this session ends\n[process with action \
                 read and id {id} gives what it prints]\n",
                id = status.id
            )),
            Some(end) => {
                // It was so short that there is nothing to wait for: its output is here already.
                let read = background.read(status.id.as_str(), ReadFrom::New, SHOWN_BYTES_MAX).ok();
                let mut text = read.as_ref().map(shown).unwrap_or_default();
                if read.is_some_and(|read| read.output.more) {
                    text.push_str("[there is more: process with action read gives it]\n");
                }
                ended(&status, &end.how, text)
            }
        };
        Ok(ToolOutcome { metadata: facts, trust: Trust::WorkspaceData, ..outcome })
    }
}

/// The outcome of a command that ended before the call returned.
fn ended(status: &BackgroundStatus, how: &BackgroundOutcome, mut text: String) -> ToolOutcome {
    let outcome = outcome_of_end(how);
    let what = if outcome.output.is_empty() { "exit code 0" } else { &outcome.output };
    text.push_str(&format!("[{} has ended already: {what}]\n", status.id));
    ToolOutcome { output: text, ..outcome }
}
