//! A command as a node of the tree: whoever runs it, its end is waited for and its cancel goes through the tree.
//!
//! This stands between a tool and the real processes port, and looks to the tool like the port itself. A tool
//! that is dropped half-way leaves a node that still stops its command in order.
//!
//! The node is [`crate::node`]'s; its body only runs the port.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use toolwarden_tools::cancellation::Cancellation;
use toolwarden_tools::effects::processes::{CommandSpec, OutputSink, ProcessEnd, ProcessError, Processes};

use crate::node::{NodeHandle, NodeKind, NodeSpec};

/// What a process group may take to be reaped and reported after its own grace.
pub const REAP_ALLOWANCE: Duration = Duration::from_millis(1500);

/// The processes port of one invocation: every command is a child node of it.
pub struct SupervisedProcesses {
    port: Arc<dyn Processes>,
    node: NodeHandle,
}

impl SupervisedProcesses {
    /// Runs commands of `port` under `node`.
    pub fn new(port: Arc<dyn Processes>, node: NodeHandle) -> Self {
        Self { port, node }
    }
}

impl Processes for SupervisedProcesses {
    fn run(
        &self,
        command: CommandSpec,
        sink: Arc<dyn OutputSink>,
        stop: Cancellation,
    ) -> BoxFuture<'static, Result<ProcessEnd, ProcessError>> {
        let port = Arc::clone(&self.port);
        let program = command.program.clone();
        let spec = NodeSpec { kind: NodeKind::ProcessGroup, grace: command.grace + REAP_ALLOWANCE };
        let waiter = self.node.spawn(spec, move |node| async move {
            let mut run = port.run(command, sink, stop.clone());
            tokio::select! {
                biased;
                end = &mut run => end,
                reason = node.cancellation().cancelled() => {
                    stop.cancel(reason);
                    run.await
                }
            }
        });
        Box::pin(async move {
            let end = waiter.await;
            end.output.unwrap_or_else(|| {
                let reason = match &end.ending.cancel {
                    Some(reason) => reason.to_string(),
                    None => format!("{:?}", end.ending.body),
                };
                Err(ProcessError::Unsupervised { program, reason })
            })
        })
    }
}
