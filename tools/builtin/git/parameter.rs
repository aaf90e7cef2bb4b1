//! The parameters of one call, checked: each command takes its own and no other.
//!
//! Whatever becomes an argument of git passes [`word`] first: a text that begins with a dash is an option to git,
//! and an option can write files and run programs.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::builtin::reach::{Step, wrong};

/// Longest name of a branch, commit or remote, in bytes.
const WORD_BYTES_MAX: usize = 1024;
/// Longest note on a stash, in bytes.
const MESSAGE_BYTES_MAX: usize = 4096;

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Command {
    Status,
    Log,
    Branch,
    Checkout,
    Diff,
    Stash,
    Remote,
    Worktree,
}

/// What to do with branches, stashes and worktrees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Subcommand {
    List,
    Create,
    Remove,
}

/// The parameters of one call. Those of pages are read by [`super::listing`].
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Parameters {
    pub(super) command: Command,
    subcommand: Option<Subcommand>,
    pub(super) name: Option<String>,
    pub(super) path: Option<String>,
    #[serde(rename = "ref")]
    pub(super) reference: Option<String>,
    force: Option<bool>,
    pub(super) target: Option<String>,
    byte_offset: Option<f64>,
    max_bytes: Option<f64>,
    pub(super) message: Option<String>,
    include_untracked: Option<bool>,
    pub(super) remote_name: Option<String>,
    new_branch: Option<bool>,
    base: Option<String>,
}

impl Parameters {
    /// Reads and checks everything that needs no repository.
    ///
    /// # Errors
    /// The outcome that says which parameter is wrong.
    pub(super) fn from_arguments(arguments: &Value) -> Step<Self> {
        let mut given = arguments.as_object().cloned().unwrap_or_default();
        // Models fill in what they do not need.
        given.retain(|_, value| !value.is_null() && value.as_str() != Some(""));
        let parameters = Self::deserialize(&Value::Object(given.clone())).map_err(|error| wrong(error.to_string()))?;
        parameters.check_taken(&given)?;
        parameters.check_words()?;
        Ok(parameters)
    }

    /// What to do, as given or as it follows from the other parameters.
    pub(super) fn subcommand(&self) -> Subcommand {
        let creates = match self.command {
            Command::Branch => self.name.is_some(),
            Command::Stash => self.message.is_some() || self.include_untracked(),
            _ => false,
        };
        self.subcommand.unwrap_or(if creates { Subcommand::Create } else { Subcommand::List })
    }

    /// Whether the call changes nothing.
    pub(super) fn is_read(&self) -> bool {
        match self.command {
            Command::Status | Command::Log | Command::Diff | Command::Remote => true,
            Command::Checkout => false,
            Command::Branch | Command::Stash | Command::Worktree => self.subcommand() == Subcommand::List,
        }
    }

    pub(super) fn force(&self) -> bool {
        self.force.unwrap_or(false)
    }

    pub(super) fn include_untracked(&self) -> bool {
        self.include_untracked.unwrap_or(false)
    }

    pub(super) fn new_branch(&self) -> bool {
        self.new_branch.unwrap_or(true)
    }

    pub(super) fn base(&self) -> &str {
        self.base.as_deref().unwrap_or("HEAD")
    }

    pub(super) fn byte_offset(&self) -> u64 {
        // A whole number may be written as 1e6: the conversion saturates.
        self.byte_offset.map_or(0, |offset| offset as u64)
    }

    pub(super) fn max_bytes(&self) -> Option<u64> {
        self.max_bytes.map(|bytes| bytes as u64)
    }

