//! What is left of a world when nothing is under way any more: the last thing that checkers look at.

/// What is left when nothing is under way any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remains {
    /// Nodes whose actor lives.
    pub nodes: usize,
    /// Bodies that can never end: they spin.
    pub spinning: usize,
    /// Other bodies whose task is alive.
    pub bodies: usize,
    /// Slots that the lane counts as out.
    pub slots: usize,
    /// Calls that wait in the lane.
    pub slots_waiting: usize,
    /// Reservations that the ledger counts as out.
    pub reservations: usize,
    /// Invocations without an ending.
    pub open_invocations: usize,
    /// Endings that the journal refused.
    pub refused_endings: u64,
    /// Questions still open.
    pub questions: usize,
}
