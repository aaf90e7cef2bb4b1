//! An immutable piece of the index: for each gram, which of its files hold it.
//!
//! A segment is one file: postings, the lengths of them, the table of files, and a checksum over all of it that is
//! looked at when it is opened. Only the directory of grams is held in memory; postings are read where they stand.
//! Whatever cannot be read or makes no sense lets every file through: a segment never takes a file away by mistake.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use crate::effects::files::FileStat;
use crate::search::gram::GRAMS;
use crate::search::packed::{Packed, write_number};
use crate::search::requirement::Requirement;
use crate::search::text::Extent;

/// Most files of one segment.
pub const SEGMENT_FILES_MAX: usize = 8192;
/// Most postings gathered for one segment, which bounds the memory of building it: 4 bytes each, up to twice as much
/// while room for them grows.
pub const SEGMENT_POSTINGS_MAX: usize = 6 * 1024 * 1024;
/// Below so many postings a segment is sorted by comparing.
const FEW_POSTINGS: usize = 64 * 1024;
/// Buckets that postings are gathered in.
const BUCKETS: usize = 256;
/// Grams of a bucket.
const BUCKET_GRAMS: usize = GRAMS / BUCKETS;
/// Bits of a gram within its bucket.
const BUCKET_BITS: u32 = BUCKET_GRAMS.trailing_zeros();
/// Bits of a file's number.
const FILE_BITS: u32 = SEGMENT_FILES_MAX.trailing_zeros();
/// Most bytes of steps, and one more.
const STEPS_BYTES_MAX: usize = 2 * SEGMENT_FILES_MAX / 8;
/// Largest segment that is opened, in bytes.
pub const SEGMENT_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// First bytes of a segment; the last of them is the version.
const MAGIC: [u8; 8] = *b"twgram\0\x02";
/// Bytes before the postings.
const HEADER_BYTES: usize = 8 + 4 * 8;
/// Bytes behind the table of files.
const FOOTER_BYTES: usize = 4;
/// How a posting list is written: the file numbers as steps.
const STEPS: u8 = 0;
/// As a bitmap.
const BITMAP: u8 = 1;
/// Every file has it.
const EVERY: u8 = 2;

/// What is remembered of a file to know it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stamp {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Last change of its content, in nanoseconds since 1970.
    pub modified_unix_ns: i128,
    /// Last change of anything about it, in nanoseconds since 1970.
    pub changed_unix_ns: i128,
    /// Device and inode.
    pub identity: (u64, u64),
}

impl Stamp {
    /// The stamp of a file that was last changed in any way at this moment.
    pub fn of(stat: &FileStat, changed_unix_ns: i128) -> Self {
        let (size_bytes, modified_unix_ns, identity) = (stat.size_bytes, stat.modified_unix_ns, stat.identity);
        Self { size_bytes, modified_unix_ns, changed_unix_ns, identity }
    }
}

/// A file in a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentFile {
    /// Its path from the root.
    pub path: Vec<u8>,
    /// How to know it again; none when it was too young for that.
    pub stamp: Option<Stamp>,
    /// Where a NUL ended its text.
    pub binary_at_byte: Option<u64>,
    /// How much text it has.
    pub extent: Extent,
}

/// Gathers files for a segment.
pub struct SegmentBuilder {
    files: Vec<SegmentFile>,
    /// By the upper part of the gram: its lower part, and the file.
    buckets: Vec<Vec<u32>>,
    postings: usize,
}

impl Default for SegmentBuilder {
    fn default() -> Self {
        Self { files: Vec::new(), buckets: vec![Vec::new(); BUCKETS], postings: 0 }
    }
}

impl SegmentBuilder {
    /// Adds a file; its number is the count of files before it.
    pub fn add(&mut self, file: SegmentFile, grams: &[u32]) {
        let number = self.files.len() as u32;
        self.files.push(file);
        // In buckets at once: sorting them later stays within the nearest cache.
        for gram in grams {
            if let Some(bucket) = self.buckets.get_mut((gram >> BUCKET_BITS) as usize) {
                bucket.push((gram & (BUCKET_GRAMS as u32 - 1)) << FILE_BITS | number);
            }
        }
        self.postings += grams.len();
    }

