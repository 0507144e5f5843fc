//! cargo run -p tollgate-test-servers -- redis | cluster | sentinels
//!
//! Starts what tests start, prints its URL, and ends it with standard input: to try
//! something by hand, and for the test that kills it.

#[cfg(unix)]
fn main() {
    use tollgate_test_servers::{Cluster, Redis, Sentinels};

    match std::env::args().nth(1).as_deref() {
        Some("redis") => hold(Redis::start, Redis::url),
        Some("cluster") => hold(Cluster::start, Cluster::url),
        Some("sentinels") => hold(Sentinels::start, Sentinels::url),
        _ => eprintln!("say what to start: redis, cluster or sentinels"),
    }
}

#[cfg(unix)]
fn hold<T>(start: impl FnOnce() -> T, url: impl FnOnce(&T) -> String) {
    let servers = start();
    println!("{}", url(&servers));
    // An error is an end too.
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
}

#[cfg(not(unix))]
fn main() {
    eprintln!("servers of tests need a Unix");
}
