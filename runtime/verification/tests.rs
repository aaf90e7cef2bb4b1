//! Tests of judging, and of what judgements come to together.

use serde_json::{Map, Value, json};
use toolwarden_tools::cancellation::CancelReason;
use toolwarden_tools::outcome::{ToolErrorKind, Trust};

use super::{
    VerificationCheck, VerificationCommand, VerificationReport, VerificationStatus, VerificationSummary, exit_code,
};
use crate::call_result::CallResult;

pub(crate) fn command(id: &str, required: bool) -> VerificationCommand {
    VerificationCommand {
        id: id.to_owned(),
        kind: "test".to_owned(),
        description: "it works".to_owned(),
        command: "make test".to_owned(),
        required,
        timeout_ms: None,
        expect_exit: 0,
    }
}

fn result(metadata: Value, error_kind: Option<ToolErrorKind>) -> CallResult {
    let metadata: Map<String, Value> = serde_json::from_value(metadata).unwrap();
    let exit_code = i32::from(metadata.get("exit_code") != Some(&json!(0)));
    let output = "first line\nsecond".to_owned();
    let (id, name) = ("i".into(), "bash".into());
    CallResult { id, name, output, exit_code, metadata, error_kind, trust: Trust::default(), attachments: Vec::new() }
}

fn checked(id: &str, required: bool, code: i64) -> VerificationCheck {
    VerificationCheck::of(&command(id, required), &result(json!({"exit_code": code}), None))
}

#[test]
fn only_the_expected_exit_code_passes() {
    assert_eq!(checked("a", true, 0).status, VerificationStatus::Passed);
    let failed = checked("a", true, 2);
    assert_eq!(failed.status, VerificationStatus::Failed);
    let risk = failed.residual_risk.unwrap();
    assert_eq!(risk, "the verification command ended with code 2, expected 0: make test");
    // A command that is expected to fail.
    let expects = VerificationCommand { expect_exit: 2, ..command("a", true) };
    let check = |code| VerificationCheck::of(&expects, &result(json!({"exit_code": code}), None)).status;
    assert_eq!((check(2), check(0)), (VerificationStatus::Passed, VerificationStatus::Failed));
}

#[test]
fn what_could_not_be_run_has_not_passed() {
    let op = || "bash".to_owned();
    let cases = [
        (json!({"exit_code": null, "signal": "SIGKILL"}), None, "first line"),
        // The code of a command that was ended says nothing.
        (
            json!({"exit_code": 0}),
            Some(ToolErrorKind::Timeout { op: op(), duration_ms: 5 }),
            "it had not ended after 5 ms",
        ),
        (
            json!({"exit_code": 0}),
            Some(ToolErrorKind::Cancelled { op: op(), reason: Some(CancelReason::Requested) }),
            "cancelled on request",
        ),
        // Refused: nothing was executed.
        (json!({"refused": {"stage": "hook"}}), None, "first line"),
    ];
    for (metadata, kind, words) in cases {
        let result = result(metadata, kind);
        assert_eq!(exit_code(&result), None);
        let check = VerificationCheck::of(&command("a", false), &result);
        assert_eq!(check.status, VerificationStatus::Failed);
        let risk = check.residual_risk.unwrap();
        assert_eq!(risk, format!("the verification command could not be run: {words}"));
    }
}

#[test]
fn artifacts_are_named_sorted_and_once() {
    let metadata = json!({
        "exit_code": 0,
        "artifact": {"artifact_uri": "a3s://z"},
        "more": [{"artifact_uri": "a3s://a"}, {"deeper": {"artifact_uri": "a3s://z"}}, "artifact_uri"],
        "artifact_uri": 7,
    });
    let check = VerificationCheck::of(&command("a", true), &result(metadata, None));
    assert_eq!(check.evidence_uris, ["a3s://a", "a3s://z"]);
}

#[test]
fn a_required_check_that_fails_fails_the_report_an_optional_one_wants_a_look() {
    let of = |checks: Vec<VerificationCheck>| VerificationReport::of("s".into(), checks);
    assert_eq!(of(Vec::new()).status, VerificationStatus::Skipped);
    assert_eq!(of(vec![checked("a", true, 0), checked("b", false, 0)]).status, VerificationStatus::Passed);
    assert_eq!(of(vec![checked("a", true, 1), checked("b", false, 0)]).status, VerificationStatus::Failed);
    assert_eq!(of(vec![checked("a", true, 0), checked("b", false, 1)]).status, VerificationStatus::NeedsReview);
    let skipped = |required| VerificationCheck::skipped(&command("b", required), "cancelled");
    assert_eq!(of(vec![checked("a", true, 0), skipped(true)]).status, VerificationStatus::NeedsReview);
    assert_eq!(of(vec![checked("a", true, 1), skipped(true)]).status, VerificationStatus::Failed);
}

#[test]
fn a_proof_needs_something_required_and_no_doubt() {
    let of = |checks: Vec<VerificationCheck>| VerificationReport::of("s".into(), checks).is_proof();
    assert!(of(vec![checked("a", true, 0)]));
    assert!(!of(vec![checked("a", false, 0)]));
    assert!(!of(vec![checked("a", true, 0), checked("b", false, 1)]));
    assert!(!of(Vec::new()));
}

#[test]
fn a_summary_counts_and_names() {
    let of = |subject: &str, checks: Vec<VerificationCheck>| VerificationReport::of(subject.into(), checks);
    let reports = [
        of("good", vec![checked("a", true, 0), checked("b", true, 0)]),
        of("bad", vec![checked("a", true, 1), VerificationCheck::skipped(&command("b", true), "cancelled")]),
        of("open", vec![checked("a", true, 0), checked("b", false, 1)]),
        of("nothing", Vec::new()),
    ];
    let wanted = VerificationSummary {
        status: VerificationStatus::Failed,
        report_count: 4,
        required_check_count: 5,
        pending_required_check_count: 1,
        failed_check_count: 2,
        residual_risk_count: 3,
        pending_subjects: vec!["open".into(), "nothing".into()],
        failed_subjects: vec!["bad".into()],
    };
    assert_eq!(VerificationSummary::of(&reports), wanted);
    assert_eq!(VerificationSummary::of(&reports[..1]).status, VerificationStatus::Passed);
    assert_eq!(VerificationSummary::of(&reports[2..]).status, VerificationStatus::NeedsReview);
    assert_eq!(VerificationSummary::of(&[]).status, VerificationStatus::Skipped);
}
