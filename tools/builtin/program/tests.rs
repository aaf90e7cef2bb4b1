//! Scripts over a twin of the port that calls tools, in the real engine and on real threads.

#![expect(clippy::disallowed_methods, reason = "tests prepare real files and look at real threads and time")]

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::{Barrier, Notify};

use super::{ProgramTool, SOURCE_BYTES_MAX};
use crate::builtin::testing::{call, context, faults};
use crate::cancellation::{CancelReason, Cancellation};
use crate::context::{Invoke, ToolCall, ToolContext};
use crate::declaration::{Capabilities, ToolDefinition};
use crate::outcome::{ToolErrorKind, ToolOutcome};
use crate::tool::{Subject, Tool as _};

/// Beyond the deadline, on a machine that other tests keep busy. The figure that is promised is measured by the bench.
const MARGIN: Duration = Duration::from_secs(3);

/// What the twin saw.
#[derive(Debug, Default)]
struct Record {
    calls: Vec<(String, Value)>,
    running: usize,
    most: usize,
}

/// Calls of the twin by tool: `echo` gives its arguments back as text, `read` and `search` give what the test says,
/// `look` waits until four look, `patient` until it is cancelled, `write` changes something, `fail` fails, `hang` never ends, `big` gives
/// numbers that no JavaScript number holds.
#[derive(Clone)]
struct Twin {
    record: Arc<Mutex<Record>>,
    answer: Option<ToolOutcome>,
    looking: Arc<Barrier>,
    hanging: Arc<Notify>,
    cancel: Cancellation,
}

impl Default for Twin {
    fn default() -> Self {
        Self {
            record: Arc::default(),
            answer: None,
            looking: Arc::new(Barrier::new(4)),
            hanging: Arc::default(),
            cancel: Cancellation::new(),
        }
    }
}

struct Running(Arc<Mutex<Record>>);

impl Running {
    fn begin(record: &Arc<Mutex<Record>>, call: &ToolCall) -> Self {
        let mut seen = record.lock().unwrap();
        seen.calls.push((call.tool.to_string(), call.arguments.clone()));
        seen.running += 1;
        seen.most = seen.most.max(seen.running);
        Self(Arc::clone(record))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.lock().unwrap().running -= 1;
    }
}

impl Twin {
    async fn run(&self, call: ToolCall) -> ToolOutcome {
        let _running = Running::begin(&self.record, &call);
        match call.tool.as_str() {
            "echo" => ToolOutcome::success(call.arguments.to_string()),
            "read" | "search" => self.answer.clone().unwrap_or_default(),
            "look" => {
                self.looking.wait().await;
                ToolOutcome::success("seen")
            }
            "patient" => {
                self.hanging.notify_one();
                ToolOutcome::ended_early("patient", &self.cancel.cancelled().await)
            }
            "hang" => {
                self.hanging.notify_one();
                std::future::pending().await
            }
            "big" => {
                ToolOutcome::success("big").with("id", json!(9_007_199_254_740_993_i64)).with("most", json!(u64::MAX))
            }
            "write" => {
                tokio::task::yield_now().await;
                ToolOutcome::success("written")
            }
            _ => ToolOutcome::error(ToolErrorKind::NotFound { path: "x".into() }, "it is not there"),
        }
    }
}

impl Invoke for Twin {
    fn invoke_all(&self, calls: Vec<ToolCall>, _width: usize) -> BoxFuture<'_, Vec<ToolOutcome>> {
        Box::pin(async move {
            let mut outcomes = Vec::new();
            for call in calls {
                outcomes.push(self.run(call).await);
            }
            outcomes
        })
    }

    fn capabilities(&self, call: &ToolCall) -> Option<Capabilities> {
        match call.tool.as_str() {
            "echo" | "read" | "search" | "look" | "big" => Some(Capabilities::parallel_safe_read(8)),
            _ => Some(Capabilities::conservative()),
        }
    }

    fn available(&self) -> Vec<ToolDefinition> {
        let names = [
            "bash", "batch", "big", "echo", "fail", "git", "hang", "look", "ls", "patient", "program", "read", "search",
        ];
        let one =
            |name: &&str| ToolDefinition { name: (*name).into(), description: String::new(), parameters: Value::Null };
        names.iter().chain(&["write"]).map(one).collect()
    }
}

struct Stage {
    ctx: ToolContext,
    twin: Twin,
    folder: tempfile::TempDir,
}

