//! A seed, and the choices of a run: every decision of a simulated run is a number that is taken here.
//!
//! The list of numbers taken *is* the replay: the same list gives the same run, whatever seed it came from, and a
//! list that was cut or changed still gives a run, because a number too large is taken modulo its bound and a number
//! that is not there is 0. So 0 must always mean the plainest thing: the oldest message, no fault, a body that
//! returns. How often the unusual happens is decided only when numbers are drawn, never when they are replayed.

/// Most numbers of one run; the ones after that are 0 and are not kept.
pub const CHOICES_MAX: usize = 1 << 20;

/// Room that is made at once for numbers that are drawn.
const ROOM: usize = 1024;

/// A small seeded generator (splitmix64): the same seed gives the same numbers everywhere.
#[derive(Debug, Clone)]
pub struct Generator(u64);

impl Generator {
    /// From a seed; any seed will do.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`; 0 when the bound is 0.
    pub fn below(&mut self, bound: u32) -> u32 {
        let high = self.draw() >> 32;
        u32::try_from((high * u64::from(bound)) >> 32).unwrap_or(0)
    }
}

/// Where a run takes its numbers.
#[derive(Debug, Clone)]
pub struct Choices {
    source: Source,
    taken: Vec<u32>,
    bounds: Option<Vec<u32>>,
}

#[derive(Debug, Clone)]
enum Source {
    Drawn { generator: Generator, mood: Mood },
    Listed { list: Vec<u32>, next: usize },
}

/// How wild a seed is: seeds differ in it, so that some runs are nearly plain and some are full of faults.
#[derive(Debug, Clone, Copy)]
struct Mood {
    /// One choice in so many is a rare one; never when 0.
    rare_one_in: u32,
    /// In so many of a hundred choices the plainest is taken.
    plain_percent: u32,
}

/// What [`Choices::usual_or_rare`] chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pick {
    /// One of the usual.
    Usual(usize),
    /// One of the rare.
    Rare(u32),
}

impl Choices {
    /// Drawn from a seed.
    pub fn from_seed(seed: u64) -> Self {
        let mut generator = Generator::new(seed);
        let mood = Mood {
            rare_one_in: [0, 20, 50, 150][generator.below(4) as usize],
            plain_percent: [0, 0, 50, 90][generator.below(4) as usize],
        };
        Self { source: Source::Drawn { generator, mood }, taken: Vec::with_capacity(ROOM), bounds: None }
    }

    /// Taken from a list, and 0 beyond its end.
    pub fn from_list(list: Vec<u32>) -> Self {
        Self { source: Source::Listed { list, next: 0 }, taken: Vec::new(), bounds: None }
    }

    /// A number below `bound`; 0, and not a choice, when there is only one.
    pub fn below(&mut self, bound: u32) -> u32 {
        if bound <= 1 {
            return 0;
        }
        let number = match &mut self.source {
            Source::Drawn { generator, .. } => generator.below(bound),
            Source::Listed { list, next } => listed(list, next, bound),
        };
        self.keep(number, bound)
    }

    /// One of `usual` things, or now and then one of `rare` others; 0 is the first usual one.
    ///
    /// The rare ones come right behind the first usual one, so that the number of each stays the same however many
    /// usual ones there are: a fault in a list that was cut is still that fault.
    pub fn usual_or_rare(&mut self, usual: usize, rare: u32) -> Pick {
        let usual = u32::try_from(usual.max(1)).unwrap_or(u32::MAX);
        let all = usual.saturating_add(rare);
        if all <= 1 {
            return Pick::Usual(0);
        }
        let number = match &mut self.source {
            Source::Drawn { generator, mood } => {
                if rare > 0 && mood.rare_one_in > 0 && generator.below(mood.rare_one_in) == 0 {
                    1 + generator.below(rare)
                } else if generator.below(100) < mood.plain_percent {
                    0
                } else {
                    match generator.below(usual) {
                        0 => 0,
                        other => other.saturating_add(rare),
                    }
                }
            }
            Source::Listed { list, next } => listed(list, next, all),
        };
        match self.keep(number, all) {
            0 => Pick::Usual(0),
            number if number <= rare => Pick::Rare(number - 1),
            number => Pick::Usual((number - rare) as usize),
        }
    }

