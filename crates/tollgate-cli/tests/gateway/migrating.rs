//! Rows of docs/how-to/migrating.md. nginx and the gateway allow the same number of requests, and the
//! decision API accepts the call that replaces a library's.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use tempfile::TempDir;
use tokio::task::JoinSet;
use tollgate_test_servers::{Port, Process, until};

use crate::support::{Client, Gateway, PATIENCE, Upstream};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/how-to/migrating.md");

/// nginx drains a unit in two seconds, so a slow machine changes no number.
const ZONE: &str = "limit_req_zone $binary_remote_addr zone=a:1m rate=30r/m;";

/// The rows with directives of nginx and lines of the gateway's file.
fn rows(page: &str) -> Vec<(String, String)> {
    let (_, section) = page.split_once("## From nginx").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    assert!(section.contains(ZONE), "the page has another zone");
    let code = |cell: &str| Some(cell.trim().strip_prefix('`')?.strip_suffix('`')?.to_owned());
    let rows = section.lines().filter_map(|line| {
        let cells: Vec<_> = line.split('|').collect();
        Some((code(cells.get(1)?)?, code(cells.get(2)?)?))
    });
    rows.collect()
}

fn nginx(directives: &str, upstream: &Upstream) -> (Process, TempDir, Port) {
    let (folder, port) = (TempDir::new().unwrap(), Port::claim().unwrap());
    let (listen, target) = (port.address(), upstream.address);
    let file = format!(
        "events {{}}\nhttp {{\n{ZONE}\naccess_log off;\nclient_body_temp_path a; \
         proxy_temp_path b; fastcgi_temp_path c; uwsgi_temp_path d; scgi_temp_path e;\n\
         server {{ listen {listen}; location / {{ {directives} proxy_pass http://{target}; }} }}\n}}\n"
    );
    fs::write(folder.path().join("nginx.conf"), file).unwrap();
    // Its workers may have another user.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let args = ["-p", ".", "-c", "nginx.conf", "-e", "stderr", "-g", "daemon off; pid pid;"];
    let process = Process::start("nginx", "nginx", args, &[], folder.path()).unwrap();
    until("nginx listens", PATIENCE, || TcpStream::connect(port.address()).ok());
    (process, folder, port)
}

/// How many of 20 requests at the same time are allowed.
async fn allowed(client: Client) -> usize {
    let client = Arc::new(client);
    let mut asked = JoinSet::new();
    for _ in 0..20 {
        let client = Arc::clone(&client);
        asked.spawn(async move { client.get("/").await.status });
    }
    asked.join_all().await.into_iter().filter(|status| *status == 200).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn nginx_and_the_gateway_allow_the_same_requests() {
    let page = fs::read_to_string(PAGE).unwrap();
    let rows = rows(&page);
    assert_eq!(rows.len(), 4, "{rows:?}");
    let upstream = Upstream::new().await;
    let mut counts = Vec::new();
    for (directives, lines) in &rows {
        let (_process, _folder, port) = nginx(directives, &upstream);
        let (_gateway, client) = Gateway::with_client(&format!("{}{lines}\n", upstream.target()));
        let (by_nginx, by_gateway) =
            tokio::join!(allowed(Client::new(port.address())), allowed(client));
        assert_eq!(by_nginx, by_gateway, "{directives}");
        counts.push(by_nginx);
    }
    assert_eq!(counts, [11, 1, 3, 20]);
}

#[tokio::test(flavor = "multi_thread")]
async fn documented_call_gets_a_decision() {
    let page = fs::read_to_string(PAGE).unwrap();
    let row = |start: &str| page.lines().find(|line| line.starts_with(start)).unwrap();
    let last_code = |line: &str| line.rsplit('`').nth(1).unwrap().to_owned();
    let policy = last_code(row("| `new RateLimiterRedis("));
    let body = last_code(row("| `consume(key, points)`"));
    let body = body.replace("\"key\": key", "\"key\": \"ann\"").replace("points", "5");
    let gateway =
        Gateway::start(&format!("decisionApi: {{listen: 127.0.0.1:0, policies: [{policy}]}}\n"));
    let client = Client::new(gateway.fronts["decisionApi"]);
    let json = [("content-type", "application/json")];
    for expected in [true, false] {
        let answer = client.send("POST", "/v1/decide", &json, &body).await.unwrap();
        assert_eq!((answer.status.as_u16(), &answer.json()["allowed"]), (200, &expected.into()));
    }
}
