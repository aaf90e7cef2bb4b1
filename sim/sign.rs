//! A sign: one thing that a picture of a run shows, in the same words for machines and for worlds.
//!
//! Rows are numbered by whoever makes the signs, never twice; a row stands behind the row above it.

/// One thing to be drawn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sign {
    /// A row begins.
    Begins {
        /// Its number.
        row: u64,
        /// The row that it lies under.
        above: Option<u64>,
        /// What it stands for, in a few words.
        label: String,
    },
    /// Something in a row begins that takes time.
    From {
        /// Which row.
        row: u64,
        /// What.
        what: SpanKind,
    },
    /// It is over.
    To {
        /// Which row.
        row: u64,
        /// What.
        what: SpanKind,
    },
    /// Something happens at once.
    Mark {
        /// In which row; in the first one when none.
        row: Option<u64>,
        /// What.
        what: MarkKind,
        /// In words.
        words: String,
    },
    /// A word goes from one row to another.
    Message {
        /// From which row.
        from: u64,
        /// To which.
        to: u64,
        /// What.
        words: String,
    },
    /// A row ends, with all in it that takes time.
    Ends {
        /// Which.
        row: u64,
        /// How, in words.
        words: String,
        /// Whether it should have ended otherwise.
        is_bad: bool,
    },
}

/// What takes time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SpanKind {
    /// The row lives.
    Life,
    /// Its body is under way.
    Body,
    /// A model was asked.
    Turn,
    /// A person was asked.
    Question,
    /// It waits for a slot.
    Waiting,
    /// It holds a slot.
    Slot,
    /// Its tool is at work.
    Tool,
}

impl SpanKind {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Life, Self::Body, Self::Turn, Self::Question, Self::Waiting, Self::Slot, Self::Tool];

    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Life => "lives",
            Self::Body => "its body",
            Self::Turn => "a model is asked",
            Self::Question => "a person is asked",
            Self::Waiting => "waits for a slot",
            Self::Slot => "holds a slot",
            Self::Tool => "its tool is at work",
        }
    }

    /// In one word, for programs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Life => "life",
            Self::Body => "body",
            Self::Turn => "turn",
            Self::Question => "question",
            Self::Waiting => "waiting",
            Self::Slot => "slot",
            Self::Tool => "tool",
        }
    }
}

/// What happens at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MarkKind {
    /// Something is told to end.
    Cancel,
    /// A fault is made.
    Fault,
    /// An ending in order.
    Ended,
    /// An ending that is not, or a refusal.
    Broken,
}
