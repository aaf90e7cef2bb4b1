//! What a person has allowed for good in a session, shared by all its calls.
//!
//! Calls that wait for an answer of their own watch it: one that a new grant covers goes on without being asked.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::watch;

use crate::permission::Judged;
use crate::permission::grant::{GrantError, Grants};

/// The grants of one session; a grant is never taken back while the session lives.
#[derive(Debug)]
pub struct GrantBook {
    grants: ArcSwap<Grants>,
    version: watch::Sender<u64>,
}

impl Default for GrantBook {
    fn default() -> Self {
        Self { grants: ArcSwap::default(), version: watch::Sender::new(0) }
    }
}

impl GrantBook {
    /// What is granted now.
    pub fn grants(&self) -> Arc<Grants> {
        self.grants.load_full()
    }

    /// Remembers that this call is allowed from now on.
    ///
    /// # Errors
    /// [`GrantError`] when the call cannot be remembered.
    pub fn remember(&self, judged: &Judged<'_>) -> Result<(), GrantError> {
        let mut refused = Ok(());
        self.grants.rcu(|now| {
            let mut grown = Grants::clone(now);
            refused = grown.remember(judged);
            grown
        });
        refused?;
        self.version.send_modify(|version| *version += 1);
        Ok(())
    }

    /// Watches for new grants.
    pub fn watch(&self) -> GrantWatch {
        GrantWatch { version: self.version.subscribe() }
    }
}

/// Waits for new grants.
pub struct GrantWatch {
    version: watch::Receiver<u64>,
}

impl GrantWatch {
    /// Returns when something was granted since the last time; never when the book is gone.
    pub async fn changed(&mut self) {
        if self.version.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
