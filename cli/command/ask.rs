//! `ask`: one run of the agent loop over the workspace, and its answer.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;
use toolwarden::models::research::RESEARCH_NAME;
use toolwarden::policy::PermissionPolicy;
use toolwarden::run::{RunLimits, RunOutcome};
use toolwarden::run_status::RunStatus;
use toolwarden::session::SessionError;
use toolwarden_tools::cancellation::CancelReason;

use super::{CommandError, End, killed};
use crate::artifacts::load_projection;
use crate::assembly::{Assembly, AssemblyError, CallArgs, Plan, StoreArgs, Surroundings, load_policy};
use crate::input::read_stdin;
use crate::terminal::print;

/// Longest question, in bytes.
const QUESTION_BYTES_MAX: u64 = 1024 * 1024;
/// What is said about a session that was never asked anything.
const NOTHING_ASKED: &str = "nothing was asked in this session yet; put the question behind its id";
/// Most child runs of one `task` call.
pub(super) const FAN_OUT_MAX: i64 = 32;

#[derive(Debug, Args)]
pub(crate) struct AskArgs {
    /// The question; words need no quotes, and - reads it from standard input
    #[arg(required = true, value_name = "QUESTION")]
    question: Vec<String>,

    #[command(flatten)]
    call: CallArgs,

    #[command(flatten)]
    store: StoreArgs,

    /// Who answers: builtin:research quotes the workspace and needs no network; scripted:FILE replays turns;
    /// anthropic:NAME, openai:NAME and openai-chat:NAME@BASE_URL are asked over the network
    #[arg(long, value_name = "SPEC", default_value = RESEARCH_NAME)]
    model: String,

    /// The most child runs that one task call should start
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=FAN_OUT_MAX))]
    fan_out: u8,

    /// What may run without a question: a policy file (TOML, or JSON when it is named so)
    #[arg(long, value_name = "FILE", conflicts_with = "yes_to")]
    policy: Option<PathBuf>,

    /// What may run without a question, when there is no policy file
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = YesTo::ReadOnly)]
    yes_to: YesTo,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum YesTo {
    /// Every call is asked about
    Nothing,
    /// Reading, listing, searching, and child runs that do the same
    ReadOnly,
    /// Every call runs
    Everything,
}

impl YesTo {
    fn policy(self) -> Result<PermissionPolicy, AssemblyError> {
        let text = match self {
            Self::Nothing => "",
            Self::ReadOnly => r#"allow = ["read", "ls", "search", "task"]"#,
            Self::Everything => r#"default = "allow""#,
        };
        Ok(PermissionPolicy::from_toml(text, "the built-in policy")?)
    }
}

/// What `--json` prints.
#[derive(Serialize)]
struct Answer<'a> {
    #[serde(flatten)]
    outcome: &'a RunOutcome,
    elapsed_ms: u64,
}

/// Asks and prints the answer.
///
/// # Errors
/// [`CommandError`].
pub(crate) async fn ask(args: AskArgs, with: &Surroundings) -> Result<End, CommandError> {
    let question = question(&args.question)?;
    let policy = match &args.policy {
        Some(path) => load_policy(path)?,
        None => args.yes_to.policy()?,
    };
    let runs =
        RunLimits { timeout: args.call.timeout, fan_out: Some(usize::from(args.fan_out)), ..RunLimits::default() };
    let sandbox = args.call.sandbox.confinement().map_err(CommandError::Usage)?;
    let plan = Plan {
        events: args.call.events.as_deref(),
        artifacts: args.call.artifacts.to_keep(&with.environment).map_err(AssemblyError::from)?,
        projection: Some(load_projection(&args.call.projection).map_err(AssemblyError::from)?),
        policy: Some(policy),
        model: Some(with.model(&args.model)?),
        runs,
        containment: args.call.containment,
        writes: args.call.writes,
        may_ask: true,
        store: args.store.folder(&with.environment),
        sandbox,
        bucket: args.call.workspace.bucket,
        web: args.call.web,
        ..Plan::new(&args.call.workspace.workspace)
    };
    let is_kept = plan.store.is_some();
    let assembly = Assembly::open(plan, with).await?;
    let session = assembly.session.clone();
    if is_kept {
        with.screen.say(&format!("kept as {}", session.id()));
    }
    conclude(assembly, async { session.run(&question).await.map(Some) }, args.call.json, with).await
}

