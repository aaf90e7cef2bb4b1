//! The thread behind a resident index: reads the tree, takes over kept segments, reads what is not known, and then
//! waits for changes.
//!
//! It never holds the lock while it reads a file, gives way to other work of the machine, and ends within one read
//! when it is cancelled. What it cannot do (a full disk, a watch that is refused) makes the index smaller or absent and
//! nothing else.

mod by_stamp;

use std::collections::BTreeSet;
use std::io::{Read as _, Seek as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::effects::files::{FileKind, OpenFile};
use crate::effects::folder_watch::WatchError;
use crate::search::index_state::{Phase, Shared};
use crate::search::ranked_text::read_text;
use crate::search::segment::{Segment, SegmentFile, Stamp};
use crate::search::segment_builder::SegmentBuilder;
use crate::search::segment_cache::{Kept, SegmentCache};
use crate::search::stop::Stop;
use crate::search::text::{AtNul, Extent, TextFacts, TextReader, read_whole, settle_whole};
use crate::search::told_files::{ToldFiles, ToldLocalFiles};
use crate::search::tree::{Content, TreeError};
use crate::search::trigram::{Knowledge, KnownSegment, Settled};
use crate::search::words::FileWords;
use crate::workspace_path::WorkspacePath;

/// Largest file that is indexed, in bytes; larger ones are always looked at.
const INDEXED_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Files taken in hand at once.
const CLAIM_FILES: usize = 16 * 1024;
/// Up to so many files make a segment that is held in memory alone.
const SMALL_FILES_MAX: usize = 64;
/// Most segments of that kind before they are made into one.
const SMALL_SEGMENTS_MAX: usize = 32;
/// Most bytes of segments in memory where there is no folder for them.
const MEMORY_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Most bytes of segments on disk for one root.
const DISK_BYTES_MAX: u64 = 4 * 1024 * 1024 * 1024;
/// How long nothing is done after a change, for more to come with it.
const QUIET: Duration = Duration::from_millis(300);
/// In how many steps that is waited for; a wake ends one.
const QUIET_STEPS: u32 = 6;
/// How often the tree is read anew after changes were lost, before the index is given up.
const RESTARTS_MAX: usize = 16;
/// A file that changed so shortly before it was read could change again without a new stamp, in nanoseconds.
const YOUNG_NS: i128 = 2_000_000_000;
/// Up to so much text, in bytes, the words of all of it are kept, else those of files that were asked for.
const WORDS_TEXT_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// How much lower than others the thread's priority is.
const NICENESS: i32 = 10;
/// Bytes read at once.
const BUFFER_BYTES: usize = 128 * 1024;

/// Works until it is cancelled.
pub(crate) fn run(shared: &Shared) {
    // Where the system refuses, the thread is merely less polite.
    let _refused = rustix::process::nice(NICENESS);
    let (stop, _guard) = Stop::new(shared.cancel.clone());
    for _ in 0..RESTARTS_MAX {
        let told = match read(shared, &stop) {
            Ok(told) => told,
            Err(error) => return go_without(shared, stop, &error),
        };
        let mut indexer = Indexer::new(shared, Arc::clone(&told), stop.clone());
        match indexer.work() {
            Ok(()) => return,
            Err(error) => begin_anew(shared, &error),
        }
    }
    shared.enter(Phase::Failed);
}

/// Does what there is to do now and returns: for whoever has no thread for it. Returns whether the index is in use.
pub(crate) fn step(shared: &Shared) -> bool {
    let (stop, _guard) = Stop::new(shared.cancel.clone());
    let known = shared.with_knowledge(|known| Ok(Arc::clone(known.told()))).ok();
    let told = match known.map_or_else(|| read(shared, &stop), Ok) {
        Ok(told) => told,
        Err(error) => {
            give_up(shared, &error);
            return false;
        }
    };
    let mut indexer = Indexer::new(shared, told, stop);
    match indexer.catch_up() {
        Ok(()) => true,
        Err(error) => {
            begin_anew(shared, &error);
            false
        }
    }
}

/// Reads the tree, so that it is in use.
fn read(shared: &Shared, stop: &Stop) -> Result<Arc<dyn ToldFiles>, TreeError> {
    let told = (shared.begin)()?;
    let known = Knowledge::read(Arc::clone(&told), &|| stop.is_given())?;
    shared.enter(Phase::Known(Box::new(known)));
    Ok(told)
}

/// What is done where no tree can be kept true: where nobody tells of changes, files are known by their stamps.
fn go_without(shared: &Shared, stop: Stop, error: &TreeError) {
    match (&shared.files, error) {
        (Some(files), TreeError::Watch(WatchError::Refused(_) | WatchError::NotLocal)) => {
            tracing::info!(%error, root = %shared.root.display(), "searches look at the stamps of all files");
            let untold = Arc::new(ToldLocalFiles::untold(Arc::clone(files)));
            Indexer::new(shared, untold, stop).work_by_stamps(files);
        }
        _ => give_up(shared, error),
    }
}

fn give_up(shared: &Shared, error: &TreeError) {
    tracing::info!(%error, root = %shared.root.display(), "searches go without an index");
    shared.enter(Phase::Failed);
}

fn begin_anew(shared: &Shared, error: &TreeError) {
    tracing::info!(%error, root = %shared.root.display(), "the search index begins anew");
    shared.enter(Phase::Reading);
}

/// The work after the tree was read.
struct Indexer<'a> {
    shared: &'a Shared,
    told: Arc<dyn ToldFiles>,
    stop: Stop,
    cache: Option<SegmentCache>,
    builder: SegmentBuilder,
    /// The files in `builder`, as they are settled when it is written.
    gathered: Vec<(WorkspacePath, bool)>,
    buffer: Vec<u8>,
    bytes_in_memory: u64,
    bytes_on_disk: u64,
}

