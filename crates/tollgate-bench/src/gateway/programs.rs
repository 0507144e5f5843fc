//! The programs in front of the server.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::Failure;
use crate::measured::MeasuredPort;
use crate::process::{Running, free_ports, local, memory_of};
use crate::redis::peers;

/// A program and its ports.
pub(super) struct Program {
    process: Running,
    ports: Vec<u16>,
    _folder: TempDir,
}

impl Program {
    /// `tollgate serve` with these lines in its configuration. It listens on one port besides the
    /// admin port, which is the second port here.
    pub(super) fn tollgate(lines: &str) -> Result<Self, Failure> {
        let program = std::env::current_exe()?.with_file_name("tollgate");
        if !program.exists() {
            return Err(format!("no {}: use `cargo xtask bench gateway`", program.display()).into());
        }
        let folder = TempDir::new()?;
        let file = folder.path().join("limits.yaml");
        fs::write(&file, format!("rateLimiter:\n  admin: 127.0.0.1:0\n{lines}"))?;
        let mut process = Command::new(program)
            .args(["serve", "--config"])
            .arg(&file)
            .env("TOKIO_WORKER_THREADS", "2")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let stdout = process.stdout.take().ok_or("the gateway has no output")?;
        let banner = BufReader::new(stdout).lines().take(2);
        let ports = banner.map_while(|line| line.ok()?.rsplit(':').next()?.parse().ok()).collect();
        let running = Self { process: Running(process), ports, _folder: folder };
        if running.ports.len() < 2 {
            return Err("the gateway does not listen".into());
        }
        Ok(running)
    }

    /// The gateway in front of `target`, which is a URL or a section.
    pub(super) fn gateway(target: &str, lines: &str) -> Result<Self, Failure> {
        let listen = "{address: '127.0.0.1:0', maxConnectionsPerAddress: 10000}";
        Self::tollgate(&format!("  listen: {listen}\n  target: {target}\n{lines}"))
    }

    pub(super) fn nginx(servers: &[String], upstreams: &str) -> Result<Self, Failure> {
        let folder = TempDir::new()?;
        let ports = free_ports(servers.len())?;
        let servers: String = servers
            .iter()
            .zip(&ports)
            .map(|(server, port)| {
                format!("server {{ {} }}\n", server.replace(PORT, &port.to_string()))
            })
            .collect();
        let file = folder.path().join("nginx.conf");
        let path = folder.path().display();
        fs::write(
            &file,
            format!(
                "worker_processes 2; daemon off; pid {path}/pid; error_log /dev/null;\n\
                 events {{ worker_connections 4096; }}\n\
                 http {{\n\
                 access_log off; client_body_temp_path {path}/a; proxy_temp_path {path}/b;\n\
                 fastcgi_temp_path {path}/c; uwsgi_temp_path {path}/d; scgi_temp_path {path}/e;\n\
                 keepalive_requests 1000000000;\n\
                 limit_req_zone $binary_remote_addr zone=clients:10m rate=1000000r/s;\n\
                 {upstreams}\n{servers}}}\n"
            ),
        )?;
        let mut command = Command::new("nginx");
        command.arg("-p").arg(folder.path()).arg("-c").arg(&file).stderr(Stdio::null());
        Ok(Self { process: Running::listening(&mut command, &ports)?, ports, _folder: folder })
    }

    /// Envoy with two worker threads.
    pub(super) fn envoy(listeners: &[String], clusters: &str) -> Result<Self, Failure> {
        let folder = TempDir::new()?;
        let ports = free_ports(listeners.len())?;
        let mut yaml = "static_resources:\n  listeners:\n".to_owned();
        for (listener, port) in listeners.iter().zip(&ports) {
            yaml += &listener.replace(PORT, &port.to_string());
        }
        yaml += &format!("  clusters:\n{clusters}");
        let file = folder.path().join("envoy.yaml");
        fs::write(&file, yaml)?;
        let mut command = Command::new("envoy");
        command.arg("-c").arg(&file);
        command.args(["--use-dynamic-base-id", "--concurrency", "2", "--log-level", "critical"]);
        command.stdout(Stdio::null());
        Ok(Self { process: Running::listening(&mut command, &ports)?, ports, _folder: folder })
    }

    /// limitador-server with these limits in memory, and with two threads. `None` if
    /// `peers/install` did not build it.
    pub(super) fn limitador(limits: &str) -> Result<Option<Self>, Failure> {
        let Some(program) = peers::program("limitador-server") else { return Ok(None) };
        let folder = TempDir::new()?;
        let file = folder.path().join("limits.yaml");
        fs::write(&file, limits)?;
        let ports = free_ports(2)?;
        let [http, grpc] = [ports[0], ports[1]].map(|port| port.to_string());
        let mut command = Command::new(program);
        command.args(["--http-ip", "127.0.0.1", "--http-port", &http, "--rls-ip", "127.0.0.1"]);
        command.args(["--rls-port", &grpc]).arg(&file).arg("memory");
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let process = Running::listening(&mut command, &ports)?;
        Ok(Some(Self { process, ports, _folder: folder }))
    }

