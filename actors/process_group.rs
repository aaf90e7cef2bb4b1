//! A command as a node of the tree: whoever runs it, its end is waited for and its cancel goes through the tree.
//!
//! This stands between a tool and the real processes port, and looks to the tool like the port itself. A tool
//! that is dropped half-way leaves a node that still stops its command in order. What a command leaves running when
//! it has ended can be handed over: then the node ends with the command, and the port's own future, which holds what
//! is left, goes to the session's [`BackgroundProcesses`]; at every moment one node, or none and nothing is left, has
//! it.
//!
//! The node is [`crate::node`]'s; its body only runs the port.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use futures_util::future::BoxFuture;
use tokio::sync::Notify;
use toolwarden_tools::cancellation::Cancellation;
use toolwarden_tools::effects::processes::{
    CommandSpec, Left, Leftover, OutputSink, ProcessEnd, ProcessError, Processes, Stream,
};
use toolwarden_tools::ids::InvocationId;

use crate::background::{BackgroundProcesses, Entry, REAP_ALLOWANCE};
use crate::node::{NodeHandle, NodeKind, NodeSpec};

/// The processes port of one invocation: every command is a child node of it.
pub struct SupervisedProcesses {
    port: Arc<dyn Processes>,
    node: NodeHandle,
    handing: Option<(BackgroundProcesses, InvocationId)>,
}

impl SupervisedProcesses {
    /// Runs commands of `port` under `node`.
    pub fn new(port: Arc<dyn Processes>, node: NodeHandle) -> Self {
        Self { port, node, handing: None }
    }

    /// What commands leave running may be handed over to `background`, as left by `invocation`.
    #[must_use]
    pub fn handing_over(mut self, background: BackgroundProcesses, invocation: InvocationId) -> Self {
        self.handing = Some((background, invocation));
        self
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
        let handing = self.handing.clone();
        let waiter = self.node.spawn(spec, move |node| async move {
            match handing {
                Some((background, invocation)) => {
                    attend_and_hand_over(port, node, command, sink, stop, background, invocation).await
                }
                None => {
                    let run = port.run(command, sink, stop.clone());
                    attend(run, &node, &stop).await
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

async fn attend(
    mut run: BoxFuture<'static, Result<ProcessEnd, ProcessError>>,
    node: &NodeHandle,
    stop: &Cancellation,
) -> Result<ProcessEnd, ProcessError> {
    tokio::select! {
        biased;
        end = &mut run => end,
        reason = node.cancellation().cancelled() => {
            stop.cancel(reason);
            run.await
        }
    }
}

async fn attend_and_hand_over(
    port: Arc<dyn Processes>,
    node: NodeHandle,
    command: CommandSpec,
    sink: Arc<dyn OutputSink>,
    stop: Cancellation,
    background: BackgroundProcesses,
    invocation: InvocationId,
) -> Result<ProcessEnd, ProcessError> {
    let grace = command.grace;
    let line = command.arguments.last().unwrap_or(&command.program).clone();
    let switch = Arc::new(Switch {
        sink,
        background: background.clone(),
        line,
        invocation,
        is_shut: Mutex::new(false),
        handed: OnceLock::new(),
        news: Notify::new(),
    });
    let mut run = port.run(command, Arc::clone(&switch) as _, stop.clone());
    tokio::select! {
        biased;
        end = &mut run => end,
        () = switch.news.notified() => match switch.handed.get() {
            Some((entry, left)) => {
                background.hold(entry, run, stop, grace, None);
                Ok(ProcessEnd {
                    status: left.status,
                    stopped: None,
                    output_held: false,
                    killed_background: false,
                    level: left.level,
                    survivors: Vec::new(),
                    left: left.processes.clone(),
                    handed_over: Some(entry.id().clone()),
                })
            }
            // The news is the handing over; without one there is nothing to do but to wait.
            None => attend(run, &node, &stop).await,
        },
        reason = node.cancellation().cancelled() => {
            // From here on nobody takes what is left.
            *switch.is_shut.lock().unwrap_or_else(PoisonError::into_inner) = true;
            stop.cancel(reason);
            run.await
        }
    }
}

/// The output of a command: to the call until it is handed over, then to its ring.
struct Switch {
    sink: Arc<dyn OutputSink>,
    background: BackgroundProcesses,
    line: String,
    invocation: InvocationId,
    is_shut: Mutex<bool>,
    handed: OnceLock<(Arc<Entry>, Left)>,
    news: Notify,
}

impl OutputSink for Switch {
    fn push(&self, stream: Stream, bytes: &[u8]) {
        match self.handed.get() {
            Some((entry, _)) => entry.push(stream, bytes),
            None => self.sink.push(stream, bytes),
        }
    }

    fn left(&self, left: &Left) -> Leftover {
        let is_shut = self.is_shut.lock().unwrap_or_else(PoisonError::into_inner);
        if *is_shut || self.sink.left(left) == Leftover::Stop {
            return Leftover::Stop;
        }
        // A session that holds too many has what is left stopped instead.
        let Ok(entry) = self.background.open(&self.line, self.invocation.clone()) else { return Leftover::Stop };
        if self.handed.set((entry, left.clone())).is_err() {
            return Leftover::Stop;
        }
        self.news.notify_one();
        Leftover::Keep
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        // Its future was dropped at the very moment of the handing over.
        if let Some((entry, _)) = self.handed.get().filter(|(entry, _)| !entry.is_held()) {
            entry.give_up();
        }
    }
}
