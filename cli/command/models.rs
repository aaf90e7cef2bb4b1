//! `models check`: asks a model one small thing and says what works.
//!
//! One call, with one tool that the model is told to use: so address, key, name and tool calls show at once.

use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::json;
use tokio::time::Instant;
use toolwarden::models::turn_options::{ToolChoice, TurnOptions};
use toolwarden::models::{CallArguments, Message, ModelRequest, ModelTurn, NoSink};
use toolwarden_tools::declaration::ToolDefinition;

use super::{CommandError, End};
use crate::assembly::{Surroundings, parse_timeout};
use crate::terminal::print;

/// How long the call may take when nothing else is said.
const CHECK_TIMEOUT: &str = "60";
/// The tool that the model is to call.
const TOOL: &str = "report";
/// The most tokens that it may write.
const OUTPUT_TOKENS_MAX: u64 = 1024;

#[derive(Debug, Args)]
pub(crate) struct ModelsArgs {
    #[command(subcommand)]
    command: ModelsCommand,
}

#[derive(Debug, Subcommand)]
enum ModelsCommand {
    /// Ask a model one small thing and say what works
    Check(CheckArgs),
}

#[derive(Debug, Args)]
struct CheckArgs {
    /// Which: anthropic:NAME, openai:NAME or openai-chat:NAME@BASE_URL
    #[arg(value_name = "SPEC")]
    model: String,

    /// The most time it may take, in seconds
    #[arg(long, value_name = "SECONDS", default_value = CHECK_TIMEOUT, value_parser = parse_timeout)]
    timeout: Duration,

    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// What was found, as `--json` prints it.
#[derive(Serialize)]
struct Findings {
    model: String,
    answers: bool,
    /// Why it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    calls_tools: bool,
    elapsed_ms: u64,
    input_tokens: u64,
    output_tokens: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<String>,
}

/// Asks, and prints what was found. It fails when the model does not answer.
///
/// # Errors
/// [`CommandError`].
pub(crate) async fn models(args: ModelsArgs, with: &Surroundings) -> Result<End, CommandError> {
    let ModelsCommand::Check(args) = args.command;
    let model = with.model(&args.model)?;
    let began = Instant::now();
    let answer = match tokio::time::timeout(args.timeout, model.turn(&request(), &NoSink)).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer within {} s; allow more with --timeout", args.timeout.as_secs_f64())),
    };
    let elapsed_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    let findings = findings(args.model, answer, elapsed_ms);
    print(&if args.json { serde_json::to_string(&findings)? } else { page(&findings) })?;
    if findings.answers {
        return Ok(End::Done);
    }
    with.screen.complain(findings.error.as_deref().unwrap_or("the model does not answer"));
    Ok(End::Failed)
}

fn request() -> ModelRequest {
    let parameters = json!({
        "type": "object",
        "properties": {"word": {"type": "string", "description": "The word ok"}},
        "required": ["word"],
        "additionalProperties": false,
    });
    ModelRequest {
        system: "You take part in a check of a connection.".to_owned(),
        messages: vec![Message::User { text: format!("Call the tool {TOOL} with the word ok.") }],
        tools: vec![ToolDefinition { name: TOOL.into(), description: "Reports a word.".to_owned(), parameters }].into(),
        tool_calls_allowed: true,
        agent: "general".to_owned(),
        fan_out: 1,
        options: TurnOptions {
            tool_choice: ToolChoice::Named(TOOL.to_owned()),
            output_tokens_max: Some(OUTPUT_TOKENS_MAX),
            ..TurnOptions::default()
        },
    }
}

fn findings(model: String, answer: Result<ModelTurn, String>, elapsed_ms: u64) -> Findings {
    let (answer, error) = match answer {
        Ok(turn) => (Some(turn), None),
        Err(error) => (None, Some(error)),
    };
    let called = |turn: &ModelTurn| {
        turn.calls.iter().any(|call| call.tool.as_str() == TOOL && matches!(call.arguments, CallArguments::Parsed(_)))
    };
    let usage = answer.as_ref().map(|turn| turn.usage).unwrap_or_default();
    Findings {
        model,
        answers: answer.is_some(),
        error,
        calls_tools: answer.as_ref().is_some_and(called),
        elapsed_ms,
        input_tokens: usage.input_tokens,
        output_tokens: usage.output_tokens,
        request_id: answer.and_then(|turn| turn.request_id),
    }
}

fn page(findings: &Findings) -> String {
    if !findings.answers {
        return format!("{}\n  answers      no", findings.model);
    }
    let tools = if findings.calls_tools { "yes" } else { "no: it answered in words" };
    format!(
        "{}\n  answers      yes, in {} ms\n  calls tools  {tools}\n  tokens       {} read, {} written",
        findings.model, findings.elapsed_ms, findings.input_tokens, findings.output_tokens
    )
}
