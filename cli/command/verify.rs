//! `verify`: runs commands that say whether work is done, and what they came to.

use std::path::{Path, PathBuf};

use clap::Args;
use toolwarden::session::SessionError;
use toolwarden::session::verify::VerifyError;
use toolwarden::verification::plan::{PlanError, VerificationPlan};
use toolwarden::verification::{VerificationReport, VerificationStatus};

use super::{CommandError, End, killed};
use crate::artifacts::load_projection;
use crate::assembly::{Assembly, AssemblyError, CallArgs, Plan, Surroundings};
use crate::input::{read_file, read_stdin};
use crate::terminal::print;

/// Largest file of commands, in bytes.
const PLAN_BYTES_MAX: u64 = 1024 * 1024;

#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 everything passed; 1 something failed, wants a look, or nothing was checked; 2 FILE \
                        has to be mended.\n\nFILE is TOML:\n  subject = \"the parser\"\n  [[check]]\n  id = \"test\"\n  \
                        kind = \"test\"\n  command = \"cargo test\"\n  required = true    # default false\n  timeout_ms = \
                        600000  # default 120000\n  expect_exit = 0    # default 0\nor JSON, when it is named so, with \
                        the list \"check\"."
)]
pub(crate) struct VerifyArgs {
    /// The commands; - reads JSON from standard input. Without it, what is usual for the project in the workspace: Rust,
    /// Node, Python, Go
    file: Option<PathBuf>,

    /// Print the commands and run nothing
    #[arg(long)]
    list: bool,

    #[command(flatten)]
    call: CallArgs,
}

/// Runs the commands and prints the report.
///
/// # Errors
/// [`CommandError`]. A check that fails is an end, not an error.
pub(crate) async fn verify(args: VerifyArgs, with: &Surroundings) -> Result<End, CommandError> {
    let given = args.file.as_deref().map(load).transpose()?;
    let sandbox = args.call.sandbox.confinement().map_err(CommandError::Usage)?;
    let plan = Plan {
        events: args.call.events.as_deref(),
        artifacts: args.call.artifacts.to_keep(&with.environment).map_err(AssemblyError::from)?,
        projection: Some(load_projection(&args.call.projection).map_err(AssemblyError::from)?),
        tool_timeout: args.call.timeout,
        containment: args.call.containment,
        writes: args.call.writes,
        sandbox,
        bucket: args.call.workspace.bucket.clone(),
        web: args.call.web.clone(),
        ..Plan::new(&args.call.workspace.workspace)
    };
    let mut assembly = Assembly::open(plan, with).await?;
    let session = assembly.session.clone();
    let verifying = async {
        let plan = match given {
            Some(plan) => plan,
            None => VerificationPlan { subject: String::new(), commands: session.verification_presets().await? },
        };
        if args.list || plan.commands.is_empty() {
            return Ok((plan, None));
        }
        let report = session.verify_commands(&plan.subject, &plan.commands).await?;
        Ok((plan, Some(report)))
    };
    let verified: Result<_, VerifyError> = match assembly.attendant.attend(verifying).await {
        Ok(verified) => verified,
        Err(end) => return Ok(killed(end)),
    };
    if let Err(end) = assembly.close().await {
        return Ok(killed(end));
    }
    let stopped = assembly.attendant.stopped_by();
    let (plan, report) = match (verified, stopped) {
        (Ok(verified), _) => verified,
        // The signal came before the next command began.
        (Err(VerifyError::Session(SessionError::Closed)), Some(signal)) => return Ok(End::Stopped(signal)),
        (Err(error), _) => return Err(error.into()),
    };
    let Some(report) = report else { return listed(&plan, &args, with) };
    print(&if args.call.json { serde_json::to_string(&report)? } else { as_table(&report) })?;
    if let Some(signal) = stopped {
        with.screen.say(&format!("cancelled by {}; everything has ended", signal.name()));
        return Ok(End::Stopped(signal));
    }
    if report.status == VerificationStatus::Passed {
        return Ok(End::Done);
    }
    with.screen.complain(&format!("the verification is {}", report.status.as_str()));
    Ok(End::Failed)
}

/// What was asked to be listed; a project without commands was not verified.
fn listed(plan: &VerificationPlan, args: &VerifyArgs, with: &Surroundings) -> Result<End, CommandError> {
    if plan.commands.is_empty() {
        with.screen.complain(
            "there is nothing to verify: no Rust, Node, Python or Go project in the workspace's root. Give a FILE of \
             commands (toolwarden verify --help shows one)",
        );
        return Ok(End::Failed);
    }
    if args.call.json {
        print(&serde_json::to_string(plan)?)?;
        return Ok(End::Done);
    }
    let lines = plan.commands.iter().map(|command| {
        let weight = if command.required { "required" } else { "optional" };
        format!("{:<16} {weight}  {}", command.id, command.command)
    });
    print(&lines.collect::<Vec<_>>().join("\n"))?;
    Ok(End::Done)
}

fn load(file: &Path) -> Result<VerificationPlan, CommandError> {
    let (name, text) = match file == Path::new("-") {
        true => ("standard input".to_owned(), read_stdin("the commands", PLAN_BYTES_MAX)?),
        false => (file.display().to_string(), read_file(file, "the commands", PLAN_BYTES_MAX)?),
    };
    let is_json = file == Path::new("-") || file.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("json"));
    let plan =
        if is_json { VerificationPlan::from_json(&text, &name) } else { VerificationPlan::from_toml(&text, &name) };
    plan.map_err(|error: PlanError| CommandError::Usage(error.to_string()))
}

fn as_table(report: &VerificationReport) -> String {
    let mut lines: Vec<String> = Vec::new();
    for check in &report.checks {
        let weight = if check.required { "required" } else { "optional" };
        lines.push(format!("{:<12} {weight}  {:<16} {}", check.status.as_str(), check.id, check.description));
        lines.extend(check.residual_risk.iter().map(|risk| format!("             {risk}")));
        lines.extend(check.evidence_uris.iter().map(|uri| format!("             its whole output: {uri}")));
    }
    lines.push(format!("{}{}", report.status.as_str(), subject(report)));
    lines.join("\n")
}

fn subject(report: &VerificationReport) -> String {
    if report.subject.is_empty() { String::new() } else { format!(": {}", report.subject) }
}
