//! A supervisor with a fixed order of children: OTP's `supervisor`, on ractor's links.
//!
//! The mount of [`Supervision`], which decides. Nothing is awaited in a handler: starts run in tasks, stops and
//! time-outs come back as events, so a shutdown is heard at once even in the middle of a slow start or stop. ractor
//! kills the children of an actor that ends, so this one ends only when it has none left.
//!
//! Holds: the children's specifications, lives and restart window. Supervised by: the caller of [`start`], or a
//! supervisor through [`child_spec`]. Restart: permanent unless its spec says otherwise; it starts anew from the
//! given children, those added later are not kept. Mailbox bound: one start, one timer and one end a child, plus one
//! message a waiting call; calls beyond [`supervision::PENDING_CALLS_MAX`] are refused. Reports: [`Report`].
//!
//! [`supervision::PENDING_CALLS_MAX`]: crate::supervision::PENDING_CALLS_MAX

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use ractor::rpc::CallResult;
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, RpcReplyPort, SupervisionEvent};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::child::{ChildCount, ChildView, Incarnation};
use crate::child_spec::{ChildId, ChildSpec, ChildWork, Shutdown, StartError, StartRequest};
use crate::nursery::{Nursery, NurseryNote};
use crate::slot::Slot;
use crate::supervision::{Call, Effect, Event, Supervision, SupervisorError, SupervisorFlags};
use crate::supervision_report::{Ending, Report, ReportSink};

/// How long a call waits for its answer unless the handle says otherwise.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// A supervisor with its children.
#[derive(Clone, Default)]
pub struct SupervisorSpec {
    /// How it supervises.
    pub flags: SupervisorFlags,
    /// The children it starts with, in start order.
    pub children: Vec<ChildSpec>,
    /// Who is told what happens; the log is told anyway.
    pub reports: Option<ReportSink>,
}

/// A supervisor's handle; it follows the supervisor through restarts.
#[derive(Clone, Debug)]
pub struct SupervisorRef {
    slot: Slot<Message>,
    timeout: Duration,
}

/// Starts a supervisor that nobody supervises and waits until all its children are up.
///
/// # Errors
/// [`StartError`] when the children cannot be supervised as specified or one did not start; nothing is left then.
pub async fn start(spec: SupervisorSpec) -> Result<SupervisorRef, StartError> {
    let actor = launch(spec, None, CancellationToken::new()).await?;
    let handle = SupervisorRef::new();
    handle.slot.put(actor);
    Ok(handle)
}

/// A supervisor as the child of another: permanent, shut down in order and without limit. The handle follows it.
pub fn child_spec(id: impl Into<ChildId>, spec: SupervisorSpec) -> (ChildSpec, SupervisorRef) {
    let handle = SupervisorRef::new();
    let slot = handle.slot.clone();
    let start = Arc::new(move |request: StartRequest| -> BoxFuture<'static, _> {
        let (spec, slot) = (spec.clone(), slot.clone());
        Box::pin(async move {
            let actor = launch(spec, Some(request.supervisor), request.cancelled).await?;
            let cell = actor.get_cell();
            slot.put(actor);
            Ok(cell)
        })
    });
    let child = ChildSpec::cancellable(id, start).supervises().shutdown(Shutdown::Infinity).asked_by(ask_to_shut_down);
    (child, handle)
}

impl SupervisorRef {
    fn new() -> Self {
        Self { slot: Slot::new(), timeout: CALL_TIMEOUT }
    }

