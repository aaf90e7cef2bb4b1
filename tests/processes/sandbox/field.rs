//! A workspace, what stands outside of it, and commands that run there in a sandbox.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;
use toolwarden_tools::cancellation::Cancellation;
use toolwarden_tools::effects::processes::confinement::{Confinement, ConfinementError, FileAccess};
use toolwarden_tools::effects::processes::{CommandSpec, ProcessError, ProcessStatus, Processes};

use crate::command::{Heard, guarded, spec};

pub(crate) struct Field {
    _folder: TempDir,
    pub(crate) work: PathBuf,
    pub(crate) outside: PathBuf,
}

/// How a command went.
pub(crate) struct Ran {
    pub(crate) is_success: bool,
    /// Both streams.
    pub(crate) text: String,
}

impl Field {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let (work, outside) = (root.join("work"), root.join("outside"));
        fs::create_dir(&work).unwrap();
        fs::create_dir_all(outside.join("keys")).unwrap();
        fs::write(work.join("file"), "inside\n").unwrap();
        fs::write(outside.join("file"), "outside\n").unwrap();
        fs::write(outside.join("secret"), "hush-hush\n").unwrap();
        fs::write(outside.join("keys/one"), "hush-hush\n").unwrap();
        std::os::unix::fs::symlink(&outside, work.join("link")).unwrap();
        Self { _folder: folder, work, outside }
    }

    pub(crate) fn confinement(&self, files: FileAccess) -> Confinement {
        Confinement::new(files).within(&self.work)
    }

    /// A line that finds what is outside as `$OUT`.
    pub(crate) fn command(&self, line: &str, confinement: Option<&Confinement>) -> CommandSpec {
        let mut command = spec(line, "");
        command.environment.insert("OUT".into(), self.outside.display().to_string());
        command.folder = self.work.clone();
        command.confinement = confinement.cloned().map(Arc::new);
        command
    }

    pub(crate) fn run(&self, line: &str, confinement: Option<&Confinement>) -> Ran {
        ran(self.command(line, confinement)).unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    pub(crate) fn refused(&self, line: &str, confinement: &Confinement) -> ConfinementError {
        match ran(self.command(line, Some(confinement))) {
            Err(ProcessError::Unconfined { source, .. }) => source,
            Err(error) => panic!("{line}: {error}"),
            Ok(ran) => panic!("{line}: it ran: {}", ran.text),
        }
    }

    /// All files of a folder: contents and mode, by name.
    pub(crate) fn files(folder: &Path) -> BTreeMap<PathBuf, (u32, String)> {
        use std::os::unix::fs::MetadataExt as _;
        let (mut open, mut found) = (vec![folder.to_owned()], BTreeMap::new());
        while let Some(path) = open.pop() {
            let kind = fs::symlink_metadata(&path).unwrap();
            let text = if kind.is_file() { fs::read_to_string(&path).unwrap() } else { String::new() };
            if kind.is_dir() {
                open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
            found.insert(path, (kind.mode(), text));
        }
        found
    }
}

/// Runs a command under a shim.
pub(crate) fn ran(command: CommandSpec) -> Result<Ran, ProcessError> {
    ran_by(&guarded(), command)
}

pub(crate) fn ran_by(processes: &dyn Processes, command: CommandSpec) -> Result<Ran, ProcessError> {
    let heard = Heard::new();
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let asked = command.confinement.clone();
    let end = tokio.block_on(processes.run(command, heard.clone(), Cancellation::new()))?;
    assert_eq!(end.confinement, asked, "what was in force is told");
    let is_success = end.status == ProcessStatus::Exited { code: 0 };
    Ok(Ran { is_success, text: heard.out() + &heard.err() })
}
