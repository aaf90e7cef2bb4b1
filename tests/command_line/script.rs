//! `program`: a script from a file or standard input, what it may call, and how it ends.

use serde_json::json;

use crate::program::Workspace;

const COUNT: &str = "export async function run(ctx, { word }) {
  const files = await ctx.glob('**/*.txt');
  const found = [];
  for (const file of files) {
    const text = await ctx.readFile(file);
    if (text.includes(word)) found.push(file);
  }
  return { summary: `${found.length} of ${files.length} files hold ${word}`, found };
}
";

#[test]
fn a_script_calls_what_it_may_and_prints_what_it_returns() {
    let workspace = Workspace::new();
    workspace.write("a.txt", "the shelf\n");
    workspace.write("b.txt", "the table\n");
    workspace.write("count.mjs", COUNT);
    let inputs = json!({"word": "shelf"}).to_string();
    let ran = workspace.run(&["program", "count.mjs", "--inputs", &inputs, "--allow", "glob,read"]).ends_with(0);
    assert!(ran.out.contains("1 of 2 files hold shelf") && ran.out.contains("\"a.txt\""), "{}", ran.out);
    let ran = workspace.run_with(&["program", "-", "--inputs", &inputs, "--json"], COUNT.as_bytes()).ends_with(0);
    assert_eq!(ran.json()["metadata"]["script_result"]["found"], json!(["a.txt"]));
    let ran = workspace.run(&["program", "count.mjs", "--inputs", &inputs, "--allow", "read"]).ends_with(1);
    assert!(ran.out.contains("\"search\" is not allowed to this script; it may call read"), "{}", ran.out);
    let ran = workspace.run(&["program", "count.mjs", "--inputs", &inputs, "--max-calls", "1"]).ends_with(1);
    assert!(ran.out.contains("limits.maxToolCalls"), "{}", ran.out);
}

/// Case C167: nothing of the engine is ever on standard output, which may belong to a protocol.
#[test]
fn a_script_that_is_stopped_prints_nothing_of_its_own() {
    let workspace = Workspace::new();
    workspace.write(
        "spin.js",
        "async function run() { console.log('said'); (async () => { await 0; while (true) {} })(); await 0; return 1 }",
    );
    let ran = workspace.run(&["program", "spin.js", "--timeout", "0.2", "--json"]).ends_with(1);
    assert_eq!(ran.out.lines().count(), 1, "{}", ran.out);
    let result = ran.json();
    assert_eq!(result["error_kind"]["type"], "timeout", "{result}");
    assert!(result["output"].as_str().unwrap().contains("Console:\nsaid"), "{result}");
}

#[test]
fn what_makes_no_sense_is_told() {
    let workspace = Workspace::new();
    workspace.write("a.js", "function run() { return 1 }");
    workspace.run(&["program", "none.js"]).ends_with(2);
    let ran = workspace.run(&["program", "a.js", "--inputs", "{"]).ends_with(2);
    assert!(ran.err.contains("--inputs is not JSON"), "{}", ran.err);
    let ran = workspace.run(&["program", "a.js", "--inputs", "[]"]).ends_with(2);
    assert!(ran.err.contains("not a JSON object"), "{}", ran.err);
    let ran = workspace.run(&["program", "a.js", "--allow", "raed"]).ends_with(1);
    assert!(ran.out.contains("which is no tool here"), "{}", ran.out);
    workspace.write("bad.js", "function run() {\n  return 1 +;\n}");
    let ran = workspace.run(&["program", "bad.js"]).ends_with(1);
    assert!(ran.out.contains("at line 2 of the script"), "{}", ran.out);
}
