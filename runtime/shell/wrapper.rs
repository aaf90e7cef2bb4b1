//! Commands that run other commands: what they would run, and what stays in doubt about it.
//!
//! A wrapper's options are read by a table. An option that the table does not know, or a word that only the
//! running shell knows, makes it unclear where the inner command begins, and that is a doubt.

use super::word::Word;
use super::{Doubt, Redirection, RedirectionKind, SimpleCommand};

/// What a command would run besides itself.
#[derive(Debug, Default)]
pub(super) struct Look {
    /// Commands it would run.
    pub(super) inner: Vec<SimpleCommand>,
    /// Texts it would run as shell code.
    pub(super) texts: Vec<String>,
    /// Files it opens that are named like a redirection's.
    pub(super) redirections: Vec<Redirection>,
    pub(super) doubts: Vec<Doubt>,
    /// Whether it only hands on to `inner`.
    pub(super) hands_on: bool,
}

/// How a wrapper's arguments are laid out before the inner command.
struct Wrapper {
    names: &'static [&'static str],
    /// Letters of options without a value.
    flags: &'static str,
    /// Letters of options with a value.
    values: &'static str,
    long_flags: &'static [&'static str],
    long_values: &'static [&'static str],
    /// Operands between the options and the inner command.
    operands: usize,
    /// Whether `NAME=value` may stand before the inner command.
    assignments: bool,
    /// Whether it adds nothing that would need a rule of its own.
    hands_on: bool,
    /// Options whose value is the folder that the inner command starts in.
    folders: &'static [&'static str],
    /// Options whose value is a file that is written.
    writes: &'static [&'static str],
}

const PLAIN: Wrapper = Wrapper {
    names: &[],
    flags: "",
    values: "",
    long_flags: &[],
    long_values: &[],
    operands: 0,
    assignments: false,
    hands_on: false,
    folders: &[],
    writes: &[],
};

static WRAPPERS: &[Wrapper] = &[
    Wrapper { names: &["nohup", "builtin", "coproc"], hands_on: true, ..PLAIN },
    Wrapper { names: &["command"], flags: "p", hands_on: true, ..PLAIN },
    Wrapper {
        names: &["time"],
        flags: "pavq",
        values: "fo",
        long_flags: &["append", "verbose", "quiet", "portability"],
        long_values: &["format", "output"],
        hands_on: true,
        writes: &["o", "output"],
        ..PLAIN
    },
    Wrapper { names: &["nice"], values: "n", long_values: &["adjustment"], hands_on: true, ..PLAIN },
    Wrapper {
        names: &["timeout"],
        flags: "vfp",
        values: "ks",
        long_flags: &["foreground", "preserve-status", "verbose"],
        long_values: &["kill-after", "signal"],
        operands: 1,
        hands_on: true,
        ..PLAIN
    },
    Wrapper {
        names: &["env"],
        flags: "i0v",
        values: "uC",
        long_flags: &["ignore-environment", "null", "debug"],
        long_values: &["unset", "chdir"],
        assignments: true,
        hands_on: true,
        folders: &["C", "chdir"],
        ..PLAIN
    },
    Wrapper { names: &["stdbuf"], values: "ioe", long_values: &["input", "output", "error"], hands_on: true, ..PLAIN },
    Wrapper { names: &["setsid"], flags: "cfw", long_flags: &["ctty", "fork", "wait"], hands_on: true, ..PLAIN },
    Wrapper { names: &["ionice"], flags: "t", values: "cn", hands_on: true, ..PLAIN },
    Wrapper {
        names: &["sudo"],
        flags: "AbBEHknPS",
        values: "ugpCrtTUDRh",
        long_flags: &["askpass", "background", "preserve-env", "set-home", "non-interactive", "stdin"],
        long_values: &["user", "group", "prompt", "chdir", "host"],
        assignments: true,
        folders: &["D", "chdir"],
        ..PLAIN
    },
    Wrapper { names: &["doas"], flags: "n", values: "uC", ..PLAIN },
    Wrapper { names: &["exec"], flags: "cl", values: "a", ..PLAIN },
    Wrapper { names: &["busybox", "toybox"], ..PLAIN },
    Wrapper { names: &["chroot"], operands: 1, ..PLAIN },
    Wrapper { names: &["strace", "ltrace"], flags: "fqv", values: "eosp", writes: &["o"], ..PLAIN },
    Wrapper {
        names: &["xargs"],
        flags: "0rtpxo",
        values: "IELnPsda",
        long_flags: &["null", "no-run-if-empty", "verbose", "interactive", "exit", "open-tty"],
        long_values: &["max-args", "max-procs", "max-lines", "max-chars", "delimiter", "arg-file", "eof"],
        ..PLAIN
    },
    Wrapper {
        names: &["parallel"],
        flags: "0kmtuvX",
        values: "jIaNn",
        long_flags: &["keep-order", "null", "bar", "dry-run", "will-cite"],
        long_values: &["jobs", "arg-file"],
        ..PLAIN
    },
];

