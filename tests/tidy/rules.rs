//! Rules about one file at a time: its header, its name, and words that it may not hold.
//!
//! A rule answers with the places that break it, each as `path:line: what`; none when all is well.

use super::source::{Kind, Source};

/// What the header of an actor's file speaks of.
const ACTOR_WORDS: [&str; 5] = ["holds", "supervised by", "restart", "mailbox bound", "reports"];
/// Names that say nothing, as the last word of a file's or folder's name.
const EMPTY_NAMES: [&str; 16] = [
    "util", "utils", "helper", "helpers", "common", "misc", "manager", "managers", "service", "services", "handler",
    "handlers", "base", "core", "runtime", "info",
];
/// Crates whose name is one of [`EMPTY_NAMES`] on purpose.
const NAMED_ON_PURPOSE: [&str; 1] = ["runtime"];
/// Lines of a file beyond which it is printed.
pub(crate) const FILE_LINES: usize = 400;
/// Lines of a function beyond which it is printed.
pub(crate) const FUNCTION_LINES: usize = 70;

/// Files that do not open with a `//!` line.
pub(crate) fn missing_header(source: &Source) -> Vec<String> {
    match source.header().trim().is_empty() {
        true => vec![format!("{}:1: no //! line", source.path)],
        false => Vec::new(),
    }
}

/// Actors whose header leaves something out.
pub(crate) fn silent_actor(source: &Source) -> Vec<String> {
    let Some(line) = impl_lines(source, "Actor").first().copied() else { return Vec::new() };
    let header = source.header().to_lowercase().split_whitespace().collect::<Vec<_>>().join(" ");
    let missing: Vec<&str> = ACTOR_WORDS.into_iter().filter(|word| !header.contains(word)).collect();
    match missing.is_empty() {
        true => Vec::new(),
        false => vec![format!("{}:{line}: an actor whose header lacks {}", source.path, missing.join(", "))],
    }
}

/// Shipped `impl … Trait for …`, by line.
pub(crate) fn impl_lines(source: &Source, name: &str) -> Vec<usize> {
    let named = (0..source.tokens.len()).filter(|at| source.at(*at, &[name, "for"]) && !source.tokens[*at].test);
    // Between `impl` and the trait stand generics and a path at most.
    let is_impl = |at: &usize| {
        let before =
            source.tokens[..*at].iter().rev().take_while(|token| !matches!(token.text.as_str(), "{" | "}" | ";"));
        before.into_iter().any(|token| token.text == "impl")
    };
    named.filter(is_impl).map(|at| source.tokens[at].line).collect()
}

/// File and folder names that say nothing.
pub(crate) fn empty_name(path: &str) -> Vec<String> {
    let parts = path.split('/').enumerate();
    let names = parts.filter(|(depth, part)| !(*depth == 0 && NAMED_ON_PURPOSE.contains(part)));
    let stems = names.map(|(_, part)| part.split('.').next().unwrap_or_default());
    let empty = stems.filter(|stem| {
        let last = stem.rsplit('_').next().unwrap_or_default();
        EMPTY_NAMES.contains(&last)
    });
    empty.map(|stem| format!("{path}: {stem:?} says nothing of what is in it")).collect()
}

/// Queues without a bound.
pub(crate) fn unbounded(source: &Source) -> Vec<String> {
    found(source, &["unbounded_channel"], false)
}

/// The one name that embedders find at the root of a crate, and where it is exported.
const AT_THE_ROOT: [(&str, [&str; 3]); 2] =
    [("runtime/lib.rs", ["embedding", "Runtime", ";"]), ("sim/lib.rs", ["world", "World", ";"])];

