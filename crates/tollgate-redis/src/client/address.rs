//! The address of Redis, parsed from a URL.

use std::fmt;
use std::path::PathBuf;

use fred::types::RespVersion;
use fred::types::config::{Config, Server, ServerConfig, TlsConfig};
use percent_encoding::percent_decode_str;
use url::Url;

use crate::client::host_port::HostPort;

/// The error for an invalid Redis URL.
///
/// It never contains the URL, which may contain a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[doc(alias = "TG0302")]
#[error("the Redis URL {what}; {cure} [TG0302]")]
pub struct UrlError {
    what: String,
    cure: &'static str,
}

/// The address of one or more Redis servers.
///
/// `Debug` and `Display` omit credentials.
#[derive(Clone)]
pub(crate) struct Address {
    pub(crate) servers: Servers,
    pub(crate) uses_tls: bool,
    username: Option<String>,
    password: Option<String>,
    database: Option<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Servers {
    One(HostPort),
    Unix(PathBuf),
    Sentinels {
        nodes: Vec<HostPort>,
        service: String,
        login: Login,
    },
    /// At least one node.
    Cluster(Vec<HostPort>),
}

/// The credentials for the Sentinels.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Login {
    username: Option<String>,
    password: Option<String>,
}

const FORMS: &str = "use redis://[user:password@]host[:6379][/database], rediss:// for TLS, \
     redis+unix://[user:password@localhost]/path/to/socket[?db=0], redis-sentinel://host:26379?service=name or \
     redis-cluster://host:6379[?node=host:6380]";

impl Address {
    /// Parses a URL in one of these forms:
    /// `redis[s]://[user:password@]host[:port][/database]`,
    /// `redis+unix://[user:password@localhost]/path[?db=n]`,
    /// `redis[s]-sentinel://…host[:port]?service=name[&node=host:port…]` and
    /// `redis[s]-cluster://…host[:port][?node=host:port…]`; `valkey` for `redis` is the same.
    pub(crate) fn parse(url: &str) -> Result<Self, UrlError> {
        let url = Url::parse(url.trim())
            .map_err(|error| wrong(format!("is not valid: {error}"), FORMS))?;
        if url.fragment().is_some() {
            let cure = "write %23 for a # in a password";
            return Err(wrong("has a fragment, which has no meaning here".into(), cure));
        }
        let scheme = url.scheme().replacen("valkey", "redis", 1);
        let (scheme, uses_tls) = match scheme.strip_prefix("rediss") {
            Some(rest) => (format!("redis{rest}"), true),
            None => (scheme, false),
        };
        let mut query = Query::read(&url)?;
        let password = url.password().map(decode).transpose()?.filter(|it| !it.is_empty());
        let username = Some(decode(url.username())?).filter(|it| !it.is_empty());
        let mut database = query.take("db");
        let servers = match &*scheme {
            "redis" => {
                if database.is_none() {
                    database = path_of(&url);
                } else if path_of(&url).is_some() {
                    return Err(wrong("names two databases".into(), "keep the one in the path"));
                }
                Servers::One(host(&url, 6379)?)
            }
            "redis+unix" if !uses_tls => {
                let path = decode(url.path())?;
                if path.len() < 2 {
                    return Err(wrong("has no path".into(), "write redis+unix:///path/to/socket"));
                }
                Servers::Unix(path.into())
            }
            "redis-sentinel" => {
                if database.is_none() {
                    database = path_of(&url);
                }
                let cure = "add ?service= and the master's name in the Sentinels";
                let service = query.take("service").or_else(|| query.take("sentinelServiceName"));
                let service = service.ok_or_else(|| wrong("names no service".into(), cure))?;
                let login = Login {
                    username: query.take("sentinelUsername"),
                    password: query.take("sentinelPassword"),
                };
                Servers::Sentinels { nodes: query.nodes(host(&url, 26379)?), service, login }
            }
            "redis-cluster" => {
                if database.take().or_else(|| path_of(&url)).is_some_and(|name| name != "0") {
                    return Err(wrong(
                        "names a database, but a Cluster has only one".into(),
                        "leave it out",
                    ));
                }
                Servers::Cluster(query.nodes(host(&url, 6379)?))
            }
            _ => return Err(wrong(format!("has the scheme {:?}", url.scheme()), FORMS)),
        };
        query.is_used_up()?;
        let database = database.map(|name| {
            let cure = "a database is a number from 0 to 255, for example redis://host/1";
            name.parse().map_err(|_| wrong(format!("names the database {}", shown(&name)), cure))
        });
        Ok(Self { servers, uses_tls, username, password, database: database.transpose()? })
    }

