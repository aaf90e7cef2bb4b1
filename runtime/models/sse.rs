//! Server-sent events: bytes as they arrive in, events out, as the HTML standard reads them.
//!
//! Lines end with LF, CR or CRLF, wherever the network cuts the bytes; several `data` lines make one text; comments,
//! `id` and `retry` mean nothing here; a byte-order mark may stand in front. The standard drops a last event that has no
//! empty line behind it; providers leave that line out, so [`SseReader::finish`] gives it, and whoever reads it sees
//! whether it is whole. What must stay true: however the bytes are split, the events are the same, and an event is
//! never larger in memory than [`SSE_EVENT_BYTES_MAX`].

use std::borrow::Cow;

use memchr::{memchr, memchr2};
use thiserror::Error;
use toolwarden_tools::text::lossy;

/// Largest event, in bytes: whole answers arrive as one in the protocol that repeats them at the end.
pub const SSE_EVENT_BYTES_MAX: usize = 32 * 1024 * 1024;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Reads a stream of events.
#[derive(Debug, Default)]
pub struct SseReader {
    /// The beginning of a line whose end has not come yet.
    line: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    kind: Vec<u8>,
    after_cr: bool,
    /// Bytes of the byte-order mark that were seen, until it is clear whether it is one.
    mark: Mark,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Mark {
    #[default]
    Unread,
    Seen(usize),
    Passed,
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SseEvent<'a> {
    /// Its `event` field; empty when it has none.
    pub kind: Cow<'a, str>,
    /// Its `data` lines, joined.
    pub data: Cow<'a, str>,
}

/// Why a stream of events cannot be read on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SseError {
    /// An event is larger than [`SSE_EVENT_BYTES_MAX`].
    #[error("an event of the stream is larger than {SSE_EVENT_BYTES_MAX} bytes")]
    TooLarge,
}

