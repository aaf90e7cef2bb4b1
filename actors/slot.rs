//! Where a handle finds its actor, also after the supervisor has started it anew.
//!
//! A handle is made once and lives as long as the runtime; the actor behind it may end and come back. Every start
//! puts the new reference here, every call looks here, so no handle ever keeps talking to a dead mailbox.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use ractor::ActorRef;
use thiserror::Error;

/// The place of one actor; clones share it.
pub struct Slot<M> {
    actor: Arc<ArcSwapOption<ActorRef<M>>>,
}

/// Nobody is there to take the message: the actor was not started yet, or it ended and is not back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("this part of the runtime is not running; try again once its supervisor has started it")]
pub struct NotRunning;

impl<M> Slot<M> {
    /// An empty place.
    pub fn new() -> Self {
        Self { actor: Arc::new(ArcSwapOption::empty()) }
    }

    /// The actor that was put here last; it may have ended since.
    ///
    /// # Errors
    /// [`NotRunning`] while none was ever put here.
    pub fn get(&self) -> Result<ActorRef<M>, NotRunning> {
        self.actor.load().as_deref().cloned().ok_or(NotRunning)
    }

    /// Puts the actor that takes messages from now on.
    pub fn put(&self, actor: ActorRef<M>) {
        self.actor.store(Some(Arc::new(actor)));
    }
}

impl<M> Clone for Slot<M> {
    fn clone(&self) -> Self {
        Self { actor: Arc::clone(&self.actor) }
    }
}

impl<M> Default for Slot<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M> fmt::Debug for Slot<M> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("Slot").field(&self.actor.load().as_deref()).finish()
    }
}
