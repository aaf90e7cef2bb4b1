//! Where tools may ask: the public internet, and private origins that the host named.
//!
//! A name is resolved here, once, and all of its addresses must be public: a name that leads to a private one beside a
//! public one could be followed to either. The addresses that were judged are the only ones that may be connected to.
//! Where the host named a proxy, the proxy resolves names: addresses that are written out are judged all the same, and
//! `localhost` is refused, but what a name stands for is the proxy's to judge.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use url::{Host, Url};

use super::{Web, WebError};
use crate::effects::http::proxy::HttpProxy;

/// Networks of IPv4 that are not public: address and length of the prefix.
const PRIVATE_V4: [(Ipv4Addr, u32); 15] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    (Ipv4Addr::new(192, 88, 99, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    (Ipv4Addr::new(240, 0, 0, 0), 4),
];

/// Networks of IPv6 within the global ones that are not public or hide an IPv4 address: Teredo and other protocol
/// assignments, documentation, 6to4.
const PRIVATE_V6: [(Ipv6Addr, u32); 4] = [
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),
    (Ipv6Addr::new(0x3ff0, 0, 0, 0, 0, 0, 0, 0), 12),
];

/// All that is global in IPv6.
const GLOBAL_V6: (Ipv6Addr, u32) = (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);

/// Scheme, host and port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    scheme: String,
    host: String,
    port: u16,
}

/// What a host allows besides the public internet: private origins; or nothing at all, not even that.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowedOrigins {
    origins: BTreeSet<Origin>,
    is_offline: bool,
}

impl Origin {
    /// Reads an origin as a person writes it: `http://127.0.0.1:8080`, `https://files.intranet`.
    ///
    /// # Errors
    /// [`WebError::Address`].
    pub fn parse(text: &str) -> Result<Self, WebError> {
        let url = super::address(text)?;
        if url.path() != "/" || url.query().is_some() {
            let reason = format!("{} is more than an origin: leave out what follows host and port", super::shown(&url));
            return Err(WebError::Address { reason });
        }
        Self::of(&url).ok_or_else(|| WebError::Address { reason: "the address names no host".to_owned() })
    }

    /// The origin of an address.
    pub fn of(url: &Url) -> Option<Self> {
        let (scheme, host) = (url.scheme().to_owned(), url.host_str()?.trim_end_matches('.').to_owned());
        Some(Self { scheme, host, port: url.port_or_known_default()? })
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}://{}:{}", self.scheme, self.host, self.port)
    }
}

impl FromIterator<Origin> for AllowedOrigins {
    fn from_iter<I: IntoIterator<Item = Origin>>(origins: I) -> Self {
        Self { origins: origins.into_iter().collect(), is_offline: false }
    }
}

impl AllowedOrigins {
    /// Nothing is asked, neither what is private nor what is public: the session has no network.
    pub fn offline() -> Self {
        Self { is_offline: true, ..Self::default() }
    }

    /// Whether the origin of this address is among them.
    pub fn allow(&self, url: &Url) -> bool {
        Origin::of(url).is_some_and(|origin| self.origins.contains(&origin))
    }
}

