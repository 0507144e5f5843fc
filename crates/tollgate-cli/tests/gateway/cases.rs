//! Tables of configurations, requests and expected responses, in `cases/`.
//!
//! A case starts with `##` and its name. Then it contains the keys under `rateLimiter`, files after
//! `--- NAME`, and its steps after `---`. In the keys, `TARGET` is the upstream's address,
//! `sha256(text)` is an API key's hash, and `documented(PAGE, N)` copies the page's YAML block N.
//!
//! ```text
//! ## quota_is_enforced
//! client: {limit: 2, windowSeconds: 3600}
//! ---
//! GET /a -> 200 200 429
//!   > x-sent: with each request
//!   < x-ratelimit-remaining: 0
//!   code: quota-exceeded
//! ```
//!
//! Indented lines belong to the request above and describe its last response. An empty value means
//! that the header or member must be absent, and `*text` matches a value that contains the text.
//!
//! | indented line | meaning |
//! |---|---|
//! | `> NAME: VALUE`, `>> BODY`, `from ADDRESS` | the client's headers, body and address |
//! | `< NAME: VALUE`, `entries NAME: 2`, `minutes: 5` | a header, its element count, and the rounded `Retry-After` |
//! | `body: TEXT`, `/member/0: VALUE` | the body, or a JSON value in it |
//! | `code`, `status`, `type`, `policies` | a problem's members; `type` shows only the fragment |
//! | `received`, `received body`, `forwarded NAME`, `count` | the upstream's last request and request count |
//!
//! `GET admin/top` asks the admin address with the operator's token, and each other front has its
//! own name. The upstream responds with 200 and `ok` unless the request's headers `x-reply`,
//! `x-reply-body` and `x-reply-NAME` set another response.
//!
//! | further step | meaning |
//! |---|---|
//! | `reload OLD => NEW`, `refuse OLD => NEW` | changes the keys, or writes invalid keys |
//! | `write FILE TEXT` | replaces a named file |
//! | `override ARGUMENTS -> ok`, `… -> fails: TEXT` | runs the command |
//! | `metric LINE`, `unmeasured TEXT`, `logged TEXT` | checks the metrics and the log; `metric START*` matches a prefix |

use std::fs;
use std::net::Ipv4Addr;
use std::process::Command;

use http::Response;
use http_body_util::{BodyExt, Full};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Gateway, Seen, TOKEN, Upstream, exchange_from, sha256};

macro_rules! tables {
    ($($name:ident)*) => { $(
        #[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            check(include_str!(concat!("cases/", stringify!($name), ".txt"))).await;
        }
    )* };
}

tables! { fronts limits logins models operators paths requests routes tenants }

