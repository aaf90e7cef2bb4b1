//! Gathers files for a segment and writes it.
//!
//! Files are taken eight at a time, in a table of marks; what it holds then is gathered by gram, so that lists need no
//! sorting. The memory is bounded by the marks that are gathered. A segment is read in `segment`.

use crate::search::gram::{GRAMS, GramTable, MARK_NUMBER_BITS, Mark, SPAN_GRAMS, TEXTS};
use crate::search::packed::write_number;
use crate::search::segment::{BITMAP, EVERY, HEADER_BYTES, MAGIC, SEGMENT_FILES_MAX, SPARSE, STEPS, SegmentFile};

/// Most marks that are gathered for one segment, but for those of the last files, which bounds the memory of building
/// it: 4 bytes each, up to twice as much while room for them grows.
pub const SEGMENT_MARKS_MAX: usize = 6 * 1024 * 1024;
/// Below so many marks a segment is sorted by comparing.
const FEW_MARKS: usize = 64 * 1024;
/// Spans of grams.
const SPANS: usize = GRAMS / SPAN_GRAMS;
/// Most bytes of a bitmap.
const BITMAP_BYTES_MAX: usize = SEGMENT_FILES_MAX / 8;
/// From so many marks on a list is not written as steps.
const STEPS_MARKS_MAX: usize = 128;
/// Room for steps: of a mark the first takes two bytes at most, and each other one byte.
const STEPS_ROOM: usize = STEPS_MARKS_MAX * (TEXTS + 1);
/// The same, and room for what is written in vain.
const STEPS_BYTES_MAX: usize = STEPS_ROOM + TEXTS;

const _: () = assert!(SEGMENT_FILES_MAX / TEXTS <= 1 << MARK_NUMBER_BITS && TEXTS == 8);

/// Gathers files for a segment.
pub struct SegmentBuilder {
    files: Vec<SegmentFile>,
    table: GramTable,
    /// Whether something may stand in the table of a file that was not added.
    is_open: bool,
    /// By span; each mark has the number of its eight files.
    marks: Vec<Vec<Mark>>,
    gathered: usize,
    /// The memory of a segment that was written.
    spare: Vec<u8>,
}

impl Default for SegmentBuilder {
    fn default() -> Self {
        let marks = vec![Vec::new(); SPANS];
        Self { files: Vec::new(), table: GramTable::default(), is_open: false, marks, gathered: 0, spare: Vec::new() }
    }
}

impl SegmentBuilder {
    /// Whether another file still has room.
    pub fn has_room(&self) -> bool {
        let fits = self.files.len() < SEGMENT_FILES_MAX && self.gathered <= SEGMENT_MARKS_MAX;
        fits || !self.files.len().is_multiple_of(TEXTS)
    }

    /// Begins to read a file; one that was begun and not added is forgotten.
    pub fn begin(&mut self) {
        if std::mem::replace(&mut self.is_open, true) {
            self.table.forget();
        }
        self.table.begin(self.files.len());
    }

    /// Takes the next part of the text of the file that was begun.
    pub fn read(&mut self, text: &[u8]) {
        self.table.add(text);
    }

    /// Adds the file that was begun; its number is the count of files before it.
    pub fn add(&mut self, file: SegmentFile) {
        self.is_open = false;
        self.files.push(file);
        if self.files.len().is_multiple_of(TEXTS) {
            self.gather();
        }
    }

    /// Takes the marks of the last files out of the table.
    fn gather(&mut self) {
        let number = (self.files.len().saturating_sub(1) / TEXTS) as u32;
        self.table.take(number, |span, marks| {
            if let Some(gathered) = self.marks.get_mut(span) {
                gathered.extend_from_slice(marks);
            }
            self.gathered += marks.len();
        });
    }

    /// Its files so far.
    pub fn files(&self) -> &[SegmentFile] {
        &self.files
    }