/// What was read of a file.
struct Indexed {
    stamp: Option<Stamp>,
    binary_at_byte: Option<u64>,
    extent: Extent,
}

impl<'a> Indexer<'a> {
    fn new(shared: &'a Shared, told: Arc<dyn ToldFiles>, stop: Stop) -> Self {
        let open = |cache: &PathBuf| {
            SegmentCache::open(cache, &shared.root)
                .inspect_err(|error| tracing::info!(%error, "the search index is kept in memory"))
                .ok()
        };
        Self {
            shared,
            told,
            stop,
            cache: shared.cache.as_ref().and_then(open),
            builder: SegmentBuilder::default(),
            gathered: Vec::new(),
            buffer: vec![0; BUFFER_BYTES],
            bytes_in_memory: 0,
            bytes_on_disk: 0,
        }
    }

    /// Returns when it is cancelled.
    ///
    /// # Errors
    /// [`TreeError`]: everything must begin anew.
    fn work(&mut self) -> Result<(), TreeError> {
        let kept = self.cache.as_mut().map(SegmentCache::load).unwrap_or_default();
        for kept in kept {
            if self.stop.is_given() {
                return Ok(());
            }
            self.take_over(kept)?;
        }
        while !self.stop.is_given() {
            self.index_unknown()?;
            if self.make_room()? {
                continue;
            }
            self.keep_words()?;
            self.shared.rest(true);
            self.wait();
            self.shared.rest(false);
            self.shared.with_knowledge(|known| known.refresh().map(|_| ()))?;
        }
        Ok(())
    }

    /// Hears of what changed, reads what is not known and keeps the words that were asked for, once.
    fn catch_up(&mut self) -> Result<(), TreeError> {
        self.shared.with_knowledge(|known| known.refresh().map(|_| ()))?;
        self.index_unknown()?;
        if self.make_room()? {
            self.index_unknown()?;
        }
        self.keep_words()
    }

    /// Waits for a change, and then until it is quiet.
    fn wait(&self) {
        let wake = &self.shared.wake;
        if !self.shared.has_work() && !self.stop.is_given() {
            let told = self.told.told();
            let both = told.iter().map(|told| PollFd::new(told, PollFlags::IN));
            let mut both: Vec<PollFd<'_>> = both.chain([PollFd::new(wake, PollFlags::IN)]).collect();
            let _interrupted = rustix::event::poll(&mut both, None);
        }
        self.wait_until_quiet();
    }