/// Re-exports, but for the prelude, and for the one name that embedders find at the root: `toolwarden::Runtime` and
/// `toolwarden_sim::World`. What stands for another crate has the names of that crate.
pub(crate) fn re_export(source: &Source) -> Vec<String> {
    let stands_for_a_crate = source.path.starts_with("sim/interleavings/");
    if source.path.ends_with("/prelude.rs") || source.is_outside_of_crates() || stands_for_a_crate {
        return Vec::new();
    }
    let mut places = found(source, &["pub", "use"], false);
    let at_the_root = AT_THE_ROOT.iter().find(|(path, _)| source.path == *path);
    if let Some((_, [module, name, end])) = at_the_root
        && source.lines_of(&["pub", "use", module, ":", ":", name, end], false).len() == places.len()
    {
        places.clear();
    }
    let inner = (0..source.tokens.len()).filter(|at| source.at(*at, &["pub", "("]));
    let inner = inner.filter(|at| source.at(source.behind(at + 1), &["use"]));
    places.extend(inner.map(|at| format!("{}:{}: pub(…) use", source.path, source.tokens[at].line)));
    places
}

/// Shipped code that panics where it should answer.
pub(crate) fn panicking(source: &Source) -> Vec<String> {
    let mut places = found(source, &[".", "unwrap", "(", ")"], true);
    places.extend(found(source, &[".", "expect", "("], true));
    places
}

/// Silenced lints, own macros, unfinished code.
pub(crate) fn forbidden(source: &Source) -> Vec<String> {
    let mut places = found(source, &["#", "[", "allow", "("], false);
    places.extend(found(source, &["#", "!", "[", "allow", "("], false));
    for name in ["macro_rules", "todo", "unimplemented"] {
        places.extend(found(source, &[name, "!"], false));
    }
    places
}

/// `select!` whose branches are tried in random order.
pub(crate) fn random_select(source: &Source) -> Vec<String> {
    let spots = (0..source.tokens.len()).filter(|at| source.at(*at, &["select", "!"]));
    let random = spots.filter(|at| !source.at(at + 3, &["biased", ";"]));
    random.map(|at| format!("{}:{}: select! without biased;", source.path, source.tokens[at].line)).collect()
}

/// Tools that no catalogue lists.
pub(crate) fn unlisted_tools(sources: &[Source], catalog: &Source) -> Vec<String> {
    let is_listed =
        |name: &str| (0..catalog.tokens.len()).any(|at| catalog.at(at, &[name, ":", ":"]) && !catalog.tokens[at].test);
    let tools = sources.iter().filter_map(|source| {
        let name = source.path.strip_prefix("tools/builtin/")?.strip_suffix(".rs")?;
        (!name.contains('/') && !impl_lines(source, "Tool").is_empty()).then_some((name, source))
    });
    tools.filter(|(name, _)| !is_listed(name)).map(|(name, source)| format!("{}: {name}", source.path)).collect()
}

/// Shipped functions that are longer than [`FUNCTION_LINES`], with their lengths.
pub(crate) fn long_functions(source: &Source) -> Vec<String> {
    let spots = (0..source.tokens.len()).filter(|at| source.at(*at, &["fn"]) && !source.tokens[*at].test);
    let lengths = spots.filter_map(|at| {
        let name = source.tokens.get(at + 1).filter(|token| token.kind == Kind::Word)?;
        let mut open = at;
        // A function without a body ends at its semicolon.
        while !source.at(open, &["{"]) {
            if open >= source.tokens.len() || source.at(open, &[";"]) {
                return None;
            }
            open = if source.at(open, &["["]) { source.behind(open) } else { open + 1 };
        }
        let last = source.tokens.get(source.behind(open) - 1)?;
        let lines = last.line - source.tokens[at].line + 1;
        (lines > FUNCTION_LINES).then(|| format!("{}:{}: fn {} has {lines} lines", source.path, name.line, name.text))
    });
    lengths.collect()
}

/// The file when it is longer than [`FILE_LINES`].
pub(crate) fn long_file(source: &Source) -> Vec<String> {
    match source.text.lines().count() {
        lines if lines > FILE_LINES => vec![format!("{}: {lines} lines", source.path)],
        _ => Vec::new(),
    }
}

fn found(source: &Source, texts: &[&str], shipped: bool) -> Vec<String> {
    let lines = source.lines_of(texts, shipped);
    let shown = if texts == ["pub", "use"] { "pub use".to_owned() } else { texts.concat() };
    lines.into_iter().map(|line| format!("{}:{line}: {shown}", source.path)).collect()
}

type Rule = fn(&Source) -> Vec<String>;

