//! What of a text an index remembers: the set of its grams, three neighbouring characters each.
//!
//! Bytes fall into 54 classes first: letters without their case, rare marks together, what is not ASCII by its lowest
//! bit. So a gram is a number of 18 bits, and one table serves searches with and without case.
//! Classes only ever merge: two texts that are equal have equal grams, so a text without a gram of what is wanted does
//! not hold it. The other way round nothing follows, which is why whoever asks must look at the file.
//!
//! Texts are taken eight at a time, each with its own bit in one table. To mark a gram is one instruction then, whether
//! it is new or not, and what neighbours have in common is gathered once.

/// How many different grams there are.
pub const GRAMS: usize = 1 << (3 * CLASS_BITS);
/// Bits of a class.
pub const CLASS_BITS: usize = 6;
/// The class of what no match crosses: line ends and NULs. No gram holds it.
pub const BREAK: u8 = 0;
/// The class of blanks and of what else is not printed. No gram holds it in its middle: such grams are many, and say
/// little that the words at their sides do not say.
const BLANK: u8 = 1;
/// Characters of a gram.
pub const GRAM_CLASSES: usize = 3;
/// Texts that are taken side by side.
pub const TEXTS: usize = 8;
/// Grams whose marks are handed over at once.
pub const SPAN_GRAMS: usize = SPAN_ROWS * ROW_GRAMS;
/// How many different pairs of bytes there are.
const PAIRS: usize = 1 << 16;
/// Grams that differ in their last class only, whose marks fill a line of the processor's cache.
const ROW_GRAMS: usize = 1 << CLASS_BITS;
/// Rows of a span.
const SPAN_ROWS: usize = 16;
/// Marks that are handed over in one step.
const STEP: usize = 4;
/// Mask of a gram.
const MASK: u64 = (GRAMS as u64) - 1;
/// Mask of the classes that the next gram begins with.
const LAST_MASK: u64 = (1 << ((GRAM_CLASSES - 1) * CLASS_BITS)) - 1;
/// The classes there are, but for the break: a bit each.
const USED: u64 = ((1 << CLASS_COUNT) - 1) & !(1 << BREAK);

/// How many classes there are.
const CLASS_COUNT: usize = HIGH + 2;
/// The first class of a letter.
const LETTER: usize = 2;
/// The first class of what [`TOGETHER`] lists.
const LISTED: usize = LETTER + 26;
/// The first class of what is not ASCII.
const HIGH: usize = LISTED + TOGETHER.len();
/// Digits, and marks that share a class.
const TOGETHER: [&[u8]; 24] = [
    b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"8", b"9", b"_", b"\"'`", b"(", b")", b"*/\\", b",", b"-+%!?",
    b".", b":", b";", b"=", b"<>", b"&|^~#@$", b"[]{}",
];

/// The class of every byte.
pub const CLASSES: [u8; 256] = classes();

const fn classes() -> [u8; 256] {
    let mut table = [BLANK; 256];
    table[b'\n' as usize] = BREAK;
    table[0] = BREAK;
    let mut letter = 0;
    while letter < 26 {
        table[b'a' as usize + letter] = (LETTER + letter) as u8;
        table[b'A' as usize + letter] = (LETTER + letter) as u8;
        letter += 1;
    }
    let mut group = 0;
    while group < TOGETHER.len() {
        let mut at = 0;
        while at < TOGETHER[group].len() {
            table[TOGETHER[group][at] as usize] = (LISTED + group) as u8;
            at += 1;
        }
        group += 1;
    }
    let mut high = 128;
    while high < 256 {
        table[high] = (HIGH + high % 2) as u8;
        high += 1;
    }
    table
}

/// The classes of two bytes, the first of which is the lower half of the index.
static CLASS_PAIRS: [u16; PAIRS] = class_pairs();

const fn class_pairs() -> [u16; PAIRS] {
    let mut pairs = [0; PAIRS];
    let mut number = 0;
    while number < PAIRS {
        pairs[number] = (CLASSES[number & 0xff] as u16) << CLASS_BITS | CLASSES[number >> 8] as u16;
        number += 1;
    }
    pairs
}

/// The gram of three classes; none when a match cannot cross it, or when it is not remembered.
pub fn gram_of(classes: [u8; GRAM_CLASSES]) -> Option<u32> {
    let [one, two, three] = classes;
    if one == BREAK || two == BREAK || three == BREAK || two == BLANK {
        return None;
    }
    Some(u32::from(one) << (2 * CLASS_BITS) | u32::from(two) << CLASS_BITS | u32::from(three))
}