    /// The segment as bytes; what was gathered is gone.
    pub fn finish(&mut self) -> Vec<u8> {
        if std::mem::take(&mut self.is_open) {
            self.table.forget();
        }
        if !self.files.len().is_multiple_of(TEXTS) {
            self.gather();
        }
        let files = std::mem::take(&mut self.files);
        let steps = Box::new([0; STEPS_BYTES_MAX]);
        let mut out = std::mem::take(&mut self.spare);
        out.clear();
        out.resize(HEADER_BYTES, 0);
        let mut lists = Lists { out, lengths: Vec::new(), next: 0, files: files.len(), steps };
        let mut sorted = Vec::new();
        for (number, span) in self.marks.iter_mut().enumerate() {
            lists.add_span(number * SPAN_GRAMS, span, &mut sorted);
            // Its room stays: the segment that follows gathers as much again.
            span.clear();
        }
        self.gathered = 0;
        lists.skip_to(GRAMS);
        let Lists { mut out, lengths, .. } = lists;
        let lengths_at = out.len() as u64;
        out.extend_from_slice(&lengths);
        let files_at = out.len() as u64;
        let mut last: &[u8] = b"";
        for file in &files {
            write_file(file, last, &mut out);
            last = &file.path;
        }
        let header = [lengths_at, files_at, files.len() as u64, out.len() as u64];
        out[..8].copy_from_slice(&MAGIC);
        for (at, number) in header.into_iter().enumerate() {
            out[8 + at * 8..16 + at * 8].copy_from_slice(&number.to_le_bytes());
        }
        let sum = crc32fast::hash(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        out
    }

    /// Takes the memory of a segment that is needed no more, for the next one.
    pub fn reuse(&mut self, bytes: Vec<u8>) {
        self.spare = bytes;
    }

    /// Gives the memory back that is kept for the next segment.
    pub fn release(&mut self) {
        self.spare = Vec::new();
        self.marks.iter_mut().filter(|span| span.is_empty()).for_each(|span| *span = Vec::new());
    }
}

/// Lists on their way out, in the order of grams.
struct Lists {
    out: Vec<u8>,
    /// The length of each list; a gram without one is a zero and how many such stand in a row.
    lengths: Vec<u8>,
    next: usize,
    files: usize,
    /// Room to work in, whatever it holds.
    steps: Box<[u8; STEPS_BYTES_MAX]>,
}

impl Lists {
    fn add(&mut self, gram: usize, list: &[Mark]) {
        self.skip_to(gram);
        let before = self.out.len();
        self.write_list(list);
        write_number((self.out.len() - before) as u64, &mut self.lengths);
        self.next = gram + 1;
    }

    /// Adds the lists of a span, whose first gram is given; sorts it in place or into `sorted`.
    fn add_span(&mut self, first: usize, span: &mut [Mark], sorted: &mut Vec<Mark>) {
        if span.len() < FEW_MARKS / SPANS {
            // Quicker than counting where there is little to count.
            span.sort_unstable();
            for list in span.chunk_by(|one, two| one.gram() == two.gram()) {
                self.add(first + list[0].gram(), list);
            }
            return;
        }
        let mut ends = [0_u32; SPAN_GRAMS + 1];
        for mark in &*span {
            ends[mark.gram() + 1] += 1;
        }
        for at in 0..SPAN_GRAMS {
            ends[at + 1] += ends[at];
        }
        sorted.resize(span.len(), Mark::default());
        // The files of a gram came in their order, and keep it.
        for mark in &*span {
            let place = &mut ends[mark.gram()];
            sorted[*place as usize] = *mark;
            *place += 1;
        }
        let mut start = 0;
        for (at, end) in ends.iter().take(SPAN_GRAMS).enumerate() {
            let list = &sorted[start..*end as usize];
            start = *end as usize;
            if !list.is_empty() {
                self.add(first + at, list);
            }
        }
    }

