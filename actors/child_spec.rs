//! What a supervisor must know about a child: OTP's child specification.
//!
//! Two halves. [`ChildTerms`] is plain data, all that the decisions need; [`ChildWork`] is how to start the child
//! and how to ask it to stop, which only the mount touches. A start must spawn its actor *linked* under the cell it
//! is given, spawning last: whatever it awaits after the spawn delays the supervisor's knowledge of the child.

use std::collections::BTreeSet;
use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use ractor::{Actor, ActorCell, SpawnErr};
use thiserror::Error;
use tokio_util::sync::CancellationToken;
use toolwarden_tools::ids::Id;

use crate::slot::Slot;

/// Default span between asking a worker to stop and killing it, OTP's 5 seconds.
pub const WORKER_SHUTDOWN: Duration = Duration::from_secs(5);
/// Most links of an error's chain that are kept in a [`StartError`].
const ERROR_CHAIN_MAX: usize = 8;

/// Marker of [`ChildId`].
pub enum Supervised {}
/// The name of a child, unique within its supervisor.
pub type ChildId = Id<Supervised>;

/// When a child that ended is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restart {
    /// Always.
    Permanent,
    /// Only when it ended abnormally.
    Transient,
    /// Never; its specification goes when it ends.
    Temporary,
}

/// How long a child may take to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
    /// Not at all: it is killed without being asked.
    BrutalKill,
    /// It is asked, and killed when this span has passed; must not be zero.
    Timeout(Duration),
    /// It is asked and waited for without limit: for supervisors, whose own children carry limits.
    Infinity,
}

/// Whether a child supervises others; counts differ, nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildKind {
    /// It does work.
    Worker,
    /// It supervises.
    Supervisor,
}

/// Whether a supervisor ends itself when significant children end by themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AutoShutdown {
    /// No; significant children are refused.
    #[default]
    Never,
    /// When one significant child ends.
    AnySignificant,
    /// When the last significant child ends.
    AllSignificant,
}

/// The terms under which a child is supervised: all that decisions need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildTerms {
    /// Unique within the supervisor.
    pub id: ChildId,
    /// When it is started again.
    pub restart: Restart,
    /// Whether its end can end the supervisor.
    pub significant: bool,
    /// How long it may take to stop.
    pub shutdown: Shutdown,
    /// Worker or supervisor.
    pub kind: ChildKind,
}

/// What a start is given.
pub struct StartRequest {
    /// The supervisor that the child must be linked to.
    pub supervisor: ActorCell,
    /// Given when the supervisor no longer wants the child; the start should then end soon, either way.
    pub cancelled: CancellationToken,
}

/// Starts a child and returns its cell; called anew for each restart.
pub type Start = Arc<dyn Fn(StartRequest) -> BoxFuture<'static, Result<ActorCell, StartError>> + Send + Sync>;
/// Asks a running child to stop; must return at once.
pub type AskToStop = Arc<dyn Fn(&ActorCell) + Send + Sync>;

/// How to start a child and how to ask it to stop.
#[derive(Clone)]
pub struct ChildWork {
    /// Starts it.
    pub start: Start,
    /// Asks it to stop.
    pub ask_to_stop: AskToStop,
}

/// A child's specification.
#[derive(Clone, Debug)]
pub struct ChildSpec {
    /// Data for decisions.
    pub terms: ChildTerms,
    /// How to start and stop it.
    pub work: ChildWork,
}

impl ChildSpec {
    /// A permanent worker, not significant, with 5 seconds to stop when ractor's `stop` asks it.
    ///
    /// A start that is no longer wanted is dropped where it stands, so `start` should await nothing after its spawn.
    pub fn new<F, S>(id: impl Into<ChildId>, start: F) -> Self
    where
        F: Fn(ActorCell) -> S + Send + Sync + 'static,
        S: Future<Output = Result<ActorCell, StartError>> + Send + 'static,
    {
        let start: Start = Arc::new(move |request: StartRequest| {
            let starting = start(request.supervisor);
            Box::pin(async move {
                tokio::select! {
                    biased;
                    () = request.cancelled.cancelled() => Err(StartError::Cancelled),
                    started = starting => started,
                }
            })
        });
        Self::cancellable(id, start)
    }

