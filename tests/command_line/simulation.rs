//! `sim`: searches, single runs, small cases, pictures, recorded sessions, and what it is refused with.

use serde_json::{Value, json};

use super::program::{Ran, Workspace};

fn lines(ran: &Ran) -> Vec<Value> {
    ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn read(workspace: &Workspace, path: &str) -> String {
    std::fs::read_to_string(workspace.path().join(path)).unwrap()
}

/// A file whose machines are broken on purpose.
fn broken(workspace: &Workspace) {
    workspace.write(
        "broken.toml",
        "name = \"broken\"\nabout = \"A node ends twice.\"\ndriver = \"machines\"\nmutant = \"second-ending\"\n",
    );
}

#[test]
fn scenarios_are_listed_and_one_is_a_file_to_begin_from() {
    let workspace = Workspace::new();
    let listed = workspace.run(&["sim", "list", "--json"]).ends_with(0).json();
    let listed = listed.as_array().unwrap();
    assert!(listed.len() >= 15 && listed.iter().all(|one| one["about"].as_str().unwrap().len() > 20));
    assert!(["machines", "world"].iter().all(|driver| listed.iter().any(|one| one["driver"] == *driver)));
    let text = workspace.run(&["sim", "list", "--text", "wide"]).ends_with(0).out;
    workspace.write("mine.toml", &text);
    let ran = workspace.run(&["sim", "run", "--scenario", "mine.toml", "--seeds", "3..5", "--json"]).ends_with(0);
    let own = workspace.run(&["sim", "run", "--scenario", "wide", "--seeds", "3..5", "--json"]).ends_with(0);
    assert_eq!(lines(&ran)[0]["digest"], lines(&own)[0]["digest"]);
}

#[test]
fn a_search_tells_every_run_the_same_way_whatever_the_number_of_jobs() {
    let workspace = Workspace::new();
    let search = |jobs: &str| {
        let args = ["sim", "run", "--scenario", "tiny", "--scenario", "world-waiting", "--seeds", "0..6", "--json"];
        workspace.run(&[&args[..], &["--jobs", jobs]].concat()).ends_with(0).out
    };
    let one = search("1");
    assert_eq!(one, search("3"));
    assert_eq!(one.lines().count(), 12);
    let first: Value = serde_json::from_str(one.lines().next().unwrap()).unwrap();
    assert_eq!((&first["ok"], &first["failed_checker"], &first["seed"]), (&json!(true), &Value::Null, &json!(0)));
    let table = workspace.run(&["sim", "run", "--scenario", "tiny", "--for", "1s"]).ends_with(0).out;
    assert!(table.contains("0 broken promises") && table.contains("leases"), "{table}");
}

#[test]
fn a_broken_promise_is_found_made_small_told_and_drawn() {
    let workspace = Workspace::new();
    broken(&workspace);
    let found = workspace.run(&["sim", "run", "--scenario", "broken.toml", "--seeds", "0..5", "--json"]).ends_with(1);
    assert!(lines(&found).iter().all(|line| line["failed_checker"] == "terminal" && line["ok"] == false));
    let args = ["sim", "shrink", "0", "--scenario", "broken.toml", "--output", "small.toml"];
    assert!(workspace.run(&args).ends_with(0).out.contains("written to small.toml"));
    // It is there already, and stays.
    assert!(workspace.run(&args).ends_with(2).err.contains("small.toml"));
    let again = workspace.run(&["sim", "run", "--scenario", "small.toml", "--json"]).ends_with(1);
    assert_eq!(lines(&again).len(), 1);
    let told = workspace.run(&["sim", "replay", "--scenario", "small.toml"]).ends_with(1).out;
    assert!(told.contains("comes to life") && told.contains("BROKEN (terminal)"), "{told}");
    let args = ["sim", "timeline", "--scenario", "small.toml", "--html", "t.html", "--perfetto", "t.json"];
    assert!(workspace.run(&args).ends_with(1).err.contains("a node ends exactly once"));
    assert!(read(&workspace, "t.html").contains("</svg>"));
    let trace: Value = serde_json::from_str(&read(&workspace, "t.json")).unwrap();
    assert!(trace["traceEvents"].as_array().unwrap().len() > 10);
    assert!(
        workspace.run(&["sim", "shrink", "0", "--scenario", "tiny"]).ends_with(1).err.contains("breaks no promise")
    );
}

// What breaks in a pretended world breaks on purpose: whoever searches reads the table, and asks for the log if need be.
#[test]
fn a_search_logs_nothing_unless_it_is_asked_to() {
    let workspace = Workspace::new();
    let search = ["sim", "run", "--scenario", "world-bad-disk", "--seeds", "0..3", "--jobs", "1"];
    let quiet = workspace.run(&search).ends_with(0);
    assert_eq!(quiet.err, "");
    let told = workspace.run(&[&search[..], &["--log", "warn"]].concat()).ends_with(0);
    assert!(told.err.contains("the journal's sink failed"), "{}", told.err);
    assert_eq!(told.out, quiet.out);
    // Everything else warns as before.
    let help = workspace.run(&["--help"]).ends_with(0).out;
    assert!(help.contains("[default: warn, and off for sim"), "{help}");
}

#[test]
fn a_small_scenario_is_gone_through_in_order() {
    let workspace = Workspace::new();
    let args = ["sim", "run", "--scenario", "tiny", "--systematic", "300", "--json"];
    let covered = workspace.run(&args).ends_with(0).json();
    assert_eq!((&covered["runs"], &covered["departures"], &covered["ok"]), (&json!(300), &json!(1), &json!(true)));
    assert!(workspace.run(&["sim", "run", "--systematic", "10"]).ends_with(2).err.contains("one scenario"));
}

#[test]
fn what_makes_no_sense_is_refused_with_what_to_do() {
    let workspace = Workspace::new();
    workspace.write("bad.toml", "name = \"a\"\nabout = \"b\"\ndriver = \"machines\"\n[tree]\nruns = 0\n");
    for (args, words) in [
        (&["sim", "run", "--scenario", "nowhere"][..], "there are absent-person"),
        (&["sim", "run", "--scenario", "nowhere.toml"][..], "cannot read a scenario"),
        (&["sim", "run", "--scenario", "bad.toml"][..], "bad.toml:5: runs is 0"),
        (&["sim", "run", "--seeds", "7..7"][..], "holds no seed"),
        (&["sim", "run", "--for", "0s"][..], "is not between"),
        (&["sim", "run", "--jobs", "0"][..], "--jobs"),
        (&["sim", "replay"][..], "required"),
        (&["sim", "replay", "--snapshot", "."][..], "neither facts.log nor snapshot"),
        (&["sim", "timeline", "1"][..], "--html"),
    ] {
        let ran = workspace.run(args).ends_with(2);
        assert!(ran.err.contains(words), "{args:?}: {}", ran.err);
    }
}

#[test]
fn a_recorded_session_is_replayed_branched_and_refused_once_it_was_changed() {
    let workspace = Workspace::new();
    workspace.write("notes.txt", "what is there\n");
    let call = json!({ "calls": [{ "tool": "read", "arguments": { "file_path": "notes.txt" } }] });
    workspace.script(&[call, json!({ "text": "the answer" })]);
    let args = ["ask", "--store", "kept", "--model", "scripted:script.jsonl", "--json", "what?"];
    let session = workspace.run(&args).ends_with(0).json()["session"].as_str().unwrap().to_owned();
    let folder = format!("kept/sessions/{session}");
    let told = workspace.run(&["sim", "replay", "--snapshot", &folder, "--branch"]).ends_with(0).out;
    assert!(told.contains("the model says \"\" and wants read"), "{told}");
    assert!(told.contains("cancelled at each of ") && told.contains("none runs twice"), "{told}");
    let log = workspace.path().join(&folder).join("facts.log");
    let mut bytes = std::fs::read(&log).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&log, bytes).unwrap();
    let refused = workspace.run(&["sim", "replay", "--snapshot", &folder]).ends_with(1);
    assert!(refused.err.contains("the log was changed") && refused.err.contains("from byte"), "{}", refused.err);
}

// A world has a runtime of its own, and the program has one too.
#[test]
fn one_world_is_told_and_drawn() {
    let workspace = Workspace::new();
    let args = ["sim", "replay", "1", "--scenario", "world-waiting"];
    assert!(workspace.run(&args).ends_with(0).out.contains("digest"));
    workspace.run(&["sim", "timeline", "1", "--scenario", "world-waiting", "--html", "world.html"]).ends_with(0);
    assert!(read(&workspace, "world.html").contains("world-waiting"));
    let ran = workspace.run(&["sim", "shrink", "1", "--scenario", "world-waiting"]);
    assert!(ran.err.contains("promise") || ran.out.contains("promise"), "{} {}", ran.out, ran.err);
}
