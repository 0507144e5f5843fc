//! nginx, the load balancer.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::process::Process;
use crate::{Failure, port};

/// nginx with the configuration of `docker-compose.yml`, in front of replicas on this machine.
#[derive(Debug)]
pub struct Nginx {
    /// The process, which can be frozen or stopped.
    pub process: Process,
    address: SocketAddr,
    replicas: Vec<SocketAddr>,
    folder: PathBuf,
}

impl Nginx {
    /// Starts nginx on `listen` and waits until it responds. Port 0 selects a free port.
    ///
    /// # Errors
    /// The port is in use, or nginx is missing or does not start.
    pub fn start(
        listen: SocketAddr,
        replicas: &[SocketAddr],
        folder: &Path,
    ) -> Result<Self, Failure> {
        let address = port::chosen(listen)?;
        port::is_free(address, "nginx")?;
        render(address, replicas, folder).map_err(|error| {
            Failure::new(format!("cannot write to {}: {error}", folder.display()))
        })?;
        // The flags match those of the container image. Paths are relative to the folder, and
        // `-e` replaces the default error log, which this user may be unable to open.
        let args = ["-p", ".", "-c", "nginx.conf", "-e", "stderr"];
        let args = args.into_iter().chain(["-g", "daemon off; pid nginx.pid;"]);
        let mut process = Process::start("nginx", "nginx", args, &[], folder)?;
        process.until(|_| is_healthy(address).unwrap_or_default())?;
        Ok(Self { process, address, replicas: replicas.to_owned(), folder: folder.to_owned() })
    }

    /// Kills nginx if it still runs, and starts it again on the same port.
    ///
    /// # Errors
    /// The same as [`Nginx::start`].
    pub fn restart(&mut self) -> Result<(), Failure> {
        self.process.kill();
        // The workers also hold the port. They are not our child processes, so we poll the port.
        let start = Instant::now();
        while port::is_free(self.address, "nginx").is_err() && start.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(5));
        }
        *self = Self::start(self.address, &self.replicas, &self.folder)?;
        Ok(())
    }

    /// The address on which nginx listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

fn is_healthy(address: SocketAddr) -> io::Result<bool> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET /nginx-health HTTP/1.0\r\n\r\n")?;
    let mut start = [0; b"HTTP/1.1 200".len()];
    stream.read_exact(&mut start)?;
    Ok(start.ends_with(b" 200"))
}

/// Writes the configuration and the files that it includes.
fn render(listen: SocketAddr, replicas: &[SocketAddr], folder: &Path) -> io::Result<()> {
    fs::write(folder.join("nginx.conf"), NGINX)?;
    fs::write(folder.join("listen.conf"), format!("listen {listen};\n"))?;
    fs::write(folder.join("upstream.conf"), upstream(replicas) + TEMPORARY)
}

/// The upstream block from `nginx/upstream.conf`, with these replicas' addresses.
fn upstream(replicas: &[SocketAddr]) -> String {
    let mut text = String::new();
    let mut replicas = Some(replicas);
    for line in UPSTREAM.lines() {
        let Some((before, server)) = line.split_once("server ") else {
            text.push_str(line);
            text.push('\n');
            continue;
        };
        // The lines differ only in the address, so every replica gets the first line's options.
        let (_, options) = server.split_once(' ').unwrap_or((server, ";"));
        for replica in replicas.take().into_iter().flatten() {
            text.push_str(&format!("{before}server {replica} {options}\n"));
        }
    }
    text
}

const PATIENCE: Duration = Duration::from_secs(2);

const NGINX: &str = include_str!("../../../nginx/nginx.conf");
const UPSTREAM: &str = include_str!("../../../nginx/upstream.conf");

/// nginx creates these folders at startup. Its default paths are writable only for root.
const TEMPORARY: &str = "
client_body_temp_path temporary;
proxy_temp_path temporary;
fastcgi_temp_path temporary;
uwsgi_temp_path temporary;
scgi_temp_path temporary;
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstream_lists_local_replicas() {
        let replicas = [1, 2].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let text = upstream(&replicas);
        let servers: Vec<_> = text.lines().filter(|line| line.contains("server ")).collect();
        assert_eq!(servers.len(), 2, "{text}");
        assert!(servers[1].starts_with("    server 127.0.0.1:2 max_fails="), "{text}");
        assert!(text.contains("zone replicas ") && text.contains("keepalive "), "{text}");
    }
}