    fn skip_to(&mut self, gram: usize) {
        if gram > self.next {
            self.lengths.push(0);
            write_number((gram - self.next) as u64, &mut self.lengths);
            self.next = gram;
        }
    }

    /// In the shortest of all forms, as far as that is known without trying.
    fn write_list(&mut self, list: &[Mark]) {
        let bitmap_bytes = self.files.div_ceil(TEXTS);
        if list.len() == bitmap_bytes && self.is_every(list) {
            self.out.push(EVERY);
            return;
        }
        let sparse_bytes = bitmap_bytes.div_ceil(8) + list.len();
        // A mark takes a byte at least, and more where it is far from the next.
        if list.len() < STEPS_MARKS_MAX {
            let length = write_steps(list, &mut self.steps);
            if length <= sparse_bytes.min(bitmap_bytes) {
                self.out.push(STEPS);
                self.out.extend_from_slice(&self.steps[..length]);
                return;
            }
        }
        if sparse_bytes < bitmap_bytes {
            self.write_sparse(list, bitmap_bytes.div_ceil(8));
            return;
        }
        self.out.push(BITMAP);
        let begin = self.out.len();
        self.out.resize(begin + bitmap_bytes, 0);
        for mark in list {
            if let Some(byte) = self.out.get_mut(begin + mark.number() as usize) {
                *byte = mark.texts();
            }
        }
    }

    fn is_every(&self, list: &[Mark]) -> bool {
        list.iter().map(|mark| mark.texts().count_ones() as usize).sum::<usize>() == self.files
    }

    fn write_sparse(&mut self, list: &[Mark], present_bytes: usize) {
        self.out.push(SPARSE);
        let mut present = [0_u8; BITMAP_BYTES_MAX.div_ceil(8)];
        for mark in list {
            present[mark.number() as usize / 8 % BITMAP_BYTES_MAX.div_ceil(8)] |= 1 << (mark.number() % 8);
        }
        self.out.extend_from_slice(&present[..present_bytes]);
        self.out.extend(list.iter().map(|mark| mark.texts()));
    }
}

/// Writes the files of a list as steps from one to the next, packed as numbers are, of which none here takes more than
/// two bytes; returns how many bytes that are. The list has fewer than [`STEPS_MARKS_MAX`] marks.
fn write_steps(list: &[Mark], steps: &mut [u8; STEPS_BYTES_MAX]) -> usize {
    let (mut length, mut last) = (0, 0);
    for mark in list {
        let (texts, begin) = (mark.texts(), mark.number() * TEXTS as u32);
        let step = (begin + texts.trailing_zeros()).saturating_sub(last);
        let is_long = step >= 0x80;
        let at = length % STEPS_ROOM;
        steps[at] = (step & 0x7f) as u8 | u8::from(is_long) << 7;
        steps[at + 1] = (step >> 7) as u8;
        let at = at + 1 + usize::from(is_long);
        // All at once, and what is too much is written over.
        let (inner, count) = INNER_STEPS[usize::from(texts)];
        steps[at % STEPS_ROOM..][..TEXTS].copy_from_slice(&inner.to_le_bytes());
        length = at + usize::from(count);
        last = begin + 7 - texts.leading_zeros().min(7);
    }
    length
}

/// For each set of eight files: the steps from its first to its last, a byte each, the first lowest; and how many.
static INNER_STEPS: [(u64, u8); 256] = inner_steps();

const fn inner_steps() -> [(u64, u8); 256] {
    let mut all = [(0, 0); 256];
    let mut texts = 1_usize;
    while texts < 256 {
        let (mut steps, mut count) = (0_u64, 0_u8);
        let mut last = texts.trailing_zeros();
        let mut at = last + 1;
        while at < 8 {
            if texts >> at & 1 == 1 {
                steps |= ((at - last) as u64) << (8 * count);
                count += 1;
                last = at;
            }
            at += 1;
        }
        all[texts] = (steps, count);
        texts += 1;
    }
    all
}

fn write_file(file: &SegmentFile, last: &[u8], out: &mut Vec<u8>) {
    let common = file.path.iter().zip(last).take_while(|(one, two)| one == two).count();
    write_number(common as u64, out);
    write_number((file.path.len() - common) as u64, out);
    out.extend_from_slice(&file.path[common..]);
    for number in [file.extent.file_bytes, file.extent.lines, file.extent.text_bytes] {
        write_number(number.into(), out);
    }
    write_number(file.binary_at_byte.map_or(0, |at| at + 1), out);
    let Some(stamp) = &file.stamp else {
        out.push(0);
        return;
    };
    out.push(1);
    for moment in [stamp.modified_unix_ns, stamp.changed_unix_ns] {
        // Within the years that 64 bits of nanoseconds reach; others only never match again.
        out.extend_from_slice(&(moment as i64).to_le_bytes());
    }
    write_number(stamp.identity.0, out);
    write_number(stamp.identity.1, out);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Write as _;

    use proptest::prelude::*;

    use super::{BITMAP, EVERY, HEADER_BYTES, SPARSE, STEPS, SegmentBuilder};
    use crate::search::gram::{CLASSES, gram_of};
    use crate::search::requirement::Requirement;
    use crate::search::segment::{Segment, SegmentError, SegmentFile, Stamp};
    use crate::search::text::Extent;

    fn open(bytes: &[u8]) -> Result<(Segment, Vec<SegmentFile>), SegmentError> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        Segment::open(file)
    }

