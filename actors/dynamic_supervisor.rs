//! A supervisor of many alike children that come and go: OTP's `simple_one_for_one`, on ractor's links.
//!
//! The mount of [`DynamicSupervision`], which decides; nothing is awaited in a handler. ractor kills the children of
//! an actor that ends, so this one ends only when it has none left.
//!
//! Holds: the children's specifications, lives and restart window. Supervised by: the caller of [`start`], or a
//! supervisor through [`child_spec`]. Restart: permanent unless its spec says otherwise; it starts anew without
//! children. Mailbox bound: one start, one timer and one end a child, plus one message a waiting call. Reports:
//! [`Report`](crate::supervision_report::Report).

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use ractor::rpc::CallResult;
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent};
use tokio::time::Instant;

use crate::child::{ChildCount, ChildView};
use crate::child_spec::{ChildId, ChildSpec, ChildTerms, ChildWork, Shutdown, StartError, StartRequest};
use crate::dynamic_supervision::{DynamicFlags, DynamicSupervision, DynamicSupervisorError, Effect, Event};
use crate::nursery::{Nursery, NurseryNote};
use crate::slot::Slot;
use crate::supervision_report::{Ending, ReportSink};

/// How long a call waits for its answer unless the handle says otherwise.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// A dynamic supervisor's handle; it follows the supervisor through restarts.
#[derive(Clone, Debug)]
pub struct DynamicSupervisorRef {
    slot: Slot<Message>,
    timeout: Duration,
}

/// Starts a dynamic supervisor that nobody supervises.
///
/// # Errors
/// [`StartError`] when its actor cannot be started.
pub async fn start(flags: DynamicFlags, reports: Option<ReportSink>) -> Result<DynamicSupervisorRef, StartError> {
    let (actor, _) = Actor::spawn(None, Mount, Arguments { flags, reports }).await?;
    let handle = DynamicSupervisorRef::new();
    handle.slot.put(actor);
    Ok(handle)
}

/// A dynamic supervisor as the child of a supervisor: permanent, shut down without limit. The handle follows it.
pub fn child_spec(
    id: impl Into<ChildId>,
    flags: DynamicFlags,
    reports: Option<ReportSink>,
) -> (ChildSpec, DynamicSupervisorRef) {
    let handle = DynamicSupervisorRef::new();
    let slot = handle.slot.clone();
    let start = Arc::new(move |request: StartRequest| -> BoxFuture<'static, _> {
        let (slot, arguments) = (slot.clone(), Arguments { flags, reports: reports.clone() });
        Box::pin(async move {
            let (actor, _) = request.supervisor.spawn_linked(None, Mount, arguments).await?;
            let cell = actor.get_cell();
            slot.put(actor);
            Ok(cell)
        })
    });
    let child = ChildSpec::cancellable(id, start).supervises().shutdown(Shutdown::Infinity).asked_by(ask_to_shut_down);
    (child, handle)
}

impl DynamicSupervisorRef {
    fn new() -> Self {
        Self { slot: Slot::new(), timeout: CALL_TIMEOUT }
    }

    /// The same supervisor, with another time limit for calls. Calls that start or stop a child take as long as the
    /// child does; one that timed out is carried out nevertheless.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self { slot: self.slot.clone(), timeout }
    }

    /// Starts a child; it is not kept when it does not start.
    ///
    /// # Errors
    /// [`DynamicSupervisorError::MaxChildren`], [`DynamicSupervisorError::AlreadyStarted`],
    /// [`DynamicSupervisorError::Spec`], [`DynamicSupervisorError::Start`], or no answer.
    pub async fn start_child(&self, spec: ChildSpec) -> Result<ActorCell, DynamicSupervisorError> {
        let ChildSpec { terms, work } = spec;
        self.call(|port| Message::StartChild(terms, work, port)).await?
    }

    /// Stops a child within its own time and forgets it; answered when it is gone.
    ///
    /// # Errors
    /// [`DynamicSupervisorError::NotFound`], or no answer.
    pub async fn terminate_child(&self, id: &ChildId) -> Result<(), DynamicSupervisorError> {
        self.call(|port| Message::TerminateChild(id.clone(), port)).await?
    }

    /// All children, sorted by id.
    ///
    /// # Errors
    /// [`DynamicSupervisorError`] when the supervisor does not answer.
    pub async fn which_children(&self) -> Result<Vec<ChildView>, DynamicSupervisorError> {
        self.call(Message::WhichChildren).await
    }

    /// The number of children.
    ///
    /// # Errors
    /// [`DynamicSupervisorError`] when the supervisor does not answer.
    pub async fn count_children(&self) -> Result<ChildCount, DynamicSupervisorError> {
        self.call(Message::CountChildren).await
    }

    /// Shuts all children down at once and waits until the supervisor is gone. A supervisor above sees a normal end.
    ///
    /// # Errors
    /// [`DynamicSupervisorError::TimedOut`] when this takes longer than `timeout`; it goes on nevertheless.
    pub async fn shutdown(&self, timeout: Duration) -> Result<(), DynamicSupervisorError> {
        let Ok(actor) = self.slot.get() else { return Ok(()) };
        let _ = actor.cast(Message::Shutdown);
        actor.wait(Some(timeout)).await.map_err(|_| DynamicSupervisorError::TimedOut { timeout })
    }

    /// Waits until the incarnation that runs now is gone; returns at once when none runs.
    pub async fn ended(&self) {
        if let Ok(actor) = self.slot.get() {
            let _ = actor.wait(None).await;
        }
    }

    async fn call<T: Send + 'static>(
        &self,
        message: impl FnOnce(RpcReplyPort<T>) -> Message,
    ) -> Result<T, DynamicSupervisorError> {
        let actor = self.slot.get().map_err(|_| DynamicSupervisorError::NotRunning)?;
        match actor.call(message, Some(self.timeout)).await {
            Ok(CallResult::Success(answer)) => Ok(answer),
            Ok(CallResult::Timeout) => Err(DynamicSupervisorError::TimedOut { timeout: self.timeout }),
            Ok(CallResult::SenderError) | Err(_) => Err(DynamicSupervisorError::NotRunning),
        }
    }
}

