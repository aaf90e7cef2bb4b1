//! Puts a runtime, a session and an attendant together from what the command line says.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use thiserror::Error;
use toolwarden::embedding::{BuildError, Runtime};
use toolwarden::models::Model;
use toolwarden::models::catalog::ModelCatalog;
use toolwarden::policy::{PermissionPolicy, PolicyError};
use toolwarden::resume::ResumeError;
use toolwarden::run::RunLimits;
use toolwarden::scope::Confirming;
use toolwarden::session::{Session, SessionError};
use toolwarden::settlement::projection_policy::ProjectionPolicy;
use toolwarden_tools::effects::blobs::folder::FolderBlobs;
use toolwarden_tools::effects::processes::Processes;
use toolwarden_tools::effects::processes::confinement::Confinement;
use toolwarden_tools::effects::processes::containment::Unavailable;
use toolwarden_tools::effects::store::StoreError;
use toolwarden_tools::effects::store::directory::{DirectoryStore, Durability};
use toolwarden_tools::ids::SessionId;
use toolwarden_tools::workspace::object_store::bucket::BucketError;

use crate::agents::load_agents;
use crate::allowance::AllowanceArgs;
use crate::artifacts::{ArtifactArgs, ArtifactsError};
use crate::attendant::{Attendance, Attendant, Killed};
use crate::bucket::BucketArgs;
use crate::confirm::Asker;
use crate::containment::HoldArgs;
use crate::environment::{Environment, SECRET_BYTES_MIN, STORE_VARIABLE};
use crate::events_file::{EventsFile, EventsFileError};
use crate::input::{InputError, read_file};
use crate::models::{ModelsError, load_catalog, load_model, settings_file};
use crate::sandbox::SandboxArgs;
use crate::stop_signal::StopSignals;
use crate::terminal::Screen;
use crate::web::{EnvironmentProxyError, WebArgs};

/// Largest policy file, in bytes.
const POLICY_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Longest time that can be asked for, in seconds: a week.
const TIMEOUT_S_MAX: f64 = 7.0 * 24.0 * 3600.0;

/// What every command that works in a workspace takes.
#[derive(Debug, Args)]
pub(crate) struct WorkspaceArgs {
    /// The folder to work in, or a bucket as s3://BUCKET/PREFIX; nothing outside of it is reached
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) workspace: PathBuf,

    #[command(flatten)]
    pub(crate) bucket: BucketArgs,
}

/// What every command that calls tools takes.
#[derive(Debug, Args)]
pub(crate) struct CallArgs {
    #[command(flatten)]
    pub(crate) workspace: WorkspaceArgs,

    /// The most time it may take, in seconds (0.5 is fine)
    #[arg(long, value_name = "SECONDS", value_parser = parse_timeout)]
    pub(crate) timeout: Option<Duration>,

    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,

    #[command(flatten)]
    pub(crate) web: WebArgs,

    /// Write every event to this file, one JSON object a line
    #[arg(long, value_name = "FILE")]
    pub(crate) events: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) artifacts: ArtifactArgs,

    /// How much of an output a model gets: conservative, context-efficient, or a policy in a JSON file
    #[arg(long, value_name = "PROFILE|FILE", default_value = "conservative")]
    pub(crate) projection: String,

    #[command(flatten)]
    pub(crate) containment: HoldArgs,

    #[command(flatten)]
    pub(crate) writes: AllowanceArgs,
}

pub(crate) fn parse_timeout(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| *seconds > 0.0 && *seconds <= TIMEOUT_S_MAX);
    let span = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    span.ok_or_else(|| format!("give seconds, more than 0 and at most {TIMEOUT_S_MAX}"))
}

/// Where sessions are kept.
#[derive(Debug, Args)]
pub(crate) struct StoreArgs {
    /// The folder that sessions are kept in; the variable TOOLWARDEN_STORE names one as well
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
}

impl StoreArgs {
    /// The folder, where one is named.
    pub(crate) fn folder<'a>(&'a self, environment: &'a Environment) -> Option<&'a Path> {
        self.store.as_deref().or_else(|| environment.store())
    }

    /// The folder.
    ///
    /// # Errors
    /// [`AssemblyError::NoStore`].
    pub(crate) fn named<'a>(&'a self, environment: &'a Environment) -> Result<&'a Path, AssemblyError> {
        self.folder(environment).ok_or(AssemblyError::NoStore)
    }
}

/// What this program works with, whatever it is told to do.
pub(crate) struct Surroundings {
    /// The person's screen.
    pub(crate) screen: Screen,
    /// The variables of this process.
    pub(crate) environment: Environment,
    /// The file of settings that the command line names.
    pub(crate) config: Option<PathBuf>,
    /// The folder of agents that the command line names.
    pub(crate) agents: Option<PathBuf>,
}

