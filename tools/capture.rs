//! What is kept of a command's output, and the text that the model gets of it.
//!
//! Both streams are kept together in order of arrival: the first [`HEAD_BYTES_MAX`] and the last [`TAIL_BYTES_MAX`]
//! bytes, for the start of an output says what ran and its end how it went. Memory is bounded however long the
//! output is, every byte is counted, and no cut splits a character: the head backs off to the boundary, the tail
//! moves on to it. What was left out is said once in the text, and as numbers in [`CaptureReport`], which no later
//! cut can lose. The text, with what `bash` says beneath it, is so short that no later stage cuts it once more: bytes
//! that take more room on the screen than in the pipe are counted with that.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt::Write as _;

use crate::effects::processes::Stream;
use crate::outcome::Excerpt;
use crate::screen_text;
use crate::text::{is_continuation, lossy, unfinished_bytes};

/// Bytes kept from the start of an output.
pub const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Bytes kept from its end. 2 KiB less than what would fill 100 KiB: those are for the marker and for what is said of
/// the ending.
pub const TAIL_BYTES_MAX: usize = 34 * 1024;
/// Longest line that is shown whole, in bytes.
pub const LINE_BYTES_MAX: usize = 8 * 1024;
/// Bytes shown from the start of a longer line; the rest of [`LINE_BYTES_MAX`] is shown from its end.
const LINE_HEAD_BYTES: usize = 6 * 1024;

/// The output of a command while it runs.
#[derive(Debug)]
pub struct Capture {
    head: Vec<u8>,
    head_bytes_max: usize,
    /// How many bytes the head takes as text.
    head_width: usize,
    /// Nothing more goes to the head.
    head_full: bool,
    tail: VecDeque<u8>,
    tail_bytes_max: usize,
    /// Whose bytes the tail holds, in order.
    tail_runs: VecDeque<(Stream, usize)>,
    /// The start of a character whose end has not arrived, for each stream.
    unfinished: [Vec<u8>; 2],
    total_bytes: [u64; 2],
    kept_bytes: [u64; 2],
    newlines: u64,
}

/// What became of the bytes of one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamCount {
    /// Bytes that were written to it.
    pub total_bytes: u64,
    /// Bytes that were kept.
    pub kept_bytes: u64,
}

/// What became of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CaptureReport {
    /// Standard output.
    pub out: StreamCount,
    /// Standard error.
    pub err: StreamCount,
    /// Lines that are shown without their middle.
    pub clamped_lines: u64,
    /// Whether kept lines were drawn over, so that the text has only what stood there last.
    pub has_redraws: bool,
    /// Kept bytes that are not UTF-8; each run of them is shown as one or more U+FFFD.
    pub invalid_bytes: u64,
}

impl CaptureReport {
    /// Bytes of both streams together.
    pub fn total_bytes(&self) -> u64 {
        self.out.total_bytes + self.err.total_bytes
    }

    /// Kept bytes of both streams together.
    pub fn kept_bytes(&self) -> u64 {
        self.out.kept_bytes + self.err.kept_bytes
    }

    /// Bytes that were not kept.
    pub fn omitted_bytes(&self) -> u64 {
        self.total_bytes() - self.kept_bytes()
    }

    /// How the text differs from all that was written, by more than its control sequences.
    pub fn excerpt(&self) -> Excerpt {
        match (self.has_redraws || self.clamped_lines > 0, self.omitted_bytes() > 0) {
            (false, false) => Excerpt::Whole,
            (false, true) => Excerpt::Cut { shown_bytes: self.kept_bytes() },
            (true, false) => Excerpt::Rewritten,
            (true, true) => Excerpt::RewrittenAndCut,
        }
    }

    /// Whether the text lacks anything that was written.
    pub fn is_truncated(&self) -> bool {
        self.omitted_bytes() > 0 || self.clamped_lines > 0
    }
}

impl Default for Capture {
    fn default() -> Self {
        Self::with_limits(HEAD_BYTES_MAX, TAIL_BYTES_MAX)
    }
}

impl Capture {
    /// Keeps this many bytes from the start and from the end.
    pub fn with_limits(head_bytes_max: usize, tail_bytes_max: usize) -> Self {
        Self {
            head: Vec::new(),
            head_bytes_max,
            head_width: 0,
            head_full: false,
            tail: VecDeque::new(),
            tail_bytes_max,
            tail_runs: VecDeque::new(),
            unfinished: [Vec::new(), Vec::new()],
            total_bytes: [0; 2],
            kept_bytes: [0; 2],
            newlines: 0,
        }
    }