/// Commands that run or redefine others in ways that no table follows.
const INTERPRETERS: [&str; 20] = [
    "eval",
    "source",
    ".",
    "trap",
    "exec",
    "alias",
    "enable",
    "hash",
    "bind",
    "complete",
    "compgen",
    "mapfile",
    "readarray",
    "fc",
    "parallel",
    "watch",
    "su",
    "script",
    "flock",
    "ssh",
];

const SHELLS: [&str; 6] = ["sh", "bash", "dash", "ash", "zsh", "ksh"];

/// Commands that set variables named by their arguments.
const DECLARERS: [&str; 10] =
    ["export", "declare", "typeset", "local", "readonly", "read", "printf", "getopts", "unset", "let"];

/// Those of them whose `-n` makes a variable that stands for another one.
const REFERRERS: [&str; 3] = ["declare", "typeset", "local"];

/// Variables that decide which programs run or what code they load; the list cannot be complete.
const DECISIVE: [&str; 43] = [
    "PATH",
    "ENV",
    "BASH_ENV",
    "SHELL",
    "SHELLOPTS",
    "BASHOPTS",
    "PS0",
    "PS1",
    "PS2",
    "PS4",
    "CDPATH",
    "PROMPT_COMMAND",
    "EXECIGNORE",
    "PAGER",
    "MANPAGER",
    "EDITOR",
    "VISUAL",
    "BROWSER",
    "LESSOPEN",
    "LESSCLOSE",
    "PYTHONPATH",
    "PYTHONSTARTUP",
    "PYTHONHOME",
    "NODE_OPTIONS",
    "NODE_PATH",
    "PERL5LIB",
    "PERL5OPT",
    "PERL5DB",
    "RUBYLIB",
    "RUBYOPT",
    "JAVA_TOOL_OPTIONS",
    "_JAVA_OPTIONS",
    "CLASSPATH",
    "RUSTC",
    "RUSTC_WRAPPER",
    "MAKEFLAGS",
    "MAKEFILES",
    "TAR_OPTIONS",
    "RSYNC_RSH",
    "GCONV_PATH",
    "HOSTALIASES",
    "TERMINFO",
    "HOME",
];

/// Beginnings of such variables' names.
const DECISIVE_BEGINNINGS: [&str; 4] = ["LD_", "DYLD_", "GIT_", "BASH_FUNC_"];

/// Whether setting the variable can change which program or code runs.
pub(super) fn decides_what_runs(name: &str) -> bool {
    DECISIVE.contains(&name) || DECISIVE_BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
}