    /// Returns fred's configuration for a Cluster node, or else for this address. For a Cluster,
    /// that is its first node.
    pub(crate) fn config(&self, node: Option<&HostPort>, tls: Option<TlsConfig>) -> Config {
        let single = |node: &HostPort| ServerConfig::new_centralized(&node.host, node.port);
        let server = match (node, &self.servers) {
            (Some(node), _) | (None, Servers::One(node)) => single(node),
            (None, Servers::Cluster(nodes)) => single(&nodes[0]),
            (None, Servers::Unix(path)) => ServerConfig::Unix { path: path.clone() },
            (None, Servers::Sentinels { nodes, service, login }) => ServerConfig::Sentinel {
                hosts: nodes.iter().map(|node| Server::new(&node.host, node.port)).collect(),
                service_name: service.clone(),
                username: login.username.clone(),
                password: login.password.clone(),
            },
        };
        Config {
            // Start even if Redis is down, and connect when it is up.
            fail_fast: false,
            username: self.username.clone(),
            password: self.password.clone(),
            server,
            version: RespVersion::RESP2,
            database: self.database,
            tls,
            ..Config::default()
        }
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Login(..)")
    }
}

tollgate_core::debug_as_display!(Address);

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = if self.uses_tls { "s" } else { "" };
        let list = |nodes: &[HostPort]| {
            nodes.iter().map(HostPort::to_string).collect::<Vec<_>>().join(",")
        };
        match &self.servers {
            Servers::One(server) => write!(f, "redis{s}://{server}")?,
            Servers::Unix(path) => write!(f, "redis+unix://{}", path.display())?,
            Servers::Sentinels { nodes, service, .. } => {
                write!(f, "redis{s}-sentinel://{} ({service})", list(nodes))?;
            }
            Servers::Cluster(nodes) => write!(f, "redis{s}-cluster://{}", list(nodes))?,
        }
        match self.database {
            Some(database) => write!(f, " database {database}"),
            None => Ok(()),
        }
    }
}

fn wrong(what: String, cure: &'static str) -> UrlError {
    UrlError { what, cure }
}

/// Quotes part of a URL for an error message. Text before an `@` may be a password, or the end of a
/// password that should have been percent-encoded.
fn shown(part: &str) -> String {
    if part.contains('@') { "with an @ in it".to_owned() } else { format!("{part:?}") }
}

fn decode(text: &str) -> Result<String, UrlError> {
    let text = percent_decode_str(text).decode_utf8().map(String::from);
    text.map_err(|_| wrong("is not UTF-8 after decoding".into(), "percent-encode it as UTF-8"))
}

fn path_of(url: &Url) -> Option<String> {
    Some(url.path().trim_matches('/').to_owned()).filter(|path| !path.is_empty())
}

fn host(url: &Url, port: u16) -> Result<HostPort, UrlError> {
    let host = url.host_str().filter(|host| !host.is_empty());
    let host = host.ok_or_else(|| wrong("names no host".into(), FORMS))?;
    Ok(HostPort::new(host, url.port().unwrap_or(port)))
}

/// The query parameters.
struct Query {
    nodes: Vec<HostPort>,
    rest: Vec<(String, String)>,
}

