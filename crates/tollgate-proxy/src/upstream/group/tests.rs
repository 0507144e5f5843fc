use crate::settings::{Connections, Endpoint};
use http::uri::Scheme;
use tokio::time::advance;

use super::*;
use crate::Clients;

const RETRY: Duration = Duration::from_secs(10);

fn group(count: u16, balance: Balance) -> Arc<Group> {
    let address = |port: u16| {
        let authority = format!("127.0.0.1:{port}").parse().unwrap();
        let endpoint = Endpoint { scheme: Scheme::HTTP, authority, socket: None };
        Address { endpoint, base_path: String::new() }
    };
    let servers = Servers {
        addresses: (1..=count).map(address).collect(),
        protocol: Protocol::Http1,
        connections: Connections::of(Duration::from_secs(60)),
        balance,
        passive: Passive { failures: 2, retry_after: RETRY },
        active: None,
    };
    let clients = Clients::new(false, 1, 1).unwrap();
    clients.group(&servers, None, &Failures::default()).unwrap()
}

/// The member for a new request.
fn next(group: &Group) -> usize {
    let chosen = group.choose(&mut Tried::default()).unwrap();
    group.members.iter().position(|member| Arc::ptr_eq(member, chosen)).unwrap()
}

/// How many requests each member receives.
fn spread(group: &Group, requests: usize) -> Vec<usize> {
    let mut spread = vec![0; group.members.len()];
    (0..requests).for_each(|_| spread[next(group)] += 1);
    spread
}

fn answer(group: &Group, member: usize) {
    Group::answered(&group.members[member], StatusCode::OK, Duration::ZERO);
}

#[tokio::test]
async fn round_robin_skips_servers_that_are_down() {
    let group = group(4, Balance::RoundRobin);
    assert_eq!(spread(&group, 12), [3; 4]);
    group.members[1].is_down.store(true, Ordering::Relaxed);
    assert_eq!(spread(&group, 12), [4, 0, 4, 4]);
}

#[tokio::test]
async fn least_busy_server_is_next() {
    let group = group(3, Balance::LeastBusy);
    let busy: Vec<_> = [0, 0, 2].iter().map(|member| group.busy(&group.members[*member])).collect();
    assert_eq!(spread(&group, 5), [0, 5, 0]);
    let one = group.busy(&group.members[1]);
    drop(busy);
    assert_eq!(spread(&group, 6)[1], 0);
    drop(one);
    assert_eq!(spread(&group, 6), [2; 3]);
}

#[tokio::test(start_paused = true)]
async fn consecutive_failures_remove_a_server() {
    let group = group(2, Balance::RoundRobin);
    let failing = &group.members[0];
    group.failed(failing);
    answer(&group, 0);
    group.failed(failing);
    assert_eq!(spread(&group, 4), [2, 2], "not consecutive");
    group.failed(failing);
    assert_eq!(spread(&group, 4), [0, 4]);
    advance(RETRY).await;
    assert_eq!(spread(&group, 4), [1, 3], "one request tests the server");
    group.failed(failing);
    assert_eq!(spread(&group, 4), [0, 4]);
    advance(RETRY).await;
    assert_eq!(spread(&group, 4), [1, 3]);
    answer(&group, 0);
    assert_eq!(spread(&group, 4), [2, 2]);
}

#[tokio::test]
async fn each_server_is_tried_once() {
    for down in [false, true] {
        let group = group(3, Balance::LeastBusy);
        for member in &group.members {
            member.is_down.store(down, Ordering::Relaxed);
        }
        let mut tried = Tried::default();
        let mut offered: Vec<_> = std::iter::from_fn(|| group.choose(&mut tried)).collect();
        offered.sort_by_key(|member| member.address.endpoint.to_string());
        assert_eq!(offered.len(), 3);
        offered.dedup_by(|one, other| Arc::ptr_eq(one, other));
        assert_eq!(offered.len(), 3);
    }
}

#[tokio::test]
async fn single_server_is_never_removed() {
    let group = group(1, Balance::RoundRobin);
    (0..9).for_each(|_| group.failed(&group.members[0]));
    assert_eq!(spread(&group, 3), [3]);
}

#[tokio::test]
async fn routes_share_their_servers_health() {
    let servers = Servers {
        addresses: vec![Address {
            endpoint: Endpoint::unix(std::path::Path::new("/run/app.sock")),
            base_path: String::new(),
        }],
        protocol: Protocol::Http1,
        connections: Connections::of(Duration::from_secs(60)),
        balance: Balance::RoundRobin,
        passive: Passive::default(),
        active: None,
    };
    let (clients, failures) = (Clients::new(false, 1, 1).unwrap(), Failures::default());
    let first = clients.group(&servers, None, &failures).unwrap();
    assert!(Arc::ptr_eq(&first, &clients.group(&servers, None, &failures).unwrap()));
    let other = Servers { balance: Balance::LeastBusy, ..servers };
    assert!(!Arc::ptr_eq(&first, &clients.group(&other, None, &failures).unwrap()));
}
