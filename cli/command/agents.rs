//! `agents`: who a task may be given to.

use clap::Args;
use serde::Serialize;
use toolwarden::agent::{Agent, AgentOrigin, AgentSteps};
use toolwarden::session::Session;

use super::{CommandError, End, look_at};
use crate::assembly::{Surroundings, WorkspaceArgs};

#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 they are listed, 2 an agent file is wrong: each fault is told with file and line."
)]
pub(crate) struct AgentsArgs {
    #[command(flatten)]
    workspace: WorkspaceArgs,

    /// Print one JSON array instead of a table
    #[arg(long)]
    json: bool,
}

/// An agent, as `--json` tells it.
#[derive(Serialize)]
struct Listed<'a> {
    name: &'a str,
    description: &'a str,
    /// Where it comes from: `built in`, or its file.
    origin: String,
    /// Whether that is a file of the workspace.
    of_workspace: bool,
    /// The tools it has; none for all of its session.
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<Vec<&'a str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a str>,
    /// Model rounds of a run.
    max_steps: u32,
    /// Whether more may be asked for.
    max_steps_is_limit: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u128>,
}

impl<'a> From<&'a Agent> for Listed<'a> {
    fn from(agent: &'a Agent) -> Self {
        let tools = agent.tools.as_ref();
        Self {
            name: &agent.name,
            description: &agent.purpose,
            origin: agent.origin.to_string(),
            of_workspace: matches!(agent.origin, AgentOrigin::Workspace(_)),
            tools: tools.map(|tools| tools.iter().map(|tool| tool.as_str()).collect()),
            model: agent.model.as_ref().map(|model| model.name()),
            max_steps: agent.steps.rounds(None),
            max_steps_is_limit: matches!(agent.steps, AgentSteps::AtMost(_)),
            timeout_ms: agent.timeout.map(|timeout| timeout.as_millis()),
        }
    }
}

impl Listed<'_> {
    fn lines(&self) -> String {
        let tools =
            self.tools.as_ref().map_or_else(|| "every tool of its session".to_owned(), |tools| tools.join(", "));
        let model = self.model.map(|model| format!("; {model}")).unwrap_or_default();
        format!("{}  ({})\n  {}\n  {tools}; {} rounds{model}", self.name, self.origin, self.description, self.max_steps)
    }
}

/// Lists the agents.
///
/// # Errors
/// [`CommandError`].
pub(crate) async fn list(args: AgentsArgs, with: &Surroundings) -> Result<End, CommandError> {
    let tell = |session: &Session| {
        let agents: Vec<Listed<'_>> = session.agents().map(Listed::from).collect();
        match args.json {
            true => serde_json::to_string(&agents),
            false => Ok(agents.iter().map(Listed::lines).collect::<Vec<_>>().join("\n")),
        }
    };
    look_at(args.workspace, with, tell).await
}