/// Each rule sees every bad snippet, and says nothing about any good one.
#[test]
fn each_rule_finds_what_it_is_for() {
    let cases: [(&str, Rule, &[&str], &[&str]); 9] = [
        ("header", missing_header, &["use a;", "// x", "//!", "\n//! late"], &["//! A thing."]),
        (
            "actor",
            silent_actor,
            &["//! Holds x. Restart: no.\nimpl Actor for X {}", "//! X.\nimpl<T: A> ractor::Actor for X<T> {}"],
            &[
                "//! Holds x; supervised\n//! by y. Restart: no. Mailbox bound: 1. Reports: z.\nimpl Actor for X {}",
                "//! X.\n#[cfg(test)]\nmod tests { impl Actor for X {} }",
                "//! X.\nimpl Handle { fn actor<Actor>() {} }",
            ],
        ),
        (
            "unbounded",
            unbounded,
            &["let x = mpsc::unbounded_channel();"],
            &["// unbounded_channel", "\"unbounded_channel\""],
        ),
        (
            "re-export",
            re_export,
            &["pub use a::b;", "pub(crate) use a;"],
            &["use a::b;", "pub(crate) fn f() { use a; }"],
        ),
        (
            "panicking",
            panicking,
            &["fn f() { x.unwrap(); }", "fn f() { x.expect(\"y\"); }", "fn f() { x\n.unwrap() }"],
            &[
                "#[cfg(test)]\nmod tests { fn f() { x.unwrap(); } }",
                "/// x.unwrap()\nfn f() { x.unwrap_or(1); }",
                "#[expect(lint)]\nfn f() {}",
            ],
        ),
        (
            "forbidden",
            forbidden,
            &["#[allow(x)]", "#![allow(x)]", "macro_rules! m { }", "fn f() { todo!() }", "fn f() { unimplemented!() }"],
            &["#[expect(x, reason = \"allow(y)\")]", "fn todo() {}"],
        ),
        (
            "select",
            random_select,
            &["select! { a = b => {} }", "tokio::select! {\n biased\n}"],
            &["tokio::select! {\n // first\n biased;\n a = b => {} }"],
        ),
        ("long file", long_file, &[&"\n".repeat(401)], &[&"\n".repeat(400)]),
        (
            "long function",
            long_functions,
            &[&format!("fn f() {{{}}}", "\n".repeat(70))],
            &[&format!("fn f(a: [u8; 2]) {{{}}}\nfn g();{}", "\n".repeat(69), "\n".repeat(80))],
        ),
    ];
    for (name, rule, bad, good) in cases {
        for text in bad {
            assert!(!rule(&Source::new("tools/x.rs", text)).is_empty(), "{name} misses {text:?}");
        }
        for text in good {
            let places = rule(&Source::new("tools/x.rs", text));
            assert!(places.is_empty(), "{name} is wrong about {text:?}: {places:?}");
        }
    }
}

#[test]
fn names_that_say_nothing_are_found() {
    for bad in
        ["tools/util.rs", "tools/helpers/x.rs", "actors/mcp_manager.rs", "runtime/model_info.rs", "sim/runtime.rs"]
    {
        assert_eq!(empty_name(bad).len(), 1, "{bad}");
    }
    for good in ["runtime/kernel.rs", "tools/baseline.rs", "tools/builtin/testing.rs", "tools/core_dump.rs"] {
        assert!(empty_name(good).is_empty(), "{good}");
    }
}

#[test]
fn a_tool_that_is_not_listed_is_found() {
    let tool = |path: &str| Source::new(path, "impl Tool for X {}");
    let sources = [tool("tools/builtin/a.rs"), tool("tools/builtin/b.rs"), tool("tools/builtin/b/part.rs")];
    let none = Source::new("tools/builtin/reach.rs", "fn f() {}");
    let catalog = Source::new("tools/catalog.rs", "if capabilities.b { list.push(a::tool()); } // b::tool()");
    assert_eq!(unlisted_tools(&sources, &catalog), ["tools/builtin/b.rs: b"]);
    assert!(unlisted_tools(&[none], &catalog).is_empty());
}
