//! For tests of mounts: a supervisor that only looks on.
//!
//! Left alone, a supervisor of ractor ends when a child ends; tests of restarts need one that stays.

use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SupervisionEvent};

/// A supervisor that lets its children end.
pub(crate) async fn root() -> ActorCell {
    Actor::spawn(None, Root, ()).await.unwrap().0.get_cell()
}

struct Root;

impl Actor for Root {
    type Msg = ();
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<()>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _: ActorRef<()>,
        _: SupervisionEvent,
        (): &mut (),
    ) -> Result<(), ActorProcessingErr> {
        Ok(())
    }
}
