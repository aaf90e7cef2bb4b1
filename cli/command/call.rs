//! `call`: one tool call by the host, and what it gives.

use std::path::PathBuf;

use clap::Args;
use serde_json::Value;
use toolwarden::call_result::CallResult;
use toolwarden::policy::PermissionPolicy;
use toolwarden::session::SessionError;
use toolwarden_tools::json_tree::unheld_number;
use toolwarden_tools::outcome::ToolErrorKind;

use super::{CommandError, End, killed};
use crate::artifacts::load_projection;
use crate::assembly::{Assembly, AssemblyError, CallArgs, Plan, Surroundings, load_policy};
use crate::input::read_stdin;
use crate::terminal::print;

/// Longest arguments on standard input, in bytes.
const ARGUMENTS_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// How much of a number is shown that is too long, in bytes.
const NUMBER_BYTES_SHOWN: usize = 60;

#[derive(Debug, Args)]
pub(crate) struct CallToolArgs {
    /// The tool; `toolwarden tools` lists them
    tool: String,

    /// Its arguments as a JSON object; - reads them from standard input
    #[arg(value_name = "JSON", default_value = "{}")]
    arguments: String,

    #[command(flatten)]
    call: CallArgs,

    #[command(flatten)]
    judged: JudgedArgs,
}

/// Whether a call is judged like a model's, and which model it may ask.
#[derive(Debug, Args)]
pub(crate) struct JudgedArgs {
    /// Send the call through permission and confirmation too, as a model's call goes
    #[arg(long)]
    governed: bool,

    /// What may run without a question (TOML, or JSON when it is named so); without it every call is asked about
    #[arg(long, value_name = "FILE", requires = "governed")]
    policy: Option<PathBuf>,

    /// Who answers tools that ask a model, such as generate_object [default: builtin:research]
    #[arg(long, value_name = "SPEC")]
    model: Option<String>,
}

/// Calls the tool and prints its output.
///
/// # Errors
/// [`CommandError`]. A call that fails is an end, not an error.
pub(crate) async fn call(args: CallToolArgs, with: &Surroundings) -> Result<End, CommandError> {
    let arguments = arguments(&args)?;
    make_call(&args.tool, arguments, &args.call, &args.judged, with).await
}

/// Calls this tool with these arguments and prints its output.
///
/// # Errors
/// [`CommandError`]. A call that fails is an end, not an error.
pub(crate) async fn make_call(
    tool: &str,
    arguments: Value,
    call: &CallArgs,
    judged: &JudgedArgs,
    with: &Surroundings,
) -> Result<End, CommandError> {
    let policy = judged.policy.as_deref().map_or_else(|| Ok(PermissionPolicy::default()), load_policy)?;
    let sandbox = call.sandbox.confinement().map_err(CommandError::Usage)?;
    let plan = Plan {
        events: call.events.as_deref(),
        artifacts: call.artifacts.to_keep(&with.environment).map_err(AssemblyError::from)?,
        projection: Some(load_projection(&call.projection).map_err(AssemblyError::from)?),
        policy: Some(policy),
        tool_timeout: call.timeout,
        containment: call.containment,
        writes: call.writes,
        may_ask: judged.governed,
        model: judged.model.as_deref().map(|spec| with.model(spec)).transpose()?,
        sandbox,
        bucket: call.workspace.bucket.clone(),
        web: call.web.clone(),
        ..Plan::new(&call.workspace.workspace)
    };
    let mut assembly = Assembly::open(plan, with).await?;
    let session = assembly.session.clone();
    let calling = async {
        if judged.governed { session.governed_tool(tool, arguments).await } else { session.tool(tool, arguments).await }
    };
    let called = match assembly.attendant.attend(calling).await {
        Ok(called) => called,
        Err(end) => return Ok(killed(end)),
    };
    if let Err(end) = assembly.close().await {
        return Ok(killed(end));
    }
    let result = match (called, assembly.attendant.stopped_by()) {
        (Ok(result), _) => result,
        // The signal came before the call began.
        (Err(SessionError::Closed), Some(signal)) => return Ok(End::Stopped(signal)),
        (Err(error), _) => return Err(error.into()),
    };
    print(&if call.json { serde_json::to_string(&*result)? } else { result.output.clone() })?;
    if result.is_success() {
        return Ok(End::Done);
    }
    if let (Some(ToolErrorKind::Cancelled { .. }), Some(signal)) = (&result.error_kind, assembly.attendant.stopped_by())
    {
        with.screen.say(&format!("cancelled by {}; everything has ended", signal.name()));
        return Ok(End::Stopped(signal));
    }
    with.screen.complain(&failure(&result));
    Ok(End::Failed)
}

fn arguments(args: &CallToolArgs) -> Result<Value, CommandError> {
    let is_stdin = args.arguments == "-";
    let read;
    let text = if is_stdin {
        read = read_stdin("the arguments", ARGUMENTS_BYTES_MAX)?;
        &read
    } else {
        &args.arguments
    };
    if let Some(number) = unheld_number(text) {
        let shown = &number[..number.floor_char_boundary(NUMBER_BYTES_SHOWN)];
        let words = format!("the number {shown} has more digits than arguments can carry; write it as a string");
        return Err(CommandError::Usage(words));
    }
    serde_json::from_str(text).map_err(|error| {
        let hint = if is_stdin {
            "Give one JSON object on standard input"
        } else {
            "Put single quotes around the JSON so that the shell leaves it alone, or give - and the JSON on standard \
             input"
        };
        // Its words end with line and column.
        CommandError::Usage(format!("the arguments are not JSON: {error}. {hint}"))
    })
}

/// One line about a call that failed; its output, which says why, has been printed.
fn failure(result: &CallResult) -> String {
    let refused = result.metadata.get("refused").and_then(|refused| refused.get("stage")).and_then(Value::as_str);
    match (refused, &result.error_kind) {
        (Some(stage), _) => format!("{} did not run (refused by {stage})", result.name),
        (None, Some(kind)) => {
            let kind = serde_json::to_value(kind).ok();
            let word = kind.as_ref().and_then(|kind| kind.get("type")).and_then(Value::as_str).unwrap_or("failed");
            format!("{} failed: {word}", result.name)
        }
        (None, None) => format!("{} failed with exit code {}", result.name, result.exit_code),
    }
}
