//! The words of one file as ranking counts them: for each term, in which passages it stands and how often.
//!
//! What is kept answers any query as reading the file would: the same terms by the same rule, counts as whole numbers.
//! It speaks of one version of one file; whoever keeps it must know that the file is still the same.

use std::collections::HashMap;

use crate::search::definition::{defined_name, is_prose};
use crate::search::packed::{Packed, write_number};
use crate::search::terms::{Form, split, split_run};
use crate::search::text::Extent;
use crate::text::lossy;

/// Lines of one passage.
pub const PASSAGE_LINES: usize = 80;
/// Most passages of one file; what lies behind them is not counted.
pub const PASSAGES_PER_FILE_MAX: usize = 128;

/// The words of a file.
#[derive(Debug, Clone)]
pub struct FileWords {
    /// Where the entry of each term begins, in the order of the terms.
    places: Box<[u32]>,
    /// Entries: the term with its length before it, then its occurrences.
    entries: Box<[u8]>,
    extent: Extent,
}

/// How often a term stands in a passage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Occurrence {
    /// Which passage of the file, from 0.
    pub passage: usize,
    /// How often.
    pub count: u32,
    /// How often in the name of a definition, on top of that.
    pub defining: u32,
}

impl FileWords {
    /// Takes a file apart.
    pub fn of(path: &str, text: &[u8], extent: Extent) -> Self {
        let mut counted = Counted::default();
        let prose = is_prose(path);
        let last = PASSAGE_LINES * PASSAGES_PER_FILE_MAX;
        for (number, line) in text.split(|byte| *byte == b'\n').take(last).enumerate() {
            let line = lossy(line);
            let passage = number / PASSAGE_LINES;
            each_term(&line, &mut |term| counted.add(term, passage, 1, 0));
            if let Some(name) = defined_name(&line, prose) {
                each_term(name, &mut |term| counted.add(term, passage, 0, 1));
            }
        }
        counted.pack(extent)
    }

    /// How much text it is.
    pub fn extent(&self) -> Extent {
        self.extent
    }

    /// Memory that it takes, in bytes.
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.entries.len() + self.places.len() * size_of::<u32>()
    }

    /// Where a term stands, by passage.
    pub fn occurrences(&self, term: &str) -> impl Iterator<Item = Occurrence> {
        let found = self.places.binary_search_by(|place| self.entry(*place).0.cmp(term.as_bytes()));
        let mut rest = Packed(found.map_or(&[], |at| self.entry(self.places[at]).1));
        let mut left = rest.number().unwrap_or(0);
        let mut passage = 0;
        std::iter::from_fn(move || {
            left = left.checked_sub(1)?;
            passage += usize::try_from(rest.number()?).ok()?;
            let packed = rest.number()?;
            let defining = if packed & 1 == 1 { rest.number()? } else { 0 };
            let number = |count: u64| u32::try_from(count).ok();
            Some(Occurrence { passage, count: number(packed >> 1)?, defining: number(defining)? })
        })
    }

    /// A term, and what follows it.
    fn entry(&self, place: u32) -> (&[u8], &[u8]) {
        let entry = self.entries.get(place as usize..).unwrap_or_default();
        entry.split_first().and_then(|(length, rest)| rest.split_at_checked((*length).into())).unwrap_or_default()
    }
}

/// Calls `take` with every term of a line, as [`split`] does, but quicker where it is plain.
fn each_term(line: &str, take: &mut dyn FnMut(&str)) {
    if !line.is_ascii() {
        split(line, Form::Text, take);
        return;
    }
    let runs = line.as_bytes().split(|byte| !byte.is_ascii_alphanumeric());
    runs.filter(|run| !run.is_empty()).for_each(|run| split_run(run, take));
}

/// Words on their way: sorted before they are packed, so the order of this map reaches nothing.
#[derive(Default)]
struct Counted(HashMap<Box<str>, Vec<Occurrence>>);

impl Counted {
    fn add(&mut self, term: &str, passage: usize, count: u32, defining: u32) {
        if !self.0.contains_key(term) {
            self.0.insert(term.into(), Vec::new());
        }
        let Some(list) = self.0.get_mut(term) else { return };
        match list.last_mut() {
            Some(last) if last.passage == passage => {
                last.count += count;
                last.defining += defining;
            }
            _ => list.push(Occurrence { passage, count, defining }),
        }
    }

    fn pack(self, extent: Extent) -> FileWords {
        let mut all: Vec<(Box<str>, Vec<Occurrence>)> = self.0.into_iter().collect();
        all.sort_unstable_by(|one, two| one.0.cmp(&two.0));
        let mut places = Vec::with_capacity(all.len());
        let mut entries = Vec::new();
        for (term, list) in &all {
            places.push(entries.len() as u32);
            // No term is longer than 64 bytes, nor is there more text than 32 bits count.
            entries.push(term.len() as u8);
            entries.extend_from_slice(term.as_bytes());
            write_number(list.len() as u64, &mut entries);
            let mut before = 0;
            for occurrence in list {
                write_number((occurrence.passage - before) as u64, &mut entries);
                before = occurrence.passage;
                let defines = u64::from(occurrence.defining > 0);
                write_number(u64::from(occurrence.count) << 1 | defines, &mut entries);
                if occurrence.defining > 0 {
                    write_number(occurrence.defining.into(), &mut entries);
                }
            }
        }
        FileWords { places: places.into(), entries: entries.into(), extent }
    }
}

#[cfg(test)]
mod tests {
    use super::{FileWords, Occurrence, PASSAGE_LINES, PASSAGES_PER_FILE_MAX};
    use crate::search::text::Extent;

    #[test]
    fn terms_are_found_by_passage_and_definitions_are_told() {
        let text = "fn open_file() {\n    open(file)\n}\n".to_owned() + &"\n".repeat(PASSAGE_LINES) + "open 缓存\n";
        let words = FileWords::of("a.rs", text.as_bytes(), Extent::default());
        let of = |term: &str| words.occurrences(term).map(|o| (o.passage, o.count, o.defining)).collect::<Vec<_>>();
        assert_eq!(of("open"), [(0, 2, 1), (1, 1, 0)]);
        assert_eq!(of("fil"), [(0, 2, 1)]);
        assert_eq!(of("缓存"), [(1, 1, 0)]);
        assert_eq!(of("ope"), []);
        assert!(words.bytes() > 0 && FileWords::of("a", b"", Extent::default()).occurrences("a").next().is_none());
    }

    #[test]
    fn what_lies_behind_the_last_passage_is_not_counted() {
        let text = "\n".repeat(PASSAGE_LINES * PASSAGES_PER_FILE_MAX - 1) + "last\nbehind\n";
        let words = FileWords::of("a", text.as_bytes(), Extent::default());
        let last = Occurrence { passage: PASSAGES_PER_FILE_MAX - 1, count: 1, defining: 0 };
        assert_eq!(words.occurrences("last").collect::<Vec<_>>(), [last]);
        assert_eq!(words.occurrences("behind").count(), 0);
    }
}
