//! The resolver port: which addresses a name stands for.
//!
//! Asked before a connection is made, so that what was judged is what is connected to: the answer is judged, and the
//! connection is held to it.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use futures_util::future::BoxFuture;
use thiserror::Error;

/// Most addresses of one name that are looked at.
pub const ADDRESSES_MAX: usize = 64;
/// How long a name may take to be resolved.
pub const RESOLVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Resolves names.
pub trait Resolver: fmt::Debug + Send + Sync {
    /// All addresses of a name, at most [`ADDRESSES_MAX`].
    ///
    /// # Errors
    /// [`ResolveError`] when there is none, or no answer within [`RESOLVE_TIMEOUT`].
    fn resolve(&self, name: String) -> BoxFuture<'static, Result<Vec<IpAddr>, ResolveError>>;
}

/// Why a name has no address.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the name {name:?} cannot be resolved: {reason}; check its spelling and the network")]
pub struct ResolveError {
    /// The name.
    pub name: String,
    /// What the system said.
    pub reason: String,
}

/// The resolver of this machine.
#[derive(Debug, Clone, Copy)]
pub struct SystemResolver;

impl Resolver for SystemResolver {
    #[expect(clippy::disallowed_methods, reason = "the real side of the resolver port")]
    fn resolve(&self, name: String) -> BoxFuture<'static, Result<Vec<IpAddr>, ResolveError>> {
        Box::pin(async move {
            let failed = |reason: String| ResolveError { name: name.clone(), reason };
            let asked = tokio::time::timeout(RESOLVE_TIMEOUT, tokio::net::lookup_host((name.as_str(), 0))).await;
            let found = match asked {
                Err(_elapsed) => return Err(failed(format!("no answer within {} s", RESOLVE_TIMEOUT.as_secs()))),
                Ok(found) => found.map_err(|error| failed(error.to_string()))?,
            };
            let addresses: Vec<IpAddr> = found.map(|address| address.ip()).take(ADDRESSES_MAX).collect();
            if addresses.is_empty() { Err(failed("it has no address".to_owned())) } else { Ok(addresses) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Resolver as _, SystemResolver};

    #[tokio::test]
    async fn the_name_of_this_machine_is_loopback() {
        let found = SystemResolver.resolve("localhost".to_owned()).await.unwrap();
        assert!(!found.is_empty() && found.iter().all(std::net::IpAddr::is_loopback), "{found:?}");
        let error = SystemResolver.resolve("no such name".to_owned()).await.unwrap_err();
        assert!(error.to_string().contains("no such name"), "{error}");
    }
}
