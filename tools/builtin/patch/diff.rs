//! A unified diff, read: which files it names, and the lines of its hunks.
//!
//! Read by bytes, so that a diff of any file can be taken. A hunk ends where its lines end: the counts in its header
//! are held against them and decide only what nothing else can (a blank line, a removed line that looks like a
//! header). Whatever is neither header nor hunk nor blank is an error that names its line, never skipped. Nothing in
//! here panics or takes more than linear time, whatever the bytes are: this is what the fuzz target drives.

use thiserror::Error;

use super::header::{self, Name, Stated};

/// Longest diff, in bytes.
pub const DIFF_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Most files that one diff may name.
pub const SECTIONS_MAX: usize = 512;
/// Most hunks of one diff.
pub const HUNKS_MAX: usize = 100_000;
/// Longest piece of a line that an error shows, in bytes.
const SHOWN_BYTES_MAX: usize = 120;

/// A whole diff.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diff<'d> {
    /// One for each file.
    pub sections: Vec<Section<'d>>,
}

/// What a diff says of one file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Section<'d> {
    /// The line of the diff that it begins in, from 1.
    pub line: usize,
    /// The name on the old side, when there is one.
    pub old: Option<Name>,
    /// The name on the new side, when there is one.
    pub new: Option<Name>,
    /// What becomes of the file as a whole.
    pub fate: Fate,
    /// Permission bits that it is given.
    pub mode: Option<u32>,
    /// Its changes, in order.
    pub hunks: Vec<Hunk<'d>>,
}

/// What becomes of a file as a whole, as far as its header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fate {
    /// It stays.
    #[default]
    Stays,
    /// It is new.
    New,
    /// It goes.
    Goes,
    /// It gets the new name.
    Renamed,
    /// Another one is made like it.
    Copied,
}

/// One run of lines that change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hunk<'d> {
    /// The line of the diff that its header stands in, from 1.
    pub line: usize,
    /// The numbers of its header, when it has any.
    pub stated: Option<Stated>,
    /// The text behind them: a line that stands somewhere before the place.
    pub scope: &'d [u8],
    /// Its lines; at least one.
    pub lines: Vec<HunkLine<'d>>,
}

/// One line of a hunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HunkLine<'d> {
    /// Where it stands.
    pub side: Side,
    /// Its bytes without the sign and the LF; a CR before the LF is part of it.
    pub text: &'d [u8],
    /// Whether an LF ends it; not so where a line that begins with a backslash follows.
    pub ended: bool,
}

/// On which sides a line stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Both: it stays.
    Both,
    /// The old one: it goes.
    Old,
    /// The new one: it comes.
    New,
}

/// Why a text is no diff that can be carried out.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DiffError {
    /// It is too long.
    #[error("the diff has {bytes} bytes; at most {DIFF_BYTES_MAX} are taken: send it in parts")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// It names too many files or has too many hunks.
    #[error("the diff has more than {most} {what}; send it in parts")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many are taken.
        most: usize,
    },
    /// There is nothing in it.
    #[error("the diff has no hunk (a line that begins with @@) and nothing else that changes a file")]
    Empty,
    /// A line that belongs nowhere.
    #[error(
        "line {line} of the diff ({text:?}) is no part of a hunk: its lines begin with a blank, - or +; remove it or \
         mend it"
    )]
    Stray {
        /// Its number, from 1.
        line: usize,
        /// Its start.
        text: String,
    },
    /// A header that cannot be read.
    #[error("line {line} of the diff ({text:?}) {why}")]
    Header {
        /// Its number, from 1.
        line: usize,
        /// Its start.
        text: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A hunk without lines.
    #[error("the hunk in line {line} of the diff has no lines")]
    NoLines {
        /// The number of its header, from 1.
        line: usize,
    },
    /// A line says that no LF follows, and lines follow.
    #[error("line {line} of the diff says \"No newline at end of file\" where more lines of that side follow")]
    Marker {
        /// Its number, from 1.
        line: usize,
    },
    /// What a text diff cannot hold.
    #[error("line {line} of the diff: {what} cannot be applied; {instead}")]
    Unsupported {
        /// Its number, from 1.
        line: usize,
        /// What it is.
        what: &'static str,
        /// What to do.
        instead: &'static str,
    },
}

