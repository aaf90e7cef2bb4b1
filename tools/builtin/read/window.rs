//! A window of lines out of a file of any size, in bounded memory.
//!
//! One pass through one buffer: lines before the window are counted, those in it are kept up to a length, and
//! behind it reading stops unless the whole is wanted for its digest. Lines end at LF alone, whatever Unicode says.

use std::io::{self, Read, Seek, SeekFrom};

use thiserror::Error;

use super::super::reach::Stop;
use super::line_index::{Known, LineCounter, Marks};
use crate::cancellation::CancelReason;
use crate::digest::{Digest, RunningDigest};
use crate::text::{Encoding, binary_kind};

/// Bytes read at a time.
pub(super) const BUFFER_BYTES: usize = 256 * 1024;
/// Bytes shown of one line.
pub(super) const LINE_BYTES_MAX: usize = 2000;
/// Bytes read of a file that makes its content on the fly and so has no size.
pub(super) const UNSIZED_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// Least width of a line's number.
const NUMBER_WIDTH: usize = 6;
/// Digits of the largest number.
const NUMBER_DIGITS_MAX: usize = 20;
/// Start of a file in which a NUL makes it binary although the line with it is only skipped.
const BINARY_PROBE_BYTES: usize = 8 * 1024;
/// Up to this size a file gets room for its text at once.
const EXPECTED_BYTES_MAX: usize = 64 * 1024;
/// How much is looked at together for what makes lines plain, in bytes.
const BLOCK_BYTES: usize = 16 * 1024;
/// Most numbers of cut lines that are remembered.
const CUT_LINES_MAX: usize = 32;

/// Which lines are wanted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    /// Lines before the first one.
    pub(super) offset: u64,
    /// Most lines.
    pub(super) limit: u64,
    /// Most bytes of [`Window::text`].
    pub(super) text_bytes_max: usize,
    /// Whether to go on to the end for the digest and the number of lines.
    pub(super) whole: bool,
}

/// What was found.
#[derive(Debug)]
pub(super) struct Window {
    /// The lines, numbered from 1 and each ended by LF.
    pub(super) text: String,
    /// Where each line ends in `text`.
    pub(super) ends: Vec<usize>,
    /// Numbers of the first lines that were cut, from 1.
    pub(super) cut_lines: Vec<u64>,
    /// Whether lines follow the last one shown.
    pub(super) more: bool,
    /// How many lines the file has, when its end was reached.
    pub(super) total_lines: Option<u64>,
    /// The digest of all bytes, when the whole was wanted.
    pub(super) digest: Option<Digest>,
    /// How the bytes were read.
    pub(super) encoding: Encoding,
    /// Whether something in it was no well-formed text and is shown as U+FFFD.
    pub(super) replaced: bool,
}

/// Why there is no window.
#[derive(Debug, Error)]
pub(super) enum WindowError {
    /// Not text.
    #[error("{kind}")]
    Binary {
        /// What it seems to be.
        kind: &'static str,
        /// The line, from 1, that the first NUL stands in.
        nul_line: Option<u64>,
    },
    /// The file could not be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Nobody wants the result any more.
    #[error("{0}")]
    Stopped(CancelReason),
}

