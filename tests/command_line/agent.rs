//! `agents`: the built-in ones, those of files, and what is wrong with a file.

use serde_json::{Value, json};

use crate::program::Workspace;

const REVIEWER: &str = "---\nname: reviewer\ndescription: reads a change\ntools: [read, \"bash(git log *)\"]\nlimits:\n  \
                        max_steps: 7\n---\nRead it.\n";

fn named<'a>(agents: &'a Value, name: &str) -> &'a Value {
    agents.as_array().unwrap().iter().find(|agent| agent["name"] == name).unwrap()
}

#[test]
fn agents_of_folders_are_listed_and_work() {
    let workspace = Workspace::new();
    let ran = workspace.run(&["agents"]).ends_with(0);
    for name in ["explore  (built in)", "general  (built in)", "verification  (built in)"] {
        assert!(ran.out.contains(name), "{}", ran.out);
    }
    workspace.write("own/reviewer.md", REVIEWER);
    workspace.write("theirs/second.md", "---\nname: second\ndescription: d\n---\nDo it.\n");
    workspace.write("toolwarden.toml", "[agents]\nfolder = \"own\"\nworkspace_folder = \"theirs\"\n");
    let agents = workspace.run(&["agents", "--json", "--config", "toolwarden.toml"]).ends_with(0).json();
    let reviewer = named(&agents, "reviewer");
    assert_eq!((&reviewer["tools"], &reviewer["max_steps"]), (&json!(["read", "bash"]), &json!(7)));
    assert!(
        reviewer["origin"].as_str().unwrap().ends_with("own/reviewer.md") && reviewer["max_steps_is_limit"] == true
    );
    assert_eq!(named(&agents, "second")["of_workspace"], true);
    // A folder on the command line takes the place of the one in the settings; without either there is nothing.
    let agents = workspace.run(&["agents", "--json", "--agents", "own"]).ends_with(0).json();
    assert_eq!(agents.as_array().unwrap().len(), 4);
    workspace.write(
        "ask.jsonl",
        "{\"calls\": [{\"tool\": \"task\", \"arguments\": {\"agent\": \"reviewer\", \"description\": \"d\", \"prompt\": \
         \"child\"}}]}\n{\"text\": \"asked\"}\n{\"when\": \"child\", \"text\": \"reviewed\"}\n",
    );
    let ask = ["ask", "go", "--agents", "own", "--model", "scripted:ask.jsonl", "--events", "events.jsonl"];
    workspace.run(&ask).ends_with(0);
    let events = workspace.events("events.jsonl");
    let end = events.iter().find(|event| event["type"] == "subagent_end").unwrap();
    assert_eq!((&end["agent"], &end["output"]), (&json!("reviewer"), &json!("reviewed")));
}

#[test]
fn every_fault_of_a_file_is_told_with_its_line_and_nothing_runs() {
    let workspace = Workspace::new();
    workspace.write("own/a.md", "---\nname: a\ndescription: d\ntools: [raed]\nmodel: nobody:x\n---\nDo it.\n");
    workspace.write("own/b.md", "no settings\n");
    for arguments in [vec!["agents", "--agents", "own"], vec!["call", "ls", "{}", "--agents", "own"]] {
        let ran = workspace.run(&arguments).ends_with(2);
        for wanted in ["own/a.md:4: there is no tool \"raed\"", "own/a.md:5: model \"nobody:x\"", "own/b.md:1: "] {
            assert!(ran.err.contains(wanted), "{wanted} is not in {}", ran.err);
        }
    }
    let ran = workspace.run(&["agents", "--agents", "nowhere"]).ends_with(2);
    assert!(ran.err.contains("nowhere"), "{}", ran.err);
}