impl Surroundings {
    /// The settings and keys of models.
    ///
    /// # Errors
    /// [`AssemblyError::Models`].
    pub(crate) fn catalog(&self) -> Result<ModelCatalog, AssemblyError> {
        Ok(load_catalog(self.config.as_deref(), &self.environment)?)
    }

    /// The model that a name means.
    ///
    /// # Errors
    /// [`AssemblyError::Models`].
    pub(crate) fn model(&self, spec: &str) -> Result<Arc<dyn Model>, AssemblyError> {
        Ok(load_model(spec, &self.catalog()?)?)
    }
}

/// What a session is to be; what is left out of one that is opened again is inherited.
pub(crate) struct Plan<'a> {
    pub(crate) workspace: Option<&'a Path>,
    /// Where the store of a bucket is, if the workspace is one.
    pub(crate) bucket: BucketArgs,
    /// How tools reach the web.
    pub(crate) web: WebArgs,
    pub(crate) events: Option<&'a Path>,
    pub(crate) policy: Option<PermissionPolicy>,
    pub(crate) model: Option<Arc<dyn Model>>,
    pub(crate) runs: RunLimits,
    pub(crate) tool_timeout: Option<Duration>,
    pub(crate) artifacts: Option<FolderBlobs>,
    pub(crate) projection: Option<ProjectionPolicy>,
    /// What the kernel keeps commands from.
    pub(crate) sandbox: Confinement,
    /// How far commands are held, and what each may use.
    pub(crate) containment: HoldArgs,
    /// What tools may write beside the usual.
    pub(crate) writes: AllowanceArgs,
    /// Whether a person may be asked, where there is one.
    pub(crate) may_ask: bool,
    /// Where the session is kept, if it is.
    pub(crate) store: Option<&'a Path>,
    /// The session that is opened again.
    pub(crate) resumes: Option<Resumption>,
}

/// A session that is opened again.
pub(crate) struct Resumption {
    pub(crate) session: SessionId,
    /// Whether damage is put aside.
    pub(crate) accepts_damage: bool,
}

impl<'a> Plan<'a> {
    /// A session over this folder, with nothing said about the rest.
    pub(crate) fn new(workspace: &'a Path) -> Self {
        Self {
            workspace: Some(workspace),
            bucket: BucketArgs::default(),
            web: WebArgs::default(),
            events: None,
            policy: None,
            model: None,
            runs: RunLimits::default(),
            tool_timeout: None,
            artifacts: None,
            projection: None,
            sandbox: Confinement::default(),
            containment: HoldArgs::default(),
            writes: AllowanceArgs::default(),
            may_ask: false,
            store: None,
            resumes: None,
        }
    }
}

