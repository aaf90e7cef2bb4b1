//! A path inside a workspace: names below the root, never above it, whatever the text said.
//!
//! A path is kept as bytes, for names need not be UTF-8. Its printed form is reversible: a path with control
//! characters, a quote, a backslash, leading or trailing blanks or bytes that are not UTF-8 is printed C-quoted
//! (`"new\nline.txt"`, `"bad\377.txt"`), and [`WorkspacePath::parse`] takes that form back.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use thiserror::Error;

/// Longest path that is taken, in bytes (Linux allows no longer one).
pub const PATH_BYTES_MAX: usize = 4096;

/// Names below the root of a workspace, joined by `/`; empty for the root. Orders by bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkspacePath(Box<[u8]>);

/// Why a text is not a path inside a workspace.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PathError {
    /// No text at all.
    #[error("the path is empty; use \".\" for the workspace itself")]
    Empty,
    /// Longer than any file system takes.
    #[error("the path has {bytes} bytes; at most {PATH_BYTES_MAX} are taken")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// It climbs above the root.
    #[error("{path} leaves the workspace; use a path inside it")]
    Outside {
        /// As it was written.
        path: String,
    },
    /// It holds a NUL.
    #[error("the path holds a NUL byte")]
    Nul,
    /// It is a URL.
    #[error("{path} is a URL; give the path alone, from the workspace on")]
    Url {
        /// As it was written.
        path: String,
    },
    /// A C-quoted form that does not end or holds an unknown escape.
    #[error("{path} is not a well-formed quoted path")]
    Quoting {
        /// As it was written.
        path: String,
    },
}

impl WorkspacePath {
    /// The root.
    pub fn root() -> Self {
        Self(Box::default())
    }

    /// Reads a path as a caller writes it: `/` or `\` never matters at the end, `.` and `a/../b` are folded, a
    /// C-quoted form is taken back. An absolute path is taken only when it starts with `display_root`.
    ///
    /// # Errors
    /// [`PathError`], also for a path that climbs above the root at any point.
    pub fn parse(text: &str, display_root: &str) -> Result<Self, PathError> {
        if text.trim().is_empty() {
            return Err(PathError::Empty);
        }
        if text.len() > PATH_BYTES_MAX {
            return Err(PathError::TooLong { bytes: text.len() });
        }
        // Taken as names it would make a folder called "file:".
        if text.get(..7).is_some_and(|start| start.eq_ignore_ascii_case("file://")) {
            return Err(PathError::Url { path: text.to_owned() });
        }
        let unquoted = if text.len() > 1 && text.starts_with('"') && text.ends_with('"') {
            unquote(&text[1..text.len() - 1]).ok_or_else(|| PathError::Quoting { path: text.to_owned() })?
        } else {
            text.as_bytes().to_vec()
        };
        if unquoted.contains(&0) {
            return Err(PathError::Nul);
        }
        let below = below_root(&unquoted, display_root);
        let below = below.ok_or_else(|| PathError::Outside { path: text.to_owned() })?;
        let mut names: Vec<&[u8]> = Vec::new();
        for name in below.split(|byte| *byte == b'/') {
            match name {
                b"" | b"." => {}
                b".." => {
                    if names.pop().is_none() {
                        return Err(PathError::Outside { path: text.to_owned() });
                    }
                }
                name => names.push(name),
            }
        }
        Ok(Self(names.join(&b'/').into_boxed_slice()))
    }

    /// The path of one more name beneath this one; `name` must hold no `/`.
    #[must_use]
    pub fn child(&self, name: &OsStr) -> Self {
        // Exactly as long as it becomes: walks make one for every name.
        let mut bytes = Vec::with_capacity(self.0.len() + usize::from(!self.is_root()) + name.len());
        bytes.extend_from_slice(&self.0);
        if !bytes.is_empty() {
            bytes.push(b'/');
        }
        bytes.extend_from_slice(name.as_bytes());
        Self(bytes.into_boxed_slice())
    }

    /// A path from names that the file system itself gave.
    pub fn from_relative(path: &Path) -> Self {
        Self(path.as_os_str().as_bytes().into())
    }

    /// Whether it is the root.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The folder above; none for the root.
    pub fn parent(&self) -> Option<Self> {
        if self.is_root() {
            return None;
        }
        let end = self.0.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        Some(Self(self.0[..end].into()))
    }

    /// The last name; none for the root.
    pub fn name(&self) -> Option<&OsStr> {
        if self.is_root() {
            return None;
        }
        let start = self.0.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        Some(OsStr::from_bytes(&self.0[start..]))
    }

    /// The names, outermost first.
    pub fn names(&self) -> impl Iterator<Item = &OsStr> {
        self.0.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).map(OsStr::from_bytes)
    }

    /// Its bytes: names joined by `/`.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// As a relative path for the operating system; `.` for the root.
    pub fn as_path(&self) -> &Path {
        if self.is_root() { Path::new(".") } else { Path::new(OsStr::from_bytes(&self.0)) }
    }
}

impl fmt::Display for WorkspacePath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_root() {
            return out.write_str(".");
        }
        match std::str::from_utf8(&self.0) {
            Ok(text) if !needs_quoting(text) => out.write_str(text),
            _ => write_quoted(&self.0, out),
        }
    }
}

impl fmt::Debug for WorkspacePath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

