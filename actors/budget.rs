//! What budgets count, how much of it, and up to which limits.
//!
//! All numbers are whole: money in millionths of a US dollar, so that sums are exact and replay to the same.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// When to speak up: this many percent of a limit are used or reserved.
pub const SOFT_PERCENT: u8 = 80;

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// Calls of tools and models.
    Calls,
    /// Tokens sent to models.
    InputTokens,
    /// Tokens that models wrote.
    OutputTokens,
    /// Money, in millionths of a US dollar.
    CostMicrousd,
    /// Bytes of tool output.
    OutputBytes,
}

impl Resource {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Calls, Self::InputTokens, Self::OutputTokens, Self::CostMicrousd, Self::OutputBytes];

    /// Its name in results and events.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Calls => "calls",
            Self::InputTokens => "input_tokens",
            Self::OutputTokens => "output_tokens",
            Self::CostMicrousd => "cost_microusd",
            Self::OutputBytes => "output_bytes",
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

/// So much of each resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Amount {
    /// Calls.
    pub calls: u64,
    /// Tokens in.
    pub input_tokens: u64,
    /// Tokens out.
    pub output_tokens: u64,
    /// Millionths of a US dollar.
    pub cost_microusd: u64,
    /// Bytes.
    pub output_bytes: u64,
}

impl Amount {
    /// Whether it is nothing.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// So much of one resource.
    pub fn get(&self, resource: Resource) -> u64 {
        match resource {
            Resource::Calls => self.calls,
            Resource::InputTokens => self.input_tokens,
            Resource::OutputTokens => self.output_tokens,
            Resource::CostMicrousd => self.cost_microusd,
            Resource::OutputBytes => self.output_bytes,
        }
    }

    /// The sum; each part stays at the largest number instead of overflowing.
    #[must_use]
    pub fn saturating_add(self, other: Self) -> Self {
        self.each(other, u64::saturating_add)
    }

    /// The difference; each part stays at zero instead of going below.
    #[must_use]
    pub fn saturating_sub(self, other: Self) -> Self {
        self.each(other, u64::saturating_sub)
    }

    fn each(self, other: Self, of: fn(u64, u64) -> u64) -> Self {
        Self {
            calls: of(self.calls, other.calls),
            input_tokens: of(self.input_tokens, other.input_tokens),
            output_tokens: of(self.output_tokens, other.output_tokens),
            cost_microusd: of(self.cost_microusd, other.cost_microusd),
            output_bytes: of(self.output_bytes, other.output_bytes),
        }
    }
}

/// What is used where nothing can be refused: counted on the spot, for an account and all above it, without a word to
/// anybody.
#[derive(Debug, Default)]
pub struct Tally {
    used: [AtomicU64; Resource::ALL.len()],
    above: Option<Arc<Self>>,
}

impl Tally {
    /// An empty one, below another.
    pub fn below(above: Option<Arc<Self>>) -> Self {
        Self { above, ..Self::default() }
    }

    /// Counts what was used; each part stays at the largest number instead of overflowing.
    pub fn add(&self, used: Amount) {
        let mut next = Some(self);
        while let Some(tally) = next {
            for (count, resource) in tally.used.iter().zip(Resource::ALL) {
                let more = used.get(resource);
                if more > 0 {
                    let sum = |count: u64| Some(count.saturating_add(more));
                    // It never fails: there is always a sum.
                    let _ = count.fetch_update(Ordering::AcqRel, Ordering::Acquire, sum);
                }
            }
            next = tally.above.as_deref();
        }
    }

    /// What was used.
    pub fn sum(&self) -> Amount {
        let [calls, input_tokens, output_tokens, cost_microusd, output_bytes] =
            Resource::ALL.map(|resource| self.used[resource as usize].load(Ordering::Acquire));
        Amount { calls, input_tokens, output_tokens, cost_microusd, output_bytes }
    }
}

/// How much an account may use; no limit where none is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BudgetLimits {
    /// Most calls.
    pub calls: Option<u64>,
    /// Most tokens in.
    pub input_tokens: Option<u64>,
    /// Most tokens out.
    pub output_tokens: Option<u64>,
    /// Most millionths of a US dollar.
    pub cost_microusd: Option<u64>,
    /// Most bytes.
    pub output_bytes: Option<u64>,
    /// At how many percent of a limit to speak up.
    pub soft_percent: u8,
}

impl Default for BudgetLimits {
    fn default() -> Self {
        Self {
            calls: None,
            input_tokens: None,
            output_tokens: None,
            cost_microusd: None,
            output_bytes: None,
            soft_percent: SOFT_PERCENT,
        }
    }
}

impl BudgetLimits {
    /// The limit of one resource.
    pub fn get(&self, resource: Resource) -> Option<u64> {
        match resource {
            Resource::Calls => self.calls,
            Resource::InputTokens => self.input_tokens,
            Resource::OutputTokens => self.output_tokens,
            Resource::CostMicrousd => self.cost_microusd,
            Resource::OutputBytes => self.output_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Amount, Resource, Tally};

    #[test]
    fn a_tally_counts_each_resource_for_itself_and_all_above() {
        let top = Arc::new(Tally::default());
        let below = Tally::below(Some(Arc::clone(&top)));
        let used = Amount { calls: 1, input_tokens: 2, output_tokens: 3, cost_microusd: 4, output_bytes: u64::MAX };
        top.add(Amount { calls: 10, ..Amount::default() });
        below.add(used);
        below.add(used);
        let twice = used.saturating_add(used);
        assert_eq!(below.sum(), twice);
        assert_eq!(top.sum(), Amount { calls: 12, ..twice });
        for (at, resource) in Resource::ALL.into_iter().enumerate() {
            assert_eq!(resource as usize, at, "the order of the list is that of the kinds");
        }
    }
}