impl SseReader {
    /// Takes the next bytes and gives the events that end in them to `each`, until it says that it has seen enough by
    /// returning false; the rest of the bytes is dropped then.
    ///
    /// # Errors
    /// [`SseError`]; nothing more can be read.
    pub fn push(&mut self, bytes: &[u8], each: &mut dyn FnMut(SseEvent<'_>) -> bool) -> Result<(), SseError> {
        let mut rest = self.without_mark(bytes);
        while !rest.is_empty() {
            if std::mem::take(&mut self.after_cr) && rest[0] == b'\n' {
                rest = &rest[1..];
                continue;
            }
            let Some(end) = memchr2(b'\n', b'\r', rest) else {
                self.line.extend_from_slice(rest);
                return self.check();
            };
            self.after_cr = rest[end] == b'\r';
            let goes_on = if self.line.is_empty() {
                self.take_line(&rest[..end], each)
            } else {
                self.line.extend_from_slice(&rest[..end]);
                let line = std::mem::take(&mut self.line);
                let goes_on = self.take_line(&line, each);
                self.line = line;
                self.line.clear();
                goes_on
            };
            self.check()?;
            if !goes_on {
                return Ok(());
            }
            rest = &rest[end + 1..];
        }
        Ok(())
    }

    /// The stream has ended: gives what stood without an empty line behind it.
    pub fn finish(mut self, each: &mut dyn FnMut(SseEvent<'_>) -> bool) {
        let line = std::mem::take(&mut self.line);
        if !line.is_empty() && !self.take_line(&line, each) {
            return;
        }
        self.dispatch(each);
    }

    fn check(&self) -> Result<(), SseError> {
        if self.line.len() + self.data.len() + self.kind.len() > SSE_EVENT_BYTES_MAX {
            return Err(SseError::TooLarge);
        }
        Ok(())
    }

    /// The mark may come in pieces; what only looked like one is given back to the line.
    fn without_mark<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let mut seen = match self.mark {
            Mark::Passed => return bytes,
            Mark::Unread => 0,
            Mark::Seen(seen) => seen,
        };
        let mut rest = bytes;
        while seen < BYTE_ORDER_MARK.len() {
            match rest.first() {
                None => {
                    self.mark = Mark::Seen(seen);
                    return rest;
                }
                Some(byte) if *byte == BYTE_ORDER_MARK[seen] => {
                    seen += 1;
                    rest = &rest[1..];
                }
                Some(_) => {
                    self.line.extend_from_slice(&BYTE_ORDER_MARK[..seen]);
                    break;
                }
            }
        }
        self.mark = Mark::Passed;
        rest
    }

    fn take_line(&mut self, line: &[u8], each: &mut dyn FnMut(SseEvent<'_>) -> bool) -> bool {
        if line.is_empty() {
            return self.dispatch(each);
        }
        let (field, value) = match memchr(b':', line) {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &line[line.len()..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"data" => {
                if self.has_data {
                    self.data.push(b'\n');
                }
                self.has_data = true;
                self.data.extend_from_slice(value);
            }
            b"event" => {
                self.kind.clear();
                self.kind.extend_from_slice(value);
            }
            // Comments have an empty name; a stream is never taken up again, so ids and waits mean nothing.
            _ => {}
        }
        true
    }

    fn dispatch(&mut self, each: &mut dyn FnMut(SseEvent<'_>) -> bool) -> bool {
        let goes_on = !self.has_data || each(SseEvent { kind: lossy(&self.kind), data: lossy(&self.data) });
        self.has_data = false;
        self.data.clear();
        self.kind.clear();
        goes_on
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{SSE_EVENT_BYTES_MAX, SseError, SseReader};

    type Events = Vec<(String, String)>;

    fn read<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Events {
        let (mut reader, mut events) = (SseReader::default(), Vec::new());
        let mut each = |event: super::SseEvent<'_>| {
            events.push((event.kind.into_owned(), event.data.into_owned()));
            true
        };
        for piece in pieces {
            reader.push(piece, &mut each).unwrap();
        }
        reader.finish(&mut each);
        events
    }

    fn event(kind: &str, data: &str) -> (String, String) {
        (kind.to_owned(), data.to_owned())
    }

    #[test]
    fn a_line_end_cut_in_two_is_one() {
        // Case C118.
        let pieces: [&[u8]; 4] = [b"data: one\r\n", b"data: two\r", b"\ndata: three\r\n", b"\r\n"];
        assert_eq!(read(pieces), [event("", "one\ntwo\nthree")]);
        assert_eq!(read([&b"data: a\rdata: b\r\rdata: c\r\r"[..]]), [event("", "a\nb"), event("", "c")]);
    }

    #[test]
    fn what_the_standard_says() {
        let text = "\u{feff}: a comment\nevent: first\ndata:no space\ndata:  two spaces\nid: 7\nretry: 3\nother: x\n\n\
                    event: nothing\n\ndata\n\ndata\ndata\n\nevent: last\ndata: whole";
        let expected =
            [event("first", "no space\n two spaces"), event("", ""), event("", "\n"), event("last", "whole")];
        assert_eq!(read([text.as_bytes()]), expected);
        assert_eq!(read([&b"\xef\xbbdata: x\n\n"[..]]), []);
        assert_eq!(read([&b"data: \xff\xf0\x9f\n\n"[..]]), [event("", "\u{fffd}\u{fffd}")]);
    }

    #[test]
    fn every_split_gives_the_same_events() {
        // Case C120: also within a character, and within the mark.
        let text = "\u{feff}event: a\r\ndata: {\"t\":\"😀\"}\r\n\r\n: c\r\rdata: é\n\ndata: 1\ndata: 2\r\n\n";
        let whole = read([text.as_bytes()]);
        assert_eq!(whole.len(), 3);
        for first in 0..=text.len() {
            for second in first..=text.len() {
                let bytes = text.as_bytes();
                assert_eq!(read([&bytes[..first], &bytes[first..second], &bytes[second..]]), whole, "{first} {second}");
            }
        }
        assert_eq!(read(text.as_bytes().chunks(1)), whole);
    }

    #[test]
    fn what_has_no_end_is_bounded() {
        let piece = vec![b'x'; 1024 * 1024];
        for line in [&b""[..], &b"data: "[..]] {
            let mut reader = SseReader::default();
            reader.push(line, &mut |_| true).unwrap();
            let mut error = None;
            for _ in 0..=SSE_EVENT_BYTES_MAX / piece.len() {
                error = reader.push(&piece, &mut |_| true).err();
            }
            assert_eq!(error, Some(SseError::TooLarge));
        }
        let mut reader = SseReader::default();
        let line = [&b"data: "[..], &piece, b"\n"].concat();
        let pushed: Result<(), SseError> =
            (0..=SSE_EVENT_BYTES_MAX / piece.len()).try_for_each(|_| reader.push(&line, &mut |_| true));
        assert_eq!(pushed, Err(SseError::TooLarge));
    }

    #[test]
    fn reading_stops_when_enough_was_seen() {
        let (mut reader, mut seen) = (SseReader::default(), 0);
        let mut each = |_: super::SseEvent<'_>| {
            seen += 1;
            false
        };
        reader.push(b"data: a\n\ndata: b\n\n", &mut each).unwrap();
        assert_eq!(seen, 1);
    }

    proptest! {
        #[test]
        fn random_bytes_split_anywhere_read_the_same(
            bytes in proptest::collection::vec(prop_oneof![
                Just(b'\n'), Just(b'\r'), Just(b':'), Just(b' '), Just(b'd'), Just(0xef_u8), Just(0xbb), Just(0xbf), any::<u8>(),
            ], 0..200),
            cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..6),
        ) {
            let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            at.extend([0, bytes.len()]);
            at.sort_unstable();
            let pieces = at.windows(2).map(|pair| &bytes[pair[0]..pair[1]]);
            prop_assert_eq!(read(pieces), read([&bytes[..]]));
        }
    }
}
