//! A service that authenticates connections instead of requests, such as IIS with NTLM. No other
//! client may use such a connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::{Gateway, RawClient, listen};

/// Starts a service that requires NTLM, and returns the connection's user. NTLM has two steps on the
/// same connection, and `Negotiate` a single step.
fn service() -> SocketAddr {
    let connections = Arc::<AtomicUsize>::default();
    listen(move |stream| {
        let port = stream.local_addr().unwrap().port();
        let number = connections.fetch_add(1, Ordering::Relaxed);
        serve(RawClient::of(stream), &format!("NTLM {port}-{number}"));
    })
}

fn serve(mut client: RawClient, challenge: &str) {
    let mut user = None;
    while let Some(request) = client.message() {
        let authorization = request.lines().find_map(|line| line.strip_prefix("authorization: "));
        let authorization = authorization.unwrap_or_default();
        let name = authorization.strip_prefix(&format!("{challenge} "));
        user =
            name.or_else(|| authorization.strip_prefix("Negotiate ")).map(str::to_owned).or(user);
        let asks = if authorization == "NTLM hello" { challenge } else { "NTLM" };
        client.send(&match &user {
            Some(user) => {
                format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{user}", user.len())
            }
            None => format!(
                "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: {asks}\r\nContent-Length: 0\r\n\r\n"
            ),
        });
    }
}

/// The user of the connection that the service sees, or the challenge.
fn ask(client: &mut RawClient, authorization: &str) -> String {
    let authorization = match authorization {
        "" => String::new(),
        value => format!("Authorization: {value}\r\n"),
    };
    let answer = client.ask(&format!("GET / HTTP/1.1\r\nHost: a\r\n{authorization}\r\n"));
    let (head, user) = answer.split_once("\r\n\r\n").unwrap();
    let challenge = head.lines().find_map(|line| line.strip_prefix("www-authenticate: "));
    challenge.unwrap_or(user).to_owned()
}

#[test]
fn authenticated_connection_serves_one_client() {
    for servers in 1..=2 {
        let services: Vec<_> = (0..servers).map(|_| format!("'http://{}'", service())).collect();
        let gateway = Gateway::start(&format!("target: {{url: [{}]}}\n", services.join(", ")));
        let client = || RawClient::new(gateway.address);
        let ask_as_strangers = || {
            for _ in 0..8 {
                assert_eq!(ask(&mut client(), ""), "NTLM", "{servers} servers");
            }
        };
        ask_as_strangers();
        let mut clients = Vec::new();
        for name in ["ann", "bob"] {
            let mut client = client();
            assert_eq!(ask(&mut client, ""), "NTLM");
            let challenge = ask(&mut client, "NTLM hello");
            ask_as_strangers();
            assert_eq!(ask(&mut client, &format!("{challenge} {name}")), name, "{servers} servers");
            ask_as_strangers();
            clients.push((name, client));
        }
        let mut negotiating = client();
        assert_eq!(ask(&mut negotiating, "Negotiate eve"), "eve");
        clients.push(("eve", negotiating));
        for _ in 0..3 {
            for (name, client) in &mut clients {
                assert_eq!(ask(client, ""), *name, "{servers} servers");
            }
            ask_as_strangers();
        }
        drop(clients);
        ask_as_strangers();
    }
}
