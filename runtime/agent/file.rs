//! An agent as a Markdown file: settings at its head, its instructions below, checked when it is loaded.
//!
//! A fault is told with file and line, and all of them at once; a setting that nobody knows is one, for a mistyped name
//! would silently do nothing. What must stay true: a file narrows what its agent may do and never widens it, so a file of
//! a stranger is no danger to the session that loads it.

use std::collections::BTreeSet;
use std::fmt;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use toolwarden_actors::budget::BudgetLimits;
use toolwarden_tools::effects::files::{FileError, FileKind};
use toolwarden_tools::ids::ToolName;
use toolwarden_tools::workspace::{Workspace, WorkspaceCapabilities, local};
use toolwarden_tools::workspace_path::{PathError, WorkspacePath};

use super::front_matter::{Entry, Fault, FrontMatter, Value, split_list};
use super::{Agent, AgentOrigin, AgentSteps};
use crate::models::Model;
use crate::policy::compiled::CompiledPolicy;
use crate::policy::{Decision, PermissionPolicy, Rule};

/// Largest file, in bytes.
pub const AGENT_FILE_BYTES_MAX: usize = 256 * 1024;
/// Most files of one folder.
pub const AGENT_FILES_MAX: usize = 256;
/// Longest name of an agent, in bytes.
pub const AGENT_NAME_BYTES_MAX: usize = 64;
/// Longest description, in bytes: every one of them is told to the model.
pub const AGENT_DESCRIPTION_BYTES_MAX: usize = 1024;
/// Most model rounds.
const STEPS_MAX: u64 = 10_000;
/// Longest time, in milliseconds: a day.
const TIMEOUT_MS_MAX: u64 = 24 * 60 * 60 * 1000;
/// Highest figure of a budget: exact in JSON.
const BUDGET_MAX: u64 = 1 << 53;

const SETTINGS: &str = "name, description, tools, model and limits";
const LIMITS: &str = "max_steps, timeout_ms, calls, input_tokens, output_tokens, cost_microusd and output_bytes";

/// A file that was read, not checked yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentFile {
    /// Where it stands.
    pub origin: AgentOrigin,
    /// What it holds.
    pub text: String,
}

/// What is wrong with agent files.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub struct AgentFilesError {
    /// By file and line.
    pub faults: Vec<AgentFault>,
}

/// One fault.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct AgentFault {
    /// The file, or the folder.
    pub file: String,
    /// The line, counted from 1; 0 for what is wrong with the file as a whole.
    pub line: usize,
    /// What is wrong and what would be right.
    pub message: String,
}

impl fmt::Display for AgentFilesError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, AgentFault { file, line, message }) in self.faults.iter().enumerate() {
            out.write_str(if index == 0 { "" } else { "\n" })?;
            match line {
                0 => write!(out, "{file}: {message}")?,
                line => write!(out, "{file}:{line}: {message}")?,
            }
        }
        Ok(())
    }
}

/// Who answers under the name of a model; the host decides which names there are.
pub trait ModelNames: Send + Sync {
    /// The model of this name, for an agent that comes from there: a file of a workspace may be a stranger's.
    ///
    /// # Errors
    /// Why there is none, in words.
    fn model(&self, name: &str, of: &AgentOrigin) -> Result<Arc<dyn Model>, String>;
}

/// No name means a model: every agent works with the model of its session.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoModelNames;

impl ModelNames for NoModelNames {
    fn model(&self, _name: &str, _of: &AgentOrigin) -> Result<Arc<dyn Model>, String> {
        Err("this host lets agents name no models; leave it out, and the agent works with its session's".to_owned())
    }
}

impl AgentFile {
    /// What it is called in faults.
    pub fn file(&self) -> &str {
        match &self.origin {
            AgentOrigin::BuiltIn => "built in",
            AgentOrigin::Host(file) | AgentOrigin::Workspace(file) => file,
        }
    }

