//! `eval`: the shipped set of tasks against scripted models, as a table and as JSON; and objects by `call`.

use std::path::Path;

use serde_json::{Value, json};

use crate::program::Workspace;

fn shipped() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/evaluation.toml").display().to_string()
}

fn calls(when: &str, tool: &str, arguments: Value) -> Value {
    json!({"when": when, "calls": [{"tool": tool, "arguments": arguments}], "usage": {"input_tokens": 100, "output_tokens": 10}})
}

fn says(when: &str, text: &str) -> Value {
    json!({"when": when, "text": text})
}

/// What a model does that does everything right.
fn good() -> Vec<Value> {
    let area = json!({"file_path": "src/app.py", "old_string": "return width + height\n", "new_string": "return width * height\n"});
    vec![
        calls("Which port", "search", json!({"mode": "grep", "query": "port"})),
        says("Which port", "It is 8417, in config/server.toml."),
        calls("hold the word ERROR", "search", json!({"mode": "grep", "query": "ERROR", "path": "logs"})),
        says("hold the word ERROR", "3"),
        calls("colours.txt", "write", json!({"file_path": "colours.txt", "content": "red\ngreen\nblue\n"})),
        says("colours.txt", "Done."),
        calls("area()", "read", json!({"file_path": "src/app.py"})),
        calls("area()", "edit", area),
        says("area()", "Done."),
        calls("secrets.txt", "ls", json!({})),
        says("secrets.txt", "No."),
        calls("Heron", "write", json!({"file_path": "README.md", "content": "# Heron\n\nHeron is small.\n"})),
        calls("Heron", "write", json!({"file_path": "src/name.txt", "content": "Heron\n"})),
        says("Heron", "Done."),
        says("6 times 7", "42"),
        calls("plan.md", "ls", json!({})),
        says("plan.md", "Not found."),
    ]
}

fn script(workspace: &Workspace, turns: &[Value]) -> &'static str {
    let lines: Vec<String> = turns.iter().map(Value::to_string).collect();
    workspace.write("turns.jsonl", &lines.join("\n"));
    "scripted:turns.jsonl"
}

#[test]
fn the_shipped_set_can_be_done_and_every_figure_is_printed() {
    let workspace = Workspace::new();
    let model = script(&workspace, &good());
    let report = workspace.run(&["eval", &shipped(), "--model", model, "--json"]).json();
    let lacking: Vec<&Value> =
        report["tasks"].as_array().unwrap().iter().filter(|task| task["lacks"].is_array()).collect();
    assert!(lacking.is_empty(), "{lacking:?}");
    let totals = &report["totals"];
    assert_eq!((&totals["runs"], &totals["succeeded"], &totals["mis_selected"]), (&json!(8), &json!(8), &json!(0)));
    assert_eq!(
        (&totals["calls"], &totals["input_tokens"], &totals["argument_errors"]),
        (&json!(9), &json!(900), &json!(0))
    );
    assert_eq!(report["budget"]["rounds"], 10);
    let ran = workspace.run(&["eval", &shipped(), "--model", model]).ends_with(0);
    assert!(ran.out.contains("wrong tool") && ran.out.lines().last().unwrap().starts_with("all "), "{}", ran.out);
}

#[test]
fn what_fails_is_told_and_a_faulty_set_is_named_with_its_line() {
    let workspace = Workspace::new();
    let model = script(&workspace, &[json!({"text": "I do not know.", "repeat": true})]);
    let ran = workspace.run(&["eval", &shipped(), "--model", model]).ends_with(1);
    assert!(ran.out.contains("find-a-setting (completed): the answer lacks \"8417\""), "{}", ran.out);
    workspace.write("odd.toml", "name = 'x'\n[[task]]\nid = 'a'\nprompt = 'p'\nexpct = 1\n");
    let ran = workspace.run(&["eval", "odd.toml", "--model", model]).ends_with(2);
    assert!(ran.err.contains("odd.toml:") && ran.err.contains("expct"), "{}", ran.err);
    workspace.run(&["eval", "nowhere.toml", "--model", model]).ends_with(2);
}

#[test]
fn an_object_is_printed_as_it_was_written() {
    let workspace = Workspace::new();
    let text = "Sure: {\"n\": 123456789012345678901234567890}";
    let model = script(&workspace, &[json!({"agent": "generate_object", "text": text})]);
    let arguments = json!({"schema": {"type": "object", "required": ["n"]}, "prompt": "a long number"}).to_string();
    let ran = workspace.run(&["call", "generate_object", &arguments, "--model", model]).ends_with(0);
    assert!(
        ran.out.starts_with("{\"object\":{\"n\":123456789012345678901234567890},\"repair_rounds\":0,"),
        "{}",
        ran.out
    );
    // Arguments are values: a number that would lose digits is refused, and says what to do.
    let ran = workspace.run(&["call", "ls", "{\"limit\": 123456789012345678901234567890}"]).ends_with(2);
    assert!(ran.err.contains("123456789012345678901234567890") && ran.err.contains("as a string"), "{}", ran.err);
}
