//! Whether one call may run: deny beats ask beats allow beats the default, and the rule that decided is named.
//!
//! A command line is judged by its parts ([`crate::shell`]), a path by its spelling and by where it
//! really leads, any other call by its text. What is in doubt asks. Parsing spares people needless questions; it
//! is not what keeps a hostile command in, that is the sandbox.
//!
//! Must stay true: nothing is allowed that some rule denies; an allow covers all parts of a call, a deny needs one.

pub mod command;
pub mod grant;
mod reach;

use std::borrow::Cow;
use std::collections::BTreeSet;

use toolwarden_tools::tool::{Lane, Subject};

use crate::permission::grant::Grants;
use crate::policy::Decision;
use crate::policy::compiled::{CompiledPolicy, RuleList};
use crate::policy::pattern::is_outside;
use reach::folded;

/// What is decided about a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It runs.
    Allow {
        /// The rules that allow it, joined by `, `; or `default`.
        rule: String,
    },
    /// A person is asked.
    Ask {
        /// The ask rule that covers it; none when nothing else decides. An answer for always can be remembered
        /// only when there is none.
        rule: Option<String>,
        /// Why there is a question.
        why: String,
    },
    /// It does not run.
    Deny {
        /// The rule that denies it, or `default`.
        rule: String,
        /// Why, for the model and for people.
        why: String,
    },
}

impl Verdict {
    /// The stricter of two verdicts; the first when they are alike.
    #[must_use]
    pub fn stricter(self, other: Self) -> Self {
        if other.strictness() > self.strictness() { other } else { self }
    }

    fn strictness(&self) -> u8 {
        match self {
            Self::Allow { .. } => 0,
            Self::Ask { .. } => 1,
            Self::Deny { .. } => 2,
        }
    }
}

/// A call, as far as rules look at it.
#[derive(Debug, Clone, Copy)]
pub struct Judged<'a> {
    /// The tool's name.
    pub tool: &'a str,
    /// The lane it runs in.
    pub lane: &'a Lane,
    /// What a pattern is matched against.
    pub subject: &'a Subject,
    /// Where the paths of the call really lead. For a command line: see [`command::visible_paths`].
    pub resolved: &'a [ResolvedPath],
    /// Where other spellings of a path begin.
    pub places: Places<'a>,
}

/// The folders that a path can be spelled from, as far as they are known: with them a rule on `~/x`, `/home/me/x` or `x`
/// finds a path whichever way the call wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Places<'a> {
    /// The workspace's root, absolute.
    pub root: Option<&'a str>,
    /// The home folder of commands, absolute.
    pub home: Option<&'a str>,
}

/// Where a path really leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedPath {
    /// As the caller wrote it.
    pub requested: String,
    /// Links followed: relative to the workspace's root when inside it, else absolute.
    pub resolved: String,
}

impl Places<'_> {
    /// The same path from the other places that it can be spelled from.
    fn respelled(self, path: &str) -> Vec<String> {
        let Some(absolute) = self.absolute(path) else { return Vec::new() };
        let beneath = |place: Option<&str>| {
            let rest = absolute.strip_prefix(place?.trim_end_matches('/'))?;
            (rest.is_empty() || rest.starts_with('/')).then(|| rest.trim_start_matches('/').to_owned())
        };
        let in_root = beneath(self.root).map(|rest| if rest.is_empty() { ".".to_owned() } else { rest });
        let in_home = beneath(self.home).map(|rest| format!("~/{rest}").trim_end_matches('/').to_owned());
        [Some(absolute.clone()), in_root, in_home].into_iter().flatten().collect()
    }

    /// The path from the root of all, where it is known what it begins at.
    fn absolute(self, path: &str) -> Option<String> {
        let joined = |place: Option<&str>, rest: &str| Some(folded(&format!("{}/{rest}", place?)).into_owned());
        match path.strip_prefix('~') {
            _ if path.starts_with('/') => Some(folded(path).into_owned()),
            None => joined(self.root.filter(|root| root.starts_with('/')), path),
            Some(rest) => {
                // `~me/x` is `~/x` for whoever is called so, as far as a home folder tells its owner's name.
                let (user, rest) = rest.split_once('/').unwrap_or((rest, ""));
                let own = |home: &&str| user.is_empty() || home.rsplit('/').next() == Some(user);
                joined(self.home.filter(own), rest)
            }
        }
    }
}

/// Judges a call by one policy.
pub fn judge(policy: &CompiledPolicy, judged: &Judged<'_>) -> Verdict {
    judge_with(policy, &Grants::default(), judged)
}

/// Judges a call by one policy and what a person has granted during the session.
pub fn judge_with(policy: &CompiledPolicy, grants: &Grants, judged: &Judged<'_>) -> Verdict {
    if !policy.enabled() {
        return Verdict::Allow { rule: "enabled = false".to_owned() };
    }
    match judged.subject {
        Subject::Command(text) => command::judge(policy, grants, judged, text),
        Subject::Paths { paths, .. } => judge_paths(policy, grants, judged, paths),
        Subject::Text(text) => judge_text(policy, grants, judged, text),
    }
}

/// Several policies that must all agree, as a parent's and a child's.
#[derive(Debug, Clone)]
pub struct AllOf<'a>(Vec<&'a CompiledPolicy>);

/// Joins policies; the strictest verdict wins. Without any policy everything asks.
pub fn all_of<'a>(policies: impl IntoIterator<Item = &'a CompiledPolicy>) -> AllOf<'a> {
    AllOf(policies.into_iter().collect())
}

