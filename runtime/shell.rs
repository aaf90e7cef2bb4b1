//! Reads a bash command line and says which commands it could run, which files it could redirect, and what of it
//! stays in doubt.
//!
//! Two independent bash parsers read the text and every command name that either of them finds counts: what one
//! overlooks the other sees. Whatever one refuses, and whatever only a running shell could know (a command word
//! with `$`, `eval`, a changed `PATH`), is a [`Doubt`], and a doubt asks a person. Wrappers (`env`, `xargs`,
//! `sh -c`, …) are looked into.
//!
//! This is a layer for people's convenience, so that harmless commands need no question. It is not the guard:
//! that is the sandbox. What it does not understand: the order and bundling of flags (`rm -rf` and `rm -r -f` are
//! different to it), what a program does with its own arguments (`awk`, `git -c`, `make`), and what scripts hold.
//! A dangerous command therefore wants a rule on its name alone.
//!
//! Must stay true: hostile text costs bounded time and stack. Sizes are checked before a parser sees the text,
//! nothing of ours recurses, and a text with many openers is parsed on a thread with a big stack.

mod bash_parser;
mod extent;
mod openers;
mod syntax_tree;
pub mod word;
mod wrapper;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::shell::word::Word;

/// Longest command line that is read, in bytes.
pub const COMMAND_BYTES_MAX: usize = 16 * 1024;

/// Deepest nesting that is followed, in levels (of brackets, and of commands within commands).
pub const NESTING_LEVELS_MAX: usize = 32;

/// Most texts (substitutions, `sh -c` arguments) that are parsed for one command line.
pub const TEXTS_MAX: usize = 256;

/// Most bytes of such texts together.
pub const TEXT_BYTES_MAX: usize = 4 * COMMAND_BYTES_MAX;

/// Most simple commands that are kept of one command line.
pub const COMMANDS_MAX: usize = 4096;

/// Stack of the thread that parses a text with many openers, in bytes. A level costs at most about 21 KB in a
/// debug build (measured), and [`openers::OPENERS_MAX`] levels are let through.
const PARSER_STACK_BYTES: usize = 16 * 1024 * 1024;

/// A command line, taken apart.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommandLine {
    /// Every simple command that could run, inner and wrapped ones included, without repeats.
    pub simple_commands: Vec<SimpleCommand>,
    /// Every file that a redirection (or `tee`) opens.
    pub redirections: Vec<Redirection>,
    /// What could not be read or resolved.
    pub doubts: Vec<Doubt>,
}

/// One simple command.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SimpleCommand {
    /// Its words, the name first; never empty.
    pub words: Vec<Word>,
    /// The variables it sets for itself, by name.
    pub assignments: Vec<String>,
    /// Whether it only hands on to a command that is listed as well (`time`, `nohup`, …), so that it needs no
    /// allow rule of its own.
    pub hands_on: bool,
}

impl SimpleCommand {
    /// Its name without quoting; none when only a running shell knows it.
    pub fn name(&self) -> Option<&str> {
        self.words.first().and_then(Word::known)
    }
}

/// A file that a redirection opens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redirection {
    /// The file.
    pub target: Word,
    /// How it is opened.
    pub kind: RedirectionKind,
}

/// How a redirection opens its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RedirectionKind {
    /// `<`
    Read,
    /// `>`, `>|`, `&>`, `<>`
    Write,
    /// `>>`, `&>>`
    Append,
}

/// Why a command line cannot be judged for certain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Doubt {
    /// Longer than is read.
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// Nested deeper, or with more parts, than is followed.
    TooDeep,
    /// It holds control characters, which parsers treat differently.
    ControlCharacter,
    /// One of the two parsers refuses it.
    Unreadable,
    /// Which command runs is known only to the running shell.
    CommandWord {
        /// As it was written.
        text: String,
    },
    /// A substitution where the two parsers are known to go wrong.
    HiddenSubstitution {
        /// As it was written.
        text: String,
    },
    /// Text that the shell may run when it takes it for an array subscript.
    Subscript {
        /// As it was written.
        text: String,
    },
    /// A command that runs or redefines others in ways that are not followed; an allow rule that spells its name
    /// settles this doubt.
    Interpreter {
        /// The command.
        name: String,
    },
    /// A shell that takes its commands from its input.
    Input {
        /// The shell.
        name: String,
    },
    /// A function is defined, so names may mean something else.
    Definition {
        /// The function.
        name: String,
    },
    /// A variable is set that decides which programs run.
    Environment {
        /// The variable.
        name: String,
    },
    /// A wrapper is used in a way that is not understood.
    Options {
        /// The wrapper.
        name: String,
    },
    /// A wrapper starts its command in another folder, so that relative paths mean something else.
    Folder {
        /// The wrapper.
        name: String,
    },
    /// A redirection opens a network connection.
    Network {
        /// The address.
        target: String,
    },
}

