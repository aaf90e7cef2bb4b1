//! The twin of the resolver port: every name stands for one public address, or, now and then, for none.
//!
//! Two names are not public: `inner.test` stands for a private address, and `half.test` for a public and a private one.
//!
//! Faults: a name that leads nowhere. They come with those of the network.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use toolwarden_tools::effects::resolver::{ResolveError, Resolver};

use crate::fate::Fate;

/// What every name stands for: an address that a guard takes for public, and that nothing connects to.
pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(1, 0, 0, 1);

/// What a name of the inner network stands for.
pub const INNER_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 7);

/// Resolves names.
pub struct PretendedResolver {
    fate: Fate,
    faulty: bool,
}

impl PretendedResolver {
    /// Names that are all known, or fail now and then.
    pub fn new(fate: Fate, faulty: bool) -> Self {
        Self { fate, faulty }
    }
}

impl fmt::Debug for PretendedResolver {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("PretendedResolver")
    }
}

impl Resolver for PretendedResolver {
    fn resolve(&self, name: String) -> BoxFuture<'static, Result<Vec<IpAddr>, ResolveError>> {
        let is_lost = self.faulty && self.fate.rare(1).is_some();
        if is_lost {
            self.fate.met("a name that leads nowhere");
        }
        let found = match is_lost {
            true => Err(ResolveError { name, reason: "no such name".to_owned() }),
            false => Ok(match name.as_str() {
                "inner.test" => vec![IpAddr::V4(INNER_ADDRESS)],
                "half.test" => vec![IpAddr::V4(ADDRESS), IpAddr::V4(INNER_ADDRESS)],
                _ => vec![IpAddr::V4(ADDRESS)],
            }),
        };
        async move { found }.boxed()
    }
}
