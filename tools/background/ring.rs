//! The output of a background process: the last bytes of both streams in order of arrival, the older ones counted.
//!
//! Every byte has a number, counted from 0 over both streams together, so that a reader who comes late learns exactly
//! how much it missed. What must stay true: memory is bounded however much is written and however the streams take
//! turns; no character of valid UTF-8 is split, neither where the oldest bytes are overwritten nor where a read ends.

use std::collections::VecDeque;

use serde::Serialize;

use crate::effects::processes::Stream;
use crate::text::{character_bytes, is_continuation, unfinished_bytes};

/// Most changes between the streams that are held; beyond it the oldest bytes go early.
pub const RUNS_MAX: usize = 16 * 1024;
/// Fewest bytes of one read: the longest character.
pub const READ_BYTES_MIN: usize = 4;

/// A ring of output.
#[derive(Debug)]
pub struct OutputRing {
    bytes_max: usize,
    held: VecDeque<u8>,
    /// Whose bytes are held, in order.
    runs: VecDeque<(Stream, usize)>,
    /// The number of the first byte that is held.
    start: u64,
    /// The start of a character whose end has not arrived, for each stream.
    unfinished: [Vec<u8>; 2],
    total_bytes: [u64; 2],
    overwritten_bytes: [u64; 2],
}

/// What became of the bytes of one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct RingCount {
    /// Bytes that were written to it.
    pub total_bytes: u64,
    /// Bytes that are not held any more.
    pub overwritten_bytes: u64,
}

/// What became of the bytes of both streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct RingCounts {
    /// Standard output.
    pub stdout: RingCount,
    /// Standard error.
    pub stderr: RingCount,
}

impl RingCounts {
    /// Bytes of both streams together.
    pub fn total_bytes(&self) -> u64 {
        self.stdout.total_bytes + self.stderr.total_bytes
    }

    /// Bytes of both streams that are not held any more.
    pub fn overwritten_bytes(&self) -> u64 {
        self.stdout.overwritten_bytes + self.stderr.overwritten_bytes
    }
}

/// One read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RingRead {
    /// The number of its first byte.
    pub start: u64,
    /// Where the next read goes on.
    pub next: u64,
    /// Bytes that were asked for and are not held any more.
    pub skipped_bytes: u64,
    /// Whether more is held behind it.
    pub more: bool,
    /// The bytes as they came, by stream, in order of arrival.
    pub pieces: Vec<(Stream, Vec<u8>)>,
}

impl RingRead {
    /// The bytes of one stream.
    pub fn of(&self, stream: Stream) -> Vec<u8> {
        self.pieces.iter().filter(|(of, _)| *of == stream).flat_map(|(_, bytes)| bytes.iter().copied()).collect()
    }

    /// The bytes of both, in order of arrival.
    pub fn all(&self) -> Vec<u8> {
        self.pieces.iter().flat_map(|(_, bytes)| bytes.iter().copied()).collect()
    }
}

