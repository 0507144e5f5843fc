//! Decisions for other proxies.

use std::{fs, iter};

use tempfile::TempDir;

use super::programs::{PORT, Program, TYPES, envoy_cluster, envoy_listener, proxy_pass, upstream};
use super::{CONNECTIONS, LIMIT, LIMIT_REQ};
use crate::Failure;
use crate::h2load::{self, Calls};
use crate::measured::{MeasuredPort, measure};
use crate::process::local;
use crate::report::Table;
use crate::rounds::Spread;
use crate::wrk;

/// Measures nginx and Envoy with their own limits and with Tollgate's decisions, and the decisions
/// alone.
pub(super) fn tables(port: u16, rounds: usize) -> Result<[Table; 2], Failure> {
    let rules = Rules::new()?;
    let auth = "  forwardAuth: {listen: '127.0.0.1:0', trustedProxies: [loopback]}\n";
    let auth = Program::tollgate(&format!("{auth}{LIMIT}"))?;
    let service = "  rateLimitService: {listen: '127.0.0.1:0', config: FILE}\n";
    let service = service.replace("FILE", &rules.file.display().to_string());
    let service = Program::tollgate(&service)?;
    let api = "  decisionApi: {listen: '127.0.0.1:0', policies: [POLICY]}\n";
    let api = Program::tollgate(&api.replace("POLICY", WINDOW))?;
    let limitador = Program::limitador(LIMITADOR)?;

    let proxies = proxies(port, rounds, &auth, &service)?;
    let calls = calls(rounds, &auth, &service, &rules, &api, limitador.as_ref())?;
    Ok([proxies, calls])
}

fn proxies(port: u16, rounds: usize, auth: &Program, service: &Program) -> Result<Table, Failure> {
    let (listen, pass) = (format!("listen 127.0.0.1:{PORT};"), proxy_pass("server"));
    let check = "location = /check { internal; proxy_pass http://tollgate/auth-request; \
                 proxy_http_version 1.1; proxy_set_header Connection ''; \
                 proxy_pass_request_body off; proxy_set_header Content-Length ''; \
                 proxy_set_header Host $host; proxy_set_header X-Original-Method $request_method; \
                 proxy_set_header X-Original-URI $request_uri; \
                 proxy_set_header X-Forwarded-For $remote_addr; }";
    let nginx = Program::nginx(
        &[
            format!("{listen} location / {{ {pass} }}"),
            format!("{listen} location / {{ {LIMIT_REQ} {pass} }}"),
            format!("{listen} location / {{ auth_request /check; {pass} }} {check}"),
        ],
        &(upstream("server", port) + &upstream("tollgate", auth.port())),
    )?;
    let envoy = Program::envoy(
        &[
            envoy_listener("server", "", None),
            envoy_listener("server", LOCAL, None),
            envoy_listener("server", &ext_authz(auth.port()), None),
            envoy_listener("server", &rate_limit_service(), None),
        ],
        &(envoy_cluster("server", port, false)
            + &envoy_cluster("auth", auth.port(), false)
            + &envoy_cluster("service", service.port(), true)),
    )?;
    let (names, ports): (Vec<_>, Vec<_>) = [
        ("nginx, no limits", nginx.measured_port(0)),
        ("nginx, `limit_req`", nginx.measured_port(1)),
        ("nginx, `auth_request` to Tollgate", with(nginx.measured_port(2), auth)),
        ("Envoy, no limits", envoy.measured_port(0)),
        ("Envoy, `local_ratelimit`", envoy.measured_port(1)),
        ("Envoy, `ext_authz` to Tollgate", with(envoy.measured_port(2), auth)),
        ("Envoy, rate limit service of Tollgate", with(envoy.measured_port(3), service)),
    ]
    .into_iter()
    .unzip();
    let measured = measure(&ports, rounds, |port| wrk::load(local(port), CONNECTIONS));
    let mut table = Table::new(
        "Limits in other proxies, 64 connections",
        "in front | thousand requests/s | processor µs per request | × the proxy without limits",
    );
    for (index, (name, side)) in names.iter().zip(&measured).enumerate() {
        let alone = &measured[if index < ENVOY { 0 } else { ENVOY }];
        table.row(&[name, &side.work(), &(Spread::of_ratios(&side.micros, &alone.micros), 2)]);
    }
    Ok(table)
}

/// Envoy's first row.
const ENVOY: usize = 3;

/// Adds Tollgate's processor time.
fn with(mut proxy: MeasuredPort, tollgate: &Program) -> MeasuredPort {
    proxy.processes.push(tollgate.id());
    proxy
}

