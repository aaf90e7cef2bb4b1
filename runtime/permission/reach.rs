//! Which paths a command line visibly names, and whether a path rule could touch them.
//!
//! Only what is written can be seen: a path that a program builds itself, or that a variable holds as a whole, is
//! not. That is for the sandbox.

use std::borrow::Cow;

use crate::shell::word::Word;
use crate::shell::{CommandLine, SimpleCommand};

/// Most folders that a line may come to be in before a relative path is followed no further.
const FOLDERS_MAX: usize = 16;

/// Most pairs of places in two globs that are compared; more counts as an overlap.
const OVERLAP_STEPS_MAX: usize = 1 << 20;

/// Commands that only read the files they are given, so that rules about writing are not for them; not `less` and `xxd`,
/// which write files that they are given.
const READERS: [&str; 22] = [
    "cat",
    "head",
    "tail",
    "grep",
    "egrep",
    "fgrep",
    "rg",
    "ls",
    "wc",
    "more",
    "diff",
    "cmp",
    "stat",
    "file",
    "sha256sum",
    "md5sum",
    "cut",
    "od",
    "strings",
    "nl",
    "tac",
    "jq",
];

/// A path that a word names, or the glob of what it can become.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Named {
    /// This path, as written.
    Path(String),
    /// One of the paths that fit this glob.
    Shape(String),
}

/// Whether the command only reads.
pub(super) fn only_reads(command: &SimpleCommand) -> bool {
    command.name().is_some_and(|name| READERS.contains(&name.rsplit('/').next().unwrap_or(name)))
}

/// The paths that a command's words may name: whole words, what follows `=`, and what is glued to an option.
pub(super) fn named_paths(command: &SimpleCommand, folders: &[String]) -> Vec<Named> {
    let mut named = Vec::new();
    for (index, word) in command.words.iter().enumerate() {
        let (text, is_known) = match word {
            Word::Known(text) => (text.as_str(), true),
            // A variable as a whole could be anything, most often no path: not seen.
            Word::Unknown { shape, expands: true, .. } if shape == "**" => continue,
            Word::Unknown { shape, .. } => (shape.as_str(), false),
        };
        if index == 0 && !text.contains('/') {
            continue;
        }
        let glued = text.strip_prefix('-').filter(|rest| !rest.starts_with('-')).and_then(|rest| rest.get(1..));
        let assigned = text.split_once('=').map(|(_, value)| value);
        let whole = (!text.starts_with('-')).then_some(text);
        for part in [whole, glued, assigned].into_iter().flatten().filter(|part| !part.is_empty()) {
            // As `curl` and others name a file whose content they take.
            let part = part.strip_prefix('@').unwrap_or(part);
            let mut spellings = vec![part.to_owned()];
            if !part.starts_with(['/', '~']) {
                spellings.extend(folders.iter().map(|folder| format!("{folder}/{part}")));
            }
            if is_known {
                named.extend(spellings.into_iter().map(Named::Path));
            } else {
                // `$PWD/x` may be `x`.
                spellings.extend(part.strip_prefix("**/").map(str::to_owned));
                named.extend(spellings.into_iter().map(Named::Shape));
            }
        }
    }
    named
}

/// Folders that a line may come to be in.
#[derive(Debug, Default)]
pub(super) struct Folders {
    /// As far as they are known.
    pub(super) known: Vec<String>,
    /// Whether there are more than are followed.
    pub(super) is_cut: bool,
}

/// The folders that a line may come to be in. A change may fail, or count in a subshell alone, so each of them may stand
/// on any before it or on none.
pub(super) fn folders(line: &CommandLine) -> Folders {
    let mut folders = Folders::default();
    for command in line.simple_commands.iter().filter(|command| matches!(command.name(), Some("cd" | "pushd"))) {
        let Some(target) = folder_of(command) else { continue };
        let mut reached = vec![target.to_owned()];
        if !target.starts_with(['/', '~']) {
            reached.extend(folders.known.iter().map(|before| format!("{before}/{target}")));
        }
        for folder in reached {
            if folders.known.contains(&folder) {
                continue;
            }
            if folders.known.len() >= FOLDERS_MAX {
                folders.is_cut = true;
                break;
            }
            folders.known.push(folder);
        }
    }
    folders
}

