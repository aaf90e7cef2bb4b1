//! What a runtime keeps in memory of the folders that are searched again and again.
//!
//! There is one index for each root, shared by all sessions that work on it. It begins when the first search of a root
//! has ended, so that it delays none, and it is used only when it is true: whoever asks while it is being read, or when
//! it had to be given up, searches without it. The thread behind it ends with the runtime.
//!
//! What a watch cannot tell is not seen until the file is changed in another way: stores through a mapping that
//! outlives its descriptor, a second name that a known file gets outside of the workspace, a file system that is
//! mounted over a folder of it.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use rustix::event::EventfdFlags;
use rustix::io::Errno;

use crate::cancellation::CancelReason;
use crate::effects::files::{FileError, Files, Links};
use crate::effects::folder_watch::{FolderWatches, SystemWatches};
use crate::search::index_state::{Phase, Shared};
use crate::search::indexer;
use crate::search::stamp_index::StampView;
use crate::search::told_files::{BeginTelling, ToldLocalFiles};
use crate::search::trigram::View;
use crate::workspace::local::LocalFiles;
use crate::workspace_path::WorkspacePath;

/// Most roots that are held at once; beyond it the one that was asked for longest ago goes.
pub const ROOTS_MAX: usize = 8;

/// Where an index stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IndexStatus {
    /// Whether searches use it.
    pub ready: bool,
    /// Whether nobody tells of changes, so that every search looks at the stamps of all files.
    pub by_stamps: bool,
    /// Whether it was given up.
    pub failed: bool,
    /// Files, links and folders of its tree.
    pub entries: usize,
    /// Segments.
    pub segments: usize,
    /// Bytes of segments.
    pub bytes: u64,
    /// Files whose words are kept.
    pub words_files: usize,
    /// Memory of words, in bytes.
    pub words_bytes: usize,
}

/// The index of one root.
pub struct ResidentIndex {
    shared: Arc<Shared>,
    identity: (u64, u64),
    /// Whether it works only when it is told to, on the thread of whoever says so.
    by_hand: bool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl ResidentIndex {
    /// Opens a root; nothing is read yet. A `cache` that lies inside of the root is not used.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(root: PathBuf, cache: Option<PathBuf>, watches: Arc<dyn FolderWatches>) -> Result<Self, FileError> {
        let (files, absolute) = LocalFiles::open(&root)?;
        let identity = files.stat(&WorkspacePath::root(), Links::Follow)?.identity;
        // A cache inside of the workspace would be searched, and stand beside the user's own files.
        let cache = cache.filter(|cache| !cache.starts_with(&absolute));
        let files = Arc::new(files);
        let its = Arc::clone(&files);
        let begin: BeginTelling = Box::new(move || Ok(Arc::new(ToldLocalFiles::begin(Arc::clone(&its), &*watches)?)));
        let wake = wake(&absolute)?;
        let shared = Shared::new(begin, Some(files), absolute, cache, wake);
        Ok(Self { shared: Arc::new(shared), identity, by_hand: false, thread: Mutex::new(None) })
    }

    /// Over any files of which every change is told, such as pretended ones, under the name and the identity that
    /// their root has. It has no thread and no cache, and works when [`Self::step`] is called.
    ///
    /// # Errors
    /// What the system says.
    pub fn by_hand(root: PathBuf, identity: (u64, u64), begin: BeginTelling) -> Result<Self, FileError> {
        let wake = wake(&root)?;
        let shared = Shared::new(begin, None, root, None, wake);
        Ok(Self { shared: Arc::new(shared), identity, by_hand: true, thread: Mutex::new(None) })
    }

    /// Does what there is to do now, on this thread, for an index without one of its own. Returns whether searches use
    /// the index then.
    pub fn step(&self) -> bool {
        self.by_hand && !self.shared.cancel.is_cancelled() && indexer::step(&self.shared)
    }

    /// Begins to read, unless that was begun.
    pub fn begin(&self) {
        if self.by_hand {
            return;
        }
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_some() || self.shared.cancel.is_cancelled() {
            return;
        }
        let mut state = self.shared.lock();
        if !matches!(state.phase, Phase::Idle) {
            return;
        }
        state.phase = Phase::Reading;
        drop(state);
        let shared = Arc::clone(&self.shared);
        let spawned = Builder::new().name("search-index".to_owned()).spawn(move || indexer::run(&shared));
        match spawned {
            Ok(handle) => *thread = Some(handle),
            Err(_) => self.shared.enter(Phase::Failed),
        }
    }