/// Refuses what is no http or https address with a host and without credentials.
pub(super) fn check_form(url: &Url) -> Result<(), WebError> {
    let wrong = |reason: &str| Err(WebError::Address { reason: reason.to_owned() });
    if !matches!(url.scheme(), "http" | "https") {
        return wrong(&format!("{} addresses are not asked", url.scheme()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return wrong("the address holds a name or a password, which would be sent along");
    }
    match url.host() {
        Some(Host::Domain(name)) if name.trim_end_matches('.').is_empty() => wrong("the address names no host"),
        None => wrong("the address names no host"),
        Some(_) => Ok(()),
    }
}

/// How an address may be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// Directly, at these addresses and no other.
    Direct(Vec<SocketAddr>),
    /// Through this proxy, which resolves the name.
    Proxy(HttpProxy),
}

/// Judges an address before it is asked.
///
/// # Errors
/// [`WebError::Private`], [`WebError::Offline`], and what [`super::address`] and the resolver say.
pub async fn admit(web: &Web, url: &Url) -> Result<Way, WebError> {
    check_form(url)?;
    if web.allowed.is_offline {
        return Err(WebError::Offline { host: url.host_str().unwrap_or_default().to_owned() });
    }
    let allowed = web.allowed.allow(url);
    let port = url.port_or_known_default().unwrap_or_default();
    let private = |host: &str, address: Option<IpAddr>| WebError::Private {
        host: host.to_owned(),
        address: address.map(|address| address.to_string()),
    };
    let direct =
        |addresses: &[IpAddr]| Way::Direct(addresses.iter().map(|address| SocketAddr::new(*address, port)).collect());
    // What is allowed although it is private is this host's own neighbourhood, not the proxy's.
    let proxy = web.proxy.as_ref().filter(|_| !allowed);
    let through = |proxy: &HttpProxy| Way::Proxy(proxy.clone());
    let name = match url.host() {
        Some(Host::Ipv4(address)) => Err(IpAddr::from(address)),
        Some(Host::Ipv6(address)) => Err(IpAddr::from(address)),
        Some(Host::Domain(name)) => Ok(name),
        None => return Err(WebError::Address { reason: "the address names no host".to_owned() }),
    };
    let name = match name {
        Err(literal) if allowed || is_public(literal) => {
            return Ok(proxy.map_or_else(|| direct(&[literal]), through));
        }
        Err(literal) => return Err(private(&literal.to_string(), None)),
        Ok(name) => name,
    };
    let plain = name.trim_end_matches('.').to_ascii_lowercase();
    if !allowed && (plain == "localhost" || plain.ends_with(".localhost")) {
        return Err(private(name, None));
    }
    if let Some(proxy) = proxy {
        return Ok(through(proxy));
    }
    let addresses = web.resolver.resolve(name.to_owned()).await?;
    if let Some(hidden) = addresses.iter().find(|address| !allowed && !is_public(**address)) {
        return Err(private(name, Some(*hidden)));
    }
    Ok(direct(&addresses))
}

/// Whether an address is on the public internet; an IPv4 address inside of an IPv6 one is judged as itself.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => match inner_v4(address) {
            Some(inner) => is_public_v4(inner),
            None => within_v6(address, GLOBAL_V6) && !PRIVATE_V6.iter().any(|network| within_v6(address, *network)),
        },
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    !PRIVATE_V4.iter().any(|(network, bits)| (address.to_bits() ^ network.to_bits()) >> (32 - bits) == 0)
}

fn within_v6(address: Ipv6Addr, (network, bits): (Ipv6Addr, u32)) -> bool {
    (address.to_bits() ^ network.to_bits()) >> (128 - bits) == 0
}

