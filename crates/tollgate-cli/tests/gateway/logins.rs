//! Keys of several parts, and accounts in the body.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use http::Response;
use http_body_util::{BodyExt, Full};
use tokio::task::JoinSet;

use crate::cases::documented;
use crate::support::{Answer, Client, Gateway, RawHttp2, Upstream, listen};

/// The limits of docs/how-to/login.md.
fn login() -> String {
    documented("docs/how-to/login.md", 1)
}

/// Accepts the password `right`.
async fn service() -> Upstream {
    Upstream::answering(|seen| {
        let is_right = seen.body.windows(5).any(|part| part == b"right");
        let status = if is_right { 200 } else { 401 };
        Response::builder().status(status).body(Full::from("told").boxed()).unwrap()
    })
    .await
}

fn clients(gateway: &Gateway, addresses: u8) -> Vec<Client> {
    let from = |last| IpAddr::from(Ipv4Addr::new(127, 0, 1, last));
    (1..=addresses).map(|last| Client::connecting_from(from(last), gateway.address)).collect()
}

fn guess(email: &str, password: &str) -> String {
    serde_json::json!({"email": email, "password": password}).to_string()
}

async fn post(client: &Client, body: &str) -> Answer {
    let json = [("content-type", "application/json")];
    client.send("POST", "/login", &json, body).await.unwrap()
}

/// The statuses of parallel guesses, sorted, with their counts.
async fn parallel(guesses: impl Iterator<Item = (Client, String)>) -> Vec<(u16, usize)> {
    let mut set = JoinSet::new();
    for (client, body) in guesses {
        set.spawn(async move { post(&client, &body).await.status.as_u16() });
    }
    let mut statuses = set.join_all().await;
    statuses.sort_unstable();
    let chunks = statuses.chunk_by(|one, other| one == other);
    chunks.map(|chunk| (chunk[0], chunk.len())).collect()
}

/// 150 guesses at one account from 30 addresses: 5 for each address, and 50 in total.
#[tokio::test(flavor = "multi_thread")]
async fn many_addresses_guess_at_one_account() {
    let upstream = service().await;
    let gateway = Gateway::start(&format!("{}{}", upstream.target(), login()));
    let clients = clients(&gateway, 30);
    let spellings = ["ann@a.example", "ANN@A.example", " Ann@a.example "];
    let guesses = (0..150).map(|n| (clients[n % 30].clone(), guess(spellings[n % 3], "wrong")));
    assert_eq!(parallel(guesses).await, [(401, 50), (429, 100)]);
    assert_eq!(upstream.seen().len(), 50);
    // Other accounts are not concerned.
    assert_eq!(post(&clients[0], &guess("bob@a.example", "wrong")).await.status, 401);
}

/// 150 guesses from one address over 50 accounts: 20 in total.
#[tokio::test(flavor = "multi_thread")]
async fn one_address_guesses_at_many_accounts() {
    let upstream = service().await;
    let gateway = Gateway::start(&format!("{}{}", upstream.target(), login()));
    let clients = clients(&gateway, 2);
    let account = |n: usize| format!("user{}@a.example", n % 50);
    let guesses = (0..150).map(|n| (clients[0].clone(), guess(&account(n), "wrong")));
    assert_eq!(parallel(guesses).await, [(401, 20), (429, 130)]);
    assert_eq!(upstream.seen().len(), 20);
    // The owner logs in from another address.
    assert_eq!(post(&clients[1], &guess(&account(0), "right")).await.status, 200);
}

