//! A policy made quick to judge by: rules grouped by tool, globs of a group joined into one automaton.
//!
//! A judgement by name, path or text costs about a microsecond however many rules there are. Where several rules
//! match, the first in the list is named.

use std::borrow::Cow;
use std::collections::BTreeMap;

use regex::RegexSet;
use thiserror::Error;

use toolwarden_tools::tool::Lane;

use crate::policy::pattern::{Fit, Pattern, ShellPattern, is_outside};
use crate::policy::{Decision, PermissionPolicy, Rule, RuleKind, Scope};

/// A policy, compiled; immutable and cheap to share.
#[derive(Debug)]
pub struct CompiledPolicy {
    deny: RuleList,
    ask: RuleList,
    allow: RuleList,
    default: Decision,
    enabled: bool,
    source: PermissionPolicy,
}

/// Why a policy cannot be compiled.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the {kind} rules for one tool are too large together: {reason}; use fewer or simpler globs")]
pub struct CompileError {
    /// Which list.
    kind: RuleKind,
    /// Why.
    reason: String,
}

/// The rules of one list.
#[derive(Debug)]
pub(crate) struct RuleList {
    ids: Vec<String>,
    named: BTreeMap<String, Group>,
    wide: Vec<(Scope, Group)>,
    scoped: bool,
    outside: bool,
}

/// The rules of one list about the same tools.
#[derive(Debug, Default)]
pub(crate) struct Group {
    /// The first rule without a pattern.
    whole: Option<usize>,
    prefixes: Vec<(String, usize)>,
    /// Rules of the automata, by place, and whether each speaks of paths outside the workspace.
    globs: Vec<(usize, bool)>,
    paths: RegexSet,
    texts: RegexSet,
    words: Vec<(ShellPattern, usize)>,
    /// The patterns as written, for telling what unknown paths may touch.
    patterns: Vec<(String, usize)>,
    narrow: bool,
}

impl CompiledPolicy {
    /// Compiles a policy.
    ///
    /// # Errors
    /// [`CompileError`] when its globs are too large together.
    pub fn new(policy: &PermissionPolicy) -> Result<Self, CompileError> {
        Ok(Self {
            deny: RuleList::new(RuleKind::Deny, &policy.deny)?,
            ask: RuleList::new(RuleKind::Ask, &policy.ask)?,
            allow: RuleList::new(RuleKind::Allow, &policy.allow)?,
            default: policy.default,
            enabled: policy.enabled,
            source: policy.clone(),
        })
    }

    /// What it was made of.
    pub fn source(&self) -> &PermissionPolicy {
        &self.source
    }

    /// Whether a model should see the tool: not when a rule denies every call of it, and under a default of deny
    /// only when some rule speaks of it.
    pub fn exposes(&self, tool: &str, lane: &Lane) -> bool {
        if !self.enabled {
            return true;
        }
        let denied = self.deny.groups(tool, lane).any(|group| group.whole.is_some());
        let named = || self.allow.groups(tool, lane).chain(self.ask.groups(tool, lane)).next().is_some();
        !denied && (self.default != Decision::Deny || named())
    }

    /// Whether some rule denies calls of the tool, all or a part of them.
    pub fn denies_some(&self, tool: &str, lane: &Lane) -> bool {
        self.enabled && self.deny.groups(tool, lane).next().is_some()
    }

    /// Whether a deny or an ask speaks of absolute paths, or of ones in a home folder.
    pub(crate) fn speaks_of_outside(&self) -> bool {
        self.deny.outside || self.ask.outside
    }

    pub(crate) fn deny(&self) -> &RuleList {
        &self.deny
    }

    pub(crate) fn ask(&self) -> &RuleList {
        &self.ask
    }

    pub(crate) fn allow(&self) -> &RuleList {
        &self.allow
    }

    pub(crate) fn default(&self) -> Decision {
        self.default
    }

    pub(crate) fn enabled(&self) -> bool {
        self.enabled
    }
}