    /// The command as errors name it.
    pub(super) fn op(&self) -> &'static str {
        match (self.command, self.subcommand()) {
            (Command::Status, _) => "git status",
            (Command::Log, _) => "git log",
            (Command::Checkout, _) => "git checkout",
            (Command::Diff, _) => "git diff",
            (Command::Remote, _) => "git remote",
            (Command::Branch, Subcommand::Create) => "git branch create",
            (Command::Branch, _) => "git branch",
            (Command::Stash, Subcommand::Create) => "git stash create",
            (Command::Stash, _) => "git stash",
            (Command::Worktree, Subcommand::Create) => "git worktree create",
            (Command::Worktree, Subcommand::Remove) => "git worktree remove",
            (Command::Worktree, Subcommand::List) => "git worktree list",
        }
    }

    /// The call in one line, for permission rules and people.
    pub(super) fn line(&self) -> String {
        let verb = match (self.command, self.subcommand()) {
            (Command::Branch | Command::Stash | Command::Worktree, Subcommand::List) => " list",
            (Command::Branch | Command::Stash | Command::Worktree, Subcommand::Create) => " create",
            (Command::Branch | Command::Stash | Command::Worktree, Subcommand::Remove) => " remove",
            _ => "",
        };
        let mut line = self.op().split(' ').nth(1).unwrap_or_default().to_owned() + verb;
        let new_branch = self.command != Command::Worktree || self.new_branch();
        let flags = [
            (self.force(), " --force"),
            (self.include_untracked(), " --include-untracked"),
            (!new_branch, " --no-new-branch"),
        ];
        for (_, flag) in flags.into_iter().filter(|(given, _)| *given) {
            line.push_str(flag);
        }
        let values =
            [&self.name, &self.reference, &self.target, &self.remote_name, &self.path, &self.base, &self.message];
        for value in values.into_iter().flatten() {
            let plain = |c: char| c.is_alphanumeric() || "_-./@^~+#%,:".contains(c);
            if value.chars().all(plain) && !value.starts_with('-') {
                line.push_str(&format!(" {value}"));
            } else {
                line.push_str(&format!(" {value:?}"));
            }
        }
        line
    }

    /// Refuses what the command would silently ignore.
    fn check_taken(&self, given: &Map<String, Value>) -> Step<()> {
        let pages = ["limit", "cursor", "max_count"].as_slice();
        let (own, paged): (&[&str], _) = match (self.command, self.subcommand()) {
            (Command::Status, _) => (&["path"], true),
            (Command::Log, _) => (&["ref", "path"], true),
            (Command::Diff, _) => (&["target", "path", "byte_offset", "max_bytes"], false),
            (Command::Checkout, _) => (&["ref", "force"], false),
            (Command::Remote, _) => (&["remote_name"], true),
            (Command::Branch, Subcommand::List) => (&["subcommand"], true),
            (Command::Branch, Subcommand::Create) => (&["subcommand", "name", "base"], false),
            (Command::Stash, Subcommand::List) => (&["subcommand"], true),
            (Command::Stash, Subcommand::Create) => (&["subcommand", "message", "include_untracked"], false),
            (Command::Worktree, Subcommand::List) => (&["subcommand"], true),
            (Command::Worktree, Subcommand::Create) => (&["subcommand", "name", "path", "base", "new_branch"], false),
            (Command::Worktree, Subcommand::Remove) => (&["subcommand", "path", "force"], false),
            (Command::Branch | Command::Stash, Subcommand::Remove) => {
                return Err(wrong(format!("{} takes list and create; remove one with bash", self.op())));
            }
        };
        let is_default = |value: &Value| {
            matches!(value, Value::Bool(false)) || value.as_u64() == Some(0) || value.as_str() == Some("HEAD")
        };
        for (name, value) in given {
            let harmless = is_default(value)
                || match name.as_str() {
                    "command" => true,
                    "new_branch" => value.as_bool() == Some(true),
                    // Defaults of the schema, which a caller may write out.
                    "limit" | "cursor" | "max_count" | "max_bytes" => true,
                    _ => false,
                };
            if !harmless && !own.contains(&name.as_str()) {
                let mut takes = own.to_vec();
                takes.extend(pages.iter().filter(|_| paged).take(2));
                return Err(wrong(format!("{} does not take {name}; it takes {}", self.op(), takes.join(", "))));
            }
        }
        Ok(())
    }

    fn check_words(&self) -> Step<()> {
        let words = [
            ("name", &self.name),
            ("ref", &self.reference),
            ("target", &self.target),
            ("base", &self.base),
            ("remote_name", &self.remote_name),
        ];
        for (name, value) in words {
            if let Some(value) = value {
                word(name, value)?;
            }
        }
        match &self.message {
            Some(message) if message.len() > MESSAGE_BYTES_MAX => {
                Err(wrong(format!("message has {} bytes; at most {MESSAGE_BYTES_MAX} are taken", message.len())))
            }
            Some(message) if message.contains('\0') => Err(wrong("message holds a NUL character")),
            _ => Ok(()),
        }
    }
}

/// A parameter that must be there.
///
/// # Errors
/// The outcome that asks for it.
pub(super) fn needed<'a>(op: &str, name: &str, value: Option<&'a String>) -> Step<&'a str> {
    value.map(String::as_str).ok_or_else(|| wrong(format!("{op} needs {name}")))
}

