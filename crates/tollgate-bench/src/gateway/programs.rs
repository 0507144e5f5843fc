//! The programs in front of the server, and their configurations.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::Failure;
use crate::process::{Running, free_ports, local, memory};
use crate::redis::peers;
use crate::served::Port;

/// A program and its ports.
pub(super) struct Program {
    process: Running,
    ports: Vec<u16>,
    _folder: Option<TempDir>,
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
        let running = Self { process: Running(process), ports, _folder: Some(folder) };
        if running.ports.len() < 2 {
            return Err("the gateway does not listen".into());
        }
        Ok(running)
    }

    /// The gateway in front of `target`, which is a URL or a section. `listen` is added to the
    /// section of its listener.
    pub(super) fn gateway(target: &str, listen: &str, lines: &str) -> Result<Self, Failure> {
        let listen = format!("{{address: '127.0.0.1:0', maxConnectionsPerAddress: 10000{listen}}}");
        Self::tollgate(&format!("  listen: {listen}\n  target: {target}\n{lines}"))
    }

    /// A program that listens on `count` ports, after its configuration was filled with the ports
    /// and these values.
    fn configured(
        mut command: Command,
        count: usize,
        (mut text, file): (String, PathBuf),
        values: &[(&str, String)],
    ) -> Result<Self, Failure> {
        let ports = free_ports(count)?;
        let numbers = ports.iter().enumerate().map(|(n, port)| (n.to_string(), port.to_string()));
        let values = values.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        for (name, value) in numbers.chain(values) {
            text = text.replace(&format!("{{{name}}}"), &value);
        }
        fs::write(file, text)?;
        let process = Running::listening(&mut command, &ports)?;
        Ok(Self { process, ports, _folder: None })
    }

    /// nginx with two worker processes, and a port for each server in its configuration.
    pub(super) fn nginx(files: &Files, values: &[(&str, String)]) -> Result<Self, Failure> {
        let file = files.path("nginx.conf");
        let mut command = Command::new("nginx");
        command.arg("-p").arg(files.0.path()).arg("-c").arg(&file).stderr(Stdio::null());
        Self::configured(command, 5, (include_str!("nginx.conf").to_owned(), file), values)
    }

    /// Envoy with two worker threads, and a port for each listener in its configuration.
    pub(super) fn envoy(files: &Files, values: &[(&str, String)]) -> Result<Self, Failure> {
        let file = files.path("envoy.yaml");
        let mut command = Command::new("envoy");
        command.arg("-c").arg(&file).stdout(Stdio::null());
        command.args(["--use-dynamic-base-id", "--concurrency", "2", "--log-level", "critical"]);
        Self::configured(command, 6, (include_str!("envoy.yaml").to_owned(), file), values)
    }

    /// limitador-server with these limits in memory, and with two threads. `None` if
    /// `peers/install` did not build it.
    pub(super) fn limitador(files: &Files, limits: &str) -> Result<Option<Self>, Failure> {
        let Some(program) = peers::program("limitador-server") else { return Ok(None) };
        let file = files.write("limitador.yaml", limits.as_bytes())?;
        let ports = free_ports(2)?;
        let [http, grpc] = [ports[0], ports[1]].map(|port| port.to_string());
        let mut command = Command::new(program);
        command.args(["--http-ip", "127.0.0.1", "--http-port", &http, "--rls-ip", "127.0.0.1"]);
        command.args(["--rls-port", &grpc]).arg(file).arg("memory");
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let process = Running::listening(&mut command, &ports)?;
        Ok(Some(Self { process, ports, _folder: None }))
    }

    pub(super) fn port(&self, place: usize) -> Port {
        Port { number: self.ports[place], processes: vec![self.process.id()] }
    }

    /// A port of this program, for a side that needs another program too.
    pub(super) fn port_with(&self, place: usize, other: &Self) -> Port {
        Port { number: self.ports[place], processes: vec![self.process.id(), other.process.id()] }
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
        let resident = || memory(&self.process.id().to_string(), "VmRSS");
        let before = resident()?;
        let mut waiting = Vec::new();
        for _ in 0..connections {
            let mut stream = TcpStream::connect(local(self.ports[0]))?;
            stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")?;
            if stream.read(&mut [0; 4096])? == 0 {
                return Err("the gateway closed a connection".into());
            }
            waiting.push(stream);
        }
        Ok((resident()? - before) / 1024.0 / waiting.len() as f64)
    }
}

/// A folder with a self-signed certificate, and with what the programs read.
pub(super) struct Files(TempDir);

impl Files {
    pub(super) fn new() -> Result<Self, Failure> {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
        let files = Self(TempDir::new()?);
        files.write("chain.pem", made.cert.pem().as_bytes())?;
        files.write("key.pem", made.signing_key.serialize_pem().as_bytes())?;
        files.write("rules.yaml", RULES)?;
        // A `RateLimitRequest` with a domain and a descriptor with one entry.
        let entry = [field(1, b"remote_address"), field(2, b"192.0.2.1")].concat();
        let message = [field(1, b"bench"), field(2, &field(1, &entry))].concat();
        // An uncompressed message of gRPC.
        let length = u32::try_from(message.len())?.to_be_bytes();
        files.write("call", &[&[0], &length[..], &message].concat())?;
        Ok(files)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(super) fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn write(&self, name: &str, content: &[u8]) -> Result<PathBuf, Failure> {
        let file = self.path(name);
        fs::write(&file, content)?;
        Ok(file)
    }
}

/// Rules for the rate limit service. They allow the call.
const RULES: &[u8] = b"domain: bench\ndescriptors: [{key: remote_address, rate_limit: \
    {unit: second, requests_per_unit: 1000000000}}]\n";

/// A field of Protocol Buffers with a short text or message.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, content.len() as u8], content].concat()
}
