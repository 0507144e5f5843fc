//! Fast search in many networks.

use std::net::IpAddr;

use ipnet::IpNet;

/// Networks as sorted ranges without overlap, for a binary search. A trie would touch more cache
/// lines.
#[derive(Default)]
pub(super) struct Networks {
    v4: Box<[(u32, u32)]>,
    v6: Box<[(u128, u128)]>,
}

impl Networks {
    pub(super) fn new(networks: &Vec<IpNet>) -> Self {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        // Sorted, and without overlap.
        for network in IpNet::aggregate(networks) {
            match network {
                IpNet::V4(net) => v4.push((net.network().into(), net.broadcast().into())),
                IpNet::V6(net) => v6.push((net.network().into(), net.broadcast().into())),
            }
        }
        Self { v4: v4.into(), v6: v6.into() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    pub(super) fn contain(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(ip) => is_in(&self.v4, ip.into()),
            IpAddr::V6(ip) => is_in(&self.v6, ip.into()),
        }
    }
}

fn is_in<T: Ord + Copy>(ranges: &[(T, T)], address: T) -> bool {
    let after = ranges.partition_point(|(first, _)| *first <= address);
    // Only the last range that starts at or before the address can contain it.
    after.checked_sub(1).is_some_and(|at| address <= ranges[at].1)
}

#[cfg(test)]
mod tests;
