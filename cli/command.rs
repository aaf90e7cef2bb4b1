//! The commands, one a file, and what they have in common: how they end.
//!
//! Exit codes: 0 it did what it was asked, 1 it did not, 2 the command line has to be mended, 128 and the signal's
//! number (130 for Ctrl-C) when it was told to end before it was done.

pub(crate) mod agents;
pub(crate) mod artifact;
pub(crate) mod ask;
pub(crate) mod call;
pub(crate) mod doctor;
pub(crate) mod eval;
pub(crate) mod fork;
pub(crate) mod models;
pub(crate) mod program;
pub(crate) mod resume;
pub(crate) mod sessions;
pub(crate) mod sim;
pub(crate) mod tools;
pub(crate) mod verify;
pub(crate) mod verify_evidence;

use std::process::ExitCode;

use clap::Subcommand;
use thiserror::Error;
use toolwarden::evaluation::EvaluationError;
use toolwarden::session::verify::VerifyError;
use toolwarden::session::{Session, SessionError};
use toolwarden::settlement::proof::ProofError;
use toolwarden_tools::effects::blobs::BlobError;

use crate::artifacts::ArtifactsError;
use crate::assembly::{Assembly, AssemblyError, Plan, Surroundings, WorkspaceArgs};
use crate::attendant::Killed;
use crate::input::InputError;
use crate::stop_signal::StopSignal;
use crate::terminal::{OutputError, print};

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Answer a question about the workspace, with sources
    Ask(ask::AskArgs),
    /// Call one tool and print what it gives
    Call(call::CallToolArgs),
    /// Run a script that calls tools
    Program(program::ProgramArgs),
    /// List the tools
    Tools(tools::ToolsArgs),
    /// List the agents that tasks may be given to
    Agents(agents::AgentsArgs),
    /// Read the whole of outputs that were shown in part
    Artifact(artifact::ArtifactCommandArgs),
    /// Run commands that say whether work is done
    Verify(verify::VerifyArgs),
    /// Check what a result says about itself
    VerifyEvidence(verify_evidence::VerifyEvidenceArgs),
    /// Show what this machine lets toolwarden do, and why not more
    Doctor(doctor::DoctorArgs),
    /// Check that a model answers, and what it can do
    Models(models::ModelsArgs),
    /// Run a fixed set of tasks against a model and say what it came to
    Eval(eval::EvalArgs),
    /// List the sessions that are kept
    Sessions(sessions::SessionsArgs),
    /// Go on with a session: finish what was under way, or ask more
    Resume(resume::ResumeArgs),
    /// Make a new session that goes on from where another one stands
    Fork(fork::ForkArgs),
    /// Search simulated worlds for broken promises; replay, draw and shrink single runs
    Sim(sim::SimArgs),
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// It did what it was asked.
    Done,
    /// It did not; why has been told.
    Failed,
    /// It was told to end before it was done.
    Stopped(StopSignal),
}

/// Why a command could not do what it was asked.
#[derive(Debug, Error)]
pub(crate) enum CommandError {
    /// Something that was handed over cannot be taken.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The command line asks for what makes no sense.
    #[error("{0}")]
    Usage(String),
    /// The runtime or the session did not come up.
    #[error(transparent)]
    Assembly(#[from] AssemblyError),
    /// The artifacts cannot be used.
    #[error(transparent)]
    Artifacts(#[from] ArtifactsError),
    /// An artifact cannot be read.
    #[error("the artifact cannot be read: {0}")]
    Blob(BlobError),
    /// Evidence cannot be checked.
    #[error(transparent)]
    Proof(#[from] ProofError),
    /// The session did not take the work.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The session could not verify.
    #[error(transparent)]
    Verify(#[from] VerifyError),
    /// An evaluation could not go on.
    #[error(transparent)]
    Evaluation(#[from] EvaluationError),
    /// A result cannot be written as JSON.
    #[error("the result cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// Standard output cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
}

impl CommandError {
    fn is_usage(&self) -> bool {
        match self {
            Self::Input(_) | Self::Usage(_) | Self::Artifacts(_) => true,
            Self::Proof(error) => !matches!(error, ProofError::Lost | ProofError::NotText | ProofError::Io(_)),
            Self::Assembly(error) => error.is_usage(),
            Self::Verify(error) => matches!(error, VerifyError::Plan(_)),
            Self::Blob(_) | Self::Session(_) | Self::Evaluation(_) | Self::Json(_) | Self::Output(_) => false,
        }
    }
}

/// Carries a command out and says on standard error why it failed.
pub(crate) async fn carry_out(command: Command, with: &Surroundings) -> ExitCode {
    let ended = match command {
        Command::Ask(args) => ask::ask(args, with).await,
        Command::Call(args) => call::call(args, with).await,
        Command::Program(args) => program::program(args, with).await,
        Command::Tools(args) => tools::list(args, with).await,
        Command::Agents(args) => agents::list(args, with).await,
        Command::Artifact(args) => artifact::artifact(args, with),
        Command::Verify(args) => verify::verify(args, with).await,
        Command::VerifyEvidence(args) => verify_evidence::verify_evidence(&args, with),
        Command::Doctor(args) => doctor::examine(args, with).await,
        Command::Models(args) => models::models(args, with).await,
        Command::Eval(args) => eval::eval(args, with).await,
        Command::Sessions(args) => sessions::list(args, with).await,
        Command::Resume(args) => resume::resume(args, with).await,
        Command::Fork(args) => fork::fork(args, with).await,
        Command::Sim(args) => sim::sim(args, with).await,
    };
    match ended {
        Ok(End::Done) => ExitCode::SUCCESS,
        Ok(End::Failed) => ExitCode::from(1),
        Ok(End::Stopped(signal)) => ExitCode::from(signal.exit_code()),
        Err(error) => {
            with.screen.complain(&error.to_string());
            ExitCode::from(if error.is_usage() { 2 } else { 1 })
        }
    }
}

/// Opens a session over the workspace to look at it, and prints what is told of it.
async fn look_at(
    args: WorkspaceArgs,
    with: &Surroundings,
    tell: impl FnOnce(&Session) -> serde_json::Result<String>,
) -> Result<End, CommandError> {
    let plan = Plan { bucket: args.bucket, ..Plan::new(&args.workspace) };
    let mut assembly = Assembly::open(plan, with).await?;
    let session = assembly.session.clone();
    if let Err(end) = assembly.close().await {
        return Ok(killed(end));
    }
    print(&tell(&session)?)?;
    Ok(End::Done)
}

/// The end of work that was killed: only Ctrl-C kills.
fn killed(_: Killed) -> End {
    End::Stopped(StopSignal::Interrupt)
}