    /// Takes the next bytes of a stream. Gives back what can be shown of it now: whole characters, so the start of
    /// one waits here for its end.
    pub fn push<'a>(&mut self, stream: Stream, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        self.total_bytes[stream as usize] += bytes.len() as u64;
        let waiting = std::mem::take(&mut self.unfinished[stream as usize]);
        let mut whole = if waiting.is_empty() { Cow::Borrowed(bytes) } else { Cow::Owned([&waiting, bytes].concat()) };
        let end = whole.len() - unfinished_bytes(&whole);
        self.unfinished[stream as usize] = whole[end..].to_vec();
        match &mut whole {
            Cow::Borrowed(bytes) => *bytes = &bytes[..end],
            Cow::Owned(bytes) => bytes.truncate(end),
        }
        self.keep(stream, &whole);
        whole
    }

    fn keep(&mut self, stream: Stream, bytes: &[u8]) {
        self.newlines += newlines(bytes);
        let mut rest = bytes;
        if !self.head_full {
            let (end, width) = fitting(rest, self.head_bytes_max - self.head_width);
            self.head_full = end < rest.len();
            self.head_width += width;
            self.head.extend_from_slice(&rest[..end]);
            self.kept_bytes[stream as usize] += end as u64;
            rest = &rest[end..];
        }
        if rest.is_empty() {
            return;
        }
        let last = &rest[rest.len().saturating_sub(self.tail_bytes_max)..];
        self.drop_oldest((self.tail.len() + last.len()).saturating_sub(self.tail_bytes_max));
        self.tail.extend(last);
        self.kept_bytes[stream as usize] += last.len() as u64;
        match self.tail_runs.back_mut() {
            Some((of, count)) if *of == stream => *count += last.len(),
            _ => self.tail_runs.push_back((stream, last.len())),
        }
    }

    /// Forgets the oldest bytes of the tail.
    fn drop_oldest(&mut self, count: usize) {
        self.tail.drain(..count);
        let mut left = count;
        while let Some((stream, run)) = self.tail_runs.front_mut() {
            let taken = left.min(*run);
            self.kept_bytes[*stream as usize] -= taken as u64;
            *run -= taken;
            left -= taken;
            if *run > 0 {
                break;
            }
            self.tail_runs.pop_front();
        }
    }

    /// All bytes so far, but for the start of a character whose end has not arrived; none once there were more than
    /// fit into the head.
    pub fn whole(&self) -> Option<&[u8]> {
        (!self.head_full).then_some(self.head.as_slice())
    }

    /// The first bytes, as many as are kept of the start.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// The starts of characters whose ends have not arrived.
    pub fn unfinished(&self) -> [&[u8]; 2] {
        [&self.unfinished[0], &self.unfinished[1]]
    }

    /// How many bytes are held now.
    pub fn held_bytes(&self) -> usize {
        self.head.len() + self.tail.len() + self.unfinished.iter().map(Vec::len).sum::<usize>()
    }

    /// Ends the capture: the text for the model, and what became of the output.
    pub fn finish(mut self) -> (String, CaptureReport) {
        for stream in [Stream::Out, Stream::Err] {
            let rest = std::mem::take(&mut self.unfinished[stream as usize]);
            self.keep(stream, &rest);
        }
        self.narrow_tail();
        if self.omitted_bytes() > 0 {
            let cut = self.tail.iter().take(3).take_while(|byte| is_continuation(**byte)).count();
            self.drop_oldest(cut);
        }
        let count = |stream: Stream| StreamCount {
            total_bytes: self.total_bytes[stream as usize],
            kept_bytes: self.kept_bytes[stream as usize],
        };
        let mut report = CaptureReport { out: count(Stream::Out), err: count(Stream::Err), ..CaptureReport::default() };
        let text = self.render(&mut report);
        (text, report)
    }

    /// Forgets so much of the tail that it takes no more room as text than it may.
    fn narrow_tail(&mut self) {
        let bytes = self.tail.make_contiguous();
        let (_, width) = fitting(bytes, usize::MAX);
        let (mut excess, mut cut) = (width.saturating_sub(self.tail_bytes_max), 0);
        for (bytes, width) in widths(bytes) {
            if excess == 0 {
                break;
            }
            excess = excess.saturating_sub(width);
            cut += bytes;
        }
        self.drop_oldest(cut);
    }

    fn omitted_bytes(&self) -> u64 {
        self.total_bytes.iter().sum::<u64>() - self.kept_bytes.iter().sum::<u64>()
    }

    fn render(self, report: &mut CaptureReport) -> String {
        let omitted_bytes = report.omitted_bytes();
        let tail = Vec::from(self.tail);
        if omitted_bytes == 0 {
            let all = if tail.is_empty() { self.head } else { [self.head, tail].concat() };
            let all = decoded(&all, report).into_owned();
            return clamped(&drawn(&all, report), report);
        }
        let omitted_lines = self.newlines - newlines(&self.head) - newlines(&tail);
        let head = decoded(&self.head, report).into_owned();
        let tail = decoded(&tail, report).into_owned();
        let (head, tail) = (drawn(&head, report), drawn(&tail, report));
        // The line in progress at either side of the gap.
        let (before, start) = head.split_at(head.rfind('\n').map_or(0, |at| at + 1));
        let (end, after) = tail.split_at(tail.find('\n').unwrap_or(tail.len()));
        let mut text = clamped(before, report);
        if omitted_lines == 0 {
            // The gap lies within one line: that line has one marker for all that it lacks.
            let length = start.len() as u64 + omitted_bytes + end.len() as u64;
            push_long_line(&mut text, start, end, length, report);
        } else {
            text.push_str(&clamped(start, report));
            if !text.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
            let total_bytes = report.total_bytes();
            let _ = writeln!(
                text,
                "[… {omitted_bytes} of {total_bytes} bytes ({omitted_lines} line ends) are left out here …]"
            );
            text.push_str(&clamped(end, report));
        }
        text.push_str(&clamped(after, report));
        text
    }
}

