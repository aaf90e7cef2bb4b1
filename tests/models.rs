//! Promise: real models drive the tree over the network, and whatever a network or a provider does, a run ends in a
//! documented way, runs no half call, and runs none twice.
//!
//! The servers are others' (`scripts/setup` installs them); what they cannot do is pretended behind the HTTP port.

#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests start real servers and look at real files")]

#[path = "models/bound.rs"]
mod bound;
#[path = "models/crowd.rs"]
mod crowd;
#[path = "models/ending.rs"]
mod ending;
#[path = "models/evaluation.rs"]
mod evaluation;
#[path = "models/network.rs"]
mod network;
#[path = "models/object.rs"]
mod object;
#[path = "models/object_step.rs"]
mod object_step;
#[path = "models/oracle.rs"]
mod oracle;
#[path = "models/peer.rs"]
mod peer;
#[path = "models/picture.rs"]
mod picture;
#[path = "models/provider.rs"]
mod provider;
#[path = "models/proxy.rs"]
mod proxy;
#[expect(dead_code, reason = "each promise uses its own part of the shared pieces")]
mod support;
#[path = "models/verdict.rs"]
mod verdict;
