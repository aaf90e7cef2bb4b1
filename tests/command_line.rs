//! The command line as a person or a script meets it: real runs of the built program.
//!
//! `cargo build -p toolwarden-cli && cargo test -p toolwarden-promises --test command_line`: the program belongs to another package, so
//! it has to be built first. Nothing here waits for a span of time to pass; what is waited for is looked for until
//! it is there, with a bound that only a broken program meets.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "the tests run the program and look at real files and processes"
)]

#[path = "command_line/agent.rs"]
mod agent;
#[path = "command_line/artifact.rs"]
mod artifact;
#[path = "command_line/containment.rs"]
mod containment;
#[path = "command_line/eval.rs"]
mod eval;
#[path = "command_line/keeping.rs"]
mod keeping;
#[path = "command_line/model.rs"]
mod model;
#[path = "command_line/program.rs"]
mod program;
#[path = "command_line/pseudo_terminal.rs"]
mod pseudo_terminal;
#[path = "command_line/script.rs"]
mod script;
#[path = "command_line/simulation.rs"]
mod simulation;
#[path = "command_line/timeline.rs"]
mod timeline;
#[path = "command_line/verify.rs"]
mod verify;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use self::program::{Ran, Running, Workspace, living, outliving};
use self::pseudo_terminal::Terminal;

const READ_ONLY_TOOLS: [&str; 3] = ["ls", "read", "search"];

fn workspace() -> Workspace {
    let workspace = Workspace::new();
    workspace.write("src/window.rs", "/// The restart intensity is decided here.\npub fn restart_intensity() {}\n");
    workspace.write("README.md", "# Nothing about it\n");
    workspace
}

/// Every invocation has one beginning and one ending, and the numbers have no gap.
fn check_events(lines: &[Value]) {
    let numbers: Vec<u64> = lines.iter().map(|line| line["sequence"].as_u64().unwrap()).collect();
    let expected: Vec<u64> = (1..=lines.len() as u64).collect();
    assert_eq!(numbers, expected);
    let ids = |kind: &str| -> Vec<&str> {
        let mut ids: Vec<&str> =
            lines.iter().filter(|line| line["type"] == kind).map(|line| line["id"].as_str().unwrap()).collect();
        ids.sort_unstable();
        ids
    };
    let proposed = ids("tool_proposed");
    assert!(!proposed.is_empty());
    assert_eq!(proposed, ids("tool_end"));
    assert!(lines.iter().all(|line| line["session_id"].is_string() && line["timestamp_ms"].is_u64()));
}

#[test]
fn tools_are_listed_as_a_table_and_as_definitions() {
    let workspace = workspace();
    let ran = workspace.run(&["tools"]).ends_with(0);
    assert!(ran.out.starts_with("NAME ") && ran.out.contains("\nbash "), "{}", ran.out);
    let tools = workspace.run(&["tools", "--json"]).ends_with(0).json();
    let tools = tools.as_array().unwrap();
    let class = |name: &str| tools.iter().find(|tool| tool["name"] == name).unwrap()["class"].clone();
    assert_eq!([class("bash"), class("edit"), class("batch")], ["executes", "writes", "orchestrates"]);
    assert!(READ_ONLY_TOOLS.iter().all(|name| class(name) == "read-only"));
    for tool in tools {
        assert!(tool["visible"].is_boolean() && tool["lane"].is_string() && tool["description"].is_string(), "{tool}");
        assert_eq!(tool["parameters"]["type"], "object", "{tool}");
    }
}

