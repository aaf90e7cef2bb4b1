//! Agents: who a run works as. An agent decides the instructions, the tools and the bounds of its run; it never
//! widens what its parent may do.
//!
//! Three are built in; a host adds others out of Markdown files ([`mod@file`]). What must stay true: a name means one agent,
//! and whoever reads the list of a session sees all of them.

pub mod file;
mod front_matter;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use toolwarden_actors::budget::BudgetLimits;
use toolwarden_tools::ids::ToolName;
use toolwarden_tools::registry::Registry;

use self::file::{AgentFault, AgentFile, AgentFilesError, ModelNames};
use crate::models::Model;
use crate::policy::compiled::CompiledPolicy;

/// Most agents of a session.
pub const AGENTS_MAX: usize = 512;

/// An agent.
#[derive(Clone)]
pub struct Agent {
    /// Its name.
    pub name: String,
    /// What it is for, in a sentence.
    pub purpose: String,
    /// Its instructions.
    pub instructions: String,
    /// The tools it has; none means every tool of its session.
    pub tools: Option<Vec<ToolName>>,
    /// What it is allowed, beside what its parent is.
    pub policy: Option<Arc<CompiledPolicy>>,
    /// The most model rounds with tools that a run of it takes.
    pub steps: AgentSteps,
    /// Time for a whole run of it; none when only its caller's limits hold.
    pub timeout: Option<Duration>,
    /// What a run of it may use, out of what its caller may.
    pub budget: BudgetLimits,
    /// Who answers; none for the model of its session.
    pub model: Option<Arc<dyn Model>>,
    /// Where it comes from.
    pub origin: AgentOrigin,
}

/// Where an agent comes from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum AgentOrigin {
    /// It is built in.
    #[default]
    BuiltIn,
    /// A file of the host's own.
    Host(String),
    /// A file of the workspace.
    Workspace(String),
}

impl std::fmt::Display for AgentOrigin {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::BuiltIn => out.write_str("built in"),
            Self::Host(file) => out.write_str(file),
            Self::Workspace(file) => write!(out, "{file} (workspace)"),
        }
    }
}

/// How many model rounds with tools a run takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentSteps {
    /// So many, when nobody says otherwise.
    Usual(u32),
    /// No more than these, whatever is asked for.
    AtMost(u32),
}

impl Default for AgentSteps {
    fn default() -> Self {
        Self::Usual(50)
    }
}

impl AgentSteps {
    /// The rounds of a run for which so many were asked.
    pub fn rounds(self, asked: Option<u32>) -> u32 {
        match self {
            Self::Usual(usual) => asked.unwrap_or(usual),
            Self::AtMost(most) => asked.map_or(most, |asked| asked.min(most)),
        }
    }
}

impl Agent {
    /// The part of a registry that this agent has.
    pub fn tools_of(&self, registry: &Registry) -> Registry {
        match &self.tools {
            None => registry.clone(),
            Some(tools) => registry.filtered(|name| tools.contains(name)),
        }
    }
}

/// Agents by name; clones share them.
#[derive(Clone)]
pub struct Agents {
    sorted: Arc<[Arc<Agent>]>,
}

/// Made once: every session has them.
static BUILTIN: LazyLock<Agents> = LazyLock::new(Agents::make_builtin);

impl Agents {
    /// The built-in agents.
    pub fn builtin() -> Self {
        BUILTIN.clone()
    }

    fn make_builtin() -> Self {
        let read_only = || Some(["read", "ls", "search"].map(ToolName::from).to_vec());
        let explore = Agent {
            name: "explore".to_owned(),
            purpose: "finds and reads what the workspace says about one question; changes nothing".to_owned(),
            instructions: "Find the passages of the workspace that answer the question. Search, then read the best \
                           places. Answer with the passages and where each stands. Change nothing."
                .to_owned(),
            tools: read_only(),
            policy: None,
            steps: AgentSteps::Usual(12),
            timeout: None,
            budget: BudgetLimits::default(),
            model: None,
            origin: AgentOrigin::BuiltIn,
        };
        let general = Agent {
            name: "general".to_owned(),
            purpose: "works on a task of any kind with every tool of its session".to_owned(),
            instructions: "Work on the task with the tools you have. Name the source of every statement as \
                           path:line. Say what you did not find or could not do."
                .to_owned(),
            tools: None,
            policy: None,
            steps: AgentSteps::Usual(50),
            timeout: None,
            budget: BudgetLimits::default(),
            model: None,
            origin: AgentOrigin::BuiltIn,
        };
        let verification = Agent {
            name: "verification".to_owned(),
            purpose: "checks a claim or a change by reading and running; changes no files".to_owned(),
            instructions: "Check what you are told. Read the files, run the checks that decide it, and report what \
                           you saw, not what you expect. Change nothing."
                .to_owned(),
            tools: Some(["read", "ls", "search", "bash", "process"].map(ToolName::from).to_vec()),
            policy: None,
            steps: AgentSteps::Usual(30),
            timeout: None,
            budget: BudgetLimits::default(),
            model: None,
            origin: AgentOrigin::BuiltIn,
        };
        Self { sorted: [explore, general, verification].map(Arc::new).into() }
    }

