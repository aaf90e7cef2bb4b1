//! Matches paths against a pattern.
//!
//! `*`, `?` and classes stop at a slash, `**` crosses folders, `{a,b}` gives alternatives. A pattern without a slash
//! matches at any depth; one with a slash is read from the start of the search. A path segment in the pattern that
//! begins with a dot makes hidden names count.

use globset::{GlobBuilder, GlobMatcher};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use crate::workspace_path::WorkspacePath;

/// Longest pattern that is taken, in bytes.
pub const PATTERN_BYTES_MAX: usize = 4096;

/// A compiled pattern; paths are matched relative to the folder where the search starts.
#[derive(Debug, Clone)]
pub struct PathPattern {
    matcher: GlobMatcher,
    hidden: bool,
    base: Vec<String>,
    /// What every match ends with, where that is known.
    ending: Option<Vec<u8>>,
}

/// Why a pattern cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// Longer than [`PATTERN_BYTES_MAX`].
    #[error("the path pattern has {bytes} bytes; at most {PATTERN_BYTES_MAX} are taken")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// It climbs above the start of the search.
    #[error("the path pattern {pattern:?} holds `..`; give the folder as `path` and a pattern inside it")]
    Climbs {
        /// As written.
        pattern: String,
    },
    /// It is malformed.
    #[error("the path pattern {pattern:?} is malformed: {reason}; write `\\[` or `\\{{` for a plain bracket")]
    Malformed {
        /// As written.
        pattern: String,
        /// What is wrong.
        reason: String,
    },
}

impl PathPattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// [`PatternError`].
    pub fn new(pattern: &str, case_sensitive: bool) -> Result<Self, PatternError> {
        if pattern.len() > PATTERN_BYTES_MAX {
            return Err(PatternError::TooLong { bytes: pattern.len() });
        }
        if pattern.split('/').any(|segment| segment == "..") {
            return Err(PatternError::Climbs { pattern: pattern.to_owned() });
        }
        // `./x` and `/x` are x at the start of the search; `x/` is everything in x.
        let mut text = pattern;
        let mut anchored = false;
        while let Some(rest) = text.strip_prefix("./").or_else(|| text.strip_prefix('/')) {
            (text, anchored) = (rest, true);
        }
        let mut full = if anchored || text.contains('/') { text.to_owned() } else { format!("**/{text}") };
        if full.ends_with('/') || full.is_empty() {
            full.push_str("**");
        }
        let matcher = GlobBuilder::new(&full)
            .literal_separator(true)
            .backslash_escape(true)
            .case_insensitive(!case_sensitive)
            .build()
            .map_err(|error| PatternError::Malformed { pattern: pattern.to_owned(), reason: error.kind().to_string() })?
            .compile_matcher();
        let base = if case_sensitive { base_of(&full) } else { Vec::new() };
        // `**/x` also matches x alone, so a slash is not part of the ending.
        let ending = ending_of(&full);
        let ending = ending.rsplit(|byte| *byte == b'/').next().unwrap_or_default().to_vec();
        let plain_end = case_sensitive && !full.contains(['{', '}']);
        let ending = (plain_end && !ending.is_empty()).then_some(ending);
        Ok(Self { matcher, hidden: has_dot_segment(pattern), base, ending })
    }

    /// Whether a path matches; `start` is the folder where the search starts.
    pub fn matches(&self, path: &WorkspacePath, start: &WorkspacePath) -> bool {
        self.matches_bytes(path.as_bytes(), start)
    }

    /// As [`Self::matches`], for a path that stands as bytes.
    pub fn matches_bytes(&self, path: &[u8], start: &WorkspacePath) -> bool {
        let relative = relative(path, start);
        // Most paths of a tree end otherwise: cheaper than asking the matcher.
        self.ending.as_ref().is_none_or(|ending| relative.ends_with(ending))
            && self.matcher.is_match(Path::new(OsStr::from_bytes(relative)))
    }

    /// Whether names that begin with a dot are meant.
    pub fn wants_hidden(&self) -> bool {
        self.hidden
    }

    /// The folder that every match lies in.
    pub fn base(&self, start: &WorkspacePath) -> WorkspacePath {
        self.base.iter().fold(start.clone(), |folder, name| folder.child(name.as_ref()))
    }
}

/// A path without the folder where the search starts.
fn relative<'a>(path: &'a [u8], start: &WorkspacePath) -> &'a [u8] {
    match path.strip_prefix(start.as_bytes()) {
        Some([b'/', rest @ ..]) => rest,
        // A single file that was named as the start is matched by its name.
        Some([]) => path.rsplit(|byte| *byte == b'/').next().unwrap_or_default(),
        _ => path,
    }
}

/// What every match ends with: what stands behind the last character that is not plain.
fn ending_of(pattern: &str) -> Vec<u8> {
    // A bracket, a brace or a comma could stand in a class or in alternatives.
    let special = ['*', '?', '[', ']', '{', '}', '\\', ','];
    pattern.rsplit(special).next().unwrap_or_default().as_bytes().to_vec()
}

