//! Where lines begin in files that were read before, so that the next read of a large one starts near its window.
//!
//! A cache that decides nothing: an entry counts only for the very file that it was made of (identity, size, time of
//! change), and none is made while a file is so fresh that a change within the same tick could leave all three as
//! they are. Bounded in files and in marks: of a file with too many lines every second mark goes.

use std::sync::{Arc, Mutex, PoisonError};

use crate::digest::Digest;
use crate::effects::files::FileStamp;
use crate::text::Encoding;
use crate::workspace_path::WorkspacePath;

/// Lines between two marks, at first.
const STRIDE_LINES: u64 = 1024;
/// Most marks of one file; each has 8 bytes.
const MARKS_MAX: usize = 65_536;
/// Most files that are remembered; the one that was not read for the longest time goes first.
const FILES_MAX: usize = 32;
/// Bytes whose line ends are counted at a time.
const BLOCK_BYTES: usize = 4096;

/// Where every so many lines begin.
#[derive(Debug, Clone)]
pub(super) struct Marks {
    stride_lines: u64,
    /// The line number `stride_lines` begins at the first offset, twice that at the second, and so on.
    offsets: Vec<u64>,
}

impl Default for Marks {
    fn default() -> Self {
        Self { stride_lines: STRIDE_LINES, offsets: Vec::new() }
    }
}

impl Marks {
    /// The nearest mark at or before a line (from 0): its byte and its line; none before the first one.
    pub(super) fn before(&self, line: u64) -> Option<(u64, u64)> {
        let passed = usize::try_from(line / self.stride_lines).unwrap_or(usize::MAX).min(self.offsets.len());
        let offset = *self.offsets.get(passed.checked_sub(1)?)?;
        Some((offset, passed as u64 * self.stride_lines))
    }

    /// The next line (from 0) that gets a mark.
    fn next_line(&self) -> u64 {
        (self.offsets.len() as u64 + 1) * self.stride_lines
    }

    fn push(&mut self, offset: u64) {
        self.offsets.push(offset);
        if self.offsets.len() == MARKS_MAX {
            let mut index = 0;
            self.offsets.retain(|_| {
                index += 1;
                index % 2 == 0
            });
            self.stride_lines *= 2;
        }
    }
}

/// Counts line ends as bytes come, and marks them.
pub(super) struct LineCounter {
    /// Line ends so far.
    pub(super) line: u64,
    /// Whether bytes came since the last one.
    pub(super) is_open: bool,
    at: u64,
    pub(super) marks: Marks,
}

impl LineCounter {
    /// Counts on from a byte where a line begins.
    pub(super) fn from(at: u64, line: u64, marks: Marks) -> Self {
        Self { line, is_open: false, at, marks }
    }

    /// Lines so far, the one that has no end yet among them.
    pub(super) fn total(&self) -> u64 {
        self.line + u64::from(self.is_open)
    }

    /// Counts all of a chunk.
    pub(super) fn count(&mut self, chunk: &[u8]) {
        for block in chunk.chunks(BLOCK_BYTES) {
            let ends = memchr::memchr_iter(b'\n', block).count() as u64;
            self.pass(block, ends);
        }
    }

    /// Counts up to where a line (from 0) begins; returns what of the chunk is behind that.
    pub(super) fn skip_to<'c>(&mut self, mut chunk: &'c [u8], line: u64) -> &'c [u8] {
        while self.line < line && !chunk.is_empty() {
            let (block, rest) = chunk.split_at(chunk.len().min(BLOCK_BYTES));
            let ends = memchr::memchr_iter(b'\n', block).count() as u64;
            if self.line + ends < line {
                self.pass(block, ends);
                chunk = rest;
                continue;
            }
            let nth = usize::try_from(line - self.line - 1).unwrap_or(usize::MAX);
            let end = memchr::memchr_iter(b'\n', block).nth(nth).unwrap_or(block.len() - 1) + 1;
            self.pass(&block[..end], line - self.line);
            chunk = &chunk[end..];
        }
        chunk
    }

    fn pass(&mut self, block: &[u8], ends: u64) {
        while self.marks.next_line() <= self.line + ends {
            // Behind the marks that there are already, lines are only counted.
            let Some(nth) = self.marks.next_line().checked_sub(self.line + 1) else { break };
            let nth = usize::try_from(nth).unwrap_or(usize::MAX);
            let Some(end) = memchr::memchr_iter(b'\n', block).nth(nth) else { break };
            self.marks.push(self.at + end as u64 + 1);
        }
        self.line += ends;
        self.at += block.len() as u64;
        self.is_open = block.last().map_or(self.is_open, |last| *last != b'\n');
    }
}

/// What is known of one file.
#[derive(Debug, Clone)]
pub(super) struct Known {
    pub(super) stamp: FileStamp,
    pub(super) encoding: Encoding,
    pub(super) marks: Marks,
    pub(super) total_lines: Option<u64>,
    pub(super) digest: Option<Digest>,
}

