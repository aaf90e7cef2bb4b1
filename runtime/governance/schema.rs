//! Stage 2: the tool exists, and the arguments fit its schema, before anybody is asked about them.

use std::sync::Arc;

use serde_json::Value;
use toolwarden_tools::json_depth::{JSON_DEPTH_MAX, cut};
use toolwarden_tools::registry::Registered;

use crate::governance::recursion::Guarded;
use crate::proposal::{Passage, Passed};
use crate::refusal::Refusal;
use crate::scope::Scope;

/// A proposal whose arguments fit.
pub(crate) struct WellFormed {
    passage: Box<Passage>,
    entry: Arc<Registered>,
}

impl WellFormed {
    /// Looks the tool up and checks the arguments.
    pub(crate) fn check(guarded: Guarded, scope: &Scope) -> Passed<Self> {
        let mut passage = guarded.into_passage();
        let Some(entry) = scope.registry.get(passage.tool.as_str()) else {
            let tool = passage.tool.clone();
            let similar = scope.registry.similar(tool.as_str()).into_iter().cloned().collect();
            return passage.stop(Refusal::UnknownTool { tool, similar });
        };
        passage.entry = Some(Arc::clone(entry));
        let well_formed = Self { passage, entry: Arc::clone(entry) };
        well_formed.fitting()
    }

    /// The same call with other arguments, checked again.
    pub(crate) fn rewritten(mut self, mut arguments: Value) -> Passed<Self> {
        cut(&mut arguments, JSON_DEPTH_MAX);
        self.passage.arguments = arguments;
        self.fitting()
    }

    fn fitting(self) -> Passed<Self> {
        match self.entry.schema.check(&self.passage.arguments) {
            Ok(()) => Ok(self),
            Err(faults) => {
                let tool = self.passage.tool.clone();
                self.passage.stop(Refusal::Arguments { tool, faults })
            }
        }
    }

    pub(crate) fn passage(&self) -> &Passage {
        &self.passage
    }

    pub(crate) fn into_parts(self) -> (Box<Passage>, Arc<Registered>) {
        (self.passage, self.entry)
    }
}