/// The IPv4 address in a mapped (`::ffff:a.b.c.d`) or compatible (`::a.b.c.d`) one.
fn inner_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let bits = address.to_bits();
    matches!(bits >> 32, 0 | 0xffff).then(|| Ipv4Addr::from_bits(u32::try_from(bits & 0xffff_ffff).unwrap_or(0)))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;
    use std::net::IpAddr;
    use std::sync::Arc;

    use futures_util::FutureExt as _;
    use futures_util::future::BoxFuture;
    use url::Url;

    use super::{AllowedOrigins, HttpProxy, Origin, Way, Web, WebError, admit, is_public};
    use crate::effects::http::{Http, HttpError, HttpRequest, HttpResponse};
    use crate::effects::resolver::{ResolveError, Resolver};

    /// Names as a test says; everything else is unknown.
    #[derive(Debug, Default)]
    pub(crate) struct NamesTwin(pub(crate) BTreeMap<String, Vec<IpAddr>>);

    impl Resolver for NamesTwin {
        fn resolve(&self, name: String) -> BoxFuture<'static, Result<Vec<IpAddr>, ResolveError>> {
            let found = self.0.get(&name).cloned().ok_or(ResolveError { name, reason: "no such name".to_owned() });
            async move { found }.boxed()
        }
    }

    /// A network that must not be reached.
    #[derive(Debug)]
    struct NoNetwork;

    impl Http for NoNetwork {
        fn exchange(&self, request: HttpRequest) -> BoxFuture<'static, Result<HttpResponse, HttpError>> {
            panic!("{request:?} went out")
        }
    }

    fn web(names: &[(&str, &[&str])], allowed: &[&str]) -> Web {
        let addresses = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        let names = names.iter().map(|(name, texts)| ((*name).to_owned(), addresses(texts))).collect();
        let allowed: AllowedOrigins = allowed.iter().map(|text| Origin::parse(text).unwrap()).collect();
        Web { http: Arc::new(NoNetwork), resolver: Arc::new(NamesTwin(names)), allowed: Arc::new(allowed), proxy: None }
    }

    async fn admitted(web: &Web, url: &str) -> Result<Vec<String>, WebError> {
        Ok(match admit(web, &Url::parse(url).unwrap()).await? {
            Way::Direct(addresses) => addresses.iter().map(ToString::to_string).collect(),
            Way::Proxy(proxy) => vec![proxy.to_string()],
        })
    }

    #[test]
    fn private_networks_of_both_kinds_are_told_from_public_ones() {
        for private in [
            "0.1.2.3",
            "10.255.0.1",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "169.254.169.254",
            "172.31.0.1",
            "192.0.0.8",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.19.0.1",
            "198.51.100.9",
            "203.0.113.9",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::10.0.0.1",
            "ff02::1",
            "fc00::1",
            "fdff::1",
            "fe80::1",
            "fec0::1",
            "64:ff9b::a00:1",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "3fff::1",
            "5f00::1",
            "4000::1",
        ] {
            assert!(!is_public(private.parse().unwrap()), "{private}");
        }
        for public in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.1",
            "100.63.255.255",
            "100.128.0.1",
            "172.32.0.1",
            "192.0.1.1",
            "198.20.0.1",
            "223.255.255.255",
            "2606:4700::1111",
            "2a00::1",
            "::ffff:1.1.1.1",
            "2001:4860::8888",
        ] {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
    }

    #[tokio::test]
    async fn all_addresses_of_a_name_must_be_public_and_are_what_may_be_connected_to() {
        let web =
            web(&[("a.example", &["1.1.1.1", "2606:4700::1111"]), ("mixed.example", &["1.1.1.1", "10.0.0.1"])], &[]);
        assert_eq!(admitted(&web, "https://a.example/x").await.unwrap(), ["1.1.1.1:443", "[2606:4700::1111]:443"]);
        let mixed = admitted(&web, "http://mixed.example/").await.unwrap_err();
        assert!(matches!(&mixed, WebError::Private { address: Some(hidden), .. } if hidden == "10.0.0.1"), "{mixed}");
        assert!(matches!(admitted(&web, "http://none.example/").await, Err(WebError::Resolve(_))));
        assert!(matches!(admitted(&web, "http://me:x@a.example/").await, Err(WebError::Address { .. })));
    }

    #[tokio::test]
    async fn however_a_private_address_is_written_it_is_refused() {
        let web = web(&[], &[]);
        for url in [
            "http://127.0.0.1/",
            "http://2130706433/",
            "http://0x7f000001/",
            "http://0x7f.1/",
            "http://127.1/",
            "http://017700000001/",
            "http://[::1]/",
            "http://[::ffff:127.0.0.1]/",
            "http://[::ffff:7f00:1]/",
            "http://[2002:7f00:1::]/",
            "http://localhost/",
            "http://LOCALHOST./",
            "http://a.localhost/",
            "http://%31%32%37.0.0.1/",
            "http://①②⑦.0.0.1/",
            "http://169.254.169.254/latest/meta-data",
        ] {
            assert!(matches!(admitted(&web, url).await, Err(WebError::Private { .. })), "{url}");
        }
    }

    // Behind a proxy names are the proxy's to resolve; addresses that are written out are judged all the same.
    #[tokio::test]
    async fn a_proxy_is_no_way_to_what_is_written_out_as_private() {
        let mut web = web(&[("files.intranet", &["10.0.0.1"])], &["http://files.intranet"]);
        web.proxy = Some(HttpProxy::parse("http://me:hush@10.9.9.9:3128").unwrap());
        for public in ["http://unknown.example/", "https://1.1.1.1/", "https://[2606:4700::1111]/x"] {
            assert_eq!(admitted(&web, public).await.unwrap(), ["http://10.9.9.9:3128"], "{public}");
        }
        for private in [
            "http://127.0.0.1/",
            "http://2130706433/",
            "http://[::ffff:10.0.0.1]/",
            "http://localhost/",
            "http://a.LOCALHOST./",
            "http://10.9.9.9:3128/",
        ] {
            assert!(matches!(admitted(&web, private).await, Err(WebError::Private { .. })), "{private}");
        }
        assert_eq!(admitted(&web, "http://files.intranet/x").await.unwrap(), ["10.0.0.1:80"]);
        assert!(matches!(admitted(&web, "http://me:x@a.example/").await, Err(WebError::Address { .. })));
    }

    #[tokio::test]
    async fn an_origin_is_allowed_by_scheme_host_and_port() {
        let web = web(&[("files.intranet", &["10.0.0.1"])], &["http://127.0.0.1:8080", "https://files.intranet"]);
        assert_eq!(admitted(&web, "http://127.0.0.1:8080/x?y").await.unwrap(), ["127.0.0.1:8080"]);
        assert_eq!(admitted(&web, "https://files.intranet/a").await.unwrap(), ["10.0.0.1:443"]);
        for other in
            ["http://127.0.0.1:8081/", "https://127.0.0.1:8080/", "http://files.intranet/", "http://127.0.0.2:8080/"]
        {
            assert!(matches!(admitted(&web, other).await, Err(WebError::Private { .. })), "{other}");
        }
        for wrong in ["http://a/b", "127.0.0.1:80", "http://u@a", "http://a?b", "ws://a"] {
            assert!(Origin::parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(Origin::parse("HTTPS://A.example./").unwrap().to_string(), "https://a.example:443");
    }
}
