//! The gateway in front of a server, and its decisions for other proxies, compared with nginx,
//! Envoy and limitador-server.

mod programs;

use self::programs::{Files, Program};
use crate::apps::Wrapping;
use crate::report::{Goal, Options, Page, Table};
use crate::rounds::{Side, Spread};
use crate::serve::Server;
use crate::served::{self, P99, PROCESSOR, Port, RATE, SERVED, h2load, paced, post, wrk};
use crate::{Failure, http, process, redis};

/// Enough rounds for a stable median.
const ROUNDS: usize = 12;

/// wrk's connections when it measures requests per second.
const CONNECTIONS: u32 = 64;

/// Idle connections while their memory is measured. The gateway needs twice as many open files, and
/// many systems allow 20 000.
const WAITING: usize = 9_500;

/// A token bucket per address in the gateway, which allows all requests.
const LIMIT: &str = "  client: {limit: 1000000000, window: 1s, strategy: token_bucket}\n";

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    served::find()?;
    process::find("nginx", "nginx-light")?;
    let mut page = Page::new(options, ROUNDS);
    let fronts = Fronts::start()?;
    let loads = "median µs | p99 µs | thousand requests/s | processor µs | added median µs | \
                 added p99 µs";
    page.table("A server and what is in front of it", "load | in front", loads, |table| {
        fronts.alone(table)
    })?;
    let columns = "KiB per connection, of 9500 | MiB for 10 000";
    page.table(
        "Memory of connections that wait for their next request",
        "gateway",
        columns,
        |table| {
            table.rounds = 1;
            let side = Side::new("with a policy", || {
                let kib = fronts.limited.waiting(WAITING)?;
                Ok(vec![kib, kib * 10_000.0 / 1024.0])
            });
            let goal = Goal::at_most("MiB for 10 000", 150.0).of("with a policy");
            table.measure(&[], vec![side], &[goal])
        },
    )?;
    page.table("Other requests, without limits", "requests | in front", SERVED, |table| {
        fronts.others(table)
    })?;
    let title = "Limits in other proxies, 64 connections";
    page.table(title, "proxy | limits", SERVED, |table| fronts.proxies(table))?;
    page.table("Decisions alone", "at the same time | calls", SERVED, |table| fronts.calls(table))?;
    page.write("gateway", include_str!("../../methods/gateway.md"))
}

/// All programs. They wait while they are not measured.
struct Fronts {
    server: Server,
    free: Program,
    limited: Program,
    shared: Program,
    encrypted: Program,
    http2: Program,
    auth: Program,
    service: Program,
    api: Program,
    nginx: Program,
    envoy: Program,
    limitador: Option<Program>,
    files: Files,
    _redis: tollgate_test_servers::Redis,
}

impl Fronts {
    fn start() -> Result<Self, Failure> {
        let (files, server, redis) =
            (Files::new()?, http::start(Wrapping::Bare)?, redis::lab::start());
        let port = server.address().port();
        let target = format!("http://127.0.0.1:{port}");
        let (chain, key) = (files.text("chain.pem"), files.text("key.pem"));
        let tls = format!(", tls: {{certificate: {chain}, key: {key}}}");
        // Fail closed, because otherwise a failed decision would count as a fast decision.
        let store = format!("  store: {{redis: {{url: '{}', timeout: 1s}}}}\n", redis.url());
        let shared = format!("{LIMIT}{store}  onStoreError: closed\n");
        let auth = "  forwardAuth: {listen: '127.0.0.1:0', trustedProxies: [loopback]}\n";
        let rules = files.text("rules.yaml");
        let service = format!("  rateLimitService: {{listen: '127.0.0.1:0', config: {rules}}}\n");
        let http2 = format!("{{url: '{target}', protocol: http2}}");
        let (auth, service) =
            (Program::tollgate(&format!("{auth}{LIMIT}"))?, Program::tollgate(&service)?);
        let values = [
            ("folder", files.text("")),
            ("server", port.to_string()),
            ("auth", auth.port(0).number.to_string()),
            ("service", service.port(0).number.to_string()),
            ("chain", chain),
            ("key", key),
        ];
        Ok(Self {
            free: Program::gateway(&target, "", "")?,
            limited: Program::gateway(&target, "", LIMIT)?,
            shared: Program::gateway(&target, "", &shared)?,
            encrypted: Program::gateway(&target, &tls, "")?,
            http2: Program::gateway(&http2, "", "")?,
            api: Program::tollgate(DECISION_API)?,
            nginx: Program::nginx(&files, &values)?,
            envoy: Program::envoy(&files, &values)?,
            limitador: Program::limitador(&files, LIMITADOR)?,
            server,
            auth,
            service,
            files,
            _redis: redis,
        })
    }

