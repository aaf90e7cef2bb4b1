//! The work where no watch is to be had: the limit of watches is reached, or there are none.
//!
//! All files are looked through in passes, one after each search that met a file it did not know; what a pass learns is
//! handed over as a whole. Files on other than local file systems are left out: others could change them without a new
//! stamp being seen here in time.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd as _;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags};

use super::{Indexer, SMALL_FILES_MAX, SMALL_SEGMENTS_MAX};
use crate::effects::files::FileKind;
use crate::effects::folder_watch::is_local;
use crate::search::index_state::Phase;
use crate::search::segment::SegmentFile;
use crate::search::stamp_index::StampIndex;
use crate::search::trigram::KnownSegment;
use crate::search::walk::{Walk, WalkOptions};
use crate::workspace::local::LocalFiles;
use crate::workspace_path::WorkspacePath;

/// Most devices that are told apart; files of further ones are left out.
const DEVICES_MAX: usize = 64;

/// Devices, and whether what changes on them passes this kernel.
#[derive(Default)]
struct Devices(BTreeMap<u64, bool>);

impl Indexer<'_> {
    /// Works until it is cancelled.
    pub(super) fn work_by_stamps(&mut self, files: &LocalFiles) {
        let mut index = Arc::new(StampIndex::default());
        let mut devices = Devices::default();
        // What was kept is as true as what is read now: each file is known by its stamp alone.
        for kept in self.cache.as_mut().map(super::SegmentCache::load).unwrap_or_default() {
            self.bytes_on_disk += kept.segment.bytes();
            let segment = KnownSegment { serial: 0, segment: Arc::new(kept.segment), path: kept.path };
            Arc::make_mut(&mut index).add(segment, &kept.files, 0);
        }
        let mut pass = 0;
        while !self.stop.is_given() {
            pass += 1;
            self.look_through(files, Arc::make_mut(&mut index), &mut devices, pass);
            self.drop_stale(Arc::make_mut(&mut index));
            if index.len() == 0 && pass == 1 && !is_on_local_system(files, &WorkspacePath::root()) {
                // Nothing will ever be known here.
                self.shared.enter(Phase::Failed);
                return;
            }
            self.shared.enter(Phase::Stamped(Arc::clone(&index)));
            self.shared.rest(true);
            if !self.shared.has_work() && !self.stop.is_given() {
                let _interrupted = rustix::event::poll(&mut [PollFd::new(&self.shared.wake, PollFlags::IN)], None);
            }
            self.wait_until_quiet();
            self.shared.rest(false);
            self.shared.lock().pass_wanted = false;
        }
    }

    /// Looks at every file, and into those whose stamp is not the one that is known.
    fn look_through(&mut self, files: &LocalFiles, index: &mut StampIndex, devices: &mut Devices, pass: u64) {
        let now = self.cache.as_ref().and_then(|cache| cache.now_unix_ns().ok());
        let mut left_out = 0;
        let walk = Walk::start(files, &WorkspacePath::root(), WalkOptions::default());
        for entry in walk.into_iter().flatten() {
            if self.stop.is_given() {
                return;
            }
            if entry.kind != FileKind::File {
                continue;
            }
            let path = &entry.path;
            if index.stamp_of(path.as_bytes()).is_some_and(|stamp| self.is_same(path, &stamp)) {
                index.meet(path.as_bytes(), pass);
                continue;
            }
            index.forget(path.as_bytes());
            if !self.builder.has_room() {
                self.add_segment(index, pass);
            }
            let Some(indexed) = self.read(path, now) else {
                left_out += 1;
                continue;
            };
            // A file that is too young for a stamp is read again in a later pass.
            let Some(stamp) = indexed.stamp else { continue };
            if !devices
                .are_local(stamp.identity.0, || path.parent().is_some_and(|folder| is_on_local_system(files, &folder)))
            {
                left_out += 1;
                continue;
            }
            let (stamp, binary_at_byte, extent) = (Some(stamp), indexed.binary_at_byte, indexed.extent);
            let file = SegmentFile { path: path.as_bytes().to_vec(), stamp, binary_at_byte, extent };
            self.builder.add(file);
        }
        self.add_segment(index, pass);
        self.builder.release();
        index.forget_unmet(pass);
        // Without a clock of the disk no stamp is ever old enough.
        index.left_out = if now.is_some() { left_out } else { usize::MAX };
    }

    fn add_segment(&mut self, index: &mut StampIndex, pass: u64) {
        if self.builder.files().is_empty() {
            return;
        }
        let files = self.builder.files().to_vec();
        if let Some(segment) = self.make_segment() {
            index.add(segment, &files, pass);
        }
    }

    /// Lets segments go that are mostly out of date, and small ones when there are many; their files are read again.
    fn drop_stale(&mut self, index: &mut StampIndex) {
        let living = index.living();
        let numbered =
            || index.segments().iter().enumerate().filter_map(|(number, known)| Some((number, known.as_ref()?)));
        let stale = numbered().filter(|(number, known)| living[*number] * 2 < known.segment.len());
        let mut numbers: BTreeSet<usize> = stale.map(|(number, _)| number).collect();
        let small: Vec<usize> = numbered()
            .filter(|(_, known)| known.segment.is_in_memory() && known.segment.len() <= SMALL_FILES_MAX)
            .map(|(number, _)| number)
            .collect();
        if small.len() > SMALL_SEGMENTS_MAX {
            numbers.extend(small);
        }
        let dropped = numbers.into_iter().filter_map(|number| index.drop_segment(number as u32)).collect();
        self.forget_segments(dropped);
    }
}

fn is_on_local_system(files: &LocalFiles, folder: &WorkspacePath) -> bool {
    files.open_folder(folder).is_ok_and(|folder| is_local(folder.as_fd()))
}

impl Devices {
    fn are_local(&mut self, device: u64, look: impl FnOnce() -> bool) -> bool {
        if let Some(local) = self.0.get(&device) {
            return *local;
        }
        if self.0.len() >= DEVICES_MAX {
            return false;
        }
        *self.0.entry(device).or_insert_with(look)
    }
}
