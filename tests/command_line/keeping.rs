//! Sessions that are kept: asked, listed, killed, gone on with, forked, and refused where they should be.

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::program::{Ran, Running, Workspace};

fn call(tool: &str, arguments: Value) -> Value {
    json!({ "calls": [{ "tool": tool, "arguments": arguments }] })
}

fn status(workspace: &Workspace, session: &str) -> Value {
    let listed = workspace.run(&["sessions", "--store", "kept", "--json"]).ends_with(0).json();
    listed.as_array().unwrap().iter().find(|one| one["session"] == session).unwrap().clone()
}

fn asked(workspace: &Workspace, question: &str) -> String {
    let ran = workspace.run(&["ask", "--store", "kept", "--model", "scripted:script.jsonl", "--json", question]);
    let ran = ran.ends_with(0);
    let session = ran.json()["session"].as_str().unwrap().to_owned();
    assert!(ran.err.contains(&format!("kept as {session}")), "{}", ran.err);
    session
}

fn resume(workspace: &Workspace, session: &str, more: &[&str]) -> Ran {
    workspace.run(&[&["resume", session, "--store", "kept"], more].concat())
}

#[test]
fn a_conversation_goes_on_in_another_process() {
    let workspace = Workspace::new();
    let none = workspace.run(&["sessions", "--store", "kept"]).ends_with(0);
    assert!(none.out.is_empty() && none.err.contains("no session is kept"), "{}", none.err);
    workspace.script(&[json!({ "text": "the first answer" }), json!({ "text": "the second answer" })]);
    let session = asked(&workspace, "first?");
    // Nothing more to say: the answer that there is, and no model is asked.
    assert_eq!(resume(&workspace, &session, &[]).ends_with(0).out.trim(), "the first answer");
    assert_eq!(resume(&workspace, &session, &["and", "then?"]).ends_with(0).out.trim(), "the second answer");
    let listed = status(&workspace, &session);
    assert_eq!(
        (&listed["status"], &listed["runs"], &listed["prompt"]),
        (&"completed".into(), &2.into(), &"and then?".into())
    );
    let table = workspace.run(&["sessions", "--store", "kept"]).ends_with(0);
    assert!(table.out.contains(&session) && table.out.contains("completed"), "{}", table.out);
    let json = resume(&workspace, &session, &["--json"]).ends_with(0).json();
    assert_eq!((&json["status"], &json["turns"]), (&"completed".into(), &1.into()));
}

#[test]
fn a_run_that_was_killed_is_finished_and_a_word_can_be_put_in() {
    let workspace = Workspace::new();
    workspace.write("notes.txt", "what is there\n");
    let slow = json!({ "text": "done", "delay_ms": 600_000 });
    workspace.script(&[call("read", json!({ "file_path": "notes.txt" })), slow]);
    let args = ["ask", "--store", "kept", "--model", "scripted:script.jsonl", "look"];
    let mut running = Running::start(&workspace, &args, |_| {});
    let line = running.line_with("kept as ");
    let session = line.trim().rsplit(' ').next().unwrap().to_owned();
    // The turn, the call's binding, start and end.
    until(|| status(&workspace, &session)["facts"].as_u64() >= Some(6));
    assert_eq!(status(&workspace, &session)["status"], "interrupted");
    // Open elsewhere: refused, and told where.
    let held = resume(&workspace, &session, &[]).ends_with(1);
    assert!(held.err.contains("is open in process "), "{}", held.err);
    running.signal(Signal::SIGKILL);
    running.ended();
    workspace.write(
        "quick.jsonl",
        &[json!({ "text": "never asked" }), json!({ "text": "done" }), json!({ "text": "also that" })]
            .map(|line| line.to_string())
            .join("\n"),
    );
    let ran = resume(&workspace, &session, &["--model", "scripted:quick.jsonl", "also", "that"]).ends_with(0);
    // The first turn was stored, and so is not asked for again; the word that was put in gets an answer.
    assert_eq!(ran.out.trim(), "also that");
    assert_eq!(status(&workspace, &session)["status"], "completed");
}

