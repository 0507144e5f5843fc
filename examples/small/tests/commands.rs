//! Every command that an example prints works as printed.
//!
//! All examples listen on port 3000, so each runs in its own network namespace with its own
//! loopback interface.
#![cfg(target_os = "linux")]

use std::process::{Command, Stdio};
use std::thread;

const EXAMPLES: [(&str, &str); 15] = [
    ("at-once", env!("CARGO_BIN_EXE_at-once")),
    ("calendar", env!("CARGO_BIN_EXE_calendar")),
    ("custom-denial", env!("CARGO_BIN_EXE_custom-denial")),
    ("hyper-server", env!("CARGO_BIN_EXE_hyper-server")),
    ("language-model", env!("CARGO_BIN_EXE_language-model")),
    ("leaky-queue", env!("CARGO_BIN_EXE_leaky-queue")),
    ("lists", env!("CARGO_BIN_EXE_lists")),
    ("lockout", env!("CARGO_BIN_EXE_lockout")),
    ("login", env!("CARGO_BIN_EXE_login")),
    ("per-client", env!("CARGO_BIN_EXE_per-client")),
    ("quickstart", env!("CARGO_BIN_EXE_quickstart")),
    ("tenants", env!("CARGO_BIN_EXE_tenants")),
    ("tiers", env!("CARGO_BIN_EXE_tiers")),
    ("tonic-health", env!("CARGO_BIN_EXE_tonic-health")),
    ("weighted-cost", env!("CARGO_BIN_EXE_weighted-cost")),
];

#[test]
fn printed_commands_reach_their_example() {
    thread::scope(|scope| {
        for (name, program) in EXAMPLES {
            scope.spawn(move || {
                let shown = run(TRY_COMMANDS, name, program);
                assert!(!shown.contains("misconfigured"), "{name}: {shown}");
            });
        }
    });
}

/// The last command's response has the quota from the other service, which was 3 before.
#[test]
fn tenant_has_its_new_quota() {
    let shown = run(TRY_COMMANDS, "tenants", env!("CARGO_BIN_EXE_tenants"));
    assert!(shown.contains("HTTP/1.1 200 OK"), "{shown}");
    assert!(shown.contains(r#"ratelimit-policy: "tenant";q=10;w=60"#), "{shown}");
    assert!(shown.contains(r#"ratelimit: "tenant";r=6;"#), "{shown}");
}

/// `leased` needs Redis and is meant for several replicas, so start two.
#[test]
fn leased_replicas_share_redis() {
    let shown = run(SHARE_REDIS, "leased", env!("CARGO_BIN_EXE_leased"));
    assert_eq!(shown.lines().collect::<Vec<_>>(), ["200", "200"]);
}

/// Runs the script for a program in its own network namespace, and returns its output.
fn run(script: &str, name: &str, program: &str) -> String {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let output = namespace()
        .args(["bash", "-c", script, name, program])
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .output()
        .expect("`unshare` runs");
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {errors}\n{shown}");
    shown
}

/// A command in its own network namespace. When it exits, its processes are killed.
fn namespace() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--net", "--pid", "--fork", "--kill-child"]);
    command
}

/// Starts the program `$1`, then runs the indented lines that it prints. Fails if curl fails.
const TRY_COMMANDS: &str = r#"
set -u
ip link set lo up
"$1" >printed &
until (exec 3<>/dev/tcp/127.0.0.1/3000) 2>/dev/null; do
  kill -0 $! || { echo "$0 ended early" >&2; exit 1; }
  sleep 0.05
done
grep '^  ' printed >commands.sh || { echo "$0 printed no command" >&2; exit 1; }
curl() {
  command curl --max-time 60 "$@"
  local code=$?
  echo "$code curl $*" >>calls
  return $code
}
(source ./commands.sh; wait)
[ -s calls ] && ! grep -v '^0 ' calls >&2
"#;

/// Starts Redis and two replicas of the program `$1`, then waits until each replica allows a
/// request. A replica denies requests until it is connected.
const SHARE_REDIS: &str = r#"
set -u
ip link set lo up
redis-server --save '' --appendonly no >/dev/null &
for port in 3000 3001; do
  "$1" redis://127.0.0.1:6379 "127.0.0.1:$port" >/dev/null &
done
for port in 3000 3001; do
  for attempt in {1..600}; do
    status=$(curl -so /dev/null -w '%{http_code}' --max-time 10 "http://127.0.0.1:$port/")
    [ "$status" = 200 ] && break
    sleep 0.1
  done
  echo "$status"
done
"#;
