//! A play: what happens in a world, in values that a scenario file can hold.
//!
//! What it says is what is meant to happen; what goes wrong on top of that is drawn from the seed, by the twins that it
//! calls faulty and by the acts that it allows.

use serde::{Deserialize, Serialize};

/// Most sessions of a play.
pub const SESSIONS_MAX: usize = 8;
/// Most acts that are drawn in one world.
pub const ACTS_MAX: u32 = 64;

/// What happens in a world.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Play {
    /// What the files of the workspace are called, and what is in them.
    pub files: Vec<(String, String)>,
    /// Addresses of pages in the network, and what they answer.
    pub pages: Vec<(String, String)>,
    /// Files that servers in the network offer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub offers: Vec<Offer>,
    /// The prompts of each session; sessions run beside each other, at most [`SESSIONS_MAX`].
    pub sessions: Vec<Vec<String>>,
    /// What the model says, in the format of `scripted:FILE`.
    pub turns: String,
    /// The permission policy, in TOML. When empty everything runs and nobody is asked.
    pub policy: String,
    /// The policy of a session that is opened again after a crash; the same when none.
    pub policy_later: Option<String>,
    /// Slots of every lane; the usual ones when none.
    pub permits: Option<usize>,
    /// Calls that may wait at each lane; the usual number when none.
    pub queue_max: Option<usize>,
    /// Calls that each session may make.
    pub calls_max: Option<u64>,
    /// Tokens that each session may read, and as many that may be written for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_max: Option<u64>,
    /// Whether child runs are carried out by another host.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub elsewhere: bool,
    /// Model rounds with tools in each run.
    pub rounds_max: u32,
    /// The most time for a call, in milliseconds.
    pub call_ms: Option<u64>,
    /// The most time for a run, in milliseconds.
    pub run_ms: Option<u64>,
    /// How long a person is waited for, in milliseconds; as long as it takes when 0.
    pub confirm_ms: u64,
    /// Whether sessions are kept in a store.
    pub keeps: bool,
    /// Whether what a command leaves running goes on.
    pub keeps_leftovers: bool,
    /// Which twins have faults.
    pub faults: Faults,
    /// Whether the model means harm.
    pub hostile: bool,
    /// What may be done to the world at any step, as drawn.
    pub acts: Vec<Act>,
    /// How many of these are done at the most, up to [`ACTS_MAX`].
    pub acts_max: u32,
    /// What is done for certain.
    pub moves: Vec<Move>,
    /// A word that nobody may see: it may stand in files, turns and outputs.
    pub secret: String,
    /// Whether several changes of files are made one by one, as in workspaces without a better way.
    pub plain_files: bool,
    /// Whether somebody outside changes files between a tool's look and its change.
    pub outsiders: bool,
    /// Whether all that goes wrong with the line to the model is that it is cut.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub only_cuts: bool,
    /// The protocol over which the model is asked; it is asked directly when none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wire: Option<Wire>,
    /// Whether what comes over that protocol comes slowly, a piece now and a piece then, and may go silent before its end.
    pub paced: bool,
    /// The model's window, in tokens; without a bound when none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_tokens: Option<u64>,
    /// A planted fault, by its name: what is found when a part is broken in one way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mutant: Option<String>,
}

/// A file that a server offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offer {
    /// Its address.
    pub url: String,
    /// How many bytes it has.
    pub bytes: usize,
    /// Whether the server gives parts of it.
    #[serde(default)]
    pub parts: bool,
    /// How the server names its version.
    #[serde(default)]
    pub validator: Validator,
    /// Where the server leads instead of giving it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leads_to: Option<String>,
    /// Whether the first answer with more than a byte breaks off in the middle.
    #[serde(default)]
    pub cuts_first: bool,
    /// Whether there is a new version once an answer broke off so.
    #[serde(default)]
    pub changes: bool,
    /// Whether the server gives another part than was asked for, and says so.
    #[serde(default)]
    pub shifts: bool,
}