fn stage() -> Stage {
    stage_with(Twin::default())
}

fn stage_with(twin: Twin) -> Stage {
    let folder = tempfile::tempdir().unwrap();
    let mut ctx = context(folder.path());
    let twin = Twin { cancel: ctx.cancel.clone(), ..twin };
    ctx.invoke = Some(Arc::new(twin.clone()));
    Stage { ctx, twin, folder }
}

impl Stage {
    async fn with(&self, arguments: Value) -> ToolOutcome {
        let mut arguments = arguments;
        arguments["type"] = json!("script");
        call(&ProgramTool::new(), &self.ctx, arguments).await
    }

    async fn script(&self, source: &str) -> ToolOutcome {
        self.with(json!({"source": source})).await
    }

    /// The result of `async function run(ctx, inputs) { BODY }`.
    async fn result(&self, body: &str) -> Value {
        let done = self.script(&format!("async function run(ctx, inputs) {{ {body} }}")).await;
        assert!(done.is_success(), "{}", done.output);
        done.metadata["script_result"].clone()
    }

    /// What a script that fails says.
    async fn fault(&self, body: &str) -> String {
        let done = self.script(&format!("async function run(ctx, inputs) {{ {body} }}")).await;
        assert!(!done.is_success(), "{}", done.output);
        done.output
    }

    fn calls(&self) -> Vec<(String, Value)> {
        self.twin.record.lock().unwrap().calls.clone()
    }
}

async fn result(body: &str) -> Value {
    stage().result(body).await
}

async fn fault(body: &str) -> String {
    stage().fault(body).await
}

#[tokio::test]
async fn a_script_is_plain_or_a_module_and_from_a_file_too() {
    let stage = stage();
    for source in [
        "function run(ctx, inputs) { return inputs.a + 1 }",
        "async function run(ctx, inputs) { return inputs.a + 1 } // at the end",
        "const run = async (ctx, { a }) => a + 1;",
        "export default async function run(ctx, inputs) { return inputs.a + 1 }",
        "export default (ctx, inputs) => inputs.a + 1;",
        "export async function run(ctx, inputs) { return inputs.a + 1 }",
        "const one = await Promise.resolve(1); export const run = (ctx, inputs) => inputs.a + one;",
        "with ({}) {} function run(ctx, inputs) { return inputs.a + 1 }",
    ] {
        let done = stage.with(json!({"source": source, "inputs": {"a": 1}})).await;
        assert!(done.is_success(), "{source}: {}", done.output);
        assert_eq!(done.metadata["script_result"], 2, "{source}");
    }
    std::fs::write(stage.folder.path().join("a.mjs"), "\u{feff}export const run = () => 'from a file'").unwrap();
    let done = stage.with(json!({"path": "a.mjs"})).await;
    assert_eq!(done.metadata["script_result"], "from a file");
    let both = stage.with(json!({"path": "a.mjs", "source": "function run() { return 'from source' }"})).await;
    assert_eq!(both.metadata["script_result"], "from source");
    for (wrong, said) in [
        (json!({}), "source or path is required"),
        (json!({"path": "a.txt"}), ".js or .mjs"),
        (json!({"path": "none.js"}), "none.js"),
        (json!({"path": "../a.js"}), "leaves the workspace"),
        (json!({"source": "let a = 1"}), "defines no function run"),
        (json!({"source": "export const x = 1"}), "defines no function run"),
        (json!({"source": "function run() {}\0"}), "NUL"),
    ] {
        let done = stage.with(wrong.clone()).await;
        assert!(!done.is_success() && done.output.contains(said), "{wrong}: {}", done.output);
    }
}

#[tokio::test]
async fn a_source_has_its_bound() {
    let filler = "//".to_owned() + &"x".repeat(140 * 1024) + "\n";
    assert!(stage().script(&format!("{filler}function run() {{ return 1 }}")).await.is_success());
    let long = "x".repeat(SOURCE_BYTES_MAX + 1024);
    let done = stage().script(&long).await;
    assert!(done.output.contains("at most 196608 are taken"), "{}", done.output);
    let stage = stage();
    std::fs::write(stage.folder.path().join("long.js"), &long).unwrap();
    let done = stage.with(json!({"path": "long.js"})).await;
    assert!(done.output.contains("at most 196608 are taken"), "{}", done.output);
    std::fs::write(stage.folder.path().join("latin.js"), b"// \xe9\n").unwrap();
    assert!(stage.with(json!({"path": "latin.js"})).await.output.contains("is not UTF-8"));
}