    /// Waits for more to come, so that a file that changes all the time is read again at this pace, whoever wakes.
    fn wait_until_quiet(&self) {
        let wake = &self.shared.wake;
        let step = Timespec { tv_sec: 0, tv_nsec: (QUIET / QUIET_STEPS).subsec_nanos().into() };
        for _ in 0..QUIET_STEPS {
            if self.stop.is_given() {
                return;
            }
            let _empty = rustix::io::read(wake, &mut [0; 8]);
            let _interrupted = rustix::event::poll(&mut [PollFd::new(wake, PollFlags::IN)], Some(&step));
        }
    }

    /// Takes a kept segment, as far as its files are the same as then.
    fn take_over(&mut self, kept: Kept) -> Result<(), TreeError> {
        let paths: Vec<WorkspacePath> = kept
            .files
            .iter()
            .map(|file| WorkspacePath::from_relative(std::path::Path::new(as_name(&file.path))))
            .collect();
        let segment = KnownSegment { serial: 0, segment: Arc::new(kept.segment), path: kept.path };
        let bytes = segment.segment.bytes();
        let number = self.shared.with_knowledge(|known| {
            known.begin(&paths);
            Ok(known.add_segment(segment))
        })?;
        let mut settled = Vec::with_capacity(paths.len());
        let mut living = 0;
        for (at, (path, file)) in paths.into_iter().zip(&kept.files).enumerate() {
            if self.stop.is_given() {
                return Ok(());
            }
            let same = file.stamp.as_ref().is_some_and(|stamp| self.is_same(&path, stamp));
            living += usize::from(same);
            let content = match same {
                true => {
                    let binary = file.binary_at_byte.is_some();
                    Content::Indexed { segment: number, file: at as u16, binary }
                }
                false => Content::Unknown,
            };
            settled.push(Settled { path, content });
        }
        self.shared.with_knowledge(|known| known.settle(&settled))?;
        self.bytes_on_disk += bytes;
        if living * 2 < kept.files.len() {
            self.drop_segments(&BTreeSet::from([number]))?;
        }
        Ok(())
    }

    /// Reads every file that nothing is known of.
    fn index_unknown(&mut self) -> Result<(), TreeError> {
        loop {
            // Read before the files are: what is younger than this is too young.
            let now = self.cache.as_ref().and_then(|cache| cache.now_unix_ns().ok());
            let claimed = self.shared.with_knowledge(|known| Ok(known.claim(CLAIM_FILES)))?;
            // What changes while the rest is read waits for the next turn, else one busy file would never let it end.
            let is_last = claimed.len() < CLAIM_FILES;
            let mut settled = Vec::new();
            for path in claimed {
                if self.stop.is_given() {
                    return Ok(());
                }
                if !self.builder.has_room() {
                    self.flush()?;
                }
                match self.read(&path, now) {
                    None => settled.push(Settled { path, content: Content::Never }),
                    Some(indexed) => {
                        self.gathered.push((path.clone(), indexed.binary_at_byte.is_some()));
                        let file = SegmentFile {
                            path: path.as_bytes().to_vec(),
                            stamp: indexed.stamp,
                            binary_at_byte: indexed.binary_at_byte,
                            extent: indexed.extent,
                        };
                        self.builder.add(file);
                    }
                }
            }
            self.shared.with_knowledge(|known| known.settle(&settled))?;
            if is_last {
                let done = self.flush();
                // What it gathered in is given back until there is more to do.
                self.builder.release();
                return done;
            }
        }
    }

