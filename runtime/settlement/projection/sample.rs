//! Sampling: of a text that is one JSON array, the first and the last items, and how many there were.
//!
//! The text comes piece by piece and is never held as a whole: kept are the items that may be shown, each of them
//! no longer than a projection may be. Items keep their spelling, but for blanks between their parts.

use std::collections::VecDeque;

use super::excerpt::Excerpt;
use super::json_scan::{JsonScan, Meaning};
use crate::settlement::projection_policy::TRANSFORM_ALGORITHM;

/// Takes a sample of an array that comes piece by piece.
pub(super) struct Sample {
    /// None once the text turned out to be no array.
    reading: Option<Reading>,
    empty: Excerpt,
    items_max: usize,
}

struct Reading {
    scan: JsonScan,
    item: Excerpt,
    first: Vec<Excerpt>,
    last: VecDeque<Excerpt>,
    items: u64,
}

impl Sample {
    /// Keeps at most this many items, each no longer than this empty excerpt can hold.
    pub(super) fn new(items_max: usize, empty: Excerpt) -> Self {
        let reading =
            Reading { scan: JsonScan::new(), item: empty.clone(), first: Vec::new(), last: VecDeque::new(), items: 0 };
        Self { reading: Some(reading), empty, items_max }
    }

    /// Takes the next piece.
    pub(super) fn push(&mut self, piece: &[u8]) {
        if let Some(reading) = &mut self.reading
            && reading.push(piece, self.items_max, &self.empty).is_none()
        {
            self.reading = None;
        }
    }

    /// The sample; none when the text is no array, or one with no more items than are kept.
    pub(super) fn finish(self) -> Option<Excerpt> {
        let reading = self.reading.filter(|reading| reading.scan.is_complete())?;
        let retained = u64::try_from(self.items_max).ok().filter(|kept| reading.items > *kept)?;
        let (original, omitted) = (reading.items, reading.items - retained);
        let mut sample = self.empty;
        sample.push(
            format!(
                "{{\"$a3s_sample\":{{\"kind\":\"json_array\",\"omitted_items\":{omitted},\"original_items\":{original},\
                 \"retained_items\":{retained},\"schema\":\"{TRANSFORM_ALGORITHM}\"}},\"items\":["
            )
            .as_bytes(),
        );
        for (at, item) in reading.first.iter().chain(&reading.last).enumerate() {
            if at > 0 {
                sample.push(b",");
            }
            sample.push_excerpt(item);
        }
        sample.push(b"]}");
        Some(sample)
    }
}

impl Reading {
    /// None when this is no array.
    fn push(&mut self, piece: &[u8], items_max: usize, empty: &Excerpt) -> Option<()> {
        let mut at = 0;
        while let Some(byte) = piece.get(at) {
            let plain = self.scan.plain_bytes(&piece[at..]);
            if plain > 0 {
                self.item.push(&piece[at..at + plain]);
                at += plain;
                continue;
            }
            let before = self.scan.depth();
            let meaning = self.scan.step(*byte).ok()?;
            match (before, self.scan.depth(), byte) {
                _ if meaning == Meaning::Blank => {}
                (0, 1, b'[') => {}
                // Something else than an array.
                (0, _, _) => return None,
                // One inside of a text is plain and was taken above.
                (1, 1, b',') => self.end_item(items_max, empty),
                (1, 0, _) => {
                    if self.item.total_bytes() > 0 {
                        self.end_item(items_max, empty);
                    }
                }
                _ => self.item.push(&[*byte]),
            }
            at += 1;
        }
        Some(())
    }

    fn end_item(&mut self, items_max: usize, empty: &Excerpt) {
        let item = std::mem::replace(&mut self.item, empty.clone());
        self.items += 1;
        let last_max = items_max / 2;
        if self.first.len() < items_max - last_max {
            self.first.push(item);
        } else if last_max > 0 {
            if self.last.len() == last_max {
                self.last.pop_front();
            }
            self.last.push_back(item);
        }
    }
}