/// The lines as they were drawn last.
fn drawn<'a>(text: &'a str, report: &mut CaptureReport) -> Cow<'a, str> {
    report.has_redraws |= screen_text::has_redraws(text);
    screen_text::settled(text)
}

/// The text with the middle of each long line replaced by a marker.
fn clamped(text: &str, report: &mut CaptureReport) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let (line, ending) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
        if line.len() <= LINE_BYTES_MAX {
            out.push_str(line);
        } else {
            push_long_line(&mut out, line, line, line.len() as u64, report);
        }
        out.push_str(ending);
    }
    out
}

/// Writes a line of `length_bytes`, whose start and end are known, without its middle.
fn push_long_line(out: &mut String, start: &str, end: &str, length_bytes: u64, report: &mut CaptureReport) {
    let start = &start[..start.floor_char_boundary(LINE_HEAD_BYTES)];
    let end = &end[end.ceil_char_boundary(end.len().saturating_sub(LINE_BYTES_MAX - LINE_HEAD_BYTES))..];
    let omitted_bytes = length_bytes - start.len() as u64 - end.len() as u64;
    report.clamped_lines += 1;
    let _ = write!(out, "{start}[… {omitted_bytes} of {length_bytes} bytes of this line are left out here …]{end}");
}

/// The bytes as text; counts those that are none.
fn decoded<'a>(bytes: &'a [u8], report: &mut CaptureReport) -> Cow<'a, str> {
    let text = lossy(bytes);
    if let Cow::Owned(_) = text {
        report.invalid_bytes += bytes.utf8_chunks().map(|chunk| chunk.invalid().len() as u64).sum::<u64>();
    }
    text
}

/// Each character and each run of bytes that are none: how many bytes it has, and how many at most as text on the
/// screen.
fn widths(bytes: &[u8]) -> impl Iterator<Item = (usize, usize)> {
    bytes.utf8_chunks().flat_map(|chunk| {
        let shown = |c: char| match c {
            '\n' | '\t' => 1,
            // It may be shown as a picture of itself.
            c if c.is_control() => 3,
            c => c.len_utf8(),
        };
        let valid = chunk.valid().chars().map(move |c| (c.len_utf8(), shown(c)));
        let invalid = chunk.invalid().len();
        valid.chain((invalid > 0).then_some((invalid, char::REPLACEMENT_CHARACTER.len_utf8())))
    })
}

/// How many of these bytes, from the first on, fit as text into the room, and how much of it they take.
fn fitting(bytes: &[u8], room: usize) -> (usize, usize) {
    let (mut end, mut taken) = (0, 0);
    for (bytes, width) in widths(bytes) {
        if width > room - taken {
            break;
        }
        end += bytes;
        taken += width;
    }
    (end, taken)
}