#[test]
fn a_command_that_was_cut_off_is_not_run_again() {
    let workspace = Workspace::new();
    let command = "echo once >> counter.txt; exec sleep 600";
    workspace.script(&[call("bash", json!({ "command": command })), json!({ "text": "told" })]);
    let args = ["ask", "--store", "kept", "--yes-to", "everything", "--model", "scripted:script.jsonl", "run it"];
    let mut running = Running::start(&workspace, &args, |_| {});
    let line = running.line_with("kept as ");
    let session = line.trim().rsplit(' ').next().unwrap().to_owned();
    until(|| workspace.has("counter.txt"));
    running.signal(Signal::SIGKILL);
    running.ended();
    let ran = resume(&workspace, &session, &[]).ends_with(0);
    assert_eq!(ran.out.trim(), "told");
    assert!(ran.err.contains("not run again: calls 1, child runs 0"), "{}", ran.err);
    assert_eq!(std::fs::read_to_string(workspace.path().join("counter.txt")).unwrap(), "once\n");
}

#[test]
fn a_fork_goes_its_own_way() {
    let workspace = Workspace::new();
    workspace.script(&[json!({ "text": "trunk" }), json!({ "text": "one step on" })]);
    let session = asked(&workspace, "first?");
    let fork = workspace.run(&["fork", &session, "--store", "kept"]).ends_with(0).out.trim().to_owned();
    assert_eq!(fork, format!("{session}.1"));
    assert_eq!(
        workspace.run(&["fork", &session, "--as", "branch", "--store", "kept"]).ends_with(0).out.trim(),
        "branch"
    );
    assert_eq!(resume(&workspace, "branch", &["more"]).ends_with(0).out.trim(), "one step on");
    assert_eq!((&status(&workspace, "branch")["runs"], &status(&workspace, &session)["runs"]), (&2.into(), &1.into()));
    assert_eq!(status(&workspace, "branch")["parent"], session.as_str());
    let again = workspace.run(&["fork", &session, "--as", "branch", "--store", "kept"]).ends_with(2);
    assert!(again.err.contains("exists already"), "{}", again.err);
}

#[test]
fn what_cannot_go_on_says_what_to_do() {
    let workspace = Workspace::new();
    workspace.script(&[json!({ "text": "an answer" })]);
    let session = asked(&workspace, "first?");
    let unnamed = workspace.run(&["sessions"]).ends_with(2);
    assert!(unnamed.err.contains("--store DIR") && unnamed.err.contains("TOOLWARDEN_STORE"), "{}", unnamed.err);
    let unknown = resume(&workspace, "nobody", &[]).ends_with(2);
    assert!(unknown.err.contains("toolwarden sessions"), "{}", unknown.err);
    std::fs::create_dir(workspace.path().join("other")).unwrap();
    let moved = resume(&workspace, &session, &["--workspace", "other"]).ends_with(2);
    assert!(moved.err.contains("was opened with workspace = "), "{}", moved.err);
    // A log that was edited by hand.
    let log = workspace.path().join("kept/sessions").join(&session).join("facts.log");
    let mut bytes = std::fs::read(&log).unwrap();
    let at = bytes.len() - 60;
    bytes[at] ^= 1;
    std::fs::write(&log, &bytes).unwrap();
    let damaged = resume(&workspace, &session, &[]).ends_with(2);
    assert!(damaged.err.contains("is damaged") && damaged.err.contains("--accept-damage"), "{}", damaged.err);
    assert_eq!(status(&workspace, &session)["status"], "damaged");
    assert_eq!(std::fs::read(&log).unwrap(), bytes);
    let accepted = resume(&workspace, &session, &["--accept-damage"]).ends_with(0);
    assert_eq!(accepted.out.trim(), "an answer", "the snapshot knows more than the log");
    assert!(accepted.err.contains("put aside in "), "{}", accepted.err);
    // A store that cannot be one.
    workspace.write("file", "");
    let file = workspace.run(&["sessions", "--store", "file"]).ends_with(1);
    assert!(file.err.contains("the store cannot be used"), "{}", file.err);
}

fn until(mut is_there: impl FnMut() -> bool) {
    let until = std::time::Instant::now() + super::program::PATIENCE;
    while !is_there() {
        assert!(std::time::Instant::now() < until, "it never came");
        std::thread::yield_now();
    }
}