async fn check(table: &str) {
    let mut wrong = Vec::new();
    for case in format!("\n{table}").split("\n## ").skip(1) {
        let (name, case) = case.split_once('\n').unwrap();
        let (keys, rest) = case.split_once("---").expect(name);
        let folder = TempDir::new().unwrap();
        let (files, steps) = format!("---{rest}").split_once("---\n").map_or_else(
            || panic!("{name} has no steps"),
            |(files, steps)| (files.to_owned(), steps.to_owned()),
        );
        for file in files.split("--- ").skip(1) {
            let (name, text) = file.split_once('\n').unwrap();
            fs::write(folder.path().join(name), text).unwrap();
        }
        let upstream = Upstream::answering(reply).await;
        let keys = expanded(keys, &upstream);
        let gateway = Gateway::start_in(folder, &keys);
        let mut case = Case { name, keys, version: 1, gateway, upstream, wrong: Vec::new() };
        let lines = steps.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let lines: Vec<_> = lines.collect();
        assert!(!lines.is_empty(), "{name} has no steps");
        for step in lines.chunk_by(|_, next| next.starts_with(' ')) {
            case.step(step).await;
        }
        wrong.append(&mut case.wrong);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

fn expanded(keys: &str, upstream: &Upstream) -> String {
    let target = if keys.contains("TARGET") { String::new() } else { upstream.target() };
    let mut keys = target + &keys.replace("TARGET", &upstream.address.to_string());
    while let Some((before, rest)) = keys.split_once("sha256(") {
        let (text, after) = rest.split_once(')').unwrap();
        keys = format!("{before}{}{after}", sha256(text));
    }
    while let Some((before, rest)) = keys.split_once("documented(") {
        let (place, after) = rest.split_once(')').unwrap();
        let (page, block) = place.split_once(", ").unwrap();
        keys = format!("{before}{}{after}", documented(page, block.parse().unwrap()));
    }
    keys
}

/// Returns the keys in a page's YAML block, without the target.
pub(crate) fn documented(page: &str, block: usize) -> String {
    let page = fs::read_to_string(format!("{}/../../{page}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let yaml = page.split("```yaml\n").nth(block).unwrap().split("```").next().unwrap();
    let lines = yaml.lines().skip(1).filter(|line| !line.trim_start().starts_with("target:"));
    lines.map(|line| format!("{}\n", line.strip_prefix("  ").unwrap())).collect()
}

/// Responds according to the request's `x-reply` headers.
fn reply(seen: &Seen) -> crate::support::Reply {
    let told = |name: &str, usual: &str| match seen.header(name) {
        "" => usual.to_owned(),
        told => told.to_owned(),
    };
    let mut response = Response::builder().status(&*told("x-reply", "200"));
    for (name, value) in &seen.headers {
        if let Some(name) = name.as_str().strip_prefix("x-reply-").filter(|name| *name != "body") {
            response = response.header(name, value);
        }
    }
    response.body(Full::from(told("x-reply-body", "ok")).boxed()).unwrap()
}

struct Case<'a> {
    name: &'a str,
    keys: String,
    version: u64,
    gateway: Gateway,
    upstream: Upstream,
    wrong: Vec<String>,
}

impl Case<'_> {
    async fn step(&mut self, lines: &[&str]) {
        let (word, rest) = lines[0].split_once(' ').unwrap();
        match word {
            "reload" | "refuse" => {
                let (old, new) = rest.split_once(" => ").expect(rest);
                let (old, new) = (&*old.replace("\\n", "\n"), &*new.replace("\\n", "\n"));
                assert!(self.keys.contains(old), "{}: {old}", self.name);
                let keys = self.keys.replace(old, new);
                self.gateway.rewrite(&keys);
                if word == "reload" {
                    self.keys = keys;
                    self.until_reloaded().await;
                } else {
                    self.gateway.until_config(|config| config["current"] == false).await;
                }
            }
            "write" => {
                let (file, text) = rest.split_once(' ').expect(rest);
                fs::write(self.gateway.file("new"), text).unwrap();
                fs::rename(self.gateway.file("new"), self.gateway.file(file)).unwrap();
                self.until_reloaded().await;
            }
            "override" => {
                let (arguments, expected) = rest.split_once(" -> ").expect(rest);
                let program = Command::new(env!("CARGO_BIN_EXE_tollgate"))
                    .arg("override")
                    .args(arguments.split(' '))
                    .args(["--admin", &format!("http://{}", self.gateway.admin)])
                    .env("TOLLGATE_ADMIN_TOKEN", TOKEN)
                    .output()
                    .unwrap();
                let said = [program.stdout, program.stderr].concat();
                let said = String::from_utf8(said).unwrap();
                let (outcome, text) = expected.split_once(": ").unwrap_or((expected, ""));
                if program.status.success() != (outcome == "ok") || !said.contains(text) {
                    self.wrong.push(format!("{}: {}: {said}", self.name, lines[0]));
                }
            }
            "logged" => self.gateway.until_logged(rest),
            "metric" | "unmeasured" => {
                let metrics = self.gateway.metrics().await;
                let metrics = metrics.replace(&self.upstream.address.to_string(), "TARGET");
                let is_there = match rest.strip_suffix('*') {
                    Some(start) => metrics.lines().any(|line| line.starts_with(start)),
                    None if word == "metric" => metrics.lines().any(|line| line == rest),
                    None => metrics.contains(rest),
                };
                if is_there != (word == "metric") {
                    self.wrong.push(format!("{}: {}: {metrics}", self.name, lines[0]));
                }
            }
            _ => self.request(lines),
        }
    }

    async fn until_reloaded(&mut self) {
        self.version += 1;
        self.gateway.until_config(|config| config["version"] == self.version).await;
    }

    /// Sends a request once for each status, and checks the last response.
    fn request(&mut self, lines: &[&str]) {
        let (request, statuses) = lines[0].rsplit_once(" -> ").expect(self.name);
        let (method, target) = request.split_once(' ').unwrap();
        let fronts = &self.gateway.fronts;
        let front = target.split_once('/').filter(|(front, _)| fronts.contains_key(*front));
        let mut address = front.map_or(self.gateway.address, |(front, _)| fronts[front]);
        if address.ip().is_unspecified() {
            address.set_ip(Ipv4Addr::LOCALHOST.into());
        }
        let target = front.map_or_else(|| target.to_owned(), |(_, path)| format!("/{path}"));
        let is_admin = front.is_some_and(|(front, _)| front == "admin");
        let (mut sent, mut body, mut from) = (String::new(), "", Ipv4Addr::LOCALHOST);
        let mut expected = Vec::new();
        for line in lines[1..].iter().map(|line| line.trim()) {
            match line.split_once(' ') {
                Some((">", header)) => sent += &format!("{}\r\n", self.told(header)),
                Some((">>", text)) => body = text,
                Some(("from", address)) => from = address.parse().unwrap(),
                _ => expected.push(line),
            }
        }
        if !sent.to_ascii_lowercase().contains("host: ") {
            sent += if is_admin { "Host: localhost\r\n" } else { "Host: a\r\n" };
        }
        if is_admin && !sent.contains("Authorization: ") {
            sent += &format!("Authorization: Bearer {TOKEN}\r\n");
        }
        if !body.is_empty() {
            sent += &format!("Content-Length: {}\r\n", body.len());
        }
        let bytes = format!("{method} {target} HTTP/1.1\r\nConnection: close\r\n{sent}\r\n{body}");
        let mut answer = String::new();
        for status in statuses.split(' ') {
            answer = exchange_from(from, address, &bytes);
            if answer.get(9..12) != Some(status) {
                self.wrong.push(format!("{}: {}: {answer}", self.name, lines[0]));
            }
        }
        for line in expected {
            let (what, expected) = line.split_once(':').expect(self.name);
            let found = self.found(what, &answer);
            let expected = self.told(expected.trim());
            let is_met = match expected.strip_prefix('*') {
                Some(part) => !found.is_empty() && found.contains(part),
                None => found == expected,
            };
            if !is_met {
                let name = self.name;
                self.wrong.push(format!("{name}: {}: {line}\nfound {found}\n{answer}", lines[0]));
            }
        }
    }

    fn told(&self, text: &str) -> String {
        text.replace("TARGET", &self.upstream.address.to_string())
    }

    /// Returns the response's value for an indented line.
    fn found(&self, what: &str, answer: &str) -> String {
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((answer, ""));
        let values = |name: &str| {
            shown(head.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(": ")))
        };
        let json = || serde_json::from_str::<Value>(body).unwrap_or_default();
        match what.split_once(' ') {
            Some(("<", header)) => values(header),
            Some(("forwarded", header)) => {
                let seen = self.upstream.last();
                shown(seen.headers.get_all(header).iter().map(|value| value.to_str().unwrap()))
            }
            Some(("received", _)) => String::from_utf8_lossy(&self.upstream.last().body).into(),
            Some(("entries", header)) => values(header).split(',').count().to_string(),
            _ => match what {
                "code" => json()["code"].as_str().unwrap_or_default().to_owned(),
                "status" => json()["status"].to_string(),
                "minutes" => {
                    let wait = values("retry-after").parse::<u64>();
                    wait.map_or_else(|_| String::new(), |wait| wait.div_ceil(60).to_string())
                }
                "type" => {
                    let json = json();
                    let (_, fragment) = json["type"]
                        .as_str()
                        .unwrap_or_default()
                        .rsplit_once('#')
                        .unwrap_or_default();
                    format!("#{fragment}")
                }
                "policies" => json()["violated-policies"].to_string(),
                "count" => self.upstream.seen().len().to_string(),
                "received" => {
                    format!("{} {}", self.upstream.last().method, self.upstream.last().uri)
                }
                "body" => body.to_owned(),
                _ if what.starts_with('/') => {
                    json().pointer(what).map(Value::to_string).unwrap_or_default()
                }
                _ => panic!("{}: {what}", self.name),
            },
        }
    }
}

/// A header's lines. An empty header differs from an absent header.
fn shown<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    let lines: Vec<_> = lines.map(|line| if line.is_empty() { "(empty)" } else { line }).collect();
    lines.join(", ")
}