    /// One byte of most classes.
    const BYTES: &[u8] = b"abcdefghijklmnopqrstuvwxyz01247_\"(*,-.:;=<&[9)";

    /// One of 97,336 texts of one gram each.
    fn text(number: u32) -> [u8; 3] {
        let (number, count) = (number as usize, BYTES.len());
        [number / count / count, number / count, number].map(|at| BYTES[at % count])
    }

    fn gram(number: u32) -> Requirement {
        Requirement::Gram(gram_of(text(number).map(|byte| CLASSES[usize::from(byte)])).unwrap())
    }

    fn put(builder: &mut SegmentBuilder, file: SegmentFile, grams: impl IntoIterator<Item = u32>) {
        assert!(builder.has_room());
        builder.begin();
        for gram in grams {
            builder.read(b"\n");
            builder.read(&text(gram));
        }
        builder.add(file);
    }

    fn file(number: usize) -> SegmentFile {
        let stamp = Stamp {
            size_bytes: number as u64 * 1000,
            modified_unix_ns: 1_700_000_000_123_456_789,
            changed_unix_ns: -5,
            identity: (64769, number as u64 + 900),
        };
        let size = number as u32 * 1000;
        SegmentFile {
            path: format!("folder{}/file{number}", number / 7).into_bytes(),
            stamp: (!number.is_multiple_of(3)).then_some(stamp),
            binary_at_byte: number.is_multiple_of(5).then_some(number as u64),
            extent: Extent { file_bytes: size, text_bytes: size / 2, lines: number as u32 },
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn every_list_comes_back(
            sets in prop::collection::vec(prop::collection::btree_set(0_u32..300, 0..200), 1..300),
            spread in 1_u32..325,
        ) {
            let mut builder = SegmentBuilder::default();
            let sets: Vec<BTreeSet<u32>> =
                sets.iter().map(|set| set.iter().map(|gram| gram * spread).collect()).collect();
            for (number, set) in sets.iter().enumerate() {
                // What is begun and not added leaves nothing.
                builder.begin();
                builder.read(b"never added");
                put(&mut builder, file(number), set.iter().rev().copied());
            }
            let (segment, files) = open(&builder.finish()).unwrap();
            prop_assert_eq!(files, (0..sets.len()).map(file).collect::<Vec<_>>());
            for number in (0..300).map(|gram| gram * spread) {
                let found = segment.files_with(&gram(number));
                for (at, set) in sets.iter().enumerate() {
                    prop_assert_eq!(found.holds(at), set.contains(&number));
                }
            }
        }
    }

    // Lists that are written in each of the forms, of more files than numbers of one byte reach.
    #[test]
    fn long_lists_come_back_in_every_form() {
        const FILES: usize = 1997;
        let shapes: [fn(usize) -> bool; 7] = [
            |_| true,
            |file| file != 1000,
            |file| file.is_multiple_of(3),
            |file| file / 400 == 2,
            |file| file / 8 % 5 == 1,
            |file| [5, 700, 701, FILES - 1].contains(&file),
            |_| false,
        ];
        let mut builder = SegmentBuilder::default();
        for number in 0..FILES {
            let grams = shapes.iter().enumerate().filter(|(_, has)| has(number)).map(|(gram, _)| gram as u32);
            put(&mut builder, file(number), grams);
        }
        let bytes = builder.finish();
        let (segment, _) = open(&bytes).unwrap();
        for (number, has) in shapes.iter().enumerate() {
            let found = segment.files_with(&gram(number as u32));
            assert!((0..FILES).all(|file| found.holds(file) == has(file)), "shape {number}");
        }
        // The kinds of the lists, one after the other: nothing but them and their bytes stands before the lengths.
        let bitmap = FILES.div_ceil(8);
        let present = bitmap.div_ceil(8);
        let lengths = [1, 1 + bitmap, 1 + bitmap, 1 + present + 50, 1 + present + 50, 7];
        let mut at = HEADER_BYTES;
        for (length, kind) in lengths.into_iter().zip([EVERY, BITMAP, BITMAP, SPARSE, SPARSE, STEPS]) {
            assert_eq!(bytes[at], kind);
            at += length;
        }
        assert_eq!(u64::from_le_bytes(bytes[8..16].try_into().unwrap()), at as u64);
    }

    #[test]
    fn requirements_are_joined_as_said() {
        let mut builder = SegmentBuilder::default();
        for (number, grams) in [vec![1, 2], vec![2, 3], vec![3]].into_iter().enumerate() {
            put(&mut builder, file(number), grams);
        }
        let (segment, _) = open(&builder.finish()).unwrap();
        let held = |required: Requirement| {
            let found = segment.files_with(&required);
            (0..3).filter(|number| found.holds(*number)).collect::<Vec<_>>()
        };
        assert_eq!(held(Requirement::Nothing), [0, 1, 2]);
        assert_eq!(held(Requirement::All(vec![gram(2), gram(3)])), [1]);
        assert_eq!(held(Requirement::One(vec![gram(1), gram(3)])), [0, 1, 2]);
        assert_eq!(held(Requirement::All(vec![gram(7), gram(3)])), Vec::<usize>::new());
    }

    // A segment that was changed by one byte anywhere is not used.
    #[test]
    fn damage_is_seen() {
        let mut builder = SegmentBuilder::default();
        put(&mut builder, file(0), [1, 2, 3]);
        put(&mut builder, file(1), [3, 70_000]);
        let bytes = builder.finish();
        assert!(open(&bytes).is_ok());
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            assert!(open(&damaged).is_err(), "byte {at}");
        }
        for length in 0..bytes.len() {
            assert!(open(&bytes[..length]).is_err(), "cut at {length}");
        }
    }

    // What can no longer be read lets every file through.
    #[test]
    fn a_segment_that_vanished_excludes_nothing() {
        let mut builder = SegmentBuilder::default();
        put(&mut builder, file(0), [1]);
        put(&mut builder, file(1), [2]);
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&builder.finish()).unwrap();
        let (segment, _) = Segment::open(file.try_clone().unwrap()).unwrap();
        file.set_len(10).unwrap();
        let found = segment.files_with(&gram(1));
        assert!(found.holds(0) && found.holds(1));
    }
}