    /// As [`Self::new`], for a start that itself attends to [`StartRequest::cancelled`].
    pub fn cancellable(id: impl Into<ChildId>, start: Start) -> Self {
        let terms = ChildTerms {
            id: id.into(),
            restart: Restart::Permanent,
            significant: false,
            shutdown: Shutdown::Timeout(WORKER_SHUTDOWN),
            kind: ChildKind::Worker,
        };
        Self { terms, work: ChildWork { start, ask_to_stop: Arc::new(|cell| cell.stop(None)) } }
    }

    /// As [`Self::new`], for one actor whose current incarnation is found in `slot`.
    pub fn actor<A, F>(id: impl Into<ChildId>, slot: &Slot<A::Msg>, make: F) -> Self
    where
        A: Actor,
        F: Fn() -> (A, A::Arguments) + Send + Sync + 'static,
    {
        let slot = slot.clone();
        Self::new(id, move |supervisor| {
            let (actor, arguments) = make();
            let slot = slot.clone();
            async move {
                let (child, _) = supervisor.spawn_linked(None, actor, arguments).await?;
                let cell = child.get_cell();
                slot.put(child);
                Ok(cell)
            }
        })
    }

    /// Sets when it is started again.
    #[must_use]
    pub fn restart(mut self, restart: Restart) -> Self {
        self.terms.restart = restart;
        self
    }

    /// Sets how long it may take to stop.
    #[must_use]
    pub fn shutdown(mut self, shutdown: Shutdown) -> Self {
        self.terms.shutdown = shutdown;
        self
    }

    /// Lets its end count for the supervisor's [`AutoShutdown`].
    #[must_use]
    pub fn significant(mut self) -> Self {
        self.terms.significant = true;
        self
    }

    /// Marks it as a supervisor.
    #[must_use]
    pub fn supervises(mut self) -> Self {
        self.terms.kind = ChildKind::Supervisor;
        self
    }

    /// Sets how it is asked to stop, for an actor that ends by a message of its own; must return at once.
    #[must_use]
    pub fn asked_by(mut self, ask: impl Fn(&ActorCell) + Send + Sync + 'static) -> Self {
        self.work.ask_to_stop = Arc::new(ask);
        self
    }
}

impl fmt::Debug for ChildWork {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ChildWork").finish_non_exhaustive()
    }
}

impl ChildTerms {
    /// Checks one child against its supervisor's auto-shutdown, as OTP's `check_childspecs`.
    ///
    /// # Errors
    /// [`SpecError`] for the first rule it breaks.
    pub fn check(&self, auto_shutdown: AutoShutdown) -> Result<(), SpecError> {
        let id = self.id.clone();
        if id.as_str().is_empty() {
            return Err(SpecError::EmptyId);
        }
        if self.shutdown == Shutdown::Timeout(Duration::ZERO) {
            return Err(SpecError::ZeroShutdown { id });
        }
        if self.significant && self.restart == Restart::Permanent {
            return Err(SpecError::SignificantPermanent { id });
        }
        if self.significant && auto_shutdown == AutoShutdown::Never {
            return Err(SpecError::SignificantWithoutAutoShutdown { id });
        }
        Ok(())
    }
}

/// Checks all children of one supervisor.
///
/// # Errors
/// [`SpecError`] for the first rule broken, in the children's order.
pub fn check_children<'a>(
    children: impl IntoIterator<Item = &'a ChildTerms>,
    auto_shutdown: AutoShutdown,
) -> Result<(), SpecError> {
    let mut ids = BTreeSet::new();
    for terms in children {
        terms.check(auto_shutdown)?;
        if !ids.insert(&terms.id) {
            return Err(SpecError::DuplicateId { id: terms.id.clone() });
        }
    }
    Ok(())
}

/// Why children cannot be supervised as specified.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SpecError {
    /// A child without a name.
    #[error("a child has an empty id; give it a name that is unique within its supervisor")]
    EmptyId,
    /// Two children of one name.
    #[error("two children are named {id}; ids must be unique within a supervisor")]
    DuplicateId {
        /// The name.
        id: ChildId,
    },
    /// A span of zero.
    #[error("child {id} has zero time to stop; use BrutalKill to kill it without asking")]
    ZeroShutdown {
        /// The child.
        id: ChildId,
    },
    /// It would always be restarted, so its end could never count.
    #[error("child {id} is permanent and significant; a significant child must be transient or temporary")]
    SignificantPermanent {
        /// The child.
        id: ChildId,
    },
    /// Its end would mean nothing.
    #[error(
        "child {id} is significant, but its supervisor never shuts itself down; set auto_shutdown or drop the mark"
    )]
    SignificantWithoutAutoShutdown {
        /// The child.
        id: ChildId,
    },
    /// More children than the supervisor takes.
    #[error("{count} children are too many for one supervisor; {children_max} is the limit")]
    TooMany {
        /// Children asked for.
        count: usize,
        /// The limit.
        children_max: usize,
    },
}

