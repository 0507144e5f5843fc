//! Subjects as an operator writes them.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use tollgate_core::Key;

/// A subject as an operator writes it: `ip:203.0.113.7`, `user:alice`.
///
/// | written | is found by |
/// |---|---|
/// | `global` | [`Global`](super::Global) |
/// | `missing` | limits that let requests without a key share one quota |
/// | `ip:203.0.113.7`, `ip:2001:db8::/64` | [`ClientIp`](super::ClientIp) |
/// | `api-key:k-7f3a` | [`ApiKey`](super::ApiKey), if its verifier accepts that |
/// | `user:alice`, `user:https://issuer.example alice` | `JwtUser`, with the issuer where the verifier does not fix it; [`Extension`](super::Extension) |
/// | `header:acme` | [`Header`](super::Header) |
/// | `route:/users/{id}` | [`MatchedRoute`](super::MatchedRoute) |
/// | `other:acme` | [`from_fn`](super::from_fn) |
/// | `route:/users/{id},ip:203.0.113.7` | a tuple, its parts in order |
/// | `key:01cb007107` | any source: the bytes of the key itself, in hex |
///
/// Which key that is depends on the source of a limit: see [`KeySource::named`].
///
/// `Debug` shows the sort alone: names hold addresses and secrets, and logs travel.
///
/// [`KeySource::named`]: super::KeySource::named
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SubjectName {
    /// Everybody together.
    Global,
    /// All who do not say who they are.
    Missing,
    /// The client of this address.
    Ip(IpAddr),
    /// Whoever has this API key.
    ApiKey(String),
    /// A user.
    User {
        /// Who says so, for tokens.
        issuer: Option<String>,
        /// What the user is called there.
        name: String,
    },
    /// Whoever sends this value in the header.
    Header(String),
    /// The route of this pattern.
    Route(String),
    /// What a closure answers.
    Other(String),
    /// Whoever has this key.
    Key(Key),
    /// The parts of a tuple.
    Several(Vec<Self>),
}

/// A text that names no subject. It is not repeated: it may hold a secret.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected `global`, `missing`, `ip:ADDRESS`, `api-key:KEY`, `user:NAME`, `user:ISSUER NAME`, \
     `header:VALUE`, `route:PATTERN`, `other:TEXT`, `key:HEX`, or several of them with commas \
     between"
)]
#[non_exhaustive]
pub struct SubjectNameError;

tollgate_core::debug_as_display!(SubjectNameError);

impl FromStr for SubjectName {
    type Err = SubjectNameError;

    fn from_str(text: &str) -> Result<Self, SubjectNameError> {
        let parts = split(text);
        if let [part] = parts[..] {
            return one(part).ok_or(SubjectNameError);
        }
        let parts: Option<Vec<_>> = parts.into_iter().map(one).collect();
        parts.map(Self::Several).ok_or(SubjectNameError)
    }
}

/// At each comma before the beginning of a name: a value may have commas of its own.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut start) = (Vec::new(), 0);
    for (comma, _) in text.match_indices(',') {
        if begins_a_name(&text[comma + 1..]) {
            parts.push(&text[start..comma]);
            start = comma + 1;
        }
    }
    parts.push(&text[start..]);
    parts
}

fn begins_a_name(text: &str) -> bool {
    let word = text.split(',').next().unwrap_or_default();
    BARE.contains(&word) || SORTS.iter().any(|sort| text.starts_with(sort))
}

const BARE: [&str; 2] = ["global", "missing"];
const SORTS: [&str; 7] = ["ip:", "api-key:", "user:", "header:", "route:", "other:", "key:"];

fn one(text: &str) -> Option<SubjectName> {
    match text {
        "global" => return Some(SubjectName::Global),
        "missing" => return Some(SubjectName::Missing),
        _ => {}
    }
    let (sort, value) = text.split_once(':')?;
    if value.is_empty() {
        return None;
    }
    let text = value.to_owned();
    Some(match sort {
        "ip" => SubjectName::Ip(address(value)?),
        "api-key" => SubjectName::ApiKey(text),
        "user" => match value.split_once(' ') {
            Some((issuer, name)) if !issuer.is_empty() && !name.is_empty() => {
                SubjectName::User { issuer: Some(issuer.to_owned()), name: name.to_owned() }
            }
            _ => SubjectName::User { issuer: None, name: text },
        },
        "header" => SubjectName::Header(text),
        "route" => SubjectName::Route(text),
        "other" => SubjectName::Other(text),
        "key" => SubjectName::Key(Key::new(unhex(value)?)),
        _ => return None,
    })
}

