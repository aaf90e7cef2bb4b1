//! What the searches of a root and the thread behind its index share.
//!
//! All that is known stands behind one lock, which is held for as long as it takes to hear of changes or to take a
//! view, and never while a file is read.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::cancellation::Cancellation;
use crate::effects::folder_watch::WatchError;
use crate::search::told_files::BeginTelling;
use crate::search::tree::TreeError;
use crate::search::trigram::Knowledge;

/// What is known, or why it is not.
pub(crate) enum Phase {
    /// Nobody asked yet.
    Idle,
    /// The tree is being read.
    Reading,
    /// It is in use.
    Known(Box<Knowledge>),
    /// It is not to be had.
    Failed,
}

/// What the searches and the thread share.
pub(crate) struct Shared {
    /// Begins to be told of changes of its files.
    pub(crate) begin: BeginTelling,
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
}

impl Shared {
    /// Nobody asked yet.
    pub(crate) fn new(begin: BeginTelling, root: PathBuf, cache: Option<PathBuf>, wake: OwnedFd) -> Self {
        Self {
            begin,
            root,
            cache,
            cancel: Cancellation::new(),
            wake,
            state: Mutex::new(State { phase: Phase::Idle, resting: false }),
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

    /// Whether there may be files to index.
    pub(crate) fn has_unknown(&self) -> bool {
        match &self.lock().phase {
            Phase::Known(known) => known.has_unknown(),
            // To be begun anew.
            _ => true,
        }
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
