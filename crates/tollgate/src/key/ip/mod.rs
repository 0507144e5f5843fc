//! The client's address.

mod address;
mod forwarding;
mod peer;
mod proxies;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::{HeaderName, header::FORWARDED};
use tollgate_core::Key;

use super::encode::{Tag, plain};
use super::format::text;
use super::{KeyError, KeySource, Subject, SubjectKind, SubjectName};
use crate::head::RequestHead;

use address::{Address, Masks};
use forwarding::Forwarding;
use peer::Peer;

pub use address::ClientIpError;
pub use peer::UnixPeer;
pub use proxies::TrustedProxies;
pub(crate) use proxies::network;

/// Key source: the client's address, as reported by trusted proxies.
///
/// # Which address
/// The connection's peer, unless it is a trusted proxy. For a trusted proxy, the header is read
/// from its right end, where each proxy appends its peer's address. The first address that is not a
/// trusted proxy is the client. The client itself may have written the addresses further left, so
/// they have no effect and a client cannot choose its key.
///
/// If the header is absent, malformed, obfuscated (`unknown`, `_hidden`) or longer than 32 hops or
/// 4 KiB, the last certain address counts: the trusted proxy nearest to the client. Its clients
/// then share one quota, which is strict but safe.
///
/// # Which key
/// - `::ffff:192.0.2.1` is 192.0.2.1: mapped addresses become IPv4 first.
/// - IPv6 counts by /64, because a customer gets at least a /64 and would otherwise have 2^64
///   quotas. Many get a /56 or /48: use [`v6_prefix`](Self::v6_prefix), or a second limit with
///   [`only_v6`](Self::only_v6).
/// - `64:ff9b::192.0.2.1` counts as 192.0.2.1, because a NAT64 translator wrote it and all the
///   translator's clients would share one /64. [`nat64(false)`](Self::nat64) disables that. It
///   never makes an address a trusted proxy.
///
/// # How the peer is found
/// The request extensions contain it: axum's `ConnectInfo<SocketAddr>` (feature `axum`), tonic's
/// `TcpConnectInfo` (feature `tonic`), or a plain `SocketAddr`. In router tests, axum's
/// `MockConnectInfo<SocketAddr>` works, too, as an outer layer. Otherwise the server is
/// misconfigured: [`KeyError::NoPeerAddress`].
///
/// A Unix socket has no address. tonic's `UdsConnectInfo` or a [`UnixPeer`] extension marks such a
/// peer, which is an error unless [`trust_unix_peer`](Self::trust_unix_peer) or
/// [`skip_unix_peer`](Self::skip_unix_peer) is set.
///
/// ```
/// use tollgate::key::ClientIp;
///
/// // nginx on the same host, and a load balancer in 10.0.0.0/8.
/// let by_client = ClientIp::behind(["loopback", "10.0.0.0/8"])?;
/// # Ok::<(), tollgate::key::ClientIpError>(())
/// ```
#[derive(Clone)]
#[must_use]
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
    /// Uses the connection's address and ignores headers. Behind a proxy, all clients would share
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
    /// List all your proxies on the request's path, and no other network: a client in a listed
    /// network can claim any address.
    ///
    /// # Errors
    /// An entry is not valid.
    pub fn behind<E: AsRef<str>>(
        proxies: impl IntoIterator<Item = E>,
    ) -> Result<Self, ClientIpError> {
        Ok(Self::peer().trusting(TrustedProxies::parse(proxies)?))
    }

    /// Gets the connection's address from a closure instead of the extensions. `None` means no
    /// address.
    pub fn from_fn(
        peer: impl Fn(&RequestHead<'_>) -> Option<IpAddr> + Send + Sync + 'static,
    ) -> Self {
        Self { peer: Some(Arc::new(peer)), ..Self::peer() }
    }

    /// Trusts these proxies' forwarding header, like [`behind`](Self::behind).
    pub fn trusting(self, proxies: TrustedProxies) -> Self {
        Self { proxies, ..self }
    }

    /// Reads `Forwarded` (RFC 7239, only `for=`) instead of `X-Forwarded-For`.
    ///
    /// It never reads both, because a proxy forwards the header that it does not write, and the
    /// client may have written that header. The proxy has to quote and escape text from the client
    /// (`host=`): a raw comma or quote lets the client write its own elements.
    pub fn in_forwarded(self) -> Self {
        Self { forwarding: Forwarding::Forwarded(FORWARDED), ..self }
    }

    /// Reads a single address from a header that the proxy overwrites, such as `X-Real-IP`,
    /// `CF-Connecting-IP` or `True-Client-IP`. Two values or a list are not valid, because they
    /// mean that some proxy appends instead.
    pub fn in_single_header(self, name: HeaderName) -> Self {
        Self { forwarding: Forwarding::Single(name), ..self }
    }

    /// Trusts the forwarding header if the peer is a Unix socket. Only the proxy may have access to
    /// the socket. Such a request has no address if the header is absent.
    pub fn trust_unix_peer(self) -> Self {
        Self { unix: Unix::Trust, ..self }
    }

    /// Finds no address if the peer is a Unix socket, so the next source in a chain applies.
    pub fn skip_unix_peer(self) -> Self {
        Self { unix: Unix::Skip, ..self }
    }

    /// Sets how many bits of an IPv6 address count: 1 to 128, 64 by default.
    ///
    /// # Errors
    /// The number is out of range.
    pub fn v6_prefix(mut self, bits: u8) -> Result<Self, ClientIpError> {
        self.masks.set_v6(bits)?;
        Ok(self)
    }

    /// Finds a key only for IPv6 clients, for a second limit on a wider network. Many customers
    /// have a /48, which contains 65 536 /64 networks with separate quotas.
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
    ///     // IPv4 clients pass this limit, because their full address already counts.
    ///     .limit(Limit::new(network, by_network).on_missing_key(OnMissingKey::Pass))
    ///     .build()?;
    /// # let _ = layer;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn only_v6(self) -> Self {
        Self { only_v6: true, ..self }
    }

    /// Sets how many bits of an IPv4 address count: 1 to 32, 32 by default.
    ///
    /// # Errors
    /// The number is out of range.
    pub fn v4_prefix(mut self, bits: u8) -> Result<Self, ClientIpError> {
        self.masks.set_v4(bits)?;
        Ok(self)
    }

    /// Sets whether an address in 64:ff9b::/96 counts as its embedded IPv4 address, which is the
    /// default.
    ///
    /// Only your own network's translators write this prefix. Disable this if hosts there can
    /// choose such addresses.
    pub fn nat64(mut self, embedded: bool) -> Self {
        self.masks.nat64 = embedded;
        self
    }

    /// Returns the client's full address, with mapped addresses as IPv4, for example for logs.
    ///
    /// # Errors
    /// The same as for [`KeySource::subject`].
    pub fn address(&self, head: &RequestHead<'_>) -> Result<Option<IpAddr>, KeyError> {
        Ok(self.find(head)?.map(Address::ip))
    }

    /// Returns the addresses to look up in lists of networks: the full address, and the address
    /// that keys are made from.
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

    fn subject_at(&self, address: Address) -> Option<Subject> {
        // Mapped addresses are already IPv4 here, so an IPv6 network contains none.
        let network = self.masks.apply(address);
        if let Some(v4) = network.v4() {
            return (!self.only_v6).then(|| in_v4(v4));
        }
        let bytes = usize::from(self.masks.v6().div_ceil(8));
        let key = plain(Tag::Ipv6, &network.octets()[..bytes]);
        Some(Subject { kind: SubjectKind::Ip, key })
    }
}