/// The folder that a command changes into, when it is known.
fn folder_of(command: &SimpleCommand) -> Option<&str> {
    let mut words = command.words.iter().skip(1);
    loop {
        // Without a folder `cd` goes home; `pushd` swaps folders that are known already.
        let Some(word) = words.next() else { return (command.name() == Some("cd")).then_some("~") };
        match word.known()? {
            "--" => return words.next()?.known(),
            "-" => return None,
            option if option.starts_with(['-', '+']) => {}
            folder => return Some(folder),
        }
    }
}

/// A path without `.`, `..`, doubled `/` and a `file://` in front; `..` stays where it climbs out.
pub(super) fn folded(path: &str) -> Cow<'_, str> {
    let is_plain = |name: &str| !matches!(name, "" | "." | "..");
    if !path.starts_with("file://") && path.strip_prefix('/').unwrap_or(path).split('/').all(is_plain) {
        return Cow::Borrowed(path);
    }
    let path = path.strip_prefix("file://").unwrap_or(path);
    let absolute = path.starts_with('/');
    let mut names: Vec<&str> = Vec::new();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." if absolute && names.is_empty() => {}
            ".." if names.last().is_some_and(|last| *last != "..") => {
                names.pop();
            }
            name => names.push(name),
        }
    }
    Cow::Owned(match (absolute, names.is_empty()) {
        (true, _) => format!("/{}", names.join("/")),
        (false, true) => ".".to_owned(),
        (false, false) => names.join("/"),
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Exactly(char),
    One,
    Star,
    Anything,
}

/// Whether some path fits both globs. Says yes when in doubt.
pub(super) fn overlap(left: &str, right: &str) -> bool {
    let (left, right) = (steps(left), steps(right));
    let width = right.len() + 1;
    if (left.len() + 1).saturating_mul(width) > OVERLAP_STEPS_MAX {
        return true;
    }
    let mut seen = vec![false; (left.len() + 1) * width];
    let mut pending = vec![(0, 0)];
    while let Some((i, j)) = pending.pop() {
        if std::mem::replace(&mut seen[i * width + j], true) {
            continue;
        }
        if i == left.len() && j == right.len() {
            return true;
        }
        let (a, b) = (left.get(i).copied(), right.get(j).copied());
        if matches!(a, Some(Step::Star | Step::Anything)) {
            pending.push((i + 1, j));
        }
        if matches!(b, Some(Step::Star | Step::Anything)) {
            pending.push((i, j + 1));
        }
        if let (Some(a), Some(b)) = (a, b)
            && agree(a, b)
        {
            let stays = |step| matches!(step, Step::Star | Step::Anything);
            pending.push((i + usize::from(!stays(a)), j + usize::from(!stays(b))));
        }
    }
    false
}

/// Whether one character can be taken by both.
fn agree(a: Step, b: Step) -> bool {
    match (a, b) {
        (Step::Exactly(a), Step::Exactly(b)) => a == b,
        (Step::Exactly(c), Step::One | Step::Star) | (Step::One | Step::Star, Step::Exactly(c)) => c != '/',
        _ => true,
    }
}

fn steps(glob: &str) -> Vec<Step> {
    let glob = glob.strip_suffix(":*").map_or_else(|| glob.to_owned(), |prefix| format!("{prefix}**"));
    let mut rest = glob.trim_start_matches("./");
    let mut steps = Vec::new();
    while let Some(c) = rest.chars().next() {
        let behind = &rest[c.len_utf8()..];
        // Whatever is not clear to its end may become anything.
        let (step, next) = match c {
            '*' if behind.starts_with('*') => {
                // `**/` also covers no folder at all.
                let after = behind.trim_start_matches('*');
                (Step::Anything, after.strip_prefix('/').unwrap_or(after))
            }
            '*' => (Step::Star, behind),
            '?' => (Step::One, behind),
            '[' => class_end(behind).map_or((Step::Anything, ""), |end| (Step::One, &behind[end..])),
            '{' => group_end(behind).map_or((Step::Anything, ""), |end| (Step::Anything, &behind[end..])),
            '\\' => match behind.chars().next() {
                Some(escaped) => (Step::Exactly(escaped), &behind[escaped.len_utf8()..]),
                None => break,
            },
            c => (Step::Exactly(c), behind),
        };
        steps.push(step);
        rest = next;
    }
    steps
}

/// Where a class ends that has just begun; none when that is not clear: it has no end, or what is inside has a meaning of
/// its own in one of the two kinds of glob.
fn class_end(rest: &str) -> Option<usize> {
    let negation = usize::from(rest.starts_with(['!', '^']));
    // A `]` right at the beginning is a member.
    let (end, _) = rest[negation..].char_indices().skip(1).find(|(_, c)| *c == ']')?;
    let members = &rest[..negation + end];
    (!members.contains(['[', '\\', '/'])).then_some(negation + end + 1)
}

/// Where a list of alternatives ends that has just begun, with those inside of it; none when it has no end.
fn group_end(rest: &str) -> Option<usize> {
    let mut depth = 1_usize;
    let mut escaped = false;
    for (at, c) in rest.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(at + 1);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{Named, folded, folders, named_paths, overlap};
    use crate::shell::CommandLine;

    #[test]
    fn folds_spellings() {
        for (path, expected) in [
            ("./x/../.env", ".env"),
            ("a//b/", "a/b"),
            ("../x", "../x"),
            ("a/../../x", "../x"),
            ("/a/../../b", "/b"),
            ("file:///etc/passwd", "/etc/passwd"),
            ("", "."),
        ] {
            assert_eq!(folded(path), expected, "{path}");
        }
    }

    #[test]
    fn globs_overlap_or_not() {
        for (left, right) in [
            (".e?v", ".env"),
            ("*/.env", "**/.env"),
            ("**/.ssh/id_*", "**/.ssh/**"),
            (".env", "**/.env"),
            ("*", "{a,b}"),
            ("{a,{b,c}}/key", "b/key"),
            ("{a,{b,\\}}}/key", "}/key"),
            ("[]a]x", "ax"),
            ("[!]a]x", "bx"),
            ("[[:alpha:]]x", "ax"),
            ("[ax", "[ax"),
            ("{ax", "{ax"),
            ("***/key", "a/key"),
        ] {
            assert!(overlap(left, right) && overlap(right, left), "{left} {right}");
        }
        for (left, right) in [
            ("*.txt", "**/.env"),
            ("*.txt", "secrets/**"),
            ("a?", "b*"),
            ("**/.env", ".env.x"),
            ("[]a]x", "ay"),
            ("{a,{b,c}}x", "by"),
        ] {
            assert!(!overlap(left, right) && !overlap(right, left), "{left} {right}");
        }
    }

    #[test]
    fn paths_are_seen_where_they_are_written() {
        let line = CommandLine::parse("cd -P a && cd -- b; x -f.env --file=@c ./d $HOME/.ssh -v @e");
        assert_eq!(folders(&line).known, ["a", "b", "a/b"]);
        assert_eq!(folders(&CommandLine::parse("cd; cd -- ; cd -L; cd x; pushd")).known, ["~", "x", "~/x"]);
        let command = line.simple_commands.iter().find(|command| command.name() == Some("x")).unwrap();
        let named = named_paths(command, &[]);
        let path = |text: &str| Named::Path(text.to_owned());
        let shape = |text: &str| Named::Shape(text.to_owned());
        assert_eq!(named, [path(".env"), path("c"), path("./d"), shape("**/.ssh"), shape(".ssh"), path("e")]);
    }
}
