//! What was shown in part, read again by a later command; and evidence checked from a file.

use serde_json::Value;

use crate::program::Workspace;

const LONG: &str = r#"{"command":"seq 1 100000"}"#;

/// A result of a long command, written to `result.json`, and the name of its artifact.
fn long_result(workspace: &Workspace) -> (Value, String) {
    let ran = workspace.run(&["call", "bash", LONG, "--artifacts", "kept", "--json"]).ends_with(0);
    workspace.write("result.json", &ran.out);
    let result = ran.json();
    let uri = result["metadata"]["artifact"]["artifact_uri"].as_str().unwrap().to_owned();
    (result, uri)
}

fn whole() -> String {
    (1..=100_000).map(|n| format!("{n}\n")).collect()
}

#[test]
fn the_whole_of_an_output_is_read_by_a_later_command() {
    let workspace = Workspace::new();
    let (_, uri) = long_result(&workspace);
    let get = |more: &[&str]| {
        let mut args = vec!["artifact", "get", &uri, "--artifacts", "kept"];
        args.extend(more);
        workspace.run(&args).ends_with(0).out
    };
    assert!(get(&[]) == whole());
    assert_eq!(get(&["--range", "0-3"]), "1\n2\n");
    assert_eq!(get(&["--range", "-7"]), "100000\n");
    assert!(get(&["--range", "588888-"]) == "100000\n");
    let ran = workspace.run(&["artifact", "get", &uri, "--artifacts", "kept", "--range", "9-1"]).ends_with(2);
    assert!(ran.err.contains("A not more than B"), "{}", ran.err);
    let ran = workspace.run(&["artifact", "get", "file:///etc/passwd", "--artifacts", "kept"]).ends_with(2);
    assert!(ran.err.contains("a3s://tool-output/"), "{}", ran.err);
    let unknown = format!("a3s://tool-output/bash/{}", "0".repeat(64));
    let ran = workspace.run(&["artifact", "get", &unknown, "--artifacts", "kept"]).ends_with(1);
    assert!(ran.err.contains("not kept here"), "{}", ran.err);
    let ran = workspace.run(&["artifact", "get", &unknown, "--artifacts", "nowhere"]).ends_with(2);
    assert!(ran.err.contains("nowhere"), "{}", ran.err);
}

#[test]
fn evidence_is_checked_from_a_file_and_a_forgery_is_told() {
    let workspace = Workspace::new();
    let (result, uri) = long_result(&workspace);
    let verify = |file: &str| workspace.run(&["verify-evidence", file, "--artifacts", "kept"]);
    let ran = verify("result.json").ends_with(0);
    assert!(ran.out.contains("holds  original_bytes: 588895") && !ran.out.contains("WRONG"), "{}", ran.out);
    let ran = workspace.run(&["verify-evidence", "result.json", "--artifacts", "kept", "--json"]).ends_with(0);
    assert_eq!((&ran.json()["holds"], &ran.json()["projected_again"]), (&Value::from(true), &Value::from("by_tool")));

    let mut forged = result.clone();
    forged["metadata"]["a3s_tool_result_evidence"]["original_bytes"] = Value::from(588_894);
    workspace.write("forged.json", &forged.to_string());
    let ran = verify("forged.json").ends_with(1);
    assert!(ran.out.contains("WRONG  original_bytes: says 588894, is 588895"), "{}", ran.out);

    let hex = uri.rsplit('/').next().unwrap();
    workspace.write(&format!("kept/{}/{}", &hex[..2], &hex[2..]), "something else");
    let ran = verify("result.json").ends_with(1);
    assert!(ran.err.contains("damaged"), "{}", ran.err);
    workspace.write("nonsense.json", "{}");
    let ran = verify("nonsense.json").ends_with(2);
    assert!(ran.err.contains("is no result"), "{}", ran.err);
    verify("not-there.json").ends_with(2);
}

#[test]
fn a_profile_is_chosen_and_its_projection_is_made_again() {
    let workspace = Workspace::new();
    workspace.write("lines.txt", &"a line that comes again and again and again\n".repeat(1500));
    let read = r#"{"command":"cat lines.txt"}"#;
    let args = ["call", "bash", read, "--artifacts", "kept", "--json", "--projection", "context-efficient"];
    let ran = workspace.run(&args).ends_with(0);
    let evidence = ran.json()["metadata"]["a3s_tool_result_evidence"].clone();
    assert_eq!(
        (&evidence["loss_mode"], &evidence["original_bytes"]),
        (&Value::from("deterministic_transform"), &Value::from(66_000))
    );
    let ran = workspace.run_with(&["verify-evidence", "-", "--artifacts", "kept", "--json"], ran.out.as_bytes());
    assert_eq!(ran.ends_with(0).json()["projected_again"], "same");
    workspace.write("policy.json", "{\"schema\":\"x\"}");
    let ran = workspace.run(&["call", "ls", "{}", "--projection", "policy.json"]).ends_with(2);
    assert!(ran.err.contains("not a projection policy"), "{}", ran.err);
    let ran = workspace.run(&["call", "ls", "{}", "--artifacts", "lines.txt"]).ends_with(2);
    assert!(ran.err.contains("folder for artifacts"), "{}", ran.err);
}