#[inline(always)]
fn in_v4(network: u32) -> Subject {
    // The length is constant, so the key is built in registers.
    let [a, b, c, d] = network.to_be_bytes();
    Subject { kind: SubjectKind::Ip, key: Key::new([Tag::Ipv4 as u8, a, b, c, d]) }
}

impl KeySource for ClientIp {
    fn subject(&self, head: &RequestHead<'_>) -> Result<Option<Subject>, KeyError> {
        // Most requests come directly from an IPv4 address.
        let counts_peers = self.peer.is_none() && self.proxies.is_empty() && !self.only_v6;
        if counts_peers && let Some(SocketAddr::V4(peer)) = peer::socket_address(head.extensions) {
            return Ok(Some(in_v4(self.masks.apply_v4(peer.ip().to_bits()))));
        }
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

    fn name(&self, head: &RequestHead<'_>) -> Option<String> {
        let Subject { kind, key } = self.subject(head).ok()??;
        text(&key.as_bytes(), kind, false).strip_prefix("ip:").map(str::to_owned)
    }
}

/// Whether the key is a peer's own address, but the peer is likely a proxy that is not trusted: it
/// has an address that is not public, and sent `X-Forwarded-For`.
pub(crate) fn is_untrusted_proxy(head: &RequestHead<'_>, key: &Key) -> bool {
    let is_inner = |ip: IpAddr| match ip.to_canonical() {
        IpAddr::V4(v4) => v4.is_private() || v4.is_loopback() || v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unique_local() || v6.is_unicast_link_local(),
    };
    let peer = ClientIp::peer();
    head.headers.contains_key("x-forwarded-for")
        && peer.address(head).is_ok_and(|address| address.is_some_and(is_inner))
        && peer.subject(head).is_ok_and(|peer| peer.is_some_and(|peer| peer.key == *key))
}

debug_fields!(ClientIp, proxies, forwarding, unix, masks, only_v6);

#[cfg(test)]
mod tests;
