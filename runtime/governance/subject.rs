//! What rules are matched against: the call's subject, and where its paths really lead.
//!
//! A path is judged by its spelling and by its end: a link or an alias does not dodge a rule.

use toolwarden_tools::registry::Registered;
use toolwarden_tools::tool::Subject;
use toolwarden_tools::workspace_path::WorkspacePath;

use crate::permission::command::visible_paths;
use crate::permission::{Judged, ResolvedPath};
use crate::proposal::Passage;
use crate::scope::Scope;

/// A call's subject with its paths resolved.
pub(crate) struct CallSubject {
    subject: Subject,
    resolved: Vec<ResolvedPath>,
}

impl CallSubject {
    /// Asks the tool for the subject and the workspace for the paths' ends.
    pub(crate) fn of(entry: &Registered, passage: &Passage, scope: &Scope) -> Self {
        let subject = entry.tool.subject(&passage.arguments);
        let resolved = match &subject {
            Subject::Paths { paths, .. } => paths.iter().filter_map(|path| resolve(path, scope)).collect(),
            Subject::Command(text) => visible_paths(text).iter().filter_map(|path| resolve(path, scope)).collect(),
            Subject::Text(_) => Vec::new(),
        };
        Self { subject, resolved }
    }

    /// As rules look at it.
    pub(crate) fn judged<'a>(&'a self, entry: &'a Registered, scope: &'a Scope) -> Judged<'a> {
        let spec = entry.tool.spec();
        let (subject, resolved) = (&self.subject, &self.resolved);
        Judged { tool: spec.name.as_str(), lane: &spec.lane, subject, resolved, places: scope.places() }
    }
}

fn resolve(requested: &str, scope: &Scope) -> Option<ResolvedPath> {
    let path = WorkspacePath::parse(requested, scope.workspace.display_root()).ok()?;
    let resolved = scope.workspace.files().canonical(&path).ok()?;
    Some(ResolvedPath { requested: requested.to_owned(), resolved: resolved.to_string() })
}
