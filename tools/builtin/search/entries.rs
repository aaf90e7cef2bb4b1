//! What a search goes through: a walk over the files, or a view of what an index knows of them.
//!
//! Both give the same entries in the same order and leave the same things out. What the index knows not to match is
//! not handed out, only counted, but for files of which something must be told: a binary one, and one whose content
//! this session may not see, which is met as every session meets it, so that nobody learns from the index what is in
//! it.

use std::sync::Arc;

use super::{Request, Step, fault, wrong};
use crate::effects::files::{FileKind, FolderEntry, Links};
use crate::search::requirement::Requirement;
use crate::search::stamp_index::StampView;
use crate::search::tree::{Content, Leaf, Tree, TreeWalk, entry_of};
use crate::search::trigram::{Candidates, View};
use crate::search::walk::{StartError, Walk, WalkCounts, WalkOptions};
use crate::workspace_path::WorkspacePath;

/// Where entries come from.
pub(super) enum Ground<'a> {
    /// The files themselves, with what is known of them by their stamps.
    Walk { walk: Box<Walk<'a>>, stamps: Option<StampView> },
    /// What is known.
    View { view: View, start: WorkspacePath, below: Option<WorkspacePath> },
}

impl<'a> Ground<'a> {
    /// Takes what is known when it speaks of all that is asked for, else walks.
    pub(super) fn of(request: &'a Request, options: WalkOptions) -> Step<Self> {
        if let Some(known) = Self::known(request, &options) {
            return Ok(known);
        }
        let walk = Walk::start(request.files.as_ref(), &request.start, options).map_err(|error| match error {
            StartError::File(error) => fault(&error),
            error @ StartError::InGit { .. } => wrong(error.to_string()),
        })?;
        // A single file is looked into: with all of its bytes, whatever an index knows of its text.
        let index = request.index.as_ref().filter(|_| !walk.is_single_file());
        let stamps = index.and_then(|index| index.stamp_view());
        Ok(Self::Walk { walk: Box::new(walk), stamps })
    }

    fn known(request: &Request, options: &WalkOptions) -> Option<Self> {
        // Hidden names are not in the tree.
        let index = request.index.as_ref().filter(|_| !options.hidden)?;
        let start = request.files.canonical(&request.start).ok()?;
        let stat = request.files.stat(&start, Links::Stay).ok()?;
        // A folder without a name was removed while it is held open.
        if stat.kind != FileKind::Folder || stat.link_count == 0 {
            return None;
        }
        let view = index.view()?;
        view.tree().find_folder(&start)?;
        Some(Self::View { view, start, below: options.below.clone() })
    }

    /// Where it starts, without links.
    pub(super) fn start(&self) -> &WorkspacePath {
        match self {
            Self::Walk { walk, .. } => walk.start_path(),
            Self::View { start, .. } => start,
        }
    }

    /// Whether it is a single file.
    pub(super) fn is_single_file(&self) -> bool {
        matches!(self, Self::Walk { walk, .. } if walk.is_single_file())
    }
}

/// An entry to be looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// It.
    pub(super) entry: FolderEntry,
    /// Files before it that are known not to match.
    pub(super) passed: u64,
    /// Whether it is known not to match as well, and named only because it is binary.
    pub(super) binary: bool,
}

/// The files that a search looks into, in path order.
pub(super) struct Entries<'a> {
    request: &'a Request,
    source: Source<'a>,
    start: WorkspacePath,
    /// Links that were left out.
    pub(super) links: u64,
    /// Files behind the last entry that are known not to match.
    pub(super) passed: u64,
}

enum Source<'a> {
    Walk { walk: &'a mut Walk<'a>, stamps: Option<(&'a StampView, Candidates)> },
    Tree { walk: TreeWalk<'a>, candidates: Candidates },
}

impl<'a> Entries<'a> {
    /// The files that `request` includes and that may fulfil what is required.
    pub(super) fn new(request: &'a Request, ground: &'a mut Ground<'a>, required: &Requirement) -> Self {
        let start = ground.start().clone();
        let source = match ground {
            Ground::Walk { walk, stamps } => {
                let stamps = stamps.as_ref().filter(|_| !required.is_nothing());
                Source::Walk { walk, stamps: stamps.map(|stamps| (stamps, stamps.candidates(required))) }
            }
            Ground::View { view, start, below } => {
                let candidates = view.candidates(required);
                Source::Tree { walk: walk_of(view.tree(), start, below.clone()), candidates }
            }
        };
        Self { request, source, start, links: 0, passed: 0 }
    }

    /// Tells the index what was met, so that more is known for the next search.
    pub(super) fn take_back(&self) {
        if let (Source::Walk { stamps: Some((stamps, _)), .. }, Some(index)) = (&self.source, &self.request.index) {
            index.take_back(stamps);
        }
    }

    /// What was left out so far.
    pub(super) fn counts(&self) -> WalkCounts {
        match &self.source {
            Source::Walk { walk, .. } => walk.counts(),
            Source::Tree { walk, .. } => walk.counts(),
        }
    }
}

/// A walk over the tree from a folder that is in it.
pub(super) fn walk_of<'a>(tree: &'a Tree, start: &WorkspacePath, below: Option<WorkspacePath>) -> TreeWalk<'a> {
    // A start that is not in the tree gives nothing; it was looked for when the view was taken.
    TreeWalk::start(tree, tree.find_folder(start).unwrap_or(u32::MAX), below)
}

impl Iterator for Entries<'_> {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        let Self { request, source, start, links, passed } = self;
        match source {
            Source::Walk { walk, stamps } => loop {
                let entry = walk.next()?;
                if !request.wants(entry.path.as_bytes(), start) {
                    continue;
                }
                match entry.kind {
                    FileKind::File => {}
                    FileKind::Link => {
                        *links += 1;
                        continue;
                    }
                    _ => continue,
                }
                let content = stamps.as_ref().map_or(Content::Unknown, |(stamps, _)| stamps.content_of(&entry.path));
                let matches_not = stamps.as_ref().is_some_and(|(_, candidates)| !candidates.may_hold(content))
                    && (!request.files.is_guarded() || request.files.may_read(&entry.path).is_ok());
                let binary = matches_not && matches!(content, Content::Indexed { binary: true, .. });
                if binary || !matches_not {
                    return Some(Entry { entry, passed: std::mem::take(passed), binary });
                }
                *passed += 1;
            },
            Source::Tree { walk, candidates } => loop {
                let leaf = walk.next_leaf()?;
                if request.include.is_some() && !request.wants(walk.path(), start) {
                    continue;
                }
                let content = match leaf {
                    Leaf::File(content) => content,
                    Leaf::Link => {
                        *links += 1;
                        continue;
                    }
                };
                let matches_not = !candidates.may_hold(content)
                    && (!request.files.is_guarded()
                        || request.files.may_read(&entry_of(walk.path(), leaf).path).is_ok());
                let binary = matches_not && matches!(content, Content::Indexed { binary: true, .. });
                if binary || !matches_not {
                    let entry = entry_of(walk.path(), leaf);
                    return Some(Entry { entry, passed: std::mem::take(passed), binary });
                }
                *passed += 1;
            },
        }
    }
}

/// The index that is to be begun when a search has ended.
pub(super) type Index = Arc<crate::search::resident_index::ResidentIndex>;