#[tokio::test]
async fn what_ctx_offers_becomes_calls() {
    let stage = stage();
    stage
        .result(
            "await ctx.tool('echo', {a: 1, b: undefined}); await ctx.tools.echo({c: 2}); await ctx.tools.echo();
             await ctx.read('f'); await ctx.read('f', {offset: 3}); await ctx.ls('d'); await ctx.ls();
             await ctx.bash('true'); await ctx.verify('make'); await ctx.git('status'); await ctx.git({command: 'log'});
             await ctx.grep('x', {glob: '*.rs', '-i': true}); await ctx.bm25('words', 'src');
             await ctx.search('y', {mode: 'glob'}); await ctx.grep({pattern: 'p', path: 'q'});
             return null",
        )
        .await;
    let expected = [
        ("echo", json!({"a": 1})),
        ("echo", json!({"c": 2})),
        ("echo", json!({})),
        ("read", json!({"file_path": "f"})),
        ("read", json!({"offset": 3, "file_path": "f"})),
        ("ls", json!({"path": "d"})),
        ("ls", json!({})),
        ("bash", json!({"command": "true"})),
        ("bash", json!({"command": "make"})),
        ("git", json!({"command": "status"})),
        ("git", json!({"command": "log"})),
        ("search", json!({"mode": "grep", "include": "*.rs", "case_sensitive": false, "query": "x"})),
        ("search", json!({"mode": "bm25", "path": "src", "query": "words"})),
        ("search", json!({"mode": "glob", "query": "y"})),
        ("search", json!({"mode": "grep", "path": "q", "query": "p"})),
    ];
    let expected: Vec<(String, Value)> = expected.into_iter().map(|(tool, asked)| (tool.to_owned(), asked)).collect();
    assert_eq!(stage.calls(), expected);
}

fn lines_read(text: &str, returned: u64, next: Option<u64>) -> Twin {
    let range = json!({"returned_lines": returned, "next_offset": next});
    Twin { answer: Some(ToolOutcome::success(text).with("range", range)), ..Twin::default() }
}

#[tokio::test]
async fn a_file_is_plain_text_and_never_passed_off_as_whole() {
    let two = lines_read("     2\ttwo\n[lines 2-2 of 3; there is more, go on with offset 2]\n", 1, Some(2));
    let stage = stage_with(two);
    assert_eq!(stage.result("return ctx.readFile('f', {offset: 1, limit: 1})").await, "two\n");
    let said = stage.fault("return await ctx.readFile('f')").await;
    assert!(said.contains("piece by piece") && said.contains("at line 1 of the script"), "{said}");
    let footer = "     1\t[lines 1-1 of 9; there is more]\n     2\ta\tb\n";
    assert_eq!(
        stage_with(lines_read(footer, 2, None)).result("return ctx.readFile('f')").await,
        "[lines 1-1 of 9; there is more]\na\tb\n"
    );
    let failing = Twin { answer: Some(ToolOutcome::failure("no such file")), ..Twin::default() };
    assert!(stage_with(failing).fault("return ctx.readFile('f')").await.contains("read failed: no such file"));
    let image = Twin { answer: Some(ToolOutcome::success("an image")), ..Twin::default() };
    assert!(stage_with(image).fault("return ctx.readFile('f')").await.contains("no text file"));
    let long = lines_read(&format!("     1\t{}\n", "x".repeat(90_000)), 1, None);
    assert!(stage_with(long).fault("return ctx.readFile('f')").await.contains("limits.maxOutputBytes"));
}

#[tokio::test]
async fn paths_are_an_array_over_all_pages() {
    let page = ToolOutcome::success("a.rs\nb/c.rs\n\n2 matching files\n")
        .with("page", json!({"returned_items": 2, "next_cursor": null}));
    let stage = stage_with(Twin { answer: Some(page), ..Twin::default() });
    assert_eq!(stage.result("return (await ctx.glob('*.rs')).slice(0, 20)").await, json!(["a.rs", "b/c.rs"]));
    assert_eq!(stage.calls()[0].1, json!({"mode": "glob", "query": "*.rs", "limit": 1000}));
    let endless = ToolOutcome::success("a\n").with("page", json!({"returned_items": 1, "next_cursor": "1"}));
    let stage = stage_with(Twin { answer: Some(endless), ..Twin::default() });
    let said = stage.fault("return ctx.glob('*')").await;
    assert!(said.contains("maxToolCalls"), "pages count as calls: {said}");
    assert_eq!(stage.result("return ctx.glob('*', {limit: 1})").await, json!(["a"]));
}

