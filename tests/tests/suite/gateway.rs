//! Starts the gateway.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use tollgate_test_servers::Process;
use tollgate_test_servers::until;

use crate::whole::support::TOKEN;

/// Starts the gateway with these lines under `rateLimiter` and with the token [`TOKEN`], and waits
/// until it listens.
pub(crate) fn start(lines: &str, folder: &Path) -> Process {
    let config = format!("rateLimiter:\n  listen: 127.0.0.1:0\n  admin: 127.0.0.1:0\n{lines}");
    fs::write(folder.join("gateway.yaml"), config).unwrap();
    let args = ["serve", "--config", "gateway.yaml"];
    let program = env!("CARGO_BIN_EXE_gateway");
    let token = ("TOLLGATE_ADMIN_TOKEN".to_owned(), TOKEN.to_owned());
    let process = Process::start("gateway", program, args, &[token], folder).unwrap();
    until("the gateway listens", Duration::from_secs(20), || {
        process.output().contains("admin ").then_some(())
    });
    process
}

/// An address that a process printed at its start.
pub(crate) fn address(process: &Process, what: &str) -> SocketAddr {
    let said = process.output();
    let line = said.lines().map(str::trim).find(|line| line.starts_with(what));
    let line = line.unwrap_or_else(|| panic!("no {what} in {said}"));
    line.rsplit_once("http://").unwrap().1.parse().unwrap()
}
