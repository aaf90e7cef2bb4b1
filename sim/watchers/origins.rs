//! No tool connects to an address that is not public, and none to a name that was not judged first.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use super::must;
use crate::sight::{Sight, Watcher};

/// Who may be asked follows from the address alone.
#[derive(Debug, Default)]
pub struct Origins;

/// Whether nobody outside of a house can have this address.
fn is_inner(address: IpAddr) -> bool {
    let is_inner_v4 = |v4: Ipv4Addr| {
        v4.is_loopback() || v4.is_private() || v4.is_link_local() || v4.is_unspecified() || v4.is_multicast()
    };
    match address {
        IpAddr::V4(v4) => is_inner_v4(v4),
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unspecified() || v6.to_ipv4_mapped().is_some_and(is_inner_v4),
    }
}

impl Watcher for Origins {
    fn name(&self) -> &'static str {
        "origins"
    }

    fn promise(&self) -> &'static str {
        "nobody is asked who is not on the public internet"
    }

    fn see(&mut self, _at: Duration, sight: &Sight<'_>) -> Result<(), String> {
        let Sight::Connected { url, pinned } = sight else { return Ok(()) };
        must(!pinned.is_empty(), || format!("{url} is asked without a judged address"))?;
        let host = url.split("://").nth(1).unwrap_or_default().split('/').next().unwrap_or_default();
        let literal = host
            .rsplit_once(':')
            .map_or(host, |(name, port)| if port.bytes().all(|byte| byte.is_ascii_digit()) { name } else { host });
        let literal = literal.trim_matches(['[', ']']).parse::<IpAddr>().ok();
        let inner = pinned.iter().map(|pin| pin.ip()).chain(literal).find(|address| is_inner(*address));
        must(inner.is_none(), || format!("{url} is asked at {inner:?}"))
    }
}
