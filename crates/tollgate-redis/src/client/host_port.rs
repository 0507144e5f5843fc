//! A node's address.

use std::fmt;

/// A host (name or address) and a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct HostPort {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl HostPort {
    /// An IPv6 address may be in the brackets of a URL.
    pub(crate) fn new(host: &str, port: u16) -> Self {
        Self { host: host.trim_start_matches('[').trim_end_matches(']').to_owned(), port }
    }

    /// Parses `host:port`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        Some(Self::new(host, port.parse().ok()?))
    }

    /// Creates an address from a node's announcement. The host is empty if it equals the host at which
    /// the announcing node was reached, and a question mark if the name is unknown.
    pub(crate) fn announced(host: &str, port: u16, asked: &str) -> Self {
        Self::new(if matches!(host, "" | "?") { asked } else { host }, port)
    }

    /// Parses a redirection's target.
    pub(crate) fn of_redirection(to: &str, asked: &str) -> Option<Self> {
        Self::parse(to).map(|to| Self::announced(&to.host, to.port, asked))
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirections_may_omit_the_host() {
        let cases = [
            ("127.0.0.1:6381", Some(("127.0.0.1", 6381))),
            ("redis-1.example:6379", Some(("redis-1.example", 6379))),
            ("::1:6379", Some(("::1", 6379))),
            ("[::1]:6379", Some(("::1", 6379))),
            (":6379", Some(("asked", 6379))),
            ("?:6379", Some(("asked", 6379))),
            ("nowhere", None),
            ("host:port", None),
        ];
        for (to, expected) in cases {
            let expected = expected.map(|(host, port)| HostPort { host: host.to_owned(), port });
            assert_eq!(HostPort::of_redirection(to, "asked"), expected, "{to}");
        }
    }
}