impl Window {
    /// Reads a window out of a file of this size, from its start or, where it is known, from near the window.
    pub(super) fn read(
        file: &mut (impl Read + Seek + ?Sized),
        size_bytes: u64,
        wanted: Wanted,
        known: Option<&Known>,
        stop: &Stop,
    ) -> Result<(Self, Option<Marks>), WindowError> {
        // What is appended while we read belongs to the next call.
        let bytes_max = if size_bytes == 0 { UNSIZED_BYTES_MAX } else { size_bytes };
        let mark = known.and_then(|known| Some((known, known.marks.before(wanted.offset)?)));
        let (at, line) = mark.map_or((0, 0), |(_, mark)| mark);
        if at > 0 {
            file.seek(SeekFrom::Start(at))?;
        }
        let mut file = file.take(bytes_max - at.min(bytes_max));
        let buffer_bytes = usize::try_from(bytes_max).map_or(BUFFER_BYTES, |bytes| bytes.min(BUFFER_BYTES));
        let mut buffer = vec![0; buffer_bytes];
        let start_bytes = fill(&mut file, &mut buffer)?;
        let start = &buffer[..start_bytes];
        let encoding = match mark {
            Some((known, _)) => known.encoding,
            None => Encoding::detect(start, start_bytes as u64 == bytes_max || start_bytes < buffer.len()),
        };
        let is_wide = matches!(encoding, Encoding::Utf16Le | Encoding::Utf16Be);
        let mut is_marked = !is_wide && size_bytes > 0;
        let mut mark_bytes = 0;
        if mark.is_none() {
            refuse_binary(start, encoding, wanted)?;
            // With a NUL in its start it depends on the window whether a file is text: it is always looked at.
            is_marked &= memchr::memchr(0, &start[..start.len().min(BINARY_PROBE_BYTES)]).is_none();
            mark_bytes = encoding.mark().len();
        }
        let marks = known.map(|known| known.marks.clone()).unwrap_or_default();
        let mut counter = LineCounter::from(at + mark_bytes as u64, line, marks);
        let mut scan = Scan::new(wanted, is_wide);
        scan.expect_bytes(start_bytes);
        let mut decoder = encoding.decoder().map(Decoding::new);
        let mut digest = wanted.whole.then(RunningDigest::default);
        let mut filled = start_bytes;
        while filled > 0 {
            if let Some(reason) = stop.reason() {
                return Err(WindowError::Stopped(reason));
            }
            let raw = &buffer[..filled];
            if let Some(digest) = &mut digest {
                digest.update(raw);
            }
            let mut body = &raw[mark_bytes.min(raw.len())..];
            mark_bytes = 0;
            if !is_wide {
                // Everything but UTF-16 has its line ends where LF is, and begins anew behind one.
                body = counter.skip_to(body, wanted.offset);
                counter.count(body);
            }
            match &mut decoder {
                None => scan.feed(body),
                Some(_) if body.is_empty() => {}
                Some(decoder) => decoder.feed(body, false, &mut scan),
            }
            scan.check()?;
            if scan.is_done() && scan.more && digest.is_none() {
                let total_lines = known.and_then(|known| known.total_lines);
                return Ok((scan.finish(None, total_lines, encoding), is_marked.then_some(counter.marks)));
            }
            filled = fill(&mut file, &mut buffer)?;
        }
        if let Some(decoder) = &mut decoder {
            decoder.feed(&[], true, &mut scan);
        }
        scan.end_of_file();
        scan.check()?;
        // The end of an unsized file may be our own limit.
        let ended = size_bytes > 0 || file.limit() > 0;
        let total_lines = ended.then(|| if is_wide { scan.line } else { counter.total() });
        scan.more |= !ended;
        let digest = digest.filter(|_| ended).map(RunningDigest::finish);
        Ok((scan.finish(digest, total_lines, encoding), is_marked.then_some(counter.marks)))
    }

    /// How many lines are shown.
    pub(super) fn returned_lines(&self) -> u64 {
        self.ends.len() as u64
    }
}

