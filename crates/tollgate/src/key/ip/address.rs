//! Parses addresses in headers, and masks the bits of an address that do not count.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The error for an invalid [`ClientIp`](super::ClientIp) configuration.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClientIpError {
    /// An entry in the trusted proxies.
    #[doc(alias = "TG0205")]
    #[error("trusted proxy {entry:?}: {cure} [TG0205]")]
    Proxy {
        /// The entry as it was written.
        entry: String,
        /// The fix: a description of valid input.
        cure: String,
    },

    /// A prefix with no bits, or with more bits than an address has.
    #[doc(alias = "TG0206")]
    #[error("prefix /{bits} of an {family} address: expected 1 to {max} [TG0206]")]
    Prefix {
        /// The given number of bits.
        bits: u8,
        /// `IPv4` or `IPv6`.
        family: &'static str,
        /// The number of bits in a full address.
        max: u8,
    },
}

tollgate_core::debug_as_display!(ClientIpError);

/// Parses an address in the forms that proxies write: `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`,
/// `[2001:db8::1]`, `[2001:db8::1]:80`, with optional spaces around it.
///
/// The `std` parser is strict (no `010.1.1.1`, no `0x7f.1`, no zone ids), so a text has only one
/// meaning. `2001:db8::1:80` is always an address without a port.
pub(super) fn parse(element: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(trim(element)).ok()?;
    let ip = if let Some(bracketed) = text.strip_prefix('[') {
        let (ip, port) = bracketed.split_once(']')?;
        let is_valid = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
        ip.parse::<Ipv6Addr>().ok().filter(|_| is_valid)?.into()
    } else if let Ok(ip) = text.parse::<IpAddr>() {
        ip
    } else {
        let (ip, port) = text.split_once(':')?;
        ip.parse::<Ipv4Addr>().ok().filter(|_| is_port(port))?.into()
    };
    Some(ip.to_canonical())
}

/// Trims optional white space, which consists of only spaces and tabs (RFC 9110 §5.6.3).
pub(super) fn trim(bytes: &[u8]) -> &[u8] {
    let is_not_space = |byte: &u8| !matches!(byte, b' ' | b'\t');
    let start = bytes.iter().position(is_not_space).unwrap_or(bytes.len());
    let end = bytes.iter().rposition(is_not_space).map_or(start, |last| last + 1);
    &bytes[start..end]
}

fn is_port(text: &str) -> bool {
    // `u16` alone would accept "+80".
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

/// An address as a number, with IPv4 mapped into IPv6, so all spellings of an address have the same
/// number. It fits into registers, which makes it faster than an [`IpAddr`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address(u128);

impl Address {
    /// ::ffff:0:0/96, the IPv4-mapped addresses.
    const MAPPED: u128 = 0xffff;
    /// 64:ff9b::/96, the well-known prefix of RFC 6052.
    const NAT64: u128 = 0x0064_ff9b << 64;

    #[inline]
    fn from_v4(bits: u32) -> Self {
        Self(Self::MAPPED << 32 | u128::from(bits))
    }

    #[inline]
    pub(super) fn v4(self) -> Option<u32> {
        self.in_prefix(Self::MAPPED)
    }

    /// Returns the IPv4 address that a NAT64 translator embedded in this address.
    #[inline]
    fn embedded_v4(self) -> Option<u32> {
        self.in_prefix(Self::NAT64)
    }

    #[inline]
    fn in_prefix(self, prefix: u128) -> Option<u32> {
        #[expect(clippy::cast_possible_truncation, reason = "the comparison covers the upper bits")]
        (self.0 >> 32 == prefix).then_some(self.0 as u32)
    }

    #[inline]
    pub(super) fn octets(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    #[inline]
    pub(super) fn ip(self) -> IpAddr {
        match self.v4() {
            Some(v4) => Ipv4Addr::from_bits(v4).into(),
            None => Ipv6Addr::from_bits(self.0).into(),
        }
    }
}

impl From<IpAddr> for Address {
    #[inline]
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(v4) => Self::from_v4(v4.to_bits()),
            IpAddr::V6(v6) => Self(v6.to_bits()),
        }
    }
}

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

    /// Returns the address that quotas and networks use. For a NAT64 translator's address, this is
    /// the embedded IPv4 address.
    #[inline]
    pub(super) fn client(&self, address: Address) -> Address {
        address.embedded_v4().filter(|_| self.nat64).map_or(address, Address::from_v4)
    }

    #[inline]
    pub(super) fn apply_v4(&self, address: u32) -> u32 {
        // No prefix is empty, so no shift equals the integer's width, also below.
        address & u32::MAX << (32 - u32::from(self.v4))
    }

    #[inline]
    pub(super) fn apply(&self, address: Address) -> Address {
        let address = self.client(address);
        match address.v4() {
            Some(v4) => Address::from_v4(self.apply_v4(v4)),
            None => Address(address.0 & u128::MAX << (128 - u32::from(self.v6))),
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