fn newlines(bytes: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', bytes).count() as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, proptest};

    use super::{Capture, CaptureReport, LINE_BYTES_MAX, LINE_HEAD_BYTES, StreamCount};
    use crate::effects::processes::Stream::{self, Err, Out};

    fn captured(capture: Capture, chunks: &[(Stream, &[u8])]) -> (String, CaptureReport) {
        let mut capture = capture;
        for (stream, bytes) in chunks {
            capture.push(*stream, bytes);
        }
        capture.finish()
    }

    #[test]
    fn what_fits_is_whole_and_in_order_of_arrival() {
        let (text, report) = captured(Capture::with_limits(6, 6), &[(Out, b"one\n"), (Err, b"two\n"), (Out, b"end\n")]);
        assert_eq!(text, "one\ntwo\nend\n");
        assert_eq!(report.out, StreamCount { total_bytes: 8, kept_bytes: 8 });
        assert_eq!(report.err, StreamCount { total_bytes: 4, kept_bytes: 4 });
        assert!(!report.is_truncated());
        assert_eq!(captured(Capture::default(), &[]), (String::new(), CaptureReport::default()));
    }

    // Case C013: a cut never splits a character.
    #[test]
    fn cuts_stand_between_characters() {
        let (text, report) = captured(Capture::with_limits(10, 0), &[(Out, "aaaaaaaa中".as_bytes())]);
        assert!(text.starts_with("aaaaaaaa["), "{text}");
        assert_eq!((report.kept_bytes(), report.omitted_bytes(), report.invalid_bytes), (8, 3, 0));
        // The tail's cut falls into the character: it goes as a whole.
        let (text, report) = captured(Capture::with_limits(0, 10), &[(Out, "x中bbbbbbbb".as_bytes())]);
        assert!(text.ends_with("]bbbbbbbb"), "{text}");
        assert_eq!((report.kept_bytes(), report.omitted_bytes(), report.invalid_bytes), (8, 4, 0));
    }

    #[test]
    fn a_character_in_two_chunks_is_one_even_with_the_other_stream_between() {
        let [a, b, c] = [0xe4, 0xb8, 0xad];
        let mut capture = Capture::default();
        assert_eq!(capture.push(Out, &[b'x', a, b]).as_ref(), b"x");
        assert_eq!(capture.push(Err, b"!").as_ref(), b"!");
        assert_eq!(capture.push(Out, &[c, b'y']).as_ref(), "中y".as_bytes());
        let (text, report) = capture.finish();
        assert_eq!((text.as_str(), report.invalid_bytes), ("x!中y", 0));
    }

    // Case C015: bytes that are no text are shown as such and counted.
    #[test]
    fn bytes_that_are_not_utf8_do_not_end_the_text() {
        let (text, report) = captured(Capture::default(), &[(Out, b"a\xff\0b\n"), (Out, b"\xe4\xb8")]);
        assert_eq!(text, "a\u{fffd}␀b\n\u{fffd}");
        assert_eq!((report.invalid_bytes, report.kept_bytes()), (3, 7));
        assert!(!report.is_truncated());
    }

    // Case C016: one enormous line, whole in memory and not.
    #[test]
    fn a_long_line_has_one_marker_with_its_length() {
        for length in [LINE_BYTES_MAX + 1, 100_000, 200_000] {
            let line = "x".repeat(length);
            let (text, report) = captured(Capture::default(), &[(Out, line.as_bytes()), (Out, b"\nnext\n")]);
            let omitted = length - LINE_BYTES_MAX;
            assert!(
                text.contains(&format!("[… {omitted} of {length} bytes of this line are left out here …]")),
                "{length}"
            );
            assert_eq!((text.matches('…').count(), report.clamped_lines), (2, 1), "{length}");
            assert!(text.ends_with("\nnext\n") && report.is_truncated());
            assert!(text.len() < LINE_BYTES_MAX + 100, "{}", text.len());
        }
        let wide = "中".repeat(LINE_BYTES_MAX);
        let (text, _) = captured(Capture::default(), &[(Out, wide.as_bytes())]);
        assert!(text.starts_with(&"中".repeat(LINE_HEAD_BYTES / 3)) && text.ends_with('中'));
    }

    // Case C018: what is left out is said once, with exact numbers.
    #[test]
    fn a_gap_has_one_marker_with_exact_numbers() {
        let lines: String = (0..100_000).map(|n| format!("{n}\n")).collect();
        let mut capture = Capture::default();
        for chunk in lines.as_bytes().chunks(1000) {
            capture.push(Out, chunk);
            assert!(capture.held_bytes() <= super::HEAD_BYTES_MAX + super::TAIL_BYTES_MAX + 6);
        }
        let (text, report) = capture.finish();
        assert_eq!(report.total_bytes(), lines.len() as u64);
        let omitted = report.omitted_bytes();
        assert!(text.starts_with("0\n1\n2\n") && text.ends_with("\n99998\n99999\n"));
        assert_eq!(text.matches("left out").count(), 1);
        let marker = text.lines().find(|line| line.contains("left out")).unwrap();
        assert!(marker.starts_with(&format!("[… {omitted} of {} bytes (", lines.len())), "{marker}");
        let (head, tail) = text.split_once(marker).unwrap();
        let ends: u64 = marker.split('(').nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        // One line end of the text stands for the start of the marker's line, one for its end.
        assert_eq!(head.matches('\n').count() + tail.matches('\n').count() - 2 + ends as usize, 100_000);
    }

    // Case C018: bytes that take more room as text leave room for what is said of them.
    #[test]
    fn the_text_is_short_enough_for_every_later_stage() {
        for byte in [0xff_u8, 0, 0x1b, b'\r', b'x'] {
            let mut line = vec![byte; 100];
            line.push(b'\n');
            let mut capture = Capture::default();
            for _ in 0..5000 {
                capture.push(Out, &line);
                capture.push(Err, &line);
            }
            let (text, report) = capture.finish();
            assert!(text.len() <= super::HEAD_BYTES_MAX + super::TAIL_BYTES_MAX + 200, "{byte}: {}", text.len());
            assert_eq!((report.out.total_bytes, report.err.total_bytes), (505_000, 505_000));
            assert_eq!(report.out.kept_bytes.abs_diff(report.err.kept_bytes) / 202, 0, "{byte}: {report:?}");
        }
    }

    // Case C020: what the model sees is what stands on the screen at last.
    #[test]
    fn redraws_and_colours_are_gone() {
        let raw = b"10%\r50%\r100%\n\x1b[31mred\x1b[0m\x1b]0;t\x07\n";
        let (text, report) = captured(Capture::default(), &[(Out, raw)]);
        assert_eq!(text, "100%\nred\n");
        assert_eq!(report.kept_bytes(), raw.len() as u64);
    }

    proptest! {
        #[test]
        fn counts_add_up(
            chunks in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..40)), 0..40),
            head in 0_usize..80, tail in 0_usize..80,
        ) {
            let mut capture = Capture::with_limits(head, tail);
            let mut written = [0_u64; 2];
            for (is_err, bytes) in &chunks {
                capture.push(if *is_err { Err } else { Out }, bytes);
                written[usize::from(*is_err)] += bytes.len() as u64;
                prop_assert!(capture.held_bytes() <= head + tail + 6);
            }
            let (text, report) = capture.finish();
            prop_assert_eq!([report.out.total_bytes, report.err.total_bytes], written);
            prop_assert!(report.out.kept_bytes <= written[0] && report.err.kept_bytes <= written[1]);
            prop_assert!(report.kept_bytes() <= (head + tail) as u64);
            prop_assert!(report.invalid_bytes <= report.kept_bytes());
            prop_assert_eq!(text.contains("left out"), report.omitted_bytes() > 0);
            prop_assert!(text.len() <= head + tail + 200, "{} bytes of text", text.len());
        }

        #[test]
        fn text_stays_text_wherever_it_is_cut(
            out in "\\PC{0,60}", err in "\\PC{0,60}", step in 1_usize..7, head in 0_usize..80, tail in 0_usize..80,
        ) {
            let mut capture = Capture::with_limits(head, tail);
            let (mut out_chunks, mut err_chunks) = (out.as_bytes().chunks(step), err.as_bytes().chunks(step));
            let mut shown = Vec::new();
            loop {
                let (a, b) = (out_chunks.next(), err_chunks.next());
                if a.is_none() && b.is_none() { break; }
                for (stream, chunk) in [(Out, a), (Err, b)] {
                    let part = capture.push(stream, chunk.unwrap_or_default());
                    prop_assert!(std::str::from_utf8(&part).is_ok());
                    shown.extend_from_slice(&part);
                }
            }
            let (text, report) = capture.finish();
            prop_assert_eq!(report.invalid_bytes, 0);
            if report.omitted_bytes() == 0 {
                prop_assert_eq!(text.as_bytes(), shown.as_slice());
            } else {
                prop_assert!(report.kept_bytes() + 6 >= (head + tail).min(shown.len()) as u64);
                let shown = String::from_utf8(shown).unwrap();
                let kept_start = text.split_once("[…").unwrap().0.trim_end_matches('\n');
                prop_assert!(shown.starts_with(kept_start));
            }
        }
    }
}
