//! Verification in a session: runs commands as trusted host calls, one after the other, and keeps the report.
//!
//! Each command is a call like any other: budget, hooks, deadline, sanitising and evidence apply. What must stay true:
//! a report is among the session's facts before it is given back.

use serde_json::json;
use thiserror::Error;
use toolwarden_tools::outcome::ToolErrorKind;

use super::{Session, SessionError};
use crate::facts::Fact;
use crate::origin::Origin;
use crate::resume::ResumeError;
use crate::verification::plan::{PlanError, SUBJECT_BYTES_MAX, check};
use crate::verification::preset::{ProjectRoot, presets};
use crate::verification::{VerificationCheck, VerificationCommand, VerificationReport, VerificationSummary};

/// Why there is no report.
#[derive(Debug, Error)]
pub enum VerifyError {
    /// The commands make no sense together; none was run.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The session did not take a call, or the report.
    #[error(transparent)]
    Session(#[from] SessionError),
}

impl Session {
    /// Runs the commands one after the other, in the workspace, and says what they came to. Once one is cancelled the
    /// rest is skipped. The report is kept with the session. Dropping the future cancels the command that runs.
    ///
    /// # Errors
    /// [`VerifyError`]. A command that fails is a check, not an error.
    pub async fn verify_commands(
        &self,
        subject: &str,
        commands: &[VerificationCommand],
    ) -> Result<VerificationReport, VerifyError> {
        if subject.len() > SUBJECT_BYTES_MAX {
            return Err(PlanError::Subject { bytes: subject.len() }.into());
        }
        check(commands)?;
        let mut checks = Vec::with_capacity(commands.len());
        let mut cancelled: Option<String> = None;
        for command in commands {
            if let Some(why) = &cancelled {
                checks.push(VerificationCheck::skipped(command, why));
                continue;
            }
            let mut arguments = json!({ "command": command.command });
            if let Some(timeout_ms) = command.timeout_ms {
                arguments["timeout"] = json!(timeout_ms);
            }
            let result = self.call("verification", Origin::HostDirectTrusted, "bash", arguments).await?;
            if let Some(ToolErrorKind::Cancelled { reason, .. }) = &result.error_kind {
                cancelled = Some(reason.as_ref().map_or_else(|| "cancelled".to_owned(), ToString::to_string));
            }
            checks.push(VerificationCheck::of(command, &result));
        }
        let mut report = VerificationReport::of(subject.to_owned(), checks);
        let shared = &self.shared;
        for text in report.texts_mut() {
            *text = shared.facts.fit_to_keep(&shared.kernel.sanitiser, std::mem::take(text));
        }
        let kept = shared.facts.record(Fact::Verified { report: Box::new(report.clone()) }).await;
        kept.map_err(|error| SessionError::from(ResumeError::from(error)))?;
        Ok(report)
    }

    /// The commands that usually verify a project of the kind that lies in the workspace's root: Rust, Node, Python,
    /// Go; none for one of no known kind.
    ///
    /// # Errors
    /// [`SessionError::Failed`] when the workspace cannot be listed.
    pub async fn verification_presets(&self) -> Result<Vec<VerificationCommand>, SessionError> {
        let mut root = ProjectRoot { files: self.glob("*").await?.into_iter().collect(), package_json: None };
        if root.files.contains("package.json") {
            let read = self.tool("read", json!({ "file_path": "package.json" })).await?;
            if read.is_success() {
                root.package_json = Some(self.read_file("package.json").await?);
            }
        }
        Ok(presets(&root))
    }

    /// The session's reports, the oldest first; the newest [`REPORTS_MAX`](crate::facts::state::REPORTS_MAX) are kept.
    pub fn verification_reports(&self) -> Vec<VerificationReport> {
        self.shared.facts.look(|state| state.verification_reports.clone())
    }

    /// What the session's reports come to.
    pub fn verification_summary(&self) -> VerificationSummary {
        self.shared.facts.look(|state| VerificationSummary::of(&state.verification_reports))
    }
}