    /// The gateway and nginx without and with limits.
    fn alone(&self, table: &mut Table) -> Result<(), Failure> {
        const SERVER: &str = "the server itself";
        const FREE: &str = "gateway, no limits";
        const LIMITED: &str = "gateway, token bucket in memory";
        const SHARED: &str = "gateway, token bucket in Redis";
        const NGINX: &str = "nginx, no limits";
        table.beyond(SERVER).ratio("× nginx", RATE, NGINX).ratio("× gateway", RATE, FREE);
        table.ratio("processor × nginx", PROCESSOR, NGINX).ratio("p99 × nginx", P99, NGINX);
        let nginx = Port::url(self.nginx.port(0).number);
        let rates = (0..3).map(|_| Ok(wrk(&nginx, CONNECTIONS, &[])?.rate));
        let half = Spread::of(rates.collect::<Result<Vec<_>, Failure>>()?).median / 2.0;
        let fast = [
            Goal::at_least(RATE, 0.8).of(FREE).against(NGINX),
            Goal::at_most(PROCESSOR, 1.2).of(FREE).against(NGINX),
            Goal::at_least(RATE, 0.95).of(LIMITED).against(FREE),
            Goal::at_least(RATE, 0.75).of(SHARED).against(FREE),
        ];
        let calm = [Goal::at_most(P99, 1.5).of(FREE).against(NGINX)];
        type Loads<'a> = &'a dyn Fn(&str) -> Result<served::Load, Failure>;
        let loads: [(_, Loads<'_>, &[Goal]); 3] = [
            ("64 connections", &|url| wrk(url, CONNECTIONS, &[]), &fast),
            ("half of nginx's rate", &|url| paced(url, half), &calm),
            ("one connection", &|url| wrk(url, 1, &[]), &[]),
        ];
        for (name, load, goals) in loads {
            let sides = vec![
                self.server.port().side(SERVER, load),
                self.free.port(0).side(FREE, load),
                self.limited.port(0).side(LIMITED, load),
                self.shared.port(0).side(SHARED, load),
                self.nginx.port(0).side(NGINX, load),
                self.nginx.port(1).side("nginx, `limit_req`", load),
            ];
            table.measure(&[&name], sides, goals)?;
        }
        Ok(())
    }

    /// Requests with large heads, over TLS, and over HTTP/2.
    fn others(&self, table: &mut Table) -> Result<(), Failure> {
        const NGINX: &str = "nginx";
        table.ratio("processor × nginx", PROCESSOR, NGINX);
        let mut measure = |name: &str, ports: [Port; 3], load: &dyn Fn(&str) -> _| {
            let names = ["gateway", NGINX, "Envoy"].into_iter();
            let sides = names.zip(ports).map(|(name, port)| port.side(name, load)).collect();
            table.measure(&[&name], sides, &[])
        };
        let ports = |gateway: &Program, nginx, envoy| {
            [gateway.port(0), self.nginx.port(nginx), self.envoy.port(envoy)]
        };
        for kib in [2, 4, 8] {
            // Each header has 256 bytes, as it is sent.
            let header = |number| {
                let name = format!("x-header-{number:02}");
                format!("--header={name}: {}", "v".repeat(256 - name.len() - ": \r\n".len()))
            };
            let headers: Vec<_> = (0..kib * 4).map(header).collect();
            let load = |url: &str| wrk(url, CONNECTIONS, &headers);
            measure(&format!("{kib} KiB of headers"), ports(&self.free, 0, 0), &load)?;
        }
        let load = |url: &str| wrk(&url.replace("http", "https"), CONNECTIONS, &[]);
        measure("TLS from the client", ports(&self.encrypted, 3, 4), &load)?;
        let load = |url: &str| h2load(url, 16, 4, None);
        measure("HTTP/2 on both sides", ports(&self.http2, 4, 5), &load)
    }

    /// nginx and Envoy with their own limits and with Tollgate's decisions.
    fn proxies(&self, table: &mut Table) -> Result<(), Failure> {
        const NONE: &str = "none";
        let (nginx, envoy) = (&self.nginx, &self.envoy);
        let load = |url: &str| wrk(url, CONNECTIONS, &[]);
        table.ratio("processor × no limits", PROCESSOR, NONE);
        let sides = vec![
            nginx.port(0).side(NONE, load),
            nginx.port(1).side("`limit_req`", load),
            nginx.port_with(2, &self.auth).side("`auth_request` to Tollgate", load),
        ];
        table.measure(&[&"nginx"], sides, &[])?;
        let sides = vec![
            envoy.port(0).side(NONE, load),
            envoy.port(1).side("`local_ratelimit`", load),
            envoy.port_with(2, &self.auth).side("`ext_authz` to Tollgate", load),
            envoy.port_with(3, &self.service).side("rate limit service of Tollgate", load),
        ];
        table.measure(&[&"Envoy"], sides, &[])
    }

    fn calls(&self, table: &mut Table) -> Result<(), Failure> {
        const GRPC: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
        const ALLOWED: &str =
            "tollgate_gateway_rate_limit_service_total{domain=\"bench\",outcome=\"ok\"}";
        let headers = ["Method: GET", "Uri: /", "Host: a", "For: 192.0.2.1"]
            .map(|header| format!("--header=X-Forwarded-{header}"));
        let call = self.files.path("call");
        for parallel in [64, 1] {
            let (connections, streams) = if parallel > 1 { (4, 16) } else { (1, 1) };
            let service =
                |url: &str| h2load(&(url.to_owned() + GRPC), connections, streams, Some(&call));
            let auth = |url: &str| wrk(&format!("{url}forward-auth"), parallel, &headers);
            let json = |path: &'static str, body: &'static str| {
                move |url: &str| post(&format!("{url}{path}"), parallel, body)
            };
            let decide = json("v1/decide", DECIDE);
            let check = json("check_and_report", CHECK_AND_REPORT);
            let limitador = self.limitador.iter();
            let limitador = limitador.map(|it| it.port(0).side("limitador-server", check));
            let sides = [
                self.service.port(0).side("rate limit service", service),
                self.auth.port(0).side("forward auth", auth),
                self.api.port(0).side("decision API", decide),
            ];
            let allowed = self.service.metric(ALLOWED).unwrap_or_default();
            table.measure(&[&parallel], sides.into_iter().chain(limitador).collect(), &[])?;
            // Errors have the status 200, too.
            if self.service.metric(ALLOWED)? <= allowed {
                return Err("the rate limit service allowed no call".into());
            }
        }
        Ok(())
    }
}

/// The decision API with a policy of the only algorithm that limitador has.
const DECISION_API: &str = "  decisionApi: {listen: '127.0.0.1:0', policies: [
    {identifier: client, limit: 1000000000, window: 1s, strategy: fixed_window_counter, onStoreError: closed}]}\n";

/// The same limit in limitador.
const LIMITADOR: &str = "- {namespace: bench, max_value: 1000000000, seconds: 1, conditions: [], \
                         variables: [\"descriptors[0].ip\"]}\n";

/// A call to the decision API that charges a client one unit.
const DECIDE: &str = r#"{"charges": [{"policy": "client", "key": "192.0.2.1"}]}"#;

/// The same call to limitador.
const CHECK_AND_REPORT: &str =
    r#"{"namespace": "bench", "values": {"ip": "192.0.2.1"}, "delta": 1}"#;