impl fmt::Display for Doubt {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { bytes } => {
                write!(out, "the command has {bytes} bytes; at most {COMMAND_BYTES_MAX} are read")
            }
            Self::TooDeep => out.write_str("the command is nested too deep to be followed"),
            Self::ControlCharacter => out.write_str("the command holds control characters"),
            Self::Unreadable => out.write_str("the command cannot be read for certain"),
            Self::CommandWord { text } => write!(out, "which command {text:?} is depends on the running shell"),
            Self::HiddenSubstitution { text } => write!(out, "{text:?} may run a command in a hidden place"),
            Self::Subscript { text } => write!(out, "{text:?} may be run as an array subscript"),
            Self::Interpreter { name } => write!(out, "{name} can run or redefine other commands"),
            Self::Input { name } => write!(out, "{name} takes its commands from its input"),
            Self::Definition { name } => write!(out, "the function {name} is defined"),
            Self::Environment { name } => write!(out, "setting {name} can change what runs"),
            Self::Options { name } => write!(out, "what {name} would run is not clear from its arguments"),
            Self::Folder { name } => write!(out, "{name} starts its command in another folder"),
            Self::Network { target } => write!(out, "{target} is a network connection"),
        }
    }
}

impl CommandLine {
    /// Takes a command line apart. Never fails: what cannot be read is a doubt.
    pub fn parse(text: &str) -> Self {
        if text.len() > COMMAND_BYTES_MAX {
            return Self::doubtful(Doubt::TooLong { bytes: text.len() });
        }
        if openers::nesting_levels(text) > NESTING_LEVELS_MAX || !openers::few_enough(text) {
            return Self::doubtful(Doubt::TooDeep);
        }
        if openers::fit_any_stack(text) {
            return Reader::default().read(text);
        }
        let owned = text.to_owned();
        std::thread::Builder::new()
            .name("bash-parser".to_owned())
            .stack_size(PARSER_STACK_BYTES)
            .spawn(move || Reader::default().read(&owned))
            .ok()
            .and_then(|thread| thread.join().ok())
            .unwrap_or_else(|| Self::doubtful(Doubt::Unreadable))
    }

    /// The names of all commands that could run, as far as they are known.
    pub fn names(&self) -> BTreeSet<&str> {
        self.simple_commands.iter().filter_map(SimpleCommand::name).collect()
    }

    /// Whether the line may leave the folder it starts in, so that a relative path means something else.
    pub fn changes_folder(&self) -> bool {
        self.names().iter().any(|name| matches!(*name, "cd" | "pushd" | "popd"))
    }

    fn doubtful(doubt: Doubt) -> Self {
        Self { doubts: vec![doubt], ..Self::default() }
    }

    fn add_doubt(&mut self, doubt: Doubt) {
        if !self.doubts.contains(&doubt) {
            self.doubts.push(doubt);
        }
    }
}

/// The first opinion. That parser panics on some here-documents inside substitutions; it is not ours, so such a
/// panic is one more way of refusing the text.
fn first_opinion(text: &str) -> Result<Found, Doubt> {
    catch_unwind(AssertUnwindSafe(|| bash_parser::read(text))).unwrap_or(Err(Doubt::Unreadable))
}

/// What one parser finds in one text.
#[derive(Debug, Default)]
struct Found {
    commands: Vec<SimpleCommand>,
    redirections: Vec<Redirection>,
    /// Texts of substitutions, to be read in their turn.
    inner: Vec<String>,
    doubts: Vec<Doubt>,
}

/// A text to read.
struct Pending {
    text: String,
    depth: usize,
    /// Whether the second parser has not seen it as part of an outer text.
    fresh: bool,
}

