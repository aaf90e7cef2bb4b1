//! Runs the git program so that nothing but git itself runs.
//!
//! What must stay true of every run:
//! - **No program that the repository names is run.** Its configuration, its hooks folder and its attributes are
//!   somebody else's data. Every key that names a program is overridden by the environment ([`FIXED`]) or on the command
//!   line (the fixed ones in [`OVERRIDES_OF_FILES`]; filter drivers, whose names are free, are looked up first and
//!   overridden by [`Git::without_filters`]), commands that change something included. Only a log goes without most of them: it
//!   prints commits by a format of its own and looks at no file, so none of those programs has a part in it.
//! - **Nothing reaches the network or waits for a person.** No transport is allowed, missing objects are not fetched,
//!   there is no terminal, editor or password program.
//! - **Only the workspace's own repository.** Folders above the workspace are not searched, a `core.worktree` that
//!   points elsewhere does not count, and a folder that merely looks like a bare repository is none.
//! - **The configuration of the user and the machine is not read**, but for three things that are the user's own
//!   words: who they are (for stashes), whom they trust (`safe.directory`), and their default ignore file.
//! - **Every run ends**: at its time-out or a cancel TERM comes first, so that git removes its locks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::json;
use tokio::time::{sleep, timeout};

use super::fault;
use super::intake::{Intake, Kept, Sink};
use super::parameter::Parameters;
use super::plain;
use crate::builtin::reach::{self, Step};
use crate::cancellation::{CancelReason, Cancellation};
use crate::context::ToolContext;
use crate::effects::files::Links;
use crate::effects::processes::confinement::{Confinement, told};
use crate::effects::processes::{CommandSpec, ContainmentLevel, ProcessEnd, ProcessStatus};
use crate::outcome::{ToolErrorKind, ToolOutcome};
use crate::workspace::Commands;
use crate::workspace_path::WorkspacePath;

/// How long one run of git may take, in milliseconds.
const TIMEOUT_MS: u64 = 120_000;
/// From TERM to KILL: git uses it to remove its locks.
const GRACE: Duration = Duration::from_secs(2);
/// How long output is still read after git has ended.
const DRAIN: Duration = Duration::from_millis(200);
/// How long a runner may take to report the end of a git that it was told to stop.
const SETTLE: Duration = Duration::from_secs(10);
/// Most filter drivers that are overridden one by one.
const FILTERS_MAX: usize = 64;
/// Variables that git gets from the host.
const PASSED: [&str; 3] = ["PATH", "HOME", "XDG_CONFIG_HOME"];
/// Where git is looked for when the host names no place.
const PATH_DEFAULT: &str = "/usr/local/bin:/usr/bin:/bin";

/// What every run gets in its environment.
const FIXED: [(&str, &str); 18] = [
    ("LC_ALL", "C"),
    ("TERM", "dumb"),
    ("PAGER", "cat"),
    ("GIT_PAGER", "cat"),
    ("GIT_EDITOR", ":"),
    ("GIT_SEQUENCE_EDITOR", ":"),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GIT_ASKPASS", ""),
    ("SSH_ASKPASS", ""),
    ("SSH_ASKPASS_REQUIRE", "never"),
    ("GIT_SSH_COMMAND", "ssh -o BatchMode=yes -o StrictHostKeyChecking=yes"),
    ("GIT_PROXY_COMMAND", ""),
    // An empty list: no transport at all.
    ("GIT_ALLOW_PROTOCOL", ""),
    ("GIT_NO_LAZY_FETCH", "1"),
    ("GIT_ATTR_NOSYSTEM", "1"),
    ("GIT_CONFIG_NOSYSTEM", "1"),
    ("GIT_CONFIG_SYSTEM", "/dev/null"),
    ("GIT_CONFIG_GLOBAL", "/dev/null"),
];

/// What every run gets over the repository's own configuration. Each setting costs git some microseconds, so what a
/// variable of [`FIXED`] decides, which goes before any configuration (pagers, editors, transports and their programs),
/// does not stand here once more.
const OVERRIDES: [&str; 1] = ["safe.bareRepository=explicit"];
/// What runs get besides that do more than print commits: first what could run a program or change something, then what
/// would change the form of the output. A log looks at no file, compares none, and says its own form in its arguments.
const OVERRIDES_OF_FILES: [&str; 21] = [
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.alternateRefsCommand=:",
    "credential.helper=",
    "diff.external=",
    "gpg.program=false",
    "gpg.ssh.program=false",
    "commit.gpgSign=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "submodule.recurse=false",
    "log.showSignature=false",
    "core.quotePath=false",
    "color.ui=false",
    "column.ui=never",
    "i18n.logOutputEncoding=UTF-8",
    "diff.renames=true",
    "diff.relative=false",
    "diff.colorMoved=no",
    "diff.wsErrorHighlight=none",
    "status.renames=true",
];
/// The command that prints commits alone.
const LOG: &str = "log";

