//! The promises that every world must keep, one a file.
//!
//! A watcher sees what reached the pretended world and keeps its own small books. It never asks the runtime whether
//! all is well, but for the counts that are read once at the very end.

pub mod journal;

use crate::play::Play;
use crate::sight::Watcher;

/// All promises about the worlds of this play.
pub fn all(_play: &Play) -> Vec<Box<dyn Watcher>> {
    vec![Box::<journal::Journal>::default()]
}

/// An error when something is not so.
fn must(so: bool, text: impl FnOnce() -> String) -> Result<(), String> {
    if so { Ok(()) } else { Err(text()) }
}
