//! `git log`: commits from one point back, newest first, a page at a time.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::intake::{Kept, shown};
use super::listing::{lines, page_request, pathspec};
use super::parameter::Parameters;
use super::program::Git;
use crate::builtin::reach::{self, Step, wrong};
use crate::outcome::ToolOutcome;

/// Commits of a page when no limit is asked for.
pub(super) const LOG_LIMIT_DEFAULT: u64 = 10;
/// No commit behind this many is shown: git would walk all of them anew for every page.
pub(super) const LOG_SCAN_MAX: usize = 5000;
/// Hash, author, date, parents, subject; each ends with a NUL, as `-z` ends the last.
const FORMAT: &str = "--format=tformat:%H%x00%an%x00%aI%x00%P%x00%s";
/// How many fields that are.
const FIELDS: usize = 5;

/// Shows one page of the log.
pub(super) async fn show(git: &Git<'_>, parameters: &Parameters, arguments: &Value) -> Step<ToolOutcome> {
    let mut page = page_request(arguments, LOG_LIMIT_DEFAULT)?;
    if page.offset >= LOG_SCAN_MAX {
        return Err(wrong(format!(
            "cursor {} lies beyond the {LOG_SCAN_MAX} commits that are shown; start at an older commit with ref, or \
             give a path",
            page.offset
        )));
    }
    page.applied_limit = page.applied_limit.min(LOG_SCAN_MAX - page.offset);
    let below = match &parameters.path {
        Some(path) => Some(pathspec(&reach::path(git.ctx(), path)?)?),
        None => None,
    };
    // One more tells whether there are more.
    let (skip, count) = (format!("--skip={}", page.offset), format!("--max-count={}", page.applied_limit + 1));
    let mut call = vec!["log", "-z", FORMAT, "--no-color", "--no-show-signature", "--no-notes", "--encoding=UTF-8"];
    call.extend([skip.as_str(), &count, "--end-of-options", parameters.reference.as_deref().unwrap_or("HEAD"), "--"]);
    call.extend(below.as_deref());
    let ran = git.run(&call, Kept::default()).await?;
    if ran.code != 0 && parameters.reference.is_none() && git.is_unborn().await? {
        let text = "There is no commit yet on this branch.\n";
        return Ok(ToolOutcome::success(text).with("count", 0).with("page", page.facts(0, 0).to_value()));
    }
    let printed = git.wanted(ran)?;
    let fields: Vec<&[u8]> = printed.fields().collect();
    let found: Vec<&[&[u8]]> = fields.chunks_exact(FIELDS).collect();
    let (mut text, returned) = lines(&found[..found.len().min(page.applied_limit)], |commit| line(commit));
    let facts = if found.len() > returned {
        let mut facts = page.facts_of_part(returned, true);
        if page.offset + returned >= LOG_SCAN_MAX {
            facts.next_cursor = None;
        }
        facts
    } else if found.is_empty() && page.offset > 0 {
        // How many there are is not known, only that it is fewer.
        page.facts_of_part(0, false)
    } else {
        page.facts(returned, page.offset + returned)
    };
    match &facts.next_cursor {
        Some(cursor) => {
            let _ = writeln!(text, "[there are older commits; the next page has cursor \"{cursor}\"]");
        }
        None if facts.truncated => {
            let _ = writeln!(text, "[there are older commits; name an older one as ref to see them]");
        }
        None if returned == 0 => text.push_str("No commits here.\n"),
        None => {}
    }
    Ok(ToolOutcome::success(text).with("count", json!(returned)).with("page", facts.to_value()))
}

fn line(commit: &[&[u8]]) -> String {
    let [hash, author, date, parents, subject] = commit else { return String::new() };
    let merge = if parents.contains(&b' ') { "(merge) " } else { "" };
    let hash = &hash[..hash.len().min(12)];
    format!("{} {} {}: {merge}{}", shown(hash), shown(date), shown(author), shown(subject))
}
