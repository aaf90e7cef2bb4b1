//! What the twins of a world see, and who watches it: the feed that the promises about a whole world are checked on.
//!
//! A sight is what reached the pretended world (an entry that the journal's sink took, a fact that the store has, a
//! command that started, an effect of a tool) or what came from it (a cancel, an answer, a crash). The runtime is
//! never asked whether all is well before the end; then its own counts are looked at too, in the [`Aftermath`].

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use toolwarden::event::Event;
use toolwarden::models::ModelTurn;
use toolwarden::run::RunOutcome;
use toolwarden_actors::budget::Amount;
use toolwarden_actors::journal::Entry;
use toolwarden_tools::effects::dispatch::{ChildContract, ContractUse};
use toolwarden_tools::effects::store::record::Recovered;
use toolwarden_tools::ids::{InvocationId, SessionId, TaskId, ToolName};

/// One thing that was seen.
#[derive(Debug)]
pub enum Sight<'a> {
    /// The journal's sink took an entry.
    Entry(&'a Entry<Event>),
    /// A reader of the journal was given an entry.
    Shown {
        /// Its number.
        sequence: u64,
    },
    /// The store has a fact.
    Stored {
        /// Whose.
        session: &'a SessionId,
        /// Its place.
        sequence: u64,
        /// Its bytes.
        payload: &'a [u8],
    },
    /// The store has a snapshot.
    Saved {
        /// Whose.
        session: &'a SessionId,
        /// Its bytes.
        bytes: &'a [u8],
    },
    /// A tool of the world began to work.
    Began {
        /// The call.
        invocation: &'a InvocationId,
        /// The tool.
        tool: &'a ToolName,
        /// Whether it may have effects.
        effects: bool,
    },
    /// A tool of the world does not hear of a cancel.
    Deaf {
        /// The call.
        invocation: &'a InvocationId,
    },
    /// A tool of the world has done something that cannot be taken back.
    Effect {
        /// The call.
        invocation: &'a InvocationId,
        /// What, by the name that the script gave it.
        name: &'a str,
    },
    /// A tool of the world works no more.
    Over {
        /// The call.
        invocation: &'a InvocationId,
        /// The tool.
        tool: &'a ToolName,
        /// Whether it returned, or panicked; else it was dropped.
        returned: bool,
    },
    /// A command started.
    CommandStarted {
        /// Its number.
        command: u64,
    },
    /// Nothing is left of a command.
    CommandOver {
        /// Its number.
        command: u64,
    },
    /// A file was replaced, durably.
    Replaced {
        /// Where.
        path: &'a str,
        /// With what.
        bytes: &'a [u8],
        /// How many replacements of the workspace came before.
        number: u64,
    },
    /// Bytes were put at the end of a log, durably.
    Logged {
        /// Where.
        path: &'a str,
        /// Which.
        bytes: &'a [u8],
        /// They are all that was to be put there; otherwise they are what a failure left of it.
        is_whole: bool,
    },
    /// A log was cut.
    LogCut {
        /// Where.
        path: &'a str,
        /// What is left, in bytes.
        bytes: u64,
    },
    /// A file was taken away, durably.
    Removed {
        /// Where.
        path: &'a str,
        /// How many changes of the workspace came before.
        number: u64,
    },
    /// A file was changed or not, and nobody was told which.
    Unsure {
        /// Where.
        path: &'a str,
    },
    /// A file that came in pieces got its place.
    Landed {
        /// Where.
        path: &'a str,
        /// With what.
        bytes: &'a [u8],
        /// Whether another file stood there.
        replaces: bool,
    },
    /// Somebody outside of the workspace's sessions added a mark to a file, durably.
    Outside {
        /// Where.
        path: &'a str,
        /// The mark.
        mark: &'a str,
    },
    /// Somebody is asked over the network.
    Connected {
        /// The whole address.
        url: &'a str,
        /// The machines that may answer; whoever the name stands for when none.
        pinned: &'a [SocketAddr],
    },
    /// A model's turn as it was sent, and what was made of it by who reads the protocol.
    Turned {
        /// What was sent.
        sent: &'a ModelTurn,
        /// What was read; none when it was refused.
        read: Option<&'a ModelTurn>,
        /// Whether a cut or a pause was all that happened to it, so that it must be read as it was sent or not at all.
        is_intact: bool,
    },
    /// A blob was kept.
    Kept {
        /// Its bytes.
        bytes: &'a [u8],
    },
    /// A model was asked, with so many messages in the conversation.
    Asked {
        /// As which agent.
        agent: &'a str,
        /// How long the conversation is.
        messages: usize,
        /// What is wrong with how its calls and results fit together, if anything.
        unpaired: Option<&'a str>,
    },
    /// The host orders a fork.
    Forking {
        /// Of which session.
        from: &'a SessionId,
        /// What it is to be called.
        to: &'a SessionId,
    },
    /// The store has a fork.
    Forked {
        /// Which session.
        to: &'a SessionId,
        /// Its snapshot.
        bytes: &'a [u8],
    },
    /// Another host took a child run.
    Contracted {
        /// Its contract.
        contract: &'a ChildContract,
    },
    /// Nothing more comes of a contract.
    Delivered {
        /// Which.
        key: &'a TaskId,
        /// What it used; none when nobody will ever know.
        used: Option<ContractUse>,
    },
    /// A model was asked for an object.
    AskedForObject {
        /// In whose name.
        session: &'a str,
        /// What it is told first.
        prompt: &'a str,
        /// How long the conversation is: it grows with each round.
        messages: usize,
    },
    /// A person answered.
    Answered {
        /// About which call.
        invocation: &'a InvocationId,
        /// What they said.
        approved: bool,
        /// Whether the runtime took the answer.
        taken: bool,
    },
    /// The host cancelled a run, a call or everything in a session.
    Cancelled {
        /// Which session, as the host counts them.
        session: usize,
    },
    /// The journal was made to break down; what was under way has no ending in it.
    JournalBroke,
    /// The process ended without a warning.
    Crashed,
    /// The world goes on in another process.
    Revived,
    /// The host shuts everything down.
    ShutDown,
    /// The host shuts everything down without grace.
    Killed,
}

