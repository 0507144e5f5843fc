//! Logs of other servers, in their formats.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tollgate_test_servers::until;

use super::{LOG, folder};
use crate::support::{Folder, root};

/// An nginx that logs each request in three formats. Dropping this value stops it.
struct Nginx(Child);

/// Listens on a Unix socket to avoid port conflicts.
const NGINX: &str = r#"daemon off; pid nginx.pid; error_log stderr;
events {}
http {
  log_format custom '$remote_addr [$time_iso8601] "$request" $status $request_time "$http_x_api_key"';
  log_format json escape=json '{"time_iso8601":"$time_iso8601","remote_addr":"$remote_addr",'
    '"request":"$request","status":"$status","request_time":"$request_time"}';
  client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3; uwsgi_temp_path t4;
  scgi_temp_path t5;
  server {
    listen unix:nginx.sock;
    set_real_ip_from unix:;
    real_ip_header X-Forwarded-For;
    access_log combined.log combined; access_log custom.log custom; access_log json.log json;
    location / { return 200 "ok"; }
  }
}
"#;

impl Nginx {
    fn start(folder: &Folder) -> Self {
        folder.write("nginx.conf", NGINX);
        let mut nginx = Command::new("nginx");
        nginx.args(["-p", ".", "-c", "nginx.conf", "-e", "stderr"]).current_dir(folder.path());
        let nginx = Self(nginx.stdin(Stdio::null()).spawn().expect("sudo apt-get install nginx"));
        let socket = folder.path().join("nginx.sock");
        let connect = || UnixStream::connect(&socket).ok();
        until("nginx listens", Duration::from_secs(60), connect);
        nginx
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // SIGTERM also stops the worker; SIGKILL would orphan it.
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

#[test]
fn nginx_logs_are_readable() {
    let folder = folder("");
    let nginx = Nginx::start(&folder);
    let ask = |request: &[u8]| {
        let mut stream = UnixStream::connect(folder.path().join("nginx.sock")).unwrap();
        stream.write_all(request).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert!(!answer.is_empty());
    };
    for target in [&b"/a?b=1"[..], b"/q\"uote", b"/\xff\xfe", b"/b\\s", b"/login", b"/%6cogin"] {
        let fields = b" HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 203.0.113.7\r\nX-Api-Key: k\"7\\\r\nConnection: close\r\n\r\n";
        ask(&[b"GET ", target, fields].concat());
    }
    // A TLS handshake, and an HTTP/0.9 request without a version.
    ask(b"\x16\x03\x01\x02\x00\x01\xfc\x03\x03\r\n");
    ask(b"GET /http09\r\n");
    // nginx flushes its logs when it exits.
    drop(nginx);
    let custom =
        r#"$remote_addr [$time_iso8601] "$request" $status $request_time "$http_x_api_key""#;
    for (log, format) in [("combined", "combined"), ("custom", custom), ("json", "auto")] {
        let log = format!("{log}.log");
        let arguments = ["replay", "limits.yaml", &log, "--log", format, "--format", "json"];
        let output = folder.tollgate(&arguments);
        assert!(output.status.success(), "{log}: {output:?}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let text = fs::read_to_string(folder.path().join(&log)).unwrap_or_default();
        let counts =
            ["lines", "unreadable", "requests", "clients"].map(|it| report[it].as_u64().unwrap());
        assert_eq!(counts, [8, 0, 8, 1], "{report}\n{text}");
        assert_eq!(report["routes"]["(not HTTP)"]["requests"], 2, "{report}\n{text}");
        // Ambiguous paths such as `/b\s` are not charged, and the limit denies both logins.
        assert_eq!(super::counts(&report["policies"]["client"]), [4, 4, 2, 2], "{report}\n{text}");
    }
}

#[test]
fn documented_formats_are_valid() {
    let text = fs::read_to_string(root().join("docs/replay.md")).unwrap();
    let table = text.split("| `--log` | lines |").nth(1).unwrap().split("\n\n").next().unwrap();
    let formats: Vec<&str> = table
        .lines()
        .filter_map(|row| row.strip_prefix("| `")?.split(" |").next())
        .flat_map(|cell| cell.split('`').step_by(2))
        .map(|format| format.trim_matches('\''))
        .filter(|format| !format.is_empty() && !format.starts_with(" ("))
        .collect();
    assert!(formats.len() >= 18, "{formats:?}");
    let folder = folder(LOG);
    for format in formats {
        let output = folder.tollgate(&["replay", "limits.yaml", "access.log", "--log", format]);
        let told = String::from_utf8(output.stderr).unwrap();
        // The log has another format, so only errors in the format itself count.
        assert!(!told.contains("in the format") && !told.contains("not a log format"), "{told}");
    }
}
