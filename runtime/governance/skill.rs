//! Stage 4: the active skill's limits. They narrow what the later stages may allow, and never widen it.

use std::sync::Arc;

use toolwarden_tools::registry::Registered;

use crate::governance::hooks::Hooked;
use crate::governance::subject::CallSubject;
use crate::permission::Verdict;
use crate::proposal::{Passage, Passed};
use crate::refusal::Refusal;
use crate::scope::Scope;

/// A call that the active skill, if there is one, does not rule out.
pub(crate) struct Narrowed {
    passage: Box<Passage>,
    entry: Arc<Registered>,
    subject: CallSubject,
}

impl Narrowed {
    /// Judges by the skill alone.
    pub(crate) fn judge(hooked: Hooked, scope: &Scope) -> Passed<Self> {
        let (passage, entry) = hooked.into_parts();
        let subject = CallSubject::of(&entry, &passage, scope);
        if let Some(skill) = &scope.skill {
            let allowed = Verdict::Allow { rule: String::new() };
            if let Verdict::Deny { why, .. } = skill.narrow(&subject.judged(&entry, scope), allowed) {
                let tool = passage.tool.clone();
                return passage.stop(Refusal::Skill { tool, why });
            }
        }
        Ok(Self { passage, entry, subject })
    }

    pub(crate) fn into_parts(self) -> (Box<Passage>, Arc<Registered>, CallSubject) {
        (self.passage, self.entry, self.subject)
    }
}
