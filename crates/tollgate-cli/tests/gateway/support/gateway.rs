//! Runs the gateway as a separate process.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::Value;
use tempfile::TempDir;
use tollgate_test_servers::http::{Answer, Client};
use tollgate_test_servers::until_async;

use super::PATIENCE;

/// A gateway with its own ports. Dropping this value kills it, so a failed test leaves no process
/// behind.
pub(crate) struct Gateway {
    process: Child,
    folder: TempDir,
    log: Arc<Mutex<String>>,
    output: Arc<Mutex<String>>,
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    /// All addresses, keyed by their names in the output.
    pub(crate) fronts: HashMap<String, SocketAddr>,
}

impl Gateway {
    /// Starts a gateway with these lines under `rateLimiter` and waits until it listens.
    pub(crate) fn start(lines: &str) -> Self {
        Self::start_in(TempDir::new().unwrap(), lines)
    }

    /// Starts a gateway with a client for its requests.
    pub(crate) fn with_client(lines: &str) -> (Self, Client) {
        let gateway = Self::start(lines);
        let client = Client::new(gateway.address);
        (gateway, client)
    }

    /// Like [`start`](Self::start), but in a folder with additional files.
    pub(crate) fn start_in(folder: TempDir, lines: &str) -> Self {
        fs::write(folder.path().join(FILE), whole(lines)).unwrap();
        Self::start_with(folder, FILE)
    }

    /// Like [`start`](Self::start), but logs each denial.
    pub(crate) fn start_logging_denials(lines: &str) -> Self {
        let level = ("RUST_LOG", "tollgate=debug,tollgate_gateway=info");
        Self::start_with_variables(&[level], lines)
    }