/// Which grams each of some texts has; taken over and over.
pub struct GramTable {
    /// For each gram, a bit for each text that has it; what stands at those that are none means nothing.
    marks: Box<[u8]>,
    /// The bit of the text that is being read.
    bit: u8,
    /// The classes of its last two bytes.
    last: u64,
}

/// A gram of a span, which texts have it, and a number for whoever keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Mark(u32);

/// Bits of a mark's number.
pub const MARK_NUMBER_BITS: u32 = 10;

impl Mark {
    /// Of no text yet. `gram` is how far it is from the first one of its span.
    fn of(gram: u32, number: u32) -> Self {
        Self(gram << (u8::BITS + MARK_NUMBER_BITS) | (number & ((1 << MARK_NUMBER_BITS) - 1)) << u8::BITS)
    }

    /// Of the gram that is so much further, and of these texts.
    fn further(self, grams: u32, texts: u8) -> Self {
        Self(self.0 + (grams << (u8::BITS + MARK_NUMBER_BITS) | u32::from(texts)))
    }

    /// How far the gram is from the first one of its span.
    pub fn gram(self) -> usize {
        (self.0 >> (u8::BITS + MARK_NUMBER_BITS)) as usize % SPAN_GRAMS
    }

    /// Its number.
    pub fn number(self) -> u32 {
        self.0 >> u8::BITS & ((1 << MARK_NUMBER_BITS) - 1)
    }

    /// A bit for each text that has the gram.
    pub fn texts(self) -> u8 {
        self.0 as u8
    }
}

impl Default for GramTable {
    fn default() -> Self {
        Self { marks: vec![0; GRAMS].into(), bit: 1, last: 0 }
    }
}

impl GramTable {
    /// Begins with a text, under one of [`TEXTS`] numbers, which no text had since the marks were taken.
    pub fn begin(&mut self, number: usize) {
        self.bit = 1 << (number % TEXTS);
        self.last = 0;
    }

    /// Adds the next part of the text.
    pub fn add(&mut self, text: &[u8]) {
        let Some(marks) = self.marks.first_chunk_mut::<GRAMS>() else { return };
        let (bit, mut last) = (self.bit, self.last);
        let (quads, rest) = text.as_chunks::<4>();
        for quad in quads {
            let both = u32::from_le_bytes(*quad);
            let (one, two) = (CLASS_PAIRS[usize::from(both as u16)], CLASS_PAIRS[usize::from((both >> 16) as u16)]);
            let classes = last << (4 * CLASS_BITS) | u64::from(one) << (2 * CLASS_BITS) | u64::from(two);
            for behind in [3, 2, 1, 0] {
                marks[(classes >> (behind * CLASS_BITS) & MASK) as usize] |= bit;
            }
            last = u64::from(two);
        }
        for byte in rest {
            let classes = last << CLASS_BITS | u64::from(CLASSES[usize::from(*byte)]);
            marks[(classes & MASK) as usize] |= bit;
            last = classes & LAST_MASK;
        }
        self.last = last;
    }

    /// Takes back what was added of the text.
    pub fn forget(&mut self) {
        self.marks.iter_mut().for_each(|mark| *mark &= !self.bit);
    }

    /// Hands over all marks with this number, span by span and in the order of grams, and begins anew.
    pub fn take(&mut self, number: u32, mut take: impl FnMut(usize, &[Mark])) {
        let mut fresh = [Mark::default(); SPAN_GRAMS + STEP];
        let spans = self.marks.as_chunks_mut::<ROW_GRAMS>().0.chunks_mut(SPAN_ROWS);
        for (at, span) in spans.enumerate() {
            let mut count = 0;
            for (row, marks) in span.iter_mut().enumerate() {
                let [one, two] = [(at * SPAN_ROWS + row) >> CLASS_BITS, (at * SPAN_ROWS + row) % ROW_GRAMS];
                if USED >> one & (USED & !(1 << BLANK)) >> two & 1 == 1 {
                    let first = Mark::of((row * ROW_GRAMS) as u32, number);
                    count = take_row(first, marks, &mut fresh, count);
                }
            }
            if count > 0 {
                take(at, &fresh[..count.min(SPAN_GRAMS)]);
            }
        }
    }
}

