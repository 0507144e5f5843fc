//! Starts Redis, replicas and nginx on free ports.

use tollgate_test_servers::{Admin, Order, Set};

use tollgate_test_servers::http::Client;

/// Starts all processes. By default, the store timeout is long because the machine may be busy, and
/// undecided requests are rejected, so no request is allowed without a charge. `flags` can override
/// both.
pub(crate) fn start(flags: &[&str]) -> Set {
    let given = |flag: &str| flags.contains(&flag);
    let usual = [["--store-timeout", "10s"], ["--on-store-error", "closed"]];
    let usual = usual.iter().filter(|[flag, _]| !given(flag)).flatten();
    let order = Order {
        program: env!("CARGO_BIN_EXE_replica").into(),
        port: 0,
        replica_port: 0,
        redis_port: 0,
        flags: usual.chain(flags).map(|flag| (*flag).to_owned()).collect(),
        variables: vec![("RUST_LOG".to_owned(), "error".to_owned())],
        admin: Some(Admin { port: 0, token: TOKEN.to_owned() }),
    };
    Set::start(&order).unwrap_or_else(|failure| panic!("{failure}"))
}

/// The operator token.
pub(crate) const TOKEN: &str = "0123456789abcdef";

/// A client for the load balancer.
pub(crate) fn client(set: &Set) -> Client {
    Client::new(set.nginx.address())
}