type StartReply = RpcReplyPort<Result<ActorCell, DynamicSupervisorError>>;
type TerminateReply = RpcReplyPort<Result<(), DynamicSupervisorError>>;
type Supervision = DynamicSupervision<ChildWork, StartReply, TerminateReply>;

#[derive(Debug)]
enum Message {
    Child(NurseryNote),
    StartChild(ChildTerms, ChildWork, StartReply),
    TerminateChild(ChildId, TerminateReply),
    WhichChildren(RpcReplyPort<Vec<ChildView>>),
    CountChildren(RpcReplyPort<ChildCount>),
    Shutdown,
}

impl From<NurseryNote> for Message {
    fn from(note: NurseryNote) -> Self {
        Self::Child(note)
    }
}

struct Mount;

struct Arguments {
    flags: DynamicFlags,
    reports: Option<ReportSink>,
}

struct Mounted {
    supervision: Supervision,
    nursery: Nursery<Message>,
    reports: Option<ReportSink>,
    started_at: Instant,
}

impl Mounted {
    /// Steps and carries out; an error is the supervisor's own abnormal end.
    fn take(&mut self, event: Event<ChildWork, StartReply, TerminateReply>) -> Result<(), Ending> {
        // tokio's clock, as the timers run on it: a paused test moves both.
        for effect in self.supervision.step(self.started_at.elapsed(), event) {
            match effect {
                Effect::Child(order) => self.nursery.carry_out(order),
                // Whoever called may be gone; then nobody wants the answer.
                Effect::Started { to, answer: Err(error) } => drop(to.send(Err(error))),
                Effect::Started { to, answer: Ok(incarnation) } => {
                    // Without a cell the port is dropped, which the caller hears as an ended supervisor.
                    if let Some(cell) = self.nursery.cell(incarnation) {
                        let _ = to.send(Ok(cell.clone()));
                    }
                }
                Effect::Terminated { to, answer } => drop(to.send(answer)),
                Effect::Report(report) => {
                    report.log(self.nursery.supervisor().get_id());
                    if let Some(sink) = &self.reports {
                        sink(&report);
                    }
                }
                Effect::End(ending) if ending.is_abnormal() => return Err(ending),
                Effect::End(ending) => self.nursery.supervisor().stop(Some(ending.to_string())),
            }
        }
        Ok(())
    }
}

impl Actor for Mount {
    type Msg = Message;
    type State = Mounted;
    type Arguments = Arguments;

    async fn pre_start(&self, myself: ActorRef<Message>, arguments: Arguments) -> Result<Mounted, ActorProcessingErr> {
        Ok(Mounted {
            supervision: Supervision::new(arguments.flags),
            nursery: Nursery::new(myself),
            reports: arguments.reports,
            started_at: Instant::now(),
        })
    }

    async fn handle(
        &self,
        _: ActorRef<Message>,
        message: Message,
        state: &mut Mounted,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Message::Child(note) => {
                for event in state.nursery.take_note(note) {
                    state.take(Event::Child(event))?;
                }
            }
            Message::StartChild(terms, work, reply) => state.take(Event::StartChild { terms, work, reply })?,
            Message::TerminateChild(id, reply) => state.take(Event::TerminateChild { id, reply })?,
            Message::WhichChildren(port) => drop(port.send(state.supervision.which_children())),
            Message::CountChildren(port) => drop(port.send(state.supervision.count_children())),
            Message::Shutdown => state.take(Event::Shutdown)?,
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _: ActorRef<Message>,
        event: SupervisionEvent,
        state: &mut Mounted,
    ) -> Result<(), ActorProcessingErr> {
        match state.nursery.take_event(&event) {
            Some(event) => Ok(state.take(Event::Child(event))?),
            None => Ok(()),
        }
    }

    /// Nothing is left to do after an ordered end; ractor's own `stop` gets here with children still running.
    async fn post_stop(&self, _: ActorRef<Message>, state: &mut Mounted) -> Result<(), ActorProcessingErr> {
        state.nursery.close_at_once(state.supervision.stop_order()).await;
        Ok(())
    }
}

fn ask_to_shut_down(cell: &ActorCell) {
    let _ = cell.send_message(Message::Shutdown);
}

#[cfg(test)]
mod tests;