    /// Reads the `*.md` files of a folder of the host's own, sorted by name. May block for as long as a disk takes.
    ///
    /// # Errors
    /// [`AgentFilesError`], also where there is no such folder.
    pub fn of_host(folder: &Path) -> Result<Vec<Self>, AgentFilesError> {
        let shown = folder.display().to_string();
        let whole =
            |message: String| AgentFilesError { faults: vec![AgentFault { file: shown.clone(), line: 0, message }] };
        let opened = local::open(folder, WorkspaceCapabilities::read_only(), None);
        let opened = opened.map_err(|error| whole(error.to_string()))?;
        let in_folder = |file: String| folder.join(file).display().to_string();
        match Self::in_folder(&opened, ".") {
            Ok(files) => Ok(files
                .into_iter()
                .map(|(file, text)| Self { origin: AgentOrigin::Host(in_folder(file)), text })
                .collect()),
            Err(mut error) => {
                error.faults.iter_mut().for_each(|fault| fault.file = in_folder(std::mem::take(&mut fault.file)));
                Err(error)
            }
        }
    }

    /// Reads the `*.md` files of a folder of a workspace, sorted by name; none where there is no such folder. May block
    /// for as long as the files port takes.
    ///
    /// # Errors
    /// [`AgentFilesError`] for what cannot be read.
    pub fn of_workspace(workspace: &Workspace, folder: &str) -> Result<Vec<Self>, AgentFilesError> {
        let files = Self::in_folder(workspace, folder)?;
        Ok(files.into_iter().map(|(file, text)| Self { origin: AgentOrigin::Workspace(file), text }).collect())
    }

    /// The `*.md` files of a folder, as path and text.
    fn in_folder(workspace: &Workspace, folder: &str) -> Result<Vec<(String, String)>, AgentFilesError> {
        let whole = |message: String| AgentFilesError {
            faults: vec![AgentFault { file: folder.to_owned(), line: 0, message }],
        };
        let path = match folder {
            "." => Ok(WorkspacePath::root()),
            folder => WorkspacePath::parse(folder, workspace.display_root()),
        };
        let path = path.map_err(|error: PathError| whole(error.to_string()))?;
        let entries = match workspace.files().list(&path) {
            Ok(entries) => entries,
            Err(FileError::NotFound { .. }) => return Ok(Vec::new()),
            Err(error) => return Err(whole(error.to_string())),
        };
        let named = |path: &WorkspacePath| path.to_string().ends_with(".md");
        let entries: Vec<_> =
            entries.into_iter().filter(|entry| entry.kind != FileKind::Folder && named(&entry.path)).collect();
        if entries.len() > AGENT_FILES_MAX {
            let message = format!("it has {} agent files; at most {AGENT_FILES_MAX} are taken", entries.len());
            return Err(whole(message));
        }
        let (mut files, mut faults) = (Vec::new(), Vec::new());
        for entry in entries {
            let file = entry.path.to_string();
            match text_of(workspace, &entry.path) {
                Ok(text) => files.push((file, text)),
                Err(message) => faults.push(AgentFault { file, line: 0, message }),
            }
        }
        if faults.is_empty() { Ok(files) } else { Err(AgentFilesError { faults }) }
    }

    /// The agent that it describes, with the line of its name. `tools` are the tools that may be named, `models` who
    /// answers under which name.
    ///
    /// # Errors
    /// Every fault.
    pub fn agent(&self, tools: &BTreeSet<&str>, models: &dyn ModelNames) -> Result<(Agent, usize), Vec<AgentFault>> {
        let placed = |faults: Vec<Fault>| {
            let fault = |Fault { line, message }| AgentFault { file: self.file().to_owned(), line, message };
            faults.into_iter().map(fault).collect::<Vec<_>>()
        };
        if self.text.len() > AGENT_FILE_BYTES_MAX {
            let bytes = self.text.len();
            let message = format!("it has {bytes} bytes; at most {AGENT_FILE_BYTES_MAX} are taken");
            return Err(placed(vec![Fault { line: 0, message }]));
        }
        let read = FrontMatter::read(&self.text).map_err(placed)?;
        let mut draft = Draft { tools_known: tools, models, origin: &self.origin, faults: Vec::new() };
        match draft.agent(&read) {
            Some((agent, line)) if draft.faults.is_empty() => {
                Ok((Agent { origin: self.origin.clone(), ..agent }, line))
            }
            _ => Err(placed(draft.faults)),
        }
    }
}

