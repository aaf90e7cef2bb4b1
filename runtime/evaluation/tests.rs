//! Evaluations of scripted models: every figure has its cause.

use std::sync::Arc;

use serde_json::json;

use super::Evaluation;
use super::task_set::TaskSet;
use crate::embedding::Runtime;
use crate::models::gate::RetryPolicy;
use crate::models::scripted::ScriptedModel;

const SET: &str = r#"
name = "small"
[budget]
rounds = 4

[[task]]
id = "port"
prompt = "Which port is set?"
tools = ["read", "search"]
files = { "config/server.toml" = "port = 8080\n" }
expect = { answer_has = ["8080"], answer_lacks = ["9090"], answer_matches = "\\b80[0-9]+\\b" }

[[task]]
id = "note"
prompt = "Write done into note.txt."
expect = { files = { "note.txt" = "done" }, no_files = ["other.txt"] }
"#;

async fn evaluated(script: &str) -> super::report::EvaluationReport {
    let runtime = Runtime::builder().model_retries(RetryPolicy::default()).build().await.unwrap();
    let model = Arc::new(ScriptedModel::load(script, "script").unwrap());
    let set = TaskSet::from_toml(SET, "set.toml").unwrap();
    let mut told = Vec::new();
    let report =
        Evaluation::new(runtime.clone(), model).run(&set, &mut |task| told.push(task.id.clone())).await.unwrap();
    assert_eq!(told, ["port", "note"]);
    assert_eq!(runtime.live_nodes(), 1);
    runtime.shut_down().await;
    report
}

#[tokio::test]
async fn a_model_that_does_it_right_has_no_wrong_figures() {
    let report = evaluated(
        r#"{"when": "port", "calls": [{"tool": "read", "arguments": {"file_path": "config/server.toml"}}], "usage": {"input_tokens": 100, "output_tokens": 10}}
{"when": "port", "text": "It is 8080.", "usage": {"input_tokens": 150, "output_tokens": 5}}
{"when": "note.txt", "calls": [{"tool": "write", "arguments": {"file_path": "note.txt", "content": "done\n"}}]}
{"when": "note.txt", "text": "Done."}"#,
    )
    .await;
    assert!(report.totals.is_perfect(), "{report:?}");
    let port = &report.tasks[0].figures;
    assert_eq!((port.rounds, port.calls, port.mis_selected, port.argument_errors), (2, 1, 0, 0));
    assert_eq!((port.input_tokens, port.output_tokens, port.retries), (250, 15, 0));
    let shown = serde_json::to_value(&report).unwrap();
    assert_eq!((&shown["totals"]["succeeded"], &shown["tasks"][0]["id"]), (&json!(2), &json!("port")));
    let table = report.table();
    assert!(table.lines().count() == 5 && table.contains("2/2"), "{table}");
}

#[tokio::test]
async fn wrong_tools_bad_arguments_and_wrong_answers_are_counted() {
    let report = evaluated(
        r#"{"when": "port", "calls": [{"tool": "ls", "arguments": {}}, {"tool": "no_such_tool", "arguments": {}}, {"tool": "read", "arguments": {"path": 7}}, {"tool": "read", "arguments_text": "{\"file"}]}
{"when": "port", "text": "It is 9090."}
{"when": "note.txt", "calls": [{"tool": "write", "arguments": {"file_path": "other.txt", "content": "x"}}], "repeat": true}"#,
    )
    .await;
    let (port, note) = (&report.tasks[0], &report.tasks[1]);
    assert_eq!(
        (port.figures.succeeded, port.figures.mis_selected, port.figures.argument_errors),
        (0, 2, 2),
        "{port:?}"
    );
    assert_eq!(port.figures.calls, 4);
    assert_eq!(port.lacks.len(), 3, "{port:?}");
    assert_eq!(note.lacks[1..], ["note.txt is not there".to_owned(), "other.txt is there".to_owned()]);
    assert!(["tool_round_limit", "repeated_calls"].contains(&note.status.as_str()), "{note:?}");
    assert!(report.table().contains("the answer holds \"9090\""));
}

#[tokio::test]
async fn the_budget_ends_a_run_that_takes_too_much() {
    let report = evaluated(
        r#"{"text": "far too long", "usage": {"input_tokens": 900000}, "calls": [{"tool": "ls", "arguments": {}}], "repeat": true}"#,
    )
    .await;
    assert!(report.tasks.iter().all(|task| task.status == "budget_exhausted"), "{report:?}");
}