/// Reads until the buffer is full or the file ends.
fn fill(file: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(bytes) => filled += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Refuses what its start shows to be no text. A NUL counts when its line is shown or skipped, not when it lies
/// behind the window.
fn refuse_binary(start: &[u8], encoding: Encoding, wanted: Wanted) -> Result<(), WindowError> {
    if let Some(kind) = binary_kind(start) {
        return Err(WindowError::Binary { kind, nul_line: None });
    }
    if matches!(encoding, Encoding::Utf16Le | Encoding::Utf16Be) {
        return Ok(());
    }
    let probe = &start[..start.len().min(BINARY_PROBE_BYTES)];
    if let Some(at) = memchr::memchr(0, probe) {
        let line = memchr::memchr_iter(b'\n', &probe[..at]).count() as u64;
        if line < wanted.offset.saturating_add(wanted.limit) {
            return Err(WindowError::Binary { kind: "data with NUL bytes", nul_line: Some(line + 1) });
        }
    }
    Ok(())
}

/// A decoder with room for its output.
struct Decoding {
    decoder: encoding_rs::Decoder,
    text: String,
}

impl Decoding {
    fn new(decoder: encoding_rs::Decoder) -> Self {
        Self { decoder, text: String::with_capacity(BUFFER_BYTES) }
    }

    fn feed(&mut self, mut raw: &[u8], last: bool, scan: &mut Scan) {
        loop {
            self.text.clear();
            let (result, read, replaced) = self.decoder.decode_to_string(raw, &mut self.text, last);
            scan.replaced |= replaced;
            scan.feed(self.text.as_bytes());
            raw = &raw[read..];
            if result == encoding_rs::CoderResult::InputEmpty {
                return;
            }
        }
    }
}

/// Where we are in the lines.
struct Scan {
    wanted: Wanted,
    /// Lines ended so far.
    line: u64,
    /// Whether bytes came since the last LF.
    open: bool,
    /// The start of the open line, when it is in the window: one byte more than is shown.
    held: Vec<u8>,
    /// All bytes of the open line.
    held_of_bytes: u64,
    last_byte: u8,
    text: String,
    ends: Vec<usize>,
    cut_lines: Vec<u64>,
    full: bool,
    more: bool,
    replaced: bool,
    nul_line: Option<u64>,
}

impl Scan {
    /// A scan of a whole file; lines before the window come too only when they are `skipped_here`.
    fn new(wanted: Wanted, skipped_here: bool) -> Self {
        Self {
            wanted: Wanted { whole: wanted.whole && skipped_here, ..wanted },
            line: if skipped_here { 0 } else { wanted.offset },
            open: false,
            held: Vec::new(),
            held_of_bytes: 0,
            last_byte: 0,
            text: String::new(),
            ends: Vec::new(),
            cut_lines: Vec::new(),
            full: false,
            more: false,
            replaced: false,
            nul_line: None,
        }
    }

    /// Makes room for so many bytes of ordinary lines.
    fn expect_bytes(&mut self, bytes: usize) {
        if self.wanted.offset == 0 && bytes <= EXPECTED_BYTES_MAX {
            self.text.reserve(bytes + bytes / 4);
            self.ends.reserve(bytes / 32);
        }
    }

    /// Whether the window is complete.
    fn is_done(&self) -> bool {
        self.full || self.ends.len() as u64 >= self.wanted.limit
    }

    fn check(&self) -> Result<(), WindowError> {
        match self.nul_line {
            Some(_) => Err(WindowError::Binary { kind: "data with NUL bytes", nul_line: self.nul_line }),
            None => Ok(()),
        }
    }

    fn feed(&mut self, chunk: &[u8]) {
        let mut rest = chunk;
        while !rest.is_empty() {
            if self.line < self.wanted.offset {
                rest = self.skip(rest);
                continue;
            }
            if self.is_done() {
                self.more = true;
                if self.wanted.whole {
                    self.count(rest);
                }
                return;
            }
            let plain_bytes = if self.open { 0 } else { self.show_plain_lines(rest) };
            if plain_bytes > 0 {
                rest = &rest[plain_bytes..];
                continue;
            }
            match memchr::memchr(b'\n', rest) {
                Some(end) if !self.open => {
                    // A line within one chunk is copied once.
                    let line = &rest[..end];
                    self.look_for_nul(line);
                    self.show_line(line, end as u64, line.last() == Some(&b'\r'));
                    rest = &rest[end + 1..];
                }
                Some(end) => {
                    self.hold(&rest[..end]);
                    self.end_line(true);
                    rest = &rest[end + 1..];
                }
                None => {
                    self.hold(rest);
                    return;
                }
            }
        }
    }

    /// Shows the whole lines at the start of `rest` that are plain, which most are: of well-formed text without a NUL,
    /// not too long, with room for them. Returns how many bytes they have; 0 when the next line is to be taken by itself.
    fn show_plain_lines(&mut self, rest: &[u8]) -> usize {
        let block = &rest[..rest.len().min(BLOCK_BYTES)];
        let text = std::str::from_utf8(block).or_else(|error| std::str::from_utf8(&block[..error.valid_up_to()]));
        let text = text.unwrap_or_default();
        let text = &text[..memchr::memchr(0, text.as_bytes()).unwrap_or(text.len())];
        let mut from = 0;
        for end in memchr::memchr_iter(b'\n', text.as_bytes()) {
            let line = &text[from..end];
            let line = line.strip_suffix('\r').unwrap_or(line);
            let fits = self.text.len() + NUMBER_DIGITS_MAX + line.len() + 2 <= self.wanted.text_bytes_max;
            if line.len() > LINE_BYTES_MAX || !fits || self.is_done() {
                break;
            }
            push_number(&mut self.text, self.line + 1);
            self.text.push_str(line);
            self.text.push('\n');
            self.ends.push(self.text.len());
            self.line += 1;
            from = end + 1;
        }
        from
    }

    /// Counts lines of `rest` up to the window; returns what is behind them.
    fn skip<'c>(&mut self, rest: &'c [u8]) -> &'c [u8] {
        let to_skip = self.wanted.offset - self.line;
        let here = memchr::memchr_iter(b'\n', rest).count() as u64;
        if here < to_skip {
            self.count_known(rest, here);
            return &[];
        }
        self.line = self.wanted.offset;
        self.open = false;
        let nth = usize::try_from(to_skip - 1).unwrap_or(usize::MAX);
        let end = memchr::memchr_iter(b'\n', rest).nth(nth).unwrap_or(rest.len() - 1);
        &rest[end + 1..]
    }

    fn count(&mut self, rest: &[u8]) {
        let here = memchr::memchr_iter(b'\n', rest).count() as u64;
        self.count_known(rest, here);
    }

    fn count_known(&mut self, rest: &[u8], line_ends: u64) {
        self.line += line_ends;
        self.open = rest.last() != Some(&b'\n');
    }

    /// Takes bytes of the open line.
    fn hold(&mut self, part: &[u8]) {
        self.open = true;
        self.look_for_nul(part);
        let room = (LINE_BYTES_MAX + 1).saturating_sub(self.held.len());
        self.held.extend_from_slice(&part[..part.len().min(room)]);
        self.held_of_bytes += part.len() as u64;
        self.last_byte = part.last().copied().unwrap_or(self.last_byte);
    }

    fn look_for_nul(&mut self, part: &[u8]) {
        if self.nul_line.is_none() && memchr::memchr(0, part).is_some() {
            self.nul_line = Some(self.line + 1);
        }
    }

    /// Shows the open line, when it still fits.
    fn end_line(&mut self, by_lf: bool) {
        let held = std::mem::take(&mut self.held);
        let ends_in_cr = by_lf && self.held_of_bytes > 0 && self.last_byte == b'\r';
        self.show_line(&held, self.held_of_bytes, ends_in_cr);
        self.held = held;
        self.held.clear();
        self.held_of_bytes = 0;
    }

    /// Shows a line of so many bytes, of which at least those that can be shown are here, when it still fits.
    fn show_line(&mut self, line: &[u8], of_bytes: u64, ends_in_cr: bool) {
        let line_bytes = of_bytes - u64::from(ends_in_cr);
        let cut = line_bytes > LINE_BYTES_MAX as u64;
        let shown_bytes = usize::try_from(line_bytes).map_or(LINE_BYTES_MAX, |bytes| bytes.min(LINE_BYTES_MAX));
        let before = self.text.len();
        push_number(&mut self.text, self.line + 1);
        self.replaced |= push_text(&mut self.text, &line[..shown_bytes], cut);
        self.text.push('\n');
        if self.text.len() > self.wanted.text_bytes_max {
            self.text.truncate(before);
            self.full = true;
            self.more = true;
        } else {
            self.ends.push(self.text.len());
            if cut && self.cut_lines.len() < CUT_LINES_MAX {
                self.cut_lines.push(self.line + 1);
            }
        }
        self.line += 1;
        self.open = false;
    }

    /// A last line may have no LF.
    fn end_of_file(&mut self) {
        if !self.open {
            return;
        }
        if self.line >= self.wanted.offset && !self.is_done() {
            self.end_line(false);
        } else {
            self.line += 1;
        }
    }

    fn finish(self, digest: Option<Digest>, total_lines: Option<u64>, encoding: Encoding) -> Window {
        Window {
            text: self.text,
            ends: self.ends,
            cut_lines: self.cut_lines,
            more: self.more,
            total_lines,
            digest,
            encoding,
            replaced: self.replaced,
        }
    }
}

