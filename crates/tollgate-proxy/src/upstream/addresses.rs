//! The addresses of an upstream's name, which change while the gateway runs.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use std::vec::IntoIter;

use hyper_util::client::legacy::connect::dns::Name;
use parking_lot::Mutex;
use tokio::time::sleep;
use tower_service::Service;

/// Resolves a name. The addresses' port does not matter.
pub(super) type Lookup = Arc<dyn Fn(String) -> Found + Send + Sync>;
pub(super) type Found = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

/// The system's resolver, which also reads the hosts file.
pub(super) fn system() -> Lookup {
    Arc::new(|name| {
        Box::pin(async move { Ok(tokio::net::lookup_host((name, 0)).await?.collect()) })
    })
}

/// A name's addresses. New connections use them in turn, and a task looks the name up again
/// after each `interval`.
///
/// A connection never waits for a lookup, except for the first. If a lookup fails, the last
/// addresses remain.
pub(super) struct Addresses {
    name: String,
    lookup: Lookup,
    interval: Duration,
    known: Mutex<Vec<SocketAddr>>,
    next: AtomicUsize,
    is_refreshed: AtomicBool,
}

impl Addresses {
    pub(super) fn of(name: &str, lookup: &Lookup, interval: Duration) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_owned(),
            lookup: Arc::clone(lookup),
            interval,
            known: Mutex::default(),
            next: AtomicUsize::new(0),
            is_refreshed: AtomicBool::new(false),
        })
    }

    /// All addresses, with another one first each time.
    async fn in_turn(self: Arc<Self>) -> io::Result<IntoIter<SocketAddr>> {
        if self.known.lock().is_empty() {
            self.look_up().await?;
        }
        if !self.is_refreshed.swap(true, Ordering::Relaxed) {
            tokio::spawn(refresh(Arc::downgrade(&self)));
        }
        let mut all = self.known.lock().clone();
        // The system prefers one of IPv4 and IPv6. The other is only used if that fails.
        let is_v4 = all.first().is_some_and(SocketAddr::is_ipv4);
        let preferred = all.partition_point(|address| address.is_ipv4() == is_v4);
        if preferred > 1 {
            all[..preferred].rotate_left(self.next.fetch_add(1, Ordering::Relaxed) % preferred);
        }
        Ok(all.into_iter())
    }

    /// Looks the name up after a connection has failed. Returns whether its addresses have changed.
    pub(super) async fn have_changed(&self) -> bool {
        let before = self.known.lock().clone();
        // The host of the URL is an address if it was never looked up.
        !before.is_empty() && self.look_up().await.is_ok() && *self.known.lock() != before
    }

    async fn look_up(&self) -> io::Result<()> {
        let mut found = (self.lookup)(self.name.clone()).await?;
        let Some(is_v4) = found.first().map(SocketAddr::is_ipv4) else {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
        };
        // Sorted, because name servers change the order, and the turns would then be uneven.
        found.sort_unstable_by_key(|address| (address.is_ipv4() != is_v4, *address));
        found.dedup();
        *self.known.lock() = found;
        Ok(())
    }
}

async fn refresh(addresses: Weak<Addresses>) {
    // Only changes are logged.
    let mut was_found = true;
    loop {
        let Some(interval) = addresses.upgrade().map(|it| it.interval) else { return };
        sleep(interval).await;
        let Some(addresses) = addresses.upgrade() else { return };
        let (name, found) = (&addresses.name, addresses.look_up().await);
        match &found {
            Ok(()) if !was_found => tracing::info!(name, "the upstream's name has addresses again"),
            Err(error) if was_found => {
                tracing::warn!(name, %error, "cannot look up the upstream: its last addresses remain");
            }
            _ => {}
        }
        was_found = found.is_ok();
    }
}

/// For hyper's connector, which tries the addresses in this order.
#[derive(Clone)]
pub(super) struct Resolver(pub(super) Arc<Addresses>);

impl Service<Name> for Resolver {
    type Response = IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Name) -> Self::Future {
        Box::pin(Arc::clone(&self.0).in_turn())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use tokio::time::advance;

    use super::*;

    /// A lookup that returns the addresses in `found`, or an error if there are none, and counts.
    pub(in crate::upstream) fn controlled(
        found: &Arc<Mutex<Vec<&'static str>>>,
    ) -> (Lookup, Arc<AtomicUsize>) {
        let (found, lookups) = (Arc::clone(found), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&lookups);
        let lookup: Lookup = Arc::new(move |name| {
            assert_eq!(name, "app.test");
            counted.fetch_add(1, Ordering::Relaxed);
            let found = found.lock().clone();
            Box::pin(async move {
                match &*found {
                    [] => Err(io::Error::other("no such name")),
                    found => {
                        Ok(found.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), 0)).collect())
                    }
                }
            })
        });
        (lookup, lookups)
    }

    const INTERVAL: Duration = Duration::from_secs(10);

    async fn in_turn(addresses: &Arc<Addresses>) -> Vec<String> {
        let all = Arc::clone(addresses).in_turn().await.unwrap();
        all.map(|address| address.ip().to_string()).collect()
    }

    async fn after_interval() {
        // The task has to reach its sleep first.
        tokio::task::yield_now().await;
        advance(INTERVAL).await;
        tokio::task::yield_now().await;
    }

    #[tokio::test(start_paused = true)]
    async fn connections_use_addresses_in_turn() {
        let found = Arc::new(Mutex::new(vec!["10.0.0.2", "10.0.0.1", "10.0.0.2", "::1"]));
        let (lookup, lookups) = controlled(&found);
        let addresses = Addresses::of("app.test", &lookup, INTERVAL);
        for expected in [
            ["10.0.0.1", "10.0.0.2", "::1"],
            ["10.0.0.2", "10.0.0.1", "::1"],
            ["10.0.0.1", "10.0.0.2", "::1"],
        ] {
            assert_eq!(in_turn(&addresses).await, expected);
        }
        assert_eq!(lookups.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn name_is_looked_up_again() {
        let found = Arc::new(Mutex::new(vec!["10.0.0.1"]));
        let (lookup, lookups) = controlled(&found);
        let addresses = Addresses::of("app.test", &lookup, INTERVAL);
        assert_eq!(in_turn(&addresses).await, ["10.0.0.1"]);
        *found.lock() = vec!["10.0.0.2"];
        assert_eq!(in_turn(&addresses).await, ["10.0.0.1"]);
        after_interval().await;
        assert_eq!(in_turn(&addresses).await, ["10.0.0.2"]);
        // The name no longer exists, but its server may.
        found.lock().clear();
        after_interval().await;
        assert_eq!(lookups.load(Ordering::Relaxed), 3);
        assert_eq!(in_turn(&addresses).await, ["10.0.0.2"]);
        // Without a target, the task stops.
        drop(addresses);
        after_interval().await;
        after_interval().await;
        assert_eq!(lookups.load(Ordering::Relaxed), 3);
    }

    #[tokio::test]
    async fn unknown_name_is_an_error() {
        let found = Arc::new(Mutex::new(vec![]));
        let addresses = Addresses::of("app.test", &controlled(&found).0, INTERVAL);
        assert!(Arc::clone(&addresses).in_turn().await.is_err());
        found.lock().push("10.0.0.1");
        assert_eq!(in_turn(&addresses).await, ["10.0.0.1"]);
    }
}
