//! Addresses: how they are written in headers, and how much of one counts.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What is wrong with how a [`ClientIp`](super::ClientIp) was set up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClientIpError {
    /// An entry of the trusted proxies.
    #[error("trusted proxy {entry:?}: {cure}")]
    Proxy {
        /// The entry as it was written.
        entry: String,
        /// What to write instead.
        cure: String,
    },

    /// A prefix that masks everything or more than there is.
    #[error("prefix /{bits} of an {family} address: expected 1 to {max}")]
    Prefix {
        /// The bits asked for.
        bits: u8,
        /// `IPv4` or `IPv6`.
        family: &'static str,
        /// The bits of a whole address.
        max: u8,
    },
}

/// An address as a proxy writes it: `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`,
/// `[2001:db8::1]`, `[2001:db8::1]:80`, with spaces around.
///
/// The parser of `std` is strict (no `010.1.1.1`, no `0x7f.1`, no zone ids), so one text
/// means one address to everybody. `2001:db8::1:80` is an address, never one with a port.
pub(super) fn parse(element: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(trim(element)).ok()?;
    let ip = if let Some(bracketed) = text.strip_prefix('[') {
        let (ip, port) = bracketed.split_once(']')?;
        let fine = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
        ip.parse::<Ipv6Addr>().ok().filter(|_| fine)?.into()
    } else if let Ok(ip) = text.parse::<IpAddr>() {
        ip
    } else {
        let (ip, port) = text.split_once(':')?;
        ip.parse::<Ipv4Addr>().ok().filter(|_| is_port(port))?.into()
    };
    Some(ip.to_canonical())
}

/// Without optional white space, which is spaces and tabs alone (RFC 9110 §5.6.3).
pub(super) fn trim(bytes: &[u8]) -> &[u8] {
    let solid = |byte: &u8| !matches!(byte, b' ' | b'\t');
    let start = bytes.iter().position(solid).unwrap_or(bytes.len());
    let end = bytes.iter().rposition(solid).map_or(start, |last| last + 1);
    &bytes[start..end]
}

fn is_port(text: &str) -> bool {
    // `u16` alone would let "+80" pass.
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

/// How much of an address counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Masks {
    v4: u8,
    v6: u8,
    pub(super) nat64: bool,
}

impl Default for Masks {
    fn default() -> Self {
        Self { v4: 32, v6: 64, nat64: true }
    }
}

impl Masks {
    pub(super) fn v6(&self) -> u8 {
        self.v6
    }

    pub(super) fn set_v4(&mut self, bits: u8) -> Result<(), ClientIpError> {
        self.v4 = checked(bits, "IPv4", 32)?;
        Ok(())
    }

    pub(super) fn set_v6(&mut self, bits: u8) -> Result<(), ClientIpError> {
        self.v6 = checked(bits, "IPv6", 128)?;
        Ok(())
    }

    /// The network that counts as one, of an address that is canonical already.
    #[inline]
    pub(super) fn apply(&self, ip: IpAddr) -> IpAddr {
        match (ip, embedded_v4(ip).filter(|_| self.nat64)) {
            (_, Some(v4)) | (IpAddr::V4(v4), None) => {
                // Neither shift is by the whole width, since no prefix is empty.
                let mask = u32::MAX << (32 - u32::from(self.v4));
                Ipv4Addr::from_bits(v4.to_bits() & mask).into()
            }
            (IpAddr::V6(v6), None) => {
                let mask = u128::MAX << (128 - u32::from(self.v6));
                Ipv6Addr::from_bits(v6.to_bits() & mask).into()
            }
        }
    }
}

fn checked(bits: u8, family: &'static str, max: u8) -> Result<u8, ClientIpError> {
    if (1..=max).contains(&bits) {
        Ok(bits)
    } else {
        Err(ClientIpError::Prefix { bits, family, max })
    }
}

/// The IPv4 address in one of the well-known prefix of RFC 6052, 64:ff9b::/96.
#[inline]
fn embedded_v4(ip: IpAddr) -> Option<Ipv4Addr> {
    match ip {
        IpAddr::V6(v6) => match v6.octets() {
            [0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d] => {
                Some(Ipv4Addr::new(a, b, c, d))
            }
            _ => None,
        },
        IpAddr::V4(_) => None,
    }
}