    /// Makes a segment of what was gathered.
    fn flush(&mut self) -> Result<(), TreeError> {
        if self.gathered.is_empty() {
            return Ok(());
        }
        let gathered = std::mem::take(&mut self.gathered);
        let segment = self.make_segment();
        self.shared.with_knowledge(|known| {
            let number = segment.map(|segment| known.add_segment(segment));
            let content = |at: usize, binary: bool| match number {
                Some(segment) => Content::Indexed { segment, file: at as u16, binary },
                None => Content::Never,
            };
            let settled: Vec<Settled> = gathered
                .into_iter()
                .enumerate()
                .map(|(at, (path, binary))| Settled { path, content: content(at, binary) })
                .collect();
            known.settle(&settled)
        })
    }

    /// A segment of what is in the builder, in memory or on disk; none when there is no room for it.
    fn make_segment(&mut self) -> Option<KnownSegment> {
        let files = self.builder.files().len();
        let bytes = self.builder.finish();
        let size = bytes.len() as u64;
        if files <= SMALL_FILES_MAX || self.cache.is_none() {
            self.bytes_in_memory += size;
            let fits = self.bytes_in_memory <= MEMORY_BYTES_MAX;
            let opened = if fits { Segment::in_memory(bytes).ok() } else { None };
            return opened.map(|segment| KnownSegment { serial: 0, segment: Arc::new(segment), path: None });
        }
        self.bytes_on_disk += size;
        let fits = self.bytes_on_disk <= DISK_BYTES_MAX;
        let put = self.cache.as_mut().filter(|_| fits).map(|cache| cache.put(&bytes));
        self.builder.reuse(bytes);
        match put {
            Some(Ok(kept)) => Some(KnownSegment { serial: 0, segment: Arc::new(kept.segment), path: kept.path }),
            Some(Err(error)) => {
                tracing::info!(%error, "a part of the search index could not be written");
                None
            }
            None => None,
        }
    }

    /// Reads a file's grams, so that it can be added to what is built; none when it is not to be indexed.
    fn read(&mut self, path: &WorkspacePath, now_unix_ns: Option<i128>) -> Option<Indexed> {
        let (mut file, changed_unix_ns) = self.told.open_with_change(path).ok()?;
        let stat = *file.stat();
        let stamp = Stamp::of(&stat, changed_unix_ns);
        // A file with another name can be changed through it, and nobody would tell.
        if stat.link_count > 1 || stat.size_bytes > INDEXED_BYTES_MAX {
            return None;
        }
        self.builder.begin();
        let mut facts = TextFacts::default();
        let filled = read_whole(file.as_mut(), &mut self.buffer).ok()?;
        let extent = match filled.and_then(|filled| settle_whole(&mut self.buffer[..filled], AtNul::End, &mut facts)) {
            Some(text) => {
                self.builder.read(&self.buffer[text.clone()]);
                Extent::of(stat.size_bytes, &self.buffer[text])
            }
            None => {
                file.rewind().ok()?;
                let (read, extent) = self.read_stream(file, stat.size_bytes)?;
                facts = read;
                extent
            }
        };
        let youngest = stamp.modified_unix_ns.max(stamp.changed_unix_ns);
        let old_enough = now_unix_ns.is_some_and(|now| youngest + YOUNG_NS < now);
        Some(Indexed { stamp: old_enough.then_some(stamp), binary_at_byte: facts.binary_at_byte, extent })
    }

    /// Reads the grams of a large file, or of one that must be decoded, piece by piece.
    fn read_stream(&mut self, file: Box<dyn OpenFile>, file_bytes: u64) -> Option<(TextFacts, Extent)> {
        let mut reader = TextReader::open(file, AtNul::End, self.stop.clone()).ok()?;
        self.buffer.resize(self.buffer.len().max(BUFFER_BYTES), 0);
        let mut left = 2 * INDEXED_BYTES_MAX;
        let (mut extent, mut before) = (Extent::of(file_bytes, b""), b'\n');
        loop {
            let count = reader.read(&mut self.buffer).ok()?;
            if count == 0 {
                return Some((reader.facts(), extent));
            }
            left = left.checked_sub(count as u64)?;
            let text = &self.buffer[..count];
            self.builder.read(text);
            extent.add(text, before);
            before = text.last().copied().unwrap_or(before);
        }
    }

