//! Reads the store's port and writes it down again without the stores that reach a medium.
//!
//! A module that is read from another folder looks for its own modules beside it, where none are. What is not found where
//! it was fails the build: nothing is searched that is not the shipped port.

#![expect(clippy::disallowed_methods, reason = "a build script reads the files that it writes down again")]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// In the port: what stands for what.
const CHANGED: [(&str, &str); 3] = [
    ("pub mod directory;\n", ""),
    ("pub mod memory;\n", ""),
    ("pub mod record;\n", "pub mod record {\n    include!(concat!(env!(\"OUT_DIR\"), \"/record.rs\"));\n}\n"),
];

fn main() -> Result<(), Box<dyn Error>> {
    let effects = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../../../tools/effects");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let mut store = read(&effects.join("store.rs"))?;
    for (from, to) in CHANGED {
        if store.matches(from).count() != 1 {
            return Err(format!(
                "tools/effects/store.rs no longer holds {from:?} once: say in ground/build.rs what does"
            )
            .into());
        }
        store = store.replace(from, to);
    }
    fs::write(out.join("store.rs"), store)?;
    fs::write(out.join("record.rs"), read(&effects.join("store/record.rs"))?)?;
    Ok(())
}

/// The text, with its header as a plain comment: it is included into a module.
fn read(path: &Path) -> Result<String, Box<dyn Error>> {
    println!("cargo::rerun-if-changed={}", path.display());
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let lines = text.lines().map(|line| line.strip_prefix("//!").map_or(line.to_owned(), |words| format!("//{words}")));
    Ok(lines.collect::<Vec<_>>().join("\n") + "\n")
}
