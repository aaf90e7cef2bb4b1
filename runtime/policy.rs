//! What may run without a question, what needs one, and what never runs: the text of a permission policy.
//!
//! A rule is `Tool` or `Tool(pattern)`, written as a string or as `{ rule = "…" }`. A rule that cannot be read
//! fails the whole load, with file and line: a deny that is silently dropped would open what it was to close.
//! [`compiled`] makes a policy quick to judge by.
//!
//! - Tool names compare without case; `*` and `?` in the tool's part match names (`mcp__web__*`), and `mcp__server`
//!   covers every tool of that server. `lane:query` covers every tool of a lane.
//! - Patterns for paths are globs over the path inside the workspace: `*` stays within a folder, `**` crosses.
//! - Patterns for command lines are words, see [`pattern::ShellPattern`]. The order of flags is not understood, so
//!   a dangerous command wants a rule on its name (`bash(rm *)`), not on its flags.
//! - `grep(…)`, `glob(…)` and `bm25(…)` are read as `search(grep …)` and so on.

pub mod pattern;

pub mod compiled;

use std::fmt;

use regex::Regex;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use toolwarden_tools::tool::Lane;

use crate::policy::pattern::{Pattern, PatternError};

/// Most rules of one list.
pub const RULES_MAX: usize = 4096;

/// Longest rule, in bytes.
pub const RULE_BYTES_MAX: usize = 4096;

/// Rules of a session, as written. What no rule covers gets `default`; deny beats ask beats allow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PermissionPolicy {
    /// Never runs.
    pub deny: Vec<Rule>,
    /// Runs when a person says so.
    pub ask: Vec<Rule>,
    /// Runs.
    pub allow: Vec<Rule>,
    /// What happens to a call that no rule covers.
    #[serde(alias = "default_decision")]
    pub default: Decision,
    /// When false, everything runs and no rule counts.
    pub enabled: bool,
}

impl Default for PermissionPolicy {
    fn default() -> Self {
        Self { deny: Vec::new(), ask: Vec::new(), allow: Vec::new(), default: Decision::Ask, enabled: true }
    }
}

/// What happens to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decision {
    /// It runs.
    #[serde(alias = "Allow")]
    Allow,
    /// A person is asked.
    #[default]
    #[serde(alias = "Ask")]
    Ask,
    /// It does not run.
    #[serde(alias = "Deny")]
    Deny,
}

/// A list of rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RuleKind {
    /// `deny`
    Deny,
    /// `ask`
    Ask,
    /// `allow`
    Allow,
}

impl fmt::Display for RuleKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Deny => "deny",
            Self::Ask => "ask",
            Self::Allow => "allow",
        })
    }
}

/// A rule that names a tool nobody has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownTool {
    /// The rule's id, `deny[0] bahs(nc *)`.
    pub rule: String,
    /// The tool's part of it.
    pub tool: String,
}

impl fmt::Display for UnknownTool {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} names the tool {}, which does not exist here; it covers nothing", self.rule, self.tool)
    }
}

/// Why a policy cannot be loaded.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{file}:{line}: {message}")]
pub struct PolicyError {
    /// The file.
    pub file: String,
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong and what to write instead.
    pub message: String,
}

impl PermissionPolicy {
    /// Reads a policy from TOML text; `file_name` is for messages.
    ///
    /// # Errors
    /// [`PolicyError`] for the first thing that is wrong.
    pub fn from_toml(text: &str, file_name: &str) -> Result<Self, PolicyError> {
        let policy: Self = toml::from_str(text).map_err(|error| PolicyError {
            file: file_name.to_owned(),
            line: line_at(text, error.span().map_or(0, |span| span.start)),
            message: error.message().to_owned(),
        })?;
        policy.bounded(file_name)
    }

    /// Reads a policy from JSON text; `file_name` is for messages.
    ///
    /// # Errors
    /// [`PolicyError`] for the first thing that is wrong.
    pub fn from_json(text: &str, file_name: &str) -> Result<Self, PolicyError> {
        let policy: Self = serde_json::from_str(text).map_err(|error| PolicyError {
            file: file_name.to_owned(),
            line: error.line().max(1),
            message: error.to_string(),
        })?;
        policy.bounded(file_name)
    }