/// An address, or a network as it is shown: which of its bits count, the source knows.
fn address(value: &str) -> Option<IpAddr> {
    let (address, bits) = value.split_once('/').map_or((value, None), |(a, b)| (a, Some(b)));
    let address: IpAddr = address.parse().ok()?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let is_fine = bits.is_none_or(|bits| bits.parse::<u8>().is_ok_and(|bits| bits <= most));
    is_fine.then(|| address.to_canonical())
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if digits.len() % 2 == 1 || digits.len() > 2 * MAX_KEY {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let byte = |pair: &[u8]| u8::try_from(digit(pair[0])? << 4 | digit(pair[1])?).ok();
    digits.chunks_exact(2).map(byte).collect()
}

/// No source of this crate makes longer keys, and those of others are rarely so long.
const MAX_KEY: usize = 1024;

impl fmt::Debug for SubjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Global => "Global",
            Self::Missing => "Missing",
            Self::Ip(_) => "Ip",
            Self::ApiKey(_) => "ApiKey",
            Self::User { .. } => "User",
            Self::Header(_) => "Header",
            Self::Route(_) => "Route",
            Self::Other(_) => "Other",
            Self::Key(_) => "Key",
            Self::Several(_) => "Several",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Option<SubjectName> {
        text.parse().ok()
    }

    #[test]
    fn a_name_says_its_sort_and_its_value() {
        let ip = |text: &str| Some(SubjectName::Ip(text.parse().unwrap()));
        let user = |issuer: Option<&str>, name: &str| {
            Some(SubjectName::User { issuer: issuer.map(str::to_owned), name: name.to_owned() })
        };
        for (text, expected) in [
            ("global", Some(SubjectName::Global)),
            ("missing", Some(SubjectName::Missing)),
            ("ip:203.0.113.7", ip("203.0.113.7")),
            ("ip:::ffff:203.0.113.7", ip("203.0.113.7")),
            ("ip:2001:db8::/64", ip("2001:db8::")),
            ("ip:203.0.113.7/33", None),
            ("ip:here", None),
            ("user:alice", user(None, "alice")),
            ("user:auth0|7, eve", user(Some("auth0|7,"), "eve")),
            ("user:https://a.example alice", user(Some("https://a.example"), "alice")),
            ("api-key:a:b", Some(SubjectName::ApiKey("a:b".to_owned()))),
            ("route:/a/{b}", Some(SubjectName::Route("/a/{b}".to_owned()))),
            ("header:acme", Some(SubjectName::Header("acme".to_owned()))),
            ("other:", None),
            ("key:01cb007107", Some(SubjectName::Key(Key::new([1, 203, 0, 113, 7])))),
            ("key:01c", None),
            ("key:zz", None),
            ("cookie:7", None),
            ("", None),
        ] {
            assert_eq!(parsed(text), expected, "{text}");
        }
    }

    #[test]
    fn commas_part_names_and_stay_in_values() {
        let route = SubjectName::Route("/a".to_owned());
        let ip = SubjectName::Ip("192.0.2.1".parse().unwrap());
        let several = SubjectName::Several(vec![route, ip, SubjectName::Global]);
        assert_eq!(parsed("route:/a,ip:192.0.2.1,global"), Some(several));
        assert_eq!(parsed("other:a,b"), Some(SubjectName::Other("a,b".to_owned())));
        assert_eq!(parsed("ip:192.0.2.1,global,"), None);
    }

    #[test]
    fn debug_keeps_the_secret() {
        let name = parsed("api-key:sk_live_1").unwrap();
        assert_eq!(format!("{name:?}"), "ApiKey");
        let error = "sk_live_1".parse::<SubjectName>().unwrap_err();
        assert!(!error.to_string().contains("sk_live"));
    }
}