/// Why a child did not start.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StartError {
    /// Its start returned an error; the text of the whole chain.
    #[error("it could not start: {reason}")]
    Failed {
        /// The chain, joined by `: `.
        reason: Arc<str>,
    },
    /// Its start panicked.
    #[error("its start panicked: {message}")]
    Panicked {
        /// The panic's message.
        message: Arc<str>,
    },
    /// The supervisor no longer wanted it.
    #[error("its start was cancelled, because its supervisor ends it or itself")]
    Cancelled,
    /// It is a supervisor and ended before all its children were up.
    #[error("it ended before it was up")]
    Died,
    /// It is a supervisor and this child of it did not start; the earlier children were stopped again.
    #[error("its child {id} failed: {source}")]
    Child {
        /// The child.
        id: ChildId,
        /// Why.
        source: Box<StartError>,
    },
    /// It is a supervisor and its children cannot be supervised as specified.
    #[error(transparent)]
    Spec(#[from] SpecError),
}

impl StartError {
    /// Keeps the text of an error and its causes.
    pub fn failed(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        let error = error.into();
        let mut reason = error.to_string();
        let mut cause = error.source();
        for _ in 0..ERROR_CHAIN_MAX {
            let Some(source) = cause else { break };
            reason.push_str(": ");
            reason.push_str(&source.to_string());
            cause = source.source();
        }
        Self::Failed { reason: reason.into() }
    }
}

impl From<SpawnErr> for StartError {
    fn from(error: SpawnErr) -> Self {
        match error {
            // ractor calls every failed start a panic; the cause alone says what happened.
            SpawnErr::StartupFailed(cause) => Self::failed(cause),
            other => Self::failed(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{AutoShutdown, ChildKind, ChildTerms, Restart, Shutdown, SpecError, StartError, check_children};
    use std::time::Duration;

    fn terms(id: &str) -> ChildTerms {
        ChildTerms {
            id: id.into(),
            restart: Restart::Transient,
            significant: false,
            shutdown: Shutdown::Timeout(Duration::from_secs(1)),
            kind: ChildKind::Worker,
        }
    }

    #[test]
    fn ids_are_unique_and_not_empty() {
        assert_eq!(check_children([&terms("a"), &terms("b")], AutoShutdown::Never), Ok(()));
        let error = check_children([&terms("a"), &terms("b"), &terms("a")], AutoShutdown::Never);
        assert_eq!(error, Err(SpecError::DuplicateId { id: "a".into() }));
        assert_eq!(check_children([&terms("")], AutoShutdown::Never), Err(SpecError::EmptyId));
    }

    #[test]
    fn a_significant_child_is_transient_or_temporary_under_a_supervisor_that_shuts_down() {
        for restart in [Restart::Permanent, Restart::Transient, Restart::Temporary] {
            for auto in [AutoShutdown::Never, AutoShutdown::AnySignificant, AutoShutdown::AllSignificant] {
                let child = ChildTerms { restart, significant: true, ..terms("a") };
                let expected = match (restart, auto) {
                    (Restart::Permanent, _) => Err(SpecError::SignificantPermanent { id: "a".into() }),
                    (_, AutoShutdown::Never) => Err(SpecError::SignificantWithoutAutoShutdown { id: "a".into() }),
                    _ => Ok(()),
                };
                assert_eq!(child.check(auto), expected, "{restart:?} {auto:?}");
                assert_eq!(ChildTerms { significant: false, ..child }.check(auto), Ok(()));
            }
        }
    }

    #[test]
    fn a_timeout_of_zero_is_refused() {
        let child = ChildTerms { shutdown: Shutdown::Timeout(Duration::ZERO), ..terms("a") };
        assert_eq!(child.check(AutoShutdown::Never), Err(SpecError::ZeroShutdown { id: "a".into() }));
    }

    #[test]
    fn a_start_error_keeps_the_causes() {
        #[derive(Debug, thiserror::Error)]
        #[error("journal cannot be opened")]
        struct Outer(#[source] std::io::Error);
        let error = StartError::failed(Outer(std::io::Error::other("disk is gone")));
        assert_eq!(error.to_string(), "it could not start: journal cannot be opened: disk is gone");
    }
}