    /// The same supervisor, with another time limit for calls. Calls that start or stop a child take as long as the
    /// child does; one that timed out is carried out nevertheless.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self { slot: self.slot.clone(), timeout }
    }

    /// All children in start order.
    ///
    /// # Errors
    /// [`SupervisorError`] when the supervisor does not answer.
    pub async fn which_children(&self) -> Result<Vec<ChildView>, SupervisorError> {
        self.call(Message::WhichChildren).await
    }

    /// The number of children.
    ///
    /// # Errors
    /// [`SupervisorError`] when the supervisor does not answer.
    pub async fn count_children(&self) -> Result<ChildCount, SupervisorError> {
        self.call(Message::CountChildren).await
    }

    /// Adds a child after all others and starts it; it is not kept when it does not start.
    ///
    /// # Errors
    /// [`SupervisorError::AlreadyStarted`] and [`SupervisorError::AlreadyPresent`] for an id in use,
    /// [`SupervisorError::Spec`], [`SupervisorError::Start`], or no answer.
    pub async fn start_child(&self, spec: ChildSpec) -> Result<ActorCell, SupervisorError> {
        let ChildSpec { terms, work } = spec;
        self.call(|port| Message::Call(Call::StartChild { terms, work, reply: Reply::Cell(port) })).await?
    }

    /// Stops a child and keeps its specification, unless it is temporary.
    ///
    /// # Errors
    /// [`SupervisorError::NotFound`], or no answer.
    pub async fn terminate_child(&self, id: &ChildId) -> Result<(), SupervisorError> {
        self.call(|port| Message::Call(Call::TerminateChild { id: id.clone(), reply: Reply::Done(port) })).await?
    }

    /// Starts a child that is absent.
    ///
    /// # Errors
    /// [`SupervisorError::NotFound`], [`SupervisorError::Running`], [`SupervisorError::Restarting`],
    /// [`SupervisorError::Start`], or no answer.
    pub async fn restart_child(&self, id: &ChildId) -> Result<ActorCell, SupervisorError> {
        self.call(|port| Message::Call(Call::RestartChild { id: id.clone(), reply: Reply::Cell(port) })).await?
    }

    /// Deletes the specification of a child that is absent.
    ///
    /// # Errors
    /// [`SupervisorError::NotFound`], [`SupervisorError::Running`], [`SupervisorError::Restarting`], or no answer.
    pub async fn delete_child(&self, id: &ChildId) -> Result<(), SupervisorError> {
        self.call(|port| Message::Call(Call::DeleteChild { id: id.clone(), reply: Reply::Done(port) })).await?
    }

    /// Shuts the supervisor down in order and waits until it is gone. A supervisor above sees a normal end.
    ///
    /// # Errors
    /// [`SupervisorError::TimedOut`] when this takes longer than `timeout`; it goes on nevertheless.
    pub async fn shutdown(&self, timeout: Duration) -> Result<(), SupervisorError> {
        let Ok(actor) = self.slot.get() else { return Ok(()) };
        let _ = actor.cast(Message::Shutdown);
        actor.wait(Some(timeout)).await.map_err(|_| SupervisorError::TimedOut { timeout })
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
    ) -> Result<T, SupervisorError> {
        let actor = self.slot.get().map_err(|_| SupervisorError::NotRunning)?;
        match actor.call(message, Some(self.timeout)).await {
            Ok(CallResult::Success(answer)) => Ok(answer),
            Ok(CallResult::Timeout) => Err(SupervisorError::TimedOut { timeout: self.timeout }),
            Ok(CallResult::SenderError) | Err(_) => Err(SupervisorError::NotRunning),
        }
    }
}

#[derive(Debug)]
enum Message {
    Child(NurseryNote),
    Call(Call<ChildWork, Reply>),
    WhichChildren(RpcReplyPort<Vec<ChildView>>),
    CountChildren(RpcReplyPort<ChildCount>),
    Shutdown,
}

impl From<NurseryNote> for Message {
    fn from(note: NurseryNote) -> Self {
        Self::Child(note)
    }
}

#[derive(Debug)]
enum Reply {
    Done(RpcReplyPort<Result<(), SupervisorError>>),
    Cell(RpcReplyPort<Result<ActorCell, SupervisorError>>),
}

struct Mount;

struct Arguments {
    supervision: Supervision<ChildWork, Reply>,
    up: oneshot::Sender<Result<(), StartError>>,
    reports: Option<ReportSink>,
}

struct Mounted {
    supervision: Supervision<ChildWork, Reply>,
    nursery: Nursery<Message>,
    /// Told once, when the first children are up or one of them failed.
    up: Option<oneshot::Sender<Result<(), StartError>>>,
    reports: Option<ReportSink>,
    started_at: Instant,
}

