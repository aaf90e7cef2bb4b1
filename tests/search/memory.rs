//! Searching too much in little memory: the program under a limit that ends it when it takes more.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

/// Writable memory that the program may have, in KiB.
const MEMORY_KIB: u64 = 320 * 1024;
/// Lines that all match.
const MATCHES: usize = 10_000_000;
/// Size of a file that is one line, in bytes.
const LINE_BYTES: u64 = 1 << 30;

/// Where the built program stands: beside the folder of the test's own executable.
fn program() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let path = own.parent().and_then(Path::parent).unwrap().join("toolwarden");
    assert!(path.is_file(), "{} is missing: run `cargo build -p toolwarden-cli` first", path.display());
    path
}

/// Calls `search` under the limit.
fn search(root: &Path, arguments: &Value) -> Value {
    let script = format!("ulimit -d {MEMORY_KIB} && exec \"$0\" call search \"$1\" --json --workspace \"$2\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script]).arg(program()).arg(arguments.to_string()).arg(root);
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{arguments}: {} {text}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_str(&text).unwrap()
}

// Ten million matches are counted, listed and cut, a line of a gigabyte is given up with a word, and neither is held.
#[test]
fn ten_million_matches_and_a_line_of_a_gigabyte_fit_into_little_memory() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = std::fs::File::create(folder.path().join("many")).unwrap();
    let block = b"a needle\n".repeat(10_000);
    for _ in 0..MATCHES / 10_000 {
        file.write_all(&block).unwrap();
    }
    let mut line = std::fs::File::create(folder.path().join("one_line")).unwrap();
    line.write_all(&vec![b'x'; 80 << 20]).unwrap();
    // A hole, which nobody reads as far as: the line is given up before.
    line.set_len(LINE_BYTES).unwrap();
    for mode in ["count", "content", "files_with_matches", "summary"] {
        let told = search(folder.path(), &json!({"mode": "grep", "query": "needle", "output_mode": mode}));
        let found = &told["metadata"]["search"];
        assert_eq!(found["matching_files"], 1, "{mode}: {told}");
        if mode == "count" || mode == "summary" {
            assert_eq!(found["matching_lines"], MATCHES, "{told}");
        }
        let output = told["output"].as_str().unwrap();
        assert!(output.len() < 128 * 1024, "{mode}: {}", output.len());
        assert!(
            output.contains("one_line"),
            "{mode}: what was given up is told: {}",
            &output[output.len().saturating_sub(400)..]
        );
    }
    let ranked = search(folder.path(), &json!({"mode": "bm25", "query": "needle"}));
    assert_eq!(ranked["metadata"]["scan"]["oversized_files"], 2, "{ranked}");
}
