//! Folding: a run of alike lines becomes its first line and one line that says how many more there were.
//!
//! Lines are alike when all their bytes are, the line end included, so a last line without one belongs to no run.
//! The text comes piece by piece; of the past only one line is kept, so a line longer than [`LINE_BYTES_MAX`] is
//! passed on as it comes and belongs to no run either.

use memchr::{memchr, memchr_iter};

use super::excerpt::Excerpt;

/// The longest line that is compared with the next one, in bytes.
pub(super) const LINE_BYTES_MAX: usize = 100 * 1024;

/// Folds a text that comes piece by piece.
pub(super) struct Fold {
    threshold: u64,
    folded: Excerpt,
    /// The last whole line, while another may be like it; empty when none can.
    previous: Vec<u8>,
    /// How many more lines like `previous` came behind it and are held back.
    copies: u64,
    /// A line whose end has not come.
    partial: Vec<u8>,
    /// Whether we are inside of a line that is too long to be compared.
    in_long_line: bool,
}

impl Fold {
    /// Folds runs of at least `threshold` lines, which is 2 or more, into this excerpt.
    pub(super) fn new(threshold: u64, folded: Excerpt) -> Self {
        Self { threshold, folded, previous: Vec::new(), copies: 0, partial: Vec::new(), in_long_line: false }
    }

    /// Takes the next piece.
    pub(super) fn push(&mut self, piece: &[u8]) {
        let mut rest = piece;
        if self.in_long_line || !self.partial.is_empty() {
            let Some(at) = memchr(b'\n', rest) else { return self.extend_line(rest) };
            let (end, after) = rest.split_at(at + 1);
            self.extend_line(end);
            if !std::mem::take(&mut self.in_long_line) {
                let line = std::mem::take(&mut self.partial);
                self.push_lines(&line);
            }
            rest = after;
        }
        let whole = memchr::memrchr(b'\n', rest).map_or(0, |at| at + 1);
        let (lines, begun) = rest.split_at(whole);
        self.push_lines(lines);
        if !begun.is_empty() {
            self.extend_line(begun);
        }
    }

    /// The folded text.
    pub(super) fn finish(mut self) -> Excerpt {
        self.end_run();
        self.folded.push(&self.partial);
        self.folded
    }

    /// Takes whole lines. What is not folded goes on in pieces as large as they come.
    fn push_lines(&mut self, lines: &[u8]) {
        let before = std::mem::take(&mut self.previous);
        let mut previous = before.as_slice();
        let (mut kept_from, mut line_from) = (0, 0);
        for end in memchr_iter(b'\n', lines) {
            let line = &lines[line_from..=end];
            if line == previous && line.len() <= LINE_BYTES_MAX {
                if self.copies == 0 {
                    self.folded.push(&lines[kept_from..line_from]);
                }
                self.copies += 1;
                kept_from = end + 1;
            } else {
                if self.copies > 0 {
                    self.release(previous);
                }
                previous = line;
            }
            line_from = end + 1;
        }
        self.folded.push(&lines[kept_from..line_from]);
        self.previous = if previous.len() <= LINE_BYTES_MAX { previous.to_vec() } else { Vec::new() };
    }

    /// Takes a part of a line.
    fn extend_line(&mut self, part: &[u8]) {
        if !self.in_long_line {
            if self.partial.len() + part.len() <= LINE_BYTES_MAX {
                return self.partial.extend_from_slice(part);
            }
            self.in_long_line = true;
            self.end_run();
            let begun = std::mem::take(&mut self.partial);
            self.folded.push(&begun);
        }
        self.folded.push(part);
    }

    fn end_run(&mut self) {
        let previous = std::mem::take(&mut self.previous);
        if self.copies > 0 {
            self.release(&previous);
        }
    }

    /// Lets out what was held back: one line that counts them, or the few that are no run.
    fn release(&mut self, line: &[u8]) {
        let copies = std::mem::take(&mut self.copies);
        if copies < self.threshold - 1 {
            (0..copies).for_each(|_| self.folded.push(line));
        } else {
            self.folded.push(marker(copies).as_bytes());
        }
    }
}

