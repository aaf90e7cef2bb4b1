//! `sessions`: what is kept in the store, and how each session stands.

use clap::Args;
use serde::Serialize;
use toolwarden::resume::{Found, ResumeError};
use toolwarden_tools::ids::SessionId;

use super::{CommandError, End};
use crate::assembly::{Parts, StoreArgs, Surroundings, start_runtime};
use crate::terminal::print;

/// Longest beginning of a question that is shown, in characters.
const PROMPT_CHARS_MAX: usize = 60;

#[derive(Debug, Args)]
#[command(after_help = "Exit codes: 0 they are listed, also when there is none or one cannot be read, 1 the store \
                        cannot be read, 2 no store is named.")]
pub(crate) struct SessionsArgs {
    #[command(flatten)]
    store: StoreArgs,

    /// Print one JSON array instead of a table
    #[arg(long)]
    json: bool,
}

/// A session, as `--json` tells it.
#[derive(Serialize)]
struct Listed {
    session: SessionId,
    /// How its last run ended; `interrupted` while one waits to be gone on with or is carried elsewhere, `new` before
    /// the first, `damaged` or `unreadable` when it cannot be told.
    status: String,
    runs: u64,
    facts: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    workspace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<SessionId>,
    /// What was asked last.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt: Option<String>,
    /// Why it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<String>,
}

impl Listed {
    fn new(session: SessionId, found: Result<Found, ResumeError>) -> Self {
        let blank = Self {
            session,
            status: "unreadable".to_owned(),
            runs: 0,
            facts: 0,
            workspace: None,
            model: None,
            parent: None,
            prompt: None,
            fault: None,
        };
        let found = match found {
            Ok(found) => found,
            Err(error) => return Self { fault: Some(error.to_string()), ..blank },
        };
        let state = found.state;
        let status = match (&found.recovery.damage, &state.run, &state.last) {
            (Some(_), _, _) => "damaged",
            (None, Some(_), _) => "interrupted",
            (None, None, Some(last)) => last.status.as_str(),
            (None, None, None) => "new",
        };
        let asked = state.messages.iter().rev().find_map(|message| match message {
            toolwarden::models::Message::User { text } => Some(text.clone()),
            _ => None,
        });
        Self {
            status: status.to_owned(),
            runs: state.runs,
            facts: state.position,
            workspace: state.settings.as_ref().map(|settings| settings.workspace.clone()),
            model: state.settings.as_ref().map(|settings| settings.model.clone()),
            parent: state.settings.and_then(|settings| settings.parent),
            prompt: asked,
            fault: found.recovery.damage.map(|damage| damage.reason.to_owned()),
            ..blank
        }
    }

    fn line(&self) -> String {
        let shown = self.fault.as_deref().or(self.prompt.as_deref()).unwrap_or_default();
        let first = shown.lines().next().unwrap_or_default();
        let short: String = first.chars().filter(|c| !c.is_control()).take(PROMPT_CHARS_MAX).collect();
        format!("{}  {:<16}  {:>5}  {short}", self.session, self.status, self.runs).trim_end().to_owned()
    }
}

/// Lists the sessions.
///
/// # Errors
/// [`CommandError`].
pub(crate) async fn list(args: SessionsArgs, with: &Surroundings) -> Result<End, CommandError> {
    let parts = Parts { store: Some(args.store.named(&with.environment)?), ..Parts::default() };
    let runtime = start_runtime(parts, None, with).await?;
    let mut listed = Vec::new();
    let sessions = runtime.kept_sessions().await;
    for session in sessions.iter().flatten() {
        listed.push(Listed::new(session.clone(), runtime.look_at(session).await));
    }
    runtime.shut_down().await;
    sessions.map_err(crate::assembly::AssemblyError::from)?;
    match args.json {
        true => print(&serde_json::to_string(&listed)?)?,
        false if listed.is_empty() => with.screen.say("no session is kept here yet"),
        false => print(&listed.iter().map(Listed::line).collect::<Vec<_>>().join("\n"))?,
    }
    Ok(End::Done)
}