/// The variable's name in `NAME=value`, `NAME+=value` or `NAME[index]=value`.
pub(super) fn assigned_name(word: &str) -> Option<&str> {
    let (left, _) = word.split_once('=')?;
    let left = left.strip_suffix('+').unwrap_or(left);
    let name = left.split('[').next().unwrap_or(left);
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    (starts_well && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')).then_some(name)
}

/// What the command would run.
pub(super) fn look_into(command: &SimpleCommand) -> Look {
    let mut look = Look::default();
    let Some(full) = command.name() else {
        return look;
    };
    let name = full.rsplit('/').next().unwrap_or(full);
    if INTERPRETERS.contains(&name) {
        look.doubts.push(Doubt::Interpreter { name: name.to_owned() });
    }
    if DECLARERS.contains(&name) {
        declare(command, name, &mut look);
    }
    let looks_up = name == "command" && command.words.get(1).is_some_and(|word| matches!(word.written(), "-v" | "-V"));
    if looks_up {
        return look;
    }
    if let Some(wrapper) = WRAPPERS.iter().find(|wrapper| wrapper.names.contains(&name)) {
        unwrap(command, name, wrapper, &mut look);
    } else if SHELLS.contains(&name) {
        shell(command, name, &mut look);
    } else {
        match name {
            "find" => find(command, &mut look),
            "eval" => eval(command, &mut look),
            "trap" => trap(command, &mut look),
            "alias" => look.texts.extend(
                command.words.iter().skip(1).filter_map(|word| Some(word.known()?.split_once('=')?.1.to_owned())),
            ),
            "tee" => tee(command, &mut look),
            "dd" => dd(command, &mut look),
            _ => {}
        }
    }
    look
}

/// Variables that a command sets and that decide what runs; a reference to another variable could set any.
fn declare(command: &SimpleCommand, name: &str, look: &mut Look) {
    let mut refers = false;
    for word in command.words.iter().skip(1) {
        let written = word.written();
        // `-vPATH` is `-v PATH`, and `-n` may stand among other letters.
        let letters = written.strip_prefix('-').filter(|letters| !letters.starts_with('-'));
        refers |= REFERRERS.contains(&name) && letters.is_some_and(|letters| letters.contains('n'));
        let glued = letters.and_then(|letters| letters.get(1..)).filter(|rest| !rest.is_empty());
        let variable = glued.or_else(|| assigned_name(written)).unwrap_or(written);
        if decides_what_runs(variable) || (refers && letters.is_none()) {
            look.doubts.push(Doubt::Environment { name: variable.to_owned() });
        }
    }
}

fn unwrap(command: &SimpleCommand, name: &str, wrapper: &Wrapper, look: &mut Look) {
    let Some(inside) = Inside::of(&command.words, wrapper, look) else {
        look.doubts.push(Doubt::Options { name: name.to_owned() });
        return;
    };
    for (option, value) in &inside.values {
        if wrapper.folders.contains(&option.as_str()) {
            look.doubts.push(Doubt::Folder { name: name.to_owned() });
        }
        if wrapper.writes.contains(&option.as_str()) {
            written(value, look);
        }
    }
    let mut inner: Vec<Word> = command.words[inside.begins_at..].to_vec();
    if inner.is_empty() {
        return;
    }
    match name {
        "xargs" => fill_in(&inside.values, &mut inner),
        "parallel" => {
            let end = inner.iter().position(|word| word.written().starts_with(":::")).unwrap_or(inner.len());
            inner.truncate(end);
            if let [Word::Known(text)] = inner.as_slice() {
                look.texts.push(text.clone());
                return;
            }
            inner.push(Word::anything("{}"));
        }
        _ => {}
    }
    look.hands_on = wrapper.hands_on;
    let assignments = command.assignments.iter().cloned().chain(inside.assignments).collect();
    look.inner.push(SimpleCommand { words: inner, assignments, hands_on: false });
}

/// A file that an option names; `strace` runs what stands behind a `|` or a `!` instead.
fn written(value: &Word, look: &mut Look) {
    match value.known().and_then(|text| text.strip_prefix(['|', '!'])) {
        Some(text) => look.texts.push(text.to_owned()),
        None => look.redirections.push(Redirection { target: value.clone(), kind: RedirectionKind::Write }),
    }
}

/// `xargs` puts what it reads at the end, or wherever the mark of `-I` stands.
fn fill_in(values: &[(String, Word)], inner: &mut Vec<Word>) {
    match values.iter().rev().find(|(option, _)| option == "I") {
        Some((_, mark)) => {
            for word in inner.iter_mut() {
                if mark.known().is_none_or(|mark| word.written().contains(mark)) {
                    *word = Word::anything(word.written());
                }
            }
        }
        None => inner.push(Word::anything("…")),
    }
}

/// What stands in front of a wrapper's inner command.
#[derive(Default)]
struct Inside {
    /// The index of the inner command's name, or the number of words when there is none.
    begins_at: usize,
    /// The options that have a value, by letter or long name.
    values: Vec<(String, Word)>,
    /// The variables that are set for the inner command, by name.
    assignments: Vec<String>,
}

impl Inside {
    /// None when it is not clear where the inner command begins.
    fn of(words: &[Word], wrapper: &Wrapper, look: &mut Look) -> Option<Self> {
        let mut inside = Self::default();
        let mut at = 1;
        while let Some(word) = words.get(at) {
            let word = word.known()?;
            at += 1;
            if word == "--" {
                break;
            }
            let (option, attached) = if let Some(long) = word.strip_prefix("--") {
                let (option, value) =
                    long.split_once('=').map_or((long, None), |(option, value)| (option, Some(value)));
                if wrapper.long_flags.contains(&option) {
                    continue;
                }
                (wrapper.long_values.contains(&option).then(|| option.to_owned())?, value)
            } else if word.len() > 1 && word.starts_with('-') {
                match valued_letter(&word[1..], wrapper)? {
                    Some((letter, rest)) => (letter.to_string(), Some(rest).filter(|rest| !rest.is_empty())),
                    None => continue,
                }
            } else {
                at -= 1;
                break;
            };
            let value = match attached {
                Some(value) => Some(Word::Known(value.to_owned())),
                None => {
                    at += 1;
                    words.get(at - 1).cloned()
                }
            };
            inside.values.extend(value.map(|value| (option, value)));
        }
        while wrapper.assignments
            && let Some(name) = words.get(at).and_then(|word| assigned_name(word.written()))
        {
            if decides_what_runs(name) {
                look.doubts.push(Doubt::Environment { name: name.to_owned() });
            }
            inside.assignments.push(name.to_owned());
            at += 1;
        }
        for _ in 0..wrapper.operands {
            words.get(at)?.known()?;
            at += 1;
        }
        inside.begins_at = at.min(words.len());
        Some(inside)
    }
}

/// The letter of a cluster of short options that takes a value, with what is attached to it; none within when all
/// letters are flags, none at all when one is not known.
fn valued_letter<'c>(cluster: &'c str, wrapper: &Wrapper) -> Option<Option<(char, &'c str)>> {
    if wrapper.names == ["nice"] && cluster.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(None);
    }
    for (index, letter) in cluster.char_indices() {
        if wrapper.values.contains(letter) {
            return Some(Some((letter, &cluster[index + letter.len_utf8()..])));
        }
        if !wrapper.flags.contains(letter) {
            return None;
        }
    }
    Some(None)
}

