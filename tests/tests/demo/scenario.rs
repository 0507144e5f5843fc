//! `balancer.sh`, against one server.

use std::process::{Command, Output};

use crate::support::Replica;

fn balancer(url: &str) -> Output {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/balancer.sh");
    Command::new("bash").args([script, url]).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn the_scenario_passes_as_printed() {
    let replica = Replica::start(&["--server-id", "api1"]);
    let output = balancer(&replica.url());
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{printed}{}", text(&output.stderr));
    for line in [
        "  1  GET     200  remaining  99  api1",
        " 10  POST    201  remaining  70  api1",
        " 15  SEARCH  200  remaining  55  api1",
        " 20  DELETE  204  remaining   5  api1",
        " 21  POST    201  remaining   0  api1",
        " 22  GET     429  remaining   0  api1",
    ] {
        assert!(printed.lines().any(|printed| printed == line), "{line} is not in\n{printed}");
    }
    assert!(!printed.contains("servers answered"), "{printed}");
}

#[test]
fn the_first_difference_ends_the_scenario() {
    let replica = Replica::start(&["--limit", "99"]);
    let output = balancer(&replica.url());
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.contains("FAILED at request 1: remaining '98', expected 99"), "{printed}");
    assert!(!printed.contains("  2  GET"), "{printed}");
}

#[test]
fn a_server_that_is_not_there_is_no_difference() {
    // A port below 1024 that nothing has used for decades, so that no other test takes it.
    let output = balancer("http://127.0.0.1:1");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).starts_with("error: no answer from http://127.0.0.1:1: "));
}
