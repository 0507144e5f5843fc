//! Every file of `examples/gateway` serves requests, with the ports and targets that it names.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn gateway_files_serve_requests() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/gateway");
    let mut files: Vec<_> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".yaml"))
        .collect();
    files.sort();
    assert!(files.len() >= 8, "{files:?}");

    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "--pid", "--fork", "--kill-child"])
        .args(["bash", "-c", SERVE_EACH, "examples"])
        .args([env!("CARGO_BIN_EXE_gateway"), env!("CARGO_BIN_EXE_replica")])
        .args(&files)
        .current_dir(&folder)
        .env_remove("LISTEN")
        .env_remove("ADMIN")
        .env_remove("TARGET")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}\n{shown}", String::from_utf8_lossy(&output.stderr));
    // A request to this file needs a key.
    let status = |file: &str| if file == "llm.yaml" { 401 } else { 200 };
    let expected: Vec<_> = files.iter().map(|it| format!("{it} {} 200", status(it))).collect();
    assert_eq!(shown.lines().collect::<Vec<_>>(), expected);
}

/// Starts Redis and the demo `$2`, then the gateway `$1` with each file in turn. Prints the status
/// of a proxied request and of the admin listener's health check.
const SERVE_EACH: &str = r#"
set -eu
gateway=$1 demo=$2
shift 2
ip link set lo up
redis-server --save '' --appendonly no >/dev/null &
"$demo" --limit 1000000 >/dev/null &
listens() {
  until (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; do
    kill -0 $! || exit 1
    sleep 0.05
  done
}
status() { curl -so /dev/null -w '%{http_code}' --max-time 30 "$1" || true; }
listens 3000
export TOLLGATE_ADMIN_TOKEN=0123456789abcdef0123456789abcdef
for file; do
  "$gateway" serve --config "$file" >/dev/null &
  listens 8080
  echo "$file $(status http://127.0.0.1:8080/items) $(status http://127.0.0.1:8081/healthz)"
  kill $!
  wait $! || true
done
"#;