/// `sh -c text`, or a shell that reads a script or its input.
fn shell(command: &SimpleCommand, name: &str, look: &mut Look) {
    let mut runs_text = false;
    let mut at = 1;
    while let Some(word) = command.words.get(at) {
        let Some(option) = word.known() else {
            look.doubts.push(Doubt::Options { name: name.to_owned() });
            return;
        };
        match option {
            "--version" | "--help" => return,
            "--" | "-" => {
                at += 1;
                break;
            }
            "--norc" | "--noprofile" | "--posix" | "--login" | "--verbose" => at += 1,
            _ if option.len() > 1 && option.starts_with(['-', '+']) => {
                let letters = &option[1..];
                if !letters.chars().all(|letter| "abcefhilmnoptuvxBCEHPT".contains(letter)) {
                    let input = letters.contains('s');
                    look.doubts.push(if input {
                        Doubt::Input { name: name.to_owned() }
                    } else {
                        Doubt::Options { name: name.to_owned() }
                    });
                    return;
                }
                runs_text |= letters.contains('c');
                at += 1 + letters.matches('o').count();
            }
            _ => break,
        }
    }
    match command.words.get(at) {
        Some(Word::Known(text)) if runs_text => look.texts.push(text.clone()),
        Some(word @ Word::Unknown { .. }) => {
            look.doubts.push(Doubt::CommandWord { text: word.written().to_owned() });
        }
        Some(Word::Known(script)) if script.starts_with("/dev/") || script.starts_with("/proc/") => {
            look.doubts.push(Doubt::Input { name: name.to_owned() });
        }
        Some(Word::Known(_)) => {}
        None => look.doubts.push(Doubt::Input { name: name.to_owned() }),
    }
}