    /// Whether a regular file is still the one that was read.
    fn is_same(&self, path: &WorkspacePath, stamp: &Stamp) -> bool {
        let now = self.told.look_at(path);
        now.is_some_and(|(stat, changed)| stat.kind == FileKind::File && Stamp::of(&stat, changed) == *stamp)
    }

    /// Takes files apart whose words were asked for, as far as there is room for them.
    fn keep_words(&mut self) -> Result<(), TreeError> {
        let Some(wanted) = self.shared.take_wanted() else { return Ok(()) };
        let files = self.shared.with_knowledge(|known| Ok(known.without_words(&wanted, WORDS_TEXT_BYTES_MAX)))?;
        let mut pruned = false;
        for (path, content) in files {
            if self.stop.is_given() {
                return Ok(());
            }
            let keep = || match self.read_words(&path) {
                Some(words) => self.shared.with_knowledge(|known| known.keep_words(&path, content, words)),
                None => Ok(true),
            };
            if keep()? {
                continue;
            }
            // Full: room is made once, of what is out of date.
            if std::mem::replace(&mut pruned, true) {
                return Ok(());
            }
            self.shared.with_knowledge(|known| {
                known.prune_words();
                Ok(())
            })?;
            if !keep()? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The words of a file; none when it is not to be ranked.
    fn read_words(&self, path: &WorkspacePath) -> Option<FileWords> {
        let mut buffer = Vec::new();
        let text = read_text(self.told.files(), path, &mut buffer, &self.stop).ok()??;
        Some(FileWords::of(&path.to_string(), text, Extent::of(text.len() as u64, text)))
    }

    /// Lets segments go that are small or mostly out of date; returns whether their files are to be read again.
    fn make_room(&mut self) -> Result<bool, TreeError> {
        let in_memory_only = self.cache.is_none();
        let numbers = self.shared.with_knowledge(|known| {
            let all = known.segments().iter().enumerate();
            let small: BTreeSet<u32> = all
                .filter(|(_, known)| {
                    known
                        .as_ref()
                        .is_some_and(|known| known.segment.is_in_memory() && known.segment.len() <= SMALL_FILES_MAX)
                })
                .map(|(number, _)| number as u32)
                .collect();
            if small.len() <= SMALL_SEGMENTS_MAX {
                return Ok(BTreeSet::new());
            }
            let living = known.living();
            let stale = known.segments().iter().enumerate().filter_map(|(number, known)| {
                let known = known.as_ref()?;
                (living[number] * 2 < known.segment.len()).then_some(number as u32)
            });
            Ok(small.iter().copied().chain(stale).collect())
        })?;
        if numbers.is_empty() {
            return Ok(false);
        }
        self.drop_segments(&numbers)?;
        if in_memory_only {
            let held =
                |known: &Knowledge| known.segments().iter().flatten().map(|known| known.segment.bytes()).sum::<u64>();
            self.bytes_in_memory = self.shared.with_knowledge(|known| Ok(held(known)))?;
        }
        Ok(true)
    }

    fn drop_segments(&mut self, numbers: &BTreeSet<u32>) -> Result<(), TreeError> {
        let dropped = self.shared.with_knowledge(|known| Ok(known.drop_segments(numbers)))?;
        self.forget_segments(dropped);
        Ok(())
    }

    /// Counts segments that are out of use, and removes their files.
    fn forget_segments(&mut self, dropped: Vec<KnownSegment>) {
        for known in dropped {
            let size = known.segment.bytes();
            if known.segment.is_in_memory() {
                self.bytes_in_memory = self.bytes_in_memory.saturating_sub(size);
            } else {
                self.bytes_on_disk = self.bytes_on_disk.saturating_sub(size);
            }
            if let (Some(path), Some(cache)) = (&known.path, &self.cache) {
                cache.remove(path);
            }
        }
    }
}

fn as_name(bytes: &[u8]) -> &std::ffi::OsStr {
    std::os::unix::ffi::OsStrExt::from_bytes(bytes)
}
