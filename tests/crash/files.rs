//! Files of a workspace, killed before every system call: each is its old self or its new one, several that are changed
//! together are all old or all new, and nothing else is left.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use toolwarden_tools::digest::Digest;
use toolwarden_tools::effects::files::together::FileChange;
use toolwarden_tools::effects::files::{Expected, Files as _, Replacement};
use toolwarden_tools::workspace::local::LocalFiles;
use toolwarden_tools::workspace_path::WorkspacePath;

use super::calls::{Call, counted};

const CHANGE: &str = "TOOLWARDEN_CRASH_CHANGE";
const FOLDER: &str = "TOOLWARDEN_CRASH_FILES";
const KILL_AT: &str = "TOOLWARDEN_CRASH_CALL";

/// More calls than this no change makes.
const CALLS_MAX: usize = 300;

/// How the names of what is only there on the way begin.
const OURS: &str = ".toolwarden-";

/// Names with content and mode.
type Tree = BTreeMap<String, (String, u32)>;

fn path(text: &str) -> WorkspacePath {
    WorkspacePath::parse(text, "").unwrap()
}

fn holds(text: &str) -> Expected {
    Expected::Content(Digest::of(text.as_bytes()))
}

fn prepare(root: &Path) {
    fs::create_dir_all(root.join("d")).unwrap();
    for (name, text) in [("a", "a old"), ("d/b", "b old"), ("gone", "gone old"), ("from", "moved")] {
        fs::write(root.join(name), text).unwrap();
    }
    fs::set_permissions(root.join("a"), fs::Permissions::from_mode(0o750)).unwrap();
}

/// Opens the workspace, as every process does first, and changes it.
fn change(name: &str, root: &Path) {
    let files = LocalFiles::open(root).unwrap().0;
    let together = |changes: &[FileChange<'_>]| files.change_together(changes, &|| true).unwrap();
    match name {
        "replace" => {
            let replacement = Replacement { bytes: b"a new", expected: holds("a old"), create_folders: false };
            files.replace(&path("a"), &replacement).map(drop).unwrap();
        }
        "make" => {
            let replacement = Replacement { bytes: b"made", expected: Expected::Absent, create_folders: true };
            files.replace(&path("new/deep/c"), &replacement).map(drop).unwrap();
        }
        "pieces" => {
            let landing = files.begin(&path("d/b")).unwrap();
            landing.write_at(b"b ", 0).unwrap();
            landing.write_at(b"new", 2).unwrap();
            landing.put(&holds("b old"), &|| Ok(())).map(drop).unwrap();
        }
        "remove" => files.remove(&path("gone"), &holds("gone old")).unwrap(),
        "together" => together(&[
            FileChange::Put { path: path("a"), bytes: b"a new", expected: holds("a old"), mode: None },
            FileChange::Put {
                path: path("new/deep/c"),
                bytes: b"c new",
                expected: Expected::Absent,
                mode: Some(0o755),
            },
            FileChange::Remove { path: path("gone"), expected: holds("gone old") },
            FileChange::Move { from: path("from"), to: path("other/to"), expected: holds("moved") },
            FileChange::Put { path: path("d/b"), bytes: b"b new", expected: holds("b old"), mode: None },
        ]),
        other => panic!("{other}"),
    }
}

/// The files beneath a folder.
fn tree(root: &Path) -> Tree {
    let (mut all, mut open) = (Tree::new(), vec![root.to_owned()]);
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let at = entry.unwrap().path();
            if at.is_dir() {
                open.push(at);
                continue;
            }
            let name = at.strip_prefix(root).unwrap().display().to_string();
            let mode = fs::metadata(&at).unwrap().permissions().mode() & 0o777;
            all.insert(name, (fs::read_to_string(&at).unwrap(), mode));
        }
    }
    all
}

/// The other process: does nothing unless it is told to.
#[test]
fn a_process_whose_calls_are_counted() {
    let Ok(name) = env::var(CHANGE) else { return };
    let (root, kill_at) = (PathBuf::from(env::var(FOLDER).unwrap()), env::var(KILL_AT).unwrap().parse().unwrap());
    counted(kill_at, move || change(&name, &root));
}

/// Whether it was killed before that call.
fn is_killed_there(name: &str, root: &Path, kill_at: usize) -> bool {
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", "files::a_process_whose_calls_are_counted", "--nocapture"])
        .envs([(CHANGE, name), (KILL_AT, &kill_at.to_string())])
        .env(FOLDER, root)
        .output()
        .unwrap();
    let is_killed = output.status.signal() == Some(9);
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(is_killed || output.status.success(), "{name} at {kill_at}: {}: {words}", output.status);
    is_killed
}

