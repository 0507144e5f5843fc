//! Third-party clients.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Gateway, Upstream};

#[tokio::test(flavor = "multi_thread")]
async fn curl_obeys_retry_after() {
    let upstream = Upstream::new().await;
    let limit = "client: {limit: 1, window: 2s, strategy: sliding_window_log}\n";
    let gateway = Gateway::start(&format!("{}{limit}", upstream.target()));
    let url = format!("http://{}/", gateway.address);
    let curl = |arguments: &[&str]| {
        let output = Command::new("curl").args(["-sS"]).args(arguments).arg(&url).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(curl(&[]), "ok");
    assert!(curl(&["-i"]).starts_with("HTTP/1.1 429"));
    // A single retry is enough because curl obeys `Retry-After`.
    assert_eq!(curl(&["--fail", "--retry", "1"]), "ok");
    assert_eq!(upstream.seen().len(), 2);
}

/// Most scripts use Python's `requests` with urllib3's `Retry`.
#[tokio::test(flavor = "multi_thread")]
async fn python_requests_obeys_retry_after() {
    let upstream = Upstream::new().await;
    let limit = "client: {limit: 2, window: 2s, strategy: sliding_window_log}\n";
    let gateway = Gateway::start(&format!("{}{limit}", upstream.target()));
    let script = r#"
import sys, time, requests
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

retry = Retry(total=1, status_forcelist=[429], respect_retry_after_header=True)
session = requests.Session()
session.mount("http://", HTTPAdapter(max_retries=retry))
start = time.monotonic()
for _ in range(6):
    answer = session.get(sys.argv[1], timeout=20)
    answer.raise_for_status()
    print(answer.text, answer.headers["X-RateLimit-Limit"])
print("waited" if time.monotonic() - start > 3 else "did not wait")
"#;
    let output = Command::new(python_with_requests())
        .args(["-c", script, &format!("http://{}/", gateway.address)])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let expected = format!("{}waited\n", "ok 2\n".repeat(6));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    assert_eq!(upstream.seen().len(), 6);
}

/// Uses the system's Python if it has the package, or a virtual environment in the build folder.
fn python_with_requests() -> PathBuf {
    let has_requests = |python: &Path| {
        let output = Command::new(python).args(["-c", "import requests, urllib3"]).output();
        output.is_ok_and(|output| output.status.success())
    };
    let system = PathBuf::from("python3");
    if has_requests(&system) {
        return system;
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python");
    let own = folder.join("bin/python");
    if !has_requests(&own) {
        let run = |command: &mut Command| {
            let output = command.output().expect("python3 is there");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "install python3-requests: {said}");
        };
        run(Command::new("python3").args(["-m", "venv"]).arg(&folder));
        run(Command::new(&own).args(["-m", "pip", "install", "--quiet", "requests"]));
    }
    own
}