impl Sight<'_> {
    /// The sight as a line for people, without its bytes.
    pub fn line(&self) -> String {
        match self {
            Self::Entry(entry) => format!("journal {}: {}", entry.sequence, short(&format!("{:?}", entry.event.kind))),
            Self::Stored { session, sequence, payload } => {
                format!("fact {sequence} of {session} is stored: {}", short(&String::from_utf8_lossy(payload)))
            }
            Self::Saved { session, bytes } => format!("a snapshot of {session} is saved: {} bytes", bytes.len()),
            Self::Replaced { path, bytes, .. } => format!("{path} is replaced: {} bytes", bytes.len()),
            Self::Logged { path, bytes, .. } => format!("{path} gets {}", short(&String::from_utf8_lossy(bytes))),
            Self::Landed { path, bytes, .. } => format!("{path} has come whole: {} bytes", bytes.len()),
            Self::Turned { sent, read, .. } => {
                let how = if read.is_some() { "is read" } else { "is refused" };
                format!("a turn of {} bytes and {} calls {how}", sent.text.len(), sent.calls.len())
            }
            Self::Kept { bytes } => format!("a blob is kept: {} bytes", bytes.len()),
            Self::Began { invocation, tool, .. } => format!("{tool} begins to work on {invocation}"),
            Self::Deaf { invocation } => format!("{invocation} will not hear of a cancel"),
            Self::Effect { invocation, name } => format!("{invocation} has done {name:?}"),
            Self::Over { invocation, tool, returned } => {
                let how = if *returned { "is done with" } else { "was dropped in the middle of" };
                format!("{tool} {how} {invocation}")
            }
            Self::Asked { agent, messages, .. } => format!("the model of {agent} is asked after {messages} messages"),
            Self::Forked { to, bytes } => format!("the fork {to} is there: {} bytes", bytes.len()),
            Self::Contracted { contract } => format!("{} is taken elsewhere", contract.idempotency_key),
            Self::AskedForObject { prompt, messages, .. } => {
                format!("a model is asked for an object after {messages} messages: {}", short(prompt))
            }
            Self::Answered { invocation, approved, taken } => {
                let word = if *approved { "yes" } else { "no" };
                let heard = if *taken { "and is heard" } else { "and nobody listens" };
                format!("a person says {word} to {invocation} {heard}")
            }
            other => format!("{other:?}"),
        }
    }
}