    /// The rules that name a tool outside `known`, in order: most likely misspelt, so that they cover nothing.
    pub fn unknown_tools(&self, known: &[&str]) -> Vec<UnknownTool> {
        self.rules()
            .filter(|(_, _, rule)| !matches!(rule.scope, Scope::Lane(_)))
            .filter(|(_, _, rule)| !known.iter().any(|tool| rule.scope.covers_tool(&tool.to_ascii_lowercase())))
            .map(|(kind, index, rule)| UnknownTool { rule: rule.id(kind, index), tool: rule.tool().to_owned() })
            .collect()
    }

    /// Where in the policy's text the rule of this id stands, as a line counted from 1: for warnings.
    pub fn line_of(text: &str, unknown: &UnknownTool) -> Option<usize> {
        let rule = unknown.rule.split_once(' ').map_or(unknown.rule.as_str(), |(_, rule)| rule);
        text.find(rule).map(|at| line_at(text, at))
    }

    /// All rules with their list and their place in it: deny, then ask, then allow.
    pub fn rules(&self) -> impl Iterator<Item = (RuleKind, usize, &Rule)> {
        let lists = [(RuleKind::Deny, &self.deny), (RuleKind::Ask, &self.ask), (RuleKind::Allow, &self.allow)];
        lists.into_iter().flat_map(|(kind, list)| list.iter().enumerate().map(move |(at, rule)| (kind, at, rule)))
    }

    fn bounded(self, file_name: &str) -> Result<Self, PolicyError> {
        let longest = [&self.deny, &self.ask, &self.allow].map(Vec::len).into_iter().max().unwrap_or_default();
        if longest > RULES_MAX {
            return Err(PolicyError {
                file: file_name.to_owned(),
                line: 1,
                message: format!("a list has {longest} rules; at most {RULES_MAX} are taken, so join some by globs"),
            });
        }
        Ok(self)
    }
}

/// The line of a byte, counted from 1.
fn line_at(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

/// One rule, known to be well formed.
#[derive(Debug, Clone)]
pub struct Rule {
    text: String,
    tool: String,
    scope: Scope,
    pattern: Option<Pattern>,
}

/// Which tools a rule is about.
#[derive(Debug, Clone)]
pub(crate) enum Scope {
    /// One tool, in lower case.
    Tool(String),
    /// All tools whose lower-case names match.
    Tools(Regex),
    /// The tool of this lower-case name, and all that begin with it and `__`.
    Server(String),
    /// All tools of a lane.
    Lane(Lane),
}

/// Why a text is no rule.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RuleError {
    /// Nothing to read.
    #[error("the rule is empty; write `Tool` or `Tool(pattern)`")]
    Empty,
    /// Longer than a rule may be.
    #[error("the rule has {bytes} bytes; at most {RULE_BYTES_MAX} are taken")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// Parentheses that do not fit.
    #[error("{rule:?} has parentheses that do not fit; write `Tool` or `Tool(pattern)`")]
    Parentheses {
        /// The rule.
        rule: String,
    },
    /// A tool's name with other characters than names have.
    #[error("{tool:?} is not a tool's name; use letters, digits, `_`, `-`, and `*` or `?` as wildcards")]
    Tool {
        /// The tool's part.
        tool: String,
    },
    /// A lane that does not exist.
    #[error(
        "there is no lane {lane:?}; lanes are model, control, query, execute, network, search, browser, mcp:<server>"
    )]
    Lane {
        /// The lane's part.
        lane: String,
    },
    /// A pattern that cannot be used.
    #[error("in {rule:?}: {source}")]
    Pattern {
        /// The rule.
        rule: String,
        /// Why.
        source: PatternError,
    },
}

