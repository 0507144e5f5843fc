//! The text that is printed at startup.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tollgate::{RateLimitLayer, Store};

use crate::args::{self, Args, KeyBy};
use crate::limits;

/// Shows the addresses, the limits and commands to try.
pub(crate) struct Banner<'a, St> {
    args: &'a Args,
    address: SocketAddr,
    admin: Option<SocketAddr>,
    layer: &'a RateLimitLayer<St>,
}

impl<'a, St: Store> Banner<'a, St> {
    pub(crate) fn new(
        args: &'a Args,
        address: SocketAddr,
        admin: Option<SocketAddr>,
        layer: &'a RateLimitLayer<St>,
    ) -> Self {
        Self { args, address, admin, layer }
    }
}

impl<St: Store> fmt::Display for Banner<'_, St> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { args, address, admin, layer } = self;
        let store = match &args.store {
            args::Store::Memory => "memory, in this process only".to_owned(),
            args::Store::Redis(redis) => format!("{}, shared with other replicas", redis.address()),
        };
        writeln!(f, "Tollgate demo, server {}", args.server_id)?;
        if let Some(admin) = admin {
            writeln!(f, "  admin      http://{admin}")?;
        }
        writeln!(f, "  listening  http://{address}")?;
        writeln!(f, "  store      {store}")?;
        for limit in layer.limits() {
            writeln!(f, "  policy     {}", limit.policy())?;
        }
        writeln!(f, "  key        {}", key(args))?;
        writeln!(f, "  costs      {}", limits::costs(args.costs))?;
        writeln!(f, "  exempt     {}, CORS preflights", limits::EXEMPT.join(", "))?;
        if limits::queues(args.algorithm) {
            writeln!(f, "  note       requests wait in a queue and are sent at an even rate")?;
        }
        if accepts_any_api_key(args) {
            writeln!(
                f,
                "  WARNING    any X-API-Key is accepted, so each new key gets its own quota; \
                 list the valid keys in --api-keys"
            )?;
        }
        let url = format!("http://{}", reachable(*address));
        let who = credentials(args.key);
        writeln!(f, "\nTry:")?;
        writeln!(f, "  curl -i{who} {url}/items")?;
        writeln!(
            f,
            "  curl -i{who} {url}/items -H 'Content-Type: application/json' -d '{{\"name\":\"tea\"}}'"
        )?;
        writeln!(f, "  curl -i{who} -X SEARCH '{url}/items?q=tea'")
    }
}

fn key(args: &Args) -> String {
    let ip = if args.trusted_proxies.is_some() {
        "the address that trusted proxies report"
    } else {
        "the address of the peer"
    };
    match args.key {
        KeyBy::Global => "global: all clients share a quota".to_owned(),
        KeyBy::Ip => format!("ip: {ip}"),
        KeyBy::ApiKey => "api-key: X-API-Key; 403 without a key".to_owned(),
        KeyBy::User => "user: the subject of an HS256 token; 403 without a token".to_owned(),
        KeyBy::Chain if args.jwt_secret.is_some() => {
            format!("chain: the subject of an HS256 token, else X-API-Key, else {ip}")
        }
        KeyBy::Chain => format!("chain: X-API-Key, else {ip} (no users without --jwt-secret)"),
    }
}

fn accepts_any_api_key(args: &Args) -> bool {
    matches!(args.key, KeyBy::ApiKey | KeyBy::Chain) && args.api_keys.is_none()
}

fn credentials(key: KeyBy) -> &'static str {
    match key {
        KeyBy::ApiKey => " -H \"X-API-Key: ${KEY:-k-1}\"",
        KeyBy::User => " -H \"Authorization: Bearer $TOKEN\"",
        KeyBy::Global | KeyBy::Ip | KeyBy::Chain => "",
    }
}

/// Replaces an unspecified address with loopback because a client on this machine can use that.
pub(crate) fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}
