//! The content of a file with the hunks of a diff carried out.
//!
//! Bytes outside of the hunks are taken over as they are. Where a hunk stands byte for byte its new lines are taken
//! byte for byte; where it stands with other line ends they get those of the file, and the last line of a file keeps
//! or lacks its newline as it did unless the diff says otherwise. What was not as the diff stated is told; with
//! `strict` it is an error.

use std::fmt;

use thiserror::Error;

use super::diff::{Hunk, HunkLine, Side};
use super::place::{How, Lines, Place, PlaceError, without_ending};

/// A content with hunks carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spliced {
    /// The new content.
    pub bytes: Vec<u8>,
    /// What became of each hunk, in order.
    pub hunks: Vec<SplicedHunk>,
}

/// What became of one hunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplicedHunk {
    /// The line of the old content that it begins in, from 1.
    pub line: u64,
    /// Lines that came.
    pub added: u64,
    /// Lines that went.
    pub removed: u64,
    /// What was not as the diff stated, in the order of finding.
    pub tolerated: Vec<Tolerated>,
}

/// Something in which a hunk is not what the file or its own header says, and which leaves no doubt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tolerated {
    /// Its lines stand that many lines further down (or up).
    Shifted(i64),
    /// Its header counts other numbers of lines than it has.
    Miscounted,
    /// The file has other line ends.
    LineEndings,
    /// The last newline is not there, or is there, and the diff says nothing of it.
    LastNewline,
    /// Its header gives another line of the new side than it comes to stand in.
    NewStart,
}

impl Tolerated {
    /// A word for it in the facts of a result.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Shifted(_) => "shifted",
            Self::Miscounted => "miscounted",
            Self::LineEndings => "line_endings",
            Self::LastNewline => "last_newline",
            Self::NewStart => "new_start",
        }
    }
}

impl fmt::Display for Tolerated {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shifted(by) => {
                write!(out, "its lines stand {} lines {}", by.abs(), if *by < 0 { "up" } else { "down" })
            }
            Self::Miscounted => out.write_str("the counts of its header do not fit its lines"),
            Self::LineEndings => out.write_str("the file has other line ends, which were kept"),
            Self::LastNewline => {
                out.write_str("the end of the file keeps its newline, or its lack of one, unlike stated")
            }
            Self::NewStart => out.write_str("its header gives another line of the new side"),
        }
    }
}

/// Why hunks cannot be carried out.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SpliceError {
    /// One belongs nowhere.
    #[error("hunk {number} (line {line} of the diff): {source}")]
    Place {
        /// Which one, from 1.
        number: usize,
        /// The line of the diff that its header stands in, from 1.
        line: usize,
        /// Why.
        source: PlaceError,
    },
    /// One is not what it states, and nothing is tolerated.
    #[error("hunk {number} (line {line} of the diff): {tolerated}; leave out strict to take it nevertheless")]
    NotStrict {
        /// Which one, from 1.
        number: usize,
        /// The line of the diff that its header stands in, from 1.
        line: usize,
        /// In what.
        tolerated: Tolerated,
    },
    /// The result would be too long.
    #[error("the result would have more than {most} bytes")]
    TooLong {
        /// How many are taken.
        most: usize,
    },
}

/// Carries hunks out.
///
/// # Errors
/// [`SpliceError`].
pub fn splice(old: &[u8], hunks: &[Hunk<'_>], strict: bool, bytes_max: usize) -> Result<Spliced, SpliceError> {
    let lines = Lines::of(old);
    let mut new = Vec::with_capacity(old.len().min(bytes_max));
    // Lines of the old content that are done, lines of the new one that are there.
    let (mut done, mut written) = (0, 0_u64);
    let mut spliced = Vec::with_capacity(hunks.len());
    for (hunk, number) in hunks.iter().zip(1..) {
        let line = hunk.line;
        let place = lines.place(hunk, done).map_err(|source| SpliceError::Place { number, line, source })?;
        new.extend_from_slice(lines.bytes(done, place.at));
        written += (place.at - done) as u64;
        let (_, new_count) = hunk.counts();
        let mut tolerated = Vec::new();
        if place.shift != 0 {
            tolerated.push(Tolerated::Shifted(place.shift));
        }
        if hunk.miscounts() {
            tolerated.push(Tolerated::Miscounted);
        }
        let mut writing = Writing { lines: &lines, hunk, place, out: Vec::new(), at: place.at, ended: None };
        writing.run(&mut tolerated);
        let (piece, end) = (writing.out, writing.at);
        // A line without a newline can only be the last one.
        if !piece.is_empty() && new.last().is_some_and(|last| *last != b'\n') {
            new.extend_from_slice(lines.form_near(place.at));
        }
        new.extend_from_slice(&piece);
        done = end;
        if strict {
            let start = if new_count == 0 { written } else { written + 1 };
            let stated = hunk.stated.map(|stated| stated.new_start);
            tolerated.extend(stated.filter(|stated| *stated != start).map(|_| Tolerated::NewStart));
            if let Some(tolerated) = tolerated.first().copied() {
                return Err(SpliceError::NotStrict { number, line, tolerated });
            }
        }
        written += new_count;
        let of = |side| hunk.lines.iter().filter(|line| line.side == side).count() as u64;
        spliced.push(SplicedHunk {
            line: place.at as u64 + 1,
            added: of(Side::New),
            removed: of(Side::Old),
            tolerated,
        });
        if new.len() > bytes_max {
            return Err(SpliceError::TooLong { most: bytes_max });
        }
    }
    new.extend_from_slice(lines.bytes(done, lines.count()));
    if new.len() > bytes_max {
        return Err(SpliceError::TooLong { most: bytes_max });
    }
    Ok(Spliced { bytes: new, hunks: spliced })
}

/// One hunk that is being written.
struct Writing<'w> {
    lines: &'w Lines<'w>,
    hunk: &'w Hunk<'w>,
    place: Place,
    out: Vec<u8>,
    /// The next line of the old content.
    at: usize,
    /// How the line of the old content ended that went or stayed last.
    ended: Option<&'static [u8]>,
}

