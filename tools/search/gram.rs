//! What of a text an index remembers: the set of its grams, three neighbouring characters each.
//!
//! Bytes fall into 64 classes first: letters without their case, rare marks together, what is not ASCII by a few of
//! its bits. So a gram is a number of 18 bits, one table serves searches with and without case, and the set of a text
//! is a bitmap that fits the nearest cache. Classes only ever merge: two texts that are equal have equal grams, so a
//! text without a gram of what is wanted does not hold it. The other way round nothing follows, which is why whoever
//! asks must look at the file.

use std::sync::LazyLock;

/// How many different grams there are.
pub const GRAMS: usize = 1 << (3 * CLASS_BITS);
/// Bits of a class.
pub const CLASS_BITS: usize = 6;
/// The class of what no match crosses: line ends and NULs. No gram holds it.
pub const BREAK: u8 = 0;
/// Characters of a gram.
pub const GRAM_CLASSES: usize = 3;
/// How many different pairs of bytes there are.
const PAIRS: usize = 1 << 16;
/// Words of the bitmap of all grams.
const WORDS: usize = GRAMS / 64;
/// Bytes taken at once.
const BLOCK_BYTES: usize = 256;
/// Mask of a gram.
const MASK: u32 = (GRAMS as u32) - 1;
/// Mask of the classes that the next gram begins with.
const LAST_MASK: u64 = (1 << ((GRAM_CLASSES - 1) * CLASS_BITS)) - 1;

/// The class of every byte.
pub const CLASSES: [u8; 256] = classes();

const fn classes() -> [u8; 256] {
    // Blanks and what else is not printed.
    let mut table = [1_u8; 256];
    table[b'\n' as usize] = BREAK;
    table[0] = BREAK;
    let mut letter = 0;
    while letter < 26 {
        table[b'a' as usize + letter] = 2 + letter as u8;
        table[b'A' as usize + letter] = 2 + letter as u8;
        letter += 1;
    }
    let mut digit = 0;
    while digit < 10 {
        table[b'0' as usize + digit] = 28 + digit as u8;
        digit += 1;
    }
    let marks: [&[u8]; 20] = [
        b"_", b"\"'`", b"(", b")", b"*", b",", b"-", b".", b"/", b":", b";", b"=", b"<", b">", b"&|^~", b"#@$", b"[]",
        b"{}", b"+%!?", b"\\",
    ];
    let mut group = 0;
    while group < marks.len() {
        let mut at = 0;
        while at < marks[group].len() {
            table[marks[group][at] as usize] = 38 + group as u8;
            at += 1;
        }
        group += 1;
    }
    let mut high = 128;
    while high < 256 {
        table[high] = 58 + (high % 6) as u8;
        high += 1;
    }
    table
}

/// The gram of three classes; none when a match cannot cross it.
pub fn gram_of(classes: [u8; GRAM_CLASSES]) -> Option<u32> {
    let [one, two, three] = classes;
    if one == BREAK || two == BREAK || three == BREAK {
        return None;
    }
    Some(u32::from(one) << (2 * CLASS_BITS) | u32::from(two) << CLASS_BITS | u32::from(three))
}

/// Gathers the grams of one text after the other; keeps its bitmap between them.
pub struct GramSet {
    /// Grams that were met, and those that hold a break.
    met: Box<[u64]>,
    grams: Vec<u32>,
    /// The classes of the last two bytes.
    last: u64,
}

/// Grams that hold a break: what `met` begins with.
static BREAKS: LazyLock<Box<[u64]>> = LazyLock::new(|| {
    let mut breaks = vec![0_u64; WORDS].into_boxed_slice();
    for gram in 0..GRAMS {
        let class = |at: usize| (gram >> (at * CLASS_BITS)) & 63;
        if (0..GRAM_CLASSES).any(|at| class(at) == usize::from(BREAK)) {
            breaks[gram / 64] |= 1 << (gram % 64);
        }
    }
    breaks
});