/// A path from the root on: what follows the root where the path begins with it. None for an absolute path or an
/// address that begins with another one.
fn below_root<'p>(path: &'p [u8], display_root: &str) -> Option<&'p [u8]> {
    let root = display_root.trim_end_matches('/').as_bytes();
    // The root may be no folder of this machine but an address, such as that of a bucket.
    let scheme = display_root.find("://").map(|end| &display_root.as_bytes()[..end + 3]);
    let is_whole = path.starts_with(b"/") || scheme.is_some_and(|scheme| path.starts_with(scheme));
    if !is_whole {
        return Some(path);
    }
    path.strip_prefix(root).filter(|rest| !root.is_empty() && (rest.is_empty() || rest[0] == b'/'))
}

/// Blanks at the ends, quotes, backslashes, control and direction characters would be misread.
fn needs_quoting(text: &str) -> bool {
    text.starts_with(' ')
        || text.ends_with(' ')
        || text
            .chars()
            .any(|c| c.is_control() || matches!(c, '"' | '\\' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'))
}

fn write_quoted(bytes: &[u8], out: &mut fmt::Formatter<'_>) -> fmt::Result {
    out.write_str("\"")?;
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '"' => out.write_str("\\\"")?,
                '\\' => out.write_str("\\\\")?,
                '\n' => out.write_str("\\n")?,
                '\t' => out.write_str("\\t")?,
                '\r' => out.write_str("\\r")?,
                c if c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') => {
                    for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                        write!(out, "\\{byte:03o}")?;
                    }
                }
                c => write!(out, "{c}")?,
            }
        }
        for byte in chunk.invalid() {
            write!(out, "\\{byte:03o}")?;
        }
    }
    out.write_str("\"")
}

/// The bytes of a C-quoted text without its quotes; none when it is malformed.
fn unquote(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'"' => return None,
            b'\\' => match rest.next()? {
                b'n' => bytes.push(b'\n'),
                b't' => bytes.push(b'\t'),
                b'r' => bytes.push(b'\r'),
                b'"' => bytes.push(b'"'),
                b'\\' => bytes.push(b'\\'),
                high @ b'0'..=b'3' => {
                    let middle = rest.next().filter(|d| (b'0'..=b'7').contains(d))?;
                    let low = rest.next().filter(|d| (b'0'..=b'7').contains(d))?;
                    bytes.push((high - b'0') * 64 + (middle - b'0') * 8 + (low - b'0'));
                }
                _ => return None,
            },
            byte => bytes.push(byte),
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    use super::{PathError, WorkspacePath};

    fn parse(text: &str) -> Result<String, PathError> {
        WorkspacePath::parse(text, "/home/me/project").map(|path| path.to_string())
    }

    #[test]
    fn folds_what_is_harmless_and_refuses_what_climbs() {
        assert_eq!(parse("a/./b//c/"), Ok("a/b/c".into()));
        assert_eq!(parse("a/../b"), Ok("b".into()));
        assert_eq!(parse("."), Ok(".".into()));
        assert_eq!(parse("/home/me/project/src"), Ok("src".into()));
        assert_eq!(parse("/home/me/project"), Ok(".".into()));
        for outside in ["..", "a/../../b", "/etc/passwd", "/home/me/projector", "/"] {
            assert!(matches!(parse(outside), Err(PathError::Outside { .. })), "{outside}");
        }
        assert_eq!(parse("  "), Err(PathError::Empty));
        assert_eq!(parse("a\0b"), Err(PathError::Nul));
        assert!(matches!(parse(&"x".repeat(5000)), Err(PathError::TooLong { bytes: 5000 })));
    }

    #[test]
    fn an_address_can_be_the_root() {
        let parse = |text: &str| WorkspacePath::parse(text, "s3://data/p").map(|path| path.to_string());
        assert_eq!((parse("a/b"), parse("s3://data/p/a")), (Ok("a/b".into()), Ok("a".into())));
        assert_eq!(parse("s3://data/p"), Ok(".".into()));
        for outside in ["s3://data/q", "s3://data/pq", "s3://data", "/a", "s3://data/p/../q"] {
            assert!(matches!(parse(outside), Err(PathError::Outside { .. })), "{outside}");
        }
    }

    #[test]
    fn odd_names_have_a_printed_form_that_reads_back() {
        let names: [&[u8]; 7] =
            [b"bad\xff.txt", b"new\nline.txt", b" lead", b"-rf", b"say \"hi\"", b"back\\slash", b"\xe2\x80\xaetxt"];
        for name in names {
            let path = WorkspacePath::root().child(OsStr::from_bytes(name));
            let printed = path.to_string();
            assert!(!printed.contains('\n'), "{printed}");
            assert_eq!(WorkspacePath::parse(&printed, "/x").as_ref(), Ok(&path), "{printed}");
        }
        assert!(matches!(parse("\"open\\9\""), Err(PathError::Quoting { .. })));
    }

    #[test]
    fn parents_and_names() {
        let path = WorkspacePath::parse("a/b", "/").unwrap();
        assert_eq!(path.parent().unwrap().to_string(), "a");
        assert_eq!(path.name().unwrap(), "b");
        assert_eq!(path.parent().unwrap().parent(), Some(WorkspacePath::root()));
        assert_eq!(WorkspacePath::root().parent(), None);
    }
}
