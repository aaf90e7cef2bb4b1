//! The pages of this repository, checked against the code: examples run, tables hold, names exist.
//!
//! A page that nobody checks is wrong within a month, and a reader cannot tell which half.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "the checks read the repository that they stand in, and a test may stop at once"
)]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use toolwarden::models::scripted::ScriptedModel;
use toolwarden::permission::{Judged, Places, Verdict, judge};
use toolwarden::policy::compiled::CompiledPolicy;
use toolwarden::prelude::*;

fn page(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The fenced blocks of a page in this language.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let open = format!("```{language}\n");
    let ends = |rest: &str| rest.find("\n```").map(|end| rest[..=end].to_owned());
    format!("\n{page}").split(&format!("\n{open}")).skip(1).filter_map(ends).collect()
}

/// Rows of tables: the cells, without the backticks around them.
fn rows(page: &str) -> Vec<Vec<String>> {
    let cells = |line: &str| -> Vec<String> {
        let line = line.trim().trim_matches('|').replace("\\|", "\u{1}");
        line.split('|').map(|cell| cell.trim().trim_matches('`').replace('\u{1}', "|")).collect()
    };
    page.lines().filter(|line| line.starts_with("| ")).map(cells).collect()
}

fn policy(text: &str) -> CompiledPolicy {
    CompiledPolicy::new(&PermissionPolicy::from_toml(text, "permissions.md").unwrap()).unwrap()
}

fn verdict(policy: &CompiledPolicy, tool: &str, call: &str) -> &'static str {
    let (lane, subject) = match tool {
        "bash" => (Lane::Execute, Subject::Command(call.to_owned())),
        "search" => (Lane::Query, Subject::Text(call.to_owned())),
        "read" | "ls" => (Lane::Query, Subject::Paths { paths: vec![call.to_owned()], write: false }),
        _ => (Lane::Execute, Subject::Paths { paths: vec![call.to_owned()], write: true }),
    };
    let places = Places { root: Some("/home/me/project"), home: Some("/home/me") };
    match judge(policy, &Judged { tool, lane: &lane, subject: &subject, resolved: &[], places }) {
        Verdict::Allow { .. } => "allow",
        Verdict::Ask { .. } => "ask",
        Verdict::Deny { .. } => "deny",
    }
}

