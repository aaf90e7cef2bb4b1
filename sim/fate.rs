//! Fate: the one list of choices that all twins of a world share, and the record of what they saw.
//!
//! Everything that is not decided by the shipped code is decided here, in the order in which it comes up, so that the
//! list of numbers replays the whole world. What must stay true: nothing is drawn off the world's own thread (there it
//! is always the plainest thing), and once the process of the world has crashed nothing that it still does is seen.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash as _, Hasher as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use serde_json::to_writer;
use tokio::sync::Notify;
use tokio::time::Instant;
use toolwarden::event::{EventKind, EventLine};
use toolwarden::models::ModelTurn;

use crate::checkers::Violation;
use crate::happening::TraceDigest;
use crate::imprint::{fold, fold_bytes};
use crate::outline::Outline;
use crate::seed::{Choices, Pick};
use crate::sight::{Aftermath, Sight, Watcher};
use crate::sign::Sign;
use crate::standing::Standing;
use crate::story::{MOMENTS_MAX, Meeting, Moment, What};

/// Most sights of one world; one that needs more is reported as never ending.
pub const SIGHTS_MAX: u64 = 200_000;

/// What a world came to, as far as its choices and its watchers know.
#[derive(Debug)]
pub struct Verdict {
    /// All choices: the replay.
    pub choices: Vec<u32>,
    /// What each choice was below, when the choices kept that.
    pub bounds: Vec<u32>,
    /// The digest of everything that was seen.
    pub digest: u64,
    /// The first promise that was broken.
    pub violation: Option<Violation>,
    /// Which of the unusual things happened.
    pub coverage: BTreeSet<&'static str>,
    /// How often each of them met what.
    pub sometimes: BTreeMap<Meeting, u64>,
    /// Moments at which something could be done to the world from outside.
    pub steps: u64,
    /// Sessions, runs and calls, as the journal tells them.
    pub nodes: u64,
    /// How often each effect of a tool was done, by its name.
    pub effects: BTreeMap<String, u64>,
    /// Where something was done last that was planned, in words.
    pub acted: Option<String>,
    /// What was seen; only where it was asked for.
    pub story: Vec<Moment>,
    /// What was seen beyond [`MOMENTS_MAX`].
    pub moments_lost: u64,
}

/// What is done at one step.
pub type AtStep = Box<dyn FnOnce() + Send>;

/// Shared by everything that is pretended in one world; clones are the same.
#[derive(Clone)]
pub struct Fate {
    shared: Arc<Shared>,
}

struct Shared {
    thread: ThreadId,
    dead: AtomicBool,
    died: Notify,
    book: Mutex<Book>,
}

struct Book {
    choices: Choices,
    /// Whether unusual things happen.
    wild: bool,
    /// Virtual time of the processes before this one.
    before: Duration,
    since: Option<Instant>,
    watchers: Vec<Box<dyn Watcher>>,
    violation: Option<Violation>,
    coverage: BTreeSet<&'static str>,
    digest: TraceDigest,
    /// Whether any watcher reads the journal as hosts do.
    reads_lines: bool,
    line: Vec<u8>,
    sights: u64,
    steps: u64,
    nodes: u64,
    trap: Option<(u64, AtStep)>,
    acted: Option<String>,
    standing: Standing,
    sometimes: BTreeMap<Meeting, u64>,
    effects: BTreeMap<String, u64>,
    telling: Option<Telling>,
}

/// A story under way.
#[derive(Default)]
struct Telling {
    moments: Vec<Moment>,
    lost: u64,
    outline: Outline,
}

impl Telling {
    fn tell(&mut self, at: Duration, words: String, signs: Vec<Sign>) {
        match self.moments.len() < MOMENTS_MAX {
            true => self.moments.push(Moment { at, what: What::Seen { words, signs } }),
            false => self.lost += 1,
        }
    }
}