    /// Whether another file with so many grams still has room.
    pub fn has_room(&self, grams: usize) -> bool {
        self.files.is_empty() || (self.files.len() < SEGMENT_FILES_MAX && self.postings + grams <= SEGMENT_POSTINGS_MAX)
    }

    /// Its files so far.
    pub fn files(&self) -> &[SegmentFile] {
        &self.files
    }

    /// The segment as bytes; what was gathered is gone.
    pub fn finish(&mut self) -> Vec<u8> {
        let files = std::mem::take(&mut self.files);
        let steps = Box::new([0; STEPS_BYTES_MAX]);
        let mut lists = Lists { out: vec![0; HEADER_BYTES], lengths: Vec::new(), next: 0, files: files.len(), steps };
        let mut sorted = Vec::new();
        for (number, bucket) in self.buckets.iter_mut().enumerate() {
            lists.add_bucket(number * BUCKET_GRAMS, bucket, &mut sorted);
            // Its room stays: the segment that follows gathers as much again.
            bucket.clear();
        }
        self.postings = 0;
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
}

/// Lists on their way out, in the order of grams.
struct Lists {
    out: Vec<u8>,
    /// The length of each list; a gram without one is a zero and how many such stand in a row.
    lengths: Vec<u8>,
    next: usize,
    files: usize,
    steps: Box<[u8; STEPS_BYTES_MAX]>,
}

impl Lists {
    fn add(&mut self, gram: usize, list: &[u16]) {
        self.skip_to(gram);
        let before = self.out.len();
        write_list(list, self.files, &mut self.steps, &mut self.out);
        write_number((self.out.len() - before) as u64, &mut self.lengths);
        self.next = gram + 1;
    }

    /// Adds the lists of a bucket, whose first gram is given; sorts it in place or into `sorted`.
    fn add_bucket(&mut self, first: usize, bucket: &mut [u32], sorted: &mut Vec<u16>) {
        let gram = |entry: u32| (entry >> FILE_BITS) as usize;
        let file = |entry: u32| (entry & (SEGMENT_FILES_MAX as u32 - 1)) as u16;
        if bucket.len() < FEW_POSTINGS / BUCKETS {
            // Quicker than counting where there is little to count.
            bucket.sort_unstable();
            for list in bucket.chunk_by(|one, two| gram(*one) == gram(*two)) {
                sorted.clear();
                sorted.extend(list.iter().map(|entry| file(*entry)));
                self.add(first + gram(list[0]), sorted);
            }
            return;
        }
        let mut ends = [0_u32; BUCKET_GRAMS + 1];
        for entry in &*bucket {
            ends[gram(*entry) + 1] += 1;
        }
        for at in 0..BUCKET_GRAMS {
            ends[at + 1] += ends[at];
        }
        sorted.resize(bucket.len(), 0);
        // The files of a gram came in their order, and keep it.
        for entry in &*bucket {
            let place = &mut ends[gram(*entry)];
            sorted[*place as usize] = file(*entry);
            *place += 1;
        }
        let mut start = 0;
        for (at, end) in ends.iter().take(BUCKET_GRAMS).enumerate() {
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
}

/// `steps` is room to work in, whatever it holds.
fn write_list(list: &[u16], files: usize, steps: &mut [u8; STEPS_BYTES_MAX], out: &mut Vec<u8>) {
    if list.len() == files {
        out.push(EVERY);
        return;
    }
    let bitmap_bytes = files.div_ceil(8);
    // A step takes a byte at least.
    if list.len() < bitmap_bytes {
        // As numbers are packed, of which none here takes more than two bytes.
        let (mut length, mut last) = (0, 0);
        for file in list {
            let step = file - last;
            let is_long = step >= 0x80;
            steps[length % STEPS_BYTES_MAX] = (step & 0x7f) as u8 | u8::from(is_long) << 7;
            steps[(length + 1) % STEPS_BYTES_MAX] = (step >> 7) as u8;
            length += 1 + usize::from(is_long);
            last = *file;
        }
        if length < bitmap_bytes {
            out.push(STEPS);
            out.extend_from_slice(&steps[..length]);
            return;
        }
    }
    let mut bitmap = [0_u8; SEGMENT_FILES_MAX / 8];
    for file in list {
        bitmap[usize::from(file / 8) % (SEGMENT_FILES_MAX / 8)] |= 1 << (file % 8);
    }
    out.push(BITMAP);
    out.extend_from_slice(&bitmap[..bitmap_bytes]);
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

fn read_moment(table: &mut Packed<'_>) -> Option<i128> {
    Some(i128::from(i64::from_le_bytes(table.take(8)?.try_into().ok()?)))
}

/// A file of the table; `last` is the path of the one before.
fn read_file(table: &mut Packed<'_>, last: &[u8]) -> Option<SegmentFile> {
    let common = usize::try_from(table.number()?).ok()?;
    let rest = usize::try_from(table.number()?).ok()?;
    let mut path = last.get(..common)?.to_vec();
    path.extend_from_slice(table.take(rest)?);
    let mut short = || u32::try_from(table.number()?).ok();
    let extent = Extent { file_bytes: short()?, lines: short()?, text_bytes: short()? };
    let binary_at_byte = table.number()?.checked_sub(1);
    let stamp = match table.take(1)? {
        [0] => None,
        _ => Some(Stamp {
            size_bytes: u64::from(extent.file_bytes),
            modified_unix_ns: read_moment(table)?,
            changed_unix_ns: read_moment(table)?,
            identity: (table.number()?, table.number()?),
        }),
    };
    Some(SegmentFile { path, stamp, binary_at_byte, extent })
}

/// Which files of a segment may hold what is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSet {
    words: Box<[u64]>,
    files: usize,
}

impl FileSet {
    /// Every one of so many files.
    pub fn every(files: usize) -> Self {
        Self { words: vec![u64::MAX; files.div_ceil(64)].into(), files }
    }

    /// None of so many files.
    pub fn none(files: usize) -> Self {
        Self { words: vec![0; files.div_ceil(64)].into(), files }
    }

    /// Whether this file is in it.
    pub fn holds(&self, file: usize) -> bool {
        self.words.get(file / 64).is_none_or(|word| word >> (file % 64) & 1 == 1)
    }

    fn add(&mut self, file: usize) {
        if let Some(word) = self.words.get_mut(file / 64) {
            *word |= 1 << (file % 64);
        }
    }

    fn keep(&mut self, other: &Self) {
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word &= other);
    }

    fn join(&mut self, other: &Self) {
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word |= other);
    }

    fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }
}

/// Where the bytes of a segment stand.
#[derive(Debug)]
enum Source {
    File(File),
    Memory(Vec<u8>),
}

/// An open segment.
#[derive(Debug)]
pub struct Segment {
    source: Source,
    /// How much text each file has.
    extents: Box<[Extent]>,
    bytes: u64,
    /// A bit for each gram that some file has.
    present: Box<[u64]>,
    /// How many present grams stand before each word of `present`.
    ranks: Box<[u32]>,
    /// Where the list of each present gram begins; one more at the end.
    starts: Box<[u32]>,
}

/// Why a segment cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SegmentError {
    /// It could not be read.
    #[error("the segment cannot be read: {0}")]
    Io(#[from] std::io::Error),
    /// It is no segment of this version, or its bytes are not the ones that were written.
    #[error("the segment is damaged or of another version")]
    Damaged,
}

impl Segment {
    /// Opens a segment and checks every byte of it; also its table of files.
    ///
    /// # Errors
    /// [`SegmentError`].
    pub fn open(file: File) -> Result<(Self, Vec<SegmentFile>), SegmentError> {
        let length = file.metadata()?.len();
        if length > SEGMENT_BYTES_MAX {
            return Err(SegmentError::Damaged);
        }
        let mut bytes = vec![0; usize::try_from(length).map_err(|_| SegmentError::Damaged)?];
        file.read_exact_at(&mut bytes, 0)?;
        let (mut segment, files) = Self::read(&bytes).ok_or(SegmentError::Damaged)?;
        segment.source = Source::File(file);
        Ok((segment, files))
    }

    /// Takes a small segment as it is, to hold it in memory.
    ///
    /// # Errors
    /// [`SegmentError::Damaged`].
    pub fn in_memory(bytes: Vec<u8>) -> Result<Self, SegmentError> {
        let (mut segment, _) = Self::read(&bytes).ok_or(SegmentError::Damaged)?;
        segment.source = Source::Memory(bytes);
        Ok(segment)
    }

