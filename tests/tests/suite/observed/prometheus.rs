//! Starts Prometheus.

use std::fmt::Write as _;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use tollgate_test_servers::Process;

use super::files::file;
use tollgate_test_servers::http::Client;

/// A running Prometheus, which is stopped on drop.
pub(crate) struct Prometheus {
    _process: Process,
    client: Client,
}

impl Prometheus {
    /// Scrapes `targets` several times per second, with the rules from `deploy/`.
    pub(crate) async fn start(folder: &Path, targets: &[SocketAddr]) -> Self {
        let mut config =
            "global: {scrape_interval: 250ms, evaluation_interval: 250ms}\n".to_owned();
        let rules = file("prometheus/rules.yml").canonicalize().unwrap();
        writeln!(config, "rule_files: ['{}']", rules.display()).unwrap();
        let targets: Vec<_> = targets.iter().map(|target| format!("'{target}'")).collect();
        writeln!(
            config,
            "scrape_configs: [{{job_name: tollgate, static_configs: [{{targets: [{}]}}]}}]",
            targets.join(", "),
        )
        .unwrap();
        fs::write(folder.join("prometheus.yml"), config).unwrap();
        Self::start_with(folder, &folder.join("prometheus.yml")).await
    }

    /// Starts Prometheus with this configuration file.
    pub(crate) async fn start_with(folder: &Path, config: &Path) -> Self {
        // Prometheus does not report a port chosen by the system, so `attempt` picks a free port.
        // Another program may take it first, so try several times.
        for _ in 0..3 {
            if let Some(prometheus) = Self::attempt(folder, config).await {
                return prometheus;
            }
        }
        panic!("prometheus: {}", fs::read_to_string(folder.join("prometheus.log")).unwrap());
    }

    async fn attempt(folder: &Path, config: &Path) -> Option<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let args = [
            format!("--config.file={}", config.display()),
            "--storage.tsdb.path=data".to_owned(),
            format!("--web.listen-address={address}"),
        ];
        let mut process = Process::start("prometheus", "prometheus", args, &[], folder).unwrap();
        let client = Client::new(address);
        let start = Instant::now();
        while process.ended().is_none() && start.elapsed() < Duration::from_secs(20) {
            if tokio::net::TcpStream::connect(address).await.is_ok()
                && client.get("/-/ready").await.status == 200
            {
                return Some(Self { _process: process, client });
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        None
    }

    /// The data of an API response.
    pub(crate) async fn get(&self, path: &str) -> Value {
        let answer = self.client.get(path).await;
        assert_eq!(answer.header("content-type"), "application/json", "{path}");
        let answer = answer.json();
        assert_eq!(answer["status"], "success", "{path}: {answer}");
        answer["data"].clone()
    }

    /// The current values of a query, without NaN.
    pub(crate) async fn query(&self, query: &str) -> Vec<f64> {
        let encoded = query.bytes().fold(String::new(), |mut encoded, byte| {
            write!(encoded, "%{byte:02X}").unwrap();
            encoded
        });
        let data = self.get(&format!("/api/v1/query?query={encoded}")).await;
        let series = data["result"].as_array().unwrap().iter();
        let values = series.map(|it| it["value"][1].as_str().unwrap().parse::<f64>().unwrap());
        values.filter(|value| !value.is_nan()).collect()
    }
}
