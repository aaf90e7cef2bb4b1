//! Stage 1: calls inside of calls end somewhere.
//!
//! One depth for everything that nests, and no orchestrator inside of itself: a `batch` in a `batch` says nothing
//! that one `batch` could not. A child run begins anew: it is another agent's turn, and only the depth is kept.

use crate::proposal::{Passage, Passed, Proposal};
use crate::refusal::Refusal;
use crate::scope::Scope;

/// Tools that are never inside of themselves.
const NEVER_IN_ITSELF: [&str; 3] = ["batch", "program", "dynamic_workflow"];

/// The tool that starts child runs.
const CHILD_RUNS: &str = "task";

/// A proposal that is not nested too deep.
pub(crate) struct Guarded(Box<Passage>);

impl Guarded {
    /// Judges the depth.
    pub(crate) fn judge(proposal: Proposal, scope: &Scope) -> Passed<Self> {
        let passage = Box::new(Passage::from(proposal));
        let tool = passage.tool.clone();
        let of_this_run = passage.ancestry.rsplit(|above| above.as_str() == CHILD_RUNS).next().unwrap_or_default();
        if NEVER_IN_ITSELF.contains(&tool.as_str()) && of_this_run.contains(&tool) {
            return passage.stop(Refusal::Recursive { tool });
        }
        let (depth, depth_max) = (passage.ancestry.len(), scope.limits.depth_max);
        if depth > depth_max {
            return passage.stop(Refusal::TooDeep { tool, depth, depth_max });
        }
        Ok(Self(passage))
    }

    pub(crate) fn into_passage(self) -> Box<Passage> {
        self.0
    }
}