impl Mounted {
    /// Steps and carries out; an error is the supervisor's own abnormal end.
    fn take(&mut self, event: Event<ChildWork, Reply>) -> Result<(), Ending> {
        // tokio's clock, as the timers run on it: a paused test moves both.
        for effect in self.supervision.step(self.started_at.elapsed(), event) {
            match effect {
                Effect::Child(order) => self.nursery.carry_out(order),
                Effect::Reply { to, answer } => self.reply(to, answer),
                Effect::Report(report) => {
                    report.log(self.nursery.supervisor().get_id());
                    if let Some(sink) = &self.reports {
                        sink(&report);
                    }
                    if report == Report::Up {
                        self.is_up(Ok(()));
                    }
                }
                Effect::End(ending) => return self.end(ending),
            }
        }
        Ok(())
    }

    /// Whoever called may be gone; then nobody wants the answer.
    fn reply(&self, to: Reply, answer: Result<Option<Incarnation>, SupervisorError>) {
        match to {
            Reply::Done(port) => drop(port.send(answer.map(|_| ()))),
            Reply::Cell(port) => {
                let cell = answer.map(|incarnation| incarnation.and_then(|of| self.nursery.cell(of).cloned()));
                // Without a cell the port is dropped, which the caller hears as an ended supervisor.
                if let Some(answer) = cell.transpose() {
                    let _ = port.send(answer);
                }
            }
        }
    }

    fn is_up(&mut self, result: Result<(), StartError>) {
        if let Some(up) = self.up.take() {
            let _ = up.send(result);
        }
    }

    fn end(&mut self, ending: Ending) -> Result<(), Ending> {
        self.is_up(Err(match &ending {
            Ending::StartFailed { id, error } => StartError::Child { id: id.clone(), source: Box::new(error.clone()) },
            Ending::Shutdown => StartError::Cancelled,
            Ending::AutoShutdown { .. } | Ending::IntensityReached { .. } => StartError::Died,
        }));
        if ending.is_abnormal() {
            return Err(ending);
        }
        self.nursery.supervisor().stop(Some(ending.to_string()));
        Ok(())
    }
}

impl Actor for Mount {
    type Msg = Message;
    type State = Mounted;
    type Arguments = Arguments;

    async fn pre_start(&self, myself: ActorRef<Message>, arguments: Arguments) -> Result<Mounted, ActorProcessingErr> {
        let Arguments { supervision, up, reports } = arguments;
        let nursery = Nursery::new(myself);
        Ok(Mounted { supervision, nursery, up: Some(up), reports, started_at: Instant::now() })
    }

    async fn post_start(&self, _: ActorRef<Message>, state: &mut Mounted) -> Result<(), ActorProcessingErr> {
        Ok(state.take(Event::Begin)?)
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
            Message::Call(call) => state.take(Event::Call(call))?,
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
        state.nursery.close_in_order(state.supervision.stop_order()).await;
        Ok(())
    }
}

/// Starts a supervisor and waits until it is up; on an error it is gone.
async fn launch(
    spec: SupervisorSpec,
    above: Option<ActorCell>,
    cancelled: CancellationToken,
) -> Result<ActorRef<Message>, StartError> {
    let children = spec.children.into_iter().map(|child| (child.terms, child.work));
    let supervision = Supervision::new(spec.flags, children)?;
    let (up, mut is_up) = oneshot::channel();
    let arguments = Arguments { supervision, up, reports: spec.reports };
    let (actor, _) = match above {
        Some(above) => above.spawn_linked(None, Mount, arguments).await?,
        None => Actor::spawn(None, Mount, arguments).await?,
    };
    let unclaimed = Unclaimed(Some(actor.clone()));
    let result = tokio::select! {
        biased;
        () = cancelled.cancelled() => {
            let _ = actor.cast(Message::Shutdown);
            is_up.await
        }
        result = &mut is_up => result,
    };
    unclaimed.claim();
    match result {
        Ok(Ok(())) => Ok(actor),
        Ok(Err(error)) => {
            let _ = actor.wait(None).await;
            Err(error)
        }
        Err(_) => Err(StartError::Died),
    }
}

/// A supervisor that starts; if its starter loses interest, it is shut down.
struct Unclaimed(Option<ActorRef<Message>>);

impl Unclaimed {
    fn claim(mut self) {
        self.0 = None;
    }
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        if let Some(actor) = &self.0 {
            let _ = actor.cast(Message::Shutdown);
        }
    }
}

fn ask_to_shut_down(cell: &ActorCell) {
    let _ = cell.send_message(Message::Shutdown);
}

#[cfg(test)]
mod tests;
