//! Makes a bad run small: cuts its list of choices as long as it stays bad in the same way, then zeroes what is left.
//!
//! A run is a list of numbers, so shrinking knows nothing of trees or actors. Cutting is delta debugging: halves
//! first, then quarters, down to single numbers. Cutting one number shifts what all later ones decide, so a short list
//! also has two numbers cut at a time. Zeroes at the end are dropped, for beyond a list everything is 0.

/// Most runs that one shrink makes.
pub const ATTEMPTS_MAX: usize = 5_000;

/// Longest list in which two numbers are cut at a time.
pub const PAIRS_LENGTH_MAX: usize = 24;

/// A list made small.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shrunk {
    /// What is left.
    pub choices: Vec<u32>,
    /// How many runs it took.
    pub attempts: usize,
}

/// Shrinks a list for which `is_bad` holds; what is returned is bad too.
pub fn shrink(choices: Vec<u32>, mut is_bad: impl FnMut(&[u32]) -> bool) -> Shrunk {
    let mut shrinking = Shrinking { choices: trimmed(choices), attempts: 0, is_bad: &mut is_bad };
    loop {
        let before = shrinking.choices.clone();
        shrinking.cut();
        shrinking.zero();
        shrinking.lower();
        shrinking.squeeze();
        shrinking.cut_pairs();
        if shrinking.choices == before || shrinking.attempts >= ATTEMPTS_MAX {
            return Shrunk { choices: shrinking.choices, attempts: shrinking.attempts };
        }
    }
}

struct Shrinking<'a> {
    choices: Vec<u32>,
    attempts: usize,
    is_bad: &'a mut dyn FnMut(&[u32]) -> bool,
}

impl Shrinking<'_> {
    /// Keeps a candidate if it is smaller and still bad.
    fn keep(&mut self, candidate: Vec<u32>) -> bool {
        let candidate = trimmed(candidate);
        if candidate == self.choices || self.attempts >= ATTEMPTS_MAX {
            return false;
        }
        self.attempts += 1;
        let keeps = (self.is_bad)(&candidate);
        if keeps {
            self.choices = candidate;
        }
        keeps
    }

    /// Cuts pieces out, large ones first.
    fn cut(&mut self) {
        let mut length = self.choices.len().div_ceil(2);
        while length > 0 && self.attempts < ATTEMPTS_MAX {
            let mut start = 0;
            while start < self.choices.len() {
                let mut candidate = self.choices.clone();
                candidate.drain(start..(start + length).min(self.choices.len()));
                if !self.keep(candidate) {
                    start += length;
                }
            }
            length = if length == 1 { 0 } else { length.div_ceil(2) };
        }
    }

    /// Makes pieces plain, large ones first.
    fn zero(&mut self) {
        let mut length = self.choices.len().div_ceil(2);
        while length > 0 && self.attempts < ATTEMPTS_MAX {
            let mut start = 0;
            while start < self.choices.len() {
                let mut candidate = self.choices.clone();
                let end = (start + length).min(candidate.len());
                candidate[start..end].fill(0);
                self.keep(candidate);
                start += length;
            }
            length = if length == 1 { 0 } else { length.div_ceil(2) };
        }
    }

    /// Cuts the zeroes before a place, or after it: plain steps on the way to the ones that matter.
    fn squeeze(&mut self) {
        for at in (0..=self.choices.len()).rev() {
            let (before, after) = self.choices.split_at(at.min(self.choices.len()));
            let matters = |numbers: &[u32]| numbers.iter().copied().filter(|number| *number != 0).collect::<Vec<u32>>();
            let candidate = [&matters(before)[..], after].concat();
            let other = [before, &matters(after)[..]].concat();
            if !self.keep(candidate) {
                self.keep(other);
            }
        }
    }

    /// Cuts a piece out and one more number behind it.
    fn cut_pairs(&mut self) {
        if self.choices.len() > PAIRS_LENGTH_MAX {
            return;
        }
        let mut start = 0;
        while start < self.choices.len() {
            let mut behind = start + 1;
            while behind < self.choices.len() {
                let mut one = self.choices.clone();
                one.remove(behind);
                let mut all = one.clone();
                one.remove(start);
                all.drain(..=start);
                if !self.keep(all) && !self.keep(one) {
                    behind += 1;
                }
            }
            start += 1;
        }
    }

    /// Makes single numbers smaller.
    fn lower(&mut self) {
        for at in 0..self.choices.len() {
            while let Some(number @ 1..) = self.choices.get(at).copied() {
                let half = with(&self.choices, at, number / 2);
                let less = with(&self.choices, at, number - 1);
                if !self.keep(half) && !self.keep(less) {
                    break;
                }
            }
        }
    }
}

fn with(choices: &[u32], at: usize, number: u32) -> Vec<u32> {
    let mut changed = choices.to_vec();
    changed[at] = number;
    changed
}

fn trimmed(mut choices: Vec<u32>) -> Vec<u32> {
    let length = choices.iter().rposition(|number| *number != 0).map_or(0, |last| last + 1);
    choices.truncate(length);
    choices
}

#[cfg(test)]
mod tests {
    use super::{ATTEMPTS_MAX, shrink};

    #[test]
    fn only_what_matters_is_left() {
        let list: Vec<u32> = (0..300).map(|number| number % 17).collect();
        // Bad when a 13 comes somewhere before a number above 5.
        let shrunk = shrink(list, |choices| {
            choices.iter().position(|number| *number == 13).is_some_and(|at| choices[at + 1..].iter().any(|n| *n > 5))
        });
        assert_eq!(shrunk.choices, [13, 6]);
        assert!(shrunk.attempts < 200, "{}", shrunk.attempts);
    }

    #[test]
    fn what_is_always_bad_needs_no_choice_and_what_cannot_shrink_stays() {
        assert!(shrink(vec![1, 2, 3], |_| true).choices.is_empty());
        let whole = vec![5, 4, 3];
        assert_eq!(shrink(whole.clone(), |choices| choices == [5, 4, 3]).choices, whole);
    }

    #[test]
    fn it_gives_up_in_time() {
        let mut calls = 0;
        let list: Vec<u32> = (0..9_000).map(|number| number | 1).collect();
        let shrunk = shrink(list, |_| {
            calls += 1;
            false
        });
        assert!(calls <= ATTEMPTS_MAX && shrunk.attempts == calls);
    }
}
