//! Agents: who a run works as. An agent decides the instructions, the tools and the bounds of its run; it never
//! widens what its parent may do.

use std::sync::{Arc, LazyLock};

use toolwarden_tools::ids::ToolName;
use toolwarden_tools::registry::Registry;

use crate::policy::compiled::CompiledPolicy;

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
    pub rounds_max: u32,
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
            rounds_max: 12,
        };
        let general = Agent {
            name: "general".to_owned(),
            purpose: "works on a task of any kind with every tool of its session".to_owned(),
            instructions: "Work on the task with the tools you have. Name the source of every statement as \
                           path:line. Say what you did not find or could not do."
                .to_owned(),
            tools: None,
            policy: None,
            rounds_max: 50,
        };
        let verification = Agent {
            name: "verification".to_owned(),
            purpose: "checks a claim or a change by reading and running; changes no files".to_owned(),
            instructions: "Check what you are told. Read the files, run the checks that decide it, and report what \
                           you saw, not what you expect. Change nothing."
                .to_owned(),
            tools: Some(["read", "ls", "search", "bash"].map(ToolName::from).to_vec()),
            policy: None,
            rounds_max: 30,
        };
        Self { sorted: [explore, general, verification].map(Arc::new).into() }
    }

    /// The agent of this name.
    pub fn get(&self, name: &str) -> Option<&Arc<Agent>> {
        self.sorted.iter().find(|agent| agent.name == name)
    }

    /// All of them, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = &Agent> {
        self.sorted.iter().map(|agent| &**agent)
    }
}

#[cfg(test)]
mod tests {
    use super::Agents;

    #[test]
    fn agents_are_sorted_and_found() {
        let agents = Agents::builtin();
        assert!(agents.iter().map(|agent| &agent.name).is_sorted());
        assert!(agents.get("explore").is_some());
        assert!(agents.get("nobody").is_none());
    }
}