    /// Now and then one of so many unusual things; none is 0.
    pub fn rarely(&mut self, one_in: u32, kinds: u32) -> Option<u32> {
        if one_in == 0 || kinds == 0 {
            return None;
        }
        let number = match &mut self.source {
            Source::Drawn { generator, .. } => match generator.below(one_in) {
                0 => 1 + generator.below(kinds),
                _ => 0,
            },
            Source::Listed { list, next } => listed(list, next, kinds.saturating_add(1)),
        };
        self.keep(number, kinds.saturating_add(1)).checked_sub(1)
    }

    /// From now on one choice in so many is a rare one, whatever the seed's own mood; none when 0.
    pub fn make_rare(&mut self, one_in: u32) {
        if let Source::Drawn { mood, .. } = &mut self.source {
            mood.rare_one_in = one_in;
        }
    }

    /// Keeps from now on below what each number was, too: for going through all of them.
    pub fn keeping_bounds(mut self) -> Self {
        self.bounds = Some(Vec::new());
        self
    }

    /// All numbers taken so far and what each was below; empty unless it was asked for.
    pub fn into_bounded(self) -> (Vec<u32>, Vec<u32>) {
        (self.taken, self.bounds.unwrap_or_default())
    }

    /// All numbers taken so far, in order: the replay.
    pub fn into_taken(self) -> Vec<u32> {
        self.taken
    }

    fn keep(&mut self, number: u32, bound: u32) -> u32 {
        if self.taken.len() >= CHOICES_MAX {
            return 0;
        }
        self.taken.push(number);
        if let Some(bounds) = &mut self.bounds {
            bounds.push(bound);
        }
        number
    }
}

fn listed(list: &[u32], next: &mut usize, bound: u32) -> u32 {
    let number = list.get(*next).map_or(0, |number| number % bound);
    *next = next.saturating_add(1);
    number
}

#[cfg(test)]
mod tests {
    use super::{Choices, Generator, Pick};

    fn take(choices: &mut Choices) -> Vec<u32> {
        (0..200)
            .map(|at| match choices.usual_or_rare(1 + at % 5, 3) {
                Pick::Usual(at) => u32::try_from(at).unwrap(),
                Pick::Rare(at) => 100 + at + choices.below(7),
            })
            .collect()
    }

    #[test]
    fn the_list_of_a_seeded_run_gives_the_same_run() {
        for seed in 0..100 {
            let mut seeded = Choices::from_seed(seed);
            let run = take(&mut seeded);
            let list = seeded.into_taken();
            let mut listed = Choices::from_list(list.clone());
            assert_eq!(take(&mut listed), run);
            assert_eq!(listed.into_taken(), list);
        }
    }

    #[test]
    fn beyond_the_list_everything_is_plain_and_too_large_numbers_fit() {
        let mut choices = Choices::from_list(vec![12]);
        assert_eq!(choices.below(5), 2);
        assert_eq!(choices.below(5), 0);
        assert_eq!(choices.usual_or_rare(3, 9), Pick::Usual(0));
        assert_eq!(choices.below(1), 0);
        assert_eq!(choices.into_taken(), [2, 0, 0]);
    }

    // The published first outputs of splitmix64 from seed 1234567.
    #[test]
    fn the_generator_is_splitmix64() {
        let mut generator = Generator::new(1_234_567);
        assert_eq!(generator.draw(), 6_457_827_717_110_365_317);
        assert_eq!(generator.draw(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn seeds_differ_in_how_wild_they_are() {
        let rare = |seed| {
            let mut choices = Choices::from_seed(seed);
            (0..300).filter(|_| matches!(choices.usual_or_rare(4, 4), Pick::Rare(_))).count()
        };
        let counts: Vec<usize> = (0..60).map(rare).collect();
        assert!(counts.contains(&0) && counts.iter().any(|count| *count > 15), "{counts:?}");
    }
}