impl OutputRing {
    /// Holds at most this many bytes.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            held: VecDeque::new(),
            runs: VecDeque::new(),
            start: 0,
            unfinished: [Vec::new(), Vec::new()],
            total_bytes: [0; 2],
            overwritten_bytes: [0; 2],
        }
    }

    /// Takes the next bytes of a stream. The start of a character waits for its end.
    pub fn push(&mut self, stream: Stream, bytes: &[u8]) {
        self.total_bytes[stream as usize] += bytes.len() as u64;
        let waiting = std::mem::take(&mut self.unfinished[stream as usize]);
        if waiting.is_empty() {
            return self.push_whole(stream, bytes);
        }
        // Only the bytes around the seam are put together.
        let wanted = waiting.first().map_or(0, |first| character_bytes(*first).saturating_sub(waiting.len()));
        let (seam, rest) = bytes.split_at(bytes.len().min(wanted));
        let seam = [&waiting, seam].concat();
        if unfinished_bytes(&seam) > 0 {
            // It is short still, or what came is no character and begins another one.
            let all = [&seam, rest].concat();
            return self.push_whole(stream, &all);
        }
        self.hold(stream, &seam);
        self.push_whole(stream, rest);
    }

    fn push_whole(&mut self, stream: Stream, bytes: &[u8]) {
        let end = bytes.len() - unfinished_bytes(bytes);
        self.unfinished[stream as usize] = bytes[end..].to_vec();
        self.hold(stream, &bytes[..end]);
    }

    /// Nothing more comes: what waited for the end of a character is held as it is.
    pub fn finish(&mut self) {
        for stream in [Stream::Out, Stream::Err] {
            let rest = std::mem::take(&mut self.unfinished[stream as usize]);
            self.hold(stream, &rest);
        }
    }

    fn hold(&mut self, stream: Stream, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let start = self.start;
        // What the ring cannot hold is overwritten before it is written.
        let (lost, kept) = bytes.split_at(bytes.len().saturating_sub(self.bytes_max));
        if !lost.is_empty() {
            self.drop_oldest(self.held.len());
            self.start += lost.len() as u64;
            self.overwritten_bytes[stream as usize] += lost.len() as u64;
        }
        self.drop_oldest((self.held.len() + kept.len()).saturating_sub(self.bytes_max));
        match self.runs.back_mut() {
            Some((of, count)) if *of == stream => *count += kept.len(),
            _ => {
                if let Some(oldest) = self.runs.front().map(|(_, count)| *count).filter(|_| self.runs.len() >= RUNS_MAX)
                {
                    self.drop_oldest(oldest);
                }
                self.runs.push_back((stream, kept.len()));
            }
        }
        self.held.extend(kept);
        if self.start != start {
            self.drop_broken_start();
        }
    }

    /// The rest of a character whose start was overwritten goes too.
    fn drop_broken_start(&mut self) {
        let Some((_, first)) = self.runs.front().copied() else { return };
        let broken = self.held.iter().take(first.min(3)).take_while(|byte| is_continuation(**byte)).count();
        self.drop_oldest(broken);
    }

    /// Forgets the oldest bytes.
    fn drop_oldest(&mut self, count: usize) {
        self.held.drain(..count);
        self.start += count as u64;
        let mut left = count;
        while left > 0
            && let Some((stream, run)) = self.runs.front_mut()
        {
            let taken = left.min(*run);
            self.overwritten_bytes[*stream as usize] += taken as u64;
            *run -= taken;
            left -= taken;
            if *run == 0 {
                self.runs.pop_front();
            }
        }
    }

    /// The number that the next byte will have.
    pub fn end(&self) -> u64 {
        self.start + self.held.len() as u64
    }

    /// What became of all bytes.
    pub fn counts(&self) -> RingCounts {
        let count = |stream: Stream| RingCount {
            total_bytes: self.total_bytes[stream as usize],
            overwritten_bytes: self.overwritten_bytes[stream as usize],
        };
        RingCounts { stdout: count(Stream::Out), stderr: count(Stream::Err) }
    }

    /// Bytes that are held behind a number.
    pub fn held_behind(&self, from: u64) -> u64 {
        self.end() - from.clamp(self.start, self.end())
    }

    /// Reads from a byte on, at most `bytes_max` bytes, and never less than one character when there is any.
    pub fn read(&self, from: u64, bytes_max: usize) -> RingRead {
        let room = bytes_max.max(READ_BYTES_MIN);
        let start = from.clamp(self.start, self.end());
        let mut read = RingRead { start, next: start, skipped_bytes: start - from.min(start), ..RingRead::default() };
        let (mut at, mut left) = (self.start, room);
        for (stream, count) in &self.runs {
            let run_end = at + *count as u64;
            if run_end > start && left > 0 {
                let first = start.max(at);
                let take = usize::try_from(run_end - first).unwrap_or(usize::MAX).min(left);
                let offset = usize::try_from(first - self.start).unwrap_or(usize::MAX);
                let mut piece: Vec<u8> = self.held.range(offset..offset + take).copied().collect();
                // Only a read that is cut off ends in the middle of a run.
                if first + (take as u64) < run_end {
                    piece.truncate(piece.len() - unfinished_bytes(&piece));
                    left = 0;
                } else {
                    left -= take;
                }
                read.next = first + piece.len() as u64;
                if !piece.is_empty() {
                    read.pieces.push((*stream, piece));
                }
            }
            at = run_end;
        }
        read.more = read.next < self.end();
        read
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, proptest};

    use super::{OutputRing, READ_BYTES_MIN, RUNS_MAX, RingCount};
    use crate::effects::processes::Stream::{self, Err, Out};

    fn ring(bytes_max: usize, chunks: &[(Stream, &[u8])]) -> OutputRing {
        let mut ring = OutputRing::new(bytes_max);
        for (stream, bytes) in chunks {
            ring.push(*stream, bytes);
        }
        ring
    }

    #[test]
    fn what_fits_is_read_by_stream_and_in_order() {
        let ring = ring(100, &[(Out, b"one\n"), (Err, b"two\n"), (Out, b"end\n")]);
        let read = ring.read(0, 100);
        assert_eq!(read.pieces, [(Out, b"one\n".to_vec()), (Err, b"two\n".to_vec()), (Out, b"end\n".to_vec())]);
        assert_eq!((read.next, read.skipped_bytes, read.more), (12, 0, false));
        assert_eq!((read.of(Out), read.of(Err)), (b"one\nend\n".to_vec(), b"two\n".to_vec()));
        let part = ring.read(2, 5);
        assert_eq!((part.all(), part.start, part.next, part.more), (b"e\ntwo".to_vec(), 2, 7, true));
        assert!(ring.read(12, 100).pieces.is_empty() && ring.read(99, 100).next == 12);
    }

    #[test]
    fn what_is_overwritten_is_counted_for_each_stream() {
        let ring = ring(8, &[(Out, b"12345"), (Err, b"abc"), (Out, b"678")]);
        let read = ring.read(0, 100);
        assert_eq!((read.all(), read.start, read.skipped_bytes), (b"45abc678".to_vec(), 3, 3));
        let counts = ring.counts();
        assert_eq!(counts.stdout, RingCount { total_bytes: 8, overwritten_bytes: 3 });
        assert_eq!(counts.stderr, RingCount { total_bytes: 3, overwritten_bytes: 0 });
        assert_eq!((ring.held_behind(0), ring.held_behind(9), ring.held_behind(50)), (8, 2, 0));
    }

    // Case C013: neither the overwriting nor the end of a read splits a character.
    #[test]
    fn characters_stay_whole() {
        let mut ring = ring(8, &[(Out, "中".as_bytes()), (Out, b"1234567")]);
        assert_eq!((ring.read(0, 100).all(), ring.counts().stdout.overwritten_bytes), (b"1234567".to_vec(), 3));
        let [a, b, c] = [0xe4, 0xb8, 0xad];
        ring.push(Out, &[a, b]);
        ring.push(Err, b"!");
        assert_eq!(ring.read(0, 100).all(), b"1234567!");
        ring.push(Out, &[c]);
        assert_eq!(ring.read(0, 100).all(), "4567!中".as_bytes());
        let cut = ring.read(ring.end() - 5, 4);
        assert_eq!((cut.all(), cut.more), (b"7!".to_vec(), true), "the third byte would split it");
        assert_eq!(ring.read(cut.next, 4).all(), "中".as_bytes());
        ring.push(Out, &[a, b]);
        ring.finish();
        assert_eq!(ring.read(ring.end() - 2, 4).all(), [a, b]);
    }

    #[test]
    fn streams_that_take_turns_cost_bounded_memory() {
        let mut ring = OutputRing::new(1 << 20);
        for _ in 0..RUNS_MAX {
            ring.push(Out, b"o");
            ring.push(Err, b"e");
        }
        assert!(ring.runs.len() <= RUNS_MAX && ring.held.len() == ring.runs.len());
        assert_eq!(ring.counts().total_bytes(), 2 * RUNS_MAX as u64);
        assert_eq!(ring.counts().overwritten_bytes() + ring.held.len() as u64, 2 * RUNS_MAX as u64);
    }

    proptest! {
        #[test]
        fn every_byte_is_read_once_or_counted(
            chunks in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..40)), 0..40),
            bytes_max in 4_usize..80, step in READ_BYTES_MIN..30,
        ) {
            let mut ring = OutputRing::new(bytes_max);
            let (mut cursor, mut seen, mut skipped) = (0, [0_u64; 2], 0);
            let mut written = [0_u64; 2];
            for (is_err, bytes) in &chunks {
                ring.push(if *is_err { Err } else { Out }, bytes);
                written[usize::from(*is_err)] += bytes.len() as u64;
                let read = ring.read(cursor, step);
                prop_assert!(read.next > cursor || ring.held_behind(cursor) == 0);
                prop_assert_eq!(read.start - read.skipped_bytes, cursor);
                skipped += read.skipped_bytes;
                for (stream, piece) in &read.pieces { seen[*stream as usize] += piece.len() as u64; }
                cursor = read.next;
            }
            ring.finish();
            while ring.held_behind(cursor) > 0 {
                let read = ring.read(cursor, step);
                skipped += read.skipped_bytes;
                for (stream, piece) in &read.pieces { seen[*stream as usize] += piece.len() as u64; }
                cursor = read.next;
            }
            prop_assert_eq!(seen[0] + seen[1] + skipped + (ring.end() - cursor), written[0] + written[1]);
            let counts = ring.counts();
            prop_assert_eq!([counts.stdout.total_bytes, counts.stderr.total_bytes], written);
            prop_assert_eq!(counts.total_bytes() - counts.overwritten_bytes(), ring.held.len() as u64);
            prop_assert!(ring.held.len() <= bytes_max);
        }

        #[test]
        fn text_stays_text(
            out in "\\PC{0,60}", err in "\\PC{0,60}", step in 1_usize..7, bytes_max in 4_usize..40, page in 4_usize..9,
        ) {
            let mut ring = OutputRing::new(bytes_max);
            let (mut out_chunks, mut err_chunks) = (out.as_bytes().chunks(step), err.as_bytes().chunks(step));
            let mut cursor = 0;
            loop {
                let (a, b) = (out_chunks.next(), err_chunks.next());
                if a.is_none() && b.is_none() { break; }
                for (stream, chunk) in [(Out, a), (Err, b)] {
                    ring.push(stream, chunk.unwrap_or_default());
                }
                let read = ring.read(cursor, page);
                for (_, piece) in &read.pieces {
                    prop_assert!(std::str::from_utf8(piece).is_ok(), "{:?}", read.pieces);
                }
                cursor = read.next;
            }
        }
    }
}