impl Hunk<'_> {
    /// How many lines it has on the old side and on the new side.
    pub fn counts(&self) -> (u64, u64) {
        let of = |side: Side| self.lines.iter().filter(|line| line.side == Side::Both || line.side == side).count();
        (of(Side::Old) as u64, of(Side::New) as u64)
    }

    /// Whether its header states other counts than it has lines.
    pub fn miscounts(&self) -> bool {
        self.stated.is_some_and(|stated| (stated.old_count, stated.new_count) != self.counts())
    }
}

impl<'d> Diff<'d> {
    /// Reads a diff.
    ///
    /// # Errors
    /// [`DiffError`].
    pub fn parse(bytes: &'d [u8]) -> Result<Self, DiffError> {
        if bytes.len() > DIFF_BYTES_MAX {
            return Err(DiffError::TooLong { bytes: bytes.len() });
        }
        let mut lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
        // What follows the last LF is no line.
        if lines.last().is_some_and(|last| last.is_empty()) {
            lines.pop();
        }
        let mut reading = Reading { lines, at: 0, sections: Vec::new(), named: false, hunks: 0, behind_the_end: false };
        while reading.at < reading.lines.len() {
            reading.step()?;
        }
        let sections: Vec<_> = reading.sections.into_iter().filter(Section::says_something).collect();
        if sections.is_empty() { Err(DiffError::Empty) } else { Ok(Self { sections }) }
    }
}

impl Section<'_> {
    fn says_something(&self) -> bool {
        !self.hunks.is_empty() || self.fate != Fate::Stays || self.mode.is_some()
    }
}

/// A diff that is being read.
struct Reading<'d> {
    lines: Vec<&'d [u8]>,
    at: usize,
    sections: Vec<Section<'d>>,
    /// Whether the names of the last file came from a pair of lines of their own.
    named: bool,
    hunks: usize,
    /// Whether a mail's signature came: nothing counts until the next file.
    behind_the_end: bool,
}

impl<'d> Reading<'d> {
    /// One line outside of hunks, or one hunk.
    fn step(&mut self) -> Result<(), DiffError> {
        let line = self.lines[self.at];
        let number = self.at + 1;
        if let Some(names) = line.strip_prefix(b"diff --git ") {
            let section = self.begin()?;
            (section.old, section.new) = header::git_names(names);
        } else if line.starts_with(b"diff --cc ") || line.starts_with(b"diff --combined ") || line.starts_with(b"@@@ ")
        {
            return Err(unsupported(number, "a diff of a merge", "send one against one side"));
        } else if self.is_pair(self.at) {
            self.names()?;
            self.at += 2;
            return Ok(());
        } else if line.starts_with(b"@@") && !self.behind_the_end {
            return self.hunk();
        } else if line == b"-- " || line == b"-- \r" {
            self.behind_the_end = true;
        } else if !self.behind_the_end {
            self.outside(line, number)?;
        }
        self.at += 1;
        Ok(())
    }

