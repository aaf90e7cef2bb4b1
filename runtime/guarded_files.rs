//! The files of a workspace without those that a policy denies: a second line behind the permission stage.
//!
//! The permission stage judges the paths that a call names. A search names none of the files it reads, so a file
//! that `read` is denied is denied here too, by its own path and by where it really leads, whichever tool opens it.
//! It is still listed: its name is not its content.

use std::sync::Arc;

use toolwarden_tools::effects::files::{
    FileError, FileStat, Files, FolderEntry, Links, LogFile, OpenFile, Replacement,
};
use toolwarden_tools::tool::{Lane, Subject};
use toolwarden_tools::workspace_path::WorkspacePath;

use crate::permission::{Judged, ResolvedPath, Verdict, judge};
use crate::policy::compiled::CompiledPolicy;

/// The tool whose deny rules guard every reading of a file.
const READER: &str = "read";

/// A files port that opens nothing that a policy denies to `read`.
pub(crate) struct GuardedFiles {
    files: Arc<dyn Files>,
    policies: Vec<Arc<CompiledPolicy>>,
}

impl GuardedFiles {
    /// Guards a port, or gives it back as it is when no policy denies any path.
    pub(crate) fn over(files: Arc<dyn Files>, policies: &[Arc<CompiledPolicy>]) -> Arc<dyn Files> {
        let policies: Vec<_> =
            policies.iter().filter(|policy| policy.denies_some(READER, &Lane::Query)).cloned().collect();
        if policies.is_empty() { files } else { Arc::new(Self { files, policies }) }
    }

    fn check(&self, path: &WorkspacePath) -> Result<(), FileError> {
        let requested = path.to_string();
        let resolved = self.files.canonical(path).map_or_else(|_| requested.clone(), |end| end.to_string());
        let subject = Subject::Paths { paths: vec![requested.clone()], write: false };
        let resolved = [ResolvedPath { requested: requested.clone(), resolved }];
        let judged = Judged { tool: READER, lane: &Lane::Query, subject: &subject, resolved: &resolved };
        let denied = self.policies.iter().find_map(|policy| match judge(policy, &judged) {
            // A default of deny speaks of calls that no rule names, not of files.
            Verdict::Deny { rule, .. } if rule != "default" => Some(rule),
            _ => None,
        });
        match denied {
            Some(rule) => Err(FileError::Denied { path: requested, rule }),
            None => Ok(()),
        }
    }
}

impl Files for GuardedFiles {
    fn canonical(&self, path: &WorkspacePath) -> Result<WorkspacePath, FileError> {
        self.files.canonical(path)
    }

    fn stat(&self, path: &WorkspacePath, links: Links) -> Result<FileStat, FileError> {
        self.files.stat(path, links)
    }

    fn open(&self, path: &WorkspacePath) -> Result<Box<dyn OpenFile>, FileError> {
        self.check(path)?;
        self.files.open(path)
    }

    fn may_read(&self, path: &WorkspacePath) -> Result<(), FileError> {
        self.check(path)
    }

    fn list(&self, path: &WorkspacePath) -> Result<Vec<FolderEntry>, FileError> {
        self.files.list(path)
    }

    fn replace(&self, path: &WorkspacePath, replacement: &Replacement<'_>) -> Result<FileStat, FileError> {
        self.files.replace(path, replacement)
    }

    fn open_log(&self, path: &WorkspacePath) -> Result<Box<dyn LogFile>, FileError> {
        self.files.open_log(path)
    }
}
