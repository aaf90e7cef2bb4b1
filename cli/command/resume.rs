//! `resume`: goes on with a session that is kept. A run that was cut off is finished; more that is said goes into it,
//! or is asked when nothing was under way.

use std::path::PathBuf;

use clap::Args;
use toolwarden::resume::Recovery;
use toolwarden::run::RunLimits;

use super::ask::{FAN_OUT_MAX, conclude, question};
use super::{CommandError, End};
use crate::allowance::AllowanceArgs;
use crate::artifacts::ArtifactArgs;
use crate::assembly::{Assembly, AssemblyError, Plan, Resumption, StoreArgs, Surroundings, load_policy, parse_timeout};
use crate::bucket::BucketArgs;
use crate::containment::HoldArgs;
use crate::sandbox::SandboxArgs;
use crate::terminal::Screen;
use crate::web::WebArgs;

#[derive(Debug, Args)]
#[command(after_help = "Exit codes: 0 the run came to an answer (also when it had come to one before), 1 it did not, \
                        or the session is open elsewhere, 2 there is no such session, a setting differs from what \
                        the session was opened with, or its log is damaged.")]
pub(crate) struct ResumeArgs {
    /// The session, as `sessions` lists it
    #[arg(value_name = "ID")]
    session: String,

    /// What more there is to say; words need no quotes, and - reads it from standard input
    #[arg(value_name = "MORE")]
    more: Vec<String>,

    #[command(flatten)]
    store: StoreArgs,

    /// The folder or bucket that the session works in; refused when it is another one
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,

    #[command(flatten)]
    bucket: BucketArgs,

    #[command(flatten)]
    web: WebArgs,

    /// The most time the run may take from now on, in seconds (0.5 is fine)
    #[arg(long, value_name = "SECONDS", value_parser = parse_timeout)]
    timeout: Option<std::time::Duration>,

    /// The most child runs that one task call should start from now on; as many as before, when not said
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=FAN_OUT_MAX))]
    fan_out: Option<u8>,

    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,

    /// Write every event to this file, one JSON object a line
    #[arg(long, value_name = "FILE")]
    events: Option<PathBuf>,

    /// Who answers from now on; who answered before, when not said
    #[arg(long, value_name = "SPEC")]
    model: Option<String>,

    /// What may run without a question from now on: a policy file; what was allowed before, when not said
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,

    #[command(flatten)]
    containment: HoldArgs,

    #[command(flatten)]
    writes: AllowanceArgs,

    #[command(flatten)]
    sandbox: SandboxArgs,

    #[command(flatten)]
    artifacts: ArtifactArgs,

    /// Put a damaged part of the log aside and go on with what stands before it
    #[arg(long)]
    accept_damage: bool,
}

/// Goes on and prints the answer.
///
/// # Errors
/// [`CommandError`].
pub(crate) async fn resume(args: ResumeArgs, with: &Surroundings) -> Result<End, CommandError> {
    let more = if args.more.is_empty() { None } else { Some(question(&args.more)?) };
    let session = args.session.as_str().into();
    let plan = Plan {
        workspace: args.workspace.as_deref(),
        bucket: args.bucket,
        web: args.web,
        events: args.events.as_deref(),
        policy: args.policy.as_deref().map(load_policy).transpose()?,
        model: args.model.as_deref().map(|model| with.model(model)).transpose()?,
        runs: RunLimits { timeout: args.timeout, fan_out: args.fan_out.map(usize::from), ..RunLimits::default() },
        tool_timeout: None,
        artifacts: args.artifacts.to_keep(&with.environment).map_err(AssemblyError::from)?,
        projection: None,
        sandbox: args.sandbox.confinement().map_err(CommandError::Usage)?,
        containment: args.containment,
        writes: args.writes,
        may_ask: true,
        store: Some(args.store.named(&with.environment)?),
        resumes: Some(Resumption { session, accepts_damage: args.accept_damage }),
    };
    let assembly = Assembly::open(plan, with).await?;
    let session = assembly.session.clone();
    tell(session.recovery(), &with.screen);
    let going_on = async {
        match more {
            Some(more) if session.run_under_way().is_none() => session.run(&more).await.map(Some),
            Some(more) => {
                session.steer(&more).await?;
                session.go_on().await
            }
            None => session.go_on().await,
        }
    };
    conclude(assembly, going_on, args.json, with).await
}

/// Says what had to be put right, if anything.
fn tell(recovery: &Recovery, screen: &Screen) {
    if recovery.torn_bytes > 0 {
        screen.say(&format!("the last {} bytes of the log were cut while they were written", recovery.torn_bytes));
    }
    if let Some(fault) = &recovery.snapshot_fault {
        screen.say(&format!("{fault}; everything was read from the log"));
    }
    if let Some(damage) = &recovery.damage {
        let place = damage.quarantined_at.as_deref().unwrap_or("nowhere");
        screen.say(&format!("{} damaged bytes of the log are put aside in {place}", damage.bytes));
    }
    if !recovery.interrupted_calls.is_empty() || recovery.interrupted_children > 0 {
        let (calls, children) = (recovery.interrupted_calls.len(), recovery.interrupted_children);
        screen.say(&format!("interrupted and not run again: calls {calls}, child runs {children}"));
    }
}