/// The classes of two bytes, the first of which is the lower half of the index.
static CLASS_PAIRS: LazyLock<Box<[u16; PAIRS]>> = LazyLock::new(|| {
    let mut pairs = Box::new([0; PAIRS]);
    for (number, pair) in pairs.iter_mut().enumerate() {
        let class = |byte: usize| u16::from(CLASSES[byte & 0xff]);
        *pair = class(number) << CLASS_BITS | class(number >> 8);
    }
    pairs
});

impl Default for GramSet {
    fn default() -> Self {
        Self { met: BREAKS.clone(), grams: Vec::new(), last: 0 }
    }
}

impl GramSet {
    /// Forgets the text before.
    pub fn clear(&mut self) {
        self.met.copy_from_slice(&BREAKS);
        self.grams.clear();
        self.last = 0;
    }

    /// Adds the next part of the text.
    pub fn add(&mut self, text: &[u8]) {
        let Some(met) = self.met.first_chunk_mut::<WORDS>() else { return };
        let pairs: &[u16; PAIRS] = &CLASS_PAIRS;
        let mut last = self.last;
        let mut fresh = [0_u32; BLOCK_BYTES];
        for block in text.chunks(BLOCK_BYTES) {
            let mut count = 0;
            // Without branches, for whether a gram is new cannot be guessed, and without marking any, which the next ones
            // would wait for: one that is new to the whole block may be listed twice.
            let mut look = |classes: u64| {
                let gram = classes as u32 & MASK;
                let word = met[(gram >> 6) as usize];
                fresh[count & (BLOCK_BYTES - 1)] = gram;
                count += usize::from(word >> (gram & 63) & 1 == 0);
            };
            let (quads, rest) = block.as_chunks::<4>();
            for quad in quads {
                let both = u32::from_le_bytes(*quad);
                let (one, two) = (pairs[usize::from(both as u16)], pairs[usize::from((both >> 16) as u16)]);
                let classes = last << (4 * CLASS_BITS) | u64::from(one) << (2 * CLASS_BITS) | u64::from(two);
                look(classes >> (3 * CLASS_BITS));
                look(classes >> (2 * CLASS_BITS));
                look(classes >> CLASS_BITS);
                look(classes);
                last = u64::from(two);
            }
            for byte in rest {
                let classes = last << CLASS_BITS | u64::from(CLASSES[usize::from(*byte)]);
                look(classes);
                last = classes & LAST_MASK;
            }
            let mut new = 0;
            for at in 0..count.min(BLOCK_BYTES) {
                let gram = fresh[at];
                let word = &mut met[(gram >> 6) as usize];
                let bit = 1_u64 << (gram & 63);
                fresh[new & (BLOCK_BYTES - 1)] = gram;
                new += usize::from(*word & bit == 0);
                *word |= bit;
            }
            self.grams.extend_from_slice(&fresh[..new]);
        }
        self.last = last;
    }

    /// The grams of the text, in no order, each once.
    pub fn grams(&self) -> &[u32] {
        &self.grams
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::{CLASSES, GramSet, gram_of};

    fn by_definition(text: &[u8]) -> BTreeSet<u32> {
        let class = |byte: u8| CLASSES[usize::from(byte)];
        text.windows(3).filter_map(|three| gram_of([class(three[0]), class(three[1]), class(three[2])])).collect()
    }

    #[test]
    fn case_is_folded_and_every_class_fits() {
        assert_eq!(by_definition(b"FooBar"), by_definition(b"foobar"));
        assert_ne!(by_definition(b"foo"), by_definition(b"fop"));
        assert!(CLASSES.iter().all(|class| *class < 64));
        assert!(by_definition(b"a\nb\nc\0d").is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn pieces_give_the_grams_of_the_whole(text in prop::collection::vec(any::<u8>(), 0..4000), cut in 0_usize..4000) {
            let mut set = GramSet::default();
            set.add(b"something before");
            set.clear();
            let (one, two) = text.split_at(cut.min(text.len()));
            set.add(one);
            set.add(two);
            let found: BTreeSet<u32> = set.grams().iter().copied().collect();
            prop_assert_eq!(found.len(), set.grams().len());
            prop_assert_eq!(found, by_definition(&text));
        }
    }
}
