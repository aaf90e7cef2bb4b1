//! Promise: a search sees what is there now, whatever an index knew; its index is shared, hides nothing, shows nothing
//! that is denied, and ends with its runtime; a question is answered by the right file; and files without measure take
//! neither memory without measure nor time.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "what fails here fails the test, which looks at real files"
)]

#[path = "search/bound.rs"]
mod bound;
#[path = "search/relevance.rs"]
mod relevance;
#[path = "search/resident.rs"]
mod resident;

/// Taken by each test: one of them counts the threads of this process.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
