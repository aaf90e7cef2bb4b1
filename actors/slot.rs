//! Where a handle finds its actor, also after the supervisor has started it anew.
//!
//! A handle is made once and lives as long as the runtime; the actor behind it may end and come back. Every start
//! puts the new reference here, every call looks here, so no handle keeps talking to a dead mailbox. Between the
//! end of one incarnation and the start of the next the answer is [`NotRunning`], at once: a call never waits for
//! a restart that may not come.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use ractor::{ActorRef, ActorStatus};
use thiserror::Error;

/// The place of one actor; clones share it.
pub struct Slot<M> {
    actor: Arc<ArcSwapOption<ActorRef<M>>>,
}

impl<M> Slot<M> {
    /// An empty place.
    pub fn new() -> Self {
        Self { actor: Arc::new(ArcSwapOption::empty()) }
    }

    /// The incarnation that runs now.
    ///
    /// # Errors
    /// [`NotRunning`] while none was put here, or the last one ends or has ended.
    pub fn get(&self) -> Result<ActorRef<M>, NotRunning> {
        let actor = self.actor.load();
        match actor.as_deref() {
            Some(actor) if actor.get_status() < ActorStatus::Draining => Ok(actor.clone()),
            _ => Err(NotRunning),
        }
    }

    /// Puts the incarnation that takes messages from now on; the child's start does this.
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

/// Nobody is there to take the message: the actor was not started yet, or it ended and is not back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("this part of the runtime is not running; try again once its supervisor has started it")]
pub struct NotRunning;

#[cfg(test)]
mod tests {
    use super::{NotRunning, Slot};
    use ractor::{Actor, ActorProcessingErr, ActorRef};

    struct Idle;

    impl Actor for Idle {
        type Msg = ();
        type State = ();
        type Arguments = ();

        async fn pre_start(&self, _: ActorRef<()>, (): ()) -> Result<(), ActorProcessingErr> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn an_empty_slot_says_so() {
        assert_eq!(Slot::<()>::new().get(), Err(NotRunning));
    }

    #[tokio::test]
    async fn it_follows_from_one_incarnation_to_the_next() {
        let slot = Slot::new();
        let handle = slot.clone();
        let (first, _) = Actor::spawn(None, Idle, ()).await.unwrap();
        slot.put(first.clone());
        assert_eq!(handle.get().unwrap(), first);

        first.kill();
        first.wait(None).await.unwrap();
        assert_eq!(handle.get(), Err(NotRunning), "a dead incarnation is not handed out");

        let (second, _) = Actor::spawn(None, Idle, ()).await.unwrap();
        slot.put(second.clone());
        assert_eq!(handle.get().unwrap(), second);
        second.stop(None);
    }
}
