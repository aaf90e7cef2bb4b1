//! An immutable piece of the index: for each gram, which of its files hold it.
//!
//! A segment is one file: postings, the lengths of them, the table of files, and a checksum over all of it that is
//! looked at when it is opened; `segment_builder` writes it. Only the directory of grams is held in memory; postings are
//! read where they stand.
//! Whatever cannot be read or makes no sense lets every file through: a segment never takes a file away by mistake.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use crate::effects::files::FileStat;
use crate::search::gram::GRAMS;
use crate::search::packed::Packed;
use crate::search::requirement::Requirement;
use crate::search::text::Extent;

/// Most files of one segment.
pub const SEGMENT_FILES_MAX: usize = 8192;
/// Largest segment that is opened, in bytes.
pub const SEGMENT_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// First bytes of a segment; the last of them is the version, of the grams in it too.
pub(crate) const MAGIC: [u8; 8] = *b"twgram\0\x03";
/// Bytes before the postings.
pub(crate) const HEADER_BYTES: usize = 8 + 4 * 8;
/// Bytes behind the table of files.
const FOOTER_BYTES: usize = 4;
/// How a posting list is written: the file numbers as steps.
pub(crate) const STEPS: u8 = 0;
/// As a bitmap.
pub(crate) const BITMAP: u8 = 1;
/// Every file has it.
pub(crate) const EVERY: u8 = 2;
/// As a bitmap without the bytes that are zero, and before it a bitmap of those that are not.
pub(crate) const SPARSE: u8 = 3;

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

    /// Adds the files of a bitmap of so many bytes, of which only those that are not zero follow their own bitmap.
    fn fill_sparse(&mut self, bitmap_bytes: usize, bytes: &[u8]) -> Option<()> {
        let (present, bytes) = bytes.split_at_checked(bitmap_bytes.div_ceil(8))?;
        let mut bytes = bytes.iter();
        for (word, present) in self.words.iter_mut().zip(present) {
            let mut left = *present;
            while left != 0 {
                *word |= u64::from(*bytes.next()?) << (8 * left.trailing_zeros());
                left &= left - 1;
            }
        }
        bytes.next().is_none().then_some(())
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
        Self::written(file, &bytes)
    }

    /// A segment that was written to this file as these bytes.
    ///
    /// # Errors
    /// [`SegmentError::Damaged`].
    pub fn written(file: File, bytes: &[u8]) -> Result<(Self, Vec<SegmentFile>), SegmentError> {
        let (mut segment, files) = Self::read(bytes).ok_or(SegmentError::Damaged)?;
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
            SPARSE => found.fill_sparse(self.len().div_ceil(8), rest)?,
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
