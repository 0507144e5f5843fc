use std::collections::hash_map::RandomState;
use std::fmt::Write as _;
use std::hash::BuildHasher;
use std::net::{Ipv4Addr, Ipv6Addr};

use tollgate_core::Key;

use super::SubjectKind;
use super::encode::{Decoded, decode};
use super::missing::OnMissingKey;

/// How much of a subject operators see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SubjectFormat {
    /// A hash that differs between processes. It suffices to compare two log lines.
    Hash,
    /// An address's network, or a text's first two characters. The default.
    #[default]
    Masked,
    /// The full subject. For secrets and long texts this is the hash in their key, which also names
    /// the subject.
    Clear,
}

/// Formats subjects according to a [`SubjectFormat`], under the names that
/// [`SubjectName`](super::SubjectName) parses if the format allows it.
#[derive(Debug)]
pub struct SubjectFormatter {
    format: SubjectFormat,
    /// Without this secret, hashing all addresses would reveal the hashed address.
    secret: RandomState,
}

impl SubjectFormatter {
    /// Creates a formatter with its own secret, so hashes from different formatters differ.
    pub fn new(format: SubjectFormat) -> Self {
        Self { format, secret: RandomState::new() }
    }

    /// Returns the text for the subject with this key.
    pub fn format(&self, key: &Key, kind: SubjectKind) -> String {
        if *key == OnMissingKey::shared_key() {
            return "missing".to_owned();
        }
        match self.format {
            SubjectFormat::Hash if *key != Key::GLOBAL => {
                let kind = kind_name(kind);
                format!("{kind}:#{:016x}", self.secret.hash_one(&*key.as_bytes()))
            }
            format => text(&key.as_bytes(), kind, format == SubjectFormat::Masked),
        }
    }
}

pub(super) fn text(key: &[u8], kind: SubjectKind, masked: bool) -> String {
    let named = |kind: &str, value: &[u8]| {
        let value = str::from_utf8(value).ok()?;
        let is_plain = !value.is_empty() && !value.contains(char::is_control);
        is_plain.then(|| format!("{kind}:{}", if masked { first(value, 2) } else { value.into() }))
    };
    let shown = match decode(key) {
        _ if key.is_empty() => Some("global".to_owned()),
        Some(Decoded::Ipv4([a, b, c, _])) if masked => Some(format!("ip:{a}.{b}.{c}.*")),
        Some(Decoded::Ipv4(octets)) => Some(format!("ip:{}", Ipv4Addr::from(octets))),
        Some(Decoded::Ipv6(mut octets, bits)) => {
            let bits = if masked {
                octets[6..].fill(0);
                bits.min(48)
            } else {
                bits
            };
            Some(format!("ip:{}/{bits}", Ipv6Addr::from(octets)))
        }
        Some(Decoded::Extension(value)) => named("user", value),
        Some(Decoded::Header(value)) => named("header", value),
        // A route pattern is not a secret.
        Some(Decoded::Route(value)) => {
            str::from_utf8(value).ok().map(|pattern| format!("route:{pattern}"))
        }
        Some(Decoded::Closure(value)) => named(kind_name(kind), value),
        Some(Decoded::Tuple(parts)) => {
            // The kind belongs to the tuple, not to a closure in it.
            let text = |part| text(part, SubjectKind::Other, masked);
            Some(parts.into_iter().map(text).collect::<Vec<_>>().join(","))
        }
        None => None,
    };
    shown.unwrap_or_else(|| {
        let hex = hex(key);
        format!("key:{}", if masked { first(&hex, 6) } else { hex })
    })
}

fn kind_name(kind: SubjectKind) -> &'static str {
    match kind {
        SubjectKind::ApiKey => "api-key",
        kind => kind.as_str(),
    }
}

fn first(text: &str, count: usize) -> String {
    let start: String = text.chars().take(count).collect();
    format!("{start}…")
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut hex, byte| {
        // Writing to a string does not fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}
