//! A workspace: where tools work, what may be done there, and who provides it.
//!
//! A capability without its provider is never honoured: asking for `exec` without a command runner gives a
//! workspace without `exec`. Nor does a provider go beyond the capabilities: without `write` the files cannot be
//! written, without `exec` there is no command runner.

mod beneath;
mod landing;
mod leftover;
mod log_file;
mod note;
mod read_only;
mod replacement;
mod transaction;

pub mod local;
pub mod memory;
pub mod object_store;
pub mod seen;

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use self::read_only::{ReadOnlyFiles, Why};
use crate::effects::files::Files;
use crate::effects::processes::Processes;
use crate::effects::processes::confinement::confined::ConfinedProcesses;
use crate::effects::processes::confinement::{Confinement, FileAccess};

/// What may be done in a workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WorkspaceCapabilities {
    /// Files may be read.
    pub read: bool,
    /// Files may be written.
    pub write: bool,
    /// Commands may be run.
    pub exec: bool,
    /// Files may be searched.
    pub search: bool,
    /// The repository may be looked at and changed; needs a command runner, but not that commands may be run.
    pub git: bool,
}

impl WorkspaceCapabilities {
    /// Everything.
    pub fn local_default() -> Self {
        Self { read: true, write: true, exec: true, search: true, git: true }
    }

    /// Reading and writing files, and nothing else.
    pub fn read_write() -> Self {
        Self { read: true, write: true, exec: false, search: false, git: false }
    }

    /// Reading and searching alone.
    pub fn read_only() -> Self {
        Self { read: true, write: false, exec: false, search: true, git: false }
    }
}

/// What may be written that is refused where nobody allows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WriteAllowance {
    /// Files with more than one name, of which another may lie outside of the workspace. They are replaced, never
    /// written in place, so the other name keeps what it had.
    pub hard_links: bool,
    /// What lies in `.git`, by `write` and `edit`; `patch` and `download` leave it alone.
    pub git_folder: bool,
}

/// The bundle that a session works on; cheap to clone.
#[derive(Clone)]
pub struct Workspace {
    display_root: Arc<str>,
    capabilities: WorkspaceCapabilities,
    allowance: WriteAllowance,
    files: Arc<dyn Files>,
    commands: Option<Commands>,
    /// What commands and tools are kept from.
    sandbox: Option<Arc<Confinement>>,
}

/// How commands run in a workspace: the runner, and the folder on this machine that they start in.
#[derive(Clone)]
pub struct Commands {
    /// The runner.
    pub processes: Arc<dyn Processes>,
    /// The workspace's folder.
    pub folder: PathBuf,
}

impl Workspace {
    /// Bundles providers; capabilities without a provider are taken away.
    pub fn new(
        display_root: impl Into<Arc<str>>,
        wanted: WorkspaceCapabilities,
        files: Arc<dyn Files>,
        commands: Option<Commands>,
    ) -> Self {
        let runs = commands.is_some();
        let capabilities = WorkspaceCapabilities { exec: wanted.exec && runs, git: wanted.git && runs, ..wanted };
        let commands = commands.filter(|_| capabilities.exec || capabilities.git);
        let files: Arc<dyn Files> =
            if capabilities.write { files } else { ReadOnlyFiles::over(files, Why::NotGranted) };
        let (display_root, allowance) = (display_root.into(), WriteAllowance::default());
        Self { display_root, capabilities, allowance, files, commands, sandbox: None }
    }

    /// The same workspace, allowing what it must be allowed to be written; its files must know of hard links themselves.
    #[must_use]
    pub(crate) fn with_allowance(self, allowance: WriteAllowance) -> Self {
        Self { allowance, ..self }
    }

    /// What may be written that is refused otherwise.
    pub fn allowance(&self) -> WriteAllowance {
        self.allowance
    }

    /// How the root is shown to people.
    pub fn display_root(&self) -> &str {
        &self.display_root
    }

    /// What may be done here.
    pub fn capabilities(&self) -> WorkspaceCapabilities {
        self.capabilities
    }

    /// Its files.
    pub fn files(&self) -> &Arc<dyn Files> {
        &self.files
    }

    /// Its command runner, when commands may be run.
    pub fn commands(&self) -> Option<&Commands> {
        self.commands.as_ref().filter(|_| self.capabilities.exec)
    }

    /// Its command runner for git and nothing else, when the repository may be used.
    pub fn git_commands(&self) -> Option<&Commands> {
        self.commands.as_ref().filter(|_| self.capabilities.git)
    }

