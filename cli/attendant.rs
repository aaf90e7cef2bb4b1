//! Keeps a person company while a session works: shows what runs, passes questions and answers on, and ends things
//! when it is told to.
//!
//! The first Ctrl-C (or SIGTERM, or SIGHUP) cancels everything and waits until all of it has settled; a Ctrl-C
//! after that kills. Nothing here holds the work up: events that were missed make the picture poorer, no more.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use toolwarden::embedding::Runtime;
use toolwarden::event::{Event, EventKind};
use toolwarden::session::{CancelTarget, Session};
use toolwarden_actors::journal::{Entry, Reader, Reading};
use toolwarden_actors::open_questions::{OPEN_QUESTIONS_MAX, Reply};
use toolwarden_tools::cancellation::CancelReason;
use toolwarden_tools::ids::InvocationId;

use crate::confirm::{Asker, Prompt, Question};
use crate::stop_signal::{StopSignal, StopSignals};
use crate::terminal::board::{Board, plural, span};
use crate::terminal::{Progress, REDRAW, Screen};

/// How long killed work may take to be gone; what is left then ends with this program.
const KILL_WAIT: Duration = Duration::from_secs(5);

/// Watches over one session.
pub(crate) struct Attendant {
    runtime: Runtime,
    session: Session,
    screen: Screen,
    signals: StopSignals,
    /// None once the journal has ended.
    events: Option<Reader<Event>>,
    board: Board,
    progress: Progress,
    started_at: Instant,
    asker: Option<Asker>,
    questions: VecDeque<Question>,
    prompt: Option<Prompt>,
    stopped_by: Option<StopSignal>,
}

/// The work was killed before it came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Killed;

/// What a session is attended with.
pub(crate) struct Attendance {
    /// The person's screen.
    pub(crate) screen: Screen,
    /// Signals, listened to from before the session opened.
    pub(crate) signals: StopSignals,
    /// The session's events.
    pub(crate) events: Reader<Event>,
    /// The way to the person, when questions may be asked.
    pub(crate) asker: Option<Asker>,
}

enum News {
    Stop(StopSignal),
    Reading(Option<Reading<Event>>),
    Answer(Reply),
    Redraw,
}

impl Attendant {
    /// Begins to watch.
    pub(crate) fn begin(runtime: Runtime, session: Session, with: Attendance) -> Self {
        let Attendance { screen, signals, events, asker } = with;
        Self {
            runtime,
            session,
            progress: Progress::new(screen.clone()),
            screen,
            signals,
            events: Some(events),
            board: Board::default(),
            started_at: Instant::now(),
            asker,
            questions: VecDeque::new(),
            prompt: None,
            stopped_by: None,
        }
    }

    /// Attends to a piece of work until it has ended.
    ///
    /// # Errors
    /// [`Killed`] when the person would not wait for its end.
    pub(crate) async fn attend<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Killed> {
        tokio::pin!(work);
        let mut redraw = interval(REDRAW);
        redraw.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let ended = loop {
            let draws = self.progress.is_shown() && self.prompt.is_none();
            let (signals, events, prompt) = (&mut self.signals, &mut self.events, &mut self.prompt);
            let reading = async {
                match events {
                    Some(events) => events.next().await,
                    None => std::future::pending().await,
                }
            };
            let answer = async {
                match prompt {
                    Some(prompt) => prompt.answer().await,
                    None => std::future::pending().await,
                }
            };
            let news = tokio::select! {
                biased;
                signal = signals.next() => News::Stop(signal),
                ended = &mut work => break Ok(ended),
                answer = answer => News::Answer(answer),
                reading = reading => News::Reading(reading),
                _ = redraw.tick(), if draws => News::Redraw,
            };
            match news {
                News::Stop(signal) => {
                    if self.stop(signal) {
                        break Err(self.kill().await);
                    }
                }
                News::Answer(reply) => self.pass_on(reply).await,
                News::Reading(Some(reading)) => self.take(reading).await,
                News::Reading(None) => self.events = None,
                News::Redraw => self.progress.draw(&self.board, self.started_at.elapsed()),
            }
            self.ask_next();
        };
        self.progress.clear();
        ended
    }

    /// The signal that told the work to end, when one did.
    pub(crate) fn stopped_by(&self) -> Option<StopSignal> {
        self.stopped_by
    }