    /// What is known now, after all that changed was heard; none when nothing is.
    pub fn view(&self) -> Option<View> {
        let mut state = self.shared.lock();
        let Phase::Known(known) = &mut state.phase else { return None };
        let had_unknown = known.has_unknown();
        match known.view() {
            Ok(view) => {
                if known.has_unknown() && !had_unknown {
                    self.shared.wake();
                }
                Some(view)
            }
            Err(error) => {
                tracing::info!(%error, root = %self.shared.root.display(), "this search goes without an index");
                state.phase = Phase::Reading;
                self.shared.wake();
                None
            }
        }
    }

    /// What is known by stamps, where nobody tells of changes; none elsewhere.
    pub fn stamp_view(&self) -> Option<StampView> {
        match (&self.shared.lock().phase, &self.shared.files) {
            (Phase::Stamped(index), Some(files)) => Some(StampView::new(Arc::clone(index), Arc::clone(files))),
            _ => None,
        }
    }

    /// Tells what a search met, when it has ended, so that more is known for the next one.
    pub fn take_back(&self, view: &StampView) {
        if view.met_unknown() {
            self.shared.want_pass();
        }
    }

    /// Asks for the words of these files to be kept, so that the next ranking need not read them; all words are, where
    /// there is little text. Costs nothing now: the thread behind the index does it.
    pub fn want_words(&self, paths: Vec<WorkspacePath>) {
        self.shared.want_words(paths);
    }

    /// Where it stands.
    pub fn status(&self) -> IndexStatus {
        let state = self.shared.lock();
        let failed = matches!(state.phase, Phase::Failed);
        match &state.phase {
            Phase::Known(known) => IndexStatus {
                words_files: known.words_kept().0,
                words_bytes: known.words_kept().1,
                by_stamps: false,
                ready: true,
                failed,
                entries: known.tree().len(),
                segments: known.segments().iter().flatten().count(),
                bytes: known.segments().iter().flatten().map(|known| known.segment.bytes()).sum(),
            },
            Phase::Stamped(index) => IndexStatus {
                ready: true,
                by_stamps: true,
                failed,
                entries: index.len(),
                segments: index.segments().iter().flatten().count(),
                bytes: index.segments().iter().flatten().map(|known| known.segment.bytes()).sum(),
                ..IndexStatus::default()
            },
            _ => IndexStatus { failed, ..IndexStatus::default() },
        }
    }

    /// Blocks until everything that changed so far is indexed and the words that were asked for are kept; false when that
    /// is not to be had in time.
    pub fn wait_until_indexed(&self, timeout: Duration) -> bool {
        let mut state = self.shared.lock();
        let mut left = timeout;
        // In steps: a change is told to nobody but who asks.
        let step = Duration::from_millis(20);
        // A pass that was asked for has ended when it is wanted no more and the thread rests.
        let mut pass_asked = false;
        loop {
            let (resting, pass_wanted, words_wanted) = (state.resting, state.pass_wanted, state.wanted.is_some());
            match &mut state.phase {
                Phase::Failed => return false,
                Phase::Known(known) => {
                    if known.refresh().is_ok() && resting && !words_wanted && !known.has_unknown() {
                        return true;
                    }
                    self.shared.wake();
                }
                Phase::Stamped(_) if pass_asked && resting && !pass_wanted => return true,
                Phase::Stamped(_) => {
                    state.pass_wanted |= !pass_asked;
                    pass_asked = true;
                    self.shared.wake();
                }
                Phase::Idle | Phase::Reading => {}
            }
            if left.is_zero() || self.shared.cancel.is_cancelled() {
                return false;
            }
            let wait = self.shared.changed.wait_timeout(state, step.min(left));
            state = wait.unwrap_or_else(PoisonError::into_inner).0;
            left = left.saturating_sub(step);
        }
    }

    /// Ends the thread and waits for it.
    pub fn close(&self) {
        self.shared.cancel.cancel(CancelReason::Shutdown);
        self.shared.wake();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic there was told by the thread itself; searches go without the index then.
            let _panicked = thread.join();
        }
        self.shared.enter(Phase::Failed);
    }
}

impl Drop for ResidentIndex {
    fn drop(&mut self) {
        self.close();
    }
}

