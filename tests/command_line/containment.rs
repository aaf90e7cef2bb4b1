//! `doctor` and `--containment`: what is shown is what is refused or held.

use serde_json::{Value, json};

use crate::program::Workspace;

const LEVELS: [&str; 4] = ["group", "sub_reaper", "pid_namespace", "cgroup"];

#[test]
fn doctor_shows_every_level_and_the_default() {
    let workspace = Workspace::new();
    let found = workspace.run(&["doctor", "--json"]).ends_with(0).json();
    assert_eq!(found["containment"]["default"], "sub_reaper");
    let levels = found["containment"]["levels"].as_array().unwrap();
    assert_eq!(levels.iter().map(|level| level["level"].as_str().unwrap()).collect::<Vec<_>>(), LEVELS);
    // These two need nothing.
    assert!(levels[..2].iter().all(|level| level["available"] == true), "{found}");
    let facts: Vec<&str> =
        found["facts"].as_array().unwrap().iter().map(|fact| fact["name"].as_str().unwrap()).collect();
    for fact in ["kernel", "user", "cgroup", "landlock", "seccomp"] {
        assert!(facts.contains(&fact), "{found}");
    }
    let page = workspace.run(&["doctor"]).ends_with(0);
    assert_eq!(page.err, "");
    for level in levels {
        let line =
            page.out.lines().find(|line| line.trim_start().starts_with(level["level"].as_str().unwrap())).unwrap();
        let is_available = level["available"] == true;
        assert_eq!(line.contains(" available"), is_available || line.contains("not available"), "{line}");
        assert_eq!(line.contains("not available"), !is_available, "{line}");
        if let Some(reason) = level["reason"]["text"].as_str() {
            assert!(line.contains(reason), "{line}");
        }
    }
}

#[test]
fn a_level_that_was_asked_for_is_in_the_result_or_refused_with_its_reason() {
    let workspace = Workspace::new();
    let found = workspace.run(&["doctor", "--json"]).ends_with(0).json();
    let line = json!({"command": "echo ran > ran; echo hi"}).to_string();
    for level in found["containment"]["levels"].as_array().unwrap() {
        let name = level["level"].as_str().unwrap();
        let call = ["call", "bash", &line, "--json", "--containment", name];
        if level["available"] == true {
            let result = workspace.run(&call).ends_with(0).json();
            assert_eq!(result["output"], "hi\n", "{name}");
            assert_eq!(result["metadata"]["containment"], json!({"level": name, "survivors": []}));
        } else {
            // Not what it was at the levels before.
            workspace.write("ran", "not");
            let refused = workspace.run(&call).ends_with(2);
            let reason = level["reason"]["text"].as_str().unwrap();
            assert!(
                refused.out.is_empty() && refused.err.contains(name) && refused.err.contains(reason),
                "{}",
                refused.err
            );
            assert!(refused.err.contains("doctor"), "{}", refused.err);
            assert_eq!(std::fs::read_to_string(workspace.path().join("ran")).unwrap(), "not");
        }
    }
    let by_default: Value = workspace.run(&["call", "bash", &line, "--json"]).ends_with(0).json();
    assert_eq!(by_default["metadata"]["containment"]["level"], "sub_reaper");
}

#[test]
fn limits_hold_or_are_refused_with_the_reason() {
    let workspace = Workspace::new();
    // Not in bash, which tries for 15 seconds again.
    let crowd =
        r#"perl -e 'for (1..40) { $p = fork; if (defined $p) { $p or exec "sleep", 600; $n++ } } print "$n\n"'"#;
    let line = json!({ "command": crowd }).to_string();
    let called = workspace.run(&["call", "bash", &line, "--json", "--max-processes", "12"]);
    if called.err.contains("pids.max") || called.err.contains("cgroup") {
        println!("limits are not available here, and refused: {}", called.err);
        called.ends_with(2);
    } else {
        let result = called.json();
        assert_eq!(result["metadata"]["containment"], json!({"level": "cgroup", "survivors": []}));
        let count = result["output"].as_str().unwrap().lines().find_map(|line| line.trim().parse::<u32>().ok());
        assert!(count.is_some_and(|count| (1..12).contains(&count)), "{result}");
    }
    // A level that can hold none says so, and bounds under which nothing runs are refused.
    for (arguments, word) in [
        (["--containment", "group", "--max-processes", "12"], "need the level cgroup"),
        (["--max-processes", "0", "--max-memory", "64M"], "--max-processes"),
        (["--max-processes", "1", "--max-memory", "1M"], "at least 4M"),
    ] {
        let refused = workspace.run(&[&["call", "bash", &line] as &[&str], &arguments].concat()).ends_with(2);
        assert!(refused.err.contains(word), "{}", refused.err);
    }
    // The file of settings says it as well.
    workspace.write("settings.toml", "[commands]\nmax_processes = 12\n");
    let settings = workspace.path().join("settings.toml");
    let call = ["--config", settings.to_str().unwrap(), "call", "bash", &line, "--json", "--containment", "group"];
    assert!(workspace.run(&call).ends_with(2).err.contains("need the level cgroup"));
}

#[test]
fn a_level_that_does_not_exist_is_told_which_do() {
    let workspace = Workspace::new();
    for command in [&["call", "bash"] as &[&str], &["ask", "what?"]] {
        let refused = workspace.run(&[command, &["--containment", "jail"]].concat()).ends_with(2);
        assert!(LEVELS.iter().all(|level| refused.err.contains(level)), "{}", refused.err);
    }
}
