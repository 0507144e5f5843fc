use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use tollgate_core::Key;

/// A quota's owner in the form that operators write: `ip:203.0.113.7`, `user:alice`.
///
/// | name | source |
/// |---|---|
/// | `global` | [`Global`](super::Global) |
/// | `missing` | limits with [`OnMissingKey::Share`](crate::limit::OnMissingKey) |
/// | `ip:203.0.113.7`, `ip:2001:db8::/64` | [`ClientIp`](super::ClientIp) |
/// | `api-key:k-7f3a` | [`ApiKey`](super::ApiKey), if its verifier accepts the key |
/// | `user:alice`, `user:https://issuer.example alice` | `JwtUser`, with the issuer if the verifier has none; [`FromExtension`](super::FromExtension) |
/// | `header:acme` | [`Header`](super::Header) |
/// | `route:/users/{id}` | [`MatchedRoute`](super::MatchedRoute) |
/// | `other:acme` | [`from_fn`](super::from_fn) |
/// | `route:/users/{id},ip:203.0.113.7` | a tuple, its parts in order |
/// | `key:01cb007107` | any source: the bytes of the key in hex |
///
/// The limit's source finds the key: see [`KeySource::named`]. `Debug` shows only the kind, because
/// names contain addresses and secrets.
///
/// [`KeySource::named`]: super::KeySource::named
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SubjectName {
    /// All clients together.
    Global,
    /// All requests without a key.
    Missing,
    /// The client with this address.
    Ip(IpAddr),
    /// The client with this API key.
    ApiKey(String),
    /// A user.
    User {
        /// The issuer of the token.
        issuer: Option<String>,
        /// The name of the user.
        name: String,
    },
    /// Clients that send this value in the header.
    Header(String),
    /// The route with this pattern.
    Route(String),
    /// A closure's result.
    Other(String),
    /// The subject with this key.
    Key(Key),
    /// A tuple's parts.
    Several(Vec<Self>),
}

/// The error for text that is not a subject name. It does not repeat the text, which may contain a
/// secret.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[doc(alias = "TG0215")]
#[error(
    "expected `global`, `missing`, `ip:ADDRESS`, `api-key:KEY`, `user:NAME`, `user:ISSUER NAME`, \
     `header:VALUE`, `route:PATTERN`, `other:TEXT`, `key:HEX`, or several of them with commas \
     between [TG0215]"
)]
#[non_exhaustive]
pub struct SubjectNameError;

tollgate_core::debug_as_display!(SubjectNameError);

impl FromStr for SubjectName {
    type Err = SubjectNameError;

    fn from_str(text: &str) -> Result<Self, SubjectNameError> {
        let parts = split(text);
        if let [part] = parts[..] {
            return parse_name(part).ok_or(SubjectNameError);
        }
        let parts: Option<Vec<_>> = parts.into_iter().map(parse_name).collect();
        parts.map(Self::Several).ok_or(SubjectNameError)
    }
}

/// Splits only at commas that precede a name, because values may contain commas, too.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut start) = (Vec::new(), 0);
    for (comma, _) in text.match_indices(',') {
        if starts_with_name(&text[comma + 1..]) {
            parts.push(&text[start..comma]);
            start = comma + 1;
        }
    }
    parts.push(&text[start..]);
    parts
}

fn starts_with_name(text: &str) -> bool {
    let word = text.split(',').next().unwrap_or_default();
    BARE.contains(&word) || KINDS.iter().any(|kind| text.starts_with(kind))
}

const BARE: [&str; 2] = ["global", "missing"];
const KINDS: [&str; 7] = ["ip:", "api-key:", "user:", "header:", "route:", "other:", "key:"];

fn parse_name(text: &str) -> Option<SubjectName> {
    match text {
        "global" => return Some(SubjectName::Global),
        "missing" => return Some(SubjectName::Missing),
        _ => {}
    }
    let (kind, value) = text.split_once(':')?;
    if value.is_empty() {
        return None;
    }
    let text = value.to_owned();
    Some(match kind {
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

impl SubjectName {
    /// Returns the user's full text, for sources without issuers, whose names may contain spaces.
    pub(super) fn user(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::User { issuer: None, name } => Some(name.into()),
            Self::User { issuer: Some(issuer), name } => Some(format!("{issuer} {name}").into()),
            _ => None,
        }
    }
}

/// Parses an address or a network. The source determines how many bits count.
fn address(value: &str) -> Option<IpAddr> {
    let (address, bits) = value.split_once('/').map_or((value, None), |(a, b)| (a, Some(b)));
    let address: IpAddr = address.parse().ok()?;
    let max_bits = if address.is_ipv4() { 32 } else { 128 };
    let is_valid = bits.is_none_or(|bits| bits.parse::<u8>().is_ok_and(|bits| bits <= max_bits));
    is_valid.then(|| address.to_canonical())
}

pub(super) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if digits.len() % 2 == 1 || digits.len() > 2 * MAX_KEY {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let byte = |pair: &[u8]| u8::try_from(digit(pair[0])? << 4 | digit(pair[1])?).ok();
    digits.chunks_exact(2).map(byte).collect()
}

/// More than any key of this crate needs.
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
mod tests;
