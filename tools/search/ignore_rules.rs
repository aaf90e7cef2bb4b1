//! The rules of one ignore file, meaning what git means by them.
//!
//! Matching is done by the `ignore` crate; its pattern language is a little larger and a little smaller than
//! git's, so every line is rewritten first: braces are plain characters, classes are spelt out, a run of stars
//! crosses folders only where it stands alone between slashes, and a line that git can never match is dropped.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};

/// Most lines of an ignore file that are taken.
pub const RULE_LINES_MAX: usize = 10_000;
/// Longest line of an ignore file that is taken, in bytes; a longer one matches no path that can exist.
pub const RULE_LINE_BYTES_MAX: usize = 8 * 1024;

/// The rules of one file, for the folder that it governs.
#[derive(Debug, Clone)]
pub struct IgnoreRules {
    matcher: Gitignore,
}

/// What the rules say of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing.
    Silent,
    /// It stays out.
    Hide,
    /// It stays in, whatever an outer file says.
    Show,
}

impl IgnoreRules {
    /// Reads the content of an ignore file; also the number of lines that could not be taken. None when no line
    /// can match anything.
    pub fn parse(content: &[u8]) -> (Option<Self>, usize) {
        let content = content.strip_prefix(b"\xef\xbb\xbf").unwrap_or(content);
        let mut builder = GitignoreBuilder::new("");
        builder.allow_unclosed_class(false);
        let mut faults = 0;
        let mut lines = content.split(|byte| *byte == b'\n');
        for line in lines.by_ref().take(RULE_LINES_MAX) {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let text = match std::str::from_utf8(line) {
                Ok(text) if line.len() <= RULE_LINE_BYTES_MAX => text,
                _ => {
                    faults += 1;
                    continue;
                }
            };
            if text.starts_with('#') {
                continue;
            }
            faults += rewrite(text).iter().filter(|rule| builder.add_line(None, rule).is_err()).count();
        }
        faults += lines.filter(|line| !line.is_empty()).count();
        match builder.build() {
            Ok(matcher) if matcher.is_empty() => (None, faults),
            Ok(matcher) => (Some(Self { matcher }), faults),
            Err(_) => (None, faults + 1),
        }
    }

    /// Judges a path, given relative to the folder that the rules govern.
    pub fn verdict(&self, relative: &[u8], is_folder: bool) -> Verdict {
        match self.matcher.matched(Path::new(OsStr::from_bytes(relative)), is_folder) {
            Match::None => Verdict::Silent,
            Match::Ignore(_) => Verdict::Hide,
            Match::Whitelist(_) => Verdict::Show,
        }
    }
}

/// Stands in a rewritten line for "nothing, or anything up to a slash"; no line holds a NUL.
const SPLIT: char = '\0';

/// A line of git's language in the crate's, as one or two lines; none when git can never match it.
fn rewrite(line: &str) -> Vec<String> {
    match rewrite_line(line) {
        None => Vec::new(),
        Some(rule) if rule.contains(SPLIT) => {
            vec![rule.replacen(SPLIT, "", 1), rule.replacen(SPLIT, "*/**/", 1)]
        }
        Some(rule) => vec![rule],
    }
}