/// How a server names the version of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Validator {
    /// By a strong tag.
    #[default]
    Strong,
    /// By a weak tag: not for parts.
    Weak,
    /// By the time of its last change.
    Dated,
    /// Not at all.
    None,
}

/// A protocol over which a model is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wire {
    /// OpenAI's chat completions.
    Chat,
    /// OpenAI's responses.
    Responses,
    /// Claude's messages.
    Claude,
}

/// Which twins have faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Faults {
    /// The workspace's files.
    pub files: bool,
    /// Commands.
    pub processes: bool,
    /// The store of sessions.
    pub store: bool,
    /// The store of whole outputs.
    pub blobs: bool,
    /// The network.
    pub http: bool,
    /// The model.
    pub model: bool,
    /// The host elsewhere that carries out child runs.
    pub dispatch: bool,
    /// The person.
    pub person: bool,
    /// The tools of the world.
    pub tools: bool,
}

/// Something done to a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    /// Cancels the runs of a session.
    CancelRun,
    /// Cancels the oldest call at work in a session.
    CancelCall,
    /// Cancels every run and call of a session.
    CancelAll,
    /// Whoever waits for a run goes away.
    DropRun,
    /// Puts a word into the run under way.
    Steer,
    /// Saves a snapshot.
    Save,
    /// Closes a session.
    Close,
    /// Shuts the runtime down.
    ShutDown,
    /// Shuts the runtime down without grace.
    Kill,
    /// Ends the process without a warning; only where sessions are kept.
    Crash,
    /// Makes the journal break down, and everything behind it start again.
    BreakJournal,
    /// Moves the wall clock an hour back.
    JumpBack,
    /// Makes the snapshots that are kept those of an older version of this program.
    AgeSnapshots,
    /// Makes a new session out of one; only where sessions are kept.
    Fork,
}

/// An act at a certain step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Move {
    /// At which step, counted from 1: an entry of the journal, or a poll of a tool.
    pub step: u64,
    /// What is done.
    pub act: Act,
    /// To which session, counted from 0.
    #[serde(default)]
    pub session: usize,
}

impl Default for Play {
    fn default() -> Self {
        Self {
            files: Vec::new(),
            pages: Vec::new(),
            offers: Vec::new(),
            sessions: vec![vec!["go".to_owned()]],
            turns: String::new(),
            policy: String::new(),
            policy_later: None,
            permits: None,
            queue_max: None,
            calls_max: None,
            tokens_max: None,
            elsewhere: false,
            rounds_max: 20,
            call_ms: None,
            run_ms: Some(7_200_000),
            confirm_ms: 30_000,
            keeps: false,
            keeps_leftovers: false,
            faults: Faults::default(),
            hostile: false,
            acts: Vec::new(),
            acts_max: 3,
            moves: Vec::new(),
            secret: "hunter2-planted-secret".to_owned(),
            plain_files: false,
            outsiders: false,
            only_cuts: false,
            wire: None,
            paced: false,
            window_tokens: None,
            mutant: None,
        }
    }
}

impl Play {
    /// Whether the word that nobody may see is anywhere: in what there is at the beginning, or in what a model may say. A
    /// word that somebody named may also come from a tool of theirs.
    pub fn plants_its_secret(&self) -> bool {
        let holds = |text: &str| text.contains(&self.secret);
        let is_named = self.secret != Self::default().secret;
        let is_there = self.files.iter().chain(&self.pages).any(|(_, text)| holds(text)) || holds(&self.turns);
        self.hostile || self.faults.model || is_named || is_there
    }
}

impl Faults {
    /// Every twin has them.
    pub const ALL: Self = Self {
        files: true,
        processes: true,
        store: true,
        blobs: true,
        http: true,
        model: true,
        dispatch: true,
        person: true,
        tools: true,
    };

    /// Whether any twin has them.
    pub fn any(self) -> bool {
        self != Self::default()
    }
}
