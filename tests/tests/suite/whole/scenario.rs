//! `balancer.sh` against nginx and three replicas.

use std::process::Command;

use super::support::start;

#[test]
fn scenario_passes_through_nginx() {
    // On a busy machine, the requests up to the denial take several seconds.
    let set = start(&["--window", "10s"]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/balancer.sh");
    let url = format!("http://{}", set.nginx.address());
    let output = Command::new("bash").args([script, "--window", "10", "--wait", &url]).output();
    let output = output.unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{printed}{output:?}");
    for line in [
        "  1  GET     200  remaining  99  api1",
        "  2  GET     200  remaining  98  api2",
        "  3  GET     200  remaining  97  api3",
        " 21  POST    201  remaining   0  api3",
        " 22  GET     429  remaining   0  api1",
        "3 servers took turns: api1 api2 api3",
    ] {
        assert!(printed.lines().any(|printed| printed == line), "{line} is not in\n{printed}");
    }
    assert!(printed.contains(" 29  GET     200  remaining "), "{printed}");
}
