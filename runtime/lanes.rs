//! The lanes of a runtime: one bulkhead for each kind of call, with the limits that it starts with.

use std::collections::BTreeMap;
use std::time::Duration;

use toolwarden_actors::bulkhead::Bulkhead;
use toolwarden_actors::circuit_breaker::BreakerLimits;
use toolwarden_actors::permit_pool::BulkheadLimits;
use toolwarden_tools::tool::Lane;

/// Limits by lane. Lanes that reach another machine have a breaker; local ones do not, for one session's failing
/// commands must not close the lane for others.
#[derive(Debug, Clone)]
pub struct LaneLimits {
    by_lane: BTreeMap<Lane, BulkheadLimits>,
}

impl LaneLimits {
    /// The same limits with another set for one lane.
    #[must_use]
    pub fn with(mut self, lane: Lane, limits: BulkheadLimits) -> Self {
        self.by_lane.insert(lane, limits);
        self
    }

    /// Every lane with its limits.
    pub fn iter(&self) -> impl Iterator<Item = (&Lane, &BulkheadLimits)> {
        self.by_lane.iter()
    }
}

impl Default for LaneLimits {
    fn default() -> Self {
        let breaker =
            BreakerLimits { failures_max: 5, open_min: Duration::from_secs(1), open_max: Duration::from_secs(60) };
        let local = |permits| BulkheadLimits { permits, queue_max: 4096, breaker: None };
        let remote = |permits| BulkheadLimits { permits, queue_max: 1024, breaker: Some(breaker) };
        let by_lane = BTreeMap::from([
            // Each model has a bulkhead and a breaker of its own, in front of the lane.
            (Lane::Model, BulkheadLimits { breaker: None, ..remote(256) }),
            (Lane::Control, local(64)),
            (Lane::Query, local(32)),
            (Lane::Execute, local(16)),
            (Lane::Network, remote(16)),
            (Lane::Search, remote(8)),
            (Lane::Browser, remote(4)),
        ]);
        Self { by_lane }
    }
}

/// The running lanes.
#[derive(Debug, Clone)]
pub struct Lanes {
    by_lane: BTreeMap<Lane, Bulkhead>,
}

impl Lanes {
    /// Handles for lanes that the supervision tree starts.
    pub fn new(limits: &LaneLimits) -> Self {
        let lanes = limits.iter().map(|(lane, limits)| (lane.clone(), Bulkhead::new(lane.clone(), *limits)));
        Self { by_lane: lanes.collect() }
    }

    /// The bulkhead of a lane.
    pub fn get(&self, lane: &Lane) -> Option<&Bulkhead> {
        self.by_lane.get(lane)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Bulkhead> {
        self.by_lane.values()
    }
}