fn text_of(workspace: &Workspace, path: &WorkspacePath) -> Result<String, String> {
    let file = workspace.files().open(path).map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    let most = u64::try_from(AGENT_FILE_BYTES_MAX + 1).unwrap_or(u64::MAX);
    file.take(most).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() > AGENT_FILE_BYTES_MAX {
        return Err(format!("it is larger than {AGENT_FILE_BYTES_MAX} bytes"));
    }
    String::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())
}

/// Checks one file.
struct Draft<'a> {
    tools_known: &'a BTreeSet<&'a str>,
    models: &'a dyn ModelNames,
    origin: &'a AgentOrigin,
    faults: Vec<Fault>,
}

impl Draft<'_> {
    fn fault(&mut self, line: usize, message: impl Into<String>) {
        self.faults.push(Fault { line, message: message.into() });
    }

    /// The agent and the line of its name; none when something that must be there is not.
    fn agent(&mut self, read: &FrontMatter<'_>) -> Option<(Agent, usize)> {
        let mut name = None;
        let mut agent = Agent {
            name: String::new(),
            purpose: String::new(),
            instructions: read.body.trim().to_owned(),
            tools: None,
            policy: None,
            steps: AgentSteps::default(),
            timeout: None,
            budget: BudgetLimits::default(),
            model: None,
            origin: AgentOrigin::BuiltIn,
        };
        for entry in &read.entries {
            match entry.key.as_str() {
                "name" => name = self.name(entry).map(|text| (text, entry.line)),
                "description" => agent.purpose = self.description(entry).unwrap_or_default(),
                "tools" => (agent.tools, agent.policy) = self.tools(entry),
                "model" => agent.model = self.model(entry),
                "limits" => self.limits(entry, &mut agent),
                other => self.fault(entry.line, format!("there is no setting {other:?}; there are {SETTINGS}")),
            }
        }
        for wanted in ["name", "description"] {
            if !read.entries.iter().any(|entry| entry.key == wanted) {
                self.fault(1, format!("{wanted} is missing"));
            }
        }
        if agent.instructions.is_empty() {
            self.fault(
                read.body_line,
                "the instructions are missing; write below the settings what the agent is to do",
            );
        }
        let (name, line) = name?;
        agent.name = name;
        Some((agent, line))
    }

    fn text<'e>(&mut self, entry: &'e Entry) -> Option<&'e str> {
        match &entry.value {
            Value::Text(text) if !text.trim().is_empty() => Some(text.trim()),
            _ => {
                self.fault(entry.line, format!("{} is a text", entry.key));
                None
            }
        }
    }

    fn name(&mut self, entry: &Entry) -> Option<String> {
        let name = self.text(entry)?;
        let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-');
        if name.len() > AGENT_NAME_BYTES_MAX || !name.bytes().all(fits) {
            self.fault(entry.line, format!("a name has 1 to {AGENT_NAME_BYTES_MAX} of a-z 0-9 _ -"));
            return None;
        }
        Some(name.to_owned())
    }

    fn description(&mut self, entry: &Entry) -> Option<String> {
        let text = self.text(entry)?;
        if text.len() > AGENT_DESCRIPTION_BYTES_MAX {
            let bytes = text.len();
            self.fault(entry.line, format!("it has {bytes} bytes; say it in {AGENT_DESCRIPTION_BYTES_MAX}"));
            return None;
        }
        Some(text.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    fn model(&mut self, entry: &Entry) -> Option<Arc<dyn Model>> {
        let name = self.text(entry)?;
        if name == "inherit" {
            return None;
        }
        match self.models.model(name, self.origin) {
            Ok(model) => Some(model),
            Err(why) => {
                self.fault(entry.line, format!("model {name:?} cannot be used: {why}"));
                None
            }
        }
    }

    /// The tools that it has, and the policy that holds it to the calls which are meant where patterns say so.
    fn tools(&mut self, entry: &Entry) -> (Option<Vec<ToolName>>, Option<Arc<CompiledPolicy>>) {
        let items: Vec<(String, usize)> = match &entry.value {
            Value::List(items) => items.clone(),
            Value::Text(text) => split_list(text).into_iter().map(|item| (item.to_owned(), entry.line)).collect(),
            Value::Table(_) => {
                self.fault(entry.line, "tools is a list such as [read, search]");
                return (None, None);
            }
        };
        let (mut names, mut rules, mut narrowed) = (Vec::new(), Vec::new(), false);
        for (text, line) in &items {
            let rule = match Rule::parse(text) {
                Ok(rule) => rule,
                Err(error) => {
                    self.fault(*line, error.to_string());
                    continue;
                }
            };
            let tool = rule.tool().to_ascii_lowercase();
            // Tools of servers come and go.
            if !self.tools_known.contains(tool.as_str()) && !tool.starts_with("mcp__") {
                let known: Vec<&str> = self.tools_known.iter().copied().collect();
                self.fault(*line, format!("there is no tool {:?}; there are {}", rule.tool(), known.join(", ")));
                continue;
            }
            narrowed |= rule.text() != rule.tool();
            names.push(ToolName::new(tool));
            rules.push(rule);
        }
        if items.is_empty() {
            self.fault(entry.line, "tools is empty; leave it out for every tool of the session");
        }
        let policy = PermissionPolicy { allow: rules, default: Decision::Deny, ..PermissionPolicy::default() };
        let policy = narrowed.then(|| CompiledPolicy::new(&policy)).transpose();
        let policy = policy.unwrap_or_else(|error| {
            self.fault(entry.line, error.to_string());
            None
        });
        (Some(names), policy.map(Arc::new))
    }

    fn limits(&mut self, entry: &Entry, agent: &mut Agent) {
        let Value::Table(limits) = &entry.value else {
            self.fault(entry.line, format!("limits has settings below it: {LIMITS}"));
            return;
        };
        for limit in limits {
            let most = match limit.key.as_str() {
                "max_steps" => STEPS_MAX,
                "timeout_ms" => TIMEOUT_MS_MAX,
                "calls" | "input_tokens" | "output_tokens" | "cost_microusd" | "output_bytes" => BUDGET_MAX,
                other => {
                    self.fault(limit.line, format!("there is no limit {other:?}; there are {LIMITS}"));
                    continue;
                }
            };
            let number = match &limit.value {
                Value::Text(text) => text.replace('_', "").parse::<u64>().ok(),
                Value::List(_) | Value::Table(_) => None,
            };
            let Some(number) = number.filter(|number| (1..=most).contains(number)) else {
                self.fault(limit.line, format!("{} is a whole number from 1 to {most}", limit.key));
                continue;
            };
            match limit.key.as_str() {
                "max_steps" => agent.steps = AgentSteps::AtMost(u32::try_from(number).unwrap_or(u32::MAX)),
                "timeout_ms" => agent.timeout = Some(Duration::from_millis(number)),
                "calls" => agent.budget.calls = Some(number),
                "input_tokens" => agent.budget.input_tokens = Some(number),
                "output_tokens" => agent.budget.output_tokens = Some(number),
                "cost_microusd" => agent.budget.cost_microusd = Some(number),
                _ => agent.budget.output_bytes = Some(number),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::time::Duration;

    use toolwarden_tools::workspace::{WorkspaceCapabilities, local};

    use super::{AgentFault, AgentFile, AgentFilesError, ModelNames, NoModelNames};
    use crate::agent::{Agent, AgentOrigin, AgentSteps};
    use crate::models::Model;
    use crate::models::research::ResearchModel;

    struct OneName;

    impl ModelNames for OneName {
        fn model(&self, name: &str, _of: &AgentOrigin) -> Result<Arc<dyn Model>, String> {
            match name {
                "builtin:research" => Ok(Arc::new(ResearchModel)),
                _ => Err("nobody answers to it".to_owned()),
            }
        }
    }

    fn read(text: &str) -> Result<Agent, Vec<AgentFault>> {
        let tools = BTreeSet::from(["read", "search", "bash"]);
        let file = AgentFile { origin: AgentOrigin::Host("a.md".to_owned()), text: text.to_owned() };
        file.agent(&tools, &OneName).map(|(agent, _)| agent)
    }

    #[test]
    fn a_whole_file_is_an_agent() {
        let agent = read(
            "---\nname: reviewer\ndescription: >\n  reads a change\n  and judges it\ntools: [read, \"bash(git log *)\"]\n\
             model: builtin:research\nlimits:\n  max_steps: 7\n  timeout_ms: 60_000\n  calls: 9\n---\n\n# Review\n\nBe short.\n",
        )
        .unwrap();
        assert_eq!((agent.name.as_str(), agent.purpose.as_str()), ("reviewer", "reads a change and judges it"));
        assert_eq!(agent.instructions, "# Review\n\nBe short.");
        let tools: Vec<&str> = agent.tools.as_ref().unwrap().iter().map(|tool| tool.as_str()).collect();
        assert_eq!(tools, ["read", "bash"]);
        assert!(agent.policy.is_some() && agent.model.is_some());
        assert_eq!((agent.steps, agent.timeout), (AgentSteps::AtMost(7), Some(Duration::from_secs(60))));
        assert_eq!(agent.budget.calls, Some(9));
        let plain = read("---\nname: p\ndescription: d\ntools: read, search\nmodel: inherit\n---\nDo it.\n").unwrap();
        assert!(plain.policy.is_none() && plain.model.is_none() && plain.tools.unwrap().len() == 2);
    }

    #[test]
    fn every_fault_is_told_with_file_and_line() {
        let text = "---\nname: Not A Name\ndescription:\ntools:\n  - read\n  - serach\n  - bash(\nmodel: gpt\ncolour: red\n\
                    limits:\n  max_steps: none\n  seconds: 3\n  calls: 0\n---\n";
        let faults = read(text).err().unwrap();
        let lines: Vec<usize> = faults.iter().map(|fault| fault.line).collect();
        assert_eq!(lines, [2, 3, 6, 7, 8, 9, 11, 12, 13, 15], "{faults:#?}");
        let told = AgentFilesError { faults }.to_string();
        assert!(told.contains("a.md:6: there is no tool \"serach\"; there are bash, read, search"), "{told}");
        assert!(told.contains("a.md:8: model \"gpt\" cannot be used: nobody answers to it"), "{told}");
        assert!(told.contains("a.md:15: the instructions are missing"), "{told}");
        let missing = read("---\ntools: read\n---\nwords\n").err().unwrap();
        assert_eq!(missing.iter().filter(|fault| fault.message.contains("missing")).count(), 2);
        assert!(NoModelNames.model("x", &AgentOrigin::BuiltIn).is_err());
    }

    #[test]
    fn a_folder_gives_its_markdown_files_and_faults_name_them() {
        let folder = tempfile::tempdir().unwrap();
        let workspace = local::open(folder.path(), WorkspaceCapabilities::read_write(), None).unwrap();
        assert_eq!(AgentFile::of_workspace(&workspace, "agents").unwrap(), []);
        let put = |name: &str, bytes: &[u8]| {
            let path = toolwarden_tools::workspace_path::WorkspacePath::parse(name, "").unwrap();
            let replacement = toolwarden_tools::effects::files::Replacement {
                bytes,
                expected: toolwarden_tools::effects::files::Expected::Any,
                create_folders: true,
            };
            workspace.files().replace(&path, &replacement).unwrap();
        };
        put("agents/b.md", b"b");
        put("agents/a.md", b"a");
        put("agents/notes.txt", b"no agent");
        put("agents/below/c.md", b"not looked at");
        let files = AgentFile::of_workspace(&workspace, "agents").unwrap();
        assert_eq!(files.iter().map(AgentFile::file).collect::<Vec<_>>(), ["agents/a.md", "agents/b.md"]);
        let own = AgentFile::of_host(&folder.path().join("agents")).unwrap();
        assert!(own.len() == 2 && own[0].file().ends_with("agents/a.md") && own[0].file().starts_with('/'));
        assert!(AgentFile::of_host(&folder.path().join("nowhere")).is_err());
        put("agents/c.md", &[0xff, 0xfe]);
        let error = AgentFile::of_workspace(&workspace, "agents").unwrap_err().to_string();
        assert!(error.contains("agents/c.md: it is not UTF-8"), "{error}");
        assert!(AgentFile::of_workspace(&workspace, "../elsewhere").is_err());
    }
}
