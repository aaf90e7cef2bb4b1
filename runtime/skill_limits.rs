//! What a skill may use while it is active: its own list narrows what the session allows, and never widens it.
//!
//! A skill that lists nothing may use nothing.

use toolwarden_tools::tool::Lane;

use crate::permission::grant::Grants;
use crate::permission::{Judged, Verdict, judge_with};
use crate::policy::compiled::{CompileError, CompiledPolicy};
use crate::policy::{Decision, PermissionPolicy, Rule};

/// The limits of an active skill.
#[derive(Debug)]
pub struct SkillLimits {
    policy: CompiledPolicy,
}

impl SkillLimits {
    /// Limits a skill to what these rules cover.
    ///
    /// # Errors
    /// [`CompileError`] when the rules' globs are too large together.
    pub fn new(allowed_tools: Vec<Rule>) -> Result<Self, CompileError> {
        let policy = PermissionPolicy { allow: allowed_tools, default: Decision::Deny, ..PermissionPolicy::default() };
        Ok(Self { policy: CompiledPolicy::new(&policy)? })
    }

    /// The rules, as they were given.
    pub fn rules(&self) -> &[Rule] {
        &self.policy.source().allow
    }

    /// The policy that says the same: these rules are allowed, and nothing else.
    pub fn policy(&self) -> &PermissionPolicy {
        self.policy.source()
    }

    /// The verdict on a call inside the skill: the session's, or a stricter one.
    #[must_use]
    pub fn narrow(&self, judged: &Judged<'_>, session: Verdict) -> Verdict {
        let own = match judge_with(&self.policy, &Grants::default(), judged) {
            Verdict::Deny { .. } => Verdict::Deny {
                rule: "allowed-tools".to_owned(),
                why: format!("the active skill does not list this call of {}", judged.tool),
            },
            verdict => verdict,
        };
        session.stricter(own)
    }

    /// Whether the skill lists the tool at all.
    pub fn exposes(&self, tool: &str, lane: &Lane) -> bool {
        self.policy.exposes(tool, lane)
    }
}

#[cfg(test)]
mod tests {
    use toolwarden_tools::tool::{Lane, Subject};

    use super::SkillLimits;
    use crate::permission::{Judged, Places, Verdict};
    use crate::policy::Rule;

    fn narrowed(rules: &[&str], command: &str, session: Verdict) -> Verdict {
        let rules = rules.iter().map(|rule| Rule::parse(rule).unwrap()).collect();
        let subject = Subject::Command(command.to_owned());
        let judged =
            Judged { tool: "bash", lane: &Lane::Execute, subject: &subject, resolved: &[], places: Places::default() };
        SkillLimits::new(rules).unwrap().narrow(&judged, session)
    }

    #[test]
    fn narrows_and_never_widens() {
        let allow = || Verdict::Allow { rule: "session".to_owned() };
        let ask = || Verdict::Ask { rule: None, why: "session".to_owned() };
        let deny = || Verdict::Deny { rule: "session".to_owned(), why: String::new() };
        assert_eq!(narrowed(&["bash(git *)"], "git status", allow()), allow());
        assert_eq!(narrowed(&["bash(git *)"], "git status", ask()), ask());
        assert_eq!(narrowed(&["bash(git *)"], "git status", deny()), deny());
        assert!(
            matches!(narrowed(&["bash(git *)"], "git a; rm b", allow()), Verdict::Deny { rule, .. } if rule == "allowed-tools")
        );
        assert!(matches!(narrowed(&["bash(git *)"], "git $(", allow()), Verdict::Deny { .. } | Verdict::Ask { .. }));
        assert!(matches!(narrowed(&["read"], "git a", allow()), Verdict::Deny { .. }));
        assert!(matches!(narrowed(&[], "true", allow()), Verdict::Deny { .. }));
        assert!(matches!(narrowed(&["bash"], "rm x", ask()), Verdict::Ask { .. }));
    }

    #[test]
    fn a_skill_that_lists_nothing_sees_nothing() {
        let limits = SkillLimits::new(Vec::new()).unwrap();
        assert!(!limits.exposes("read", &Lane::Query));
        let limits = SkillLimits::new(vec![Rule::parse("read(src/**)").unwrap()]).unwrap();
        assert!(limits.exposes("read", &Lane::Query) && !limits.exposes("bash", &Lane::Execute));
    }
}