/// An upstream with HTTP/2 that answers all logins with success. It sends a stream's last frame, which
/// is empty, after the client has received the complete body.
fn upstream_without_end() -> SocketAddr {
    listen(|stream| {
        let mut http2 = RawHttp2::of_server(stream);
        let mut open = None;
        while let Some(stream) = http2.next_request() {
            if let Some(open) = open.replace(stream) {
                http2.data(open, b"", true);
            }
            http2.headers(stream, &[(":status", "200"), ("content-length", "12")], false);
            http2.data(stream, b"{\"ok\": ", false);
            http2.data(stream, b"true}", false);
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn body_is_complete_before_its_stream() {
    let address = upstream_without_end();
    let target = format!("target: {{url: 'http://{address}', protocol: http2}}\n");
    let gateway = Gateway::start(&format!("{target}{}", documented("docs/how-to/login.md", 2)));
    let client = Client::new(gateway.address);
    for _ in 0..3 {
        let answer = post(&client, &guess("ann", "right")).await;
        assert_eq!(answer.body, "{\"ok\": true}");
        assert_eq!(answer.header("x-ratelimit-remaining"), "4");
    }
}

/// The gateway forwards what it has read, and no body avoids the limit.
#[tokio::test(flavor = "multi_thread")]
async fn bodies_are_forwarded_unchanged() {
    let upstream = service().await;
    let gateway = Gateway::start(&format!("{}{}", upstream.target(), login()));
    let clients = clients(&gateway, 9);
    let long = format!("{{\"x\": \"{}\", \"email\": \"ann\"}}", "x".repeat(200_000));
    let exact = format!("{{\"email\": \"a\", \"x\": \"{}\"}}", "x".repeat(65_536 - 23));
    assert_eq!(exact.len(), 65_536);
    let kinds = ["application/json", "application/x-www-form-urlencoded", "text/plain"];
    for (client, (body, kind)) in clients.iter().zip([
        (r#"{"email": "ann", "password": "x"}"#, kinds[0]),
        ("email=ann&password=x", kinds[1]),
        ("", kinds[2]),
        (&*exact, kinds[0]),
        (&long, kinds[0]),
    ]) {
        let answer = client.send("POST", "/login", &[("content-type", kind)], body).await.unwrap();
        assert_eq!(answer.status, 401);
        assert!(upstream.last().body == body, "{kind}");
    }
    let sent = upstream.seen().len();
    for body in [r#"{"email": "a", "Email": "b"}"#, r#"{"email": "a", "em\u0061il": "b"}"#] {
        let answer = post(&clients[6], body).await;
        assert_eq!((answer.status.as_u16(), answer.code()), (400, "ambiguous-key".to_owned()));
    }
    assert_eq!(upstream.seen().len(), sent);
    // Requests without an account share a quota for each address.
    for (body, expected) in
        [("", 401), ("[1]", 401), (&long, 401), ("{", 401), ("x", 401), ("", 429)]
    {
        assert_eq!(post(&clients[7], body).await.status.as_u16(), expected);
    }
    assert_eq!(post(&clients[7], &guess("ann", "wrong")).await.status, 401);
}

/// A client cannot show the gateway a new account with each request, and the service another one.
#[tokio::test(flavor = "multi_thread")]
async fn unreadable_bodies_choose_no_account() {
    let upstream = service().await;
    let gateway = Gateway::start(&format!("{}{}", upstream.target(), login()));
    let client = &clients(&gateway, 1)[0];
    let long = format!("{{\"email\": \"ann\", \"x\": \"{}\"}}", "x".repeat(65_536));
    let json = ("content-type", "application/json");
    let form = ("content-type", "application/x-www-form-urlencoded");
    let parts = ("content-type", "multipart/form-data; boundary=x");
    let bodies = [
        (json, r#"{"email": "ann",}"#, ""),
        (json, "email=N", ""),
        (parts, "--x\r\n\r\n&email=N&\r\n--x--\r\n", ""),
        (form, "email[]=ann&x=N", ""),
        (json, &long, ""),
        (json, r#"{"email": "N"}"#, "gzip"),
    ];
    let send = async |number: usize, target: &str| {
        let (kind, body, coding) = bodies[number];
        let headers = [kind, ("content-encoding", coding)];
        let headers = if coding.is_empty() { &headers[..1] } else { &headers };
        let body = body.replace('N', &format!("new{number}"));
        client.send("POST", target, headers, &body).await.unwrap().status.as_u16()
    };
    for (number, body) in bodies.iter().enumerate() {
        let target = format!("/login?email=new{number}");
        assert_eq!(send(number, &target).await, 400, "{body:?}");
    }
    assert_eq!(upstream.seen().len(), 0);
    for (number, expected) in [401, 401, 401, 401, 401, 429].into_iter().enumerate() {
        assert_eq!(send(number, "/login").await, expected, "{:?}", bodies[number]);
    }
}
