//! The address of the client.

mod address;
mod forwarding;
mod peer;
mod proxies;

use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderName, header::FORWARDED};
use tollgate_core::Key;

use super::encode::{Tag, plain};
use super::{KeyError, KeySource, Subject, SubjectKind, SubjectName};
use crate::head::RequestHead;

use address::{Address, Masks};
use forwarding::Forwarding;
use peer::Peer;

pub use address::ClientIpError;
pub use peer::UnixPeer;
pub use proxies::TrustedProxies;
pub(crate) use proxies::network;

/// Key source: the address of the client, as trusted proxies report it.
///
/// # Which address
/// The peer of the connection, unless it is a trusted proxy. Then the header is read from its right
/// end, where each proxy appends the address of its peer: the first address that is not a trusted
/// proxy is the client. Addresses further left come from the client and have no effect, so a client
/// cannot choose its key.
///
/// If the header is absent, malformed, obfuscated (`unknown`, `_hidden`) or longer than 32 hops or
/// 4 KiB, the last certain address counts: the trusted proxy nearest to the client. Its clients
/// then share one quota, which is strict but safe.
///
/// # Which key
/// - `::ffff:192.0.2.1` is 192.0.2.1: mapped addresses become IPv4 first.
/// - IPv6 counts by /64, because a customer gets at least a /64 and would have 2^64 quotas
///   otherwise. Many get a /56 or /48: [`v6_prefix`](Self::v6_prefix), or a second limit with
///   [`only_v6`](Self::only_v6).
/// - `64:ff9b::192.0.2.1` counts as 192.0.2.1, because a translator wrote it and all its clients
///   have one /64; [`nat64(false)`](Self::nat64) turns that off. It never makes an address a
///   trusted proxy.
///
/// # Where the peer comes from
/// From the extensions of the request: axum's `ConnectInfo<SocketAddr>` (feature `axum`), tonic's
/// `TcpConnectInfo` (feature `tonic`), or a plain `SocketAddr`; in tests of a router also axum's
/// `MockConnectInfo<SocketAddr>` as an outer layer. Otherwise the server is misconfigured:
/// [`KeyError::NoPeerAddress`].
///
/// A Unix socket has no address. tonic's `UdsConnectInfo` or a [`UnixPeer`] extension marks it. It
/// is an error without [`trust_unix_peer`](Self::trust_unix_peer) or
/// [`skip_unix_peer`](Self::skip_unix_peer).
///
/// ```
/// use tollgate::key::ClientIp;
///
/// // nginx on the same host, a balancer somewhere in 10.0.0.0/8, `X-Forwarded-For`.
/// let by_client = ClientIp::behind(["loopback", "10.0.0.0/8"])?;
/// # Ok::<(), tollgate::key::ClientIpError>(())
/// ```
#[derive(Clone)]
pub struct ClientIp {
    peer: Option<PeerFn>,
    proxies: TrustedProxies,
    forwarding: Forwarding,
    unix: Unix,
    masks: Masks,
    only_v6: bool,
}