    fn read(bytes: &[u8]) -> Option<(Self, Vec<SegmentFile>)> {
        let (body, footer) = bytes.split_at_checked(bytes.len().checked_sub(FOOTER_BYTES)?)?;
        let sum = u32::from_le_bytes(footer.try_into().ok()?);
        if !body.starts_with(&MAGIC) || body.len() < HEADER_BYTES || crc32fast::hash(body) != sum {
            return None;
        }
        let number = |at: usize| {
            let bytes = body[8 + at * 8..16 + at * 8].try_into().ok()?;
            usize::try_from(u64::from_le_bytes(bytes)).ok()
        };
        let (lengths_at, files_at, count, end) = (number(0)?, number(1)?, number(2)?, number(3)?);
        if count > SEGMENT_FILES_MAX || end != body.len() {
            return None;
        }
        let mut present = vec![0_u64; GRAMS / 64].into_boxed_slice();
        let mut starts = Vec::new();
        let (mut gram, mut start) = (0_usize, HEADER_BYTES);
        let mut lengths = Packed(body.get(lengths_at..files_at)?);
        while gram < GRAMS {
            let length = usize::try_from(lengths.number()?).ok()?;
            if length == 0 {
                gram = gram.checked_add(usize::try_from(lengths.number()?).ok()?.max(1))?;
                continue;
            }
            present[gram / 64] |= 1 << (gram % 64);
            starts.push(u32::try_from(start).ok()?);
            start += length;
            gram += 1;
        }
        if start != lengths_at || gram != GRAMS {
            return None;
        }
        starts.push(u32::try_from(start).ok()?);
        let mut ranks = Vec::with_capacity(present.len());
        let mut rank = 0;
        for word in &present {
            ranks.push(rank);
            rank += word.count_ones();
        }
        let mut table = Packed(body.get(files_at..)?);
        let mut files: Vec<SegmentFile> = Vec::with_capacity(count);
        for _ in 0..count {
            let last = files.last().map(|file| file.path.as_slice()).unwrap_or_default();
            files.push(read_file(&mut table, last)?);
        }
        let segment = Self {
            source: Source::Memory(Vec::new()),
            extents: files.iter().map(|file| file.extent).collect(),
            bytes: bytes.len() as u64,
            present,
            ranks: ranks.into(),
            starts: starts.into(),
        };
        Some((segment, files))
    }

    /// How many files it has.
    pub fn len(&self) -> usize {
        self.extents.len()
    }

    /// Whether it has no file.
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// How much text a file has.
    pub fn extent(&self, file: u16) -> Option<Extent> {
        self.extents.get(usize::from(file)).copied()
    }

    /// Its size, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether it is held in memory alone.
    pub fn is_in_memory(&self) -> bool {
        matches!(self.source, Source::Memory(_))
    }

    /// The files that fulfil a requirement; all of them when the segment cannot be read any more.
    pub fn files_with(&self, required: &Requirement) -> FileSet {
        self.evaluate(required).unwrap_or_else(|| FileSet::every(self.len()))
    }

    /// None when the segment cannot be read.
    fn evaluate(&self, required: &Requirement) -> Option<FileSet> {
        match required {
            Requirement::Nothing => Some(FileSet::every(self.len())),
            Requirement::Gram(gram) => self.list(*gram),
            Requirement::All(parts) => {
                // The rarest first: most searches end there.
                let mut order: Vec<(usize, &Requirement)> = parts.iter().map(|part| (self.cost(part), part)).collect();
                order.sort_by_key(|(cost, _)| *cost);
                let mut found = FileSet::every(self.len());
                for (_, part) in order {
                    found.keep(&self.evaluate(part)?);
                    if found.is_empty() {
                        break;
                    }
                }
                Some(found)
            }
            Requirement::One(parts) => {
                let mut found = FileSet::none(self.len());
                for part in parts {
                    found.join(&self.evaluate(part)?);
                }
                Some(found)
            }
        }
    }

    /// Bytes to read, about.
    fn cost(&self, required: &Requirement) -> usize {
        match required {
            Requirement::Nothing => 0,
            Requirement::Gram(gram) => self.place(*gram).map_or(0, |(from, to)| (to - from) as usize),
            Requirement::All(parts) => parts.iter().map(|part| self.cost(part)).min().unwrap_or(0),
            Requirement::One(parts) => parts.iter().map(|part| self.cost(part)).sum(),
        }
    }

