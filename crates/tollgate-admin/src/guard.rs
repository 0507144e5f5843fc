//! Access control: hosts, sites and the token.

use std::fmt;
use std::net::Ipv6Addr;

use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::error::AdminError;
use super::files;
use super::peers::Peers;
use super::problem::Problem;

pub(super) struct Guard {
    pub(super) token: Token,
    pub(super) numbers_need_token: bool,
    pub(super) hosts: Hosts,
    /// Where operators allow a host.
    pub(super) hosts_setting: String,
    pub(super) peers: Peers,
}

impl Guard {
    /// Rejects requests that a website could make a browser send. Returns the origin if a peer's
    /// page sent the request.
    pub(super) fn check_site(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<Option<HeaderValue>, Problem> {
        let host = host(uri, headers).ok_or_else(|| {
            Problem::new(StatusCode::BAD_REQUEST, "The request needs exactly one valid Host.")
        })?;
        if !self.hosts.allow(host.host()) {
            let detail = format!(
                "The admin router does not allow this host: add it to {}, or use localhost. [TG0417]",
                self.hosts_setting
            );
            return Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, detail));
        }
        if let Some(peer) = self.peers.admit(method, uri.path(), headers) {
            return Ok(Some(peer));
        }
        let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
        let is_foreign = site.is_some_and(|site| site != b"same-origin" && site != b"none");
        let mut origins = headers.get_all(ORIGIN).iter();
        if is_foreign || !origins.all(|origin| is_origin_of(origin.as_bytes(), &host)) {
            let detail = "Requests that a browser sends for another site are rejected.";
            return Err(Problem::new(StatusCode::FORBIDDEN, detail));
        }
        Ok(None)
    }

    /// Rejects requests without the token if the numbers need it. The page's files contain no
    /// numbers, and browsers load files without a token.
    pub(super) fn check_reader(&self, path: &str, headers: &HeaderMap) -> Result<(), Problem> {
        if self.numbers_need_token && !files::has(path) {
            self.check_token(headers)
        } else {
            Ok(())
        }
    }

    pub(super) fn check_token(&self, headers: &HeaderMap) -> Result<(), Problem> {
        if self.token.is_in(headers) { Ok(()) } else { Err(Problem::unauthorized()) }
    }
}

/// A bearer token: its digest, because comparing digests does not reveal the token's length.
pub struct Token([u8; 32]);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

impl Token {
    /// Reads a token.
    ///
    /// # Errors
    /// [`AdminError::WeakToken`]: it has fewer than 16 characters, or spaces.
    pub fn new(token: &str) -> Result<Self, AdminError> {
        let is_sound =
            (16..=4096).contains(&token.len()) && token.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_sound {
            return Err(AdminError::WeakToken);
        }
        Ok(Self(Sha256::digest(token).into()))
    }

    /// Whether the only `Authorization` header contains this token.
    pub fn is_in(&self, headers: &HeaderMap) -> bool {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        match (values.next(), values.next()) {
            (Some(value), None) => {
                let value = value.as_bytes();
                let (scheme, token) = value.split_at_checked(7).unwrap_or_default();
                scheme.eq_ignore_ascii_case(b"bearer ") && self.is(token.trim_ascii())
            }
            _ => false,
        }
    }

    fn is(&self, token: &[u8]) -> bool {
        let given: [u8; 32] = Sha256::digest(token).into();
        given.ct_eq(&self.0).into()
    }
}

pub(super) struct Hosts(Vec<String>);

impl Hosts {
    pub(super) fn new(named: Vec<String>) -> Result<Self, AdminError> {
        let mut hosts: Vec<_> = ["localhost", "127.0.0.1", "[::1]"].map(str::to_owned).into();
        for host in named {
            // A URL has an IPv6 address in brackets.
            let is_v6 = host.parse::<Ipv6Addr>().is_ok();
            let host = if is_v6 { format!("[{host}]") } else { host };
            let parsed: Option<Authority> = host.parse().ok();
            if parsed.is_none_or(|parsed| parsed.host() != host) {
                return Err(AdminError::Host(host));
            }
            hosts.push(host);
        }
        Ok(Self(hosts))
    }

    fn allow(&self, host: &str) -> bool {
        let host = host.strip_suffix('.').unwrap_or(host);
        self.0.iter().any(|known| known.eq_ignore_ascii_case(host))
    }
}

/// The request's host: the target's authority in HTTP/2, otherwise the `Host` header.
fn host(uri: &Uri, headers: &HeaderMap) -> Option<Authority> {
    let mut values = headers.get_all(HOST).iter();
    let header = match (values.next(), values.next()) {
        (Some(value), None) => Some(value.to_str().ok()?.parse().ok()?),
        (None, _) => None,
        _ => return None,
    };
    match (uri.authority().cloned(), header) {
        (Some(target), Some(header)) if target != header => None,
        (target, header) => target.or(header).filter(|host| !host.as_str().contains('@')),
    }
}

fn is_origin_of(origin: &[u8], host: &Authority) -> bool {
    let origin = str::from_utf8(origin).unwrap_or_default();
    let rest = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    rest.is_some_and(|rest| rest.eq_ignore_ascii_case(host.as_str()))
}