#[tokio::test]
async fn a_failed_call_is_an_answer_and_a_call_that_is_not_allowed_is_thrown() {
    let body = "const r = await ctx.tool('fail'); return [r.name, r.exitCode, r.success, r.output, r.error.type]";
    assert_eq!(result(body).await, json!(["fail", 1, false, "it is not there", "not_found"]));
    let stage = stage();
    let asked = json!({"source": "async function run(ctx) {
        try { await ctx.bash('true') } catch (error) { return error.message } }", "allowed_tools": ["echo"]});
    let done = stage.with(asked).await;
    let said = done.metadata["script_result"].as_str().unwrap().to_owned();
    assert_eq!(said, "the tool \"bash\" is not allowed to this script; it may call echo");
    assert_eq!(stage.calls(), []);
    for (body, said) in [
        ("return ctx.tool('program', {})", "not allowed"),
        ("return ctx.tools.dynamic_workflow({})", "not allowed"),
        ("return ctx.tool('batch', {invocations: [{tool: 'program', args: {}}]})", "\"program\" is not allowed"),
        ("return ctx.tool('task', {})", "not allowed"),
        ("return ctx.tool('echo', 5)", "must be an object"),
        ("return ctx.tool(5)", "must be a string"),
        ("return ctx.tool('echo', {a: () => 1})", "the argument of echo.a is a function"),
        ("return ctx.tool('echo', {a: 'x'.repeat(2e6)})", "larger than 1024 KiB"),
        ("for (let i = 0; i < 30; i++) await ctx.tool('echo')", "maxToolCalls"),
    ] {
        let text = fault(body).await;
        assert!(text.contains(said), "{body}: {text}");
    }
    let unknown = stage.with(json!({"source": "x", "allowed_tools": ["raed"]})).await;
    assert!(unknown.output.contains("\"raed\", which is no tool here"), "{}", unknown.output);
}

// Case C165: loops are stopped everywhere, and no script catches that.
#[tokio::test]
async fn loops_are_stopped_everywhere() {
    for body in [
        "while (true) {}",
        "for (;;) { try { while (true) {} } catch {} finally { continue } }",
        "/^(a+)+$/.test('a'.repeat(28) + '!'); return 1",
        "const a = []; for (let i = 0; i < 2e6; i++) a.push(2e6 - i); for (;;) a.sort((x, y) => x - y)",
        "return {toJSON() { for (;;) {} }}",
        "await 0; while (true) {}",
        "for (;;) await 0",
        "const f = () => Promise.resolve().then(f); await f()",
        "return {get a() { for (;;) {} }}",
        "new Proxy({}, {get() { for (;;) {} }}).a",
        "[...{[Symbol.iterator]() { return {next: () => ({done: false})} }}]",
        "'a'.replace(/a/, () => { for (;;) {} })",
        "for (;;) JSON.stringify({toJSON() { return 1 }})",
    ] {
        let began_at = Instant::now();
        let source = format!("async function run(ctx) {{ {body} }}");
        let done = stage().with(json!({"source": source, "limits": {"timeoutMs": 100}})).await;
        let took = began_at.elapsed();
        assert_eq!(
            done.error,
            Some(ToolErrorKind::Timeout { op: "program".into(), duration_ms: 100 }),
            "{body}: {}",
            done.output
        );
        assert!(took >= Duration::from_millis(100) && took < Duration::from_millis(100) + MARGIN, "{body}: {took:?}");
        assert_eq!(done.metadata["program"]["limit"], "timeoutMs");
    }
}

// R06: a promise that never settles ends at the limit, or earlier where nothing can settle it any more.
#[tokio::test]
async fn a_promise_that_never_settles_ends() {
    let began_at = Instant::now();
    assert!(fault("await new Promise(() => {})").await.contains("a promise that nothing will settle"));
    let stage = stage();
    let source = "async function run(ctx) { await ctx.tool('hang') }";
    let done = stage.with(json!({"source": source, "limits": {"timeoutMs": 100}})).await;
    assert!(matches!(done.error, Some(ToolErrorKind::Timeout { .. })), "{}", done.output);
    assert!(began_at.elapsed() < Duration::from_millis(100) + MARGIN);
    assert_eq!(stage.twin.record.lock().unwrap().running, 0, "the call ended with the script");
    assert!(done.output.contains("hang: not awaited"), "{}", done.output);
}

// Case C169: heap, console, result and arguments have their own caps.
#[tokio::test]
async fn memory_is_bounded_whichever_way_it_grows() {
    for body in [
        "const a = []; for (;;) a.push('x'.repeat(1000) + a.length)",
        "return 'x'.repeat(1 << 29)",
        "return new ArrayBuffer(1 << 29)",
        "let s = 'x'; for (;;) s += s + String(s.length)",
    ] {
        let text = fault(body).await;
        assert!(text.contains("64 MiB") || text.contains("string length"), "{body}: {text}");
    }
    let caught = result("try { 'x'.repeat(1 << 28).split('') } catch (error) { return 'caught' } return 1").await;
    assert_eq!(caught, "caught");
    let text = fault("const s = 'x'.repeat(1e5); return Array(1000).fill(s)").await;
    assert!(text.contains("larger than 4 MiB"), "100 MB out of little: {text}");
    let done = stage()
        .script("function run() { for (let i = 0; i < 10000; i++) console.log('x'.repeat(10240)); return 1 }")
        .await;
    assert!(done.is_success());
    assert!(done.metadata["program"]["console_bytes"].as_u64().unwrap() <= super::CONSOLE_BYTES_MAX as u64);
    assert!(done.metadata["program"]["console_lost_bytes"].as_u64().unwrap() > 50_000);
    assert!(done.output.contains("the console was full"));
}

// Case C171: half of a surrogate pair, and NUL, in values, keys, the console, arguments and messages.
#[tokio::test]
async fn halves_of_pairs_and_nul_are_no_trouble() {
    let stage = stage();
    let done = stage
        .script(
            "async function run(ctx) { console.log('\\ud800c'); await ctx.tool('echo', {['\\udfffk']: 'a\\0b'});
             return {['\\ud800x']: '\\ud800y', nul: 'a\\0b'} }",
        )
        .await;
    assert!(done.is_success(), "{}", done.output);
    assert_eq!(done.metadata["script_result"], json!({"\u{fffd}x": "\u{fffd}y", "nul": "a\0b"}));
    assert_eq!(done.metadata["program"]["replaced_surrogates"], true);
    assert_eq!(stage.calls()[0].1, json!({"\u{fffd}k": "a\0b"}));
    assert!(done.output.contains("\u{fffd}c"));
    assert!(fault("throw new Error('\\ud800z')").await.contains("\u{fffd}z"));
}

