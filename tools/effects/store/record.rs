//! A record of a log: a header with two checksums, then the bytes; and what can be said of a log that is read.
//!
//! Little-endian: `TWF1`, length (4 bytes), sequence (8), CRC-32 of the bytes (4), CRC-32 of the 20 bytes before (4).
//! The header has its own checksum, so that a record whose end is missing (a write that was cut) can be told from one
//! whose length was changed (damage): the first was never acknowledged and is cut, the second is never guessed at.

use std::ops::Range;

use crate::effects::store::FACT_BYTES_MAX;

/// What every record begins with.
const MAGIC: [u8; 4] = *b"TWF1";
/// Length of a header, in bytes.
pub const HEADER_BYTES: usize = 24;

/// What was found of a session.
#[derive(Debug, Clone, Default)]
pub struct Recovered {
    /// The snapshot, as it was saved.
    pub snapshot: Option<Vec<u8>>,
    /// The log as far as it is whole.
    pub log: Log,
    /// Bytes of a last record that was cut while it was written; nobody was told that it was stored.
    pub torn_bytes: u64,
    /// What was put aside, or would have to be.
    pub damage: Option<Damage>,
}

/// A part of a log that is not what was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// Where it begins.
    pub offset: u64,
    /// How much there is from there on.
    pub bytes: u64,
    /// What is wrong.
    pub reason: &'static str,
    /// Whole records somewhere behind it.
    pub later_records: u64,
    /// Where it was put aside.
    pub quarantined_at: Option<String>,
}

/// Whole records, in order.
#[derive(Debug, Clone, Default)]
pub struct Log {
    bytes: Vec<u8>,
    records: Vec<(u64, Range<usize>)>,
}

