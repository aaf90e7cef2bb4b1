//! The whole tree as child specifications: what is started in which order, and what falls with what.
//!
//! The root is rest_for_one: when the journal, the artifact store, the fact log, the ledger, the confirmations or the lanes
//! come back without their memory, every session that relied on it ends. A lane alone may come back: it counts the permits still out.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use toolwarden_actors::child_spec::{ChildSpec, Shutdown, StartError};
use toolwarden_actors::fact_log::{self, FactLog};
use toolwarden_actors::journal::{self, JournalSink};
use toolwarden_actors::node::{NodeHandle, NodeKind, NodeSpec, Tree, shut_down, spawn_root};
use toolwarden_actors::supervision::{Strategy, SupervisorFlags};
use toolwarden_actors::supervisor::{self, SupervisorRef, SupervisorSpec};
use toolwarden_tools::cancellation::CancelReason;

use crate::event::Event;
use crate::kernel::Kernel;
use crate::session_span::SESSION_GRACE;

/// What all sessions together have to end when the runtime shuts down, before they are killed.
pub(crate) const SESSIONS_SHUTDOWN: Duration = Duration::from_secs(45);

/// Makes the journal's sink; called for each start of the journal.
pub(crate) type MakeSink = Arc<dyn Fn() -> Option<Box<dyn JournalSink<Event>>> + Send + Sync>;

/// The running tree.
pub(crate) struct SupervisionTree {
    root: SupervisorRef,
    sessions: Arc<ArcSwapOption<NodeHandle>>,
    nodes: Arc<Tree>,
}

impl SupervisionTree {
    /// Starts everything, ground first.
    pub(crate) async fn start(
        kernel: &Arc<Kernel>,
        make_sink: MakeSink,
        log: Option<&FactLog>,
    ) -> Result<Self, StartError> {
        let nodes = Tree::new();
        let sessions = Arc::new(ArcSwapOption::empty());
        let flags = SupervisorFlags { strategy: Strategy::RestForOne, ..SupervisorFlags::default() };
        let mut children = vec![journal_spec(kernel, make_sink), artifacts_spec(kernel)];
        children.extend(log.map(fact_log_spec));
        children.extend([
            ledger_spec(kernel),
            confirmations_spec(kernel),
            lanes_spec(kernel),
            sessions_spec(&nodes, &sessions),
        ]);
        let root = supervisor::start(SupervisorSpec { flags, children, reports: None }).await?;
        Ok(Self { root, sessions, nodes })
    }

    /// The node that sessions are spawned under; none while it is restarted.
    pub(crate) fn sessions(&self) -> Option<Arc<NodeHandle>> {
        self.sessions.load_full()
    }

    /// How many nodes are alive, the node of all sessions included.
    pub(crate) fn live_nodes(&self) -> usize {
        self.nodes.live_nodes()
    }

    /// Tells every session, and all that is in it, to end without grace; returns at once.
    pub(crate) fn kill_sessions(&self) {
        if let Some(sessions) = self.sessions() {
            sessions.kill(CancelReason::Shutdown);
        }
    }

    /// Stops everything, top first, and waits for it.
    pub(crate) async fn shut_down(&self) {
        if let Err(error) = self.root.shutdown(SESSIONS_SHUTDOWN + Duration::from_secs(10)).await {
            tracing::warn!(%error, "the supervision tree did not shut down in order");
        }
    }
}

fn journal_spec(kernel: &Arc<Kernel>, make_sink: MakeSink) -> ChildSpec {
    let kernel = Arc::clone(kernel);
    ChildSpec::new("journal", move |supervisor| {
        let (kernel, sink) = (Arc::clone(&kernel), make_sink());
        async move {
            let clock = Arc::clone(&kernel.effects.clock);
            Ok(journal::start(&kernel.journal, supervisor, clock, sink).await?)
        }
    })
    .asked_by(journal::shut_down)
}

fn artifacts_spec(kernel: &Arc<Kernel>) -> ChildSpec {
    let kernel = Arc::clone(kernel);
    ChildSpec::new("artifact_store", move |supervisor| {
        let kernel = Arc::clone(&kernel);
        async move { Ok(kernel.artifacts.start(supervisor, Arc::clone(&kernel.effects.clock)).await?) }
    })
}

fn fact_log_spec(log: &FactLog) -> ChildSpec {
    let log = log.clone();
    ChildSpec::new("fact_log", move |supervisor| {
        let log = log.clone();
        async move { Ok(fact_log::start(&log, supervisor).await?) }
    })
    .asked_by(fact_log::shut_down)
}

fn ledger_spec(kernel: &Arc<Kernel>) -> ChildSpec {
    let kernel = Arc::clone(kernel);
    ChildSpec::new("budget_ledger", move |supervisor| {
        let kernel = Arc::clone(&kernel);
        async move { Ok(kernel.ledger.start(supervisor).await?) }
    })
}

fn confirmations_spec(kernel: &Arc<Kernel>) -> ChildSpec {
    let kernel = Arc::clone(kernel);
    ChildSpec::new("confirmations", move |supervisor| {
        let kernel = Arc::clone(&kernel);
        async move { Ok(kernel.confirmations.start(supervisor).await?) }
    })
}

fn lanes_spec(kernel: &Arc<Kernel>) -> ChildSpec {
    let children = kernel.lanes.iter().map(|lane| {
        let lane = lane.clone();
        ChildSpec::new(lane.lane().to_string(), move |supervisor| {
            let lane = lane.clone();
            async move { Ok(lane.start(supervisor).await?) }
        })
    });
    let spec = SupervisorSpec { children: children.collect(), ..SupervisorSpec::default() };
    supervisor::child_spec("lanes", spec).0
}

fn sessions_spec(nodes: &Arc<Tree>, sessions: &Arc<ArcSwapOption<NodeHandle>>) -> ChildSpec {
    let (nodes, sessions) = (Arc::clone(nodes), Arc::clone(sessions));
    let start = move |supervisor| {
        let (nodes, sessions) = (Arc::clone(&nodes), Arc::clone(&sessions));
        async move {
            let spec = NodeSpec { kind: NodeKind::Sessions, grace: SESSION_GRACE };
            let body = |node: NodeHandle| async move {
                node.cancellation().cancelled().await;
                node.children_settled().await;
            };
            let (handle, cell) = spawn_root(&nodes, Some(supervisor), spec, body).await?;
            sessions.store(Some(Arc::new(handle)));
            Ok(cell)
        }
    };
    ChildSpec::new("sessions", start).shutdown(Shutdown::Timeout(SESSIONS_SHUTDOWN)).asked_by(shut_down)
}
