//! Words of files that a ranking asked for, kept in bounded memory while their files stay what they were.
//!
//! Each is kept under the place of its file in a segment. That place stands for one version of one file: when the file
//! changes it gets another one, and what is kept of the old version is never asked for again.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::search::words::FileWords;
use crate::workspace_path::WorkspacePath;

/// Most memory of the words of one root, in bytes: those of several times as much text.
pub const WORDS_BYTES_MAX: usize = 48 * 1024 * 1024;
/// What an entry takes beside its words and its path, in bytes.
const ENTRY_BYTES: usize = 128;

/// Which version of which file: the serial number of a segment, and the file in it.
pub type VersionId = (u64, u16);

/// The words that are kept.
#[derive(Debug, Default)]
pub struct WordCache {
    kept: BTreeMap<VersionId, (WorkspacePath, Arc<FileWords>)>,
    bytes: usize,
}

impl WordCache {
    /// The words of a version.
    pub fn get(&self, id: VersionId) -> Option<&Arc<FileWords>> {
        self.kept.get(&id).map(|(_, words)| words)
    }

    /// Keeps the words of a version; false when there is no room for them.
    pub fn keep(&mut self, id: VersionId, path: WorkspacePath, words: FileWords) -> bool {
        let bytes = cost(&path, &words);
        if self.bytes + bytes > WORDS_BYTES_MAX {
            return false;
        }
        if let Some((path, words)) = self.kept.insert(id, (path, Arc::new(words))) {
            self.bytes -= cost(&path, &words);
        }
        self.bytes += bytes;
        true
    }

    /// Lets go of what `is_current` does not know any more.
    pub fn prune(&mut self, is_current: impl Fn(VersionId, &WorkspacePath) -> bool) {
        let bytes = &mut self.bytes;
        self.kept.retain(|id, (path, words)| {
            let stays = is_current(*id, path);
            *bytes -= if stays { 0 } else { cost(path, words) };
            stays
        });
    }

    /// How many files it knows the words of.
    pub fn len(&self) -> usize {
        self.kept.len()
    }

    /// Whether it knows none.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Memory that it takes, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

fn cost(path: &WorkspacePath, words: &FileWords) -> usize {
    ENTRY_BYTES + path.as_bytes().len() + words.bytes()
}

#[cfg(test)]
mod tests {
    use super::{WORDS_BYTES_MAX, WordCache};
    use crate::search::text::Extent;
    use crate::search::twin::at;
    use crate::search::words::FileWords;

    fn words(terms: usize) -> FileWords {
        let text: String = (0..terms).map(|n| format!("word{n:06}x ")).collect();
        FileWords::of("a", text.as_bytes(), Extent::default())
    }

    #[test]
    fn memory_is_counted_and_bounded_and_what_is_old_makes_room() {
        let mut cache = WordCache::default();
        let mut kept = 0_u16;
        let many = words(4_000);
        while cache.keep((0, kept), at("a"), many.clone()) {
            kept += 1;
        }
        assert!(kept > 10 && cache.bytes() <= WORDS_BYTES_MAX, "{kept}");
        assert_eq!(cache.len(), usize::from(kept));
        let full = cache.bytes();
        // The same again takes the place of the first.
        assert!(!cache.keep((0, 0), at("a"), many.clone()));
        cache.prune(|(_, file), _| file >= 5);
        assert_eq!(cache.bytes(), full / usize::from(kept) * (usize::from(kept) - 5));
        assert!(cache.get((0, 0)).is_none() && cache.get((0, 5)).is_some());
        assert!(cache.keep((1, 0), at("b"), many.clone()));
        assert!(cache.keep((1, 0), at("b"), words(10)));
        cache.prune(|_, _| false);
        assert_eq!((cache.bytes(), cache.is_empty()), (0, true));
    }
}
