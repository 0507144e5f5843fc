//! cargo run -p tollgate-test-servers -- redis | cluster | sentinels
//!
//! Starts the servers of the tests, prints their URL, and ends them when standard input closes.
//! Use it for trials by hand; a test also kills it to check that the servers end.

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
    // An error of standard input ends the servers too.
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
}

#[cfg(not(unix))]
fn main() {
    eprintln!("the test servers run only on Unix");
}
