//! The twin of the resolver port: every name has one public address, the same in every run.
//!
//! Faults: a name that leads nowhere is a fault of [`super::http`], which sees the request; names under `invalid` have no
//! address, as everywhere.

use std::net::{IpAddr, Ipv4Addr};

use futures_util::future::BoxFuture;
use toolwarden_tools::effects::resolver::{ResolveError, Resolver};

/// A public address that belongs to nobody who could be asked from here.
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(9, 9, 9, 9));

/// Resolves names.
#[derive(Debug, Clone, Copy)]
pub struct PretendedResolver;

impl Resolver for PretendedResolver {
    fn resolve(&self, name: String) -> BoxFuture<'static, Result<Vec<IpAddr>, ResolveError>> {
        let found = if name.ends_with(".invalid") {
            Err(ResolveError { name, reason: "there is no such name".to_owned() })
        } else {
            Ok(vec![ADDRESS])
        };
        Box::pin(std::future::ready(found))
    }
}
