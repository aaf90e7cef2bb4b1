//! Verification: commands that say whether work is done, what they came to, and what is left in doubt.
//!
//! Everything here is pure; the commands run as trusted host calls of a session, in
//! `session/verify.rs`. What must stay true: only an exit code says that a check has passed, never a word of a model,
//! and what could not be run has not passed.

pub mod plan;
pub mod preset;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use toolwarden_tools::outcome::ToolErrorKind;

use crate::call_result::CallResult;

/// What a report is, for whoever reads it as JSON.
pub const REPORT_SCHEMA: &str = "a3s.verification_report.v1";

/// Longest words of a command that a risk repeats, in bytes.
const SHOWN_BYTES_MAX: usize = 1024;

/// How deep metadata is searched for artifacts.
const METADATA_DEPTH_MAX: usize = 32;

/// A command that says whether something is as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerificationCommand {
    /// Names the check; unique among those that run together.
    pub id: String,
    /// What sort of check it is, such as `test` or `lint`; free.
    pub kind: String,
    /// What it checks, in words.
    #[serde(default)]
    pub description: String,
    /// The command line, for `bash -c` in the workspace.
    pub command: String,
    /// Whether the work fails when this does.
    #[serde(default)]
    pub required: bool,
    /// The most time it may take, in milliseconds (1,000 to 3,600,000); what `bash` allows by default when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// The exit code that means yes.
    #[serde(default)]
    pub expect_exit: i32,
}

/// How a check or a report stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerificationStatus {
    /// As it should be.
    Passed,
    /// Not as it should be, or it could not be run.
    Failed,
    /// A person should look.
    NeedsReview,
    /// Nothing was checked.
    Skipped,
}

impl VerificationStatus {
    /// The word that stands in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::NeedsReview => "needs_review",
            Self::Skipped => "skipped",
        }
    }
}

/// What one command came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerificationCheck {
    /// The command's id.
    pub id: String,
    /// Its kind.
    pub kind: String,
    /// What it checks.
    pub description: String,
    /// What it came to.
    pub status: VerificationStatus,
    /// Whether the work fails when this does.
    pub required: bool,
    /// What a model may check it with again.
    pub suggested_tools: Vec<String>,
    /// The artifacts that its result names, sorted, each once.
    pub evidence_uris: Vec<String>,
    /// Why it has not passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub residual_risk: Option<String>,
}

/// What all commands came to that were run together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerificationReport {
    /// [`REPORT_SCHEMA`].
    pub schema: String,
    /// What was verified, in the host's words.
    pub subject: String,
    /// What it came to.
    pub status: VerificationStatus,
    /// The checks, in the order of their commands.
    pub checks: Vec<VerificationCheck>,
    /// What is left in doubt, in the order of the checks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub residual_risks: Vec<String>,
}

/// What all reports of a session come to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerificationSummary {
    /// `failed` when any failed, else `needs_review` when any wants a look, `skipped` when nothing was checked.
    pub status: VerificationStatus,
    /// Reports.
    pub report_count: usize,
    /// Required checks in them.
    pub required_check_count: usize,
    /// Of those, how many neither passed nor failed.
    pub pending_required_check_count: usize,
    /// Checks that failed, optional ones too.
    pub failed_check_count: usize,
    /// Doubts that are left.
    pub residual_risk_count: usize,
    /// What wants a look.
    pub pending_subjects: Vec<String>,
    /// What failed.
    pub failed_subjects: Vec<String>,
}

impl VerificationCheck {
    /// Judges the result of a command: it passed when it ended with the exit code that was expected, and nothing went
    /// wrong with running it.
    pub fn of(command: &VerificationCommand, result: &CallResult) -> Self {
        let risk = match exit_code(result) {
            Some(code) if code == i64::from(command.expect_exit) => None,
            Some(code) => Some(format!(
                "the verification command ended with code {code}, expected {}: {}",
                command.expect_exit,
                shown(&command.command)
            )),
            None => Some(format!("the verification command could not be run: {}", reason(result))),
        };
        let mut uris = BTreeSet::new();
        collect_uris(&result.metadata, METADATA_DEPTH_MAX, &mut uris);
        let status = if risk.is_none() { VerificationStatus::Passed } else { VerificationStatus::Failed };
        Self { status, residual_risk: risk, evidence_uris: uris.into_iter().collect(), ..Self::blank(command) }
    }

    /// A command that was not run.
    pub fn skipped(command: &VerificationCommand, why: &str) -> Self {
        let risk = format!("the verification command was not run ({why}): {}", shown(&command.command));
        Self { residual_risk: Some(risk), ..Self::blank(command) }
    }

    fn blank(command: &VerificationCommand) -> Self {
        Self {
            id: command.id.clone(),
            kind: command.kind.clone(),
            description: command.description.clone(),
            status: VerificationStatus::Skipped,
            required: command.required,
            suggested_tools: vec!["bash".to_owned()],
            evidence_uris: Vec::new(),
            residual_risk: None,
        }
    }

