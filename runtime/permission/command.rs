//! Judging a command line by its parts.
//!
//! One part that a deny covers denies the line; an allow must cover every part, by one rule or by several. A
//! redirection that writes is judged as a call of `write`, one that reads by the denies and the asks of `read`, and
//! so are the paths that can be seen among the words.

use std::borrow::Cow;
use std::collections::BTreeSet;

use toolwarden_tools::tool::Lane;

use super::reach::{Named, folders, named_paths, only_reads, overlap};
use super::{Grants, Judged, Verdict, allowed, asked, by_default, path_allowed, spellings};
use crate::policy::Decision;
use crate::policy::compiled::{CompiledPolicy, RuleList};
use crate::policy::pattern::Fit;
use crate::shell::word::Word;
use crate::shell::{CommandLine, Doubt, Redirection, RedirectionKind, SimpleCommand};

/// Longest part of a command that is shown in a reason, in characters.
const SHOWN_CHARS_MAX: usize = 200;

/// The tools whose rules speak of reading or of writing a file.
const READING: [(&str, Lane); 1] = [("read", Lane::Query)];
const WRITING: [(&str, Lane); 2] = [("write", Lane::Execute), ("edit", Lane::Execute)];

/// The paths that a command line visibly names, for a host that can say where they lead.
pub fn visible_paths(text: &str) -> Vec<String> {
    let line = CommandLine::parse(text);
    let folders = folders(&line).known;
    let words = line.simple_commands.iter().flat_map(|command| named_paths(command, &folders));
    let words = words.filter_map(|named| match named {
        Named::Path(path) => Some(path),
        Named::Shape(_) => None,
    });
    let targets = line.redirections.iter().filter_map(|redirection| redirection.target.known().map(str::to_owned));
    let paths: BTreeSet<String> = words.chain(targets).collect();
    paths.into_iter().collect()
}

/// Whether a redirection writes a real file: the null device and the standard streams are free.
pub(super) fn writes_file(redirection: &Redirection) -> bool {
    let is_free = |target: &str| {
        matches!(target, "/dev/null" | "/dev/stdout" | "/dev/stderr" | "/dev/tty" | "/dev/zero" | "/dev/full")
            || target
                .strip_prefix("/dev/fd/")
                .is_some_and(|fd| !fd.is_empty() && fd.bytes().all(|b| b.is_ascii_digit()))
    };
    redirection.kind != RedirectionKind::Read && !redirection.target.known().is_some_and(is_free)
}

pub(super) fn judge(policy: &CompiledPolicy, grants: &Grants, judged: &Judged<'_>, text: &str) -> Verdict {
    if let Some(rule) = policy.deny().whole(judged.tool, judged.lane) {
        return super::denied(judged.tool, policy.deny().id(rule).to_owned());
    }
    let line = CommandLine::parse(text);
    let folders = folders(&line);
    let is_cut = folders.is_cut && (policy.deny().is_scoped() || policy.ask().is_scoped());
    let hesitation = is_cut.then(|| "the command changes its folder more often than is followed".to_owned());
    let mut court = Court { policy, grants, judged, folders: folders.known, line: &line, hesitation };
    if let Some(verdict) = court.denied().or_else(|| court.asked()) {
        return verdict;
    }
    court.settle()
}

struct Court<'a> {
    policy: &'a CompiledPolicy,
    grants: &'a Grants,
    judged: &'a Judged<'a>,
    line: &'a CommandLine,
    folders: Vec<String>,
    /// The first reason not to let the line run although rules allow its parts.
    hesitation: Option<String>,
}

