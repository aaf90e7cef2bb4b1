//! What the searches of a root and the thread behind its index share.
//!
//! All that is known stands behind one lock, which is held for as long as it takes to hear of changes or to take a
//! view, and never while a file is read.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::cancellation::Cancellation;
use crate::effects::folder_watch::WatchError;
use crate::search::stamp_index::StampIndex;
use crate::search::told_files::BeginTelling;
use crate::search::tree::TreeError;
use crate::search::trigram::Knowledge;
use crate::workspace::local::LocalFiles;
use crate::workspace_path::WorkspacePath;

/// Most files whose words are asked for at once.
const WANTED_MAX: usize = 8192;

/// What is known, or why it is not.
pub(crate) enum Phase {
    /// Nobody asked yet.
    Idle,
    /// The tree is being read.
    Reading,
    /// It is in use.
    Known(Box<Knowledge>),
    /// Nobody tells of changes, and files are known by their stamps.
    Stamped(Arc<StampIndex>),
    /// It is not to be had.
    Failed,
}

/// What the searches and the thread share.
pub(crate) struct Shared {
    /// Begins to be told of changes of its files.
    pub(crate) begin: BeginTelling,
    /// The same files, where they are of this machine and so have stamps to know them by.
    pub(crate) files: Option<Arc<LocalFiles>>,
    pub(crate) root: PathBuf,
    pub(crate) cache: Option<PathBuf>,
    pub(crate) cancel: Cancellation,
    /// Written to when there is something to do.
    pub(crate) wake: OwnedFd,
    state: Mutex<State>,
    /// Told when the phase changes or the thread rests.
    pub(crate) changed: Condvar,
}

/// What is behind the lock.
pub(crate) struct State {
    pub(crate) phase: Phase,
    /// Whether the thread waits for changes.
    pub(crate) resting: bool,
    /// Files whose words are to be kept; none when nobody asked since they were looked at.
    pub(crate) wanted: Option<Vec<WorkspacePath>>,
    /// Whether files that are known by their stamps are to be looked through.
    pub(crate) pass_wanted: bool,
}

impl Shared {
    /// Nobody asked yet.
    pub(crate) fn new(
        begin: BeginTelling,
        files: Option<Arc<LocalFiles>>,
        root: PathBuf,
        cache: Option<PathBuf>,
        wake: OwnedFd,
    ) -> Self {
        let state = State { phase: Phase::Idle, resting: false, wanted: None, pass_wanted: false };
        Self {
            begin,
            files,
            root,
            cache,
            cancel: Cancellation::new(),
            wake,
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// The state, for a moment.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes on to another phase.
    pub(crate) fn enter(&self, phase: Phase) {
        let before = std::mem::replace(&mut self.lock().phase, phase);
        drop(before);
        self.changed.notify_all();
    }

    /// Says whether the thread waits for changes.
    pub(crate) fn rest(&self, resting: bool) {
        self.lock().resting = resting;
        self.changed.notify_all();
    }

    /// Asks for the words of files to be kept.
    pub(crate) fn want_words(&self, paths: Vec<WorkspacePath>) {
        let mut state = self.lock();
        if matches!(state.phase, Phase::Stamped(_) | Phase::Failed) {
            // No words are kept there.
            return;
        }
        let wanted = state.wanted.get_or_insert_default();
        // What does not fit is asked for again by whoever needs it.
        let room = WANTED_MAX.saturating_sub(wanted.len());
        wanted.extend(paths.into_iter().take(room));
        drop(state);
        self.wake();
    }

    /// The files whose words were asked for since the last time; none when nobody asked.
    pub(crate) fn take_wanted(&self) -> Option<Vec<WorkspacePath>> {
        self.lock().wanted.take()
    }

    /// Whether there may be files to index or words to keep.
    pub(crate) fn has_work(&self) -> bool {
        let state = self.lock();
        match &state.phase {
            Phase::Known(known) => known.has_unknown() || state.wanted.is_some(),
            Phase::Stamped(_) => state.pass_wanted,
            // To be begun anew.
            _ => true,
        }
    }

    /// Asks for all files to be looked through, where nobody tells of changes.
    pub(crate) fn want_pass(&self) {
        self.lock().pass_wanted = true;
        self.wake();
    }

    /// Works with what is known.
    ///
    /// # Errors
    /// What the work gives, or [`WatchError::Overrun`] when nothing is known any more.
    pub(crate) fn with_knowledge<R>(
        &self,
        work: impl FnOnce(&mut Knowledge) -> Result<R, TreeError>,
    ) -> Result<R, TreeError> {
        match &mut self.lock().phase {
            Phase::Known(known) => work(known),
            _ => Err(WatchError::Overrun.into()),
        }
    }

    /// Says that there is something to do.
    pub(crate) fn wake(&self) {
        // A counter that is full wakes as well.
        let _full = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}
