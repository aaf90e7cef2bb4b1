//! Reads a file as the text that a search looks at, in bounded memory whatever its size.
//!
//! A line ends at LF, everywhere and nowhere else; one CR before it belongs to the line end and is dropped, so
//! `word$` means the same on both kinds of line end. UTF-16 with a byte-order mark is decoded. A NUL makes a file
//! binary: the text ends there, unless the caller asked for all of it.

use std::io::{self, Read};

use encoding_rs::{Decoder, Encoding, UTF_8};

use crate::effects::files::OpenFile;
use crate::search::stop::Stop;

/// Bytes read at once while decoding.
const DECODE_BYTES: usize = 16 * 1024;
/// Largest file that is read as a whole, in bytes.
pub const WHOLE_BYTES_MAX: u64 = 1024 * 1024;
/// Longest byte-order mark.
const MARK_BYTES: usize = 3;

/// What to do at a NUL byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtNul {
    /// The text ends there, and the file counts as binary.
    End,
    /// It is a byte like any other.
    Keep,
}

/// What was learnt about a file while it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TextFacts {
    /// Offset of the first NUL in the text, when the text ended there.
    pub binary_at_byte: Option<u64>,
    /// The encoding that was decoded, when it is not UTF-8.
    pub decoded: Option<&'static str>,
    /// Bytes of text handed over.
    pub text_bytes: u64,
}

/// How much text a file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Extent {
    /// Size of the file, in bytes.
    pub file_bytes: u32,
    /// Size of its text, in bytes: without a mark, without CRs at line ends, up to a NUL, decoded.
    pub text_bytes: u32,
    /// Lines of its text; a last one without an end counts.
    pub lines: u32,
}

impl Extent {
    /// That of a file whose whole text this is; more than 32 bits count is counted as that much.
    pub fn of(file_bytes: u64, text: &[u8]) -> Self {
        let mut extent = Self { file_bytes: u32::try_from(file_bytes).unwrap_or(u32::MAX), ..Self::default() };
        extent.add(text, b'\n');
        extent
    }

    /// Adds the next part of a text, of which `before` was the last byte so far (an LF when there was none).
    pub fn add(&mut self, text: &[u8], before: u8) {
        let Some(last) = text.last() else { return };
        let ends = memchr::memchr_iter(b'\n', text).count();
        // A line that was begun before was counted then.
        let lines = ends + usize::from(*last != b'\n') - usize::from(before != b'\n');
        self.lines = self.lines.saturating_add(u32::try_from(lines).unwrap_or(u32::MAX));
        self.text_bytes = self.text_bytes.saturating_add(u32::try_from(text.len()).unwrap_or(u32::MAX));
    }
}

/// A reader of the text of one file.
pub struct TextReader {
    source: Source,
    /// Bytes that were read but not handed over: the start of the file, or one that followed a CR.
    ahead: Vec<u8>,
    stop: Stop,
    at_nul: AtNul,
    facts: TextFacts,
    /// A CR at the end of the last buffer, held back until the next byte is known.
    held_cr: bool,
    ended: bool,
}

enum Source {
    Plain(Box<dyn OpenFile>),
    Utf16(Box<Utf16>),
}

impl TextReader {
    /// Looks at the mark at the start of the file and gets ready to read.
    ///
    /// # Errors
    /// What the file says to the first read.
    pub fn open(mut file: Box<dyn OpenFile>, at_nul: AtNul, stop: Stop) -> io::Result<Self> {
        let mut start = [0; MARK_BYTES];
        let mut filled = 0;
        while filled < MARK_BYTES {
            match read_on(file.as_mut(), &mut start[filled..])? {
                0 => break,
                count => filled += count,
            }
        }
        let (encoding, mark_bytes) = Encoding::for_bom(&start[..filled]).unwrap_or((UTF_8, 0));
        let ahead = start[mark_bytes..filled].to_vec();
        let mut facts = TextFacts::default();
        let (source, ahead) = if encoding == UTF_8 {
            (Source::Plain(file), ahead)
        } else {
            facts.decoded = Some(encoding.name());
            (Source::Utf16(Box::new(Utf16::new(file, encoding, ahead))), Vec::new())
        };
        Ok(Self { source, ahead, stop, at_nul, facts, held_cr: false, ended: false })
    }