impl RuleList {
    fn new(kind: RuleKind, rules: &[Rule]) -> Result<Self, CompileError> {
        let mut named: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        let mut wide = Vec::new();
        for (index, rule) in rules.iter().enumerate() {
            match rule.scope() {
                Scope::Tool(tool) => named.entry(tool.clone()).or_default().push(index),
                scope => wide.push((scope.clone(), Group::new(kind, rules, &[index])?)),
            }
        }
        let named = named.into_iter().map(|(tool, indices)| Ok((tool, Group::new(kind, rules, &indices)?)));
        Ok(Self {
            ids: rules.iter().enumerate().map(|(index, rule)| rule.id(kind, index)).collect(),
            named: named.collect::<Result<_, CompileError>>()?,
            wide,
            scoped: rules.iter().any(|rule| rule.pattern().is_some()),
            outside: rules.iter().any(|rule| rule.pattern().is_some_and(Pattern::leads_outside)),
        })
    }

    /// The groups that are about the tool.
    pub(crate) fn groups(&self, tool: &str, lane: &Lane) -> impl Iterator<Item = &Group> {
        let lower = if tool.bytes().any(|byte| byte.is_ascii_uppercase()) {
            Cow::Owned(tool.to_ascii_lowercase())
        } else {
            Cow::Borrowed(tool)
        };
        let named = self.named.get(lower.as_ref());
        let wide = self.wide.iter().filter(move |(scope, _)| match scope {
            Scope::Lane(covered) => covered == lane,
            scope => scope.covers_tool(&lower),
        });
        named.into_iter().chain(wide.map(|(_, group)| group))
    }

    /// The id of a rule.
    pub(crate) fn id(&self, rule: usize) -> &str {
        self.ids.get(rule).map_or("", String::as_str)
    }

    /// Whether any rule has a pattern.
    pub(crate) fn is_scoped(&self) -> bool {
        self.scoped
    }

    /// The first rule that covers every call of the tool.
    pub(crate) fn whole(&self, tool: &str, lane: &Lane) -> Option<usize> {
        self.groups(tool, lane).filter_map(|group| group.whole).min()
    }

    /// The first rule that matches a path.
    pub(crate) fn path(&self, tool: &str, lane: &Lane, path: &str) -> Option<usize> {
        self.groups(tool, lane).filter_map(|group| group.path(path)).min()
    }

    /// As [`Self::path`], without the rules that cover every call.
    pub(crate) fn path_by_pattern(&self, tool: &str, lane: &Lane, path: &str) -> Option<usize> {
        self.groups(tool, lane).filter_map(|group| group.path_by_pattern(path)).min()
    }

    /// The first rule that matches a text.
    pub(crate) fn text(&self, tool: &str, lane: &Lane, text: &str) -> Option<usize> {
        self.groups(tool, lane).filter_map(|group| group.text(text)).min()
    }
}

impl Group {
    fn new(kind: RuleKind, rules: &[Rule], indices: &[usize]) -> Result<Self, CompileError> {
        let narrow = kind == RuleKind::Allow;
        let mut group = Self { narrow, ..Self::default() };
        let mut paths = Vec::new();
        let mut texts = Vec::new();
        let wrong = |reason: String| CompileError { kind, reason };
        for &index in indices {
            let Some(pattern) = rules[index].pattern() else {
                group.whole.get_or_insert(index);
                continue;
            };
            group.words.push((pattern.words().clone(), index));
            group.patterns.push((pattern.text().to_owned(), index));
            if let Some(prefix) = pattern.prefix() {
                group.prefixes.push((prefix.to_owned(), index));
            } else {
                group.globs.push((index, pattern.leads_outside()));
                paths.push(pattern.path_regex().map_err(|error| wrong(error.to_string()))?);
                texts.push(pattern.text_regex(!narrow).map_err(|error| wrong(error.to_string()))?);
            }
        }
        group.paths = RegexSet::new(paths).map_err(|error| wrong(error.to_string()))?;
        group.texts = RegexSet::new(texts).map_err(|error| wrong(error.to_string()))?;
        Ok(group)
    }

    fn path(&self, path: &str) -> Option<usize> {
        [self.whole, self.path_by_pattern(path)].into_iter().flatten().min()
    }

