//! Compares the walk with a real git, over generated rules and a tree of awkward names.

#![expect(clippy::disallowed_methods, reason = "tests prepare real files and ask a real git")]

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::Command;

use crate::search::walk::{Walk, WalkOptions};
use crate::workspace::local::LocalFiles;
use crate::workspace_path::WorkspacePath;

/// Rounds of generated rules.
const ROUNDS: u64 = 80;

const FOLDERS: [&str; 9] = ["", "a/", "b/", "a/b/", "a/b/c/", "lib/", "lib/one/", "tools/", "a b/"];
const NAMES: [&str; 22] = [
    "a", "b", "c", "x.c", "x.o", "m.cx", "m.c{x}", "{a,b}", "[z]", "z", "é", "a ", "#x", "!y", "-f", "keep", "A",
    ".dot", "x\\y", "a-b", "]", "^",
];
const PARTS: [&str; 40] = [
    "a",
    "b",
    "c",
    "*",
    "**",
    "?",
    "*.c",
    "*.o",
    "x.?",
    "*.c{x}",
    "{a,b}",
    "[ab]",
    "[!a]",
    "[^b]",
    "[a-c]",
    "[]-]",
    "[]]",
    "[\\]]",
    "[[:alpha:]]",
    "[[:punct:]]",
    "\\*",
    "\\!y",
    "\\#x",
    "a\\ ",
    "a ",
    "é",
    "??",
    "***",
    "a**",
    "**b",
    "lib",
    "one",
    "keep",
    "tools",
    ".*",
    "x\\\\y",
    "[!!]",
    "[z-a]",
    "[",
    "x\\",
];

/// A small generator of numbers, so that a bad round can be found again by its number.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % limit
    }

    fn rule(&mut self) -> String {
        let mut rule = String::new();
        if self.below(4) == 0 {
            rule.push('!');
        }
        if self.below(3) == 0 {
            rule.push('/');
        }
        for part in 0..=self.below(3) {
            if part > 0 {
                rule.push('/');
            }
            rule.push_str(PARTS[self.below(PARTS.len())]);
        }
        if self.below(4) == 0 {
            rule.push('/');
        }
        if self.below(8) == 0 {
            rule.push('\r');
        }
        rule
    }

    fn rules(&mut self) -> String {
        (0..=self.below(4)).map(|_| self.rule() + "\n").collect()
    }
}

fn git(root: &Path, arguments: &[&str]) -> Vec<u8> {
    let output = Command::new("git")
        .args(["-c", "core.excludesFile=/dev/null", "-c", "core.quotePath=false"])
        .args(arguments)
        .current_dir(root)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("HOME", root)
        .output()
        .unwrap();
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn seen_by_git(root: &Path) -> BTreeSet<WorkspacePath> {
    let output = git(root, &["ls-files", "-z", "--others", "--cached", "--exclude-standard"]);
    let names = output.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names.map(|name| WorkspacePath::from_relative(Path::new(OsStr::from_bytes(name)))).collect()
}

fn seen_by_us(root: &Path) -> BTreeSet<WorkspacePath> {
    let (files, _) = LocalFiles::open(root).unwrap();
    let options = WalkOptions { hidden: true, ..WalkOptions::default() };
    let listed: Vec<_> =
        Walk::start(&files, &WorkspacePath::root(), options).unwrap().map(|entry| entry.path).collect();
    assert!(listed.is_sorted());
    listed.into_iter().collect()
}

fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

#[test]
fn the_walk_and_git_see_the_same_files() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    git(root, &["init", "-q"]);
    for inside in FOLDERS {
        std::fs::create_dir_all(root.join(inside)).unwrap();
    }
    for inside in FOLDERS {
        for name in NAMES {
            if !root.join(inside).join(name).is_dir() {
                put(root, &format!("{inside}{name}"), "");
            }
        }
    }
    let mut hidden_somewhere = 0;
    for round in 0..ROUNDS {
        let mut numbers = Numbers(round);
        let mut rules = Vec::new();
        for place in [".gitignore", "a/.gitignore", "a/b/.gitignore", "lib/.gitignore", ".git/info/exclude"] {
            let text = if numbers.below(2) == 0 { numbers.rules() } else { String::new() };
            put(root, place, &text);
            rules.push((place, text));
        }
        let (git, ours) = (seen_by_git(root), seen_by_us(root));
        hidden_somewhere += usize::from(git.len() < FOLDERS.len() * NAMES.len());
        assert!(
            git == ours,
            "round {round}: {rules:?}\n only git: {:?}\n only ours: {:?}",
            git.difference(&ours).collect::<Vec<_>>(),
            ours.difference(&git).collect::<Vec<_>>()
        );
    }
    assert!(hidden_somewhere > 50, "the rules hide too little to tell anything: {hidden_somewhere}");
}

// Cases C070 and C071, against git itself.
#[test]
fn known_traps_agree_with_git() {
    for (rules, files) in [
        ("*\n!*.md\n", &["r.md", "docs/a.md", "x"][..]),
        ("t*\n!tools\n", &["tools/run", "test"]),
        ("/lib/*/*\n!/lib/*/keep\n", &["lib/one/keep/f", "lib/one/other"]),
        ("*.c{x}\n", &["m.cx", "m.c{x}"]),
        ("a\\ \n\\#x\n\\!y\n", &["a ", "#x", "!y", "a"]),
        ("\u{feff}a\r\nb\\\n", &["a", "b\\", "b"]),
        ("build/\n!build/\nbuild/x\n", &["build/x", "build/y", "src/build/x"]),
        ("/**/z\na/**\n!a/keep\n", &["z", "b/z", "a/keep", "a/b/keep"]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        git(folder.path(), &["init", "-q"]);
        put(folder.path(), ".gitignore", rules);
        for file in files {
            put(folder.path(), file, "");
        }
        assert_eq!(seen_by_us(folder.path()), seen_by_git(folder.path()), "{rules:?}");
    }
}
