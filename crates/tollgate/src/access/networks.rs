//! Many networks, in which an address is found soon.

use std::net::IpAddr;

use ipnet::IpNet;

/// Networks as ranges that neither overlap nor stand out of order, so that an address is
/// found by halving: a trie would need a cache line for each of its steps as well, and many
/// more of them.
#[derive(Default)]
pub(super) struct Networks {
    v4: Box<[(u32, u32)]>,
    v6: Box<[(u128, u128)]>,
}

impl Networks {
    pub(super) fn new(networks: &[IpNet]) -> Self {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for network in networks {
            match network {
                IpNet::V4(net) => v4.push((net.network().into(), net.broadcast().into())),
                IpNet::V6(net) => v6.push((net.network().into(), net.broadcast().into())),
            }
        }
        Self { v4: merged(v4), v6: merged(v6) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    /// Whether an address in canonical form is in one of them.
    pub(super) fn contain(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(ip) => is_in(&self.v4, ip.into()),
            IpAddr::V6(ip) => is_in(&self.v6, ip.into()),
        }
    }
}

fn merged<T: Ord + Copy>(mut ranges: Vec<(T, T)>) -> Box<[(T, T)]> {
    ranges.sort_unstable();
    let mut merged: Vec<(T, T)> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match merged.last_mut() {
            Some((_, end)) if first <= *end => *end = last.max(*end),
            _ => merged.push((first, last)),
        }
    }
    merged.into()
}

fn is_in<T: Ord + Copy>(ranges: &[(T, T)], address: T) -> bool {
    let after = ranges.partition_point(|(first, _)| *first <= address);
    // Only the last that begins at or before the address can reach it.
    after.checked_sub(1).is_some_and(|at| address <= ranges[at].1)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};
    use std::time::{Duration, Instant};

    use ipnet::{Ipv4Net, Ipv6Net};
    use proptest::prelude::*;

    use super::*;

    fn network() -> impl Strategy<Value = IpNet> {
        // Close together, so that they meet.
        let v4 = (any::<u8>(), 20..=32_u8).prop_map(|(low, bits)| {
            let ip = Ipv4Addr::new(192, 0, low / 16, low.wrapping_mul(16));
            IpNet::V4(Ipv4Net::new(ip, bits).unwrap().trunc())
        });
        let v6 = (any::<u8>(), 100..=128_u8).prop_map(|(low, bits)| {
            let ip = Ipv6Addr::from(0x2001_0db8_u128 << 96 | u128::from(low) << 12);
            IpNet::V6(Ipv6Net::new(ip, bits).unwrap().trunc())
        });
        prop_oneof![v4, v6, Just("0.0.0.0/1".parse().unwrap()), Just("ffff::/16".parse().unwrap())]
    }

    proptest! {
        #[test]
        fn an_address_is_found_exactly_where_one_of_the_networks_has_it(
            networks in prop::collection::vec(network(), 0..30),
        ) {
            let found = Networks::new(&networks);
            for network in &networks {
                let step = |ip: IpAddr, up: bool| -> IpAddr {
                    match ip {
                        IpAddr::V4(ip) => {
                            let ip = u32::from(ip);
                            Ipv4Addr::from(if up { ip.wrapping_add(1) } else { ip.wrapping_sub(1) })
                                .into()
                        }
                        IpAddr::V6(ip) => {
                            let ip = u128::from(ip);
                            Ipv6Addr::from(if up { ip.wrapping_add(1) } else { ip.wrapping_sub(1) })
                                .into()
                        }
                    }
                };
                let (first, last) = (network.network(), network.broadcast());
                for ip in [first, last, step(first, false), step(last, true)] {
                    let expected = networks.iter().any(|network| network.contains(&ip));
                    prop_assert_eq!(found.contain(ip), expected, "{}", ip);
                }
            }
        }
    }

    #[test]
    fn a_hundred_thousand_networks_are_not_looked_at_one_by_one() {
        let net = |n: u32| IpNet::V4(Ipv4Net::new(Ipv4Addr::from(n << 10), 24).unwrap());
        let networks = Networks::new(&(0..100_000).map(net).collect::<Vec<_>>());
        let started = Instant::now();
        let found = (0..200_000_u32).filter(|n| networks.contain(Ipv4Addr::from(n << 9).into()));
        assert_eq!(found.count(), 100_000);
        // One by one it would be some 10^10 comparisons: minutes. By halving it is some
        // milliseconds, also in a build for tests.
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    }
}
