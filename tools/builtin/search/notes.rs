//! What a search left out or read in a special way, as lines for the model and as facts for the host.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::count;
use crate::search::grep::{Failure, FileFound};
use crate::search::walk::WalkCounts;

/// Most files named in one note.
const NAMES_MAX: usize = 8;

/// Gathers notes while a search runs.
#[derive(Default)]
pub(super) struct Notes {
    /// Files that were looked into, or whose names were compared.
    pub(super) files: u64,
    pub(super) links: u64,
    pub(super) oversized: u64,
    pub(super) failed: Named,
    pub(super) binary: Named,
    pub(super) decoded: Named,
    pub(super) long_lines: Named,
    pub(super) not_utf8: Named,
}

/// Files of one sort: how many, and the first names.
#[derive(Default)]
pub(super) struct Named {
    pub(super) total: u64,
    names: Vec<String>,
}

impl Named {
    pub(super) fn add(&mut self, path: &impl ToString) {
        self.total += 1;
        if self.names.len() < NAMES_MAX {
            self.names.push(path.to_string());
        }
    }

    fn list(&self) -> String {
        let more = self.total - self.names.len() as u64;
        let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("{}{rest}", self.names.join(", "))
    }
}

impl Notes {
    /// Takes what is worth telling of one searched file.
    pub(super) fn take(&mut self, found: &FileFound) {
        self.files += 1;
        match &found.failure {
            None | Some(Failure::Gone) => {}
            Some(Failure::Unreadable(_)) => self.failed.add(&found.path),
            Some(Failure::LongLine) => self.long_lines.add(&found.path),
        }
        if found.facts.binary_at_byte.is_some() {
            self.binary.add(&found.path);
        }
        if found.facts.decoded.is_some() && found.matching_lines > 0 {
            self.decoded.add(&found.path);
        }
        if found.not_utf8 {
            self.not_utf8.add(&found.path);
        }
    }

    /// The notes as lines in brackets, each with its line end; empty when there is nothing to say.
    pub(super) fn lines(&self, walk: &WalkCounts) -> String {
        let mut text = String::new();
        let mut out: Vec<String> = Vec::new();
        let mut left_out = |number: u64, what: &str| {
            if number > 0 {
                out.push(format!("{number} {what}"));
            }
        };
        left_out(walk.ignored, "by ignore rules");
        left_out(walk.hidden, "with a hidden name");
        left_out(self.links, "that are links");
        left_out(walk.special, "that are no regular files");
        left_out(self.oversized, "too large");
        left_out(walk.unreadable, "unreadable folders or ignore files");
        if !out.is_empty() {
            let _ = writeln!(text, "[left out: {}; name one as path to search it]", out.join(", "));
        }
        let mut named = |files: &Named, what: &str| {
            if files.total > 0 {
                let _ = writeln!(text, "[{what}: {}]", files.list());
            }
        };
        named(&self.binary, "binary, searched only up to the first NUL byte; name one as path to search all of it");
        named(&self.decoded, "decoded from UTF-16, so columns are not those of the file");
        named(&self.not_utf8, "shown with \u{fffd} for bytes that are not UTF-8");
        named(&self.long_lines, "not searched behind an overlong line");
        named(&self.failed, "could not be read");
        if walk.rule_faults > 0 {
            let _ = writeln!(text, "[{} of ignore files not understood]", count(walk.rule_faults, "line", "lines"));
        }
        if walk.truncated {
            text.push_str("[the tree is too large or too deep: a part was not looked at; name a folder as path]\n");
        }
        text
    }

    /// The same as facts.
    pub(super) fn facts(&self, walk: &WalkCounts) -> Value {
        json!({
            "files": self.files,
            "ignored_entries": walk.ignored,
            "hidden_entries": walk.hidden,
            "links": self.links,
            "special_files": walk.special,
            "oversized_files": self.oversized,
            "unreadable": walk.unreadable + self.failed.total,
            "binary_files": self.binary.total,
            "decoded_files": self.decoded.total,
            "not_utf8_files": self.not_utf8.total,
            "long_line_files": self.long_lines.total,
            "rule_faults": walk.rule_faults,
            "truncated": walk.truncated,
        })
    }
}