/// What is known of the files read last.
#[derive(Debug, Default)]
pub(super) struct LineIndexes(Mutex<Vec<(WorkspacePath, Arc<Known>)>>);

impl LineIndexes {
    /// What is known of a file, when it is still the same one.
    pub(super) fn get(&self, path: &WorkspacePath, stamp: &FileStamp) -> Option<Arc<Known>> {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = files.iter().position(|(known, _)| known == path)?;
        let found = files.remove(at);
        let known = Arc::clone(&found.1);
        if known.stamp != *stamp {
            return None;
        }
        files.push(found);
        Some(known)
    }

    /// Remembers what a read found, beside what was known before.
    pub(super) fn put(&self, path: &WorkspacePath, mut found: Known) {
        let before = self.get(path, &found.stamp);
        if let Some(before) = before {
            if before.marks.next_line() > found.marks.next_line() {
                found.marks = before.marks.clone();
            }
            found.total_lines = found.total_lines.or(before.total_lines);
            found.digest = found.digest.or_else(|| before.digest.clone());
        }
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        files.retain(|(known, _)| known != path);
        if files.len() == FILES_MAX {
            files.remove(0);
        }
        files.push((path.clone(), Arc::new(found)));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, prop};
    use proptest::proptest;

    use super::{FILES_MAX, FileStamp, Known, LineCounter, LineIndexes, MARKS_MAX, Marks, STRIDE_LINES};
    use crate::text::Encoding;
    use crate::workspace_path::WorkspacePath;

    fn known(size_bytes: u64) -> Known {
        let stamp = FileStamp { identity: (1, 2), size_bytes, modified_unix_ns: 3 };
        Known { stamp, encoding: Encoding::Utf8, marks: Marks::default(), total_lines: None, digest: None }
    }

    #[test]
    fn marks_are_where_lines_begin() {
        let text: String = (0..5000).map(|line| format!("{line}\n")).collect();
        let mut counter = LineCounter::from(0, 0, Marks::default());
        for chunk in text.as_bytes().chunks(777) {
            counter.count(chunk);
        }
        assert_eq!((counter.line, counter.is_open), (5000, false));
        for line in [0, 1023, 1024, 1025, 3000, 4999, 1 << 40] {
            match counter.marks.before(line) {
                None => assert!(line < STRIDE_LINES),
                Some((offset, at)) => {
                    assert!(at <= line && (line - at < STRIDE_LINES || line > 5000));
                    let offset = usize::try_from(offset).unwrap();
                    assert!(text[offset..].starts_with(&format!("{at}\n")), "{line}");
                }
            }
        }
    }

    #[test]
    fn too_many_lines_make_the_marks_sparser_and_not_wrong() {
        // Every byte is a line here.
        let mut marks = Marks::default();
        for _ in 0..MARKS_MAX + 1000 {
            marks.push(marks.next_line());
        }
        assert!(marks.offsets.len() < MARKS_MAX);
        let (offset, line) = marks.before(60_000_000).unwrap();
        assert!(offset == line && 60_000_000 - line < 2 * STRIDE_LINES);
    }

    #[test]
    fn a_file_that_changed_and_one_too_many_are_forgotten() {
        let indexes = LineIndexes::default();
        let path = |name: usize| WorkspacePath::parse(&format!("f{name}"), "").unwrap();
        indexes.put(&path(0), Known { total_lines: Some(7), ..known(5) });
        indexes.put(&path(0), known(5));
        assert_eq!(indexes.get(&path(0), &known(5).stamp).unwrap().total_lines, Some(7));
        assert!(indexes.get(&path(0), &known(6).stamp).is_none());
        assert!(indexes.get(&path(0), &known(5).stamp).is_none());
        (0..=FILES_MAX).for_each(|name| indexes.put(&path(name), known(5)));
        assert!(indexes.get(&path(0), &known(5).stamp).is_none());
        assert!(indexes.get(&path(1), &known(5).stamp).is_some());
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn skipping_finds_the_line_whatever_the_chunks(
            lines in prop::collection::vec(0_usize..30, 0..3000),
            chunk in 1_usize..9000,
            wanted in 0_u64..3200,
        ) {
            let text: Vec<u8> = lines.iter().flat_map(|width| [vec![b'x'; *width], vec![b'\n']].concat()).collect();
            let mut counter = LineCounter::from(0, 0, Marks::default());
            let mut rest = 0;
            for chunk in text.chunks(chunk) {
                rest += counter.skip_to(chunk, wanted).len();
            }
            let skipped = text.len() - rest;
            let before = text[..skipped].iter().filter(|byte| **byte == b'\n').count() as u64;
            assert_eq!(before, wanted.min(lines.len() as u64));
            assert_eq!(counter.line, before);
            assert!(skipped == 0 || text[skipped - 1] == b'\n');
        }
    }
}