fn calls(
    rounds: usize,
    auth: &Program,
    service: &Program,
    rules: &Rules,
    api: &Program,
    limitador: Option<&Program>,
) -> Result<Table, Failure> {
    let mut table = Table::new(
        "Decisions alone",
        "calls | at the same time | thousand decisions/s | µs per call | processor µs per decision",
    );
    let url = |port| {
        let method = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
        format!("http://127.0.0.1:{port}/{method}")
    };
    let headers = [
        "--header=X-Forwarded-Method: GET",
        "--header=X-Forwarded-Uri: /",
        "--header=X-Forwarded-Host: a",
        "--header=X-Forwarded-For: 192.0.2.1",
    ]
    .map(str::to_owned);
    let allowed = || service.metric(ALLOWED);
    for parallel in [64, 1] {
        let call = |port| {
            let (connections, streams) = if parallel > 1 { (4, 16) } else { (1, 1) };
            let grpc = Some(&*rules.call);
            h2load::load(&url(port), Calls { connections, streams, grpc })
        };
        let before = allowed().unwrap_or_default();
        let grpc = measure(&[service.measured_port(0)], rounds, call);
        // Errors have the status 200, too.
        if allowed()? <= before {
            return Err("the rate limit service allowed no call".into());
        }
        let check = |port| {
            wrk::load_url(&format!("http://127.0.0.1:{port}/forward-auth"), parallel, &headers)
        };
        let auth = measure(&[auth.measured_port(0)], rounds, check);
        let decide = |port| {
            let (path, body) = if port == api.port() { DECIDE } else { CHECK_AND_REPORT };
            wrk::post(&format!("http://127.0.0.1:{port}{path}"), parallel, body)
        };
        let servers = iter::once(api).chain(limitador).map(|server| server.measured_port(0));
        let decided = measure(&servers.collect::<Vec<_>>(), rounds, decide);
        let names = ["rate limit service", "forward auth", "decision API", "limitador-server"];
        for (name, side) in names.iter().zip(grpc.into_iter().chain(auth).chain(decided)) {
            let [rate, micros] = side.work();
            let call = Spread::of(side.rates.iter().map(|rate| f64::from(parallel) * 1e6 / rate));
            table.row(&[name, &parallel, &rate, &call, &micros]);
        }
    }
    Ok(table)
}

/// A policy of the decision API, with the only algorithm that limitador has.
const WINDOW: &str = "{identifier: client, limit: 1000000000, window: 1s, \
                      strategy: fixed_window_counter, onStoreError: closed}";

/// The same limit in limitador.
const LIMITADOR: &str = "- {namespace: bench, max_value: 1000000000, seconds: 1, conditions: [], \
                         variables: [\"descriptors[0].ip\"]}\n";

/// A call to the decision API that charges a client one unit: its path and its body.
const DECIDE: (&str, &str) =
    ("/v1/decide", r#"{"charges": [{"policy": "client", "key": "192.0.2.1"}]}"#);

/// The same call to limitador.
const CHECK_AND_REPORT: (&str, &str) =
    ("/check_and_report", r#"{"namespace": "bench", "values": {"ip": "192.0.2.1"}, "delta": 1}"#);

const ALLOWED: &str = "tollgate_gateway_rate_limit_service_total{domain=\"bench\",outcome=\"ok\"}";

/// Rules for the rate limit service, and a call that they allow.
struct Rules {
    _folder: TempDir,
    file: std::path::PathBuf,
    call: std::path::PathBuf,
}

impl Rules {
    fn new() -> Result<Self, Failure> {
        let folder = TempDir::new()?;
        let (file, call) = (folder.path().join("rules.yaml"), folder.path().join("call"));
        let rule = "{unit: second, requests_per_unit: 1000000000}";
        let rules =
            format!("domain: bench\ndescriptors: [{{key: remote_address, rate_limit: {rule}}}]\n");
        fs::write(&file, rules)?;
        // A `RateLimitRequest` with a domain and a descriptor with one entry.
        let entry = [field(1, b"remote_address"), field(2, b"192.0.2.1")].concat();
        let descriptor = field(1, &entry);
        let message = [field(1, b"bench"), field(2, &descriptor)].concat();
        // An uncompressed message of gRPC.
        let length = u32::try_from(message.len())?.to_be_bytes();
        fs::write(&call, [&[0], &length[..], &message].concat())?;
        Ok(Self { _folder: folder, file, call })
    }
}

/// A field of Protocol Buffers with a short text or message.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, content.len() as u8], content].concat()
}

/// Envoy's own token bucket, for all clients together.
const LOCAL: &str = "                  - name: envoy.filters.http.local_ratelimit
                    typed_config:
                      '@type': type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit
                      stat_prefix: limits
                      token_bucket: {max_tokens: 1000000000, tokens_per_fill: 1000000000, fill_interval: 1s}
                      filter_enabled: {default_value: {numerator: 100}}
                      filter_enforced: {default_value: {numerator: 100}}\n";

fn ext_authz(port: u16) -> String {
    format!(
        "                  - name: envoy.filters.http.ext_authz
                    typed_config:
                      '@type': {TYPES}.filters.http.ext_authz.v3.ExtAuthz
                      http_service:
                        server_uri: {{uri: '127.0.0.1:{port}', cluster: auth, timeout: 1s}}
                        path_prefix: /ext-authz
                      allowed_headers: {{patterns: [{{exact: x-forwarded-for}}]}}\n"
    )
}

fn rate_limit_service() -> String {
    format!(
        "                  - name: envoy.filters.http.ratelimit
                    typed_config:
                      '@type': {TYPES}.filters.http.ratelimit.v3.RateLimit
                      domain: bench
                      timeout: 1s
                      failure_mode_deny: true
                      rate_limit_service:
                        transport_api_version: V3
                        grpc_service: {{envoy_grpc: {{cluster_name: service}}}}\n"
    )
}
