//! The files of a workspace without those that a policy denies: a second line behind the permission stage.
//!
//! The permission stage judges the paths that a call names. A search names none of the files it reads, so a file
//! that `read` is denied is denied here too, by its own path and by where it really leads, whichever tool opens it.
//! It is still listed: its name is not its content.

use std::path::Path;
use std::sync::Arc;

use toolwarden_tools::cancellation::Cancellation;
use toolwarden_tools::effects::files::together::{FileChange, TogetherError};
use toolwarden_tools::effects::files::{
    Expected, FileError, FileStat, Files, FolderEntry, Links, LogFile, NewFile, OpenFile, Replacement, SizedEntry,
};
use toolwarden_tools::tool::{Lane, Subject};
use toolwarden_tools::workspace_path::WorkspacePath;

use crate::permission::{Judged, Places, ResolvedPath, Verdict, judge};
use crate::policy::compiled::CompiledPolicy;

/// The tool whose deny rules guard every reading of a file.
const READER: (&str, Lane) = ("read", Lane::Query);
/// The tools whose deny rules guard what a call writes to a path that it did not name.
const WRITERS: [(&str, Lane); 2] = [("write", Lane::Execute), ("download", Lane::Network)];

/// A files port that opens nothing that a policy denies to `read`.
pub(crate) struct GuardedFiles {
    files: Arc<dyn Files>,
    policies: Vec<Arc<CompiledPolicy>>,
    root: Option<Arc<str>>,
    home: Option<Arc<str>>,
}

impl GuardedFiles {
    /// Guards a port, or gives it back as it is when no policy denies any path.
    pub(crate) fn over(files: Arc<dyn Files>, policies: &[Arc<CompiledPolicy>], places: Places<'_>) -> Arc<dyn Files> {
        let policies: Vec<_> = policies
            .iter()
            .filter(|policy| {
                policy.denies_some(READER.0, &READER.1)
                    || WRITERS.iter().any(|(tool, lane)| policy.denies_some(tool, lane))
            })
            .cloned()
            .collect();
        if policies.is_empty() {
            return files;
        }
        let (root, home) = (places.root.map(Arc::from), places.home.map(Arc::from));
        Arc::new(Self { files, policies, root, home })
    }

    /// Refuses a path that a policy denies to one of these tools.
    fn check(&self, tools: &[(&str, Lane)], path: &WorkspacePath, write: bool) -> Result<(), FileError> {
        let requested = path.to_string();
        let resolved = self.files.canonical(path).map_or_else(|_| requested.clone(), |end| end.to_string());
        let subject = Subject::Paths { paths: vec![requested.clone()], write };
        let resolved = [ResolvedPath { requested: requested.clone(), resolved }];
        let places = Places { root: self.root.as_deref(), home: self.home.as_deref() };
        let denied = |policy: &Arc<CompiledPolicy>| {
            tools.iter().find_map(|(tool, lane)| {
                match judge(policy, &Judged { tool, lane, subject: &subject, resolved: &resolved, places }) {
                    // A default of deny speaks of calls that no rule names, not of files.
                    Verdict::Deny { rule, .. } if rule != "default" => Some(rule),
                    _ => None,
                }
            })
        };
        match self.policies.iter().find_map(denied) {
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
        self.check(&[READER], path, false)?;
        self.files.open(path)
    }

    fn open_listed(&self, path: &WorkspacePath) -> Result<Box<dyn OpenFile>, FileError> {
        self.check(&[READER], path, false)?;
        self.files.open_listed(path)
    }

    fn folder_on_disk(&self) -> Option<&Path> {
        self.files.folder_on_disk()
    }

    fn is_guarded(&self) -> bool {
        true
    }

    fn may_read(&self, path: &WorkspacePath) -> Result<(), FileError> {
        self.check(&[READER], path, false)
    }

    fn list(&self, path: &WorkspacePath) -> Result<Vec<FolderEntry>, FileError> {
        self.files.list(path)
    }

    fn list_sized(&self, path: &WorkspacePath) -> Result<Vec<SizedEntry>, FileError> {
        self.files.list_sized(path)
    }

    fn walk_entries_max(&self) -> Option<u64> {
        self.files.walk_entries_max()
    }

    fn bound_to(&self, cancel: &Cancellation) -> Option<Arc<dyn Files>> {
        let files = self.files.bound_to(cancel)?;
        let (policies, root, home) = (self.policies.clone(), self.root.clone(), self.home.clone());
        Some(Arc::new(Self { files, policies, root, home }))
    }

    fn takes_pieces(&self) -> bool {
        self.files.takes_pieces()
    }

    fn begin(&self, path: &WorkspacePath) -> Result<Box<dyn NewFile>, FileError> {
        self.files.begin(path)
    }

    fn may_write(&self, path: &WorkspacePath) -> Result<(), FileError> {
        self.check(&WRITERS, path, true)?;
        self.files.may_write(path)
    }

    fn replace(&self, path: &WorkspacePath, replacement: &Replacement<'_>) -> Result<FileStat, FileError> {
        self.files.replace(path, replacement)
    }

    fn open_log(&self, path: &WorkspacePath) -> Result<Box<dyn LogFile>, FileError> {
        self.files.open_log(path)
    }

    fn remove(&self, path: &WorkspacePath, expected: &Expected) -> Result<(), FileError> {
        self.files.remove(path, expected)
    }

    fn change_together(&self, changes: &[FileChange<'_>], go_on: &dyn Fn() -> bool) -> Result<(), TogetherError> {
        self.files.change_together(changes, go_on)
    }
}