    /// Where the list of a gram stands; none when no file has it.
    fn place(&self, gram: u32) -> Option<(u32, u32)> {
        let (word, bit) = (gram as usize / 64, gram % 64);
        let bits = *self.present.get(word)?;
        if bits >> bit & 1 == 0 {
            return None;
        }
        let rank = (self.ranks[word] + (bits & ((1 << bit) - 1)).count_ones()) as usize;
        Some((*self.starts.get(rank)?, *self.starts.get(rank + 1)?))
    }

    fn list(&self, gram: u32) -> Option<FileSet> {
        let mut found = FileSet::none(self.len());
        let Some((from, to)) = self.place(gram) else { return Some(found) };
        let mut read = Vec::new();
        let bytes = match &self.source {
            Source::Memory(bytes) => bytes.get(from as usize..to as usize)?,
            Source::File(file) => {
                read.resize((to - from) as usize, 0);
                file.read_exact_at(&mut read, u64::from(from)).ok()?;
                read.as_slice()
            }
        };
        let (kind, rest) = bytes.split_first()?;
        match *kind {
            EVERY => return Some(FileSet::every(self.len())),
            BITMAP => {
                for (word, bytes) in found.words.iter_mut().zip(rest.chunks(8)) {
                    let mut whole = [0; 8];
                    whole[..bytes.len()].copy_from_slice(bytes);
                    *word = u64::from_le_bytes(whole);
                }
            }
            STEPS => {
                let mut steps = Packed(rest);
                let mut file = 0;
                while !steps.0.is_empty() {
                    file += usize::try_from(steps.number()?).ok()?;
                    found.add(file);
                }
            }
            _ => return None,
        }
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Write as _;

    use proptest::prelude::*;

    use super::{Segment, SegmentBuilder, SegmentError, SegmentFile, Stamp};
    use crate::search::requirement::Requirement;
    use crate::search::text::Extent;

    fn open(bytes: &[u8]) -> Result<(Segment, Vec<SegmentFile>), SegmentError> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        Segment::open(file)
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
            spread in 1_u32..870,
        ) {
            let mut builder = SegmentBuilder::default();
            let sets: Vec<BTreeSet<u32>> =
                sets.iter().map(|set| set.iter().map(|gram| gram * spread).collect()).collect();
            for (number, set) in sets.iter().enumerate() {
                builder.add(file(number), &set.iter().rev().copied().collect::<Vec<_>>());
            }
            let (segment, files) = open(&builder.finish()).unwrap();
            prop_assert_eq!(files, (0..sets.len()).map(file).collect::<Vec<_>>());
            for gram in (0..300).map(|gram| gram * spread) {
                let found = segment.files_with(&Requirement::Gram(gram));
                for (number, set) in sets.iter().enumerate() {
                    prop_assert_eq!(found.holds(number), set.contains(&gram));
                }
            }
        }
    }

    #[test]
    fn requirements_are_joined_as_said() {
        let mut builder = SegmentBuilder::default();
        for (number, grams) in [vec![1, 2], vec![2, 3], vec![3]].into_iter().enumerate() {
            builder.add(file(number), &grams);
        }
        let (segment, _) = open(&builder.finish()).unwrap();
        let held = |required: Requirement| {
            let found = segment.files_with(&required);
            (0..3).filter(|number| found.holds(*number)).collect::<Vec<_>>()
        };
        let gram = Requirement::Gram;
        assert_eq!(held(Requirement::Nothing), [0, 1, 2]);
        assert_eq!(held(Requirement::All(vec![gram(2), gram(3)])), [1]);
        assert_eq!(held(Requirement::One(vec![gram(1), gram(3)])), [0, 1, 2]);
        assert_eq!(held(Requirement::All(vec![gram(7), gram(3)])), Vec::<usize>::new());
    }

    // A segment that was changed by one byte anywhere is not used.
    #[test]
    fn damage_is_seen() {
        let mut builder = SegmentBuilder::default();
        builder.add(file(0), &[1, 2, 3]);
        builder.add(file(1), &[3, 70_000]);
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
        builder.add(file(0), &[1]);
        builder.add(file(1), &[2]);
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&builder.finish()).unwrap();
        let (segment, _) = Segment::open(file.try_clone().unwrap()).unwrap();
        file.set_len(10).unwrap();
        let found = segment.files_with(&Requirement::Gram(1));
        assert!(found.holds(0) && found.holds(1));
    }
}