/// Git in the workspace of one call.
#[derive(Clone)]
pub(super) struct Git<'a> {
    ctx: &'a ToolContext,
    commands: &'a Commands,
    environment: BTreeMap<String, String>,
    /// The folder it works in.
    folder: PathBuf,
    /// A folder of somebody else that the user trusts.
    trusted: Option<String>,
    op: &'static str,
    reads: bool,
    /// How the runs of this call were held.
    held: Arc<Mutex<Option<Held>>>,
}

/// How the runs of a call were held, all of them together.
struct Held {
    level: ContainmentLevel,
    survivors: BTreeSet<u32>,
    confinement: Option<Arc<Confinement>>,
}

/// A run that came to its own end.
#[derive(Debug)]
pub(super) struct Ran<T> {
    /// What it printed.
    pub(super) out: T,
    /// What it complained of.
    pub(super) complaint: String,
    /// Its exit code.
    pub(super) code: i32,
}

impl<'a> Git<'a> {
    /// Git for one call.
    ///
    /// # Errors
    /// The outcome of a workspace without git.
    pub(super) fn new(ctx: &'a ToolContext, host: &BTreeMap<String, String>, parameters: &Parameters) -> Step<Self> {
        let Some(commands) = ctx.workspace.git_commands() else {
            return Err(fault::unsupported("git cannot be used in this workspace; use its other tools"));
        };
        let mut environment: BTreeMap<String, String> =
            FIXED.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        for name in PASSED {
            if let Some(value) = host.get(name) {
                environment.insert(name.to_owned(), value.clone());
            }
        }
        environment.entry("PATH".to_owned()).or_insert_with(|| PATH_DEFAULT.to_owned());
        if commands.folder.to_str().is_none_or(|folder| folder.contains(':')) {
            return Err(fault::unsupported(
                "the workspace's own folder has a colon or bytes that are not UTF-8 in its path, and git could then \
                 not be kept from the folders above it; rename it or use bash",
            ));
        }
        let folder = commands.folder.clone();
        let held = Arc::default();
        let (op, reads) = (parameters.op(), parameters.is_read());
        Ok(Self { ctx, commands, environment, folder, trusted: None, op, reads, held })
    }