impl Court<'_> {
    fn denied(&mut self) -> Option<Verdict> {
        let deny = self.policy.deny();
        for command in &self.line.simple_commands {
            match self.best_fit(deny, command) {
                Some((Fit::Yes, rule)) => {
                    return Some(self.deny(rule, &format!("{:?}", shown(command))));
                }
                Some((_, rule)) => self.hesitate(format!("{} may cover {:?}", deny.id(rule), shown(command))),
                None => {}
            }
        }
        for redirection in &self.line.redirections {
            let tools: &[(&str, Lane)] = if writes_file(redirection) { &WRITING } else { &READING };
            if let Some(rule) = self.file_rule(deny, tools, &redirection.target) {
                return Some(self.deny(rule, &format!("opening {:?}", redirection.target.written())));
            }
        }
        let (rule, command) = self.path_rule(deny)?;
        let what = format!("{:?}", shown(command));
        Some(self.deny(rule, &what))
    }

    fn asked(&mut self) -> Option<Verdict> {
        let ask = self.policy.ask();
        let whole = ask.whole(self.judged.tool, self.judged.lane);
        let mut commands = self.line.simple_commands.iter();
        let by_words = || commands.find_map(|command| self.best_fit(ask, command).map(|(_, rule)| rule));
        let by_files = || {
            self.line.redirections.iter().find_map(|redirection| {
                let tools: &[(&str, Lane)] = if writes_file(redirection) { &WRITING } else { &READING };
                self.target_rule(ask, tools, &redirection.target)
            })
        };
        let rule = whole.or_else(by_words).or_else(by_files).or_else(|| self.path_rule(ask).map(|(rule, _)| rule))?;
        Some(asked(self.judged.tool, ask.id(rule).to_owned()))
    }

    /// The rule of a list on a path that stands among the words of a command, with the command. Whatever is not known to
    /// read only may write too.
    fn path_rule(&mut self, list: &RuleList) -> Option<(usize, &SimpleCommand)> {
        if !list.is_scoped() {
            return None;
        }
        let line = self.line;
        for command in &line.simple_commands {
            let named = named_paths(command, &self.folders);
            let writing: &[(&str, Lane)] = if only_reads(command) { &[] } else { &WRITING };
            for (tool, lane) in READING.iter().chain(writing) {
                for path in &named {
                    if let Some(rule) = self.named_rule(list, tool, lane, path) {
                        return Some((rule, command));
                    }
                }
            }
        }
        None
    }

    /// No deny and no ask covers the line: allow rules, grants and the default decide.
    fn settle(&mut self) -> Verdict {
        let allow = self.policy.allow();
        self.note_doubts();
        // Where nothing is singled out by a deny or an ask, a doubt about what runs makes no difference.
        let singled_out = self.policy.deny().is_scoped() || self.policy.ask().is_scoped();
        let hesitation = self.hesitation.clone();
        if let Some(rule) = allow.whole(self.judged.tool, self.judged.lane) {
            return match hesitation.filter(|_| singled_out) {
                Some(why) => Verdict::Ask { rule: None, why },
                None => Verdict::Allow { rule: allow.id(rule).to_owned() },
            };
        }
        match self.coverage() {
            Ok(rules) if rules.is_empty() => {
                self.default(hesitation, singled_out, "no command is recognised that a rule could allow".to_owned())
            }
            Ok(rules) => match hesitation {
                Some(why) => Verdict::Ask { rule: None, why },
                None => allowed(rules),
            },
            Err(uncovered) => self.default(hesitation, singled_out, uncovered),
        }
    }

    fn default(&self, hesitation: Option<String>, singled_out: bool, uncovered: String) -> Verdict {
        match (self.policy.default(), hesitation) {
            (Decision::Allow, Some(why)) if singled_out => Verdict::Ask { rule: None, why },
            (Decision::Ask, Some(why)) => Verdict::Ask { rule: None, why: format!("{uncovered}; {why}") },
            (decision, _) => by_default(decision, || uncovered),
        }
    }

    /// The rules that together cover every part; else the first part that none covers.
    fn coverage(&self) -> Result<BTreeSet<String>, String> {
        let allow = self.policy.allow();
        let mut rules = BTreeSet::new();
        for command in self.line.simple_commands.iter().filter(|command| !command.hands_on) {
            let words = words_of(command);
            let groups = allow.groups(self.judged.tool, self.judged.lane);
            let fits = groups.filter_map(|group| group.words(&words)).filter(|(fit, _)| *fit == Fit::Yes);
            match fits.map(|(_, rule)| rule).min() {
                Some(rule) => rules.insert(allow.id(rule).to_owned()),
                None if self.grants.covers_command(command) => rules.insert(Grants::ID.to_owned()),
                None => return Err(format!("no rule allows {:?}", shown(command))),
            };
        }
        for redirection in self.line.redirections.iter().filter(|redirection| writes_file(redirection)) {
            let rule = self.write_allowed(&redirection.target);
            let missing = || format!("no rule allows to write {:?}", redirection.target.written());
            rules.insert(rule.ok_or_else(missing)?);
        }
        Ok(rules)
    }

    fn write_allowed(&self, target: &Word) -> Option<String> {
        let allow = self.policy.allow();
        if self.policy.default() == Decision::Allow {
            return Some("default".to_owned());
        }
        if let Some(rule) = allow.whole("write", &Lane::Execute) {
            return Some(allow.id(rule).to_owned());
        }
        let target = target.known()?;
        if self.line.changes_folder() && !target.starts_with('/') {
            return None;
        }
        path_allowed(allow, self.grants, self.judged, ("write", &Lane::Execute), target)
    }

    /// The rule of a list that fits a command best. The command counts under its bare name as well, so that
    /// `/usr/bin/nc` is `nc`; an allow never looks this way.
    fn best_fit(&self, list: &RuleList, command: &SimpleCommand) -> Option<(Fit, usize)> {
        let words = words_of(command);
        let mut bare = words.clone();
        if let Some(Some(name)) = bare.first_mut() {
            *name = name.rsplit('/').next().unwrap_or(name);
        }
        let groups = list.groups(self.judged.tool, self.judged.lane);
        let fits = groups.flat_map(|group| [group.words(&words), group.words(&bare)]).flatten();
        fits.min_by_key(|(fit, rule)| (std::cmp::Reverse(*fit), *rule))
    }

    /// The deny rule on a redirection's target; what cannot be told apart makes the line hesitate.
    fn file_rule(&mut self, list: &RuleList, tools: &[(&str, Lane)], target: &Word) -> Option<usize> {
        if let Some(rule) = self.target_rule(list, tools, target) {
            return Some(rule);
        }
        if let Word::Unknown { shape, .. } = target {
            for (tool, lane) in tools {
                let shape = Named::Shape(shape.clone());
                self.named_rule(list, tool, lane, &shape);
            }
        }
        None
    }

    /// The rule on a redirection's target. A rule on every `write` covers it too; a rule on every `read` does not,
    /// for that is about the tool.
    fn target_rule(&self, list: &RuleList, tools: &[(&str, Lane)], target: &Word) -> Option<usize> {
        let mut rules = BTreeSet::new();
        for (tool, lane) in tools {
            if *tool == "write" {
                rules.extend(list.whole(tool, lane));
            }
            for spelling in target.known().into_iter().flat_map(|target| self.spellings_of(target)) {
                rules.extend(list.path_by_pattern(tool, lane, &spelling));
            }
        }
        rules.first().copied()
    }

    fn spellings_of(&self, path: &str) -> Vec<String> {
        let of =
            |path: &str| Vec::from_iter(spellings(self.policy, path, self.judged).into_iter().map(Cow::into_owned));
        let mut all = of(path);
        if !path.starts_with(['/', '~']) {
            all.extend(self.folders.iter().flat_map(|folder| of(&format!("{folder}/{path}"))));
        }
        all
    }

    /// The rule of a list on a path that a word names.
    fn named_rule(&mut self, list: &RuleList, tool: &str, lane: &Lane, named: &Named) -> Option<usize> {
        match named {
            Named::Path(path) => spellings(self.policy, path, self.judged)
                .iter()
                .filter_map(|spelling| list.path_by_pattern(tool, lane, spelling))
                .min(),
            Named::Shape(shape) => {
                let patterns = list.groups(tool, lane).flat_map(|group| group.patterns());
                let hit = patterns.filter(|(pattern, _)| overlap(shape, pattern)).map(|(_, rule)| *rule).min();
                if let Some(rule) = hit {
                    self.hesitate(format!("a path in the command may be one that {} is about", list.id(rule)));
                }
                None
            }
        }
    }

    /// Turns what the parsers left open into a hesitation, unless a rule settles it.
    fn note_doubts(&mut self) {
        for doubt in &self.line.doubts {
            let settled = matches!(doubt, Doubt::Interpreter { name } if self.is_spelled_out(name));
            if !settled {
                self.hesitate(doubt.to_string());
            }
        }
        let network = |target: &&str| target.starts_with("/dev/tcp/") || target.starts_with("/dev/udp/");
        let mut targets = self.line.redirections.iter().filter_map(|redirection| redirection.target.known());
        if let Some(target) = targets.find(network) {
            self.hesitate(Doubt::Network { target: target.to_owned() }.to_string());
        }
    }

    /// Whether allow rules that spell the name cover every use of such a command.
    fn is_spelled_out(&self, name: &str) -> bool {
        let allow = self.policy.allow();
        let mut uses = self.line.simple_commands.iter().filter(|command| command.name() == Some(name)).peekable();
        uses.peek().is_some()
            && uses.all(|command| {
                let words = words_of(command);
                allow.groups(self.judged.tool, self.judged.lane).any(|group| group.spelled(name, &words).is_some())
            })
    }

    fn hesitate(&mut self, why: String) {
        self.hesitation.get_or_insert(why);
    }

    fn deny(&self, rule: usize, what: &str) -> Verdict {
        let rule = self.policy.deny().id(rule).to_owned();
        Verdict::Deny { why: format!("{rule} forbids {what}"), rule }
    }
}

fn words_of(command: &SimpleCommand) -> Vec<Option<&str>> {
    command.words.iter().map(Word::known).collect()
}

fn shown(command: &SimpleCommand) -> String {
    let text = command.words.iter().map(Word::written).collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
