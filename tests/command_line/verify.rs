//! `verify`: a file of commands, what is usual for a project, and what is wrong with either.

use std::process::Command;

use serde_json::json;

use crate::program::{Running, Workspace};

#[test]
fn a_file_of_commands_is_run_and_judged() {
    let workspace = Workspace::new();
    let check = |id: &str, command: &str, required: bool| {
        format!("[[check]]\nid = '{id}'\nkind = 'test'\ncommand = '{command}'\nrequired = {required}\n")
    };
    let good = format!("subject = 'the shelf'\n{}", check("one", "true", true));
    workspace.write("good.toml", &good);
    let ran = workspace.run(&["verify", "good.toml"]).ends_with(0);
    assert!(ran.out.ends_with("passed: the shelf\n"), "{}", ran.out);
    workspace.write("open.toml", &format!("{good}{}", check("two", "exit 4", false)));
    let ran = workspace.run(&["verify", "open.toml", "--json"]).ends_with(1);
    let report = ran.json();
    assert_eq!((&report["schema"], &report["status"]), (&json!("a3s.verification_report.v1"), &json!("needs_review")));
    assert_eq!(report["checks"][1]["status"], "failed");
    assert!(ran.err.contains("the verification is needs_review"), "{}", ran.err);
    workspace.write("bad.toml", &check("one", "false", true));
    let ran = workspace.run(&["verify", "bad.toml"]).ends_with(1);
    assert!(ran.out.contains("code 1, expected 0: false") && ran.out.ends_with("failed\n"), "{}", ran.out);
    let json = json!({"check": [{"id": "a", "kind": "test", "command": "true"}]});
    workspace.run_with(&["verify", "-"], json.to_string().as_bytes()).ends_with(0);
}

#[test]
fn a_file_that_makes_no_sense_is_told_with_its_line() {
    let workspace = Workspace::new();
    workspace.write("odd.toml", "[[check]]\nid = 'a'\nkind = 'test'\ncommand = 'touch ran'\nexpected = 3\n");
    let ran = workspace.run(&["verify", "odd.toml"]).ends_with(2);
    assert!(ran.err.contains("odd.toml:") && ran.err.contains("expected"), "{}", ran.err);
    let twice = "[[check]]\nid = 'a'\nkind = 'test'\ncommand = 'touch ran'\n".repeat(2);
    workspace.write("twice.toml", &twice);
    let ran = workspace.run(&["verify", "twice.toml"]).ends_with(2);
    assert!(ran.err.contains("two commands have the id \"a\""), "{}", ran.err);
    assert!(!workspace.has("ran"));
    workspace.run(&["verify", "nothing.toml"]).ends_with(2);
}

#[test]
fn a_project_of_a_known_kind_has_its_commands() {
    let workspace = Workspace::new();
    let ran = workspace.run(&["verify"]).ends_with(1);
    assert!(ran.err.contains("nothing to verify"), "{}", ran.err);
    workspace.write("package.json", r#"{"scripts": {"test": "exit 3", "lint": "exit 0"}}"#);
    workspace.write("yarn.lock", "");
    let ran = workspace.run(&["verify", "--list"]).ends_with(0);
    assert_eq!(ran.out, "node-test        required  yarn run test\nnode-lint        optional  yarn run lint\n");
    workspace.write("go.mod", "module m\n");
    let ran = workspace.run(&["verify", "--list", "--json"]).ends_with(0);
    let ids: Vec<_> = ran.json()["check"].as_array().unwrap().iter().map(|check| check["id"].clone()).collect();
    assert_eq!(ids, ["node-test", "node-lint", "go-test", "go-vet"]);
}

// Found in a review: what every command takes was not heard here.
#[test]
fn a_bucket_is_reached_as_the_command_line_says() {
    let workspace = Workspace::new();
    let args = ["verify", "--list", "--workspace", "s3://bucket/p", "--s3-endpoint", "nowhere"];
    let open_to_all = |command: &mut Command| {
        command.env("AWS_SKIP_SIGNATURE", "true");
    };
    let ran = Running::start(&workspace, &args, open_to_all).ended().ends_with(2);
    assert!(ran.err.contains("nowhere"), "{}", ran.err);
}
