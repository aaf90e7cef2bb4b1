//! Reading in the middle of a large file against `sed -n`, and editing a file of 10 MB against writing it.
//!
//! Targets: `read` at any offset of a file of 100 MB is faster than `sed -n` for the same lines, also the first time;
//! `edit` of a file of 10 MB takes at most 1.5 times what `write` of the whole takes. Driven from a spawned task on
//! two workers, see `pairing.rs`.

#![expect(clippy::expect_used, reason = "a bench that cannot set up its work has nothing to measure")]
#![expect(clippy::disallowed_methods, reason = "the bench prepares real files, and the reference runs sed")]

mod pairing;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::json;
use tokio::runtime::Runtime as Tokio;
use toolwarden::prelude::*;

use crate::pairing::{Pairing, drive, timed};

/// The program's own.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Size of the file that is read, in bytes.
const READ_BYTES: usize = 100 * 1000 * 1000;
/// Size of the file that is edited, in bytes.
const EDITED_BYTES: usize = 10 * 1000 * 1000;
/// Lines read at a time.
const LINES: u64 = 200;
/// Turns of each comparison.
const TURNS: usize = 15;
/// How many times as long as `sed -n` a read may take.
const READ_RATIO_MAX: f64 = 1.0;
/// How many times as long as a write an edit may take.
const EDIT_RATIO_MAX: f64 = 1.5;

fn text(bytes: usize) -> (String, u64) {
    let (mut text, mut lines) = (String::with_capacity(bytes + 100), 0);
    while text.len() < bytes {
        lines += 1;
        text.push_str(&format!("line {lines} of a file as sources are, of ordinary width and a little more\n"));
    }
    (text, lines)
}

async fn open(root: PathBuf) -> (Runtime, Session) {
    let runtime = Runtime::builder().build().await.expect("a runtime");
    let session = runtime.session(root).open().await.expect("a session");
    (runtime, session)
}

async fn call(session: &Session, tool: &str, arguments: serde_json::Value) {
    let result = session.tool(tool, arguments).await.expect("an open session");
    assert!(result.is_success(), "{}", result.output);
}

/// `sed -n` of the same lines, which ends at the last one.
fn sed(path: &Path, offset: u64) -> Vec<Duration> {
    let script = format!("{},{}p;{}q", offset + 1, offset + LINES, offset + LINES);
    let began_at = tokio::time::Instant::now();
    let output = std::process::Command::new("sed").arg("-n").arg(script).arg(path).output().expect("sed");
    let span = began_at.elapsed();
    assert!(!output.stdout.is_empty());
    vec![span]
}

fn reads(tokio: &Tokio, root: &Path, lines: u64) {
    let path = root.join("large");
    let warm = drive(tokio, open(root.to_owned())).1;
    for (name, offset) in [("start", 0), ("middle", lines / 2), ("end", lines - LINES)] {
        let arguments = json!({"file_path": "large", "offset": offset, "limit": LINES});
        let cold = || {
            // A session of its own knows nothing of the file.
            let (root, arguments) = (root.to_owned(), arguments.clone());
            drive(tokio, async move {
                let (runtime, session) = open(root).await;
                let span = timed(call(&session, "read", arguments)).await.0;
                runtime.shut_down().await;
                vec![span]
            })
        };
        let again = || {
            let (session, arguments) = (warm.clone(), arguments.clone());
            drive(tokio, async move { vec![timed(call(&session, "read", arguments)).await.0] })
        };
        for (how, subject) in [("for the first time", &cold as &dyn Fn() -> Vec<Duration>), ("again", &again)] {
            let compared = Pairing::measure(TURNS, || sed(&path, offset), subject);
            compared.print(&format!("read at the {name}, {how}"), "sed -n of the same lines", Some(READ_RATIO_MAX));
        }
    }
}

fn edits(tokio: &Tokio, root: &Path) {
    let (content, lines) = text(EDITED_BYTES);
    let session = drive(tokio, open(root.to_owned())).1;
    let mut flip = false;
    let edited = move || {
        flip = !flip;
        let word =
            |flipped: bool| if flipped { format!("LINE {} of", lines / 2) } else { format!("line {} of", lines / 2) };
        let arguments = json!({"file_path": "edited", "old_string": word(!flip), "new_string": word(flip)});
        let session = session.clone();
        drive(tokio, async move { vec![timed(call(&session, "edit", arguments)).await.0] })
    };
    let other = drive(tokio, open(root.to_owned())).1;
    let mut turn = 0_u64;
    let written = || {
        turn += 1;
        let arguments = json!({"file_path": "written", "content": format!("{turn}{content}")});
        let session = other.clone();
        drive(tokio, async move { vec![timed(call(&session, "write", arguments)).await.0] })
    };
    std::fs::write(root.join("edited"), &content).expect("a file");
    let compared = Pairing::measure(TURNS, written, edited);
    compared.print("edit of 10 MB", "write of 10 MB", Some(EDIT_RATIO_MAX));
}

fn main() {
    let tokio = pairing::runtime();
    let folder = tempfile::tempdir().expect("a folder");
    let (content, lines) = text(READ_BYTES);
    let path = folder.path().join("large");
    std::fs::write(&path, content).expect("a file");
    // Not so fresh that its stamp says too little.
    let file = std::fs::File::options().write(true).open(&path).expect("a file");
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000)).expect("a time");
    println!("\nfiles: a file of 100 MB is read, one of 10 MB edited");
    reads(&tokio, folder.path(), lines);
    edits(&tokio, folder.path());
}