/// The folders that a pattern names plainly before anything else.
fn base_of(pattern: &str) -> Vec<String> {
    let segments: Vec<&str> = pattern.split('/').collect();
    let plain = |segment: &&&str| !segment.is_empty() && !segment.contains(['*', '?', '[', ']', '{', '}', '\\', ',']);
    // A brace could hold a slash, so nothing counts from the first segment with one on.
    let folders = &segments[..segments.len().saturating_sub(1)];
    folders.iter().take_while(plain).map(|segment| (*segment).to_owned()).collect()
}

/// Whether a segment of the pattern, or of one of its alternatives, begins with a dot.
fn has_dot_segment(pattern: &str) -> bool {
    let bytes = pattern.as_bytes();
    bytes.iter().enumerate().any(|(at, byte)| {
        let opens = at == 0 || matches!(bytes[at - 1], b'/' | b'{' | b',' | b'\\') || pattern[..at].ends_with("/[");
        let names = !matches!(bytes.get(at + 1), None | Some(b'/'));
        *byte == b'.' && names && (opens || (at == 1 && bytes[0] == b'['))
    })
}

#[cfg(test)]
mod tests {
    use super::{PathPattern, PatternError, has_dot_segment};
    use crate::search::twin::at;

    fn matches(pattern: &str, path: &str) -> bool {
        PathPattern::new(pattern, true).unwrap().matches(&at(path), &at("."))
    }

    // Case C074: one level is one level.
    #[test]
    fn stars_and_classes_stop_at_a_slash() {
        for (pattern, yes, no) in [
            ("src/*.txt", "src/a.txt", "src/a/b.txt"),
            ("src/a[!b]c", "src/axc", "src/a/c"),
            ("a[!b]c", "axc", "a/c"),
            ("src/a?c", "src/abc", "src/a/c"),
            ("src/a[+-0]c", "src/a.c", "src/a/c"),
            ("src/**", "src/x/y", "src"),
            ("src/**/*.rs", "src/a.rs", "a.rs"),
            ("*.rs", "x.rs", "x.RS"),
            ("{a,b/c}.md", "b/c.md", "c.md"),
        ] {
            assert!(matches(pattern, yes), "{pattern} {yes}");
            assert!(!matches(pattern, no), "{pattern} {no}");
        }
        assert!(PathPattern::new("*.RS", false).unwrap().matches(&at("x.rs"), &at(".")));
    }

    #[test]
    fn without_a_slash_any_depth_and_with_one_from_the_start() {
        assert!(matches("*.txt", "a/b/c.txt"));
        assert!(!matches("b/*.txt", "a/b/c.txt"));
        assert!(!matches("/c.txt", "a/c.txt"));
        assert!(matches("./c.txt", "c.txt"));
        assert!(matches("a/", "a/b/c"));
        let inner = PathPattern::new("b/*.txt", true).unwrap();
        assert!(inner.matches(&at("a/b/c.txt"), &at("a")));
        assert_eq!(inner.base(&at("a")).to_string(), "a/b");
        assert!(PathPattern::new("*.txt", true).unwrap().matches(&at("a/x.txt"), &at("a/x.txt")));
    }

    #[test]
    fn endings_are_only_a_shortcut() {
        use proptest::prelude::*;
        let pattern = prop::collection::vec(
            prop_oneof![
                "[ab/.]{1,2}",
                Just("*".into()),
                Just("**".into()),
                Just("?".into()),
                Just("[ab]".into()),
                Just("{a,b}".into()),
                Just("\\\\*".into()),
                Just("a,b".into()),
                Just("/".into())
            ],
            1..5,
        );
        proptest!(|(parts in pattern, path in "[ab.*,/]{1,8}")| {
            if let (Ok(pattern), Ok(path)) = (PathPattern::new(&parts.concat(), true), crate::workspace_path::WorkspacePath::parse(&path, "")) {
                let slow = PathPattern { ending: None, ..pattern.clone() };
                prop_assert_eq!(pattern.matches(&path, &at(".")), slow.matches(&path, &at(".")));
            }
        });
    }

    // Case C079: a dash or a bang at the start is a character.
    #[test]
    fn odd_starts_are_data() {
        assert!(matches("-f*", "-foo"));
        assert!(matches("!x", "!x"));
        assert!(!matches("!x", "y"));
    }

    // Case C075: a dot segment asks for hidden names.
    #[test]
    fn dot_segments_are_seen() {
        for yes in [".github/workflows/*.yml", "**/.env*", "{.github,src}/**", "a/.b", "\\.x", "[.]x", "{src,.ci}/x"] {
            assert!(has_dot_segment(yes), "{yes}");
        }
        for no in ["*.txt", "a.b/c", "./x", "src/**", "[a.]x", "x."] {
            assert!(!has_dot_segment(no), "{no}");
        }
    }

    #[test]
    fn malformed_patterns_are_explained() {
        assert!(matches!(PathPattern::new("a[", true), Err(PatternError::Malformed { .. })));
        assert!(matches!(PathPattern::new("a/../b", true), Err(PatternError::Climbs { .. })));
        assert!(matches!(PathPattern::new(&"a".repeat(5000), true), Err(PatternError::TooLong { bytes: 5000 })));
    }
}