impl Fate {
    /// Of a world that lives on this thread.
    pub fn new(choices: Choices, watchers: Vec<Box<dyn Watcher>>, wild: bool, tells: bool) -> Self {
        let reads_lines = watchers.iter().any(|watcher| watcher.reads_lines());
        let book = Book {
            choices,
            wild,
            before: Duration::ZERO,
            since: None,
            watchers,
            violation: None,
            coverage: BTreeSet::new(),
            digest: TraceDigest::new(),
            reads_lines,
            line: Vec::new(),
            sights: 0,
            steps: 0,
            nodes: 0,
            trap: None,
            acted: None,
            standing: Standing::default(),
            sometimes: BTreeMap::new(),
            effects: BTreeMap::new(),
            telling: tells.then(Telling::default),
        };
        let shared = Shared {
            thread: std::thread::current().id(),
            dead: AtomicBool::new(false),
            died: Notify::new(),
            book: Mutex::new(book),
        };
        Self { shared: Arc::new(shared) }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.shared.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_here(&self) -> bool {
        std::thread::current().id() == self.shared.thread
    }

    /// A number below `bound`; 0 is the plainest.
    pub fn below(&self, bound: u32) -> u32 {
        if self.is_here() { self.book().choices.below(bound) } else { 0 }
    }

    /// One of `usual` things; 0 is the plainest, and calm seeds mostly take it.
    pub fn usual(&self, usual: usize) -> usize {
        if !self.is_here() {
            return 0;
        }
        match self.book().choices.usual_or_rare(usual, 0) {
            Pick::Usual(at) => at,
            Pick::Rare(_) => 0,
        }
    }

    /// Now and then one of `kinds` unusual things, while unusual things happen.
    pub fn rare(&self, kinds: u32) -> Option<u32> {
        if !self.is_here() || self.is_dead() {
            return None;
        }
        let mut book = self.book();
        if !book.wild {
            return None;
        }
        match book.choices.usual_or_rare(1, kinds) {
            Pick::Usual(_) => None,
            Pick::Rare(kind) => Some(kind),
        }
    }

    /// Unusual things happen from now on, or no more.
    pub fn set_wild(&self, wild: bool) {
        self.book().wild = wild;
    }

    /// Something unusual happened.
    pub fn met(&self, what: &'static str) {
        let is_dead = self.is_dead();
        self.book().meet(what, is_dead);
    }

    /// What is under way, by name: what a world that does not end waits for.
    pub fn waits_for(&self) -> String {
        self.book().standing.waits_for()
    }

    /// Virtual time since the world began.
    pub fn now(&self) -> Duration {
        self.book().now()
    }

    /// A process of the world begins; its time goes on where that of the last one stood.
    pub fn begin_process(&self) {
        let mut book = self.book();
        book.since = Some(Instant::now());
        drop(book);
        self.shared.dead.store(false, Ordering::Release);
    }

    /// The process of the world ended.
    pub fn end_process(&self) {
        let mut book = self.book();
        book.before = book.now();
        book.since = None;
    }

    /// Ends the process of the world without a warning. From here on nothing that it does is seen.
    pub fn crash(&self) {
        if self.is_dead() {
            return;
        }
        self.see(&Sight::Crashed);
        self.shared.dead.store(true, Ordering::Release);
        self.shared.died.notify_one();
    }

    /// Whether the process of the world has crashed.
    pub fn is_dead(&self) -> bool {
        self.shared.dead.load(Ordering::Acquire)
    }

    /// Waits for a crash.
    pub async fn crashed(&self) {
        while !self.is_dead() {
            self.shared.died.notified().await;
        }
    }

    /// Takes what a twin saw.
    pub fn see(&self, sight: &Sight<'_>) {
        if self.is_dead() && !matches!(sight, Sight::Revived) {
            return;
        }
        self.book().see(sight);
    }

    /// What is to be done at a step, counted from 1.
    pub fn at_step(&self, step: u64, act: AtStep) {
        self.book().trap = Some((step, act));
    }

    /// A moment at which something may be done to the world from outside; true when something was.
    pub fn step(&self, what: impl FnOnce() -> String) -> bool {
        if self.is_dead() || !self.is_here() {
            return false;
        }
        let act = {
            let mut book = self.book();
            book.steps += 1;
            let now = book.steps;
            match &book.trap {
                Some((at, _)) if *at == now => book.trap.take(),
                _ => None,
            }
        };
        let acts = act.is_some();
        if let Some((_, act)) = act {
            self.book().acted = Some(what());
            act();
        }
        acts
    }

    /// Steps so far.
    pub fn steps(&self) -> u64 {
        self.book().steps
    }

    /// Whether nothing more need be looked at: a promise was broken, or there was far too much to see.
    pub fn is_decided(&self) -> bool {
        let book = self.book();
        book.violation.is_some() || book.sights > SIGHTS_MAX
    }

    /// A promise was broken, as somebody other than a watcher found.
    pub fn blame(&self, promise: &'static str, text: String) {
        let mut book = self.book();
        let at = book.now();
        book.violation.get_or_insert(Violation { checker: "world", promise, at, text });
    }

    /// Lets the watchers look at what is left, and gives everything away.
    pub fn finish(&self, aftermath: &Aftermath) -> Verdict {
        let mut book = self.book();
        let at = book.now();
        if book.sights > SIGHTS_MAX {
            let text = format!("more than {SIGHTS_MAX} things were seen; it waits for: {}", book.standing.waits_for());
            book.violation.get_or_insert(Violation { checker: "world", promise: "a world ends", at, text });
        }
        if book.violation.is_none() {
            let broken = book.watchers.iter_mut().find_map(|watcher| {
                let text = watcher.finish(aftermath).err()?;
                Some(Violation { checker: watcher.name(), promise: watcher.promise(), at, text })
            });
            book.violation = broken;
        }
        let choices = std::mem::replace(&mut book.choices, Choices::from_list(Vec::new()));
        let (choices, bounds) = choices.into_bounded();
        let Telling { moments, lost, .. } = book.telling.take().unwrap_or_default();
        Verdict {
            choices,
            bounds,
            digest: book.digest.finish(),
            violation: book.violation.take(),
            coverage: std::mem::take(&mut book.coverage),
            sometimes: std::mem::take(&mut book.sometimes),
            steps: book.steps,
            nodes: book.nodes,
            effects: std::mem::take(&mut book.effects),
            acted: book.acted.take(),
            story: moments,
            moments_lost: lost,
        }
    }
}

impl Book {
    fn now(&self) -> Duration {
        self.before + self.since.map(|since| since.elapsed()).unwrap_or_default()
    }