impl Rule {
    /// Reads a rule.
    ///
    /// # Errors
    /// [`RuleError`] when it is not well formed.
    pub fn parse(text: &str) -> Result<Self, RuleError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(RuleError::Empty);
        }
        if text.len() > RULE_BYTES_MAX {
            return Err(RuleError::TooLong { bytes: text.len() });
        }
        if let Some(name) = text.strip_prefix("lane:") {
            let lane = lane_of(name).ok_or_else(|| RuleError::Lane { lane: name.to_owned() })?;
            return Ok(Self { text: text.to_owned(), tool: text.to_owned(), scope: Scope::Lane(lane), pattern: None });
        }
        let parentheses = || RuleError::Parentheses { rule: text.to_owned() };
        let (tool, pattern) = match text.split_once('(') {
            None if text.contains(')') => return Err(parentheses()),
            None => (text, None),
            Some((tool, rest)) => (tool.trim_end(), Some(rest.strip_suffix(')').ok_or_else(parentheses)?)),
        };
        let wrong = |source| RuleError::Pattern { rule: text.to_owned(), source };
        let (tool, pattern) = match (search_mode(tool), pattern.map(str::trim)) {
            (Some(mode), None | Some("*" | "**")) => ("search", Some(format!("{mode} **"))),
            (Some(_), Some("")) => return Err(wrong(PatternError::Empty)),
            (Some(mode), Some(pattern)) => ("search", Some(format!("{mode} {pattern}"))),
            (None, pattern) => (tool, pattern.map(str::to_owned)),
        };
        let pattern = pattern.map(|pattern| Pattern::parse(&pattern)).transpose().map_err(wrong)?;
        Ok(Self { text: text.to_owned(), tool: tool.to_owned(), scope: Scope::parse(tool)?, pattern })
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Its tool's part.
    pub fn tool(&self) -> &str {
        &self.tool
    }

    /// What refusals and events call it: `deny[0] bash(nc *)`.
    pub fn id(&self, kind: RuleKind, index: usize) -> String {
        format!("{kind}[{index}] {}", self.text)
    }

    /// Its pattern; none when it covers every call.
    pub(crate) fn pattern(&self) -> Option<&Pattern> {
        self.pattern.as_ref().filter(|pattern| !pattern.is_everything())
    }

    pub(crate) fn scope(&self) -> &Scope {
        &self.scope
    }
}

impl Scope {
    fn parse(tool: &str) -> Result<Self, RuleError> {
        let wrong = || RuleError::Tool { tool: tool.to_owned() };
        let takes = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '*' | '?');
        if tool.is_empty() || !tool.chars().all(takes) {
            return Err(wrong());
        }
        let lower = tool.to_ascii_lowercase();
        if lower.contains(['*', '?']) {
            return pattern::compiled(&lower, true).map(Self::Tools).map_err(|_| wrong());
        }
        let server = lower.strip_prefix("mcp__").is_some_and(|server| !server.is_empty() && !server.contains("__"));
        Ok(if server { Self::Server(lower) } else { Self::Tool(lower) })
    }

    /// Whether it is about the tool of this lower-case name; a lane never is.
    pub(crate) fn covers_tool(&self, lower: &str) -> bool {
        match self {
            Self::Tool(tool) => tool == lower,
            Self::Tools(regex) => regex.is_match(lower),
            Self::Server(server) => {
                lower.strip_prefix(server.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with("__"))
            }
            Self::Lane(_) => false,
        }
    }
}

/// The search tool's mode that an older tool's name stands for.
fn search_mode(tool: &str) -> Option<&'static str> {
    ["grep", "glob", "bm25"].into_iter().find(|mode| tool.eq_ignore_ascii_case(mode))
}

fn lane_of(name: &str) -> Option<Lane> {
    Some(match name {
        "model" | "generate" => Lane::Model,
        "control" => Lane::Control,
        "query" => Lane::Query,
        "execute" => Lane::Execute,
        "network" => Lane::Network,
        "search" => Lane::Search,
        "browser" => Lane::Browser,
        _ => Lane::Mcp(name.strip_prefix("mcp:").filter(|server| !server.is_empty())?.to_owned()),
    })
}

impl PartialEq for Rule {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Rule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RuleVisitor)
    }
}

/// Takes a rule as a string or as a table with the one key `rule`; an error has the place of the rule.
struct RuleVisitor;