    /// What is known so far.
    pub fn facts(&self) -> TextFacts {
        self.facts
    }

    /// Bytes as they come, before line ends and NULs are looked at.
    fn pull(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.stop.is_given() {
            return Err(io::Error::other("the search was stopped"));
        }
        let count = buffer.len().min(self.ahead.len());
        buffer[..count].copy_from_slice(&self.ahead[..count]);
        self.ahead.drain(..count);
        if count == buffer.len() {
            return Ok(count);
        }
        let more = match &mut self.source {
            Source::Plain(file) => read_on(file.as_mut(), &mut buffer[count..])?,
            Source::Utf16(utf16) => utf16.read(&mut buffer[count..])?,
        };
        Ok(count + more)
    }

    /// Drops every CR before an LF in `buffer[..count]` and ends the text at a NUL; returns what is left.
    fn settle(&mut self, buffer: &mut [u8], count: usize) -> usize {
        let Some(first) = memchr::memchr2(b'\0', b'\r', &buffer[..count]) else {
            return count;
        };
        let (mut read_at, mut write_at) = (first, first);
        loop {
            let here = memchr::memchr2(b'\0', b'\r', &buffer[read_at..count]).map_or(count, |at| read_at + at);
            buffer.copy_within(read_at..here, write_at);
            write_at += here - read_at;
            if here == count {
                return write_at;
            }
            if buffer[here] == b'\0' && self.at_nul == AtNul::End {
                self.facts.binary_at_byte = Some(self.facts.text_bytes + write_at as u64);
                self.ended = true;
                return write_at;
            }
            if buffer[here] == b'\r' && here + 1 == count {
                self.held_cr = true;
                return write_at;
            }
            if buffer[here] == b'\0' || buffer[here + 1] != b'\n' {
                buffer[write_at] = buffer[here];
                write_at += 1;
            }
            read_at = here + 1;
        }
    }

    /// One byte out while a CR is held: the CR, unless an LF follows it.
    fn read_after_cr(&mut self) -> io::Result<u8> {
        let mut next = [0; 1];
        Ok(match (self.pull(&mut next)?, next[0]) {
            (0, _) => {
                self.ended = true;
                b'\r'
            }
            (_, b'\n') => b'\n',
            (_, other) => {
                self.ahead.insert(0, other);
                b'\r'
            }
        })
    }
}

impl Read for TextReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        while !self.ended {
            let held = usize::from(std::mem::take(&mut self.held_cr));
            if held == 1 && buffer.len() == 1 {
                buffer[0] = self.read_after_cr()?;
                self.facts.text_bytes += 1;
                return Ok(1);
            }
            if held == 1 {
                buffer[0] = b'\r';
            }
            let count = self.pull(&mut buffer[held..])?;
            let left = if count == 0 {
                self.ended = true;
                held
            } else {
                self.settle(buffer, held + count)
            };
            self.facts.text_bytes += left as u64;
            if left > 0 {
                return Ok(left);
            }
        }
        Ok(0)
    }
}