// R15: a file with another name outside, and what lies in .git, each want their own permission.
#[test]
fn what_tools_may_write_beside_the_usual_has_to_be_allowed() {
    let (workspace, outer) = (workspace(), tempfile::tempdir().unwrap());
    workspace.write("toolwarden.toml", "[writes]\ngit_folder = true\n");
    workspace.write("links.toml", "[writes]\nhard_links = true\n");
    workspace.write(".git/info/note", "x");
    std::fs::write(outer.path().join("one"), "theirs").unwrap();
    std::fs::hard_link(outer.path().join("one"), workspace.path().join("two")).unwrap();
    let write = |path: &str, flags: &[&str]| {
        let arguments = json!({"file_path": path, "content": format!("by {flags:?}")}).to_string();
        workspace.run(&[&["call", "write", &arguments, "--json"], flags].concat())
    };
    // Settings that lie in the workspace are not the person's own.
    for (path, flags) in [("two", &[][..]), (".git/info/note", &[]), ("two", &["--allow-git-folder"])] {
        let refused = write(path, flags).ends_with(1).json();
        assert_eq!(refused["error_kind"]["type"], "unsupported", "{path} {flags:?}: {refused}");
    }
    for (path, flags) in [
        ("two", &["--allow-hard-links"][..]),
        (".git/info/note", &["--allow-git-folder"]),
        (".git/info/note", &["--config", "toolwarden.toml"]),
    ] {
        write(path, flags).ends_with(0);
        let written = std::fs::read_to_string(workspace.path().join(path)).unwrap();
        assert_eq!(written, format!("by {flags:?}"));
    }
    assert_eq!(std::fs::read_to_string(outer.path().join("one")).unwrap(), "theirs");
    std::fs::hard_link(workspace.path().join("two"), outer.path().join("three")).unwrap();
    write("two", &["--config", "links.toml"]).ends_with(0);
    assert_eq!(std::fs::read_to_string(outer.path().join("three")).unwrap(), "by [\"--allow-hard-links\"]");
}

#[test]
fn a_sandbox_keeps_commands_where_it_is_told() {
    let workspace = workspace();
    let bash = |flags: &[&str], line: &str| {
        let arguments = json!({"command": line}).to_string();
        workspace.run(&[&["call", "bash", &arguments, "--json"], flags].concat())
    };
    let offline = bash(&["--sandbox", "workspace-write", "--no-network"], "echo x >new; ! : >/dev/tcp/127.0.0.1/9");
    let result = offline.ends_with(0).json();
    assert_eq!(result["metadata"]["sandbox"], json!({"files": "workspace_write", "network": "off"}));
    assert!(workspace.has("new"));
    let result = bash(&["--sandbox", "read-only"], "echo x >other").ends_with(1).json();
    assert_eq!(result["metadata"]["sandbox"], json!({"files": "read_only", "network": "on"}));
    assert!(!workspace.has("other"));
    let key = workspace.path().join("README.md").display().to_string();
    let denied = bash(&["--sandbox", "workspace-write", "--deny", &key], "cat README.md").ends_with(1).json();
    assert!(!denied["output"].as_str().unwrap().contains("Nothing about it"), "{denied}");
    let writable = bash(&["--sandbox", "read-only", "--writable", &key], "echo x >>README.md && cat README.md");
    assert!(writable.ends_with(0).json()["output"].as_str().unwrap().ends_with("x\n"));
    let ran = bash(&["--deny", &key], "true").ends_with(2);
    assert!(ran.err.contains("needs --sandbox"), "{}", ran.err);
}