// Case C172: integers that a JavaScript number cannot hold go through unchanged.
#[tokio::test]
async fn large_integers_go_through_unchanged() {
    let stage = stage();
    let body = "const {metadata: m} = await ctx.tool('big'); await ctx.tool('echo', {id: m.id, most: m.most});
                return [m.id, m.most, m.id + 1n, typeof m.id, 2 ** 53, -5n]";
    let given = stage.result(body).await;
    let id = 9_007_199_254_740_993_i64;
    assert_eq!(given, json!([id, u64::MAX, id + 1, "bigint", 9_007_199_254_740_992_i64, -5]));
    assert_eq!(stage.calls()[1].1, json!({"id": id, "most": u64::MAX}));
    let done = stage.with(json!({"source": "function run(c, i) { return i.n }", "inputs": {"n": id}})).await;
    assert_eq!(done.metadata["script_result"], id);
    let proto = stage
        .with(json!({"source": "function run(c, i) { return [Object.keys(i), i.a === undefined] }",
                     "inputs": {"__proto__": {"a": 1}, "n": id}}))
        .await;
    assert_eq!(proto.metadata["script_result"], json!([["__proto__", "n"], true]));
}

// Case C173: what is not awaited is cancelled before the engine goes, and what nobody caught is told.
#[tokio::test]
async fn calls_that_are_not_awaited_end_with_the_script() {
    let stage = stage();
    let done = stage
        .script("async function run(ctx) { ctx.tool('hang'); ctx.tool('write'); Promise.reject(new Error('lost')); return 1 }")
        .await;
    assert!(done.is_success(), "{}", done.output);
    assert_eq!(done.metadata["program"]["unawaited"], 2);
    assert_eq!(done.metadata["program"]["unhandled_rejections"], json!(["lost"]));
    assert!(done.output.contains("1. hang: not awaited") && done.output.contains("nothing handled it: lost"));
    let record = stage.twin.record.lock().unwrap();
    assert_eq!(record.running, 0);
    assert!(record.calls.iter().all(|(tool, _)| tool != "write"), "what waited for its turn never starts");
}

