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
    confinement: left.confinement.clone(),
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use toolwarden_tools::background::{Background as _, BackgroundOutcome, RUNNING_MAX, ReadFrom};
    use toolwarden_tools::cancellation::CancelReason;
    use toolwarden_tools::effects::clock::SystemClock;
    use toolwarden_tools::effects::processes::{ContainmentLevel, ProcessStatus};

    use super::*;
    use crate::node::{Tree, spawn_root};

    /// A port whose commands end at once and leave something that runs until it is stopped.
    struct Leaving;

    const EXITED: ProcessStatus = ProcessStatus::Exited { code: 7 };

    fn end(stopped: Option<CancelReason>) -> ProcessEnd {
        ProcessEnd {
            status: EXITED,
            stopped,
            output_held: false,
            killed_background: false,
            level: ContainmentLevel::SubReaper,
            survivors: Vec::new(),
            left: Vec::new(),
            handed_over: None,
            confinement: None,
        }
    }

    impl Processes for Leaving {
        fn run(
            &self,
            _: CommandSpec,
            sink: Arc<dyn OutputSink>,
            stop: Cancellation,
        ) -> BoxFuture<'static, Result<ProcessEnd, ProcessError>> {
            Box::pin(async move {
                sink.push(Stream::Out, b"early");
                let left = Left {
                    status: EXITED,
                    level: ContainmentLevel::SubReaper,
                    processes: Vec::new(),
                    confinement: None,
                };
                if sink.left(&left) == Leftover::Stop {
                    return Ok(ProcessEnd { killed_background: true, ..end(None) });
                }
                sink.push(Stream::Err, b"late");
                Ok(end(Some(stop.cancelled().await)))
            })
        }
    }

    /// Keeps what is left, and all it hears.
    #[derive(Default)]
    struct Keeping(Mutex<Vec<u8>>);

    impl OutputSink for Keeping {
        fn push(&self, _: Stream, bytes: &[u8]) {
            self.0.lock().unwrap().extend_from_slice(bytes);
        }

        fn left(&self, _: &Left) -> Leftover {
            Leftover::Keep
        }
    }

    fn command() -> CommandSpec {
        CommandSpec {
            program: "bash".into(),
            arguments: vec!["-c".into(), "the line".into()],
            environment: BTreeMap::new(),
            folder: "/".into(),
            stdin: None,
            grace: Duration::from_secs(1),
            drain: Duration::from_secs(1),
            confinement: None,
        }
    }

    /// A session's node, its background processes, and a port over a call that has its own node.
    async fn scene() -> (NodeHandle, BackgroundProcesses, SupervisedProcesses) {
        let spec = NodeSpec { kind: NodeKind::Session, grace: Duration::from_secs(5) };
        let body = |node: NodeHandle| async move {
            let _reason = node.cancellation().cancelled().await;
        };
        let (session, _cell) = spawn_root(&Tree::new(), None, spec, body).await.unwrap();
        let (port, clock) = (Arc::new(Leaving), Arc::new(SystemClock::new()));
        let background = BackgroundProcesses::new(port.clone(), clock, Leftover::Keep);
        background.hang_on(&session, Arc::new(|_| {}));
        let supervised = SupervisedProcesses::new(port, session.clone())
            .handing_over(background.clone(), InvocationId::new("call-1"));
        (session, background, supervised)
    }

    #[tokio::test]
    async fn what_is_left_goes_from_the_call_to_the_session() {
        let (session, background, supervised) = scene().await;
        let heard = Arc::new(Keeping::default());
        let ended = supervised.run(command(), heard.clone(), Cancellation::new()).await.unwrap();
        assert_eq!((ended.status, ended.handed_over.unwrap().as_str()), (EXITED, "bg-1"));
        assert_eq!(*heard.0.lock().unwrap(), b"early");
        let status = &background.list()[0];
        assert_eq!((status.line.as_str(), status.invocation.as_str()), ("the line", "call-1"));
        assert!(status.end.is_none());
        assert_eq!(background.read("bg-1", ReadFrom::New, 100).unwrap().output.of(Stream::Err), b"late");
        let stopped = background.stop("bg-1").await.unwrap();
        let BackgroundOutcome::Ended(end) = stopped.end.unwrap().how else { panic!("not ended") };
        assert_eq!(end.stopped, Some(CancelReason::Requested));
        session.cancel(CancelReason::SessionClosed);
        session.children_settled().await;
    }

    #[tokio::test]
    async fn a_session_that_is_full_has_it_stopped() {
        let (session, background, supervised) = scene().await;
        for _ in 0..RUNNING_MAX {
            let ended = supervised.run(command(), Arc::new(Keeping::default()), Cancellation::new()).await.unwrap();
            assert!(ended.handed_over.is_some());
        }
        let ended = supervised.run(command(), Arc::new(Keeping::default()), Cancellation::new()).await.unwrap();
        assert!(ended.handed_over.is_none() && ended.killed_background);
        session.cancel(CancelReason::SessionClosed);
        session.children_settled().await;
        assert!(background.list().iter().all(|status| status.end.is_some()));
    }

    #[tokio::test]
    async fn a_session_that_is_ending_drops_what_it_is_handed() {
        let (session, background, _) = scene().await;
        session.cancel(CancelReason::SessionClosed);
        session.children_settled().await;
        let entry = background.open("x", InvocationId::new("call-1")).unwrap();
        let (told, dropped) = tokio::sync::oneshot::channel::<()>();
        let running = Box::pin(async move {
            let _told = told;
            std::future::pending().await
        });
        background.hold(&entry, running, Cancellation::new(), Duration::ZERO, None);
        assert!(dropped.await.is_err(), "it is dropped");
        let stopped = background.stop("bg-1").await.unwrap();
        assert!(matches!(stopped.end.unwrap().how, BackgroundOutcome::GivenUp { .. }));
    }
}
