//! A replica in a separate process.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};

use tollgate_test_servers::http::Client;

/// A replica on a free port. It is killed on drop, so a failing test leaves no process behind.
pub(crate) struct Replica {
    process: Child,
    stdout: BufReader<ChildStdout>,
    banner: String,
    pub(crate) address: SocketAddr,
}

impl Replica {
    /// Starts a replica and waits until it listens.
    pub(crate) fn start(flags: &[&str]) -> Self {
        Self::spawn(&mut command(flags))
    }

    fn spawn(command: &mut Command) -> Self {
        let process = command.args(["--listen", "127.0.0.1:0"]).stdout(Stdio::piped()).spawn();
        let mut process = process.unwrap();
        let mut stdout = BufReader::new(process.stdout.take().unwrap());
        let mut banner = String::new();
        let address = loop {
            let start = banner.len();
            let read = stdout.read_line(&mut banner).unwrap();
            assert!(read > 0, "{command:?}: exited before it listened: {banner:?}");
            if let Some(url) = banner[start..].trim().strip_prefix("listening  http://") {
                break url.parse().unwrap();
            }
        };
        Self { process, stdout, banner, address }
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(self.address)
    }

    /// Starts a replica and captures its log.
    pub(crate) fn start_logging(flags: &[&str]) -> Self {
        Self::spawn(
            command(flags)
                .env("RUST_LOG", "info,tower_http=debug,tollgate=debug")
                .stderr(Stdio::piped()),
        )
    }

    /// Stops the process and returns its log.
    pub(crate) fn into_log(mut self) -> String {
        self.terminate();
        self.wait();
        let mut log = String::new();
        self.process.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        log
    }

    /// The replica's output up to the line with its address.
    pub(crate) fn banner(&self) -> &str {
        &self.banner
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Sends SIGTERM, which the standard library cannot.
    pub(crate) fn terminate(&self) {
        let kill = format!("kill -TERM {}", self.process.id());
        assert!(Command::new("bash").args(["-c", &kill]).status().unwrap().success());
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.process.wait().unwrap()
    }

    /// Stops the process and returns its complete output.
    pub(crate) fn into_banner(mut self) -> String {
        self.terminate();
        self.wait();
        let mut banner = std::mem::take(&mut self.banner);
        self.stdout.read_to_string(&mut banner).unwrap();
        banner
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        // The process may have exited already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs the program until it exits by itself.
pub(crate) fn run(flags: &[&str], variables: &[(&str, &str)]) -> Output {
    command(flags).envs(variables.iter().copied()).output().unwrap()
}

/// The program with these flags, but without the test's environment.
fn command(flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_replica"));
    command.args(flags).env_clear().env("RUST_LOG", "error").stdin(Stdio::null());
    command
}
