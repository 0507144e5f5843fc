//! cargo run -p tollgate-test-servers -- redis | cluster | sentinels
//!
//! Starts the test servers, prints their URL, and shuts them down when standard input closes. Use
//! it for manual experiments. A test also kills it to check that no server is orphaned.

#[cfg(unix)]
fn main() {
    use tollgate_test_servers::{Cluster, Redis, Sentinels};

    match std::env::args().nth(1).as_deref() {
        Some("redis") => hold(Redis::start, Redis::url),
        Some("cluster") => hold(Cluster::start, Cluster::url),
        Some("sentinels") => hold(Sentinels::start, Sentinels::url),
        _ => eprintln!("usage: tollgate-test-servers redis|cluster|sentinels"),
    }
}

#[cfg(unix)]
fn hold<T>(start: impl FnOnce() -> T, url: impl FnOnce(&T) -> String) {
    let servers = start();
    println!("{}", url(&servers));
    // A read error shuts the servers down too.
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
}

#[cfg(not(unix))]
fn main() {
    eprintln!("the test servers run only on Unix");
}