/// Kills a change before every call; gives how many there are, and how often it was found half done.
fn kill_everywhere(name: &str) -> (usize, usize) {
    let (whole, mut half_done) = (tempfile::tempdir().unwrap(), 0);
    prepare(whole.path());
    let before = tree(whole.path());
    change(name, whole.path());
    let after = tree(whole.path());
    for kill_at in 1..CALLS_MAX {
        let root = tempfile::tempdir().unwrap();
        prepare(root.path());
        if !is_killed_there(name, root.path(), kill_at) {
            assert_eq!(tree(root.path()), after, "{name}: what was acknowledged is not there");
            return (kill_at - 1, half_done);
        }
        let left = tree(root.path());
        half_done += usize::from(left != before && left != after);
        // What belongs together is put right when the workspace is opened; other names are swept.
        let files = LocalFiles::open(root.path()).unwrap().0;
        files.sweep_leftovers();
        let found = tree(root.path());
        assert!(found == before || found == after, "{name} at {kill_at}: {found:?}");
        // And it can be done again.
        if found == before {
            drop(files);
            change(name, root.path());
            assert_eq!(tree(root.path()), after, "{name} again, killed at {kill_at}");
        }
    }
    panic!("{name} has more than {CALLS_MAX} calls");
}

#[test]
fn a_replacement_killed_before_every_call_leaves_the_old_file_or_the_new_one() {
    for (name, calls_min) in [("replace", 6), ("make", 8), ("pieces", 6), ("remove", 2)] {
        let (calls, half_done) = kill_everywhere(name);
        println!("{name}: killed before each of {calls} calls, {half_done} times half done");
        assert!(calls >= calls_min, "{name}: only {calls} calls");
    }
}

#[test]
fn changes_made_together_killed_before_every_call_are_all_made_or_none() {
    let (calls, half_done) = kill_everywhere("together");
    println!("together: killed before each of {calls} calls, {half_done} times half done");
    assert!(calls >= 40 && half_done >= 20, "{calls} calls, {half_done} half done");
}

/// What a power cut would leave depends on what was synced by then: the new bytes before their name, the name before
/// anybody is told, the note of several changes before the first of them.
#[test]
fn what_is_renamed_was_synced_and_its_folder_is_synced_before_the_end() {
    for name in ["replace", "make", "pieces", "together"] {
        let root = tempfile::tempdir().unwrap();
        prepare(root.path());
        let at = root.path().canonicalize().unwrap();
        let calls = counted(0, move || change(name, &at));
        in_order(&calls).unwrap_or_else(|fault| panic!("{name}: {fault} in {calls:#?}"));
    }
}

/// Whether every new content has its name only once it is durable, and every name of a file is durable in the end.
fn in_order(calls: &[Call]) -> Result<(), String> {
    let mut dirty: Vec<PathBuf> = Vec::new();
    let mut unsure: Vec<PathBuf> = Vec::new();
    for call in calls {
        match call {
            Call::Writes(file) if !dirty.contains(file) => dirty.push(file.clone()),
            Call::Syncs(at) => {
                dirty.retain(|file| file != at);
                unsure.retain(|folder| folder != at);
            }
            Call::Names(from, folder, to) => {
                let is_dirty = dirty.iter().any(|file| file.file_name().is_some_and(|name| name == from.as_str()));
                if is_dirty {
                    return Err(format!("{from} becomes {to} before its bytes are durable"));
                }
                unsure.push(folder.clone());
            }
            _ => {}
        }
    }
    if unsure.is_empty() { Ok(()) } else { Err(format!("names in {unsure:?} are not durable in the end")) }
}

#[test]
fn an_order_that_a_power_cut_would_punish_is_found() {
    let (file, folder) = (PathBuf::from("/w/.toolwarden-1.tmp"), PathBuf::from("/w"));
    let names = Call::Names(format!("{OURS}1.tmp"), folder.clone(), "a".to_owned());
    let [writes, syncs, syncs_folder] = [Call::Writes(file.clone()), Call::Syncs(file), Call::Syncs(folder)];
    let whole = [writes, syncs, names, syncs_folder];
    assert_eq!(in_order(&whole), Ok(()));
    for left_out in [1, 3] {
        let calls: Vec<Call> = (0..4).filter(|at| *at != left_out).map(|at| whole[at].clone()).collect();
        assert!(in_order(&calls).is_err(), "{calls:?}");
    }
}