    fn path_by_pattern(&self, path: &str) -> Option<usize> {
        let begins = |prefix: &str| {
            path.strip_prefix(prefix)
                .is_some_and(|rest| !self.narrow || rest.is_empty() || rest.starts_with('/') || prefix.ends_with('/'))
        };
        self.first(&self.paths, path, self.narrow && is_outside(path), begins)
    }

    fn text(&self, text: &str) -> Option<usize> {
        let by_pattern = self.first(&self.texts, text, false, |prefix| text.starts_with(prefix));
        [self.whole, by_pattern].into_iter().flatten().min()
    }

    fn first(&self, globs: &RegexSet, subject: &str, outside: bool, begins: impl Fn(&str) -> bool) -> Option<usize> {
        let prefix = self.prefixes.iter().find(|(prefix, _)| begins(prefix)).map(|(_, rule)| *rule);
        let glob = if globs.is_match(subject) {
            let rules = globs.matches(subject).into_iter().filter_map(|place| self.globs.get(place));
            rules.filter(|(_, leads_outside)| !outside || *leads_outside).map(|(rule, _)| *rule).next()
        } else {
            None
        };
        [prefix, glob].into_iter().flatten().min()
    }

    /// The first rule that fits the words of a command best, with how well. Rules without a pattern do not count.
    pub(crate) fn words(&self, words: &[Option<&str>]) -> Option<(Fit, usize)> {
        let fits = self.words.iter().map(|(pattern, rule)| (pattern.fit(words, self.narrow), *rule));
        fits.filter(|(fit, _)| *fit != Fit::No).min_by_key(|(fit, rule)| (std::cmp::Reverse(*fit), *rule))
    }

    /// The first rule that spells out this command name and fits its words.
    pub(crate) fn spelled(&self, name: &str, words: &[Option<&str>]) -> Option<usize> {
        let spelled = self.words.iter().filter(|(pattern, _)| pattern.name() == Some(name));
        spelled.filter(|(pattern, _)| pattern.fit(words, self.narrow) == Fit::Yes).map(|(_, rule)| *rule).next()
    }

    /// The patterns as written, with their rules.
    pub(crate) fn patterns(&self) -> &[(String, usize)] {
        &self.patterns
    }
}

#[cfg(test)]
mod tests {
    use toolwarden_tools::tool::Lane;

    use super::CompiledPolicy;
    use crate::policy::PermissionPolicy;

    fn compiled(toml: &str) -> CompiledPolicy {
        CompiledPolicy::new(&PermissionPolicy::from_toml(toml, "p").unwrap()).unwrap()
    }

    #[test]
    fn the_first_matching_rule_is_named() {
        let policy = compiled("deny = [\"read(a/*)\", \"READ(**/b)\", \"re*(secret:*)\", \"read(a/b)\"]");
        let first = |path: &str| policy.deny().path("Read", &Lane::Query, path);
        assert_eq!(first("a/b"), Some(0));
        assert_eq!(first("x/b"), Some(1));
        assert_eq!(first("secrets/x"), Some(2));
        assert_eq!(first("x/y"), None);
    }

    #[test]
    fn hides_what_is_denied_whole_or_never_named() {
        let policy = compiled("deny = [\"bash(*)\", \"read(.env)\", \"mcp__x\"]");
        assert!(!policy.exposes("bash", &Lane::Execute) && !policy.exposes("mcp__x__y", &Lane::Mcp("x".into())));
        assert!(policy.exposes("read", &Lane::Query) && policy.exposes("write", &Lane::Execute));
        let policy = compiled("default = \"deny\"\nallow = [\"read(src/**)\", \"lane:search\"]\nask = [\"write\"]");
        assert!(policy.exposes("Read", &Lane::Query) && policy.exposes("write", &Lane::Execute));
        assert!(policy.exposes("web_search", &Lane::Search) && !policy.exposes("bash", &Lane::Execute));
        assert!(compiled("enabled = false\ndeny = [\"bash\"]").exposes("bash", &Lane::Execute));
    }
}