/// Why nothing could be put together.
#[derive(Debug, Error)]
pub(crate) enum AssemblyError {
    /// A file or standard input cannot be taken.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The artifacts, or how outputs are projected.
    #[error(transparent)]
    Artifacts(#[from] ArtifactsError),
    /// The policy's text is wrong.
    #[error("the policy cannot be used: {0}")]
    Policy(#[from] PolicyError),
    /// The model, or the settings of models.
    #[error(transparent)]
    Models(#[from] ModelsError),
    /// The events have nowhere to go.
    #[error(transparent)]
    Events(#[from] EventsFileError),
    /// The environment names a proxy that cannot be used.
    #[error(transparent)]
    Proxy(#[from] EnvironmentProxyError),
    /// Sessions are kept nowhere.
    #[error("no store is named; give --store DIR, or set {STORE_VARIABLE}")]
    NoStore,
    /// The store cannot be used.
    #[error("the store cannot be used: {0}")]
    Store(#[from] StoreError),
    /// The session cannot go on.
    #[error("{0}{hint}", hint = resume_hint(.0))]
    Resume(ResumeError),
    /// The folder, the policy's rules or the runtime.
    #[error("{0}")]
    Build(BuildError),
    /// The session's events cannot be read.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// Commands cannot be held as was asked for.
    #[error("containment level {level} is not available here: {reason}. Choose another; toolwarden doctor shows them")]
    Containment {
        /// What was asked for.
        level: &'static str,
        /// Why not.
        reason: Unavailable,
    },
    /// A bucket cannot be the workspace.
    #[error(transparent)]
    Bucket(#[from] BucketError),
    /// The system gives no signal handlers.
    #[error("cannot listen to Ctrl-C: {0}")]
    Signals(std::io::Error),
}

impl AssemblyError {
    /// Whether the command line can be mended to make it work.
    pub(crate) fn is_usage(&self) -> bool {
        match self {
            Self::Input(_)
            | Self::Policy(_)
            | Self::Artifacts(_)
            | Self::Models(_)
            | Self::Events(_)
            | Self::Containment { .. }
            | Self::Bucket(_)
            | Self::Proxy(_)
            | Self::NoStore => true,
            Self::Store(error) => matches!(error, StoreError::Newer { .. }),
            Self::Resume(error) => match error {
                ResumeError::Store(error) => matches!(
                    error,
                    StoreError::Unknown { .. }
                        | StoreError::Exists { .. }
                        | StoreError::Name { .. }
                        | StoreError::Damaged { .. }
                ),
                ResumeError::Setting { .. } | ResumeError::Missing { .. } => true,
                _ => false,
            },
            Self::Build(error) => {
                matches!(error, BuildError::Workspace(_) | BuildError::Policy(_) | BuildError::AgentFiles(_))
            }
            Self::Session(_) | Self::Signals(_) => false,
        }
    }
}

impl From<ResumeError> for AssemblyError {
    fn from(error: ResumeError) -> Self {
        Self::Resume(error)
    }
}

impl From<BuildError> for AssemblyError {
    fn from(error: BuildError) -> Self {
        match error {
            BuildError::Resume(error) => Self::Resume(error),
            other => Self::Build(other),
        }
    }
}

/// What the command line can do about a session that cannot go on.
fn resume_hint(error: &ResumeError) -> &'static str {
    match error {
        ResumeError::Store(StoreError::Damaged { .. }) => " (--accept-damage)",
        _ => "",
    }
}

/// A policy from a file: JSON when its name ends so, else TOML.
///
/// # Errors
/// [`AssemblyError::Input`] and [`AssemblyError::Policy`].
pub(crate) fn load_policy(path: &Path) -> Result<PermissionPolicy, AssemblyError> {
    let text = read_file(path, "the policy", POLICY_BYTES_MAX)?;
    let name = path.display().to_string();
    let is_json = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("json"));
    let policy =
        if is_json { PermissionPolicy::from_json(&text, &name) } else { PermissionPolicy::from_toml(&text, &name) };
    Ok(policy?)
}

/// A session with everything around it.
pub(crate) struct Assembly {
    pub(crate) runtime: Runtime,
    pub(crate) session: Session,
    pub(crate) attendant: Attendant,
}

impl Assembly {
    /// Starts a runtime and opens the session.
    ///
    /// # Errors
    /// [`AssemblyError`]; nothing runs then.
    pub(crate) async fn open(mut plan: Plan<'_>, with: &Surroundings) -> Result<Self, AssemblyError> {
        let signals = StopSignals::listen().map_err(AssemblyError::Signals)?;
        let limits = with.catalog()?.config().commands;
        let level = plan.containment.level(limits);
        let refused = |reason| AssemblyError::Containment { level, reason };
        // This program is its own shim: what leaves a command's group is found again.
        let processes = plan.containment.processes(limits).await.map_err(refused)?;
        let events_file = plan.events.map(EventsFile::create).transpose()?;
        let parts = Parts {
            store: plan.store,
            artifacts: plan.artifacts.take(),
            processes: Some(processes),
            web: std::mem::take(&mut plan.web),
        };
        let runtime = start_runtime(parts, events_file, with).await?;
        let opened = async {
            let (session, policy, asker) = open_session(plan, &runtime, with).await?;
            let events = session.events().await?;
            Ok((session, policy, asker, events))
        };
        let (session, policy, asker, events) = match opened.await {
            Ok(opened) => opened,
            Err(error) => {
                runtime.shut_down().await;
                return Err(error);
            }
        };
        warn_of_unknown_tools(&policy, &session, &with.screen);
        let attendance = Attendance { screen: with.screen.clone(), signals, events, asker };
        let attendant = Attendant::begin(runtime.clone(), session.clone(), attendance);
        Ok(Self { runtime, session, attendant })
    }

    /// Closes the session and shuts the runtime down.
    ///
    /// # Errors
    /// [`Killed`] when the person would not wait for it.
    pub(crate) async fn close(&mut self) -> Result<(), Killed> {
        let (runtime, session) = (self.runtime.clone(), self.session.clone());
        let closing = async move {
            session.close().await;
            runtime.shut_down().await;
        };
        self.attendant.attend(closing).await
    }
}

/// What a runtime stands on; what is left out it does without.
#[derive(Default)]
pub(crate) struct Parts<'a> {
    /// The folder that sessions are kept in.
    pub(crate) store: Option<&'a Path>,
    pub(crate) artifacts: Option<FolderBlobs>,
    pub(crate) processes: Option<Arc<dyn Processes>>,
    pub(crate) web: WebArgs,
}

/// A runtime on these parts.
///
/// # Errors
/// [`AssemblyError`]; nothing runs then.
pub(crate) async fn start_runtime(
    parts: Parts<'_>,
    events_file: Option<EventsFile>,
    with: &Surroundings,
) -> Result<Runtime, AssemblyError> {
    let catalog = with.catalog()?;
    let mut secrets = with.environment.secrets();
    secrets.extend(catalog.secrets().into_iter().filter(|secret| secret.len() >= SECRET_BYTES_MIN));
    let mut builder = Runtime::builder()
        .environment(with.environment.for_commands())
        .secrets(secrets)
        .model_retries(catalog.config().retries)
        .event_sink(move || events_file.as_ref().and_then(EventsFile::sink));
    builder = parts.web.apply(builder, &with.environment)?;
    if let Some(cache) = with.environment.cache_folder() {
        builder = builder.search_cache(cache);
    }
    if let Some(processes) = parts.processes {
        builder = builder.processes(processes);
    }
    if let Some(blobs) = parts.artifacts {
        builder = builder.artifact_blobs(Arc::new(blobs));
    }
    if let Some(folder) = parts.store {
        builder = builder.store(Arc::new(DirectoryStore::at(folder, Durability::Synced)?));
    }
    Ok(builder.build().await?)
}

/// Opens the session that is wanted, with the policy that it has and the way to the person, if there is one.
async fn open_session(
    plan: Plan<'_>,
    runtime: &Runtime,
    with: &Surroundings,
) -> Result<(Session, PermissionPolicy, Option<Asker>), AssemblyError> {
    let asker = if plan.may_ask && with.screen.is_terminal() { Asker::open() } else { None };
    let mut policy = plan.policy.clone();
    let mut model = plan.model;
    let mut builder = match (&plan.resumes, plan.workspace) {
        (Some(resumption), workspace) => {
            let kept = runtime.look_at(&resumption.session).await?.state.settings;
            let kept_at = kept.as_ref().map(|kept| PathBuf::from(&kept.workspace));
            let place = workspace.or(kept_at.as_deref().filter(|path| BucketArgs::is_bucket(path)));
            if let (None, Some(settings)) = (&model, &kept) {
                model = Some(with.model(&settings.model)?);
            }
            policy = policy.or(kept.map(|settings| settings.permission_policy));
            let builder = runtime.resume(resumption.session.clone());
            let builder = if resumption.accepts_damage { builder.accept_damage() } else { builder };
            match (place, workspace) {
                (Some(place), _) if BucketArgs::is_bucket(place) => {
                    builder.over(plan.bucket.open(place, &with.environment)?)
                }
                (_, Some(workspace)) => builder.folder(workspace),
                _ => builder,
            }
        }
        (None, Some(place)) if BucketArgs::is_bucket(place) => {
            runtime.session_over(plan.bucket.open(place, &with.environment)?)
        }
        (None, workspace) => runtime.session(workspace.unwrap_or_else(|| Path::new("."))),
    };
    let settings = settings_file(with.config.as_deref(), &with.environment);
    let catalog = with.catalog()?;
    let writes = plan.writes.allowance(catalog.config().writes);
    let agents = load_agents(with.agents.as_deref(), settings.as_deref(), catalog).map_err(BuildError::from)?;
    if let Some(folder) = agents.workspace_folder {
        builder = builder.workspace_agents(folder);
    }
    builder = builder
        .agent_files(agents.files)
        .agent_models(agents.models)
        .run_limits(plan.runs)
        .sandbox(plan.sandbox)
        .write_allowance(writes)
        // A person at a terminal sees the question and can end it; nobody else is waited for.
        .confirming(if asker.is_some() { Confirming::Park } else { Confirming::Unavailable });
    if let Some(policy) = plan.policy {
        builder = builder.policy(policy);
    }
    if let Some(projection) = plan.projection {
        builder = builder.projection(projection);
    }
    if let Some(model) = model {
        builder = builder.model(model);
    }
    if let Some(timeout) = plan.tool_timeout {
        builder = builder.tool_timeout(timeout);
    }
    Ok((builder.open().await?, policy.unwrap_or_default(), asker))
}

/// A rule about a tool that nobody has covers nothing, which is most likely not what was meant.
fn warn_of_unknown_tools(policy: &PermissionPolicy, session: &Session, screen: &Screen) {
    let names = session.tool_names();
    let known: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
    for unknown in policy.unknown_tools(&known) {
        screen.say(&format!("warning: {unknown}"));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::parse_timeout;

    #[test]
    fn only_spans_that_make_sense_are_taken() {
        assert_eq!(parse_timeout("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_timeout("30"), Ok(Duration::from_secs(30)));
        for bad in ["0", "-1", "nan", "inf", "1e99", "soon", ""] {
            assert!(parse_timeout(bad).is_err(), "{bad}");
        }
    }
}
