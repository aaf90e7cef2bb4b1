//! Which built-in tools a workspace gets: those whose needs its capabilities cover.
//!
//! One list feeds the model, the schema check and the executor, so a tool that cannot work here is not offered
//! here. `tests/tidy.rs` checks that every tool stands in it.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::builtin::{
    bash, batch, download, dynamic_workflow, edit, generate_object, git, ls, patch, process, program, read, search,
    task, write,
};
use crate::search::resident_index::ResidentIndexes;
use crate::tool::Tool;
use crate::workspace::WorkspaceCapabilities;

/// What the host decides about the built-in tools.
#[derive(Debug, Clone, Default)]
pub struct CatalogOptions {
    /// The variables that commands see, already filtered (see [`bash::allowed_environment`]).
    pub environment: BTreeMap<String, String>,
    /// The agents that `task` tells the model of: name, and what it is for. A call is checked against the agents
    /// that there are when it is made.
    pub agents: Vec<(String, String)>,
    /// Whether files can come in pieces there ([`crate::effects::files::Files::takes_pieces`]), as downloads do.
    pub takes_pieces: bool,
    /// What `search` keeps in memory of the roots it searches; without it, every search is from scratch.
    pub indexes: Option<Arc<ResidentIndexes>>,
}

/// The built-in tools of a workspace with these capabilities, in a fixed order.
pub fn builtin_tools(capabilities: WorkspaceCapabilities, options: CatalogOptions) -> Vec<Arc<dyn Tool>> {
    let WorkspaceCapabilities { read, write, exec, search, git } = capabilities;
    let mut tools: Vec<Arc<dyn Tool>> = Vec::new();
    if read {
        tools.extend([read::tool(), ls::tool()]);
    }
    if write {
        tools.push(write::tool());
    }
    if write && options.takes_pieces {
        tools.push(download::tool());
    }
    if read && write {
        tools.extend([edit::tool(), patch::tool()]);
    }
    if exec {
        tools.push(Arc::new(bash::BashTool::new(options.environment.clone())));
        tools.push(Arc::new(process::ProcessTool::new()));
    }
    if git {
        tools.push(Arc::new(git::GitTool::new(options.environment)));
    }
    if search {
        tools.push(search::tool(options.indexes));
    }
    // These reach nothing by themselves: what they call is governed call by call.
    tools.push(Arc::new(batch::BatchTool::new()));
    tools.push(Arc::new(program::ProgramTool::new()));
    tools.push(Arc::new(dynamic_workflow::DynamicWorkflowTool::new()));
    tools.push(Arc::new(generate_object::GenerateObjectTool::new()));
    tools.push(Arc::new(task::TaskTool::new(&options.agents)));
    tools
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::Value;

    use super::{CatalogOptions, builtin_tools};
    use crate::registry::Registry;
    use crate::schema::SchemaCache;
    use crate::workspace::WorkspaceCapabilities;

    fn registry(capabilities: WorkspaceCapabilities) -> Registry {
        registry_where(capabilities, true)
    }

    fn registry_where(capabilities: WorkspaceCapabilities, takes_pieces: bool) -> Registry {
        let agents = vec![("explore".into(), "looks around".into())];
        let options = CatalogOptions { agents, takes_pieces, ..Default::default() };
        Registry::build(builtin_tools(capabilities, options), [], &SchemaCache::default()).unwrap()
    }

    fn names(read: bool, write: bool, exec: bool, search: bool) -> Vec<String> {
        let capabilities = WorkspaceCapabilities { read, write, exec, search, git: false };
        registry(capabilities).names().map(ToString::to_string).collect()
    }

    #[test]
    fn each_tool_is_there_when_its_needs_are_met() {
        let all = [
            "bash",
            "batch",
            "download",
            "dynamic_workflow",
            "edit",
            "generate_object",
            "ls",
            "patch",
            "process",
            "program",
            "read",
            "search",
            "task",
            "write",
        ];
        assert_eq!(names(true, true, true, true), all);
        assert_eq!(
            names(true, false, false, true),
            ["batch", "dynamic_workflow", "generate_object", "ls", "program", "read", "search", "task"]
        );
        assert_eq!(
            names(false, true, false, false),
            ["batch", "download", "dynamic_workflow", "generate_object", "program", "task", "write"]
        );
        assert_eq!(
            names(true, true, false, false),
            [
                "batch",
                "download",
                "dynamic_workflow",
                "edit",
                "generate_object",
                "ls",
                "patch",
                "program",
                "read",
                "task",
                "write"
            ]
        );
        let remote = registry_where(WorkspaceCapabilities::read_write(), false);
        let names_there: Vec<String> = remote.names().map(ToString::to_string).collect();
        assert_eq!(
            names_there,
            ["batch", "dynamic_workflow", "edit", "generate_object", "ls", "patch", "program", "read", "task", "write"]
        );
        assert_eq!(
            names(false, false, true, false),
            ["bash", "batch", "dynamic_workflow", "generate_object", "process", "program", "task"]
        );
        assert_eq!(
            names(false, false, false, false),
            ["batch", "dynamic_workflow", "generate_object", "program", "task"]
        );
        let git = WorkspaceCapabilities { git: true, ..WorkspaceCapabilities::read_only() };
        let names: Vec<String> = registry(git).names().map(ToString::to_string).collect();
        assert_eq!(
            names,
            ["batch", "dynamic_workflow", "generate_object", "git", "ls", "program", "read", "search", "task"]
        );
    }

    #[test]
    fn what_a_model_is_shown_is_closed_and_plain_at_the_top() {
        let all = registry(WorkspaceCapabilities::local_default());
        for shown in all.definitions().iter() {
            let (name, parameters) = (&shown.name, &shown.parameters);
            assert!(!shown.description.is_empty(), "{name}");
            assert_eq!(parameters["additionalProperties"], Value::Bool(false), "{name}");
            // Providers refuse these at the top of a schema.
            for keyword in ["oneOf", "anyOf", "allOf"] {
                assert!(parameters.get(keyword).is_none(), "{name} has {keyword} at the top");
            }
        }
        let task = all.get("task").unwrap().tool.spec();
        assert!(task.description.contains("explore (looks around)"));
    }

    #[test]
    fn descriptions_that_never_change_are_made_once() {
        let (one, other) =
            (registry(WorkspaceCapabilities::local_default()), registry(WorkspaceCapabilities::local_default()));
        for (entry, again) in one.iter().zip(other.iter()) {
            let name = &entry.tool.spec().name;
            let is_shared =
                std::ptr::eq(entry.tool.spec(), again.tool.spec()) && Arc::ptr_eq(&entry.schema, &again.schema);
            // What a task says depends on the agents that there are.
            assert_eq!(is_shared, name.as_str() != "task", "{name}");
            assert_eq!(is_shared, entry.tool.fixed().is_some_and(|fixed| std::ptr::eq(fixed.get(), entry.tool.spec())));
        }
    }

    #[test]
    fn a_nesting_tool_holds_the_way_up_that_it_needs() {
        for entry in registry(WorkspaceCapabilities::local_default()).iter() {
            let spec = entry.tool.spec();
            let expected = match spec.name.as_str() {
                "batch" | "dynamic_workflow" | "program" => (true, false),
                "task" => (false, true),
                _ => (false, false),
            };
            assert_eq!((spec.needs.invoke, spec.needs.delegate), expected, "{}", spec.name);
        }
    }
}
