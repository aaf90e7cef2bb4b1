//! The twin of entropy: the same ids in the same order in every world.
//!
//! Faults: none. Ids decide nothing, so they are no choices: a list of choices that is cut must not change them.

use std::sync::{Mutex, PoisonError};

use toolwarden_tools::effects::entropy::Entropy;

use crate::seed::Generator;

/// Where the ids of every world begin.
const SEED: u64 = 0x7001_3A4D_E400_0001;

/// Numbers that look random.
pub struct PretendedEntropy(Mutex<Generator>);

impl PretendedEntropy {
    /// From the beginning.
    pub fn new() -> Self {
        Self(Mutex::new(Generator::new(SEED)))
    }
}

impl Default for PretendedEntropy {
    fn default() -> Self {
        Self::new()
    }
}

impl Entropy for PretendedEntropy {
    fn random_u128(&self) -> u128 {
        let mut generator = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (u128::from(generator.draw()) << 64) | u128::from(generator.draw())
    }
}