    /// Like [`start`](Self::start), but with these environment variables.
    pub(crate) fn start_with_variables(variables: &[(&str, &str)], lines: &str) -> Self {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join(FILE), whole(lines)).unwrap();
        Self::start_under(folder, FILE, variables)
    }

    /// Starts a gateway with a configuration that already exists in the folder.
    pub(crate) fn start_with(folder: TempDir, file: &str) -> Self {
        Self::start_under(folder, file, &[])
    }

    /// Like [`start_with`](Self::start_with), but with these environment variables.
    pub(crate) fn start_under(folder: TempDir, file: &str, variables: &[(&str, &str)]) -> Self {
        // Most systems start processes with this soft limit.
        Self::launch(folder, "ulimit -Sn 1024", file, variables)
    }

    /// Like [`start`](Self::start), but with a limit on open files.
    pub(crate) fn start_with_file_limit(files: usize, lines: &str) -> Self {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join(FILE), whole(lines)).unwrap();
        Self::launch(folder, &format!("ulimit -n {files}"), FILE, &[])
    }

    fn launch(folder: TempDir, ulimit: &str, file: &str, variables: &[(&str, &str)]) -> Self {
        let mut process = Command::new("bash")
            .args(["-c", &format!("{ulimit} && exec \"$0\" \"$@\"")])
            .args([env!("CARGO_BIN_EXE_tollgate"), "serve", "--config", file])
            .current_dir(folder.path())
            .env_remove("RUST_LOG")
            .env("TOLLGATE_ADMIN_TOKEN", TOKEN)
            .env("TOLLGATE_ADMIN_SUBJECTS", "clear")
            .env_remove("TOLLGATE_ADMIN_HOSTS")
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = collect(process.stderr.take().unwrap());
        let mut banner = BufReader::new(process.stdout.take().unwrap());
        let mut fronts = HashMap::<String, SocketAddr>::new();
        // The admin address is on the last line.
        while !fronts.contains_key("admin") {
            let mut line = String::new();
            let length = banner.read_line(&mut line).unwrap_or(0);
            assert!(length > 0, "the gateway exited early: {}", log.lock().unwrap());
            // Sockets have no port to find out.
            let Some((name, url)) = line.split_once("http") else { continue };
            let address = url.split_once("://").unwrap().1.trim_end().parse().unwrap();
            fronts.entry(name.trim().to_owned()).or_insert(address);
        }
        let admin = fronts["admin"];
        let address = fronts.get("listening").copied().unwrap_or(admin);
        let output = collect(banner);
        Self { process, folder, log, output, address, admin, fronts }
    }

    /// Waits until this text is logged; log lines take a moment to pass through the pipe.
    pub(crate) fn until_logged(&self, text: &str) {
        tollgate_test_servers::until(&format!("{text:?} is logged"), PATIENCE, || {
            self.log().contains(text).then_some(())
        });
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// The standard output after the addresses.
    pub(crate) fn output(&self) -> String {
        self.output.lock().unwrap().clone()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Replaces the configuration the way an editor does: with a rename.
    pub(crate) fn rewrite(&self, lines: &str) {
        fs::write(self.file("new"), whole(lines)).unwrap();
        fs::rename(self.file("new"), self.file(FILE)).unwrap();
    }

    /// Sends a signal through the shell, because the standard library cannot.
    pub(crate) fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.process.id());
        assert!(Command::new("bash").args(["-c", &kill]).status().unwrap().success());
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.process.wait().unwrap()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.process.try_wait().unwrap().is_some()
    }

    /// The peak memory use so far, in MiB.
    pub(crate) fn peak_memory(&self) -> u64 {
        self.status("VmHWM:") / 1024
    }

    /// The current memory use without the program's code, in KiB.
    pub(crate) fn resident(&self) -> u64 {
        self.status("RssAnon:")
    }

    /// The processor time used so far, in clock ticks.
    pub(crate) fn processor_time(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.id())).unwrap();
        // The name in parentheses may contain anything, so start after it. User and system time are
        // the 14th and 15th fields.
        let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
        fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
    }

    /// The number of open files.
    pub(crate) fn open_files(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.process.id())).unwrap().count()
    }

    /// The process's resource limits.
    pub(crate) fn limits(&self) -> String {
        fs::read_to_string(format!("/proc/{}/limits", self.process.id())).unwrap()
    }

    fn status(&self, line: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find_map(|it| it.strip_prefix(line)).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// Sends a GET request without the operator token to the admin address.
    pub(crate) async fn admin(&self, path: &str) -> Answer {
        Client::new(self.admin).get(path).await
    }

    /// Sends a request with the operator token to the admin address.
    pub(crate) async fn operate(&self, method: &str, path: &str) -> Answer {
        let token = format!("Bearer {TOKEN}");
        let client = Client::new(self.admin);
        client.send(method, path, &[("authorization", &token)], "").await.unwrap()
    }

    pub(crate) async fn metrics(&self) -> String {
        String::from_utf8(self.admin("/metrics").await.body.to_vec()).unwrap()
    }

    /// Waits until `is_so` accepts the response of `/config`, and returns it.
    pub(crate) async fn until_config(&self, is_so: impl Fn(&Value) -> bool) -> Value {
        let client = Client::new(self.admin);
        until_async("the configuration is as expected", PATIENCE, async || {
            Some(client.get("/config").await.json()).filter(&is_so)
        })
        .await
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the gateway's log:\n{}", self.log());
        }
        // The process may have exited already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The operator token.
pub(crate) const TOKEN: &str = "0123456789abcdef";

/// Puts the lines under `rateLimiter`. By default, listeners use ports assigned by the system.
pub(crate) fn whole(lines: &str) -> String {
    let mut file = String::from("rateLimiter:\n");
    let lines = lines.lines().map(str::to_owned);
    let mut lines: Vec<_> = lines.filter(|line| !line.trim().is_empty()).collect();
    let fronts = ["forwardAuth:", "rateLimitService:", "decisionApi:"];
    let has_fronts = lines.iter().any(|line| fronts.iter().any(|key| line.contains(key)));
    // A gateway that only decides for other proxies does not need a port for requests.
    let only_answers = has_fronts && !lines.iter().any(|line| line.starts_with("target"));
    for key in ["listen", "admin"] {
        let is_needed = key == "admin" || !only_answers;
        if is_needed && !lines.iter().any(|line| line.trim_start().starts_with(&format!("{key}:")))
        {
            lines.insert(0, format!("{key}: 127.0.0.1:0"));
        }
    }
    for line in lines {
        file.push_str(&format!("  {line}\n"));
    }
    file
}

fn collect(pipe: impl Read + Send + 'static) -> Arc<Mutex<String>> {
    let log = Arc::new(Mutex::new(String::new()));
    let written = Arc::clone(&log);
    thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            let mut log = written.lock().unwrap();
            log.push_str(&line);
            log.push('\n');
        }
    });
    log
}

/// The configuration's file name.
const FILE: &str = "limits.yaml";
