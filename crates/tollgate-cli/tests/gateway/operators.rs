//! What operators can read and change through the admin address.

use std::process::Command;

use crate::support::{Client, Gateway, Upstream};

fn lines(upstream: &Upstream, limit: u32) -> String {
    format!(
        "{}strategy: sliding_window_log\n\
         global: {{limit: 1000, windowSeconds: 3600}}\n\
         client: {{limit: {limit}, windowSeconds: 3600}}\n\
         apis:\n\
         - {{identifier: a, path: /a, limit: 2, windowSeconds: 3600}}\n\
         - {{identifier: b, path: /b, limit: 2, windowSeconds: 3600}}\n",
        upstream.target()
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn denials_are_summarized_in_the_log() {
    let upstream = Upstream::new().await;
    let (mut gateway, client) = Gateway::with_client(&lines(&upstream, 3));
    for _ in 0..50 {
        client.get("/b").await;
    }
    gateway.signal("TERM");
    assert!(gateway.wait().success());
    gateway.until_logged("stopped");
    let log = gateway.log();
    // There are two lines if a ten-second period expired in between.
    let told: u32 = log
        .lines()
        .filter_map(|line| line.split_once("tollgate: denied ")?.1.split_once(" under `b` in "))
        .map(|(count, _)| count.split(' ').next().unwrap().parse::<u32>().unwrap())
        .sum();
    assert_eq!(told, 48, "{log}");
    assert!(log.lines().filter(|line| line.contains("den")).count() < 5, "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_clients_are_summarized_in_the_log() {
    let upstream = Upstream::new().await;
    let limit = "client: {limit: 5, windowSeconds: 60}\nidentity: apiKey\n";
    let keys = format!("apiKeys: [{{sha256: {}}}]\n", "a".repeat(64));
    let mut gateway = Gateway::start(&format!("{}{limit}{keys}", upstream.target()));
    assert_eq!(Client::new(gateway.address).get("/").await.status, 403);
    gateway.signal("TERM");
    assert!(gateway.wait().success());
    gateway.until_logged("`identity` found no client in 1 request in the last");
}

#[test]
fn healthcheck_needs_no_token() {
    let gateway = Gateway::start("target: http://localhost:1\nadmin: 0.0.0.0:0\n");
    let run = |admin: &str| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        program.args(["healthcheck", "--admin", admin]).output().unwrap()
    };
    let address = format!("http://127.0.0.1:{}", gateway.admin.port());
    assert_eq!(run(&address).stdout, b"the gateway runs\n");
    drop(gateway);
    let output = run(&address);
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.starts_with(&format!("error[TG0708]: {address}: ")), "{told}");
}

#[test]
fn public_admin_address_without_token_warns() {
    let folder = tempfile::TempDir::new().unwrap();
    let lines = "target: http://localhost:1\nadmin: 0.0.0.0:0\n";
    std::fs::write(folder.path().join("a.yaml"), crate::support::whole(lines)).unwrap();
    let gateway = Gateway::start_under(folder, "a.yaml", &[("TOLLGATE_ADMIN_TOKEN", "")]);
    gateway.until_logged("TOLLGATE_ADMIN_TOKEN");
}