fn rewrite_line(line: &str) -> Option<String> {
    let mut out = String::with_capacity(line.len() + 8);
    let chars: Vec<char> = line.chars().collect();
    // A slash anchors a rule, even one that stands in a class, where it can match nothing.
    let anchors = |rule: &str| rule.strip_suffix('/').unwrap_or(rule).contains('/');
    let mut plain = true;
    let mut at = 0;
    while at < chars.len() {
        let plain_before = plain;
        plain = plain && !matches!(chars[at], '\\' | '*' | '?' | '[');
        match chars[at] {
            SPLIT => return None,
            '\\' => {
                out.push('\\');
                out.push(*chars.get(at + 1)?);
                at += 2;
            }
            brace @ ('{' | '}') => {
                out.push('\\');
                out.push(brace);
                at += 1;
            }
            '*' => {
                let run = run_of_stars(&chars[at..]);
                let opens = at == 0 || chars[at - 1] == '/' || (at == 1 && chars[0] == '!');
                let crosses = run > 1 && closes(&chars[at + run..]);
                // Git compares the plain start of an anchored rule first and reads the rest as a rule of its own, so
                // stars right behind it cross folders too.
                if crosses && !opens && plain_before && anchors(line) {
                    at += run;
                    while chars.get(at) == Some(&'/') {
                        let more = run_of_stars(&chars[at + 1..]);
                        if more < 2 || !closes(&chars[at + 1 + more..]) {
                            break;
                        }
                        at += 1 + more;
                    }
                    if is_end(&chars[at..]) {
                        out.push_str("{*,*/**}");
                    } else {
                        out.push(SPLIT);
                        at += if chars[at] == '\\' { 2 } else { 1 };
                    }
                } else {
                    out.push_str(if crosses && opens { "**" } else { "*" });
                    at += run;
                }
            }
            '[' => {
                let (class, next) = read_class(&chars, at + 1)?;
                class.write(&mut out)?;
                at = next;
            }
            c => {
                out.push(c);
                at += 1;
            }
        }
    }
    if anchors(line) && !anchors(&out) {
        out.insert(usize::from(out.starts_with('!')), '/');
    }
    Some(out)
}

fn run_of_stars(chars: &[char]) -> usize {
    chars.iter().take_while(|c| **c == '*').count()
}

/// Whether nothing of the rule follows: a slash at the end only asks for folders, blanks are cut off.
fn is_end(rest: &[char]) -> bool {
    rest.strip_prefix(&['/']).unwrap_or(rest).iter().all(|c| *c == ' ')
}

/// Whether a run of stars with this behind it stands alone up to the next slash.
fn closes(rest: &[char]) -> bool {
    is_end(rest) || matches!(rest, ['/', ..] | ['\\', '/', ..])
}

/// A character class: single characters, for only ASCII can stand in a range.
#[derive(Default)]
struct Class {
    negated: bool,
    members: std::collections::BTreeSet<char>,
}

/// Reads a class from the place after its bracket; also the place after its end. None when it has no end or names
/// an unknown kind of character: git lets the whole pattern fail then.
fn read_class(chars: &[char], start: usize) -> Option<(Class, usize)> {
    let mut class = Class::default();
    let mut at = start;
    if matches!(chars.get(at), Some('!' | '^')) {
        class.negated = true;
        at += 1;
    }
    let mut before: Option<char> = None;
    let mut first = true;
    loop {
        let here = *chars.get(at)?;
        if here == ']' && !first {
            return Some((class, at + 1));
        }
        first = false;
        let ranged = before.filter(|_| here == '-' && !matches!(chars.get(at + 1), None | Some(']')));
        if here == '\\' {
            let escaped = *chars.get(at + 1)?;
            class.members.insert(escaped);
            before = Some(escaped);
            at += 2;
        } else if let Some(low) = ranged {
            let escaped = chars[at + 1] == '\\';
            let high = *chars.get(at + 1 + usize::from(escaped))?;
            if low.is_ascii() && high.is_ascii() {
                class.members.extend(low..=high);
            }
            before = None;
            at += 2 + usize::from(escaped);
        } else if here == '[' && chars.get(at + 1) == Some(&':') {
            let end = at + 2 + chars[at + 2..].iter().position(|c| *c == ']')?;
            if end > at + 2 && chars[end - 1] == ':' {
                let name: String = chars[at + 2..end - 1].iter().collect();
                let kind = named_class(&name)?;
                class.members.extend((0..128_u8).filter(kind).map(char::from));
                before = None;
                at = end + 1;
            } else {
                class.members.insert('[');
                before = Some('[');
                at += 1;
            }
        } else {
            class.members.insert(here);
            before = Some(here);
            at += 1;
        }
    }
}

fn named_class(name: &str) -> Option<fn(&u8) -> bool> {
    Some(match name {
        "alnum" => |byte| byte.is_ascii_alphanumeric(),
        "alpha" => |byte| byte.is_ascii_alphabetic(),
        "blank" => |byte| matches!(byte, b' ' | b'\t'),
        "cntrl" => |byte| byte.is_ascii_control(),
        "digit" => |byte| byte.is_ascii_digit(),
        "graph" => |byte| byte.is_ascii_graphic(),
        "lower" => |byte| byte.is_ascii_lowercase(),
        "print" => |byte| byte.is_ascii_graphic() || *byte == b' ',
        "punct" => |byte| byte.is_ascii_punctuation(),
        "space" => |byte| matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r'),
        "upper" => |byte| byte.is_ascii_uppercase(),
        "xdigit" => |byte| byte.is_ascii_hexdigit(),
        _ => return None,
    })
}

