//! Randomness, used for nothing but ids: no decision may depend on it.

/// A source of random numbers.
pub trait Entropy: Send + Sync {
    /// 128 random bits.
    fn random_u128(&self) -> u128;
}

/// The operating system's generator.
#[derive(Debug, Clone, Copy)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    #[expect(clippy::disallowed_methods, reason = "the real side of the entropy port")]
    fn random_u128(&self) -> u128 {
        uuid::Uuid::new_v4().as_u128()
    }
}

/// A random id as 32 hex digits.
pub fn hex_id(entropy: &dyn Entropy) -> String {
    format!("{:032x}", entropy.random_u128())
}
