//! Headers of a unified diff: names of files, and the numbers of a hunk.
//!
//! What a name is follows from its text alone, never from which files are there, so that the rules of a session judge
//! exactly the names that are acted on.

/// Longest name that is taken, in bytes; in its quoted form each byte may have four.
const NAME_BYTES_MAX: usize = 4 * 4096;
/// Most digits of a number.
const DIGITS_MAX: usize = 15;

/// The numbers of a hunk's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stated {
    /// First line on the old side, from 1; the line before the place when `old_count` is 0.
    pub old_start: u64,
    /// Lines on the old side.
    pub old_count: u64,
    /// First line on the new side.
    pub new_start: u64,
    /// Lines on the new side.
    pub new_count: u64,
}

/// A name in a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Name {
    /// The null device: no file on this side.
    Null,
    /// A file.
    Path(Vec<u8>),
}

/// Prefixes that git puts before the names of the old and the new side.
const PREFIXES: [(&[u8], &[u8]); 5] = [(b"a/", b"b/"), (b"i/", b"w/"), (b"c/", b"i/"), (b"c/", b"w/"), (b"o/", b"w/")];

/// The name in the rest of a `---` or `+++` line: quoted, or up to a tab (a time of change follows it).
pub(super) fn name(rest: &[u8]) -> Option<Name> {
    if rest.len() > NAME_BYTES_MAX {
        return None;
    }
    if rest.first() == Some(&b'"') {
        return unquoted(rest).map(|(name, _)| Name::Path(name));
    }
    // Git puts a tab behind a name that ends with a blank.
    let name = match rest.iter().position(|byte| *byte == b'\t') {
        Some(tab) => &rest[..tab],
        None => rest.trim_ascii_end(),
    };
    match name {
        b"" => None,
        b"/dev/null" => Some(Name::Null),
        name => Some(Name::Path(name.to_vec())),
    }
}

/// Both names without the prefixes of git: `a/` and `b/`, also where one side is the null device.
pub(super) fn without_prefixes(old: Name, new: Name) -> (Name, Name) {
    match (&old, &new) {
        (Name::Path(one), Name::Path(other)) => {
            let bare = PREFIXES.iter().find_map(|(before, after)| {
                let bare = (one.strip_prefix(*before)?, other.strip_prefix(*after)?);
                // The letters that are less usual count only where the names are the same behind them.
                (*before == b"a/" || bare.0 == bare.1).then_some(bare)
            });
            let bare = bare.map(|(one, other)| (Name::Path(one.to_vec()), Name::Path(other.to_vec())));
            bare.unwrap_or((old, new))
        }
        (Name::Null, Name::Path(other)) => {
            let bare = other.strip_prefix(b"b/").map(|bare| Name::Path(bare.to_vec()));
            (Name::Null, bare.unwrap_or(new))
        }
        (Name::Path(one), Name::Null) => {
            let bare = one.strip_prefix(b"a/").map(|bare| Name::Path(bare.to_vec()));
            (bare.unwrap_or(old), Name::Null)
        }
        (Name::Null, Name::Null) => (old, new),
    }
}

/// The names of a `diff --git` line, for files without hunks: both the same behind their prefixes.
pub(super) fn git_names(rest: &[u8]) -> (Option<Name>, Option<Name>) {
    let rest = rest.strip_suffix(b"\r").unwrap_or(rest);
    if rest.len() > 2 * NAME_BYTES_MAX {
        return (None, None);
    }
    let both = |old: &[u8], new: &[u8]| {
        let (old, new) = without_prefixes(Name::Path(old.to_vec()), Name::Path(new.to_vec()));
        (old == new).then_some((Some(old), Some(new)))
    };
    let found = if rest.first() == Some(&b'"') {
        unquoted(rest).and_then(|(old, behind)| {
            let (new, _) = unquoted(behind.strip_prefix(b" ")?)?;
            both(&old, &new)
        })
    } else {
        // Names may hold blanks: the one in the middle parts them, for both are as long.
        let middle = rest.len() / 2;
        (rest.get(middle) == Some(&b' ')).then(|| both(&rest[..middle], &rest[middle + 1..])).flatten()
    };
    found.unwrap_or((None, None))
}