/// Appends the marks of a row, whose first gram is given, to the first `count`, and clears it; returns how many there
/// are then.
fn take_row(first: Mark, row: &mut [u8; ROW_GRAMS], fresh: &mut [Mark; SPAN_GRAMS + STEP], count: usize) -> usize {
    // What is behind the last class stays empty.
    let words = &row.as_chunks::<8>().0[..CLASS_COUNT.div_ceil(8)];
    if words.iter().fold(0, |any, word| any | u64::from_le_bytes(*word)) == 0 {
        return count;
    }
    let marked = words.iter().enumerate().fold(0, |all, (at, word)| all | marked_of(*word) << (8 * at));
    let mut left = marked & USED;
    let new = left.count_ones() as usize;
    let mut at = count;
    while left != 0 {
        // Some at once, and the last of them in vain: how many there are cannot be guessed.
        for mark in &mut fresh[at % SPAN_GRAMS..][..STEP] {
            let column = left.trailing_zeros() as usize % ROW_GRAMS;
            *mark = first.further(column as u32, row[column]);
            left &= left.wrapping_sub(1);
        }
        at += STEP;
    }
    *row = [0; ROW_GRAMS];
    count + new
}

/// A bit for each of eight bytes that is not zero.
fn marked_of(bytes: [u8; 8]) -> u64 {
    const LOW: u64 = u64::from_le_bytes([0x7f; 8]);
    let word = u64::from_le_bytes(bytes);
    let set = (((word & LOW) + LOW) | word) & !LOW;
    // Gathers the highest bits of all bytes in the highest byte.
    (set >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56
}

/// The grams of a text by their definition, in order.
#[cfg(test)]
pub(crate) fn grams_of(text: &[u8]) -> Vec<u32> {
    let class = |byte: u8| CLASSES[usize::from(byte)];
    let grams = text.windows(3).filter_map(|three| gram_of([class(three[0]), class(three[1]), class(three[2])]));
    grams.collect::<std::collections::BTreeSet<u32>>().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{CLASS_COUNT, CLASSES, GramTable, ROW_GRAMS, SPAN_GRAMS, TEXTS, grams_of};

    #[test]
    fn case_is_folded_and_every_class_fits() {
        assert_eq!(grams_of(b"FooBar"), grams_of(b"foobar"));
        assert_ne!(grams_of(b"foo"), grams_of(b"fop"));
        assert!(CLASSES.iter().all(|class| usize::from(*class) < CLASS_COUNT));
        const { assert!(CLASS_COUNT < ROW_GRAMS) };
        assert!(grams_of(b"a\nb\nc\0d e").is_empty());
        assert_eq!(grams_of(b"a bc").len(), 1);
    }

    fn take(table: &mut GramTable) -> Vec<Vec<u32>> {
        let mut found = vec![Vec::new(); TEXTS];
        table.take(77, |span, marks| {
            for mark in marks {
                assert_eq!(mark.number(), 77);
                assert!(mark.texts() != 0);
                for (number, grams) in found.iter_mut().enumerate() {
                    if mark.texts() >> number & 1 == 1 {
                        grams.push((span * SPAN_GRAMS + mark.gram()) as u32);
                    }
                }
            }
        });
        found
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn each_text_has_the_grams_of_its_pieces(
            texts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..4000), 1..=TEXTS),
            cut in 0_usize..4000,
            forgotten in 0..TEXTS,
        ) {
            let mut table = GramTable::default();
            for _ in 0..2 {
                for (number, text) in texts.iter().enumerate() {
                    table.begin(number);
                    let (one, two) = text.split_at(cut.min(text.len()));
                    table.add(one);
                    table.add(two);
                    if number == forgotten {
                        table.forget();
                    }
                }
                // In order, each once.
                let expected = |number: usize| texts.get(number).filter(|_| number != forgotten);
                for (number, found) in take(&mut table).into_iter().enumerate() {
                    prop_assert_eq!(found, expected(number).map(|text| grams_of(text)).unwrap_or_default());
                }
            }
        }
    }

    // As many as there can be, so that no span is cut.
    #[test]
    fn all_grams_at_once_are_handed_over() {
        let mut table = GramTable::default();
        let of_class = |class: usize| (0..=255).find(|byte| usize::from(CLASSES[usize::from(*byte)]) == class);
        let bytes: Vec<u8> = (1..CLASS_COUNT).filter_map(of_class).collect();
        let mut text = Vec::new();
        for one in &bytes {
            for two in &bytes {
                bytes.iter().for_each(|three| text.extend([b'\n', *one, *two, *three]));
            }
        }
        table.begin(7);
        table.add(&text);
        let found = take(&mut table);
        assert_eq!(found[7].len(), (CLASS_COUNT - 1).pow(2) * (CLASS_COUNT - 2));
        assert!(found[..7].iter().all(Vec::is_empty));
    }
}