    fn meet(&mut self, what: &'static str, is_dead: bool) {
        self.coverage.insert(what);
        *self.sometimes.entry((what, self.standing.words())).or_default() += 1;
        let at = self.now();
        if let Some(telling) = self.telling.as_mut().filter(|_| !is_dead) {
            let signs = telling.outline.met(what);
            telling.tell(at, format!("it meets {what}"), signs);
        }
    }

    fn see(&mut self, sight: &Sight<'_>) {
        self.sights += 1;
        if self.sights > SIGHTS_MAX {
            return;
        }
        let at = self.now();
        self.fold(at, sight);
        self.standing.take(sight);
        match sight {
            Sight::Entry(entry) if begins_a_node(&entry.event.kind) => self.nodes += 1,
            Sight::Effect { name, .. } => *self.effects.entry((*name).to_owned()).or_default() += 1,
            _ => {}
        }
        if let Some(telling) = &mut self.telling {
            let signs = telling.outline.of(sight);
            telling.tell(at, sight.line(), signs);
        }
        if self.violation.is_none() {
            let line = (self.reads_lines && matches!(sight, Sight::Entry(_))).then_some(self.line.as_slice());
            self.violation = self.watchers.iter_mut().find_map(|watcher| {
                let read = line.map_or(Ok(()), |line| watcher.read(line));
                let text = read.and_then(|()| watcher.see(at, sight)).err()?;
                Some(Violation { checker: watcher.name(), promise: watcher.promise(), at, text })
            });
        }
    }