/// Permission bits of a plain file in git's form; none for links, submodules and anything else.
pub(super) fn mode(text: &[u8]) -> Option<u32> {
    match text.trim_ascii_end() {
        b"100644" => Some(0o644),
        b"100755" => Some(0o755),
        _ => None,
    }
}

/// The numbers of a hunk's header and what stands behind them; none for a header without numbers.
pub(super) fn hunk(line: &[u8]) -> Result<(Option<Stated>, &[u8]), &'static str> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let behind = &line[2..];
    let rest = behind.trim_ascii_start();
    if rest.first() != Some(&b'-') || !rest.get(1).is_some_and(u8::is_ascii_digit) {
        // Without numbers the text names a place; a second @@ ends it, where there is one.
        let scope = rest.strip_suffix(b"@@").unwrap_or(rest);
        return Ok((None, scope.trim_ascii()));
    }
    let wrong = "is no hunk header; write @@ -LINE,COUNT +LINE,COUNT @@";
    let (old_start, old_count, rest) = span(&rest[1..]).ok_or(wrong)?;
    let rest = rest.trim_ascii_start().strip_prefix(b"+").ok_or(wrong)?;
    let (new_start, new_count, rest) = span(rest).ok_or(wrong)?;
    let scope = rest.trim_ascii_start().strip_prefix(b"@@").ok_or(wrong)?;
    Ok((Some(Stated { old_start, old_count, new_start, new_count }), scope.trim_ascii()))
}

/// `start` or `start,count`; a count that is left out is one.
fn span(text: &[u8]) -> Option<(u64, u64, &[u8])> {
    let (start, rest) = number(text)?;
    match rest.strip_prefix(b",") {
        Some(rest) => number(rest).map(|(count, rest)| (start, count, rest)),
        None => Some((start, 1, rest)),
    }
}

fn number(text: &[u8]) -> Option<(u64, &[u8])> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if digits == 0 || digits > DIGITS_MAX {
        return None;
    }
    let number = text[..digits].iter().fold(0_u64, |number, digit| number * 10 + u64::from(digit - b'0'));
    Some((number, &text[digits..]))
}

/// A name in double quotes with the escapes of C, and what follows it.
fn unquoted(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut rest = text.strip_prefix(b"\"")?;
    let mut name = Vec::new();
    loop {
        let (first, behind) = rest.split_first()?;
        rest = behind;
        match first {
            b'"' => return (!name.is_empty()).then_some((name, rest)),
            b'\\' => {
                let (escape, behind) = rest.split_first()?;
                rest = behind;
                name.push(match escape {
                    b'a' => 7,
                    b'b' => 8,
                    b't' => b'\t',
                    b'n' => b'\n',
                    b'v' => 11,
                    b'f' => 12,
                    b'r' => b'\r',
                    b'"' | b'\\' => *escape,
                    b'0'..=b'3' => {
                        let low = rest.get(..2)?;
                        rest = &rest[2..];
                        let digit = |byte: u8| (b'0'..=b'7').contains(&byte).then(|| byte - b'0');
                        (escape - b'0') * 64 + digit(low[0])? * 8 + digit(low[1])?
                    }
                    _ => return None,
                });
            }
            byte => name.push(*byte),
        }
    }
}