/// What wakes the thread of an index.
fn wake(root: &Path) -> Result<OwnedFd, FileError> {
    let refused = |errno: Errno| FileError::Io { op: "watch", path: root.display().to_string(), source: errno.into() };
    rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(refused)
}

/// The indexes of a runtime, by root.
pub struct ResidentIndexes {
    cache: Option<PathBuf>,
    watches: Arc<dyn FolderWatches>,
    roots: Mutex<Roots>,
}

#[derive(Default)]
struct Roots {
    /// With the number of the call that asked for it last.
    by_path: BTreeMap<PathBuf, (u64, Arc<ResidentIndex>)>,
    calls: u64,
    closed: bool,
}

impl std::fmt::Debug for ResidentIndexes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResidentIndexes").field("cache", &self.cache).finish_non_exhaustive()
    }
}

impl ResidentIndexes {
    /// None yet. Segments are kept in folders beneath `cache`; without one, what fits stays in memory.
    pub fn new(cache: Option<PathBuf>) -> Self {
        Self::with_watches(cache, Arc::new(SystemWatches))
    }

    /// As [`Self::new`], told of changes by these watches.
    pub fn with_watches(cache: Option<PathBuf>, watches: Arc<dyn FolderWatches>) -> Self {
        Self { cache, watches, roots: Mutex::default() }
    }

    /// With this index for its root.
    #[must_use]
    pub fn with(self, index: ResidentIndex) -> Self {
        let root = index.shared.root.clone();
        let mut roots = self.roots.lock().unwrap_or_else(PoisonError::into_inner);
        roots.by_path.insert(root, (0, Arc::new(index)));
        drop(roots);
        self
    }

    /// The index for what is read through these files; none when it would not be true for them.
    pub fn of(&self, files: &dyn Files) -> Option<Arc<ResidentIndex>> {
        let root = files.folder_on_disk()?;
        let identity = files.stat(&WorkspacePath::root(), Links::Follow).ok()?.identity;
        let mut roots = self.roots.lock().unwrap_or_else(PoisonError::into_inner);
        if roots.closed {
            return None;
        }
        roots.calls += 1;
        let call = roots.calls;
        if let Some((last, index)) = roots.by_path.get_mut(root)
            && index.identity == identity
        {
            *last = call;
            return Some(Arc::clone(index));
        }
        let index = Arc::new(ResidentIndex::open(root.to_owned(), self.cache.clone(), Arc::clone(&self.watches)).ok()?);
        if index.identity != identity {
            // The folder was renamed since it was opened, and another one stands in its place.
            return None;
        }
        let mut gone: Vec<_> = roots.by_path.insert(root.to_owned(), (call, Arc::clone(&index))).into_iter().collect();
        if roots.by_path.len() > ROOTS_MAX
            && let Some(oldest) = roots.by_path.iter().min_by_key(|(_, (last, _))| *last).map(|(path, _)| path.clone())
        {
            gone.extend(roots.by_path.remove(&oldest));
        }
        drop(roots);
        gone.iter().for_each(|(_, index)| index.close());
        Some(index)
    }

    /// Ends all threads and waits for them; no index is given from now on.
    pub fn close(&self) {
        let mut roots = self.roots.lock().unwrap_or_else(PoisonError::into_inner);
        roots.closed = true;
        let all = std::mem::take(&mut roots.by_path);
        drop(roots);
        all.values().for_each(|(_, index)| index.close());
    }

    /// As [`Self::close`], where there is no thread to wait for; whether that was so.
    pub fn close_when_idle(&self) -> bool {
        let mut roots = self.roots.lock().unwrap_or_else(PoisonError::into_inner);
        let is_idle = roots.by_path.is_empty();
        roots.closed |= is_idle;
        is_idle
    }
}

impl Drop for ResidentIndexes {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::ResidentIndexes;
    use crate::workspace::local::LocalFiles;

    #[test]
    fn only_where_nothing_runs_is_closing_no_work() {
        let folder = tempfile::tempdir().unwrap();
        let files = LocalFiles::open(folder.path()).unwrap().0;
        let indexes = ResidentIndexes::new(None);
        assert!(indexes.of(&files).is_some());
        assert!(!indexes.close_when_idle());
        assert!(indexes.of(&files).is_some(), "it was not closed");
        indexes.close();
        assert!(indexes.of(&files).is_none());
        let idle = ResidentIndexes::new(None);
        assert!(idle.close_when_idle() && idle.of(&files).is_none());
    }
}