impl AllOf<'_> {
    /// The strictest verdict; the first of the strictest.
    pub fn judge(&self, judged: &Judged<'_>) -> Verdict {
        self.judge_with(&Grants::default(), judged)
    }

    /// As [`Self::judge`], with what a person has granted during the session.
    pub fn judge_with(&self, grants: &Grants, judged: &Judged<'_>) -> Verdict {
        let verdicts = self.0.iter().map(|policy| judge_with(policy, grants, judged));
        verdicts
            .reduce(Verdict::stricter)
            .unwrap_or_else(|| Verdict::Ask { rule: None, why: "no policy is set".to_owned() })
    }

    /// Whether every policy lets a model see the tool.
    pub fn exposes(&self, tool: &str, lane: &Lane) -> bool {
        self.0.iter().all(|policy| policy.exposes(tool, lane))
    }
}

fn judge_text(policy: &CompiledPolicy, grants: &Grants, judged: &Judged<'_>, text: &str) -> Verdict {
    let find = |list: &RuleList| list.text(judged.tool, judged.lane, text).map(|rule| list.id(rule).to_owned());
    if let Some(rule) = find(policy.deny()) {
        return denied(judged.tool, rule);
    }
    if let Some(rule) = find(policy.ask()) {
        return asked(judged.tool, rule);
    }
    if let Some(rule) = find(policy.allow()) {
        return Verdict::Allow { rule };
    }
    if grants.covers_text(judged.tool, text) {
        return Verdict::Allow { rule: Grants::ID.to_owned() };
    }
    by_default(policy.default(), || format!("no rule covers this call of {}", judged.tool))
}

fn judge_paths(policy: &CompiledPolicy, grants: &Grants, judged: &Judged<'_>, paths: &[String]) -> Verdict {
    let here = [".".to_owned()];
    let paths = if paths.is_empty() { &here } else { paths };
    let all: Vec<_> = paths.iter().flat_map(|path| spellings(policy, path, judged)).collect();
    for (list, verdict) in [(policy.deny(), denied as fn(&str, String) -> Verdict), (policy.ask(), asked)] {
        let rule = all.iter().filter_map(|path| list.path(judged.tool, judged.lane, path)).min();
        if let Some(rule) = rule {
            return verdict(judged.tool, list.id(rule).to_owned());
        }
    }
    let mut rules = BTreeSet::new();
    for path in paths {
        match path_allowed(policy.allow(), grants, judged, (judged.tool, judged.lane), path) {
            Some(rule) => rules.insert(rule),
            None => {
                let uncovered = || format!("no rule allows {} on {path:?}", judged.tool);
                return by_default(policy.default(), uncovered);
            }
        };
    }
    allowed(rules)
}

/// Every form of a path that a deny or an ask looks at: as written, folded, where it leads, and each of these from the
/// workspace, from the home folder and from the root of all, where rules speak of such; no form twice.
fn spellings<'a>(policy: &CompiledPolicy, path: &'a str, judged: &Judged<'a>) -> Vec<Cow<'a, str>> {
    let leads_to = judged.resolved.iter().filter(|entry| entry.requested == path).map(|entry| folded(&entry.resolved));
    let mut spellings = vec![Cow::Borrowed(path)];
    let add = |spelling: Cow<'a, str>, spellings: &mut Vec<Cow<'a, str>>| {
        if !spellings.contains(&spelling) {
            spellings.push(spelling);
        }
    };
    for spelling in [folded(path)].into_iter().chain(leads_to) {
        add(spelling, &mut spellings);
    }
    if policy.speaks_of_outside() || is_outside(path) {
        for at in 0..spellings.len() {
            for other in judged.places.respelled(&spellings[at]) {
                add(Cow::Owned(other), &mut spellings);
            }
        }
    }
    spellings
}

/// The rule or grant that allows a path to a tool: for where it leads when that is known, else for its folded
/// spelling, which must not climb out.
fn path_allowed(
    allow: &RuleList,
    grants: &Grants,
    judged: &Judged<'_>,
    (tool, lane): (&str, &Lane),
    path: &str,
) -> Option<String> {
    if let Some(rule) = allow.whole(tool, lane) {
        return Some(allow.id(rule).to_owned());
    }
    let mut leads_to: Vec<Cow<'_, str>> =
        judged.resolved.iter().filter(|entry| entry.requested == path).map(|entry| folded(&entry.resolved)).collect();
    if leads_to.is_empty() {
        leads_to.push(folded(path));
    }
    let mut rule = None;
    for end in leads_to {
        if end.starts_with("../") || end == ".." {
            return None;
        }
        let id = match allow.path(tool, lane, &end) {
            Some(rule) => allow.id(rule).to_owned(),
            None if grants.covers_path(tool, &end) => Grants::ID.to_owned(),
            None => return None,
        };
        rule.get_or_insert(id);
    }
    rule
}

fn denied(what: &str, rule: String) -> Verdict {
    Verdict::Deny { why: format!("{rule} forbids this call of {what}"), rule }
}

fn asked(what: &str, rule: String) -> Verdict {
    Verdict::Ask { why: format!("{rule} wants a person's answer for this call of {what}"), rule: Some(rule) }
}

fn allowed(rules: BTreeSet<String>) -> Verdict {
    Verdict::Allow { rule: rules.into_iter().collect::<Vec<_>>().join(", ") }
}

fn by_default(default: Decision, why: impl FnOnce() -> String) -> Verdict {
    match default {
        Decision::Allow => Verdict::Allow { rule: "default".to_owned() },
        Decision::Ask => Verdict::Ask { rule: None, why: why() },
        Decision::Deny => Verdict::Deny { rule: "default".to_owned(), why: why() },
    }
}

#[cfg(test)]
mod tests;
