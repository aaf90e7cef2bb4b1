//! Checks of the repository itself: floors, headers, names, words that are not used here, tools, links.
//!
//! What a compiler does not know and a reviewer forgets. Every detector is itself tested on snippets that break its
//! rule, for a check that finds nothing looks the same as a tidy repository. Length is printed, never refused.

#![expect(clippy::disallowed_methods, reason = "the checks read the repository that they stand in")]

#[path = "tidy/floors.rs"]
mod floors;
#[path = "tidy/links.rs"]
mod links;
#[path = "tidy/rules.rs"]
mod rules;
#[path = "tidy/source.rs"]
mod source;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use toml::Table;

use self::source::{Source, mark_test_files};

/// Folders that hold nothing of ours.
const NOT_OURS: [&str; 2] = ["target", "node_modules"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All files of the repository with this ending, as path from the root and text, sorted.
fn files(ending: &str) -> Vec<(String, String)> {
    let (mut folders, mut files) = (vec![root().to_path_buf()], Vec::new());
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        for entry in entries.flatten() {
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            if name.starts_with('.') || NOT_OURS.contains(&name.as_str()) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if name.ends_with(ending) {
                files.push(path);
            }
        }
    }
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let path = path.strip_prefix(root()).unwrap_or(&path).to_string_lossy().into_owned();
        (path, text)
    };
    let mut files: Vec<_> = files.into_iter().map(read).collect();
    files.sort();
    files
}

/// Every Rust file, read and cut once.
fn sources() -> &'static [Source] {
    static SOURCES: OnceLock<Vec<Source>> = OnceLock::new();
    SOURCES.get_or_init(|| {
        let mut sources: Vec<Source> = files(".rs").iter().map(|(path, text)| Source::new(path, text)).collect();
        mark_test_files(&mut sources);
        sources
    })
}

fn source(path: &str) -> Source {
    let text = fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    Source::new(path, &text)
}

fn manifest(path: &str) -> Table {
    let text = fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    text.parse().unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Fails with all places where a rule is broken, and what to do about them.
fn none(places: Vec<String>, todo: &str) {
    assert!(places.is_empty(), "\n{}\n=> {todo}\n", places.join("\n"));
}

fn none_in_sources(rule: fn(&Source) -> Vec<String>, todo: &str) {
    none(sources().iter().flat_map(rule).collect(), todo);
}

#[test]
fn the_whole_repository_is_looked_at() {
    let paths: Vec<String> = files(".rs").into_iter().map(|(path, _)| path).collect();
    for (folder, _) in floors::CRATES {
        assert!(paths.iter().any(|path| path.starts_with(&format!("{folder}/"))), "no Rust file in {folder}");
    }
    assert!(paths.contains(&"tests/tidy/source.rs".to_owned()) && paths.iter().all(|path| !path.starts_with("target")));
}

#[test]
fn crates_lead_down_only() {
    none(
        floors::unknown_members(&manifest("Cargo.toml")),
        "list every crate with its floor in CRATES of tests/tidy/floors.rs",
    );
    let places = floors::CRATES
        .iter()
        .flat_map(|(folder, _)| floors::upward_dependencies(folder, &manifest(&format!("{folder}/Cargo.toml"))));
    none(places.collect(), "take the dependency out, and move what is needed to the lower crate");
}

#[test]
fn modules_lead_down_only() {
    let sources = sources();
    let mut places = Vec::new();
    for (folder, _) in floors::CRATES {
        let roots = ["lib.rs", "main.rs"].map(|name| format!("{folder}/{name}"));
        let Some(root) = sources.iter().find(|source| roots.contains(&source.path)) else {
            panic!("{folder} has neither lib.rs nor main.rs");
        };
        let floors = floors::module_floors(root);
        places.extend(sources.iter().flat_map(|source| floors::upward_imports(source, folder, &floors)));
    }
    none(
        places,
        "list the module that is named on a lower floor of the crate's root (floors are parted by blank lines), or \
         move what both need below both",
    );
}

#[test]
fn every_file_says_what_it_is() {
    none_in_sources(rules::missing_header, "open the file with //!: what it is, why, and what must stay true");
}

#[test]
fn every_actor_says_how_it_lives() {
    none_in_sources(
        rules::silent_actor,
        "say in the header, in these words: Holds …; supervised by …; restart: …; mailbox bound: …; reports …",
    );
}

#[test]
fn every_name_says_something() {
    let paths = files(".rs").into_iter().flat_map(|(path, _)| rules::empty_name(&path));
    none(paths.collect(), "name the file after the one thing in it, by a singular noun");
}

#[test]
fn every_queue_has_a_bound() {
    none_in_sources(rules::unbounded, "use a bounded channel, and name its bound");
}

#[test]
fn names_are_imported_where_they_are_defined() {
    none_in_sources(rules::re_export, "import from the module that defines the name; only a prelude.rs re-exports");
}

#[test]
fn shipped_code_does_not_panic_on_purpose() {
    none_in_sources(rules::panicking, "return a typed error, or write the case out with let … else");
}

#[test]
fn no_lint_is_silenced_and_nothing_is_left_open() {
    none_in_sources(
        rules::forbidden,
        "write #[expect(lint, reason = \"…\")] for allow, a function for a macro, and the code for todo!",
    );
}

#[test]
fn every_select_has_an_order() {
    none_in_sources(rules::random_select, "begin the select! with biased; and order its branches");
}

#[test]
fn every_tool_is_listed() {
    none(
        rules::unlisted_tools(sources(), &source("tools/catalog.rs")),
        "list the tool in tools/catalog.rs, by the capabilities that it needs",
    );
}

#[test]
fn every_link_leads_somewhere() {
    let exists = |path: &Path| root().join(path).exists();
    let pages = files(".md").into_iter();
    let places = pages.flat_map(|(path, text)| links::dead_links(&path, &text, &exists));
    none(places.collect(), "mend the link, or take it out");
}

#[test]
fn long_files_and_functions_are_printed() {
    let sources = sources();
    let long = sources.iter().flat_map(|source| {
        let mut places = rules::long_file(source);
        places.extend(rules::long_functions(source));
        places
    });
    // Seen with --nocapture; for the reader to judge.
    long.for_each(|place| println!("long: {place}"));
}
