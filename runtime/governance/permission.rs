//! Stage 5: the policies of the session and all its parents; the strictest word counts.

use std::sync::Arc;

use toolwarden_tools::registry::Registered;

use crate::governance::skill::Narrowed;
use crate::governance::subject::CallSubject;
use crate::permission::{Verdict, all_of};
use crate::proposal::{Passage, Passed};
use crate::refusal::Refusal;
use crate::scope::Scope;

/// A call that no policy denies, and what a person must be asked about it.
pub(crate) struct Permitted {
    passage: Box<Passage>,
    entry: Arc<Registered>,
    question: Option<String>,
}

impl Permitted {
    /// Judges by all policies. A tool may want a confirmation of what a rule allows, never the other way round.
    pub(crate) fn judge(narrowed: Narrowed, scope: &Scope) -> Passed<Self> {
        let (passage, entry, subject) = narrowed.into_parts();
        let question = match verdict(scope, &entry, &subject) {
            Verdict::Deny { rule, why } => {
                let tool = passage.tool.clone();
                return passage.stop(Refusal::Policy { tool, rule, why });
            }
            Verdict::Ask { why, .. } => Some(why),
            Verdict::Allow { .. } => entry.tool.requires_confirmation(&passage.arguments),
        };
        Ok(Self { passage, entry, question })
    }

    pub(crate) fn into_parts(self) -> (Box<Passage>, Arc<Registered>, Option<String>) {
        (self.passage, self.entry, self.question)
    }
}

fn verdict(scope: &Scope, entry: &Registered, subject: &CallSubject) -> Verdict {
    let policies = all_of(scope.policies.iter().map(|policy| &**policy));
    let judged = subject.judged(entry, scope);
    let verdict = policies.judge_with(&scope.grants.grants(), &judged);
    match &scope.skill {
        Some(skill) => skill.narrow(&judged, verdict),
        None => verdict,
    }
}

/// Whether the call may run without a question by now.
pub(crate) fn is_allowed(scope: &Scope, entry: &Registered, passage: &Passage) -> bool {
    let subject = CallSubject::of(entry, passage, scope);
    matches!(verdict(scope, entry, &subject), Verdict::Allow { .. })
        && entry.tool.requires_confirmation(&passage.arguments).is_none()
}

/// Remembers that calls like this one are allowed from now on; what cannot be remembered was allowed once.
pub(crate) fn allow(scope: &Scope, entry: &Registered, passage: &Passage) {
    let subject = CallSubject::of(entry, passage, scope);
    if let Err(error) = scope.grants.remember(&subject.judged(entry, scope)) {
        tracing::info!(tool = %passage.tool, %error, "an answer for always counts for this call only");
    }
}
