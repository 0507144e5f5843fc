//! The whole, on free ports.

use tollgate_replicas::{Order, Set};

use crate::client::Client;

/// Starts all of it. A decision may take as long as it likes, as others use the machine too,
/// and what is not decided is refused, so that nothing passes uncounted; `flags` may say
/// otherwise.
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
        admin: None,
    };
    Set::start(&order).unwrap_or_else(|failure| panic!("{failure}"))
}

/// A client of the balancer.
pub(crate) fn client(set: &Set) -> Client {
    Client::new(None, set.nginx.address())
}

/// The cost of a request by its method.
pub(crate) const METHODS: [(&str, u64); 4] =
    [("GET", 1), ("SEARCH", 3), ("POST", 5), ("DELETE", 10)];