/// Refuses a text that git could take for anything but the name of a branch, tag, commit or remote.
fn word(name: &str, value: &str) -> Step<()> {
    if value.len() > WORD_BYTES_MAX {
        return Err(wrong(format!("{name} has {} bytes; at most {WORD_BYTES_MAX} are taken", value.len())));
    }
    if value.starts_with('-') {
        return Err(wrong(format!("{name}: {value:?} begins with a dash, as an option does; give a plain name")));
    }
    if value.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(wrong(format!("{name}: {value:?} holds a blank or control character; give one name")));
    }
    if value.contains(':') {
        return Err(wrong(format!("{name}: {value:?} names a file inside a commit; give the commit and use path")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Parameters, Subcommand};

    fn line(arguments: Value) -> String {
        Parameters::from_arguments(&arguments).unwrap().line()
    }

    fn fault(arguments: Value) -> String {
        Parameters::from_arguments(&arguments).unwrap_err().output
    }

    #[test]
    fn the_line_is_canonical_and_cannot_be_forged() {
        assert_eq!(line(json!({"command": "status", "limit": 5, "path": null})), "status");
        assert_eq!(line(json!({"command": "checkout", "ref": "main", "force": true})), "checkout --force main");
        assert_eq!(line(json!({"command": "branch"})), "branch list");
        assert_eq!(line(json!({"command": "branch", "name": "x", "base": "v1"})), "branch create x v1");
        assert_eq!(line(json!({"command": "stash", "include_untracked": true})), "stash create --include-untracked");
        assert_eq!(line(json!({"command": "stash", "message": "a \" --force"})), r#"stash create "a \" --force""#);
        assert_eq!(
            line(json!({"command": "worktree", "subcommand": "create", "name": "w", "new_branch": false})),
            "worktree create --no-new-branch w"
        );
        assert_eq!(line(json!({"command": "diff", "path": "--x"})), r#"diff "--x""#);
    }

    #[test]
    fn only_lists_and_looks_are_reads() {
        let is_read = |arguments: Value| Parameters::from_arguments(&arguments).unwrap().is_read();
        for command in ["status", "log", "diff", "remote", "branch", "stash", "worktree"] {
            assert!(is_read(json!({ "command": command })), "{command}");
        }
        for changing in [
            json!({"command": "checkout", "ref": "x"}),
            json!({"command": "branch", "name": "x"}),
            json!({"command": "stash", "message": "x"}),
            json!({"command": "stash", "include_untracked": true}),
            json!({"command": "stash", "subcommand": "create"}),
            json!({"command": "worktree", "subcommand": "create", "name": "x"}),
            json!({"command": "worktree", "subcommand": "remove", "path": "x"}),
        ] {
            assert!(!is_read(changing.clone()), "{changing}");
        }
        let stash = Parameters::from_arguments(&json!({"command": "stash", "message": ""})).unwrap();
        assert_eq!(stash.subcommand(), Subcommand::List);
    }

    // Case C095: an argument that is really an option.
    #[test]
    fn options_in_the_place_of_names_are_refused() {
        for (command, name) in
            [("log", "ref"), ("diff", "target"), ("checkout", "ref"), ("branch", "name"), ("remote", "remote_name")]
        {
            for value in ["--output=../inj.txt", "-f", "--upload-pack=touch x", "-"] {
                assert!(fault(json!({"command": command, name: value})).contains("dash"), "{command} {value}");
            }
            for value in ["a b", "a\0", "HEAD:x", "a\n"] {
                assert!(fault(json!({"command": command, name: value})).starts_with(name), "{command} {value:?}");
            }
            assert!(fault(json!({"command": command, name: "x".repeat(2000)})).contains("2000 bytes"));
        }
    }

    #[test]
    fn what_a_command_does_not_take_is_named() {
        let text = fault(json!({"command": "log", "message": "x"}));
        assert_eq!(text, "git log does not take message; it takes ref, path, limit, cursor");
        assert!(fault(json!({"command": "stash", "subcommand": "remove"})).contains("bash"));
        let filled = json!({"command": "status", "force": false, "new_branch": true, "base": "HEAD", "byte_offset": 0,
            "name": "", "max_bytes": 65536, "include_untracked": false});
        assert!(Parameters::from_arguments(&filled).is_ok());
    }
}
