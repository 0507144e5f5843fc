//! Counts and limits connections, in total and per address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use metrics::{counter, gauge};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::workers::Counted;

#[derive(Clone, Debug)]
pub(crate) struct Slots(Arc<SlotCounts>);

#[derive(Debug)]
struct SlotCounts {
    taken: AtomicUsize,
    most: AtomicUsize,
    freed: Notify,
    addresses: Mutex<HashMap<IpAddr, usize>>,
    full: Warning,
    crowded: Warning,
}

impl Slots {
    pub(crate) fn new(most: usize) -> Self {
        Self(Arc::new(SlotCounts {
            taken: AtomicUsize::new(0),
            most: AtomicUsize::new(most),
            freed: Notify::new(),
            addresses: Mutex::default(),
            full: Warning::default(),
            crowded: Warning::default(),
        }))
    }

    /// Waits until another connection is allowed. `most` is called repeatedly, because a reload may
    /// change the number.
    pub(crate) async fn free(&self, most: impl Fn() -> usize) {
        self.0.most.store(most(), Ordering::Relaxed);
        if !self.is_full() {
            return;
        }
        counter!(FULL).increment(1);
        if self.0.full.is_due() {
            let most = self.0.most.load(Ordering::Relaxed);
            tracing::warn!(
                "{most} connections are open, as many as `maxConnections` allows: further \
                 connections wait"
            );
        }
        while self.is_full() {
            // The loop checks the counts, whether notified or not.
            let _ = timeout(AGAIN, self.0.freed.notified()).await;
            self.0.most.store(most(), Ordering::Relaxed);
        }
    }

    pub(crate) fn take(&self, counted: Counted) -> Slot {
        self.0.taken.fetch_add(1, Ordering::Relaxed);
        gauge!(CONNECTIONS).increment(1);
        Slot { slots: self.clone(), address: None, _counted: counted }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.0.taken.load(Ordering::Relaxed) >= self.0.most.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
pub(crate) struct Slot {
    slots: Slots,
    address: Option<IpAddr>,
    _counted: Counted,
}

impl Slot {
    pub(crate) const fn slots(&self) -> &Slots {
        &self.slots
    }

    /// Counts the connection for its client's address. Returns false if the address already has
    /// `most` connections, and the connection must then be closed.
    pub(crate) fn belongs_to(&mut self, client: IpAddr, most: usize) -> bool {
        let address = network(client);
        let mut addresses = self.slots.0.addresses.lock();
        let taken = addresses.get(&address).copied().unwrap_or_default();
        if taken < most {
            addresses.insert(address, taken + 1);
            self.address = Some(address);
            return true;
        }
        drop(addresses);
        counter!(REFUSED).increment(1);
        if self.slots.0.crowded.is_due() {
            tracing::warn!(
                "{address} has {most} connections open, as many as `maxConnectionsPerAddress` \
                 allows: further ones are closed; if it is a proxy, list it in `trustedProxies`"
            );
        }
        false
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        gauge!(CONNECTIONS).decrement(1);
        let SlotCounts { taken, freed, addresses, .. } = &*self.slots.0;
        if let Some(address) = self.address {
            let mut addresses = addresses.lock();
            if let Some(taken) = addresses.get_mut(&address) {
                *taken -= 1;
                if *taken == 0 {
                    addresses.remove(&address);
                }
            }
        }
        taken.fetch_sub(1, Ordering::Relaxed);
        freed.notify_one();
    }
}

/// The address or network for which connections are counted, because a client with IPv6 has at
/// least 2^64 addresses.
fn network(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & (u128::MAX << 64)).into(),
        v4 => v4,
    }
}

/// A warning that is repeated rarely, because a flood of connections must not flood the log.
#[derive(Debug, Default)]
struct Warning(Mutex<Option<Instant>>);

impl Warning {
    fn is_due(&self) -> bool {
        let now = Instant::now();
        let mut last = self.0.lock();
        let is_due = last.is_none_or(|last| now - last >= QUIET);
        if is_due {
            *last = Some(now);
        }
        is_due
    }
}

pub(crate) const CONNECTIONS: &str = "tollgate_gateway_connections";
pub(crate) const FULL: &str = "tollgate_gateway_full_total";
pub(crate) const REFUSED: &str = "tollgate_gateway_refused_total";

/// How long a changed `maxConnections` may go unnoticed.
const AGAIN: Duration = Duration::from_secs(1);
const QUIET: Duration = Duration::from_secs(10);

/// Raises this process's limit of open files to the system's maximum, and returns it; `None` if
/// there is no limit. The default limit is meant for programs that wait with `select`.
#[cfg(unix)]
pub(crate) fn open_files() -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    if raised.is_ok() { maximum } else { current }
}

#[cfg(not(unix))]
pub(crate) fn open_files() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn connections_wait_for_a_free_slot() {
        let slots = Slots::new(3);
        let taken: Vec<_> = (0..2).map(|_| slots.take(Counted::default())).collect();
        slots.free(|| 3).await;
        assert!(!slots.is_full());
        let waiting = tokio::spawn({
            let slots = slots.clone();
            async move { slots.free(|| 2).await }
        });
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!waiting.is_finished() && slots.is_full());
        drop(taken);
        waiting.await.unwrap();

        let _slot = slots.take(Counted::default());
        let asked_at = Instant::now();
        slots.free(|| if asked_at.elapsed() < Duration::from_secs(5) { 1 } else { 2 }).await;
        assert!(asked_at.elapsed() >= Duration::from_secs(5));
    }

    #[test]
    fn connections_are_limited_per_network() {
        let slots = Slots::new(100);
        let take = || slots.take(Counted::default());
        for (first, same, other) in [
            ("192.0.2.1", "::ffff:192.0.2.1", "192.0.2.2"),
            ("2001:db8:0:1::1", "2001:db8:0:1:ffff::9", "2001:db8:0:2::1"),
        ] {
            let [first, same, other] = [first, same, other].map(|it| it.parse().unwrap());
            let mut kept = [take(), take(), take()];
            assert!(kept[0].belongs_to(first, 2) && kept[1].belongs_to(same, 2));
            assert!(!take().belongs_to(first, 2) && !take().belongs_to(same, 2));
            assert!(kept[2].belongs_to(other, 2));
            drop(kept);
            assert!(take().belongs_to(same, 1));
        }
        assert!(!take().belongs_to("192.0.2.1".parse().unwrap(), 0));
        assert!(slots.0.addresses.lock().is_empty());
    }
}