impl Log {
    /// The records with their sequences.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.records.iter().map(|(sequence, range)| (*sequence, &self.bytes[range.clone()]))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// The bytes of the log from the record with this sequence on; none when it is not there.
    pub(crate) fn bytes_from(&self, sequence: u64) -> Option<&[u8]> {
        let (_, range) = self.records.iter().find(|(found, _)| *found == sequence)?;
        let end = self.records.last()?.1.end;
        self.bytes.get(range.start - HEADER_BYTES..end)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The sequence of the first record.
    pub fn first_sequence(&self) -> Option<u64> {
        self.records.first().map(|(sequence, _)| *sequence)
    }

    /// The sequence of the last record.
    pub fn last_sequence(&self) -> Option<u64> {
        self.records.last().map(|(sequence, _)| *sequence)
    }
}

impl Recovered {
    /// What the bytes of a log and of a snapshot hold, wherever they come from.
    pub fn from_bytes(log: Vec<u8>, snapshot: Option<Vec<u8>>) -> Self {
        let Scan { log, torn_bytes, damage, .. } = scan(log);
        Self { snapshot, log, torn_bytes, damage }
    }
}

/// A log that was read.
pub(crate) struct Scan {
    pub(crate) log: Log,
    /// Where the whole records end.
    pub(crate) whole_bytes: usize,
    pub(crate) torn_bytes: u64,
    pub(crate) damage: Option<Damage>,
}

/// Appends a record to `to`.
pub(crate) fn encode(sequence: u64, payload: &[u8], to: &mut Vec<u8>) {
    let start = to.len();
    to.extend_from_slice(&MAGIC);
    // Longer ones are refused before.
    to.extend_from_slice(&u32::try_from(payload.len()).unwrap_or(u32::MAX).to_le_bytes());
    to.extend_from_slice(&sequence.to_le_bytes());
    to.extend_from_slice(&crc32fast::hash(payload).to_le_bytes());
    let check = crc32fast::hash(&to[start..]);
    to.extend_from_slice(&check.to_le_bytes());
    to.extend_from_slice(payload);
}

/// Reads a log, as far as it is whole.
pub(crate) fn scan(bytes: Vec<u8>) -> Scan {
    let (mut at, mut records) = (0, Vec::new());
    let mut last: Option<u64> = None;
    let fault = loop {
        let (sequence, range) = match read(&bytes[at..]) {
            Reading::Record { sequence, length } => (sequence, at + HEADER_BYTES..at + HEADER_BYTES + length),
            Reading::End => break None,
            Reading::Torn => break Some(None),
            Reading::Damaged(reason) => break Some(Some(reason)),
        };
        if last.is_some_and(|last| sequence != last + 1) {
            break Some(Some("a record is out of order"));
        }
        last = Some(sequence);
        at = range.end;
        records.push((sequence, range));
    };
    let rest = u64::try_from(bytes.len() - at).unwrap_or(u64::MAX);
    let (mut torn_bytes, mut damage) = (0, None);
    if let Some(reason) = fault {
        let later_records = later_records(&bytes[at..]);
        // What is cut stands at the end: a record behind it was written after it, so the part before was whole.
        match reason {
            None if later_records == 0 => torn_bytes = rest,
            reason => {
                let offset = u64::try_from(at).unwrap_or(u64::MAX);
                let reason = reason.unwrap_or("a record has lost its end");
                damage = Some(Damage { offset, bytes: rest, reason, later_records, quarantined_at: None });
            }
        }
    }
    Scan { log: Log { bytes, records }, whole_bytes: at, torn_bytes, damage }
}

enum Reading {
    Record { sequence: u64, length: usize },
    End,
    Torn,
    Damaged(&'static str),
}

fn read(bytes: &[u8]) -> Reading {
    if bytes.is_empty() {
        return Reading::End;
    }
    // A machine that lost its power may leave a file longer than what was written to it.
    if bytes.iter().all(|byte| *byte == 0) {
        return Reading::Torn;
    }
    let Some((header, rest)) = bytes.split_at_checked(HEADER_BYTES) else {
        let begun = bytes.len().min(MAGIC.len());
        return match bytes[..begun] == MAGIC[..begun] {
            true => Reading::Torn,
            false => Reading::Damaged("what stands at the end is no record"),
        };
    };
    if header[..4] != MAGIC {
        return Reading::Damaged("no record begins where one should");
    }
    if crc32fast::hash(&header[..20]) != number(&header[20..24]) {
        return Reading::Damaged("the header of a record does not fit its checksum");
    }
    let length = usize::try_from(number(&header[4..8])).unwrap_or(usize::MAX);
    if length > FACT_BYTES_MAX {
        return Reading::Damaged("a record is longer than any can be");
    }
    let Some(payload) = rest.get(..length) else { return Reading::Torn };
    if crc32fast::hash(payload) != number(&header[16..20]) {
        // Written in full but not what was written: only zeros where data should be are a machine's own doing.
        return match rest.len() == length && payload.last() == Some(&0) {
            true => Reading::Torn,
            false => Reading::Damaged("a record does not fit its checksum"),
        };
    }
    let mut sequence = [0; 8];
    sequence.copy_from_slice(&header[8..16]);
    Reading::Record { sequence: u64::from_le_bytes(sequence), length }
}

fn number(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u32::from(*byte))
}

/// Whole records anywhere behind a fault.
fn later_records(bytes: &[u8]) -> u64 {
    let (mut at, mut found) = (1, 0);
    while let Some(next) = bytes.get(at..).and_then(|rest| memchr::memmem::find(rest, &MAGIC)) {
        at += next;
        match read(&bytes[at..]) {
            Reading::Record { length, .. } => {
                found += 1;
                at += HEADER_BYTES + length;
            }
            _ => at += 1,
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{HEADER_BYTES, encode, scan};

    fn log(payloads: &[&[u8]]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (index, payload) in payloads.iter().enumerate() {
            encode(index as u64 + 1, payload, &mut bytes);
        }
        bytes
    }

    #[test]
    fn a_cut_at_any_byte_loses_the_last_record_alone() {
        // Case C140, also inside of a character.
        let payloads: [&[u8]; 3] = [b"{\"a\":1}", "{\"text\":\"caf\u{e9} \u{754c}\"}".as_bytes(), b"last"];
        let whole = log(&payloads);
        let ends: Vec<usize> = (0..=3).map(|count| log(&payloads[..count]).len()).collect();
        for cut in 0..=whole.len() {
            let scan = scan(whole[..cut].to_vec());
            let complete = ends.iter().filter(|end| **end <= cut).count() - 1;
            assert_eq!((scan.log.len(), scan.whole_bytes), (complete, ends[complete]), "cut at {cut}");
            assert_eq!(scan.torn_bytes as usize, cut - ends[complete]);
            assert_eq!(scan.damage, None);
        }
    }

    #[test]
    fn what_is_changed_by_hand_is_damage_and_everything_before_it_is_whole() {
        let whole = log(&[b"one", b"two", b"three"]);
        let second = HEADER_BYTES + 3;
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x20;
            let scan = scan(bytes);
            let damage = scan.damage.unwrap_or_else(|| panic!("byte {at} is not noticed"));
            let hit = at.min(2 * second) / second;
            assert_eq!((scan.log.len(), damage.offset as usize), (hit, hit * second), "byte {at}");
            assert_eq!(damage.later_records, 2 - hit as u64, "byte {at}");
        }
        // An editor that ends the file with a blank line; a record that is taken out.
        let mut line = whole.clone();
        line.push(b'\n');
        assert_eq!(scan(line).log.len(), 3);
        let without = [&whole[..second], &whole[2 * second..]].concat();
        let scan = scan(without);
        assert_eq!((scan.log.len(), scan.damage.unwrap().reason), (1, "a record is out of order"));
    }

    #[test]
    fn zeros_at_the_end_are_a_torn_write() {
        let mut bytes = log(&[b"one"]);
        let whole = bytes.len();
        bytes.extend([0; 4096]);
        assert_eq!((scan(bytes.clone()).torn_bytes, scan(bytes.clone()).damage), (4096, None));
        // The header came through, its bytes did not.
        bytes.truncate(whole);
        let two = log(&[b"one", b"two"]);
        bytes.extend(&two[whole..whole + HEADER_BYTES]);
        bytes.extend([0; 3]);
        assert_eq!(scan(bytes).torn_bytes, 27);
    }

    proptest! {
        #[test]
        fn any_bytes_can_be_read(bytes in proptest::collection::vec(any::<u8>(), 0..300), cut in 0_usize..200) {
            let mut all = log(&[b"one", &bytes]);
            all.truncate(cut.max(30));
            all.extend(&bytes);
            let total = all.len();
            let scan = scan(all);
            let rest = scan.torn_bytes + scan.damage.map_or(0, |damage| damage.bytes);
            prop_assert_eq!(scan.whole_bytes as u64 + rest, total as u64);
        }

        #[test]
        fn what_was_written_is_read(payloads in proptest::collection::vec(
            proptest::collection::vec(any::<u8>(), 0..100), 0..20)) {
            let slices: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
            let scan = scan(log(&slices));
            prop_assert_eq!(scan.log.iter().map(|(_, bytes)| bytes.to_vec()).collect::<Vec<_>>(), payloads);
            prop_assert!(scan.damage.is_none() && scan.torn_bytes == 0);
        }
    }
}