fn eval(command: &SimpleCommand, look: &mut Look) {
    let words: Option<Vec<&str>> = command.words.iter().skip(1).map(Word::known).collect();
    match words {
        Some(words) => look.texts.push(words.join(" ")),
        None => look.doubts.push(Doubt::CommandWord { text: "eval".to_owned() }),
    }
}

fn trap(command: &SimpleCommand, look: &mut Look) {
    match command.words.iter().skip(1).find(|word| word.written() != "--") {
        Some(Word::Known(text)) if !text.starts_with('-') => look.texts.push(text.clone()),
        Some(Word::Unknown { written, .. }) => look.doubts.push(Doubt::CommandWord { text: written.clone() }),
        _ => {}
    }
}

/// `find` runs what follows `-exec`, removes with `-delete`, and writes with `-fprint`.
fn find(command: &SimpleCommand, look: &mut Look) {
    let mut words = command.words.iter().skip(1);
    while let Some(word) = words.next() {
        match word {
            Word::Unknown { expands: true, .. } => look.doubts.push(Doubt::Options { name: "find".to_owned() }),
            Word::Unknown { .. } => {}
            Word::Known(action) => match action.as_str() {
                "-exec" | "-execdir" | "-ok" | "-okdir" => {
                    let inner = words.by_ref().take_while(|word| !matches!(word.written(), ";" | "+"));
                    let inner: Vec<Word> = inner
                        .map(|word| if word.written().contains("{}") { Word::anything("{}") } else { word.clone() })
                        .collect();
                    if !inner.is_empty() {
                        look.inner.push(SimpleCommand { words: inner, ..SimpleCommand::default() });
                    }
                }
                "-delete" => {
                    let words = vec![Word::Known("rm".to_owned()), Word::anything("{}")];
                    look.inner.push(SimpleCommand { words, ..SimpleCommand::default() });
                }
                "-fprint" | "-fprint0" | "-fprintf" | "-fls" => {
                    let target = words.next().cloned();
                    look.redirections.extend(target.map(|target| Redirection { target, kind: RedirectionKind::Write }));
                }
                _ => {}
            },
        }
    }
}

/// `tee` writes its operands as a redirection would.
fn tee(command: &SimpleCommand, look: &mut Look) {
    let is_append = |word: &Word| matches!(word.known(), Some("-a" | "--append" | "-ai" | "-ia"));
    let kind = if command.words.iter().any(is_append) { RedirectionKind::Append } else { RedirectionKind::Write };
    let operands = command.words.iter().skip(1).filter(|word| !word.written().starts_with('-'));
    look.redirections.extend(operands.map(|target| Redirection { target: target.clone(), kind }));
}

/// `dd` writes what `of=` names.
fn dd(command: &SimpleCommand, look: &mut Look) {
    let targets = command.words.iter().filter_map(|word| match word {
        Word::Known(text) => Some(Word::Known(text.strip_prefix("of=")?.to_owned())),
        Word::Unknown { written, shape, expands } => {
            let shape = shape.strip_prefix("of=")?.to_owned();
            Some(Word::Unknown { written: written.clone(), shape, expands: *expands })
        }
    });
    look.redirections.extend(targets.map(|target| Redirection { target, kind: RedirectionKind::Write }));
}