/// A name as an argument of a call is written: quoted where it is no plain text.
pub(super) fn written(name: &[u8]) -> String {
    match std::str::from_utf8(name) {
        Ok(text) if !text.starts_with('"') => text.to_owned(),
        _ => {
            let mut quoted = String::from("\"");
            for byte in name {
                match byte {
                    b' '..=b'~' if !matches!(byte, b'"' | b'\\') => quoted.push(char::from(*byte)),
                    byte => {
                        let digits = [byte >> 6, byte >> 3 & 7, byte & 7];
                        quoted.push('\\');
                        quoted.extend(digits.map(|digit| char::from(b'0' + digit)));
                    }
                }
            }
            quoted.push('"');
            quoted
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Name, git_names, hunk, name, without_prefixes, written};
    use crate::builtin::patch::header::Stated;
    use crate::workspace_path::WorkspacePath;

    fn path(text: &str) -> Name {
        Name::Path(text.as_bytes().to_vec())
    }

    fn stated(line: &str) -> Option<Stated> {
        hunk(line.as_bytes()).unwrap().0
    }

    // Case C044: a count that is left out is one, and zero only where it is written.
    #[test]
    fn numbers_of_hunks() {
        let of = |old_start, old_count, new_start, new_count| Stated { old_start, old_count, new_start, new_count };
        assert_eq!(stated("@@ -1 +1 @@"), Some(of(1, 1, 1, 1)));
        assert_eq!(stated("@@ -0,0 +1 @@"), Some(of(0, 0, 1, 1)));
        assert_eq!(stated("@@ -3 +2,0 @@"), Some(of(3, 1, 2, 0)));
        assert_eq!(hunk(b"@@ -1,2 +3,4 @@ fn 9,9 +8 @@\r").unwrap(), (Some(of(1, 2, 3, 4)), &b"fn 9,9 +8 @@"[..]));
        assert_eq!(hunk(b"@@ [prod]").unwrap(), (None, &b"[prod]"[..]));
        assert_eq!(hunk(b"@@ [prod] @@").unwrap(), (None, &b"[prod]"[..]));
        assert_eq!(hunk(b"@@").unwrap(), (None, &b""[..]));
        for wrong in ["@@ -1,2", "@@ -1 +x @@", "@@ -1,+2 @@", "@@ -1 +2", "@@ -9999999999999999 +1 @@"] {
            assert!(hunk(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_lose_times_quotes_and_prefixes() {
        assert_eq!(name(b"a/f.txt\t2020-01-01 00:00:00\r"), Some(path("a/f.txt")));
        assert_eq!(name(b"/dev/null"), Some(Name::Null));
        assert_eq!(name(b"\"a/new\\nline\\303\\251\""), Some(path("a/new\nline\u{e9}")));
        assert_eq!((name(b""), name(b"\"open"), name(b"\"\\9\"")), (None, None, None));
        let bare = |old: &str, new: &str| without_prefixes(path(old), path(new));
        assert_eq!(bare("a/f", "b/f"), (path("f"), path("f")));
        assert_eq!(bare("a/f", "b/g"), (path("f"), path("g")));
        assert_eq!(bare("i/f", "w/f"), (path("f"), path("f")));
        assert_eq!(bare("i/f", "w/g"), (path("i/f"), path("w/g")));
        assert_eq!(bare("b/f", "b/f"), (path("b/f"), path("b/f")), "a folder that is called so");
        assert_eq!(without_prefixes(Name::Null, path("b/f")), (Name::Null, path("f")));
        assert_eq!(without_prefixes(path("a/f"), Name::Null), (path("f"), Name::Null));
        assert_eq!(git_names(b"a/one file b/one file"), (Some(path("one file")), Some(path("one file"))));
        assert_eq!(git_names(b"\"a/\\\"\" \"b/\\\"\"").0, Some(path("\"")));
        assert_eq!(git_names(b"a/x b/y"), (None, None));
    }

    #[test]
    fn written_names_come_back() {
        for bytes in [&b"plain/name"[..], b"\"quoted\"", b"bad\xff", b"new\nline"] {
            let read = WorkspacePath::parse(&written(bytes), "").unwrap();
            assert_eq!(read.as_bytes(), bytes);
        }
    }
}