// Case C174: recursion and nesting meet their limits, not the thread's.
#[tokio::test]
async fn depth_is_bounded() {
    assert!(fault("const f = () => f() + 1; return f()").await.contains("512 KiB"));
    let done = stage().script("function run() { const f = () => f() + 1; return f() }").await;
    assert_eq!(done.metadata["program"]["limit"], "stack");
    assert!(result("try { JSON.parse('['.repeat(1e5) + ']'.repeat(1e5)) } catch (e) { return 1 } return 1").await == 1);
    let deep = fault("let a = []; for (let i = 0; i < 1e5; i++) a = [a]; return a").await;
    assert!(deep.contains("nested deeper than 100 levels"), "{deep}");
    let text = fault("let a = {}; for (let i = 0; i < 200; i++) a = {a}; await ctx.tool('echo', a)").await;
    assert!(text.contains("nested deeper than 100 levels"), "{text}");
    assert!(fault("const r = /(((a)))/; let s = '('.repeat(1e5); new RegExp(s)").await.contains("program: the script"));
}

#[tokio::test]
async fn results_are_json_or_a_clear_fault() {
    for (value, said) in [
        ("undefined", "run returned undefined"),
        ("{a: undefined}", "result.a is undefined"),
        ("[1, undefined]", "result[1] is undefined"),
        ("new Array(1e9)", "result[0] is undefined"),
        ("{when: new Date(0)}", "result.when is a Date; use its toISOString()"),
        ("10n ** 30n", "BigInt of more than 64 bits"),
        ("2n ** 900000n", "BigInt of more than 64 bits"),
        ("(() => { const a = {}; a.b = [a]; return a })()", "result.b[0] contains itself"),
        ("{f() {}}", "result.f is a function"),
        ("Symbol('x')", "result is a symbol"),
        ("[NaN]", "result[0] is NaN"),
        ("[Infinity]", "result[0] is inf"),
        ("new Map([[1, 2]])", "is a Map; use Object.fromEntries"),
        ("new Set([1])", "is a Set"),
        ("[Promise.resolve(1)]", "result[0] is a promise; await it"),
        ("new Proxy({}, {})", "is a Proxy"),
        ("/x/", "is a regular expression"),
        ("new Error('x')", "is an Error"),
        ("new Uint8Array(8).buffer", "is an ArrayBuffer"),
    ] {
        let text = fault(&format!("return {value}")).await;
        assert!(text.contains(said), "{value}: {text}");
    }
    assert_eq!(
        result("class P { constructor() { this.x = 1 } } const a = [1]; return {p: new P(), t: {toJSON: () => 7}, a, b: a, n: -0, f: 1.5, e: 1e300}").await,
        json!({"p": {"x": 1}, "t": 7, "a": [1], "b": [1], "n": 0, "f": 1.5, "e": 1e300})
    );
}

#[tokio::test]
async fn faults_name_the_line_and_show_it() {
    let stage = stage();
    let thrown = stage.script("async function run(ctx) {\n  const a = {};\n  return a.b.c;\n}").await;
    assert!(thrown.output.contains("TypeError: cannot read property 'c' of undefined"), "{}", thrown.output);
    assert!(thrown.output.contains("at line 3 of the script: return a.b.c;"), "{}", thrown.output);
    let syntax = stage.script("function run() {\n  return 1 +;\n}").await;
    assert!(syntax.output.contains("cannot be read") && syntax.output.contains("at line 2"), "{}", syntax.output);
    assert!(matches!(syntax.error, Some(ToolErrorKind::InvalidArgument { .. })));
    let module = stage.script("export const run = () => {\n  nothing();\n}").await;
    assert!(module.output.contains("at line 2 of the script: nothing();"), "{}", module.output);
    let top = stage.script("const x = JSON.parse('{');\nfunction run() {}").await;
    assert!(top.output.contains("threw SyntaxError") && top.output.contains("at line 1"), "{}", top.output);
    let after_call =
        stage.script("async function run(ctx) {\n  await ctx.tool('echo');\n  throw new RangeError('no');\n}").await;
    assert!(after_call.output.contains("RangeError: no\n  at line 3"), "{}", after_call.output);
    for (thrown, said) in [("'text'", "threw text"), ("null", "threw null"), ("{a: 1}", "threw {\"a\":1}")] {
        assert!(fault(&format!("throw {thrown}")).await.contains(said));
    }
}