#[cfg(test)]
mod tests {
    use super::{assigned_name, decides_what_runs, look_into};
    use crate::shell::SimpleCommand;
    use crate::shell::word::Word;

    fn known(words: &[&str]) -> SimpleCommand {
        let words = words.iter().map(|word| Word::Known((*word).to_owned())).collect();
        SimpleCommand { words, ..SimpleCommand::default() }
    }

    fn inner(words: &[&str]) -> Vec<String> {
        let look = look_into(&known(words));
        let inner =
            look.inner.iter().map(|command| command.words.iter().map(Word::written).collect::<Vec<_>>().join(" "));
        inner.chain(look.texts).chain(look.doubts.iter().map(|doubt| format!("? {doubt}"))).collect()
    }

    #[test]
    fn finds_where_the_inner_command_begins() {
        assert_eq!(inner(&["env", "-u", "A", "B=1", "nc", "x"]), ["nc x"]);
        assert_eq!(inner(&["timeout", "-k", "1", "--signal=9", "5", "nc", "x"]), ["nc x"]);
        assert_eq!(inner(&["nice", "-10", "nc"]), ["nc"]);
        assert_eq!(inner(&["sudo", "-nu", "me", "nc", "-l"]), ["nc -l"]);
        assert_eq!(inner(&["xargs", "-0", "-n1", "rm", "-f"]), ["rm -f …"]);
        for mark in [&["-I", "%"][..], &["-0I%"], &["-r0I", "%"], &["-L1", "-I%"]] {
            let words = [&["xargs"], mark, &["sh", "-c", "% x"]].concat();
            let look = look_into(&known(&words));
            assert!(matches!(look.inner[0].words[2], Word::Unknown { .. }), "{words:?}");
        }
        assert_eq!(inner(&["strace", "-fo", "|nc x", "ls"]), ["ls", "nc x"]);
        assert_eq!(inner(&["find", ".", "-exec", "rm", "{}", ";", "-delete"]), ["rm {}", "rm {}"]);
        assert_eq!(inner(&["bash", "-euo", "pipefail", "-c", "nc x"]), ["nc x"]);
        assert_eq!(inner(&["/usr/bin/env", "-S", "nc x"]).len(), 1);
        assert!(inner(&["env", "--split-string=nc"])[0].starts_with('?'));
        assert!(inner(&["bash"])[0].starts_with('?'));
        assert!(inner(&["env", "PATH=/tmp", "git"]).iter().any(|found| found.starts_with("? ")));
    }

    #[test]
    fn what_is_declared_may_decide_what_runs() {
        for words in [
            &["declare", "PATH=/tmp"][..],
            &["declare", "-n", "ref=PATH"],
            &["local", "-rn", "ref=x"],
            &["typeset", "-n", "ref"],
            &["printf", "-vPATH", "/tmp"],
            &["printf", "-v", "PATH", "/tmp"],
            &["read", "-r", "PATH"],
            &["read", "-aLD_PRELOAD"],
        ] {
            assert!(inner(words).iter().any(|found| found.starts_with("? setting")), "{words:?} {:?}", inner(words));
        }
        for words in
            [&["declare", "-i", "n=1"][..], &["export", "-n", "A"], &["read", "-n", "1", "A"], &["declare", "-n"]]
        {
            assert_eq!(inner(words), Vec::<String>::new(), "{words:?}");
        }
    }

    #[test]
    fn names_of_assignments() {
        assert_eq!(assigned_name("A=1"), Some("A"));
        assert_eq!(assigned_name("A+=1"), Some("A"));
        assert_eq!(assigned_name("A[0]=1"), Some("A"));
        assert_eq!(assigned_name("--a=1"), None);
        assert!(decides_what_runs("LD_PRELOAD") && decides_what_runs("PATH") && !decides_what_runs("FOO"));
    }
}