    /// How long this has been going on.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started_at.elapsed()
    }

    /// Says on a terminal what happened in all; to be called when the events were read.
    pub(crate) fn tell_total(&self) {
        if self.progress.is_shown() {
            self.screen.say(&format!("{}, {}", self.board.total(), span(self.elapsed())));
        }
    }

    /// Takes note of a signal; returns whether it asks for a kill.
    fn stop(&mut self, signal: StopSignal) -> bool {
        if self.stopped_by.is_some() {
            // Terminals and service managers repeat themselves; a person who presses again means it.
            return signal == StopSignal::Interrupt;
        }
        self.stopped_by = Some(signal);
        let waited_for = waited_for(self.session.active_tools().iter().map(|tool| tool.name.as_str()));
        self.session.cancel(&CancelTarget::Everything, &CancelReason::Requested);
        // What has not begun yet never will; its end is waited for with the work.
        let session = self.session.clone();
        tokio::spawn(async move { session.close_because(CancelReason::Requested).await });
        let name = signal.name();
        self.screen.say(&format!("{name}: stopping; waiting for {waited_for} to end (Ctrl-C again kills)"));
        false
    }

    async fn kill(&mut self) -> Killed {
        self.prompt = None;
        self.screen.say("killing what still runs");
        if timeout(KILL_WAIT, self.runtime.kill()).await.is_err() {
            self.screen.complain("something did not end even so; it ends with this program");
        }
        Killed
    }

    async fn take(&mut self, reading: Reading<Event>) {
        match reading {
            Reading::Entry(entry) => self.take_entry(&entry),
            Reading::Missed { .. } => {
                self.board.forget();
                self.find_questions().await;
            }
            // The journal has told the log.
            Reading::SinkFailed(_) => {}
        }
    }

    fn take_entry(&mut self, entry: &Entry<Event>) {
        let Event { session, kind, .. } = &entry.event;
        self.board.take(session, kind, self.started_at.elapsed());
        match kind {
            EventKind::ConfirmationRequired { tool_id, tool_name, args, digest, reason, .. } => {
                self.queue(Question {
                    call: tool_id.clone(),
                    tool: tool_name.clone(),
                    arguments: args.clone(),
                    digest: digest.clone(),
                    reason: reason.clone(),
                });
            }
            EventKind::ConfirmationReceived { tool_id, .. } | EventKind::ConfirmationTimeout { tool_id, .. } => {
                self.withdraw(tool_id);
            }
            EventKind::ToolEnd(result) => self.withdraw(&result.id),
            _ => {}
        }
    }

    fn queue(&mut self, question: Question) {
        if self.asker.is_some() && self.questions.len() < OPEN_QUESTIONS_MAX {
            self.questions.push_back(question);
        }
    }

    fn withdraw(&mut self, call: &InvocationId) {
        self.questions.retain(|question| question.call != *call);
        if self.prompt.as_ref().is_some_and(|prompt| prompt.question.call == *call) {
            self.prompt = None;
        }
    }

    /// The open questions as the session knows them, after events were missed.
    async fn find_questions(&mut self) {
        let Ok(pending) = self.session.pending_confirmations().await else { return };
        self.questions.clear();
        let asked = self.prompt.as_ref().map(|prompt| prompt.question.call.clone());
        if asked.as_ref().is_some_and(|asked| pending.iter().all(|question| question.id != *asked)) {
            self.prompt = None;
        }
        for question in pending.into_iter().filter(|question| Some(&question.id) != asked.as_ref()) {
            self.queue(Question {
                call: question.id,
                tool: question.tool,
                arguments: question.arguments,
                digest: question.digest,
                reason: question.reason,
            });
        }
    }

    /// Shows the next question, when none is open.
    fn ask_next(&mut self) {
        let Some(asker) = &self.asker else { return };
        if self.prompt.is_some() {
            return;
        }
        let Some(question) = self.questions.pop_front() else { return };
        self.progress.clear();
        match asker.ask(question) {
            Ok(prompt) => self.prompt = Some(prompt),
            Err(error) => {
                // The question stays open for the session; Ctrl-C ends it.
                self.screen.complain(&format!("cannot ask on the terminal: {error}; press Ctrl-C to end the call"));
            }
        }
    }

    async fn pass_on(&mut self, reply: Reply) {
        let Some(prompt) = self.prompt.take() else { return };
        let Question { call, digest, .. } = prompt.question;
        if !self.session.confirm(call, Some(digest), reply).await && self.stopped_by.is_none() {
            self.screen.say("that question was not open any more");
        }
    }
}

/// The tools that work, by name and number, for a person who waits for them.
fn waited_for<'a>(tools: impl Iterator<Item = &'a str>) -> String {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for tool in tools {
        *counts.entry(tool).or_default() += 1;
    }
    if counts.is_empty() {
        return "what was begun".to_owned();
    }
    let one = |(tool, count): (&&str, &u64)| match count {
        1 => (*tool).to_owned(),
        count => plural(*count, &format!("{tool} call")),
    };
    counts.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::waited_for;

    #[test]
    fn what_is_waited_for_is_named() {
        assert_eq!(waited_for([].into_iter()), "what was begun");
        assert_eq!(waited_for(["search", "bash", "search"].into_iter()), "bash, 2 search calls");
    }
}