#[tokio::test]
async fn there_is_no_way_out_of_the_engine() {
    let probes = "
        const found = [];
        const attempt = (name, f) => { try { f(); found.push(name) } catch {} };
        attempt('eval', () => eval('1'));
        attempt('indirect eval', () => (0, eval)('1'));
        attempt('Function', () => new Function('return 1')());
        attempt('constructor', () => (() => {}).constructor('return 1')());
        attempt('async', () => (async () => {}).constructor('return 1')());
        attempt('generator', () => (function* () {}).constructor('yield 1')());
        attempt('async generator', () => (async function* () {}).constructor('yield 1')());
        attempt('prototype', () => Object.getPrototypeOf((async () => {}).constructor)('return 1')());
        attempt('class', () => (class {}).constructor('return 1')());
        attempt('native', () => ctx.tool.constructor('return 1')());
        attempt('host', () => console.log.constructor('return 1')());
        attempt('reflect', () => Reflect.construct(Object.getPrototypeOf(function () {}).constructor, ['return 1'])());
        attempt('fetch', () => fetch('http://localhost'));
        attempt('require', () => require('fs'));
        attempt('worker', () => new Worker('x'));
        attempt('socket', () => new WebSocket('ws://x'));
        attempt('timer', () => setTimeout(() => {}, 1));
        attempt('wait', () => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0));
        try { await import('fs'); found.push('import') } catch {}
        for (const name of ['process', 'std', 'os', 'Deno', 'Bun', 'navigator', 'performance', 'WebAssembly', 'print',
                            'scriptArgs', 'globalThis.__toolwardenRun'])
            if (name in globalThis) found.push(name);
        return found";
    assert_eq!(result(probes).await, json!([]));
    assert_eq!(result("return (() => {}) instanceof Function && [1] instanceof Object").await, true);
    for source in ["import fs from 'fs'; export const run = () => 1", "async function run() { await import('fs') }"] {
        let done = stage().script(source).await;
        assert!(done.output.contains("cannot import"), "{}", done.output);
    }
    let words = "// import x, eval(\nasync function run(ctx) { return (await ctx.tool('echo', {q: 'import x; eval('})).output }";
    assert!(stage().script(words).await.is_success(), "words in a text are no crime");
}

#[tokio::test]
async fn a_script_that_spoils_the_built_ins_harms_itself_alone() {
    let stage = stage();
    let done = stage
        .script(
            "JSON.stringify = () => { throw 1 }; Array.prototype.push = null; String.prototype.toWellFormed = null;
             Object.defineProperty = null; Promise.prototype.then = null; Error = null; Object.prototype.toJSON = undefined;
             Array.prototype[Symbol.iterator] = null; globalThis.console.log('x', {a: 1});
             async function run(ctx) { return [(await ctx.tool('echo', {a: 1})).output, '\\ud800'] }",
        )
        .await;
    assert!(done.is_success(), "{}", done.output);
    assert_eq!(done.metadata["script_result"], json!(["{\"a\":1}", "\u{fffd}"]));
    let polluted =
        stage.script("Object.prototype.toJSON = function () { return 7 }; function run() { return {a: 1} }").await;
    assert_eq!(polluted.metadata["script_result"], 7);
}

#[tokio::test]
async fn calls_that_read_run_beside_each_other_and_others_alone() {
    let stage = stage();
    let body = "const all = await Promise.all([1, 2, 3, 4].map(() => ctx.tool('look'))); return all.map(r => r.output)";
    assert_eq!(stage.result(body).await, json!(["seen", "seen", "seen", "seen"]));
    assert_eq!(stage.twin.record.lock().unwrap().most, 4);
    let stage = self::stage();
    stage.result("await Promise.all([1, 2, 3].map(() => ctx.tool('write'))); return 1").await;
    assert_eq!(stage.twin.record.lock().unwrap().most, 1);
    let stage = self::stage();
    let source = "async function run(ctx) { await Promise.all([...Array(40)].map(() => ctx.tool('echo'))); return 1 }";
    let done = stage.with(json!({"source": source, "limits": {"maxToolCalls": 40}})).await;
    assert!(done.is_success(), "{}", done.output);
    assert!(stage.twin.record.lock().unwrap().most <= 8, "no wider than the tool says");
    let names =
        stage.result("return (await Promise.allSettled([ctx.tool('fail'), ctx.tool('nope')])).map(s => s.status)");
    assert_eq!(names.await, json!(["fulfilled", "rejected"]));
}

