//! `verify-evidence`: checks what a result says about itself, every figure computed anew from the stored original.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};
use toolwarden::settlement::proof::{Again, Proof, ShownResult, original_of, verify};
use toolwarden_tools::effects::blobs::{BlobError, open_checked};

use super::{CommandError, End};
use crate::artifacts::{ArtifactArgs, load_projection};
use crate::assembly::Surroundings;
use crate::input::{read_file, read_stdin};
use crate::terminal::print;

/// Largest result, in bytes.
const RESULT_BYTES_MAX: u64 = 64 * 1024 * 1024;

#[derive(Debug, Args)]
#[command(after_help = "Exit codes: 0 every figure holds; 1 one does not, or the original is not there or damaged; \
                        2 FILE is no result.")]
pub(crate) struct VerifyEvidenceArgs {
    /// A result, as `toolwarden call --json` prints it; - reads it from standard input
    file: PathBuf,

    #[command(flatten)]
    artifacts: ArtifactArgs,

    /// The policy that projected it, where that is not a built-in profile
    #[arg(long, value_name = "PROFILE|FILE")]
    projection: Option<String>,

    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Checks the evidence and tells each figure.
///
/// # Errors
/// [`CommandError`]. Evidence that does not hold is an end, not an error.
pub(crate) fn verify_evidence(args: &VerifyEvidenceArgs, with: &Surroundings) -> Result<End, CommandError> {
    let text = match args.file == Path::new("-") {
        true => read_stdin("the result", RESULT_BYTES_MAX)?,
        false => read_file(&args.file, "the result", RESULT_BYTES_MAX)?,
    };
    let result: ShownResult = serde_json::from_str(&text).map_err(|error| {
        let place = args.file.display();
        CommandError::Usage(format!("{place} is no result: {error}. Give what `toolwarden call --json` printed"))
    })?;
    let policy = args.projection.as_deref().map(load_projection).transpose()?;
    let mut original = None;
    if let Some(uri) = original_of(&result)? {
        let blobs = args.artifacts.to_read(&with.environment)?;
        original = match open_checked(&blobs, uri.digest()) {
            Ok(blob) => Some(blob),
            Err(error @ (BlobError::Missing { .. } | BlobError::Damaged { .. })) => {
                with.screen.complain(&format!("the original cannot be looked at: {error}"));
                return Ok(End::Failed);
            }
            Err(error) => return Err(CommandError::Blob(error)),
        };
    }
    let proof = verify(&result, original.as_mut().map(|blob| blob as &mut dyn Read), policy.as_ref())?;
    print(&if args.json { as_json(&proof).to_string() } else { as_table(&proof) })?;
    if proof.holds() {
        return Ok(End::Done);
    }
    with.screen.complain("the evidence does not hold");
    Ok(End::Failed)
}

fn word(again: Again) -> &'static str {
    match again {
        Again::Same => "same",
        Again::Different => "different",
        Again::ByTool => "by_tool",
        Again::UnknownPolicy => "unknown_policy",
    }
}

fn as_json(proof: &Proof) -> Value {
    let figures: Vec<Value> = proof
        .figures
        .iter()
        .map(|figure| {
            json!({"name": figure.name, "stated": figure.stated, "found": figure.found, "holds": figure.holds()})
        })
        .collect();
    json!({"holds": proof.holds(), "projected_again": word(proof.again), "figures": figures})
}

fn as_table(proof: &Proof) -> String {
    let mut table = String::new();
    for figure in &proof.figures {
        match figure.holds() {
            true => table.push_str(&format!("holds  {}: {}\n", figure.name, figure.found)),
            false => {
                table.push_str(&format!("WRONG  {}: says {}, is {}\n", figure.name, figure.stated, figure.found));
            }
        }
    }
    table.push_str(match proof.again {
        Again::Same => "holds  the output is what the policy makes of the original",
        Again::Different => "WRONG  the output is not what the policy makes of the original",
        Again::ByTool => "-      the tool itself showed less than the whole; that cannot be done again here",
        Again::UnknownPolicy => "-      not projected again: name the policy with --projection",
    });
    table
}
