//! The task of a node's body, as the node and whoever bears it share it.
//!
//! The body of a child that is born in a [cradle](super::cradle) is begun there, at once, and not in the first turn of
//! its node: a body that is quick is over by then. What must stay true: a body does not begin once its node is gone, and
//! one that runs is aborted when its node goes. Both hold because there is one place for the task, and the node shuts it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;

/// Where the task of one body is.
#[derive(Default)]
pub(super) struct BodyTask {
    place: Mutex<Place>,
}

#[derive(Default)]
enum Place {
    #[default]
    Empty,
    Task(AbortHandle),
    Shut,
}

impl BodyTask {
    /// Begins the body, unless its node is gone.
    pub(super) fn begin(&self, body: impl FnOnce() -> AbortHandle) {
        let mut place = self.place();
        if matches!(*place, Place::Empty) {
            *place = Place::Task(body());
        }
    }

    /// Aborts the body, and lets none begin.
    pub(super) fn abort(&self) {
        let before = std::mem::replace(&mut *self.place(), Place::Shut);
        if let Place::Task(task) = before {
            task.abort();
        }
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::BodyTask;

    #[tokio::test]
    async fn a_body_begins_once_and_not_behind_its_node() {
        let pending = || tokio::spawn(std::future::pending::<()>());
        let (task, mut begun) = (BodyTask::default(), Vec::new());
        for _ in 0..2 {
            task.begin(|| {
                let body = pending();
                let handle = body.abort_handle();
                begun.push(body);
                handle
            });
        }
        task.abort();
        assert!(begun.remove(0).await.unwrap_err().is_cancelled());
        assert!(begun.is_empty(), "it began once");
        let gone = BodyTask::default();
        gone.abort();
        gone.begin(|| panic!("its node is gone"));
    }
}