/// Attends to a run until it has ended, prints its answer, and says how it ended.
///
/// # Errors
/// [`CommandError`].
pub(super) async fn conclude(
    mut assembly: Assembly,
    run: impl Future<Output = Result<Option<RunOutcome>, SessionError>>,
    json: bool,
    with: &Surroundings,
) -> Result<End, CommandError> {
    let run = match assembly.attendant.attend(run).await {
        Ok(run) => run,
        Err(end) => return Ok(killed(end)),
    };
    let elapsed_ms = u64::try_from(assembly.attendant.elapsed().as_millis()).unwrap_or(u64::MAX);
    for task in assembly.session.pending_subagent_tasks() {
        with.screen.say(&format!("the task {} ({}) in the background ends here", task.task_id, task.description));
    }
    if let Err(end) = assembly.close().await {
        return Ok(killed(end));
    }
    assembly.attendant.tell_total();
    let outcome = match (run, assembly.attendant.stopped_by()) {
        (Ok(Some(outcome)), _) => outcome,
        (Ok(None), _) => return Err(CommandError::Usage(NOTHING_ASKED.to_owned())),
        // The signal came before the run began.
        (Err(SessionError::Closed), Some(signal)) => return Ok(End::Stopped(signal)),
        (Err(error), _) => return Err(error.into()),
    };
    if json {
        print(&serde_json::to_string(&Answer { outcome: &outcome, elapsed_ms })?)?;
    } else {
        print(&outcome.text)?;
    }
    if outcome.status.is_success() {
        return Ok(End::Done);
    }
    if let (RunStatus::Cancelled { reason: CancelReason::Requested | CancelReason::SessionClosed }, Some(signal)) =
        (&outcome.status, assembly.attendant.stopped_by())
    {
        with.screen.say(&format!("cancelled by {}; everything has ended", signal.name()));
        return Ok(End::Stopped(signal));
    }
    with.screen.complain(&format!("{}. {}", outcome.status, advice(&outcome.status)));
    Ok(End::Failed)
}

/// The question as one text.
pub(super) fn question(words: &[String]) -> Result<String, CommandError> {
    let text = match words {
        [word] if word == "-" => read_stdin("the question", QUESTION_BYTES_MAX)?,
        words => words.join(" "),
    };
    let text = text.trim();
    if text.is_empty() {
        return Err(CommandError::Usage("the question is empty; write what you want to know".to_owned()));
    }
    Ok(text.to_owned())
}

/// What a person can do about a run that came to no answer.
fn advice(status: &RunStatus) -> &'static str {
    match status {
        RunStatus::Completed => "",
        RunStatus::ToolRoundLimit { .. } => "Ask about one thing at a time",
        RunStatus::RepeatedCalls | RunStatus::MalformedCalls => "Put the question in other words, or use another model",
        RunStatus::Refused => "Put the question in other words",
        RunStatus::Cut => "Ask for less at a time",
        RunStatus::ContextFull => "Begin a new session, or use a model with a larger window",
        RunStatus::BudgetExhausted { .. } => "Give the session a larger budget",
        RunStatus::Cancelled { reason: CancelReason::Deadline { .. } } => "Give it more time with --timeout",
        RunStatus::Cancelled { .. } => "Ask again",
        RunStatus::ModelFailed { .. } => "See --model for who else can answer",
        RunStatus::Interrupted => "Ask again",
        RunStatus::StoreFailed { .. } => "Mend the store, then go on with `toolwarden resume`",
        RunStatus::Crashed => "This is a fault of toolwarden: please report it, with --log debug and --events FILE",
    }
}

#[cfg(test)]
mod tests {
    use toolwarden::policy::Decision;

    use super::{YesTo, question};

    #[test]
    fn words_make_a_question() {
        let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        assert_eq!(question(&owned(&["where", "is", "it?"])).unwrap(), "where is it?");
        for empty in [&[""][..], &[" ", "\n"]] {
            assert!(question(&owned(empty)).is_err());
        }
    }

    #[test]
    fn each_answer_to_yes_to_is_a_policy() {
        assert_eq!(YesTo::Nothing.policy().unwrap().default, Decision::Ask);
        assert_eq!(YesTo::Everything.policy().unwrap().default, Decision::Allow);
        let read_only = YesTo::ReadOnly.policy().unwrap();
        let allowed: Vec<&str> = read_only.allow.iter().map(|rule| rule.text()).collect();
        assert_eq!((allowed, read_only.default), (vec!["read", "ls", "search", "task"], Decision::Ask));
    }
}