    /// Begins what is said of one more file.
    fn begin(&mut self) -> Result<&mut Section<'d>, DiffError> {
        if self.sections.len() == SECTIONS_MAX {
            return Err(DiffError::TooMany { what: "files", most: SECTIONS_MAX });
        }
        self.behind_the_end = false;
        self.named = false;
        self.sections.push(Section { line: self.at + 1, ..Section::default() });
        // Just pushed.
        let last = self.sections.len() - 1;
        Ok(&mut self.sections[last])
    }

    /// Whether a line and the next one are the names of a file.
    fn is_pair(&self, at: usize) -> bool {
        self.lines[at].starts_with(b"--- ") && self.lines.get(at + 1).is_some_and(|next| next.starts_with(b"+++ "))
    }

    /// Takes the names of both sides.
    fn names(&mut self) -> Result<(), DiffError> {
        let (old, new) = (self.lines[self.at], self.lines[self.at + 1]);
        let read = |line: &[u8], at: usize| {
            let why = "names no file";
            header::name(&line[4..]).ok_or_else(|| DiffError::Header { line: at, text: shown(line), why })
        };
        let names = header::without_prefixes(read(old, self.at + 1)?, read(new, self.at + 2)?);
        let open = self.sections.last().is_some_and(|last| last.hunks.is_empty()) && !self.named;
        let section = match self.sections.last_mut() {
            Some(last) if open && !self.behind_the_end => last,
            _ => self.begin()?,
        };
        section.named(names);
        self.named = true;
        Ok(())
    }

    /// A line that belongs to no hunk: a header, or words before the first hunk.
    fn outside(&mut self, line: &'d [u8], number: usize) -> Result<(), DiffError> {
        let blank = line.iter().all(u8::is_ascii_whitespace);
        if line.starts_with(b"GIT binary patch") || line.starts_with(b"Binary files ") {
            return Err(unsupported(number, "a binary change", "use download, write or bash"));
        }
        if line.starts_with(b"*** Begin Patch") || line.starts_with(b"*** Update File") {
            return Err(unsupported(number, "this format", "send a unified diff: ---, +++ and @@ lines"));
        }
        // A pair of names without hunks may go before a `diff` line, words may go before the first file.
        let after_hunk = self.sections.last().is_some_and(|last| !last.hunks.is_empty());
        if !after_hunk {
            if let Some(section) = self.sections.last_mut() {
                return section.extend(line, number);
            }
            return Ok(());
        }
        let begins = [&b"diff "[..], b"Index: ", b"index ", b"=====", b"Only in ", b"From ", b"commit "];
        if blank {
            return Ok(());
        }
        if begins.iter().any(|start| line.starts_with(start)) {
            self.begin()?;
            return Ok(());
        }
        Err(DiffError::Stray { line: number, text: shown(line) })
    }

    /// A hunk: its header and its lines.
    fn hunk(&mut self) -> Result<(), DiffError> {
        if self.hunks == HUNKS_MAX {
            return Err(DiffError::TooMany { what: "hunks", most: HUNKS_MAX });
        }
        self.hunks += 1;
        let line = self.at + 1;
        let header = self.lines[self.at];
        let (stated, scope) =
            header::hunk(header).map_err(|why| DiffError::Header { line, text: shown(header), why })?;
        self.at += 1;
        let mut body = Body::new(stated);
        while let Some(next) = self.lines.get(self.at).copied() {
            match next.first() {
                Some(b'\\') => body.unended(self.at + 1)?,
                Some(b' ') => body.push(Side::Both, &next[1..], false),
                Some(sign @ (b'-' | b'+')) => {
                    let ends = body.is_full() && matches!(next, b"-- " | b"-- \r");
                    if ends || self.is_pair(self.at) && self.is_header(&body) {
                        break;
                    }
                    body.push(if *sign == b'-' { Side::Old } else { Side::New }, &next[1..], false);
                }
                None | Some(b'\r') if is_blank(next) => {
                    if !body.wants_more() && !self.goes_on(&body) {
                        break;
                    }
                    body.push(Side::Both, next, true);
                }
                _ => break,
            }
            self.at += 1;
        }
        let lines = body.finish().ok_or(DiffError::NoLines { line })?;
        check_markers(&lines, line)?;
        if self.sections.is_empty() {
            self.begin()?.line = line;
        }
        if let Some(section) = self.sections.last_mut() {
            section.hunks.push(Hunk { line, stated, scope, lines });
        }
        Ok(())
    }

    /// Whether a pair of lines that could be names is one, and not a removed and an added line that look so.
    fn is_header(&self, body: &Body<'_>) -> bool {
        let hunk_follows = self.lines.get(self.at + 2).is_some_and(|third| third.starts_with(b"@@"));
        match body.left {
            Some((old, new)) if hunk_follows => (old, new) != (1, 1),
            Some((old, new)) => old < 1 || new < 1,
            None => hunk_follows,
        }
    }

    /// Whether lines of the same hunk follow this blank one.
    fn goes_on(&self, body: &Body<'_>) -> bool {
        if body.is_full() {
            return false;
        }
        let Some(next) = (self.at..self.lines.len()).find(|at| !is_blank(self.lines[*at])) else { return false };
        matches!(self.lines[next].first(), Some(b' ' | b'-' | b'+')) && !self.is_pair(next)
    }
}