    fn is_pending(&self) -> bool {
        matches!(self.status, VerificationStatus::NeedsReview | VerificationStatus::Skipped)
    }
}

impl VerificationReport {
    /// Puts checks together: a required one that failed fails all of it; a required one that wants a look or was not
    /// run, and any doubt that is left (an optional one that failed), makes it `needs_review`.
    pub fn of(subject: String, checks: Vec<VerificationCheck>) -> Self {
        let residual_risks: Vec<String> = checks.iter().filter_map(|check| check.residual_risk.clone()).collect();
        let failed = |check: &VerificationCheck| check.status == VerificationStatus::Failed;
        let status = if checks.iter().any(|check| check.required && failed(check)) {
            VerificationStatus::Failed
        } else if checks.iter().any(|check| check.required && check.is_pending()) || !residual_risks.is_empty() {
            VerificationStatus::NeedsReview
        } else if checks.is_empty() {
            VerificationStatus::Skipped
        } else {
            VerificationStatus::Passed
        };
        Self { schema: REPORT_SCHEMA.to_owned(), subject, status, checks, residual_risks }
    }

    /// Whether this proves that a goal was reached: something was required, it passed, and no doubt is left.
    pub fn is_proof(&self) -> bool {
        self.status == VerificationStatus::Passed
            && self.residual_risks.is_empty()
            && self.checks.iter().any(|check| check.required)
    }

    /// Every text in it, to be cleaned before it is stored.
    pub(crate) fn texts_mut(&mut self) -> impl Iterator<Item = &mut String> {
        let checks = self.checks.iter_mut().flat_map(|check| {
            let texts = [&mut check.id, &mut check.kind, &mut check.description];
            texts.into_iter().chain(&mut check.residual_risk)
        });
        std::iter::once(&mut self.subject).chain(checks).chain(&mut self.residual_risks)
    }
}

impl VerificationSummary {
    /// What these reports come to.
    pub fn of(reports: &[VerificationReport]) -> Self {
        let checks = || reports.iter().flat_map(|report| &report.checks);
        let subjects = |wanted: &[VerificationStatus]| -> Vec<String> {
            reports
                .iter()
                .filter(|report| wanted.contains(&report.status))
                .map(|report| report.subject.clone())
                .collect()
        };
        let pending_subjects = subjects(&[VerificationStatus::NeedsReview, VerificationStatus::Skipped]);
        let failed_subjects = subjects(&[VerificationStatus::Failed]);
        let status = if !failed_subjects.is_empty() {
            VerificationStatus::Failed
        } else if reports.iter().any(|report| report.status == VerificationStatus::NeedsReview) {
            VerificationStatus::NeedsReview
        } else if reports.iter().any(|report| report.status == VerificationStatus::Passed) {
            VerificationStatus::Passed
        } else {
            VerificationStatus::Skipped
        };
        Self {
            status,
            report_count: reports.len(),
            required_check_count: checks().filter(|check| check.required).count(),
            pending_required_check_count: checks().filter(|check| check.required && check.is_pending()).count(),
            failed_check_count: checks().filter(|check| check.status == VerificationStatus::Failed).count(),
            residual_risk_count: reports.iter().map(|report| report.residual_risks.len()).sum(),
            pending_subjects,
            failed_subjects,
        }
    }
}

/// The code that the command itself ended with; none when it did not end by itself, or never ran.
fn exit_code(result: &CallResult) -> Option<i64> {
    if result.error_kind.is_some() {
        return None;
    }
    result.metadata.get("exit_code").and_then(Value::as_i64)
}

fn reason(result: &CallResult) -> String {
    match &result.error_kind {
        Some(ToolErrorKind::Cancelled { reason: Some(reason), .. }) => reason.to_string(),
        Some(ToolErrorKind::Timeout { duration_ms, .. }) => format!("it had not ended after {duration_ms} ms"),
        _ => shown(result.output.lines().next().unwrap_or("it said nothing")),
    }
}

fn shown(text: &str) -> String {
    let end = text.floor_char_boundary(SHOWN_BYTES_MAX);
    if end == text.len() { text.to_owned() } else { format!("{}…", &text[..end]) }
}

fn collect_uris(metadata: &Map<String, Value>, depth: usize, found: &mut BTreeSet<String>) {
    for (name, value) in metadata {
        match value {
            Value::String(uri) if name == "artifact_uri" => {
                found.insert(uri.clone());
            }
            Value::Object(inner) if depth > 0 => collect_uris(inner, depth - 1, found),
            Value::Array(items) if depth > 0 => {
                for item in items.iter().filter_map(Value::as_object) {
                    collect_uris(item, depth - 1, found);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
