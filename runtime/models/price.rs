//! What tokens cost: whole numbers, so that sums are exact.

use super::TokenUsage;

/// What tokens cost, in millionths of a US dollar a million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TokenPrice {
    /// Those read.
    pub input: u64,
    /// Those written.
    pub output: u64,
    /// Those read that the provider had kept; none counts them as read.
    pub cache_read: Option<u64>,
    /// Those read that the provider keeps; none counts them as read.
    pub cache_write: Option<u64>,
}

impl TokenPrice {
    /// What this use costs, in millionths of a US dollar, rounded up.
    pub fn cost_microusd(&self, usage: TokenUsage) -> u64 {
        let cached = usage.cache_read_tokens.saturating_add(usage.cache_write_tokens);
        let parts = [
            (usage.input_tokens.saturating_sub(cached), self.input),
            (usage.cache_read_tokens, self.cache_read.unwrap_or(self.input)),
            (usage.cache_write_tokens, self.cache_write.unwrap_or(self.input)),
            (usage.output_tokens, self.output),
        ];
        let sum: u128 = parts.iter().map(|(tokens, price)| u128::from(*tokens) * u128::from(*price)).sum();
        u64::try_from(sum.div_ceil(1_000_000)).unwrap_or(u64::MAX)
    }
}
