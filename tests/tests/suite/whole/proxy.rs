//! nginx sets the headers that identify the client, and replaces headers that the client sent.

use super::support::{client, start};
use std::net::IpAddr;
use tollgate_test_servers::http::Client;

const BY_ADDRESS: [&str; 8] =
    ["--limit", "3", "--costs", "one", "--key", "ip", "--trusted-proxies", "127.0.0.1"];

#[tokio::test]
async fn forged_addresses_are_ignored() {
    let set = start(&BY_ADDRESS);
    let client = client(&set);
    for expected in [200, 200, 200, 429] {
        assert_eq!(client.get("/items").await.status, expected);
    }
    for forged in [
        &[("x-forwarded-for", "203.0.113.7")][..],
        &[("x-forwarded-for", "203.0.113.7, 127.0.0.1")],
        &[("x-forwarded-for", "203.0.113.7"), ("x-forwarded-for", "203.0.113.8")],
        &[("X_Forwarded_For", "203.0.113.7")],
        &[("forwarded", "for=203.0.113.7")],
        &[("x-real-ip", "203.0.113.7")],
    ] {
        assert_eq!(client.get_with("/items", forged).await.status, 429, "{forged:?}");
    }
}

#[tokio::test]
async fn addresses_have_separate_quotas() {
    let set = start(&BY_ADDRESS);
    for last in [1, 2] {
        let from = IpAddr::from([127, 0, 0, last]);
        let client = Client::connecting_from(from, set.nginx.address());
        for expected in [200, 200, 200, 429] {
            assert_eq!(client.get("/items").await.status, expected, "{from}");
        }
    }
}

#[tokio::test]
async fn request_id_is_set_by_nginx() {
    let set = start(&[]);
    let client = client(&set);
    let answer = client.get_with("/items", &[("x-request-id", "chosen by the client")]).await;
    let ids: Vec<_> = answer.headers.get_all("x-request-id").iter().collect();
    assert_eq!(ids.len(), 1, "{ids:?}");
    let id = ids[0].to_str().unwrap();
    assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
}

#[tokio::test]
async fn nginx_health_ignores_replicas() {
    let mut set = start(&["--limit", "1", "--costs", "one"]);
    let client = client(&set);
    for replica in &mut set.replicas {
        replica.process.kill();
    }
    let answer = client.get("/nginx-health").await;
    assert_eq!((answer.status.as_u16(), &answer.body[..]), (200, &b"ok\n"[..]));
    let answer = client.get("/items").await;
    assert_eq!(answer.status, 502);
    assert_eq!(answer.header("x-request-id").len(), 32);
}