fn marker(copies: u64) -> String {
    format!("[{copies} additional exact copies of this line]\n")
}

/// Whether a text has a run to fold; costs less than folding it.
pub(super) fn has_run(text: &[u8], threshold: u64) -> bool {
    let (mut previous, mut alike, mut line_from) = (&[][..], 0, 0);
    for end in memchr_iter(b'\n', text) {
        let line = &text[line_from..=end];
        alike = if line == previous && line.len() <= LINE_BYTES_MAX { alike + 1 } else { 1 };
        if alike >= threshold {
            return true;
        }
        previous = line;
        line_from = end + 1;
    }
    false
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::{Just, Strategy, any, prop_assert_eq, prop_oneof, proptest};

    use super::{Excerpt, Fold, LINE_BYTES_MAX, has_run, marker};

    fn folded(pieces: &[&[u8]], threshold: u64) -> String {
        let mut fold = Fold::new(threshold, Excerpt::new(1 << 20, 0));
        pieces.iter().for_each(|piece| fold.push(piece));
        fold.finish().into_front()
    }

    /// The same by the words of its definition.
    fn naive(text: &str, threshold: u64) -> String {
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        let mut folded = String::new();
        let mut rest = lines.as_slice();
        while let Some(first) = rest.first() {
            let alike = rest.iter().take_while(|line| line == &first && line.ends_with('\n')).count().max(1);
            let shown = if alike as u64 >= threshold { 1 } else { alike };
            folded.push_str(&first.repeat(shown));
            if shown < alike {
                folded.push_str(&marker(alike as u64 - 1));
            }
            rest = &rest[alike..];
        }
        folded
    }

    fn repetitive() -> impl Strategy<Value = String> {
        let line = prop_oneof![Just("a\n"), Just("b\n"), Just("\n"), Just("界界\n"), Just("aa\n"), Just("a")];
        vec((line, 1_usize..6), 0..12)
            .prop_map(|runs| runs.into_iter().map(|(line, count)| line.repeat(count)).collect())
    }

    proptest! {
        #[test]
        fn folding_pieces_equals_folding_by_definition(
            text in repetitive(), threshold in 2_u64..5, cuts in vec(any::<u8>(), 0..8),
        ) {
            let bytes = text.as_bytes();
            let mut at: Vec<usize> = cuts.iter().map(|cut| usize::from(*cut) % (bytes.len() + 1)).collect();
            at.extend([0, bytes.len()]);
            at.sort_unstable();
            let pieces: Vec<&[u8]> = at.windows(2).map(|ends| &bytes[ends[0]..ends[1]]).collect();
            let expected = naive(&text, threshold);
            prop_assert_eq!(&folded(&pieces, threshold), &expected);
            prop_assert_eq!(has_run(bytes, threshold), expected != text);
        }
    }

    #[test]
    fn four_alike_lines_are_one_and_three_more() {
        assert_eq!(
            folded(&[b"before\nx\nx\nx\nx\nend"], 3),
            "before\nx\n[3 additional exact copies of this line]\nend"
        );
        assert_eq!(folded(&[b"x\nx\nx"], 3), "x\nx\nx", "the last line has no end");
    }

    #[test]
    fn a_line_too_long_to_compare_belongs_to_no_run_however_it_is_cut() {
        let long = format!("{}\n", "y".repeat(LINE_BYTES_MAX));
        let fits = format!("{}\n", "y".repeat(LINE_BYTES_MAX - 1));
        let text = format!("a\na\na\n{long}{long}{long}{fits}{fits}{fits}");
        let expected = format!("a\n{}{long}{long}{long}{fits}{}", marker(2), marker(2));
        let whole = folded(&[text.as_bytes()], 3);
        assert!(whole == expected);
        for step in [1000, 65_536, LINE_BYTES_MAX + 1] {
            assert!(folded(&text.as_bytes().chunks(step).collect::<Vec<_>>(), 3) == expected, "{step}");
        }
    }
}
