//! What a person has allowed for the rest of a session by answering "always".
//!
//! Narrow on purpose: a grant covers exactly the words, the path or the text that was shown, never more of the
//! same kind. It counts as an allow rule, so a deny or an ask rule still wins.

use std::collections::BTreeSet;

use thiserror::Error;

use toolwarden_tools::tool::Subject;

use super::Judged;
use super::command::writes_file;
use super::reach::folded;
use crate::shell::word::Word;
use crate::shell::{CommandLine, SimpleCommand};

/// Most grants of a session.
pub const GRANTS_MAX: usize = 1024;

/// Grants of one session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grants {
    commands: BTreeSet<Vec<String>>,
    paths: BTreeSet<(String, String)>,
    texts: BTreeSet<(String, String)>,
}

/// Why an answer cannot be remembered; the call itself may still run once.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum GrantError {
    /// What the command runs is not known for certain.
    #[error("this command cannot be allowed for always, because {doubt}; allow it once, or write a rule")]
    Doubtful {
        /// What is in doubt.
        doubt: String,
    },
    /// There are too many.
    #[error("{GRANTS_MAX} grants are remembered already; write a rule that covers them")]
    Full,
}

impl Grants {
    /// What a verdict names when a grant allowed the call.
    pub const ID: &'static str = "granted in this session";

    /// Remembers that this call is allowed from now on.
    ///
    /// # Errors
    /// [`GrantError`] when the call is not known well enough, or there are too many grants; nothing is remembered
    /// then.
    pub fn remember(&mut self, judged: &Judged<'_>) -> Result<(), GrantError> {
        let mut grown = self.clone();
        match judged.subject {
            Subject::Command(text) => grown.remember_command(&CommandLine::parse(text))?,
            Subject::Paths { paths, .. } => {
                for path in paths {
                    let leads_to = judged.resolved.iter().find(|entry| entry.requested == *path);
                    let end = folded(leads_to.map_or(path.as_str(), |entry| entry.resolved.as_str())).into_owned();
                    grown.paths.insert((judged.tool.to_ascii_lowercase(), end));
                }
            }
            Subject::Text(text) => {
                grown.texts.insert((judged.tool.to_ascii_lowercase(), text.clone()));
            }
        }
        if grown.commands.len() + grown.paths.len() + grown.texts.len() > GRANTS_MAX {
            return Err(GrantError::Full);
        }
        *self = grown;
        Ok(())
    }

    fn remember_command(&mut self, line: &CommandLine) -> Result<(), GrantError> {
        if let Some(doubt) = line.doubts.first() {
            return Err(GrantError::Doubtful { doubt: doubt.to_string() });
        }
        let unknown = |word: &Word| GrantError::Doubtful { doubt: format!("{:?} changes its meaning", word.written()) };
        for command in line.simple_commands.iter().filter(|command| !command.hands_on) {
            // What a variable can make of a command is not known, and the next time it may hold something else.
            if let Some(name) = command.assignments.first() {
                return Err(GrantError::Doubtful { doubt: format!("it sets {name}") });
            }
            let words: Result<Vec<String>, _> =
                command.words.iter().map(|word| word.known().map(str::to_owned).ok_or_else(|| unknown(word))).collect();
            self.commands.insert(words?);
        }
        for redirection in line.redirections.iter().filter(|redirection| writes_file(redirection)) {
            let target = redirection.target.known().ok_or_else(|| unknown(&redirection.target))?;
            if line.changes_folder() && !target.starts_with('/') {
                return Err(GrantError::Doubtful { doubt: format!("{target:?} is written after a change of folder") });
            }
            self.paths.insert(("write".to_owned(), folded(target).into_owned()));
        }
        Ok(())
    }

    pub(super) fn covers_command(&self, command: &SimpleCommand) -> bool {
        let known = || command.words.iter().map(|word| word.known().map(str::to_owned)).collect::<Option<Vec<_>>>();
        !self.commands.is_empty()
            && command.assignments.is_empty()
            && known().is_some_and(|known| self.commands.contains(&known))
    }

    pub(super) fn covers_path(&self, tool: &str, path: &str) -> bool {
        !self.paths.is_empty() && self.paths.contains(&(tool.to_ascii_lowercase(), path.to_owned()))
    }

    pub(super) fn covers_text(&self, tool: &str, text: &str) -> bool {
        !self.texts.is_empty() && self.texts.contains(&(tool.to_ascii_lowercase(), text.to_owned()))
    }
}