impl Section<'_> {
    fn named(&mut self, (old, new): (Name, Name)) {
        if self.fate == Fate::Stays {
            match (&old, &new) {
                (Name::Null, Name::Path(_)) => self.fate = Fate::New,
                (Name::Path(_), Name::Null) => self.fate = Fate::Goes,
                _ => {}
            }
        }
        // The null device says what becomes of the file; its name stands on the other side.
        if !matches!(self.fate, Fate::Renamed | Fate::Copied) {
            (self.old, self.new) = (Some(old), Some(new));
        }
    }

    /// One line between the names and the first hunk.
    fn extend(&mut self, line: &[u8], number: usize) -> Result<(), DiffError> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let text = || shown(line);
        let fail = |why| Err(DiffError::Header { line: number, text: text(), why });
        let after = |start: &str| line.strip_prefix(start.as_bytes());
        let name = |rest: &[u8]| match header::name(rest) {
            Some(Name::Path(path)) => Ok(Some(Name::Path(path))),
            _ => Err(DiffError::Header { line: number, text: text(), why: "names no file" }),
        };
        if let Some(mode) = after("new file mode ").or_else(|| after("new mode ")) {
            let Some(mode) = header::mode(mode) else {
                return fail("names a link or a submodule; only plain files are patched");
            };
            if after("new file mode ").is_some() {
                self.fate = Fate::New;
                // What a new file is given anyway.
                self.mode = Some(mode).filter(|mode| mode & 0o111 != 0);
            } else {
                self.mode = Some(mode);
            }
        } else if after("deleted file mode ").is_some() {
            self.fate = Fate::Goes;
        } else if let Some(rest) = after("rename from ") {
            (self.fate, self.old) = (Fate::Renamed, name(rest)?);
        } else if let Some(rest) = after("rename to ") {
            (self.fate, self.new) = (Fate::Renamed, name(rest)?);
        } else if let Some(rest) = after("copy from ") {
            (self.fate, self.old) = (Fate::Copied, name(rest)?);
        } else if let Some(rest) = after("copy to ") {
            (self.fate, self.new) = (Fate::Copied, name(rest)?);
        }
        // Anything else (index, similarity, words of a person) says nothing that is acted on.
        Ok(())
    }
}

/// The lines of a hunk as they come.
struct Body<'d> {
    lines: Vec<HunkLine<'d>>,
    /// How many lines of each side are still to come, by the header.
    left: Option<(u64, u64)>,
    /// How many lines at the end had no sign.
    bare_at_end: usize,
}

impl<'d> Body<'d> {
    fn new(stated: Option<Stated>) -> Self {
        Self { lines: Vec::new(), left: stated.map(|stated| (stated.old_count, stated.new_count)), bare_at_end: 0 }
    }

    fn push(&mut self, side: Side, text: &'d [u8], bare: bool) {
        self.lines.push(HunkLine { side, text, ended: true });
        self.bare_at_end = if bare { self.bare_at_end + 1 } else { 0 };
        if let Some((old, new)) = &mut self.left {
            *old = old.saturating_sub(u64::from(side != Side::New));
            *new = new.saturating_sub(u64::from(side != Side::Old));
        }
    }

    fn unended(&mut self, line: usize) -> Result<(), DiffError> {
        match self.lines.last_mut() {
            Some(last) if last.ended => last.ended = false,
            _ => return Err(DiffError::Marker { line }),
        }
        Ok(())
    }

    /// Whether the header promised no more lines.
    fn is_full(&self) -> bool {
        self.left == Some((0, 0))
    }

    /// Whether the header promised more lines on both sides.
    fn wants_more(&self) -> bool {
        self.left.is_some_and(|(old, new)| old > 0 && new > 0)
    }

    fn finish(mut self) -> Option<Vec<HunkLine<'d>>> {
        // Blank lines at the end of a hunk whose counts do not fit may as well stand behind it.
        if self.left != Some((0, 0)) {
            self.lines.truncate(self.lines.len() - self.bare_at_end);
        }
        (!self.lines.is_empty()).then_some(self.lines)
    }
}

fn is_blank(line: &[u8]) -> bool {
    matches!(line, b"" | b"\r")
}

/// Only the last line of a side may lack its LF.
fn check_markers(lines: &[HunkLine<'_>], header: usize) -> Result<(), DiffError> {
    for side in [Side::Old, Side::New] {
        let mut of_side = lines.iter().zip(1..).filter(|(line, _)| line.side == Side::Both || line.side == side);
        if let Some((_, at)) = of_side.find(|(line, _)| !line.ended)
            && of_side.next().is_some()
        {
            return Err(DiffError::Marker { line: header + at + 1 });
        }
    }
    Ok(())
}

fn unsupported(line: usize, what: &'static str, instead: &'static str) -> DiffError {
    DiffError::Unsupported { line, what, instead }
}

/// The start of a line, for an error.
fn shown(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(&line[..line.len().min(SHOWN_BYTES_MAX)]);
    text.trim_end_matches(['\r', '\u{fffd}']).to_owned()
}

#[cfg(test)]
mod tests;
