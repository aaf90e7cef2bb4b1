//! Lists of the git tool: pages of lines, with the limits of this tool.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use serde_json::Value;

use crate::builtin::reach::{Step, wrong};
use crate::pagination::{PageFacts, PageRequest};
use crate::workspace_path::WorkspacePath;

/// Items of a page when no limit is asked for.
pub(super) const LIST_LIMIT_DEFAULT: u64 = 50;
/// Most items of a page; a larger limit is lowered to it, and the result says so.
pub(super) const LIST_LIMIT_MAX: usize = 200;
/// Most text of one page, in bytes; a page ends early at it.
const OUTPUT_BYTES_MAX: usize = 96 * 1024;

/// Which page the arguments ask for.
///
/// # Errors
/// The outcome that says what is wrong with `limit` or `cursor`.
pub(super) fn page_request(arguments: &Value, limit_default: u64) -> Step<PageRequest> {
    let mut arguments = arguments.clone();
    let limit = |name: &str| arguments.get(name).filter(|limit| !limit.is_null()).cloned();
    let limit = limit("limit").or_else(|| limit("max_count")).unwrap_or_else(|| limit_default.into());
    // A whole number may be written as 1e2: the conversion saturates.
    let limit = limit.as_f64().map_or(limit, |number| Value::from(number as u64));
    arguments["limit"] = limit;
    let mut page = PageRequest::from_arguments(&arguments).map_err(|error| wrong(error.to_string()))?;
    page.applied_limit = page.applied_limit.min(LIST_LIMIT_MAX);
    Ok(page)
}

/// The text of a page of a list whose items are all known, and what the result says of it.
///
/// # Errors
/// The outcome of a cursor behind the end.
pub(super) fn page_of<T>(page: &PageRequest, items: &[T], line: impl Fn(&T) -> String) -> Step<(String, PageFacts)> {
    let range = page.range(items.len()).map_err(|error| wrong(error.to_string()))?;
    let (mut text, returned) = lines(&items[range], line);
    let facts = page.facts(returned, items.len());
    if let Some(cursor) = &facts.next_cursor {
        let _ = writeln!(text, "[{returned} of {} shown; the next page has cursor \"{cursor}\"]", items.len());
    }
    Ok((text, facts))
}

/// As many items as fit in one page, a line each; how many those are.
pub(super) fn lines<T>(items: &[T], line: impl Fn(&T) -> String) -> (String, usize) {
    let mut text = String::new();
    for (at, item) in items.iter().enumerate() {
        let line = line(item);
        if at > 0 && text.len() + line.len() >= OUTPUT_BYTES_MAX {
            return (text, at);
        }
        text.push_str(&line);
        text.push('\n');
    }
    (text, items.len())
}

/// A path as git gave it, beneath the repository's folder.
pub(super) fn path_of(bytes: &[u8]) -> WorkspacePath {
    WorkspacePath::from_relative(Path::new(OsStr::from_bytes(bytes)))
}

/// A path as a literal pathspec.
///
/// # Errors
/// The outcome of a name that cannot be an argument.
pub(super) fn pathspec(path: &WorkspacePath) -> Step<String> {
    let text = path.as_path().to_str();
    let text = text.ok_or_else(|| wrong(format!("path: {path} is not UTF-8; give the folder above it")))?;
    Ok(format!(":(top,literal){}", if path.is_root() { "" } else { text }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{OUTPUT_BYTES_MAX, lines, page_of, page_request};

    #[test]
    fn limits_of_this_tool_hold() {
        let page = page_request(&json!({}), 50).unwrap();
        assert_eq!((page.requested_limit, page.applied_limit), (50, 50));
        let page = page_request(&json!({"limit": 900, "max_count": 3}), 50).unwrap();
        assert_eq!((page.requested_limit, page.applied_limit), (900, 200));
        assert!(page.facts(200, 201).limit_clamped);
        assert_eq!(page_request(&json!({"max_count": 3.0, "limit": null}), 50).unwrap().applied_limit, 3);
        assert!(page_request(&json!({"limit": 0}), 50).is_err());
        assert!(page_request(&json!({"cursor": "x"}), 50).is_err());
    }

    #[test]
    fn a_page_ends_early_when_its_lines_are_long() {
        let items = vec!["x".repeat(4000); 100];
        let (text, returned) = lines(&items, Clone::clone);
        assert!(text.len() <= OUTPUT_BYTES_MAX && returned > 20 && returned < 100);
        let (text, facts) = page_of(&page_request(&json!({"limit": 100}), 50).unwrap(), &items, Clone::clone).unwrap();
        assert_eq!(facts.next_cursor, Some(returned.to_string()));
        assert!(text.ends_with(&format!("cursor \"{returned}\"]\n")));
    }
}