    pub(super) fn measured_port(&self, port: usize) -> MeasuredPort {
        MeasuredPort { port: self.ports[port], processes: vec![self.process.id()] }
    }

    pub(super) fn port(&self) -> u16 {
        self.ports[0]
    }

    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    /// A metric from the gateway's admin address.
    pub(super) fn metric(&self, name: &str) -> Result<f64, Failure> {
        let mut stream = TcpStream::connect(local(self.ports[1]))?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        value.ok_or_else(|| format!("no metric {name}").into())
    }

    /// KiB per idle connection that has sent one request, for this number of connections.
    pub(super) fn waiting(&self, connections: usize) -> Result<f64, Failure> {
        let memory = || memory_of(&self.process.id().to_string(), "VmRSS");
        let before = memory()?;
        let mut waiting = Vec::new();
        for _ in 0..connections {
            let mut stream = TcpStream::connect(local(self.port()))?;
            stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")?;
            if stream.read(&mut [0; 4096])? == 0 {
                return Err("the gateway closed a connection".into());
            }
            waiting.push(stream);
        }
        Ok((memory()? - before) / 1024.0 / waiting.len() as f64)
    }
}

/// A self-signed certificate and its key, as files.
pub(super) struct Certificate {
    _folder: TempDir,
    pub(super) chain: PathBuf,
    pub(super) key: PathBuf,
}

impl Certificate {
    pub(super) fn new() -> Result<Self, Failure> {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
        let folder = TempDir::new()?;
        let write = |name: &str, text: String| {
            let file = folder.path().join(name);
            fs::write(&file, text).map(|()| file)
        };
        let chain = write("chain.pem", made.cert.pem())?;
        let key = write("key.pem", made.signing_key.serialize_pem())?;
        Ok(Self { chain, key, _folder: folder })
    }
}

/// The placeholder for the port in configurations of nginx and Envoy.
pub(super) const PORT: &str = "{port}";

/// nginx's upstream `name` at this port, with connections that stay open.
pub(super) fn upstream(name: &str, port: u16) -> String {
    format!(
        "upstream {name} {{ server 127.0.0.1:{port}; keepalive 128;\n\
         keepalive_requests 1000000000; }}\n"
    )
}

/// nginx's directives for a location that forwards to `upstream`.
pub(super) fn proxy_pass(upstream: &str) -> String {
    format!(
        "proxy_pass http://{upstream}; proxy_http_version 1.1; proxy_set_header Connection ''; \
         proxy_set_header Host $host; \
         proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; \
         proxy_set_header X-Forwarded-Proto $scheme;"
    )
}

/// A listener of Envoy that forwards to `cluster`, with these filters in front of the router, and
/// these lines in its route.
pub(super) fn envoy_listener(cluster: &str, filters: &str, tls: Option<&Certificate>) -> String {
    let transport = tls.map_or_else(String::new, |Certificate { chain, key, .. }| {
        let file = |path: &Path| format!("{{filename: '{}'}}", path.display());
        format!(
            "          transport_socket:
            name: envoy.transport_sockets.tls
            typed_config:
              '@type': {TYPES}.transport_sockets.tls.v3.DownstreamTlsContext
              common_tls_context:
                alpn_protocols: [h2, http/1.1]
                tls_certificates: [{{certificate_chain: {}, private_key: {}}}]\n",
            file(chain),
            file(key)
        )
    });
    format!(
        "    - address: {{socket_address: {{address: 127.0.0.1, port_value: {PORT}}}}}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                '@type': {TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: clients
                use_remote_address: true
                route_config:
                  virtual_hosts:
                    - name: service
                      domains: ['*']
                      routes:
                        - match: {{prefix: /}}
                          route: {{cluster: {cluster}, rate_limits: [{{actions: [{{remote_address: {{}}}}]}}]}}
                http_filters:
{filters}
                  - name: envoy.filters.http.router
                    typed_config: {{'@type': {TYPES}.filters.http.router.v3.Router}}
{transport}"
    )
}

/// A cluster of Envoy with one server, over HTTP/2 if `is_http2`.
pub(super) fn envoy_cluster(name: &str, port: u16, is_http2: bool) -> String {
    let protocol = if is_http2 { "http2_protocol_options" } else { "http_protocol_options" };
    format!(
        "    - name: {name}
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          '@type': {TYPES}.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: {{{protocol}: {{}}}}
      load_assignment:
        cluster_name: {name}
        endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}}}}}]}}]\n"
    )
}

/// The start of the names of Envoy's extensions.
pub(super) const TYPES: &str = "type.googleapis.com/envoy.extensions";
