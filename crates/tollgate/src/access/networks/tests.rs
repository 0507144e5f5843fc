use std::cell::Cell;
use std::cmp::Ordering;
use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};
use proptest::prelude::*;

use super::*;

fn network() -> impl Strategy<Value = IpNet> {
    // Close together, so many networks overlap.
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
    fn lookup_agrees_with_each_network(
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

/// An address that counts this thread's comparisons.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Counted(u32);

thread_local! {
    static COMPARISONS: Cell<u32> = const { Cell::new(0) };
}

impl Ord for Counted {
    fn cmp(&self, other: &Self) -> Ordering {
        COMPARISONS.set(COMPARISONS.get() + 1);
        self.0.cmp(&other.0)
    }
}

impl PartialOrd for Counted {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[test]
fn search_is_binary() {
    let ranges = (0..100_000).map(|n| (Counted(n << 10), Counted((n << 10) + 255)));
    let ranges: Vec<_> = ranges.collect();
    for n in (0..200_000_u32).step_by(97) {
        COMPARISONS.set(0);
        assert_eq!(is_in(&ranges, Counted(n << 9)), n % 2 == 0, "{n}");
        // 2^17 is more than 100 000. `partition_point` compares the element that it finds again,
        // and `is_in` compares the end of the range.
        assert!(COMPARISONS.get() <= 17 + 2, "{} comparisons for {n}", COMPARISONS.get());
    }
}
