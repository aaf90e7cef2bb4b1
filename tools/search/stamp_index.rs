//! What is known of a root where nobody tells of changes: each file by its stamp, so that whoever asks must look at it.
//!
//! A search walks as it does without an index, and looks at the stamp of each file instead of into it: while that is the
//! one of the version that stands in a segment, the segment says whether the file may match. A file whose stamp is
//! another one, or that changed too shortly before it was read for a stamp to tell, is unknown. So it is true for the
//! same reason as the index under a watch: what is not known to be the same is looked into.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::effects::files::FileKind;
use crate::search::requirement::Requirement;
use crate::search::segment::{SegmentFile, Stamp};
use crate::search::tree::Content;
use crate::search::trigram::{Candidates, KnownSegment};
use crate::workspace::local::LocalFiles;
use crate::workspace_path::WorkspacePath;

/// Most files that are known by their stamp.
pub(crate) const STAMPED_FILES_MAX: usize = 1_000_000;

/// Files by their path.
#[derive(Clone, Default)]
pub(crate) struct StampIndex {
    files: BTreeMap<Box<[u8]>, Stamped>,
    segments: Vec<Option<KnownSegment>>,
    /// Files that the last pass met and that will stay unknown: too large, with a second name, on another file system.
    pub(crate) left_out: usize,
}

/// What is known of a file.
#[derive(Debug, Clone, Copy)]
struct Stamped {
    stamp: Stamp,
    content: Content,
    /// The pass in which it was met last.
    pass: u64,
}

impl StampIndex {
    /// The stamp of the version that is known of a file.
    pub(crate) fn stamp_of(&self, path: &[u8]) -> Option<Stamp> {
        self.files.get(path).map(|known| known.stamp)
    }

    /// Notes that a file was met.
    pub(crate) fn meet(&mut self, path: &[u8], pass: u64) {
        if let Some(known) = self.files.get_mut(path) {
            known.pass = pass;
        }
    }

    /// Forgets a file.
    pub(crate) fn forget(&mut self, path: &[u8]) {
        self.files.remove(path);
    }

    /// Forgets files that were not met in this pass.
    pub(crate) fn forget_unmet(&mut self, pass: u64) {
        self.files.retain(|_, known| known.pass == pass);
    }

    /// Adds a segment with its files; those whose stamp tells nothing stay unknown.
    pub(crate) fn add(&mut self, segment: KnownSegment, files: &[SegmentFile], pass: u64) {
        let number = self.segments.iter().position(Option::is_none).unwrap_or(self.segments.len());
        if number == self.segments.len() {
            self.segments.push(None);
        }
        self.segments[number] = Some(segment);
        for (at, file) in files.iter().enumerate() {
            let Some(stamp) = file.stamp.filter(|_| self.files.len() < STAMPED_FILES_MAX) else { continue };
            let (segment, binary) = (number as u32, file.binary_at_byte.is_some());
            let content = Content::Indexed { segment, file: at as u16, binary };
            self.files.insert(file.path.as_slice().into(), Stamped { stamp, content, pass });
        }
    }

    /// The segments.
    pub(crate) fn segments(&self) -> &[Option<KnownSegment>] {
        &self.segments
    }

    /// How many files it knows.
    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    /// How many files are known through each segment.
    pub(crate) fn living(&self) -> Vec<usize> {
        let mut living = vec![0; self.segments.len()];
        for known in self.files.values() {
            if let Content::Indexed { segment, .. } = known.content
                && let Some(count) = living.get_mut(segment as usize)
            {
                *count += 1;
            }
        }
        living
    }

    /// Lets a segment go, with all that was known through it.
    pub(crate) fn drop_segment(&mut self, number: u32) -> Option<KnownSegment> {
        self.files.retain(|_, known| !matches!(known.content, Content::Indexed { segment, .. } if segment == number));
        self.segments.get_mut(number as usize)?.take()
    }
}

/// What was known at one moment, for one search.
pub struct StampView {
    index: Arc<StampIndex>,
    files: Arc<LocalFiles>,
    /// Files it was asked for and did not know.
    unknown: AtomicUsize,
}

impl StampView {
    pub(crate) fn new(index: Arc<StampIndex>, files: Arc<LocalFiles>) -> Self {
        Self { index, files, unknown: AtomicUsize::new(0) }
    }

    /// Which files may hold what is required.
    pub fn candidates(&self, required: &Requirement) -> Candidates {
        Candidates::of(&self.index.segments, required)
    }

    /// What is known of a file as it is now.
    pub fn content_of(&self, path: &WorkspacePath) -> Content {
        let known = self.index.files.get(path.as_bytes()).filter(|known| {
            let now = self.files.look_at(path);
            now.is_some_and(|(stat, changed)| {
                stat.kind == FileKind::File && stat.link_count == 1 && Stamp::of(&stat, changed) == known.stamp
            })
        });
        match known {
            Some(known) => known.content,
            None => {
                self.unknown.fetch_add(1, Ordering::Relaxed);
                Content::Unknown
            }
        }
    }

    /// Whether it was asked for more unknown files than there will always be.
    pub fn met_unknown(&self) -> bool {
        self.unknown.load(Ordering::Relaxed) > self.index.left_out
    }
}