    /// The digest takes every byte of the journal and of the facts, with their moments.
    fn fold(&mut self, at: Duration, sight: &Sight<'_>) {
        at.hash(&mut self.digest);
        std::mem::discriminant(sight).hash(&mut self.digest);
        match sight {
            Sight::Entry(entry) => {
                let line = EventLine::from(*entry);
                // An event is always whole; should one not be, what was folded of it tells it apart.
                fold(&mut self.digest, &line);
                if self.reads_lines {
                    self.line.clear();
                    // What is written of one that is no JSON can be read all the same.
                    drop(to_writer(&mut self.line, &line));
                }
            }
            Sight::Stored { session, sequence, payload } => {
                (session.as_str(), sequence).hash(&mut self.digest);
                fold_bytes(&mut self.digest, payload);
            }
            Sight::Saved { session, bytes } => {
                session.as_str().hash(&mut self.digest);
                fold_bytes(&mut self.digest, bytes);
            }
            Sight::Replaced { path, bytes, number } => {
                (path, number).hash(&mut self.digest);
                fold_bytes(&mut self.digest, bytes);
            }
            Sight::Logged { path, bytes, .. } => {
                path.hash(&mut self.digest);
                fold_bytes(&mut self.digest, bytes);
            }
            Sight::LogCut { path, bytes } => (path, bytes).hash(&mut self.digest),
            Sight::Kept { bytes } => fold_bytes(&mut self.digest, bytes),
            Sight::Began { invocation, .. } | Sight::Deaf { invocation } => {
                invocation.as_str().hash(&mut self.digest);
            }
            Sight::Over { invocation, returned, .. } => (invocation.as_str(), returned).hash(&mut self.digest),
            Sight::Effect { invocation, name } => (invocation.as_str(), name).hash(&mut self.digest),
            Sight::Answered { invocation, approved, taken } => {
                (invocation.as_str(), approved, taken).hash(&mut self.digest);
            }
            Sight::Forking { from, to } => (from.as_str(), to.as_str()).hash(&mut self.digest),
            Sight::Forked { to, bytes } => {
                to.as_str().hash(&mut self.digest);
                fold_bytes(&mut self.digest, bytes);
            }
            Sight::Contracted { contract } => contract.idempotency_key.as_str().hash(&mut self.digest),
            Sight::Delivered { key, used } => {
                let used = used.map(|used| (used.calls, used.input_tokens, used.output_tokens));
                (key.as_str(), used).hash(&mut self.digest);
            }
            Sight::Asked { agent, messages, unpaired } => (agent, messages, unpaired).hash(&mut self.digest),
            Sight::AskedForObject { session, prompt, messages } => {
                (session, prompt, messages).hash(&mut self.digest);
            }
            Sight::Removed { path, number } => (path, number).hash(&mut self.digest),
            Sight::Unsure { path } => path.hash(&mut self.digest),
            Sight::Outside { path, mark } => (path, mark).hash(&mut self.digest),
            Sight::Connected { url, pinned } => (url, pinned).hash(&mut self.digest),
            // Its bytes follow as those of a replacement.
            Sight::Landed { path, bytes, replaces } => (path, bytes.len(), replaces).hash(&mut self.digest),
            Sight::Turned { sent, read, is_intact } => {
                let calls = |turn: &ModelTurn| (turn.text.len(), turn.calls.len());
                (calls(sent), read.map(calls), is_intact).hash(&mut self.digest);
            }
            Sight::CommandStarted { command } | Sight::CommandOver { command } => command.hash(&mut self.digest),
            Sight::Shown { sequence } => sequence.hash(&mut self.digest),
            Sight::Cancelled { session } => session.hash(&mut self.digest),
            Sight::JournalBroke | Sight::Crashed | Sight::Revived | Sight::ShutDown | Sight::Killed => {}
        }
    }
}

fn begins_a_node(kind: &EventKind) -> bool {
    use EventKind::{AgentStart, SessionOpened, SubagentStart, ToolProposed};
    matches!(kind, SessionOpened { .. } | AgentStart { .. } | ToolProposed { .. } | SubagentStart { .. })
}