impl Writing<'_> {
    fn run(&mut self, tolerated: &mut Vec<Tolerated>) {
        let only_adds = self.hunk.lines.iter().all(|line| line.side == Side::New);
        let as_stated = self.place.how == How::Exact && !(only_adds && self.differs_in_form());
        for line in &self.hunk.lines {
            match line.side {
                Side::Both => {
                    let kept = self.lines.line(self.at);
                    self.push(kept);
                    self.step();
                }
                Side::Old => self.step(),
                Side::New if as_stated => {
                    let ended: &[u8] = if line.ended { b"\n" } else { b"" };
                    self.push(&[line.text, ended].concat());
                }
                Side::New => {
                    let form = self.ended.unwrap_or_else(|| self.lines.form_near(self.at));
                    let text = line.text.strip_suffix(b"\r").unwrap_or(line.text);
                    self.push(&[text, form].concat());
                }
            }
        }
        if as_stated {
            return;
        }
        if self.forms_differ() || only_adds && self.lines.form_near(self.place.at) == b"\r\n" {
            tolerated.push(Tolerated::LineEndings);
        }
        if self.end_as_the_file_did() {
            tolerated.push(Tolerated::LastNewline);
        }
    }

    /// Adds a line; one before it that lacked its newline gets one.
    fn push(&mut self, line: &[u8]) {
        if self.out.last().is_some_and(|last| *last != b'\n') {
            self.out.extend_from_slice(self.lines.form_near(self.at));
        }
        self.out.extend_from_slice(line);
    }

    fn step(&mut self) {
        self.ended = ending_of(self.lines.line(self.at)).or(self.ended);
        self.at += 1;
    }

    /// Whether lines that are only added would bring another line end to where they go.
    fn differs_in_form(&self) -> bool {
        let behind_unended =
            self.at == self.lines.count() && self.at > 0 && ending_of(self.lines.line(self.at - 1)).is_none();
        let has_cr = |line: &HunkLine<'_>| line.text.ends_with(b"\r");
        behind_unended
            || self.lines.count() > 0 && self.lines.form_near(self.at) == b"\r\n" && !self.hunk.lines.iter().any(has_cr)
    }

    /// Whether a line end of the old side is another one in the file.
    fn forms_differ(&self) -> bool {
        let old = self.hunk.lines.iter().filter(|line| line.side != Side::New);
        let mut pairs = old.zip(self.place.at..).filter(|(line, _)| line.ended);
        pairs.any(|(line, at)| {
            let has_cr = line.text.ends_with(b"\r");
            ending_of(self.lines.line(at)).is_some_and(|ending| (ending == b"\r\n") != has_cr)
        })
    }

    /// Gives the end of the file the newline that it had, or that the diff gives it; returns whether that is not
    /// what the lines of the diff say.
    fn end_as_the_file_did(&mut self) -> bool {
        if self.at != self.lines.count() || self.lines.count() == 0 {
            return false;
        }
        let file_unended = ending_of(self.lines.line(self.lines.count() - 1)).is_none();
        let unended = |side| {
            let mut of_side = self.hunk.lines.iter().rev().filter(|line| line.side == Side::Both || line.side == side);
            of_side.next().is_some_and(|line: &HunkLine<'_>| !line.ended)
        };
        let (old_unended, new_unended) = (unended(Side::Old), unended(Side::New));
        let wanted = if old_unended == new_unended { file_unended } else { new_unended };
        let form = self.ended.unwrap_or_else(|| self.lines.form_near(self.at));
        if wanted {
            let kept = if self.out.ends_with(b"\r\n") { 2 } else { usize::from(self.out.ends_with(b"\n")) };
            self.out.truncate(self.out.len() - kept);
        } else if !self.out.is_empty() && !self.out.ends_with(b"\n") {
            self.out.extend_from_slice(form);
        }
        old_unended != file_unended
    }
}

impl Lines<'_> {
    /// How lines end near a place: the one before it, else the one at it, else the first one of the file.
    fn form_near(&self, at: usize) -> &'static [u8] {
        let before = at.checked_sub(1).and_then(|before| ending_of(self.line(before)));
        before.or_else(|| ending_of(self.line(at))).or_else(|| ending_of(self.line(0))).unwrap_or(b"\n")
    }
}

/// LF or CR LF; none for a line that nothing ends.
fn ending_of(line: &[u8]) -> Option<&'static [u8]> {
    if !line.ends_with(b"\n") {
        return None;
    }
    Some(if line.len() - without_ending(line).len() == 2 { b"\r\n" } else { b"\n" })
}

#[cfg(test)]
mod tests;
