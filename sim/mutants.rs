//! Deliberate faults: machines and mounts that are broken in one way each, for checkers to be measured with.
//!
//! A checker that was never seen to fail proves little. Each mutant here stands outside the shipped code, between the
//! simulated world and the machines, and says in which scenario it shows, which checker must find it, and within how
//! many seeds; a test holds all of them to it. A scenario file may name one, to see what a found fault looks like.

mod entry;
mod lent;
mod life;
mod task;

use crate::tamper::{Slip, Tamper};

use self::entry::{ENTRIES, OneSlip};
use self::lent::LENT;
use self::life::LIVES;
use self::task::TASKS;

/// A deliberate fault, and what is known of its discovery.
#[derive(Clone, Copy)]
pub struct Mutant {
    /// Its name in scenario files.
    pub name: &'static str,
    /// What is broken.
    pub about: &'static str,
    /// A shipped scenario in which it shows.
    pub scenario: &'static str,
    /// The name of the checker that finds it.
    pub checker: &'static str,
    /// It is found within so many seeds.
    pub seeds_max: u64,
    make: Make,
}

#[derive(Clone, Copy)]
enum Make {
    Slip(Slip),
    Machine(fn() -> Box<dyn Tamper>),
}

impl Mutant {
    /// The broken machines, as new.
    pub fn make(&self) -> Box<dyn Tamper> {
        match self.make {
            Make::Slip(slip) => Box::new(OneSlip(slip)),
            Make::Machine(make) => make(),
        }
    }
}

impl std::fmt::Debug for Mutant {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Mutant").field("name", &self.name).finish_non_exhaustive()
    }
}

/// All mutants.
pub fn all() -> impl Iterator<Item = Mutant> {
    LIVES.into_iter().chain(LENT).chain(ENTRIES).chain(TASKS)
}

/// The mutant of this name.
pub fn named(name: &str) -> Option<Mutant> {
    all().find(|mutant| mutant.name == name)
}

/// A machine that is broken.
const fn machine(
    name: &'static str,
    about: &'static str,
    make: fn() -> Box<dyn Tamper>,
    scenario: &'static str,
    checker: &'static str,
    seeds_max: u64,
) -> Mutant {
    Mutant { name, about, scenario, checker, seeds_max, make: Make::Machine(make) }
}

/// A mount that slips.
const fn slip(
    name: &'static str,
    about: &'static str,
    slip: Slip,
    scenario: &'static str,
    checker: &'static str,
    seeds_max: u64,
) -> Mutant {
    Mutant { name, about, scenario, checker, seeds_max, make: Make::Slip(slip) }
}
