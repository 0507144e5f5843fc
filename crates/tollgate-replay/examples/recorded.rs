//! cargo run -p tollgate-replay --example recorded
//!
//! Would a smaller quota have denied any of last week's requests? The service has recorded its
//! requests and uses the same policies in its `RateLimitLayer`.

use std::sync::Arc;

use tollgate_core::{Cost, Key, Policy, PolicyError, Quota, Timestamp};
use tollgate_engine::{AppliedLimit, Charges, Limit, Limits, SubjectKind};
use tollgate_replay::{Client, Replay, Report, Request};

/// The service's limits. `RateLimitLayer::builder(store)` gets the same policies.
fn limits(per_minute: u64) -> Result<Arc<Limits>, PolicyError> {
    let everybody = Policy::sliding_window_log("global", Quota::per_minute(100))?;
    let client = Policy::token_bucket("client", Quota::per_minute(per_minute).burst(5))?;
    Ok(Arc::new(Limits::new([everybody, client].map(Limit::new))))
}

/// A recorded request: its time in seconds, client, and method.
struct Recorded(u64, &'static str, &'static str);

fn recording() -> impl Iterator<Item = Recorded> {
    // For a minute, Ann sends a GET request every second and Bob a POST request every 20 seconds.
    (0..60).flat_map(|second| {
        let ann = Recorded(second, "ann", "GET");
        let bob = second.is_multiple_of(20).then_some(Recorded(second, "bob", "POST"));
        [Some(ann), bob].into_iter().flatten()
    })
}

fn replay(limits: &Arc<Limits>) -> Result<Report, Box<dyn std::error::Error>> {
    let mut replay = Replay::new();
    for Recorded(second, name, method) in recording() {
        let (key, cost) = (Key::from(name), Cost::new(if method == "POST" { 5 } else { 1 }));
        let mut charges = Charges::default();
        charges.push(AppliedLimit::new(0, SubjectKind::Global, Key::GLOBAL, cost), limits);
        charges.push(AppliedLimit::new(1, SubjectKind::User, key.clone(), cost), limits);
        let at = Timestamp::from_micros(second * 1_000_000);
        let client = Client { key: &key, name: &name };
        replay.request(&mut Request::new(at, limits, charges).of(client).by(method))?;
    }
    Ok(replay.finish()?)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for per_minute in [60, 30] {
        let report = replay(&limits(per_minute)?)?;
        let (denied, clients) = (report.total.counts.denied, report.clients_denied);
        println!("{per_minute} a minute: {denied} requests of {clients} clients would be denied");
        for client in &report.denied_clients {
            let (name, denied, requests) = (&client.client, client.denied, client.requests);
            println!("  {name}: {denied} of {requests}, first at {}", client.first);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn current_quota_denies_no_recorded_request() {
        let report = replay(&limits(60).unwrap()).unwrap();
        assert_eq!((report.clients, report.total.counts.denied), (2, 0));
        assert!(report.is_exact());
    }

    #[test]
    fn half_the_quota_denies_one_client() {
        let report = replay(&limits(30).unwrap()).unwrap();
        assert_eq!(report.clients_denied, 1);
        assert_eq!(report.denied_clients[0].client, "ann");
    }
}