#[tokio::test]
async fn time_and_chance_come_from_the_host() {
    let stage = stage();
    let body = "return [Math.random(), Math.random()]";
    let (first, again) = (stage.result(body).await, stage.result(body).await);
    assert_eq!(first, again, "the same call has the same numbers");
    let mut other = self::stage();
    other.ctx.invocation = "invocation-2".into();
    assert_ne!(other.result(body).await, first);
    let now = stage.result("return [Date.now(), new Date().getTime(), +new Date(5), Date.UTC(1970, 0, 2), typeof Date(), new Date() instanceof Date, new Date().constructor === Date]").await;
    let unix_ms = stage.ctx.clock.unix_ms();
    let near = |value: &Value| unix_ms - value.as_u64().unwrap() < 60_000;
    assert!(near(&now[0]) && near(&now[1]), "{now}");
    assert_eq!(now.as_array().unwrap()[2..], [json!(5), json!(86_400_000), json!("string"), json!(true), json!(true)]);
}

#[tokio::test]
async fn a_cancel_ends_script_and_calls_wherever_it_stands() {
    // Cut short before it begins, in a loop, in a call, between calls.
    for (body, wait_for_call) in
        [("for (;;) {}", false), ("await ctx.tool('patient')", true), ("for (;;) await ctx.tool('echo')", false)]
    {
        let stage = stage();
        let source = format!("async function run(ctx) {{ {body} }}");
        let asked = json!({"source": source, "limits": {"maxToolCalls": 10000}});
        let cancel = async {
            match wait_for_call {
                true => stage.twin.hanging.notified().await,
                false => tokio::task::yield_now().await,
            }
            stage.ctx.cancel.cancel(CancelReason::Requested);
        };
        let (done, ()) = tokio::join!(stage.with(asked), cancel);
        assert!(
            matches!(done.error, Some(ToolErrorKind::Cancelled { reason: Some(CancelReason::Requested), .. })),
            "{body}: {}",
            done.output
        );
        assert_eq!(stage.twin.record.lock().unwrap().running, 0, "{body}");
    }
    let stage = stage();
    stage.ctx.cancel.cancel(CancelReason::SessionClosed);
    assert!(!stage.script("function run() { return 1 }").await.is_success());
}

/// How many threads of this process run scripts.
fn script_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().filter_map(Result::ok);
    let name = |task: &std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    tasks.filter(|task| name(task).trim() == "program").count()
}

#[tokio::test]
async fn a_call_that_is_dropped_leaves_no_thread_and_no_call() {
    let stage = stage();
    let source = "async function run(ctx) { for (;;) {} }";
    {
        let mut call = Box::pin(stage.with(json!({"source": source})));
        let polled = tokio::time::timeout(Duration::from_millis(20), &mut call).await;
        assert!(polled.is_err(), "it spins");
        assert!(script_threads() > 0);
    }
    // Other tests run scripts of their own in this process; none of them spins for as long as this waits.
    let waits_until = Instant::now() + Duration::from_secs(30);
    while script_threads() > 0 {
        assert!(Instant::now() < waits_until, "a thread stays");
        tokio::task::yield_now().await;
    }
}

#[test]
fn a_rule_speaks_of_a_scripts_path_or_of_its_digest() {
    let tool = ProgramTool::new();
    let path = tool.subject(&json!({"type": "script", "path": "a.js"}));
    assert_eq!(path, Subject::Paths { paths: vec!["a.js".into()], write: false });
    let Subject::Text(text) = tool.subject(&json!({"type": "script", "source": "x", "path": "a.js"})) else { panic!() };
    assert!(text.starts_with("sha256:2d711642b726b044"), "{text}");
}

#[test]
fn the_schema_takes_what_is_documented() {
    let tool = ProgramTool::new();
    for wrong in [
        json!({"source": "x"}),
        json!({"type": "python", "source": "x"}),
        json!({"type": "script", "source": "x", "language": "ruby"}),
        json!({"type": "script", "source": "x", "limits": {"timeoutMs": 0}}),
        json!({"type": "script", "source": "x", "limits": {"maxToolCalls": 10001}}),
        json!({"type": "script", "source": "x", "limits": {"other": 1}}),
        json!({"type": "script", "source": "x", "other": 1}),
    ] {
        assert!(!faults(&tool, &wrong).is_empty());
    }
}