impl Query {
    fn read(url: &Url) -> Result<Self, UrlError> {
        let mut query = Self { nodes: Vec::new(), rest: Vec::new() };
        for (name, value) in url.query_pairs() {
            if name == "node" {
                let node = HostPort::parse(&value).filter(|_| !value.contains('@'));
                let cure = "write node=host:port; all nodes use the login at the start";
                let what = || wrong(format!("has a node {}", shown(&value)), cure);
                query.nodes.push(node.ok_or_else(what)?);
            } else {
                query.rest.push((name.into_owned(), value.into_owned()));
            }
        }
        Ok(query)
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let index = self.rest.iter().position(|(other, _)| other == name)?;
        Some(self.rest.swap_remove(index).1)
    }

    fn nodes(&mut self, first: HostPort) -> Vec<HostPort> {
        std::iter::once(first).chain(self.nodes.drain(..)).collect()
    }

    fn is_used_up(&self) -> Result<(), UrlError> {
        if !self.nodes.is_empty() {
            let cure = "for a Cluster write redis-cluster://";
            return Err(wrong("names more than one node".into(), cure));
        }
        match self.rest.first() {
            Some((name, _)) => {
                Err(wrong(format!("has the unknown parameter {}", shown(name)), FORMS))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> String {
        Address::parse(url).map_or_else(|error| error.to_string(), |address| address.to_string())
    }

    #[test]
    fn urls_display_without_credentials() {
        let cases = [
            ("redis://localhost", "redis://localhost:6379"),
            (" redis://user:s%65cret@h:1/2 ", "redis://h:1 database 2"),
            ("valkeys://:secret@h", "rediss://h:6379"),
            ("redis://[::1]:7", "redis://::1:7"),
            ("redis+unix:///tmp/r.sock?db=3", "redis+unix:///tmp/r.sock database 3"),
            ("redis+unix://:secret@localhost/tmp/r.sock", "redis+unix:///tmp/r.sock"),
            (
                "redis-sentinel://a?node=b:1&service=main&sentinelPassword=secret",
                "redis-sentinel://a:26379,b:1 (main)",
            ),
            ("rediss-cluster://a:1?node=b:2&node=c:3", "rediss-cluster://a:1,b:2,c:3"),
        ];
        for (url, expected) in cases {
            assert_eq!(read(url), expected, "{url}");
            let address = Address::parse(url).unwrap();
            assert!(!format!("{address:?}").contains("secret"));
        }
    }

    #[test]
    fn credentials_are_decoded() {
        let config = Address::parse("redis://a%40b:p%3Aw%2F@h").unwrap().config(None, None);
        assert_eq!(config.username.as_deref(), Some("a@b"));
        assert_eq!(config.password.as_deref(), Some("p:w/"));
    }

    #[test]
    fn url_errors_omit_passwords() {
        let cases = [
            ("localhost:6379", "has the scheme"),
            ("http://h", r#"has the scheme "http""#),
            ("redis://", "names no host"),
            ("redis://h/x", r#"names the database "x""#),
            ("redis://h/1?db=2", "two databases"),
            ("redis://h?timeout=5", r#"unknown parameter "timeout""#),
            ("redis://h?node=b:1", "more than one node"),
            ("redis-sentinel://h", "names no service"),
            ("redis-cluster://h/3", "only one"),
            ("redis-cluster://h?node=b", r#"has a node "b""#),
            ("redis+unix://", "has no path"),
            ("redis://u:secret@h/%FF", "names the database"),
            ("redis://u:secret%FF@h", "not UTF-8"),
            ("redis://u:secret@h:99999", "is not valid: invalid port"),
            // Passwords that are cut off because they were not percent-encoded.
            ("redis://u:1#secret@h", "has a fragment"),
            ("redis://u:1?secret@h", "unknown parameter"),
            ("redis://u:1/secret@h", "names the database"),
            ("redis-cluster://h?node=u:secret@b", "has a node"),
            ("redis-cluster://h?node=u:secret@b:1", "has a node"),
        ];
        for (url, expected) in cases {
            let error = Address::parse(url).unwrap_err().to_string();
            assert!(error.contains(expected), "{url}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