/// Longest part of a line that is shown, in characters.
const SHORT_CHARS: usize = 160;

fn short(text: &str) -> String {
    text.chars().take(SHORT_CHARS).collect()
}

/// One promise about a whole world.
pub trait Watcher: Send {
    /// Its name in reports: one word.
    fn name(&self) -> &'static str;

    /// The promise, in a few words.
    fn promise(&self) -> &'static str;

    /// Whether it reads the journal's lines. They are written only for who does: that is a tenth of a world's time.
    fn reads_lines(&self) -> bool {
        false
    }

    /// Takes an entry of the journal as the line of JSON that hosts read, where it asked for that.
    ///
    /// # Errors
    /// How the promise was broken by it.
    fn read(&mut self, _line: &[u8]) -> Result<(), String> {
        Ok(())
    }

    /// Takes what was seen.
    ///
    /// # Errors
    /// How the promise was broken by it.
    fn see(&mut self, at: Duration, sight: &Sight<'_>) -> Result<(), String>;

    /// Takes what is left when everything has ended.
    ///
    /// # Errors
    /// How the promise was broken by then.
    fn finish(&mut self, _aftermath: &Aftermath) -> Result<(), String> {
        Ok(())
    }
}

/// What the host was told of one prompt.
#[derive(Debug, Clone)]
pub struct Told {
    /// Which session, as the host counts them.
    pub session: usize,
    /// Which of its prompts.
    pub prompt: usize,
    /// The outcome; none when the session closed first.
    pub outcome: Option<RunOutcome>,
}

/// A lane at rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneRest {
    /// Its name.
    pub lane: String,
    /// Slots out.
    pub in_use: usize,
    /// Calls that wait.
    pub waiting: usize,
}

/// What is left when everything has ended.
#[derive(Debug, Default)]
pub struct Aftermath {
    /// What the host was told, in the order of sessions and prompts.
    pub told: Vec<Told>,
    /// The lanes, once every run had ended.
    pub lanes: Vec<LaneRest>,
    /// Sessions in whose budget something was still reserved then.
    pub reserved: Vec<String>,
    /// What each open session had spent then.
    pub spent: Vec<(SessionId, Amount)>,
    /// Sessions that spent more than they may, with what.
    pub overspent: Vec<String>,
    /// Calls of open sessions that were still listed as at work then.
    pub active: usize,
    /// Questions that were still open then.
    pub questions: usize,
    /// Nodes that lived once every session was closed, the top one not counted.
    pub nodes: usize,
    /// Nodes that lived after the shut-down.
    pub nodes_after: usize,
    /// Tasks that lived after the shut-down.
    pub tasks: usize,
    /// Invocations that the journal counts as open at the end.
    pub open_invocations: usize,
    /// Endings that the journal refused.
    pub refused_endings: u64,
    /// The files of the workspace.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Temporaries that the last process left although it was not killed.
    pub temporaries: Vec<String>,
    /// What the store holds of each session, where there is a store.
    pub kept: Vec<(SessionId, Recovered)>,
    /// What the world did not come to an end with, in words.
    pub stuck: Option<String>,
    /// How often the process ended without a warning.
    pub crashes: u32,
}

/// Names the call of a tool in words.
pub struct Call<'a>(pub &'a InvocationId);

impl fmt::Display for Call<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "call {}", self.0)
    }
}
