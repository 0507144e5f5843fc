use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net};

use super::ClientIpError;

/// The networks of the proxies that are trusted to write the forwarding header.
///
/// By default no network is trusted, not even loopback and private networks: a client with a
/// trusted address can claim any other address.
#[derive(Clone, Debug)]
pub struct TrustedProxies(Arc<[IpNet]>);

impl TrustedProxies {
    /// Trusts no proxy: the connection's peer is the client.
    pub fn none() -> Self {
        Self(Arc::default())
    }

    /// Parses networks (`10.0.0.0/8`, `2001:db8::/32`), addresses (`192.0.2.7`), `loopback`
    /// (127.0.0.0/8, ::1) and `private` (10/8, 172.16/12, 192.168/16, fc00::/7).
    ///
    /// # Errors
    /// An entry is not valid, has bits beyond its prefix, or includes all addresses. The message
    /// contains the entry and how to fix it.
    pub fn parse<E: AsRef<str>>(
        entries: impl IntoIterator<Item = E>,
    ) -> Result<Self, ClientIpError> {
        let mut networks = Vec::new();
        for entry in entries {
            let entry = entry.as_ref();
            match entry {
                "loopback" => networks.extend(parse_all(LOOPBACK)?),
                "private" => networks.extend(parse_all(PRIVATE)?),
                _ => networks.push(parse(entry)?),
            }
        }
        Ok(Self(networks.into()))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether this address belongs to a trusted proxy. IPv4-mapped addresses count as
    /// IPv4.
    pub fn contains(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.0.iter().any(|network| network.contains(&ip))
    }
}

const LOOPBACK: &[&str] = &["127.0.0.0/8", "::1"];
const PRIVATE: &[&str] = &["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"];

fn parse_all(entries: &[&str]) -> Result<Vec<IpNet>, ClientIpError> {
    entries.iter().map(|entry| parse(entry)).collect()
}

fn parse(entry: &str) -> Result<IpNet, ClientIpError> {
    let parsed = network(
        entry,
        "expected a network such as 10.0.0.0/8 or 2001:db8::/32, an address, `loopback` or `private`",
        "it trusts every client, so any client could claim any address; list the networks of \
         your proxies",
    );
    parsed.map_err(|cure| ClientIpError::Proxy { entry: entry.to_owned(), cure })
}

/// Parses a network or an address.
///
/// # Errors
/// The message: `expected` for other texts, `all` for a network with all addresses.
pub(crate) fn network(entry: &str, expected: &str, all: &str) -> Result<IpNet, String> {
    let network = match entry.parse::<IpAddr>() {
        Ok(ip) => IpNet::from(ip),
        Err(_) => entry.parse::<IpNet>().map_err(|_| expected.to_owned())?,
    };
    if network.addr() != network.network() {
        let (whole, single) = (network.trunc(), network.addr());
        return Err(format!(
            "it has bits beyond its prefix; write {whole} for the network or {single} for the \
             one address"
        ));
    }
    if network.prefix_len() == 0 {
        return Err(all.to_owned());
    }
    as_v4(network).ok_or_else(|| {
        "it holds IPv4-mapped and other addresses; write the IPv4 network".to_owned()
    })
}

/// Converts a mapped network to IPv4, because addresses are compared in canonical form. Returns
/// `None` if a network contains mapped and other addresses.
fn as_v4(network: IpNet) -> Option<IpNet> {
    let IpNet::V6(v6) = network else {
        return Some(network);
    };
    match (v6.addr().to_ipv4_mapped(), v6.prefix_len().checked_sub(96)) {
        (Some(v4), Some(bits)) => Ipv4Net::new(v4, bits).ok().map(IpNet::V4),
        _ if v6.contains(&MAPPED) => None,
        _ => Some(network),
    }
}

const MAPPED: Ipv6Addr = Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0);