type PeerFn = Arc<dyn Fn(&RequestHead<'_>) -> Option<IpAddr> + Send + Sync>;

#[derive(Clone, Copy, Debug)]
enum Unix {
    Refuse,
    Skip,
    Trust,
}

impl ClientIp {
    /// Uses the address of the connection, without headers. Behind a proxy, all clients would share
    /// one quota.
    pub fn peer() -> Self {
        Self {
            peer: None,
            proxies: TrustedProxies::none(),
            forwarding: Forwarding::list(),
            unix: Unix::Refuse,
            masks: Masks::default(),
            only_v6: false,
        }
    }

    /// Uses the client address that these proxies report in `X-Forwarded-For`. See
    /// [`TrustedProxies::parse`] for the entries.
    ///
    /// List all your proxies on the way of a request, and no other network: a client in a listed
    /// network can claim any address.
    ///
    /// # Errors
    /// An entry is not valid.
    pub fn behind<E: AsRef<str>>(
        proxies: impl IntoIterator<Item = E>,
    ) -> Result<Self, ClientIpError> {
        Ok(Self::peer().trusting(TrustedProxies::parse(proxies)?))
    }

    /// Takes the address of the connection from a closure instead of the extensions. `None` means
    /// no address.
    pub fn from_fn(
        peer: impl Fn(&RequestHead<'_>) -> Option<IpAddr> + Send + Sync + 'static,
    ) -> Self {
        Self { peer: Some(Arc::new(peer)), ..Self::peer() }
    }

    /// Trusts the forwarding header of these proxies, as [`behind`](Self::behind) does.
    #[must_use]
    pub fn trusting(self, proxies: TrustedProxies) -> Self {
        Self { proxies, ..self }
    }

    /// Reads `Forwarded` (RFC 7239, only `for=`) instead of `X-Forwarded-For`.
    ///
    /// It never reads both: a proxy forwards the header that it does not write, which the client
    /// has written. The proxy has to quote and escape texts of the client (`host=`): a raw comma or
    /// quote lets the client write elements of its own.
    #[must_use]
    pub fn in_forwarded(self) -> Self {
        Self { forwarding: Forwarding::Forwarded(FORWARDED), ..self }
    }

    /// Reads one address from a header that the proxy overwrites, such as `X-Real-IP`,
    /// `CF-Connecting-IP` or `True-Client-IP`. Two values, or a list, are not valid: then some
    /// proxy appends instead.
    #[must_use]
    pub fn in_single_header(self, name: HeaderName) -> Self {
        Self { forwarding: Forwarding::Single(name), ..self }
    }

    /// Trusts the forwarding header if the peer is a Unix socket. Only the proxy may have access to
    /// the socket. Without the header such a request has no address.
    #[must_use]
    pub fn trust_unix_peer(self) -> Self {
        Self { unix: Unix::Trust, ..self }
    }

    /// Finds no address if the peer is a Unix socket, so that a chain continues.
    #[must_use]
    pub fn skip_unix_peer(self) -> Self {
        Self { unix: Unix::Skip, ..self }
    }

    /// Sets the bits of an IPv6 address that count: 1 to 128, 64 by default.
    ///
    /// # Errors
    /// Another number.
    pub fn v6_prefix(mut self, bits: u8) -> Result<Self, ClientIpError> {
        self.masks.set_v6(bits)?;
        Ok(self)
    }

    /// Finds a key only for IPv6 clients, for a second limit on a wider network. Many customers have
    /// a /48, which contains 65 536 networks of /64, each with its own quota.
    ///
    /// ```
    /// use tollgate::key::ClientIp;
    /// use tollgate::limit::OnMissingKey;
    /// use tollgate::{Limit, MemoryStore, Policy, Quota, RateLimitLayer};
    ///
    /// let client = Policy::token_bucket("client", Quota::per_minute(60))?;
    /// let network = Policy::token_bucket("network", Quota::per_minute(600))?;
    /// let by_network = ClientIp::peer().only_v6().v6_prefix(48)?;
    /// let layer = RateLimitLayer::builder(MemoryStore::new())
    ///     .limit(Limit::per_ip(client))
    ///     // IPv4 clients pass this limit: their address already counts as a whole.
    ///     .limit(Limit::new(network, by_network).on_missing_key(OnMissingKey::Pass))
    ///     .build()?;
    /// # let _ = layer;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn only_v6(self) -> Self {
        Self { only_v6: true, ..self }
    }

    /// Sets the bits of an IPv4 address that count: 1 to 32, 32 by default.
    ///
    /// # Errors
    /// Another number.
    pub fn v4_prefix(mut self, bits: u8) -> Result<Self, ClientIpError> {
        self.masks.set_v4(bits)?;
        Ok(self)
    }

    /// Sets whether an address in 64:ff9b::/96 counts as the IPv4 address in it; the default is
    /// `true`.
    ///
    /// Only translators of your own network write this prefix. Turn it off if hosts there can
    /// choose such addresses.
    #[must_use]
    pub fn nat64(mut self, embedded: bool) -> Self {
        self.masks.nat64 = embedded;
        self
    }

    /// Returns the whole address of the client, mapped addresses as IPv4: for logs.
    ///
    /// # Errors
    /// As [`KeySource::subject`].
    pub fn address(&self, head: &RequestHead<'_>) -> Result<Option<IpAddr>, KeyError> {
        Ok(self.find(head)?.map(Address::ip))
    }

    /// The addresses under which lists of networks find the client: the whole address, and the
    /// address that keys are made of.
    pub(crate) fn listed_as(&self, address: IpAddr) -> [IpAddr; 2] {
        [address, self.masks.client(address.into()).ip()]
    }

    #[inline(always)]
    fn find(&self, head: &RequestHead<'_>) -> Result<Option<Address>, KeyError> {
        let peer = match &self.peer {
            Some(peer) => match peer(head) {
                Some(ip) => Peer::Address(ip.into()),
                None => return Ok(None),
            },
            None => Peer::of(head.extensions),
        };
        let peer = match (peer, self.unix) {
            (Peer::Address(address), _) => Some(address),
            (Peer::Unix, Unix::Trust) => None,
            (Peer::Unix, Unix::Skip) => return Ok(None),
            (Peer::Unix, Unix::Refuse) => return Err(KeyError::UnixPeer),
            (Peer::Unknown, _) => return Err(KeyError::NoPeerAddress),
        };
        match peer {
            Some(address) if self.proxies.is_empty() => Ok(Some(address)),
            peer => Ok(self.behind_proxies(head, peer)),
        }
    }

    /// The client behind the peer, if the peer is a proxy.
    fn behind_proxies(&self, head: &RequestHead<'_>, peer: Option<Address>) -> Option<Address> {
        let ip = peer.map(Address::ip);
        if ip.is_some_and(|ip| !self.proxies.contains(ip)) {
            return peer;
        }
        self.forwarding.client(head.headers, &self.proxies, ip).map(Address::from)
    }

    #[inline(always)]
    fn subject_at(&self, address: Address) -> Option<Subject> {
        let kind = SubjectKind::Ip;
        // Mapped addresses are IPv4 before, so a network of IPv6 has none of them.
        let network = self.masks.apply(address);
        // Of constant length, so that the key is made in registers.
        if let Some(v4) = network.v4() {
            let [a, b, c, d] = v4.to_be_bytes();
            let key = Key::new([Tag::Ipv4 as u8, a, b, c, d]);
            return (!self.only_v6).then_some(Subject { kind, key });
        }
        let bytes = usize::from(self.masks.v6().div_ceil(8));
        Some(Subject { kind, key: plain(Tag::Ipv6, &network.octets()[..bytes]) })
    }
}

impl KeySource for ClientIp {
    fn subject(&self, head: &RequestHead<'_>) -> Result<Option<Subject>, KeyError> {
        match self.find(head)? {
            Some(address) => Ok(self.subject_at(address)),
            None => Ok(None),
        }
    }

    fn can_be_missing(&self) -> bool {
        self.only_v6 || self.peer.is_some() || !matches!(self.unix, Unix::Refuse)
    }

    fn named(&self, name: &SubjectName) -> Option<Subject> {
        let &SubjectName::Ip(ip) = name else { return None };
        self.subject_at(ip.into())
    }
}

debug_fields!(ClientIp, proxies, forwarding, unix, masks, only_v6);

#[cfg(test)]
mod tests;