    /// These agents and those of the files. `tools` are the tools that a file may name, `models` who answers under
    /// which name.
    ///
    /// # Errors
    /// Every fault of every file; a name that is taken is one.
    pub fn with_files(
        &self,
        files: &[AgentFile],
        tools: &BTreeSet<&str>,
        models: &dyn ModelNames,
    ) -> Result<Self, AgentFilesError> {
        let mut named: BTreeMap<String, (Arc<Agent>, String)> = BTreeMap::new();
        for agent in self.sorted.iter() {
            named.insert(agent.name.clone(), (Arc::clone(agent), String::new()));
        }
        let mut faults = Vec::new();
        for file in files {
            let (agent, line) = match file.agent(tools, models) {
                Ok(read) => read,
                Err(of_file) => {
                    faults.extend(of_file);
                    continue;
                }
            };
            let fault = |message: String| AgentFault { file: file.file().to_owned(), line, message };
            match named.get(&agent.name) {
                Some((_, other)) if other.is_empty() => {
                    faults.push(fault(format!("an agent named {} is there already; take another name", agent.name)));
                }
                Some((_, other)) => faults.push(fault(format!("{other} names an agent {} as well", agent.name))),
                None if named.len() >= AGENTS_MAX => {
                    faults.push(fault(format!("this is one agent too many; there may be {AGENTS_MAX}")));
                }
                None => {
                    named.insert(agent.name.clone(), (Arc::new(agent), file.file().to_owned()));
                }
            }
        }
        if !faults.is_empty() {
            faults.sort();
            return Err(AgentFilesError { faults });
        }
        Ok(Self { sorted: named.into_values().map(|(agent, _)| agent).collect() })
    }

    /// The agent of this name.
    pub fn get(&self, name: &str) -> Option<&Arc<Agent>> {
        self.sorted.iter().find(|agent| agent.name == name)
    }

    /// Only this agent.
    pub fn only(agent: Agent) -> Self {
        Self { sorted: [Arc::new(agent)].into() }
    }

    /// Whether these are the built-in ones and no others.
    pub(crate) fn are_built_in(&self) -> bool {
        Arc::ptr_eq(&self.sorted, &BUILTIN.sorted)
    }

    /// All of them, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = &Agent> {
        self.sorted.iter().map(|agent| &**agent)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::file::{AgentFile, NoModelNames};
    use super::{AgentOrigin, AgentSteps, Agents};

    fn file(file: &str, name: &str) -> AgentFile {
        AgentFile {
            origin: AgentOrigin::Host(file.to_owned()),
            text: format!("---\nname: {name}\ndescription: d\n---\nDo it.\n"),
        }
    }

    #[test]
    fn files_add_agents_and_a_name_means_one() {
        let agents = |files: &[AgentFile]| Agents::builtin().with_files(files, &BTreeSet::new(), &NoModelNames);
        let more = agents(&[file("b.md", "writer"), file("a.md", "auditor")]).unwrap();
        assert!(more.iter().map(|agent| &agent.name).is_sorted());
        assert_eq!(more.iter().count(), 5);
        let taken = agents(&[file("a.md", "explore"), file("b.md", "x"), file("c.md", "x")]).err().unwrap().to_string();
        assert!(taken.contains("a.md:2: an agent named explore is there already"), "{taken}");
        assert!(taken.contains("c.md:2: b.md names an agent x as well"), "{taken}");
    }

    #[test]
    fn a_limit_of_a_file_holds_whatever_is_asked_for() {
        let rounds = |steps: AgentSteps| [None, Some(3), Some(30)].map(|asked| steps.rounds(asked));
        assert_eq!(rounds(AgentSteps::Usual(12)), [12, 3, 30]);
        assert_eq!(rounds(AgentSteps::AtMost(12)), [12, 3, 12]);
    }

    #[test]
    fn agents_are_sorted_and_found() {
        let agents = Agents::builtin();
        assert!(agents.iter().map(|agent| &agent.name).is_sorted());
        assert!(agents.get("explore").is_some());
        assert!(agents.get("nobody").is_none());
    }
}
