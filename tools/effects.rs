//! Ports: every way in which the project touches the world, each with its real side in a file of its own.
//!
//! The simulation has a twin of the same name for each. `clippy.toml` bans the ambient ways (std::fs, clocks,
//! random numbers, processes, sockets, the environment) everywhere but in these files.

pub mod blobs;
pub mod blocking;
pub mod clock;
pub mod dispatch;
pub mod entropy;
pub mod files;
pub mod folder_watch;
pub mod http;
pub mod processes;
pub mod resolver;
pub mod store;

use std::sync::Arc;

/// The ports that belong to no workspace.
#[derive(Clone)]
pub struct Effects {
    /// Moments and spans.
    pub clock: Arc<dyn clock::Clock>,
    /// Randomness, for ids.
    pub entropy: Arc<dyn entropy::Entropy>,
    /// The network, as far as it speaks HTTP.
    pub http: Arc<dyn http::Http>,
    /// What names stand for in the network.
    pub resolver: Arc<dyn resolver::Resolver>,
}

impl Effects {
    /// The real world.
    pub fn real() -> Self {
        Self {
            clock: Arc::new(clock::SystemClock::new()),
            entropy: Arc::new(entropy::SystemEntropy),
            http: Arc::new(http::system::SystemHttp::new()),
            resolver: Arc::new(resolver::SystemResolver),
        }
    }
}