/// Reads a small file to the start of `whole`; none, and the file at its start, when it is not small or not at rest.
///
/// # Errors
/// What the file says to a read.
pub fn read_whole(file: &mut dyn OpenFile, whole: &mut Vec<u8>) -> io::Result<Option<usize>> {
    let size = file.stat().size_bytes;
    // What is made on the fly has no size.
    if size == 0 || size > WHOLE_BYTES_MAX {
        return Ok(None);
    }
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    // Only ever grown: clearing it would cost more than reading.
    if whole.len() < size + 1 {
        whole.resize(size + 1, 0);
    }
    let mut filled = 0;
    // A byte more than there was would be read, were there one.
    while filled != size {
        match file.read(&mut whole[filled..=size]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if filled > size {
            file.rewind()?;
            return Ok(None);
        }
    }
    Ok(Some(filled))
}

/// Settles a whole file in place: what [`TextReader`] would hand over of it begins at the returned offset and has the
/// returned length. None when it must be decoded.
pub fn settle_whole(bytes: &mut [u8], at_nul: AtNul, facts: &mut TextFacts) -> Option<std::ops::Range<usize>> {
    let from = match Encoding::for_bom(bytes) {
        None => 0,
        Some((encoding, mark_bytes)) if encoding == UTF_8 => mark_bytes,
        Some(_) => return None,
    };
    let text = &mut bytes[from..];
    let length = match memchr::memchr2(b'\0', b'\r', text) {
        None => text.len(),
        Some(first) => settle_from(text, first, at_nul, facts),
    };
    facts.text_bytes = length as u64;
    Some(from..from + length)
}

/// Drops every CR before an LF from `first` on and ends at a NUL; returns what is left.
fn settle_from(text: &mut [u8], first: usize, at_nul: AtNul, facts: &mut TextFacts) -> usize {
    let count = text.len();
    let (mut read_at, mut write_at) = (first, first);
    loop {
        let here = memchr::memchr2(b'\0', b'\r', &text[read_at..]).map_or(count, |at| read_at + at);
        text.copy_within(read_at..here, write_at);
        write_at += here - read_at;
        if here == count {
            return write_at;
        }
        if text[here] == b'\0' && at_nul == AtNul::End {
            facts.binary_at_byte = Some(write_at as u64);
            return write_at;
        }
        if text[here] == b'\0' || text.get(here + 1) != Some(&b'\n') {
            text[write_at] = text[here];
            write_at += 1;
        }
        read_at = here + 1;
    }
}

/// UTF-16 on its way to UTF-8.
struct Utf16 {
    file: Box<dyn OpenFile>,
    decoder: Decoder,
    /// Read and not yet decoded.
    raw: Vec<u8>,
    /// Decoded and not yet handed over, from `text_at` on.
    text: Vec<u8>,
    text_at: usize,
    finished: bool,
}

impl Utf16 {
    fn new(file: Box<dyn OpenFile>, encoding: &'static Encoding, raw: Vec<u8>) -> Self {
        let decoder = encoding.new_decoder_without_bom_handling();
        Self { file, decoder, raw, text: Vec::new(), text_at: 0, finished: false }
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.text_at == self.text.len() && !self.finished {
            self.decode_more()?;
        }
        let count = buffer.len().min(self.text.len() - self.text_at);
        buffer[..count].copy_from_slice(&self.text[self.text_at..self.text_at + count]);
        self.text_at += count;
        Ok(count)
    }

    fn decode_more(&mut self) -> io::Result<()> {
        let filled = self.raw.len();
        self.raw.resize(filled + DECODE_BYTES, 0);
        let count = read_on(self.file.as_mut(), &mut self.raw[filled..])?;
        self.raw.truncate(filled + count);
        self.finished = count == 0;
        // Two bytes of UTF-16 make at most three of UTF-8; what a cut pair needs comes on top.
        self.text.resize(self.raw.len() * 3 + 16, 0);
        self.text_at = 0;
        let (_, _, written, _) = self.decoder.decode_to_utf8(&self.raw, &mut self.text, self.finished);
        self.text.truncate(written);
        self.raw.clear();
        Ok(())
    }
}

fn read_on(file: &mut dyn OpenFile, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match file.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::{AtNul, TextFacts, TextReader};
    use crate::search::stop::Stop;
    use crate::search::twin::open_bytes;

    fn text(bytes: &[u8], at_nul: AtNul, step: usize) -> (Vec<u8>, TextFacts) {
        let mut reader = TextReader::open(open_bytes(bytes), at_nul, Stop::default()).unwrap();
        let (mut all, mut buffer) = (Vec::new(), vec![0; step]);
        loop {
            match reader.read(&mut buffer).unwrap() {
                0 => return (all, reader.facts()),
                count => all.extend_from_slice(&buffer[..count]),
            }
        }
    }

    #[test]
    fn line_ends_are_the_same_at_any_buffer_size() {
        let cases: [(&[u8], &[u8]); 8] = [
            (b"a\r\nb\r\n", b"a\nb\n"),
            (b"a\rb\r\r\nc\r", b"a\rb\r\nc\r"),
            (b"\r\n", b"\n"),
            (b"\r", b"\r"),
            (b"", b""),
            (b"\xef\xbb\xbfx\r\n", b"x\n"),
            (b"\xff\xfea\0\r\0\n\0", b"a\n"),
            (b"\xfe\xff\0a\0\r\0\n\xd8\x3d\xde\x00", "a\n😀".as_bytes()),
        ];
        for (bytes, expected) in cases {
            for step in 1..9 {
                assert_eq!(text(bytes, AtNul::End, step).0, expected, "{bytes:?} by {step}");
            }
        }
        assert_eq!(text(b"\xff\xfea\0", AtNul::End, 9).1.decoded, Some("UTF-16LE"));
    }

    // Case C080: the text before a NUL is there, and the place of the NUL is known.
    #[test]
    fn a_nul_ends_the_text_or_is_kept() {
        for step in 1..9 {
            let (bytes, facts) = text(b"one\r\n\0two\r\n", AtNul::End, step);
            assert_eq!((bytes.as_slice(), facts.binary_at_byte), (&b"one\n"[..], Some(4)), "by {step}");
            let (bytes, facts) = text(b"one\r\n\0two\r\n\0", AtNul::Keep, step);
            assert_eq!((bytes.as_slice(), facts.binary_at_byte), (&b"one\n\0two\n\0"[..], None), "by {step}");
        }
    }

    #[test]
    fn a_whole_file_is_settled_as_its_pieces_are() {
        use proptest::prelude::*;
        proptest!(|(bytes in prop::collection::vec(prop_oneof![Just(0_u8), Just(b'\r'), Just(b'\n'), Just(b'a'), Just(0xef), Just(0xbb), Just(0xbf)], 0..40), marked in any::<bool>())| {
            let bytes = if marked { [b"\xef\xbb\xbf".as_slice(), &bytes].concat() } else { bytes };
            for at_nul in [AtNul::End, AtNul::Keep] {
                let mut whole = bytes.clone();
                let mut facts = TextFacts::default();
                let range = super::settle_whole(&mut whole, at_nul, &mut facts).unwrap();
                prop_assert_eq!((whole[range].to_vec(), facts), text(&bytes, at_nul, 7));
            }
        });
        assert!(super::settle_whole(&mut [0xff, 0xfe, b'a', 0], AtNul::End, &mut TextFacts::default()).is_none());
    }

    #[test]
    fn an_extent_in_pieces_is_that_of_the_whole() {
        use super::Extent;
        for (text, lines) in [("", 0), ("a", 1), ("a\n", 1), ("a\n\nb", 3), ("\n", 1), ("ab\ncd\n", 2)] {
            assert_eq!(Extent::of(9, text.as_bytes()).lines, lines, "{text:?}");
            for step in 1..4 {
                let (mut extent, mut before) = (Extent { file_bytes: 9, ..Extent::default() }, b'\n');
                for piece in text.as_bytes().chunks(step) {
                    extent.add(piece, before);
                    before = *piece.last().unwrap();
                }
                assert_eq!(extent, Extent::of(9, text.as_bytes()), "{text:?} by {step}");
            }
        }
    }

    #[test]
    fn a_stopped_search_reads_no_further() {
        let (stop, guard) = Stop::new(crate::cancellation::Cancellation::new());
        let mut reader = TextReader::open(open_bytes(b"text"), AtNul::End, stop).unwrap();
        drop(guard);
        assert!(reader.read(&mut [0; 8]).is_err());
    }
}
