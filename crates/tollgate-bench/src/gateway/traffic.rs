//! Requests with large heads, over TLS, and over HTTP/2.

use super::CONNECTIONS;
use super::programs::{
    Certificate, PORT, Program, envoy_cluster, envoy_listener, proxy_pass, upstream,
};
use crate::measured::{Measured, MeasuredPort, measure};
use crate::report::{Table, Target};
use crate::rounds::Spread;
use crate::wrk::{self, Load};
use crate::{Failure, h2load};

/// Measures the gateway, nginx and Envoy in front of the server at `port`.
pub(super) fn table(port: u16, rounds: usize) -> Result<Table, Failure> {
    let mut table = Table::new(
        "Other requests, without limits",
        "requests | in front | thousand requests/s | processor µs per request | × nginx | target | met",
    );
    let certificate = Certificate::new()?;
    let (chain, key) = (certificate.chain.display(), certificate.key.display());
    let target = format!("http://127.0.0.1:{port}");
    let plain = Program::gateway(&target, "")?;
    let listen = "{address: '127.0.0.1:0', maxConnectionsPerAddress: 10000, \
                  tls: {certificate: CHAIN, key: KEY}}";
    let listen = listen.replace("CHAIN", &chain.to_string()).replace("KEY", &key.to_string());
    let encrypted = Program::tollgate(&format!("  listen: {listen}\n  target: {target}\n"))?;
    let http2 = Program::gateway(&format!("{{url: '{target}', protocol: http2}}"), "")?;

    let pass = proxy_pass("server");
    let nginx = Program::nginx(
        &[
            format!("listen 127.0.0.1:{PORT}; location / {{ {pass} }}"),
            format!(
                "listen 127.0.0.1:{PORT} ssl; ssl_certificate {chain}; ssl_certificate_key {key}; \
                 location / {{ {pass} }}"
            ),
            format!("listen 127.0.0.1:{PORT} http2; location / {{ grpc_pass grpc://server; }}"),
        ],
        &upstream("server", port),
    )?;
    let envoy = Program::envoy(
        &[
            envoy_listener("server", "", None),
            envoy_listener("server", "", Some(&certificate)),
            envoy_listener("server-http2", "", None),
        ],
        &(envoy_cluster("server", port, false) + &envoy_cluster("server-http2", port, true)),
    )?;
    let ports = |gateway: &Program, kind: usize| -> [MeasuredPort; 3] {
        [gateway.measured_port(0), nginx.measured_port(kind), envoy.measured_port(kind)]
    };

    for kib in [2, 4, 8] {
        let name = format!("{kib} KiB of headers");
        let headers: Vec<_> = (0..kib * 4).map(header).collect();
        let load =
            |port| wrk::load_url(&format!("http://127.0.0.1:{port}/"), CONNECTIONS, &headers);
        add(&mut table, &name, &measure(&ports(&plain, 0), rounds, load));
    }
    let load = |port| wrk::load_url(&format!("https://127.0.0.1:{port}/"), CONNECTIONS, &[]);
    add(&mut table, "TLS from the client", &measure(&ports(&encrypted, 1), rounds, load));
    let load = |port| http2_load(&format!("http://127.0.0.1:{port}/"));
    add(&mut table, "HTTP/2 on both sides", &measure(&ports(&http2, 2), rounds, load));
    Ok(table)
}

/// An argument of wrk for a header of 256 bytes, as it is sent.
fn header(number: usize) -> String {
    let name = format!("x-header-{number:02}");
    format!("--header={name}: {}", "v".repeat(256 - name.len() - ": \r\n".len()))
}

fn http2_load(url: &str) -> Load {
    h2load::load(url, h2load::Calls { connections: 16, streams: 4, grpc: None })
}

/// Adds a row for each program. The second is nginx.
fn add(table: &mut Table, requests: &str, measured: &[Measured]) {
    for (name, side) in ["gateway", "nginx", "Envoy"].iter().zip(measured) {
        let ratio = Spread::of_ratios(&side.micros, &measured[1].micros);
        table.row(&[&requests, name, &side.work(), &(ratio, Target::None)]);
    }
}
