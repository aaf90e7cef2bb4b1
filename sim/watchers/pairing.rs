//! Whenever a model is asked, each call of the conversation has its one result right behind it: after cancels, crashes
//! and summaries too, in the conversation and on the wire.

use std::time::Duration;

use super::must;
use crate::sight::{Sight, Watcher};

/// The twin of the model looks; this one says so.
#[derive(Debug, Default)]
pub struct Pairing;

impl Watcher for Pairing {
    fn name(&self) -> &'static str {
        "pairing"
    }

    fn promise(&self) -> &'static str {
        "every call has one result when a model is asked"
    }

    fn see(&mut self, _at: Duration, sight: &Sight<'_>) -> Result<(), String> {
        match sight {
            Sight::Asked { agent, messages, unpaired: Some(what) } => {
                must(false, || format!("{agent} is asked after {messages} messages, and {what}"))
            }
            _ => Ok(()),
        }
    }
}