#[test]
fn the_verdicts_on_the_page_about_permissions_are_given() {
    let page = page("docs/permissions.md");
    let (mut checked, mut wrong) = (0, Vec::new());
    for part in page.split("```toml\n").skip(1) {
        let (text, rest) = part.split_once("```").unwrap();
        let policy = policy(text);
        for row in rows(rest) {
            let [tool, call, expected] = &row[..] else { continue };
            if ["allow", "ask", "deny"].contains(&expected.as_str()) {
                checked += 1;
                let given = verdict(&policy, tool, call);
                if given != expected {
                    wrong.push(format!("{tool} {call}: {given}, not {expected}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 20, "only {checked} rows were found");
}

#[tokio::test]
async fn the_script_on_the_page_about_scripted_models_plays() {
    let script = &blocks(&page("docs/scripted-models.md"), "jsonl")[0];
    let runtime = Runtime::builder().build().await.unwrap();
    let session = runtime
        .session(env!("CARGO_MANIFEST_DIR"))
        .policy(PermissionPolicy::from_toml("default = 'allow'", "p").unwrap())
        .model(Arc::new(ScriptedModel::load(script, "turns.jsonl").unwrap()))
        .open()
        .await
        .unwrap();
    let mut events = session.events().await.unwrap();
    let first = session.run("Where does it stand?").await.unwrap();
    assert_eq!((first.text.as_str(), first.turns), ("It stands in actors/restart_intensity.rs.", 3));
    let second = session.run("Look at the files.").await.unwrap();
    assert_eq!((second.text.as_str(), second.turns), ("The child run has looked.", 2));
    let mut ended = Vec::new();
    while let Some(Reading::Entry(entry)) = events.try_next() {
        if let EventKind::ToolEnd(result) = &entry.event.kind {
            assert!(result.is_success(), "{}: {}", result.name, result.output);
            ended.push(result.name.to_string());
            let expected = match result.name.as_str() {
                "search" => "actors/restart_intensity.rs:",
                "task" => "tools, actors, runtime, sim, cli.",
                _ => "",
            };
            assert!(result.output.contains(expected), "{}", result.output);
        }
    }
    ended.sort();
    assert_eq!(ended, ["ls", "read", "search", "task"]);
    runtime.shut_down().await;
}

#[test]
fn every_rust_block_stands_in_an_example() {
    let plain = |text: &str| -> String { text.lines().map(|line| format!("{}\n", line.trim())).collect() };
    let examples: String =
        ["embed", "host", "library", "world"].map(|name| plain(&page(&format!("examples/{name}.rs")))).concat();
    let mut checked = 0;
    for path in ["README.md", "docs/embedding.md", "docs/simulation.md"] {
        for block in blocks(&page(path), "rust") {
            checked += 1;
            assert!(examples.contains(&plain(&block)), "{path}: not in examples/, word for word:\n{block}");
        }
    }
    assert!(checked >= 4, "only {checked} blocks were found");
}

/// The section of a page under this heading, up to the next heading of the same depth.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let from = page.find(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no heading {heading:?}"));
    let rest = &page[from + heading.len() + 2..];
    let depth = heading.split(' ').next().unwrap();
    rest.find(&format!("\n{depth} ")).map_or(rest, |end| &rest[..end])
}

#[tokio::test]
async fn every_tool_is_described_with_its_parameters() {
    let page = page("docs/tools.md");
    let folder = tempfile::tempdir().unwrap();
    let runtime = Runtime::builder().build().await.unwrap();
    let session = runtime.session(folder.path()).open().await.unwrap();
    for tool in session.tool_definitions() {
        let text = section(&page, &format!("## {}", tool.name));
        for (parameter, schema) in tool.parameters["properties"].as_object().unwrap() {
            assert!(text.contains(&format!("| `{parameter}` |")), "docs/tools.md: {} lacks {parameter}", tool.name);
            for limit in ["minimum", "maximum", "maxItems", "default"] {
                let Some(value) = schema.get(limit).and_then(Value::as_u64).filter(|value| *value > 1) else {
                    continue;
                };
                let row = text.lines().find(|line| line.starts_with(&format!("| `{parameter}` |"))).unwrap();
                assert!(
                    row.replace(',', "").contains(&value.to_string()),
                    "docs/tools.md: {}.{parameter} has {limit} {value}: {row}",
                    tool.name
                );
            }
        }
    }
    runtime.shut_down().await;
}

/// `ToolEnd` as `tool_end`.
fn snake(name: &str) -> String {
    let mut snake = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.push(c.to_ascii_lowercase());
    }
    snake
}

#[test]
fn every_event_is_described_with_its_fields() {
    let page = page("docs/events.md");
    let source = self::page("runtime/event.rs");
    let from = source.find("pub enum EventKind {").unwrap();
    let body = source[from..].split("\n}\n").next().unwrap();
    let (mut row, mut events) = (String::new(), 0);
    for line in body.lines().skip(1) {
        let name = line.trim().trim_end_matches(" {").split(['(', ',', ':']).next().unwrap();
        let indent = line.len() - line.trim_start().len();
        if indent == 4 && name.starts_with(|c: char| c.is_ascii_uppercase()) {
            events += 1;
            let wanted = format!("| `{}` |", snake(name));
            let found = page.lines().find(|line| line.starts_with(&wanted));
            row = found.unwrap_or_else(|| panic!("docs/events.md lacks {wanted}")).to_owned();
        } else if indent == 8 && name.starts_with(|c: char| c.is_ascii_lowercase()) {
            assert!(row.contains(&format!("`{name}`")), "docs/events.md: {name} is missing in {row}");
        }
    }
    assert!(events > 15, "only {events} events were found");
}

/// Every `path.rs::name` on a page, in backticks.
fn named_tests(page: &str) -> BTreeSet<(String, String)> {
    let spans = page.split('`').skip(1).step_by(2);
    let named = spans.filter_map(|span| span.split_once(".rs::"));
    named.map(|(file, name)| (format!("{file}.rs"), name.to_owned())).collect()
}

#[test]
fn every_test_and_file_named_in_the_architecture_exists() {
    let named = named_tests(&page("ARCHITECTURE.md"));
    assert!(named.len() > 30, "only {} tests are named", named.len());
    let is_missing = |(file, name): &&(String, String)| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        let text = std::fs::read_to_string(path).unwrap_or_default();
        !text.contains(&format!("fn {name}(")) && !text.contains(&format!("fn {name}<"))
    };
    let mut missing: Vec<String> =
        named.iter().filter(is_missing).map(|(file, name)| format!("{file}::{name}")).collect();
    let page = page("ARCHITECTURE.md");
    let files = page.split('`').skip(1).step_by(2).filter(|span| span.ends_with(".rs") && span.contains('/'));
    // `x.rs` stands for a file that is to be made.
    let files = files.filter(|file| !file.ends_with("/x.rs"));
    missing.extend(files.filter(|file| !Path::new(env!("CARGO_MANIFEST_DIR")).join(file).exists()).map(str::to_owned));
    assert!(missing.is_empty(), "ARCHITECTURE.md names what does not exist:\n{}", missing.join("\n"));
}

#[test]
fn every_module_is_on_the_map() {
    let page = page("ARCHITECTURE.md");
    let mut missing = Vec::new();
    for (folder, root) in
        [("tools", "lib.rs"), ("actors", "lib.rs"), ("runtime", "lib.rs"), ("sim", "lib.rs"), ("cli", "main.rs")]
    {
        let map = section(&page, &format!("### {folder}/"));
        let source = self::page(&format!("{folder}/{root}"));
        let modules = source.lines().filter_map(|line| {
            let line = line.trim_start_matches("pub(crate) ").trim_start_matches("pub ");
            line.strip_prefix("mod ")?.strip_suffix(';')
        });
        missing.extend(
            modules.filter(|name| !map.contains(&format!("| `{name}` |"))).map(|name| format!("{folder}/{name}.rs")),
        );
    }
    assert!(missing.is_empty(), "the code map of ARCHITECTURE.md lacks a line for: {}", missing.join(", "));
}

#[test]
fn the_checks_of_pages_find_what_they_are_for() {
    assert_eq!(blocks("a\n```rust\nx\ny\n```\n```text\nz\n```\n", "rust"), ["x\ny\n"]);
    assert_eq!(rows("| `a` | b |\n|---|---|\n| `c \\| d` | e |"), [["a", "b"], ["c | d", "e"]]);
    assert_eq!(section("\n## a\n1\n### b\n2\n## c\n3", "## a"), "1\n### b\n2");
    assert_eq!(named_tests("see `a/b.rs::c` and `d.rs`"), BTreeSet::from([("a/b.rs".into(), "c".into())]));
    assert_eq!(snake("ToolOutputDelta"), "tool_output_delta");
    let deny = policy("deny = ['bash(nc *)']\ndefault = 'allow'");
    assert_eq!((verdict(&deny, "bash", "nc x"), verdict(&deny, "bash", "ls")), ("deny", "allow"));
}