impl Class {
    /// Writes the class so that no member is taken for syntax; none when nothing is in it.
    fn write(mut self, out: &mut String) -> Option<()> {
        // A class never matches a slash; and a slash in the text would anchor the pattern.
        self.members.remove(&'/');
        if self.members.is_empty() {
            if self.negated {
                out.push('?');
                return Some(());
            }
            return None;
        }
        if let (false, [only]) = (self.negated, self.members.iter().copied().collect::<Vec<_>>().as_slice()) {
            out.push('\\');
            out.push(*only);
            return Some(());
        }
        out.push('[');
        if self.negated {
            out.push('!');
        }
        let (bracket, dash) = (self.members.remove(&']'), self.members.remove(&'-'));
        let (bang, caret) = (self.members.remove(&'!'), self.members.remove(&'^'));
        // A range of one is always plain: `!-!` at the start would still negate, so a letter range goes first.
        if bracket {
            out.push(']');
        }
        let rest = !self.members.is_empty();
        out.extend(self.members);
        if !bracket && !rest && !self.negated {
            // Only `!`, `^` and `-` are left: the dash may lead, or else the caret's neighbours hold its place.
            if dash {
                out.push('-');
            } else {
                out.truncate(out.len() - 1);
                out.push_str("{\\!,\\^}");
                return Some(());
            }
        }
        for (present, c) in [(bang, '!'), (caret, '^')] {
            if present {
                out.push(c);
            }
        }
        if dash && (bracket || rest || self.negated) {
            out.push('-');
        }
        out.push(']');
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::{IgnoreRules, Verdict};

    fn hides(rules: &str, path: &str, is_folder: bool) -> bool {
        IgnoreRules::parse(rules.as_bytes()).0.is_some_and(|r| r.verdict(path.as_bytes(), is_folder) == Verdict::Hide)
    }

    // Case C071: braces are plain characters, and so are escaped blanks, hashes and bangs.
    #[test]
    fn braces_and_escapes_are_literal() {
        assert!(hides("*.c{x}", "m.c{x}", false));
        assert!(!hides("*.c{x}", "m.cx", false));
        assert!(!hides("{a,b}", "a", false));
        for (rule, name) in [("a\\ ", "a "), ("\\#x", "#x"), ("\\!y", "!y")] {
            assert!(hides(rule, name, false), "{rule:?}");
        }
        assert!(!hides("a ", "a ", false));
        assert!(hides("a  ", "a", false));
    }

    #[test]
    fn classes_mean_what_git_means() {
        for (rule, hidden, shown) in [
            ("x[!b]y", "xcy", "xby"),
            ("x[^b]y", "xcy", "x/y"),
            ("x[]a]", "x]", "xb"),
            ("x[\\]-^]", "x^", "xa"),
            ("x[!^]z", "xaz", "x^z"),
            ("x[\\!^]z", "x!z", "xaz"),
            ("x[\\!\\-]z", "x-z", "xaz"),
            ("x[[:digit:]_]", "x7", "xd"),
            ("[a-c]", "b", "d"),
            ("x[!z-a]", "xq", "x"),
            ("x[,]", "x,", "x"),
            ("x[*]", "x*", "xy"),
        ] {
            assert!(hides(rule, hidden, false), "{rule} hides {hidden}");
            assert!(!hides(rule, shown, false), "{rule} shows {shown}");
        }
        for never in ["[abc", "x\\", "[[:nope:]]", "x[z-a]"] {
            assert!(!hides(never, never, false), "{never}");
        }
    }

    #[test]
    fn faults_are_counted() {
        let (rules, faults) = IgnoreRules::parse(b"\xff\xfe\n\xef\xbb\xbf*.o\n*.a\r\n");
        assert_eq!(faults, 1);
        assert_eq!(rules.unwrap().verdict(b"x.a", false), Verdict::Hide);
    }
}
