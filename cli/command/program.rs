//! `program`: runs a script that calls tools, and prints what it returns.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};
use toolwarden_tools::builtin::program::SOURCE_BYTES_MAX;

use super::call::{JudgedArgs, make_call};
use super::{CommandError, End};
use crate::assembly::{CallArgs, Surroundings};
use crate::input::{read_file, read_stdin};

#[derive(Debug, Args)]
#[command(after_help = "FILE defines a function run:\n  export async function run(ctx, inputs) {\n    const files = \
                        await ctx.glob(\"**/*.md\");\n    return { count: files.length };\n  }\nIt may call the tools \
                        that `toolwarden tools` lists, and reaches nothing else.")]
pub(crate) struct ProgramArgs {
    /// The script; - reads it from standard input
    file: PathBuf,

    /// What run gets as its second argument, a JSON object
    #[arg(long, value_name = "JSON", default_value = "{}")]
    inputs: String,

    /// The tools that it may call, parted by commas; without it all but program and dynamic_workflow
    #[arg(long, value_name = "TOOLS", value_delimiter = ',')]
    allow: Option<Vec<String>>,

    /// The most tool calls it may make
    #[arg(long, value_name = "NUMBER")]
    max_calls: Option<u32>,

    #[command(flatten)]
    call: CallArgs,

    #[command(flatten)]
    judged: JudgedArgs,
}

/// Runs the script and prints its output.
///
/// # Errors
/// [`CommandError`]. A script that fails is an end, not an error.
pub(crate) async fn program(args: ProgramArgs, with: &Surroundings) -> Result<End, CommandError> {
    let source = match args.file == Path::new("-") {
        true => read_stdin("the script", SOURCE_BYTES_MAX as u64)?,
        false => read_file(&args.file, "the script", SOURCE_BYTES_MAX as u64)?,
    };
    let inputs: Value = serde_json::from_str(&args.inputs).map_err(|error| {
        CommandError::Usage(format!("--inputs is not JSON: {error}. Put single quotes around the JSON"))
    })?;
    if !inputs.is_object() {
        return Err(CommandError::Usage("--inputs is not a JSON object; write it as {\"name\": value}".to_owned()));
    }
    let mut arguments = json!({"type": "script", "source": source, "inputs": inputs});
    if let Some(allowed) = args.allow {
        arguments["allowed_tools"] = json!(allowed);
    }
    let mut limits = json!({});
    if let Some(calls) = args.max_calls {
        limits["maxToolCalls"] = json!(calls);
    }
    // The script is told its own time, so that it ends as a script that was stopped, with what it has done.
    if let Some(timeout) = args.call.timeout {
        limits["timeoutMs"] = json!(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).max(1));
    }
    arguments["limits"] = limits;
    make_call("program", arguments, &args.call, &args.judged, with).await
}