#[test]
fn a_call_prints_its_output_or_the_whole_result() {
    let workspace = workspace();
    let ran = workspace.run(&["call", "bash", r#"{"command":"echo hi"}"#]).ends_with(0);
    assert_eq!((ran.out.as_str(), ran.err.as_str()), ("hi\n", ""));
    let read = json!({"file_path": "README.md"}).to_string();
    let result = workspace.run(&["call", "read", &read, "--json"]).ends_with(0).json();
    assert_eq!(
        (&result["name"], &result["exit_code"], &result["trust"]),
        (&json!("read"), &json!(0), &json!("workspace_data"))
    );
    assert!(result["output"].as_str().unwrap().contains("# Nothing about it"));
    assert!(result["id"].as_str().unwrap().starts_with("host-read-"));
    let evidence = &result["metadata"]["a3s_tool_result_evidence"];
    assert!(evidence["content_digest"].as_str().unwrap().starts_with("sha256:"), "{evidence}");
    let ran = workspace.run_with(&["call", "read", "-"], read.as_bytes()).ends_with(0);
    assert!(ran.out.contains("# Nothing about it"));
}

#[test]
fn a_call_that_fails_exits_with_1_and_says_how() {
    let workspace = workspace();
    let ran = workspace.run(&["call", "bash", r#"{"command":"echo out; exit 3"}"#]).ends_with(1);
    assert!(ran.out.starts_with("out\n") && ran.err.contains("exit code 3"), "{ran:?}");
    let ran = workspace.run(&["call", "nosuch", "--json"]).ends_with(1);
    assert_eq!(ran.json()["error_kind"]["type"], "invalid_argument");
    assert!(ran.err.contains("refused by schema"), "{ran:?}");
    let ran = workspace.run(&["call", "bash", r#"{"command":"sleep 60"}"#, "--timeout", "0.2", "--json"]).ends_with(1);
    assert_eq!(ran.json()["error_kind"]["type"], "timeout");
    let ran = workspace.run(&["call", "read", r#"{"file_path":"../../etc/passwd"}"#]).ends_with(1);
    assert!(!ran.out.contains("root:"), "{ran:?}");
}

#[test]
fn a_command_line_that_makes_no_sense_exits_with_2_and_says_what_to_do() {
    let workspace = workspace();
    workspace.write("bad.toml", "allow = [\n  \"bash(\",\n]\n");
    workspace.write("bad.jsonl", "{\"text\": 1}\n");
    let cases: [(&[&str], &str); 14] = [
        (&["call", "bash", "{\"command\":\n oops}"], "line 2 column 2"),
        (&["call", "bash", "{'command': 1}"], "single quotes"),
        (&["call", "bash", "{}", "--policy", "bad.toml"], "--governed"),
        (&["call", "bash", "{}", "--timeout", "0"], "seconds"),
        (&["tools", "--workspace", "nowhere"], "nowhere is missing"),
        (&["tools", "--workspace", "README.md"], "is not a folder"),
        (&["ask", "x", "--policy", "nowhere.toml"], "nowhere.toml"),
        (&["ask", "x", "--policy", "bad.toml"], "bad.toml:2"),
        (&["ask", "x", "--policy", "src"], "cannot read the policy from src"),
        (&["ask", "x", "--model", "gpt"], "scripted:FILE"),
        (&["ask", "x", "--model", "scripted:bad.jsonl"], "bad.jsonl:1"),
        (&["ask", "x", "--fan-out", "0"], "1..=32"),
        (&["ask", " "], "empty"),
        (&["ask", "x", "--events", "no/such/folder"], "no/such/folder"),
    ];
    for (args, says) in cases {
        let ran = workspace.run(args).ends_with(2);
        assert!(ran.err.contains(says) && ran.out.is_empty(), "{args:?}: {ran:?}");
        assert!(!ran.err.contains("panicked") && !ran.err.contains("RUST_BACKTRACE"), "{ran:?}");
    }
    for args in [&[][..], &["nosuch"], &["ask"], &["call"], &["ask", "x", "--nosuch"]] {
        assert!(workspace.run(args).ends_with(2).err.contains("Usage"), "{args:?}");
    }
    let deep = format!("{{\"command\": {}", "[".repeat(100_000));
    assert!(workspace.run_with(&["call", "bash", "-"], deep.as_bytes()).ends_with(2).err.contains("recursion limit"));
    let large = vec![b' '; 16 * 1024 * 1024 + 1];
    assert!(workspace.run_with(&["call", "bash", "-"], &large).ends_with(2).err.contains("16777216 bytes"));
    let ran = workspace.run_with(&["ask", "-"], &[b'a', 0xff]).ends_with(2);
    assert!(ran.err.contains("not UTF-8"), "{ran:?}");
}

#[test]
fn a_question_is_answered_with_sources_and_recorded() {
    let workspace = workspace();
    let question = ["ask", "where", "is", "the", "restart", "intensity", "decided?"];
    let ran = workspace.run(&[&question[..], &["--events", "events.jsonl"]].concat()).ends_with(0);
    assert!(ran.out.contains("src/window.rs:1"), "{}", ran.out);
    assert_eq!(ran.err, "", "nothing is drawn on a pipe");
    let events = workspace.events("events.jsonl");
    check_events(&events);
    assert_eq!(events.first().unwrap()["type"], "session_opened");
    assert_eq!(events.last().unwrap()["type"], "session_closed");
    assert!(events.iter().any(|event| event["type"] == "subagent_start"));
    let answer = workspace.run(&[&question[..], &["--json", "--fan-out", "2"]].concat()).ends_with(0).json();
    assert_eq!(answer["status"], "completed");
    assert!(answer["text"].as_str().unwrap().contains("src/window.rs:1"));
    assert!(answer["turns"].as_u64().unwrap() >= 1 && answer["usage"]["input_tokens"].is_u64());
    assert!(answer["elapsed_ms"].is_u64() && answer["source_anchors"].is_array(), "{answer}");
    let ran = workspace.run_with(&["ask", "-"], b"where is the restart intensity decided?\n").ends_with(0);
    assert!(ran.out.contains("src/window.rs:1"), "{}", ran.out);
}

#[test]
fn what_no_rule_allows_is_refused_at_once_without_a_terminal() {
    let workspace = workspace();
    workspace.script(&[
        json!({"calls": [{"tool": "bash", "arguments": {"command": "touch made"}}]}),
        json!({"text": "that is all"}),
    ]);
    let asked = ["ask", "do it", "--model", "scripted:script.jsonl", "--events", "events.jsonl"];
    let ran = workspace.run(&asked).ends_with(0);
    assert_eq!(ran.out, "that is all\n");
    assert!(!workspace.has("made"));
    let events = workspace.events("events.jsonl");
    check_events(&events);
    let end = events.iter().find(|event| event["type"] == "tool_end").unwrap();
    assert!(end["output"].as_str().unwrap().contains("nobody can be asked"), "{end}");
    workspace.run(&[&asked[..], &["--yes-to", "everything"]].concat()).ends_with(0);
    assert!(workspace.has("made"));
    let ran = workspace.run(&["call", "bash", r#"{"command":"touch other"}"#, "--governed"]).ends_with(1);
    assert!(ran.out.contains("nobody can be asked") && !workspace.has("other"), "{ran:?}");
    workspace.write("policy.toml", "allow = [\"bash(touch *)\", \"bahs(rm *)\"]\n");
    let governed = ["call", "bash", r#"{"command":"touch other"}"#, "--governed", "--policy", "policy.toml"];
    let ran = workspace.run(&governed).ends_with(0);
    assert!(workspace.has("other") && ran.err.contains("bahs"), "a rule for a tool that nobody has: {ran:?}");
}

#[test]
fn a_run_that_fails_exits_with_1_and_says_what_to_do() {
    let workspace = workspace();
    workspace.script(&[json!({"calls": [{"tool": "ls", "arguments": {}}]})]);
    let ran = workspace.run(&["ask", "x", "--model", "scripted:script.jsonl", "--json"]).ends_with(1);
    assert_eq!(ran.json()["status"], "model_failed");
    assert!(ran.err.contains("script.jsonl") && ran.err.contains("--model"), "{ran:?}");
    workspace.script(&[json!({"text": "late", "delay_ms": 600_000})]);
    let ran = workspace.run(&["ask", "x", "--model", "scripted:script.jsonl", "--timeout", "0.2"]).ends_with(1);
    assert!(ran.err.contains("200 ms") && ran.err.contains("--timeout"), "{ran:?}");
}

#[test]
fn a_secret_of_the_environment_is_never_seen() {
    let workspace = workspace();
    workspace.write("leak.txt", "the key is abcd-1234-efgh\n");
    let mut running = Running::start(&workspace, &["call", "read", r#"{"file_path":"leak.txt"}"#], |command| {
        command.env("SOME_API_KEY", "abcd-1234-efgh");
    });
    running.close_input();
    let ran = running.ended().ends_with(0);
    assert!(ran.out.contains("the key is [redacted]"), "{ran:?}");
    let mut running = Running::start(&workspace, &["call", "bash", r#"{"command":"env"}"#], |command| {
        command.env("SOME_API_KEY", "abcd-1234-efgh").env("HARMLESS", "x");
    });
    running.close_input();
    let ran = running.ended().ends_with(0);
    assert!(!ran.out.contains("SOME_API_KEY") && !ran.out.contains("HARMLESS"), "{ran:?}");
}

#[test]
fn a_reader_that_has_read_enough_ends_the_output_quietly() {
    let workspace = workspace();
    let mut running = Running::start(&workspace, &["tools", "--json"], |_| {});
    running.close_output();
    running.close_input();
    let ran = running.ended().ends_with(0);
    assert_eq!(ran.err, "");
    let large = json!({"command": "head -c 90000 /dev/zero | tr '\\0' x"}).to_string();
    let mut running = Running::start(&workspace, &["call", "bash", &large], |_| {});
    running.close_output();
    running.close_input();
    assert_eq!(running.ended().ends_with(0).err, "");
}

fn sleeping(mark: &str, command: &str) -> String {
    json!({"command": command, "env": {program::MARK: mark}}).to_string()
}

#[test]
fn ctrl_c_cancels_the_call_and_leaves_nothing_running() {
    let workspace = workspace();
    let mark = program::unique_mark();
    let call = ["call", "bash", &sleeping(&mark, "sleep 60"), "--json", "--events", "events.jsonl"];
    let mut running = Running::start(&workspace, &call, |_| {});
    running.close_input();
    program::appears(&mark, "sleep 60");
    running.signal(Signal::SIGINT);
    let ran = running.ended().ends_with(130);
    assert_eq!(ran.json()["error_kind"], json!({"type": "cancelled", "op": "bash", "reason": {"cancel": "requested"}}));
    assert!(ran.err.contains("waiting for bash") && ran.err.contains("everything has ended"), "{ran:?}");
    assert_eq!(living(&mark), [""; 0]);
    let events = workspace.events("events.jsonl");
    check_events(&events);
    assert_eq!(events.last().unwrap()["type"], "session_closed");
}

#[test]
fn other_signals_end_a_call_in_order_too() {
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGHUP, 129)] {
        let (workspace, mark) = (workspace(), program::unique_mark());
        let mut running = Running::start(&workspace, &["call", "bash", &sleeping(&mark, "sleep 61")], |_| {});
        running.close_input();
        program::appears(&mark, "sleep 61");
        running.signal(signal);
        running.ended().ends_with(code);
        assert_eq!(living(&mark), [""; 0]);
    }
}

#[test]
fn ctrl_c_cancels_a_run_with_its_calls() {
    let workspace = workspace();
    let mark = program::unique_mark();
    let arguments: Value = serde_json::from_str(&sleeping(&mark, "sleep 62")).unwrap();
    workspace.script(&[json!({"calls": [{"tool": "bash", "arguments": arguments}], "repeat": true})]);
    let ask =
        ["ask", "x", "--model", "scripted:script.jsonl", "--yes-to", "everything", "--json", "--events", "e.jsonl"];
    let mut running = Running::start(&workspace, &ask, |_| {});
    running.close_input();
    program::appears(&mark, "sleep 62");
    running.signal(Signal::SIGINT);
    let ran = running.ended().ends_with(130);
    let outcome = ran.json();
    assert_eq!(
        (&outcome["status"], &outcome["reason"]),
        (&json!("cancelled"), &json!({"cancel": "requested"})),
        "{ran:?}"
    );
    assert_eq!(living(&mark), [""; 0]);
    let events = workspace.events("e.jsonl");
    check_events(&events);
    let turns = events.iter().filter(|event| event["type"] == "turn_start").count();
    assert_eq!(turns, 1, "a cancelled run asks its model nothing more");
}

#[test]
fn a_second_ctrl_c_kills_what_will_not_end() {
    let workspace = workspace();
    let mark = program::unique_mark();
    let stubborn = sleeping(&mark, "trap '' TERM; while :; do sleep 63; done");
    let call = ["call", "bash", &stubborn, "--events", "events.jsonl"];
    let mut running = Running::start(&workspace, &call, |_| {});
    running.close_input();
    program::appears(&mark, "sleep 63");
    running.signal(Signal::SIGINT);
    running.says("Ctrl-C again kills");
    running.signal(Signal::SIGINT);
    let ran = running.ended().ends_with(130);
    assert!(ran.err.contains("killing what still runs") && ran.out.is_empty(), "{ran:?}");
    assert_eq!(outliving(&mark), [""; 0]);
    check_events(&workspace.events("events.jsonl"));
}

#[test]
fn a_person_at_the_terminal_says_yes_or_no() {
    for (typed, code, made) in [("y\n", 0, true), ("n too early\n", 1, false), ("what?\nyes\n", 0, true)] {
        let workspace = workspace();
        let call = ["call", "bash", r#"{"command":"touch made && echo done"}"#, "--governed"];
        let mut terminal = Terminal::start(&workspace, &call);
        terminal.shows("May bash run?");
        terminal.shows("touch made");
        terminal.shows("[n]o (and why)?");
        for line in typed.split_inclusive('\n') {
            terminal.types(line);
            if line.starts_with("what") {
                terminal.shows("please answer");
            }
        }
        let (shown, ended) = terminal.ended();
        assert_eq!((ended, workspace.has("made")), (code, made), "{typed:?}: {shown}");
        assert_eq!(shown.contains("too early"), !made, "the reason is told: {shown}");
    }
}

#[test]
fn ctrl_c_at_a_question_ends_the_call() {
    let workspace = workspace();
    let mut terminal = Terminal::start(&workspace, &["call", "bash", r#"{"command":"touch made"}"#, "--governed"]);
    terminal.shows("[n]o (and why)?");
    terminal.types("\u{3}");
    let (shown, ended) = terminal.ended();
    assert_eq!((ended, workspace.has("made")), (130, false), "{shown}");
    assert!(shown.contains("everything has ended"), "{shown}");
}

#[test]
fn progress_is_drawn_on_a_terminal() {
    let workspace = workspace();
    workspace.script(&[
        json!({"calls": [{"tool": "bash", "arguments": {"command": "echo begun > begun; read x < go"}}]}),
        json!({"text": "the end"}),
    ]);
    workspace.fifo("go");
    let ask = ["ask", "x", "--model", "scripted:script.jsonl", "--yes-to", "everything"];
    let mut terminal = Terminal::start(&workspace, &ask);
    terminal.shows("ask scripted:script.jsonl");
    terminal.shows("  bash echo begun > begun; read x < go (");
    workspace.write("go", "on\n");
    let (shown, ended) = terminal.ended();
    assert_eq!(ended, 0, "{shown}");
    assert!(shown.contains("the end") && shown.contains("1 call, "), "{shown}");
}

#[test]
fn what_a_file_holds_gives_no_commands_to_the_terminal() {
    let workspace = workspace();
    workspace.script(&[json!({"text": "before\u{1b}]0;title\u{7}after"})]);
    let ask = ["ask", "x", "--model", "scripted:script.jsonl"];
    let (shown, ended) = Terminal::start(&workspace, &ask).ended();
    assert!(ended == 0 && shown.contains("beforeafter"), "{shown}");
    let ran: Ran = workspace.run(&ask).ends_with(0);
    assert!(ran.out.contains("\u{1b}]0;"), "a pipe gets every byte");
}