/// Adds a line's number, at least [`NUMBER_WIDTH`] wide, and a tab. By hand, because formatting it took longer than
/// reading the line.
fn push_number(text: &mut String, number: u64) {
    let mut digits = [b' '; NUMBER_DIGITS_MAX];
    let (mut at, mut rest) = (digits.len(), number);
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    let from = at.min(digits.len() - NUMBER_WIDTH);
    // All of them are ASCII.
    text.push_str(std::str::from_utf8(&digits[from..]).unwrap_or_default());
    text.push('\t');
}

/// Adds bytes as text, at most [`LINE_BYTES_MAX`]; when they were `cut`, a part of a character at their end is left
/// out. Returns whether something had to be replaced.
fn push_text(text: &mut String, bytes: &[u8], cut: bool) -> bool {
    match std::str::from_utf8(bytes) {
        Ok(valid) => {
            text.push_str(valid);
            false
        }
        Err(error) if cut && error.error_len().is_none() => {
            let whole = &bytes[..error.valid_up_to()];
            text.push_str(&String::from_utf8_lossy(whole));
            false
        }
        Err(_) => {
            let lossy = String::from_utf8_lossy(bytes);
            text.push_str(&lossy[..lossy.floor_char_boundary(LINE_BYTES_MAX)]);
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Read, Seek, SeekFrom};

    use super::{BUFFER_BYTES, Wanted, Window, WindowError};
    use crate::builtin::reach::Stop;
    use crate::builtin::testing::context;
    use crate::cancellation::{CancelReason, Cancellation};
    use crate::digest::Digest;

    fn stop() -> Stop {
        Stop::of(&context(std::path::Path::new("/")))
    }

    fn wanted(offset: u64, limit: u64) -> Wanted {
        Wanted { offset, limit, text_bytes_max: 1 << 20, whole: false }
    }

    fn window(bytes: &[u8], wanted: Wanted) -> Result<Window, WindowError> {
        Window::read(&mut Cursor::new(bytes), bytes.len() as u64, wanted, None, &stop()).map(|(window, _)| window)
    }

    #[test]
    fn numbers_are_as_wide_as_if_formatted() {
        for number in [0, 7, 42, 99_999, 100_000, 999_999, 1_000_000, u64::MAX] {
            let mut text = String::new();
            super::push_number(&mut text, number);
            assert_eq!(text, format!("{number:>6}\t"));
        }
    }

    // Case C061: LF alone ends a line; CR before it is not shown, a lone CR is.
    #[test]
    fn a_line_ends_at_lf() {
        let found = window("a\u{c}b\u{2028}c\u{85}d\re\nTARGET\r\nlast".as_bytes(), wanted(0, 10)).unwrap();
        assert_eq!(found.text, "     1\ta\u{c}b\u{2028}c\u{85}d\re\n     2\tTARGET\n     3\tlast\n");
        assert_eq!((found.total_lines, found.more), (Some(3), false));
    }

    #[test]
    fn windows_at_every_place() {
        let file = b"1\n2\n3\n4\n5\n";
        for (offset, limit, lines, more, total) in [
            (0, 2, "12", true, None),
            (2, 2, "34", true, None),
            (3, 2, "45", false, Some(5)),
            (4, 9, "5", false, Some(5)),
            (5, 9, "", false, Some(5)),
            (9, 9, "", false, Some(5)),
        ] {
            let found = window(file, wanted(offset, limit)).unwrap();
            let shown: String = found.text.lines().map(|line| line.split_once('\t').unwrap().1).collect();
            assert_eq!((shown.as_str(), found.more, found.total_lines), (lines, more, total), "{offset} {limit}");
            let whole = window(file, Wanted { whole: true, ..wanted(offset, limit) }).unwrap();
            assert_eq!((whole.total_lines, whole.digest), (Some(5), Some(Digest::of(file))));
            assert_eq!((whole.text, whole.more), (found.text, found.more));
        }
        assert_eq!(window(b"", wanted(0, 5)).unwrap().total_lines, Some(0));
    }

    #[test]
    fn long_lines_are_cut_between_characters() {
        let exact = format!("{}\r\n", "x".repeat(2000));
        assert!(window(exact.as_bytes(), wanted(0, 1)).unwrap().cut_lines.is_empty());
        let long = format!("ok\n{}\nend", "世".repeat(200_000));
        let found = window(long.as_bytes(), wanted(0, 9)).unwrap();
        assert_eq!(found.cut_lines, [2]);
        let shown = found.text.lines().nth(1).unwrap().split_once('\t').unwrap().1;
        assert_eq!(shown, "世".repeat(666));
        assert!(!found.replaced);
        assert!(found.text.ends_with("     3\tend\n"));
    }

    #[test]
    fn the_text_stays_within_its_bytes() {
        let file = b"aaaa\nbbbb\ncccc\n";
        let found = window(file, Wanted { text_bytes_max: 24, ..wanted(0, 9) }).unwrap();
        assert_eq!((found.ends.len(), found.more), (2, true));
        let whole = window(file, Wanted { text_bytes_max: 24, whole: true, ..wanted(0, 9) }).unwrap();
        assert_eq!((whole.ends.len(), whole.total_lines), (2, Some(3)));
    }

    #[test]
    fn other_encodings_are_decoded_across_buffers() {
        let text: String = (0..60_000).map(|number| format!("Zeile {number} größer\n")).collect();
        let mut utf16 = vec![0xff, 0xfe];
        utf16.extend(text.encode_utf16().flat_map(u16::to_le_bytes));
        let latin: Vec<u8> = text.chars().map(|c| u8::try_from(u32::from(c)).unwrap()).collect();
        for (bytes, name) in [(&utf16, "utf-16le"), (&latin, "windows-1252")] {
            let found = window(bytes, wanted(59_999, 5)).unwrap();
            assert_eq!(found.text, " 60000\tZeile 59999 größer\n");
            assert_eq!((found.encoding.to_string().as_str(), found.replaced), (name, false));
        }
    }

    #[test]
    fn binary_is_told_from_text() {
        let elf = window(b"\x7fELF\x02\x01\x01\0\0", wanted(0, 9)).unwrap_err();
        assert!(matches!(elf, WindowError::Binary { kind: "ELF program or library", .. }));
        let nul = window(b"a\nb\0\nc\n", wanted(2, 9)).unwrap_err();
        assert!(matches!(nul, WindowError::Binary { nul_line: Some(2), .. }));
        assert!(window(b"a\nb\0\nc\n", wanted(0, 1)).is_ok(), "the NUL lies behind the window");
        let mut late = b"x\n".repeat(300_000);
        late.extend_from_slice(b"a\0b\n");
        assert!(matches!(window(&late, wanted(300_000, 1)), Err(WindowError::Binary { nul_line: Some(300_001), .. })));
        assert!(window(&late, wanted(299_999, 1)).is_ok());
    }

    /// Gives lines for ever and cancels at the third read.
    struct Endless {
        cancel: Cancellation,
        reads: usize,
    }

    impl Read for Endless {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            self.reads += 1;
            if self.reads == 3 {
                self.cancel.cancel(CancelReason::Requested);
            }
            buffer.fill(b'\n');
            Ok(buffer.len())
        }
    }

    impl Seek for Endless {
        fn seek(&mut self, _to: SeekFrom) -> std::io::Result<u64> {
            Err(std::io::ErrorKind::Unsupported.into())
        }
    }

    #[test]
    fn a_cancelled_read_ends_at_the_next_buffer() {
        let ctx = context(std::path::Path::new("/"));
        let mut file = Endless { cancel: ctx.cancel.clone(), reads: 0 };
        let ended = Window::read(&mut file, u64::MAX, wanted(u64::MAX, 1), None, &Stop::of(&ctx)).unwrap_err();
        assert!(matches!(ended, WindowError::Stopped(CancelReason::Requested)));
        assert_eq!(file.reads, 3);
        // What has no size ends at its own limit, and says that there is more.
        let mut unsized_file = Endless { cancel: Cancellation::new(), reads: 10 };
        let found = Window::read(&mut unsized_file, 0, wanted(0, 2), None, &stop()).unwrap().0;
        assert!(found.more && found.total_lines.is_none());
        let behind = Wanted { whole: true, ..wanted(1 << 40, 2) };
        let found = Window::read(&mut Endless { reads: 10, ..unsized_file }, 0, behind, None, &stop()).unwrap().0;
        assert!(found.more && found.total_lines.is_none() && found.digest.is_none());
        assert_eq!(BUFFER_BYTES % 4096, 0);
    }
}