    /// The same workspace with another command runner in front of the folder (the runtime puts every command
    /// under a supervised node this way).
    #[must_use]
    pub fn with_processes(&self, processes: Arc<dyn Processes>) -> Self {
        let commands = self.commands.as_ref().map(|now| Commands { processes, folder: now.folder.clone() });
        Self { commands, ..self.clone() }
    }

    /// The same workspace in a sandbox. The kernel keeps its commands to it, and its tools keep to it by themselves:
    /// where it is read-only nothing is written through [`Self::files`], and without a network nothing is asked.
    #[must_use]
    pub fn confined(&self, confinement: Confinement) -> Self {
        if confinement.is_off() {
            return self.clone();
        }
        let files = match confinement.files() {
            FileAccess::ReadOnly => ReadOnlyFiles::over(Arc::clone(&self.files), Why::Sandbox),
            FileAccess::Off | FileAccess::WorkspaceWrite => Arc::clone(&self.files),
        };
        let commands = self.commands.as_ref().map(|commands| {
            let (port, folder) = (Arc::clone(&commands.processes), commands.folder.clone());
            let processes = Arc::new(ConfinedProcesses::new(port, confinement.clone(), folder.clone()));
            Commands { processes, folder }
        });
        Self { files, commands, sandbox: Some(Arc::new(confinement)), ..self.clone() }
    }

    /// Whether its sandbox lets nothing be written.
    pub fn is_sandboxed_read_only(&self) -> bool {
        self.sandbox.as_ref().is_some_and(|sandbox| sandbox.files() == FileAccess::ReadOnly)
    }

    /// Whether its sandbox leaves a network.
    pub fn has_network(&self) -> bool {
        self.sandbox.as_ref().is_none_or(|sandbox| sandbox.has_network())
    }

    /// The same workspace with another port in front of its files (the runtime guards files by policy this way).
    #[must_use]
    pub fn with_files(&self, files: Arc<dyn Files>) -> Self {
        Self { files, ..self.clone() }
    }

    /// The same workspace with fewer capabilities; none can be added.
    #[must_use]
    pub fn narrowed(&self, to: WorkspaceCapabilities) -> Self {
        let now = self.capabilities;
        let capabilities = WorkspaceCapabilities {
            read: now.read && to.read,
            write: now.write && to.write,
            exec: now.exec && to.exec,
            search: now.search && to.search,
            git: now.git && to.git,
        };
        // Nothing is copied that does not stay: every call narrows its workspace.
        let commands = self.commands.as_ref().filter(|_| capabilities.exec || capabilities.git).cloned();
        let files: Arc<dyn Files> = match now.write && !capabilities.write {
            true => ReadOnlyFiles::over(Arc::clone(&self.files), Why::NotGranted),
            false => Arc::clone(&self.files),
        };
        let (display_root, sandbox) = (Arc::clone(&self.display_root), self.sandbox.clone());
        Self { display_root, capabilities, allowance: self.allowance, files, commands, sandbox }
    }
}

#[cfg(test)]
mod tests {
    use super::{Workspace, WorkspaceCapabilities, local};
    use crate::effects::processes::system::SystemProcesses;

    fn workspace(wanted: WorkspaceCapabilities, runs: bool) -> Workspace {
        let folder = tempfile::tempdir().unwrap();
        local::open(folder.path(), wanted, runs.then(|| std::sync::Arc::new(SystemProcesses) as _)).unwrap()
    }

    #[test]
    fn a_flag_without_its_provider_is_not_honoured() {
        let all = WorkspaceCapabilities::local_default();
        let without = workspace(all, false);
        let expected = WorkspaceCapabilities { exec: false, git: false, ..all };
        assert_eq!(without.capabilities(), expected);
        assert!(without.commands().is_none() && without.git_commands().is_none());
        assert_eq!(workspace(all, true).capabilities(), all);
    }

    #[test]
    fn git_does_not_need_that_commands_may_be_run_and_does_not_allow_it() {
        let all = WorkspaceCapabilities::local_default();
        let git = workspace(WorkspaceCapabilities { exec: false, ..all }, true);
        assert!(git.commands().is_none() && git.git_commands().is_some());
        let shell = workspace(all, true).narrowed(WorkspaceCapabilities { git: false, ..all });
        assert!(shell.commands().is_some() && shell.git_commands().is_none());
        assert!(git.narrowed(WorkspaceCapabilities::read_only()).git_commands().is_none());
    }
}
