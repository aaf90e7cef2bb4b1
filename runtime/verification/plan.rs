//! The commands of a verification: read from a file, and checked before any of them runs.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::VerificationCommand;

/// Most commands in one verification.
pub const COMMANDS_MAX: usize = 64;
/// Longest subject, in bytes.
pub const SUBJECT_BYTES_MAX: usize = 1024;
/// Longest id and kind of a command, in bytes.
pub const ID_BYTES_MAX: usize = 256;

/// Commands that are run together, about one subject.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerificationPlan {
    /// What is verified, in words.
    #[serde(default)]
    pub subject: String,
    /// The commands, in the order in which they run.
    #[serde(rename = "check")]
    pub commands: Vec<VerificationCommand>,
}

/// Why a plan cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PlanError {
    /// Its text is wrong.
    #[error("{file}:{line}: {message}")]
    Text {
        /// The file.
        file: String,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// There are too many commands.
    #[error("there are {count} commands; at most {COMMANDS_MAX} run together, so split them")]
    TooMany {
        /// How many.
        count: usize,
    },
    /// The subject is too long.
    #[error("the subject has {bytes} bytes; at most {SUBJECT_BYTES_MAX} are taken")]
    Subject {
        /// How long it is.
        bytes: usize,
    },
    /// A command's name is no name.
    #[error(
        "command {number} has an id or a kind that is empty or longer than {ID_BYTES_MAX} bytes; give it a short one"
    )]
    Name {
        /// Which command, counted from 1.
        number: usize,
    },
    /// Two commands have one name.
    #[error("two commands have the id {id:?}; give each its own")]
    Twice {
        /// The name.
        id: String,
    },
    /// A command line is empty.
    #[error("the command of {id:?} is empty")]
    Empty {
        /// Whose.
        id: String,
    },
}

impl VerificationPlan {
    /// Reads a plan from TOML text, one `[[check]]` a command; `file_name` is for messages.
    ///
    /// # Errors
    /// [`PlanError`] for the first thing that is wrong.
    pub fn from_toml(text: &str, file_name: &str) -> Result<Self, PlanError> {
        let plan: Self = toml::from_str(text).map_err(|error| PlanError::Text {
            file: file_name.to_owned(),
            line: line_at(text, error.span().map_or(0, |span| span.start)),
            message: error.message().to_owned(),
        })?;
        plan.check()?;
        Ok(plan)
    }

    /// Reads a plan from JSON text, with the list `check`; `file_name` is for messages.
    ///
    /// # Errors
    /// [`PlanError`] for the first thing that is wrong.
    pub fn from_json(text: &str, file_name: &str) -> Result<Self, PlanError> {
        let plan: Self = serde_json::from_str(text).map_err(|error| PlanError::Text {
            file: file_name.to_owned(),
            line: error.line().max(1),
            message: error.to_string(),
        })?;
        plan.check()?;
        Ok(plan)
    }

    /// Checks what the types do not say.
    ///
    /// # Errors
    /// [`PlanError`] for the first thing that is wrong.
    pub fn check(&self) -> Result<(), PlanError> {
        if self.subject.len() > SUBJECT_BYTES_MAX {
            return Err(PlanError::Subject { bytes: self.subject.len() });
        }
        check(&self.commands)
    }
}

/// Checks commands that are to run together.
///
/// # Errors
/// [`PlanError`] for the first thing that is wrong.
pub fn check(commands: &[VerificationCommand]) -> Result<(), PlanError> {
    if commands.len() > COMMANDS_MAX {
        return Err(PlanError::TooMany { count: commands.len() });
    }
    for (at, command) in commands.iter().enumerate() {
        let is_name = |text: &str| !text.trim().is_empty() && text.len() <= ID_BYTES_MAX;
        if !is_name(&command.id) || !is_name(&command.kind) {
            return Err(PlanError::Name { number: at + 1 });
        }
        if commands[..at].iter().any(|earlier| earlier.id == command.id) {
            return Err(PlanError::Twice { id: command.id.clone() });
        }
        if command.command.trim().is_empty() {
            return Err(PlanError::Empty { id: command.id.clone() });
        }
    }
    Ok(())
}

/// The line of a byte, counted from 1.
fn line_at(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::{COMMANDS_MAX, PlanError, VerificationPlan, check};
    use crate::verification::tests::command;

    const GOOD: &str = "subject = 'the parser'\n\n[[check]]\nid = 'test'\nkind = 'test'\ncommand = 'cargo test'\n\
                        required = true\ntimeout_ms = 600000\n\n[[check]]\nid = 'lint'\nkind = 'lint'\n\
                        command = 'false'\nexpect_exit = 1\n";

    #[test]
    fn a_file_gives_its_commands_in_their_order() {
        let plan = VerificationPlan::from_toml(GOOD, "checks.toml").unwrap();
        assert_eq!(plan.subject, "the parser");
        let [test, lint] = &*plan.commands else { panic!("{plan:?}") };
        assert_eq!(
            (test.id.as_str(), test.required, test.timeout_ms, test.expect_exit),
            ("test", true, Some(600_000), 0)
        );
        assert_eq!((lint.required, lint.timeout_ms, lint.expect_exit), (false, None, 1));
        let json = serde_json::to_string(&plan).unwrap();
        assert_eq!(VerificationPlan::from_json(&json, "checks.json").unwrap(), plan);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let text = GOOD.replace("timeout_ms", "timeout");
        let error = VerificationPlan::from_toml(&text, "checks.toml").unwrap_err().to_string();
        assert!(error.starts_with("checks.toml:") && error.contains("timeout"), "{error}");
        let error = VerificationPlan::from_json("{\n\"check\": [{}]}", "checks.json").unwrap_err().to_string();
        assert!(error.starts_with("checks.json:2: "), "{error}");
    }

    #[test]
    fn commands_that_make_no_sense_together_are_refused() {
        let many = (0..=COMMANDS_MAX).map(|number| command(&number.to_string(), true)).collect::<Vec<_>>();
        assert_eq!(check(&many), Err(PlanError::TooMany { count: COMMANDS_MAX + 1 }));
        assert_eq!(check(&many[1..]), Ok(()));
        let twice = [command("a", true), command("b", true), command("a", false)];
        assert_eq!(check(&twice), Err(PlanError::Twice { id: "a".into() }));
        assert_eq!(check(&[command(" ", true)]), Err(PlanError::Name { number: 1 }));
        assert_eq!(check(&[command(&"x".repeat(257), true)]), Err(PlanError::Name { number: 1 }));
        let mut empty = command("a", true);
        empty.command = "\n".into();
        assert_eq!(check(&[empty]), Err(PlanError::Empty { id: "a".into() }));
        let long = VerificationPlan { subject: "x".repeat(1025), commands: Vec::new() };
        assert_eq!(long.check(), Err(PlanError::Subject { bytes: 1025 }));
    }
}
