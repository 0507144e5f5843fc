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