/// Works through a command line and all texts inside it, without recursion.
#[derive(Default)]
struct Reader {
    line: CommandLine,
    pending: VecDeque<Pending>,
    kept: BTreeSet<SimpleCommand>,
    texts: usize,
    text_bytes: usize,
}

impl Reader {
    fn read(mut self, text: &str) -> CommandLine {
        self.pending.push_back(Pending { text: text.to_owned(), depth: 0, fresh: true });
        while let Some(root) = self.pending.pop_front() {
            let depth = root.depth;
            let commands = self.read_both(root);
            for command in commands {
                self.keep(command, depth);
            }
        }
        self.line
    }

    /// Reads one fresh text and its substitutions with the first parser, the whole with the second, and returns
    /// what either found.
    fn read_both(&mut self, root: Pending) -> Vec<SimpleCommand> {
        let mut second = Found::default();
        let mut texts = VecDeque::from([root]);
        let mut commands = Vec::new();
        let mut refused = false;
        while let Some(Pending { text, depth, fresh }) = texts.pop_front() {
            self.texts += 1;
            self.text_bytes += text.len();
            if self.texts > TEXTS_MAX || self.text_bytes > TEXT_BYTES_MAX || depth > NESTING_LEVELS_MAX {
                self.line.add_doubt(Doubt::TooDeep);
                break;
            }
            if text.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\t')) {
                self.line.add_doubt(Doubt::ControlCharacter);
            }
            if openers::may_hide_behind_a_comment(&text) {
                self.line.add_doubt(Doubt::Unreadable);
            }
            if fresh {
                second = syntax_tree::read(&text);
            }
            match first_opinion(&text) {
                Ok(found) => {
                    commands.extend(found.commands);
                    self.line.redirections.extend(found.redirections);
                    found.doubts.into_iter().for_each(|doubt| self.line.add_doubt(doubt));
                    let inner = found.inner.into_iter();
                    texts.extend(inner.map(|text| Pending { text, depth: depth + 1, fresh: false }));
                }
                Err(doubt) => {
                    refused = true;
                    self.line.add_doubt(doubt);
                }
            }
        }
        if refused {
            self.line.redirections.append(&mut second.redirections);
        }
        second.doubts.into_iter().for_each(|doubt| self.line.add_doubt(doubt));
        commands.extend(overlooked(&commands, second.commands));
        commands
    }

    /// Keeps a command and whatever it wraps.
    fn keep(&mut self, command: SimpleCommand, depth: usize) {
        let mut commands = VecDeque::from([(command, depth)]);
        while let Some((mut command, depth)) = commands.pop_front() {
            if depth > NESTING_LEVELS_MAX || self.line.simple_commands.len() >= COMMANDS_MAX {
                self.line.add_doubt(Doubt::TooDeep);
                return;
            }
            let look = wrapper::look_into(&command);
            command.hands_on = look.hands_on;
            if !self.kept.insert(command.clone()) {
                continue;
            }
            if command.name().is_none()
                && let Some(word) = command.words.first()
            {
                self.line.add_doubt(Doubt::CommandWord { text: word.written().to_owned() });
            }
            look.doubts.into_iter().for_each(|doubt| self.line.add_doubt(doubt));
            self.line.redirections.extend(look.redirections);
            self.line.simple_commands.push(command);
            commands.extend(look.inner.into_iter().map(|inner| (inner, depth + 1)));
            let texts = look.texts.into_iter();
            self.pending.extend(texts.map(|text| Pending { text, depth: depth + 1, fresh: true }));
        }
    }
}

/// The commands of the second parser whose names the first found less often: there it overlooked something.
fn overlooked(first: &[SimpleCommand], second: Vec<SimpleCommand>) -> Vec<SimpleCommand> {
    let mut balance: BTreeMap<Option<String>, isize> = BTreeMap::new();
    for command in &second {
        *balance.entry(command.name().map(str::to_owned)).or_default() += 1;
    }
    for command in first {
        *balance.entry(command.name().map(str::to_owned)).or_default() -= 1;
    }
    second
        .into_iter()
        .filter(|command| {
            let name = command.name().map(str::to_owned);
            balance.get(&name).is_some_and(|more| *more > 0) && !first.contains(command)
        })
        .collect()
}

#[cfg(test)]
mod tests;