impl<'de> Visitor<'de> for RuleVisitor {
    type Value = Rule;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a rule: \"Tool(pattern)\" or { rule = \"Tool(pattern)\" }")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Rule, E> {
        Rule::parse(text).map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Rule, A::Error> {
        let mut rule = None;
        while let Some(key) = map.next_key::<String>()? {
            if key != "rule" || rule.is_some() {
                return Err(A::Error::custom(format!("{key:?} does not belong here; write {{ rule = \"…\" }}")));
            }
            rule = Some(map.next_value::<String>()?);
        }
        let rule = rule.ok_or_else(|| A::Error::missing_field("rule"))?;
        Rule::parse(&rule).map_err(A::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::{Decision, PermissionPolicy, Rule, RuleError};

    // Case C193: a rule that cannot be read never disappears.
    #[test]
    fn a_malformed_rule_fails_the_load_with_file_and_line() {
        for (bad, line) in [
            ("deny = [\n  \"bash(nc *)\",\n  \"bash(\",\n]", 3),
            ("deny = [\n  \"bash()\",\n]", 2),
            ("deny = [\"bash( )\"]", 1),
            ("allow = [\"x\"]\n\ndeny = [\"read([a)\"]", 3),
            ("deny = [\n  3,\n]", 2),
            ("\ndeny = \"bash\"", 2),
            ("\n\ndenny = []", 3),
            ("deny = [\n  { rule = \"bash\", reason = \"x\" },\n]", 2),
            ("deny = [\"a b(c)\"]", 1),
            ("\nallow = [\"lane:fast\"]", 2),
            ("\ndefault = \"maybe\"", 2),
            ("deny = [\n\"bash\"", 2),
            ("deny = [\"bash)\"]", 1),
            ("deny = [\"\"]", 1),
        ] {
            let error = PermissionPolicy::from_toml(bad, "policy.toml").unwrap_err();
            assert_eq!((error.file.as_str(), error.line), ("policy.toml", line), "{bad}: {error}");
        }
        for (bad, line) in [
            ("{\"deny\": [\n\"bash(\"]}", 2),
            ("{\n\"deny\": [3]}", 2),
            ("{\n\n\"denny\": []}", 3),
            ("{\"deny\": [\n{\"rule\": \"bash()\"}]}", 2),
        ] {
            let error = PermissionPolicy::from_json(bad, "p.json").unwrap_err();
            assert_eq!((error.file.as_str(), error.line), ("p.json", line), "{bad}: {error}");
        }
    }

    #[test]
    fn loads_both_spellings_and_writes_them_back() {
        let toml = "default_decision = \"Deny\"\ndeny = [\"bash(nc *)\", { rule = \"Read(**/.env)\" }]";
        let policy = PermissionPolicy::from_toml(toml, "p").unwrap();
        assert_eq!(policy.default, Decision::Deny);
        assert_eq!(policy.deny[1].to_string(), "Read(**/.env)");
        assert!(policy.enabled && policy.allow.is_empty());
        let json = serde_json::to_string(&policy).unwrap();
        assert_eq!(PermissionPolicy::from_json(&json, "p").unwrap(), policy);
    }

    #[test]
    fn older_search_tools_become_modes() {
        for (old, tool, pattern) in
            [("grep(TODO*)", "search", "grep TODO*"), ("Glob", "search", "glob **"), ("bm25(*)", "search", "bm25 **")]
        {
            let rule = Rule::parse(old).unwrap();
            assert_eq!((rule.tool(), rule.pattern().unwrap().text()), (tool, pattern));
            assert_eq!(rule.to_string(), old);
        }
        assert!(matches!(Rule::parse("grep()"), Err(RuleError::Pattern { .. })));
    }

    #[test]
    fn rules_that_name_no_tool_are_reported() {
        let text = "deny = [\"bahs(nc *)\", \"Bash(rm *)\", \"mcp__web\", \"mcp__x__*\"]\nallow = [\n\"grep\", \"lane:query\", \"reed(*)\"]";
        let policy = PermissionPolicy::from_toml(text, "p.toml").unwrap();
        let unknown = policy.unknown_tools(&["bash", "read", "search", "mcp__web__get"]);
        let rules: Vec<_> = unknown.iter().map(|unknown| unknown.rule.as_str()).collect();
        assert_eq!(rules, ["deny[0] bahs(nc *)", "deny[3] mcp__x__*", "allow[2] reed(*)"]);
        assert_eq!(PermissionPolicy::line_of(text, &unknown[2]), Some(3));
    }
}
