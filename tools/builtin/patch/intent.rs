//! What a diff wants done with which files, from its text alone.
//!
//! Nothing here looks at the disk, so the rules of a session judge exactly the names that are acted on.

use thiserror::Error;

use super::diff::{Diff, DiffError, Fate, Section};
use super::header::{Name, written};

/// What one section of a diff wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Intent {
    pub(super) fate: Fate,
    /// The file that is there; for a new one, where it goes. As an argument would name it.
    pub(super) path: String,
    /// Where a file goes that is renamed or copied.
    pub(super) to: Option<String>,
}

/// Why a diff and the file it was sent for do not go together.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum IntentError {
    #[error(transparent)]
    Diff(#[from] DiffError),
    #[error(
        "the hunks in line {line} of the diff name no file; give file_path, or put --- and +++ lines with its name \
         before them"
    )]
    Nameless { line: usize },
    #[error("the diff names {count} files; file_path is for a diff of one: leave it out")]
    SeveralForOne { count: usize },
    #[error(
        "line {line} of the diff names {old} and {new}: one file cannot be both; to rename it, put the lines \
         \"rename from …\" and \"rename to …\" before the --- line"
    )]
    TwoNames { line: usize, old: String, new: String },
    #[error("line {line} of the diff {what} a file; leave file_path out for that")]
    OneFileOnly { line: usize, what: &'static str },
}

/// What a diff wants; all of it for the file at `file_path`, when one is named. Whether the names of the diff are
/// that file is judged where paths are resolved: they are returned beside it.
pub(super) fn intents(diff: &Diff<'_>, file_path: Option<&str>) -> Result<(Vec<Intent>, Vec<String>), IntentError> {
    let Some(file_path) = file_path else {
        return diff.sections.iter().map(of_section).collect::<Result<_, _>>().map(|intents| (intents, Vec::new()));
    };
    let [section] = diff.sections.as_slice() else {
        return Err(IntentError::SeveralForOne { count: diff.sections.len() });
    };
    let line = section.line;
    match section.fate {
        Fate::Renamed => return Err(IntentError::OneFileOnly { line, what: "renames" }),
        Fate::Copied => return Err(IntentError::OneFileOnly { line, what: "copies" }),
        _ => {}
    }
    let names = [&section.old, &section.new].into_iter().flatten();
    let names = names.filter_map(|name| match name {
        Name::Path(path) => Some(written(path)),
        Name::Null => None,
    });
    let intent = Intent { fate: section.fate, path: file_path.to_owned(), to: None };
    Ok((vec![intent], names.collect()))
}

/// Every name in a diff, as far as it can be read: what the call may touch.
pub(super) fn names(diff: &Diff<'_>) -> Vec<String> {
    let mut names = Vec::new();
    for name in diff.sections.iter().flat_map(|section| [&section.old, &section.new]).flatten() {
        if let Name::Path(path) = name {
            let name = written(path);
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    names
}

fn of_section(section: &Section<'_>) -> Result<Intent, IntentError> {
    let line = section.line;
    let text = |name: &Option<Name>| match name {
        Some(Name::Path(path)) => Some(written(path)),
        _ => None,
    };
    let (old, new) = (text(&section.old), text(&section.new));
    match (section.fate, old, new) {
        (Fate::Renamed | Fate::Copied, Some(path), Some(to)) => Ok(Intent { fate: section.fate, path, to: Some(to) }),
        (_, Some(old), Some(new)) if old != new => Err(IntentError::TwoNames { line, old, new }),
        (Fate::New, _, Some(path)) | (Fate::Goes, Some(path), _) | (Fate::Stays, Some(path), Some(_)) => {
            Ok(Intent { fate: section.fate, path, to: None })
        }
        _ => Err(IntentError::Nameless { line }),
    }
}

#[cfg(test)]
mod tests {
    use super::{Diff, Fate, Intent, IntentError, intents, names};

    fn wanted(text: &str, file_path: Option<&str>) -> Result<(Vec<Intent>, Vec<String>), IntentError> {
        intents(&Diff::parse(text.as_bytes()).unwrap(), file_path)
    }

    const HUNK: &str = "@@ -1 +1 @@\n-a\n+b\n";

    // Cases C053 to C056: what a section is follows from its null device or its own lines.
    #[test]
    fn each_section_says_what_becomes_of_its_file() {
        for (head, fate, path, to) in [
            ("--- a/f\n+++ b/f\n", Fate::Stays, "f", None),
            ("--- /dev/null\n+++ b/f\n", Fate::New, "f", None),
            ("--- a/f\n+++ /dev/null\n", Fate::Goes, "f", None),
            ("diff --git a/f b/g\nrename from f\nrename to g\n--- a/f\n+++ b/g\n", Fate::Renamed, "f", Some("g")),
            ("diff --git a/f b/g\ncopy from f\ncopy to g\n--- a/f\n+++ b/g\n", Fate::Copied, "f", Some("g")),
        ] {
            let intent = Intent { fate, path: path.into(), to: to.map(Into::into) };
            assert_eq!(wanted(&format!("{head}{HUNK}"), None).unwrap().0, [intent], "{head}");
        }
    }

    #[test]
    fn one_file_must_be_one_file() {
        assert!(matches!(wanted(HUNK, None), Err(IntentError::Nameless { line: 1 })));
        let (intents, names) = wanted(HUNK, Some("f")).unwrap();
        assert_eq!((intents[0].path.as_str(), names.len()), ("f", 0));
        let two = format!("--- a/f\n+++ b/f\n{HUNK}--- a/g\n+++ b/g\n{HUNK}");
        assert!(matches!(wanted(&two, Some("f")), Err(IntentError::SeveralForOne { count: 2 })));
        assert!(matches!(wanted(&format!("--- f\n+++ g\n{HUNK}"), None), Err(IntentError::TwoNames { .. })));
        assert_eq!(wanted(&format!("--- f\n+++ g\n{HUNK}"), Some("f")).unwrap().1, ["f", "g"]);
        let renamed = "diff --git a/f b/g\nrename from f\nrename to g\n";
        assert!(matches!(wanted(renamed, Some("f")), Err(IntentError::OneFileOnly { .. })));
    }

    #[test]
    fn all_names_are_told() {
        let diff = format!("--- a/f\n+++ b/f\n{HUNK}diff --git a/x b/y\nrename from x\nrename to y\n");
        assert_eq!(names(&Diff::parse(diff.as_bytes()).unwrap()), ["f", "x", "y"]);
    }
}