    /// The call's context.
    pub(super) fn ctx(&self) -> &'a ToolContext {
        self.ctx
    }

    /// The command as errors name it.
    pub(super) fn op(&self) -> &'static str {
        self.op
    }

    /// The workspace's folder on this machine.
    pub(super) fn root(&self) -> &'a Path {
        &self.commands.folder
    }

    /// The same git with one more variable.
    #[must_use]
    pub(super) fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.environment.insert(name.to_owned(), value.into());
        self
    }

    /// The same git in a folder beneath the workspace's.
    #[must_use]
    pub(super) fn within(mut self, path: &WorkspacePath) -> Self {
        self.folder = self.commands.folder.clone();
        if !path.is_root() {
            self.folder.push(path.as_path());
        }
        self
    }

    /// Runs git and wants it to succeed.
    ///
    /// # Errors
    /// The outcome that tells what git complained of.
    pub(super) async fn list(&self, arguments: &[&str]) -> Step<Kept> {
        self.wanted(self.run(arguments, Kept::default()).await?)
    }

    /// What a run printed, if it succeeded.
    ///
    /// # Errors
    /// The outcome that tells what git complained of.
    pub(super) fn wanted<T>(&self, ran: Ran<T>) -> Step<T> {
        if ran.code == 0 { Ok(ran.out) } else { Err(fault::of(self, ran.code, &ran.complaint)) }
    }

    /// Runs git to its own end, whatever its exit code is.
    ///
    /// # Errors
    /// The outcome of a git that could not be run, or not to its own end.
    pub(super) async fn run<T: Intake>(&self, arguments: &[&str], intake: T) -> Step<Ran<T>> {
        if let Some(reason) = self.ctx.cancel.reason() {
            return Err(reach::ended(self.op, reason));
        }
        let sink = Arc::new(Sink::of(intake));
        let end = self.attend(self.command(arguments), Arc::clone(&sink)).await?;
        let (out, complaint) = sink.finish();
        match (end.stopped, end.status) {
            (Some(reason), _) => Err(self.interrupted(&reason)),
            (None, ProcessStatus::Exited { code }) => Ok(Ran { out, complaint, code }),
            (None, ProcessStatus::Signalled { signal }) => {
                let text = format!("{}: git was ended by signal {signal}", self.op);
                Err(Box::new(self.with_locks(ToolOutcome::failure(text))))
            }
            (None, ProcessStatus::Unknown) => {
                Err(Box::new(ToolOutcome::failure(format!("{}: it is not known how git ended", self.op))))
            }
        }
    }

    /// Remembers how a run was held.
    fn noted(&self, end: ProcessEnd) -> ProcessEnd {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let (level, confinement) = (end.level, end.confinement.clone());
        let held = held.get_or_insert_with(|| Held { level, survivors: BTreeSet::new(), confinement });
        // The weakest of them is what the result can promise.
        held.level = held.level.min(end.level);
        held.survivors.extend(&end.survivors);
        end
    }

    /// An outcome of this call that says how its runs were held.
    pub(super) fn telling(&self, mut outcome: ToolOutcome) -> ToolOutcome {
        if let Some(held) = &*self.held.lock().unwrap_or_else(PoisonError::into_inner) {
            let containment = json!({"level": held.level.as_str(), "survivors": held.survivors});
            outcome.metadata.insert("containment".into(), containment);
            outcome.metadata.insert("sandbox".into(), told(held.confinement.as_deref()));
        }
        outcome
    }

    /// Waits for the end of a run; stops it at its time-out and when the call is cancelled.
    async fn attend<T: Intake>(&self, spec: CommandSpec, sink: Arc<Sink<T>>) -> Step<ProcessEnd> {
        let stop = Cancellation::new();
        let mut running = self.commands.processes.run(spec, sink, stop.clone());
        let mut deadline = pin!(sleep(Duration::from_millis(TIMEOUT_MS)));
        let reason = tokio::select! { biased;
            end = &mut running => return end.map(|end| self.noted(end)).map_err(|error| fault::of_start(self.op, &error)),
            reason = self.ctx.cancel.cancelled() => reason,
            () = deadline.as_mut() => CancelReason::Deadline { timeout_ms: TIMEOUT_MS },
        };
        stop.cancel(reason.clone());
        match timeout(GRACE + SETTLE, running).await {
            Ok(Ok(end)) => Ok(self.noted(end)),
            // What it would have complained of matters less than why it was stopped.
            Ok(Err(_)) | Err(_) => Err(self.interrupted(&reason)),
        }
    }

    fn command(&self, arguments: &[&str]) -> CommandSpec {
        let mut all: Vec<String> = vec!["--no-pager".into()];
        if self.reads {
            all.push("--no-optional-locks".into());
        }
        let trusted = self.trusted.as_ref().map(|folder| format!("safe.directory={folder}"));
        let of_files = OVERRIDES_OF_FILES.iter().filter(|_| arguments.first() != Some(&LOG));
        let settings = OVERRIDES.iter().chain(of_files).map(|setting| (*setting).to_owned());
        for setting in settings.chain(trusted) {
            all.extend(["-c".to_owned(), setting]);
        }
        all.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        let mut environment = self.environment.clone();
        if let Some(folder) = self.folder.to_str() {
            environment.insert("GIT_WORK_TREE".into(), folder.into());
        }
        // Git never looks above this folder.
        if let Some(above) = self.folder.parent().and_then(Path::to_str) {
            environment.insert("GIT_CEILING_DIRECTORIES".into(), above.into());
        }
        CommandSpec {
            program: "git".into(),
            arguments: all,
            environment,
            folder: self.folder.clone(),
            stdin: None,
            grace: GRACE,
            drain: DRAIN,
            confinement: None,
        }
    }

    /// Whether HEAD is a branch without any commit.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub(super) async fn is_unborn(&self) -> Step<bool> {
        let head = self.run(&["rev-parse", "--verify", "--quiet", "HEAD"], Kept::default()).await?;
        Ok(head.code == 1)
    }

    /// The same git with every filter program of the repository's configuration switched off.
    ///
    /// # Errors
    /// As [`Self::run`], and the outcome for more or odder drivers than can be switched off.
    pub(super) async fn without_filters(&self) -> Step<Git<'a>> {
        if self.folder == self.commands.folder && plain::names_no_filter(self) {
            return Ok(self.clone());
        }
        let keys = ["config", "-z", "--name-only", "--get-regexp", "^filter\\."];
        let ran = self.run(&keys, Kept::default()).await?;
        // Exit code 1: there are none.
        let found = if ran.code == 1 { Kept::default() } else { self.wanted(ran)? };
        let mut settings = BTreeMap::new();
        for key in found.fields() {
            let Some(key) = std::str::from_utf8(key).ok().filter(|_| found.is_whole()) else {
                return Err(fault::unsupported(
                    "the repository configures filters with names that cannot be switched \
                    off one by one; use bash",
                ));
            };
            match key.rsplit('.').next() {
                Some("clean" | "smudge" | "process") => settings.insert(key.to_owned(), ""),
                Some("required") => settings.insert(key.to_owned(), "false"),
                _ => None,
            };
        }
        if settings.len() > 4 * FILTERS_MAX {
            return Err(fault::unsupported(&format!(
                "the repository configures more than {FILTERS_MAX} filters; use bash"
            )));
        }
        let mut git = self.clone().with("GIT_CONFIG_COUNT", settings.len().to_string());
        // Not on the command line: there a name with an equals sign in it would be cut.
        for (at, (key, value)) in settings.into_iter().enumerate() {
            git = git.with(&format!("GIT_CONFIG_KEY_{at}"), key).with(&format!("GIT_CONFIG_VALUE_{at}"), value);
        }
        Ok(git)
    }

    /// Refuses to write files that a filter program should have a hand in: without it git would write or store
    /// something else than the repository's owner means (pointers of large files, clear text of secret ones).
    ///
    /// # Errors
    /// The outcome that names the first such file.
    pub(super) async fn refuse_filtered(&self) -> Step<()> {
        let found = self.list(&["ls-files", "-z", "--", ".", ":(exclude,attr:!filter)"]).await?;
        let Some(first) = found.fields().next().map(super::listing::path_of) else { return Ok(()) };
        Err(fault::unsupported(&format!(
            "{}: {first} has a content filter in its attributes, and this tool runs no filter programs; use bash",
            self.op
        )))
    }

    /// The same git, trusting the folder that an outcome says belongs to somebody else, when the user's or the
    /// machine's own configuration trusts it.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub(super) async fn trusting(&self, ended: &ToolOutcome) -> Step<Option<Git<'a>>> {
        let folder = ended.metadata.get(fault::UNTRUSTED_FOLDER).and_then(serde_json::Value::as_str);
        let (Some(folder), None) = (folder, &self.trusted) else { return Ok(None) };
        let user = self.with_user_configuration();
        for scope in ["--system", "--global"] {
            let wanted = ["config", "-z", scope, "--includes", "--type=path", "--get-all", "safe.directory"];
            let ran = user.run(&wanted, Kept::default()).await?;
            let trusts = |entry: &[u8]| {
                let beneath = entry.strip_suffix(b"/*").and_then(|above| folder.as_bytes().strip_prefix(above));
                entry == b"*" || entry == folder.as_bytes() || beneath.is_some_and(|rest| rest.starts_with(b"/"))
            };
            if ran.code == 0 && ran.out.fields().any(trusts) {
                return Ok(Some(Git { trusted: Some(folder.to_owned()), ..self.clone() }));
            }
        }
        Ok(None)
    }

    /// The same git, reading the configuration of the user and the machine too: for asking, never for doing.
    pub(super) fn with_user_configuration(&self) -> Git<'a> {
        let mut git = self.clone();
        for name in ["GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM"] {
            git.environment.remove(name);
        }
        git
    }

    fn interrupted(&self, reason: &CancelReason) -> Box<ToolOutcome> {
        Box::new(self.with_locks(ToolOutcome::ended_early(self.op, reason)))
    }

    /// The outcome of a change that was cut off, with the lock that it may have left named.
    fn with_locks(&self, outcome: ToolOutcome) -> ToolOutcome {
        let lock = WorkspacePath::from_relative(Path::new(".git/index.lock"));
        if self.reads || self.ctx.workspace.files().stat(&lock, Links::Stay).is_err() {
            return outcome;
        }
        let output = format!(
            "{}\n{lock} is there: when no other git is at work here, it was left behind and can be removed",
            outcome.output
        );
        ToolOutcome { output, ..outcome }.with("lock", lock.to_string())
    }
}

/// A failure that asking again later can mend.
pub(super) fn busy(op: &str, text: String) -> ToolOutcome {
    ToolOutcome::error(ToolErrorKind::Transport { op: op.to_owned() }, text)
}
