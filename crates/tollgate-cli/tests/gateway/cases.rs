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
//! Indented lines belong to the request above and describe its last response. A client's header with
//! an empty value is not sent.
//!
//! | value | matches |
//! |---|---|
//! | empty | an absent header or member |
//! | `*` | any value except null |
//! | `*text`, `^text` | a value that contains the text, or starts with it |
//! | `1..60` | a number from 1 to 60 |
//!
//! | indented line | meaning |
//! |---|---|
//! | `> NAME: VALUE`, `>> BODY`, `from ADDRESS` | the client's headers, body and address |
//! | `< NAME: VALUE`, `entries NAME: 2`, `minutes: 5` | a header, its element count, and the rounded `Retry-After` |
//! | `each NAME: 1 0` | a header in every response of the line above, not only in the last |
//! | `body: TEXT`, `json: VALUE`, `/member/0: VALUE` | the body, its JSON, or a JSON value in it |
//! | `code`, `status`, `type`, `policies` | a problem's members; `type` shows only the fragment |
//! | `received`, `received body`, `forwarded NAME` | the upstream's last request |
//! | `count`, `connections` | the numbers of the upstream's requests and connections |
//!
//! `GET admin/top` asks the admin address with the operator's token, and each other front has its
//! own name. The upstream responds with 200 and `ok` unless the request's headers `x-reply`,
//! `x-reply-body` and `x-reply-NAME` set another response.
//!
//! | further step | meaning |
//! |---|---|
//! | `reload OLD => NEW`, `refuse OLD => NEW` | changes the keys, or writes invalid keys |
//! | `write FILE TEXT` | replaces a named file |
//! | `override ARGUMENTS -> ok`, `… -> fails: TEXT` | runs the command, with the variable in `TOLLGATE_ADMIN_TOKEN=text ARGUMENTS` |
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
    ($($name:ident)*) => {
        const TABLES: &[&str] = &[$(stringify!($name)),*];

        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                check(include_str!(concat!("cases/", stringify!($name), ".txt"))).await;
            }
        )*
    };
}

tables! { fronts limits logins models operators paths requests routes tenants }

#[test]
fn every_table_is_checked() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/gateway/cases");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let mut files: Vec<_> = files.map(|file| file.into_string().unwrap()).collect();
    files.sort();
    assert_eq!(files, TABLES.iter().map(|name| format!("{name}.txt")).collect::<Vec<_>>());
}

async fn check(table: &str) {
    let mut wrong = Vec::new();
    let table = format!("\n{table}");
    let (head, cases) = table.split_once("\n## ").unwrap();
    assert_eq!(lines(head).next(), None, "a line before the first case");
    for case in cases.split("\n## ") {
        let (name, case) = case.split_once('\n').unwrap();
        let case = format!("\n{case}");
        let (given, steps) = case.split_once("\n---\n").expect(name);
        let folder = TempDir::new().unwrap();
        let mut given = given.split("\n--- ");
        let keys = given.next().unwrap_or_default();
        for file in given {
            let (file, text) = file.split_once('\n').expect(name);
            fs::write(folder.path().join(file), format!("{text}\n")).unwrap();
        }
        let upstream = Upstream::answering(reply).await;
        let keys = expanded(keys, &upstream);
        let gateway = Gateway::start_in(folder, &keys);
        let mut case =
            Case { name, keys, version: 1, gateway, upstream, checks: 0, wrong: Vec::new() };
        let steps: Vec<_> = lines(steps).collect();
        for step in steps.chunk_by(|_, next| next.starts_with(' ')) {
            case.step(step).await;
        }
        assert!(case.checks > 0, "{name} checks nothing");
        wrong.append(&mut case.wrong);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// The lines that are not blank and no comments.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
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
    /// The number of steps that check something.
    checks: usize,
    wrong: Vec<String>,
}

impl Case<'_> {
    async fn step(&mut self, lines: &[&str]) {
        let (word, rest) = lines[0].split_once(' ').unwrap();
        assert!(!word.is_empty(), "{}: {} belongs to no request", self.name, lines[0]);
        let words = ["reload", "refuse", "write", "override", "logged", "metric", "unmeasured"];
        if words.contains(&word) {
            assert_eq!(lines.len(), 1, "{}: {} is no request", self.name, lines[0]);
        }
        if !words[..3].contains(&word) {
            self.checks += 1;
        }
        match word {
            "reload" | "refuse" => {
                let (old, new) = rest.split_once(" => ").expect(rest);
                let (old, new) = (&*old.replace("\\n", "\n"), &*new.replace("\\n", "\n"));
                assert!(self.keys.contains(old), "{}: {old}", self.name);
                let keys = self.keys.replace(old, new);
                let failed = |config: &Value| config["failedReloads"].as_u64().unwrap();
                let before = failed(&self.gateway.until_config(|_| true).await);
                self.gateway.rewrite(&keys);
                if word == "reload" {
                    self.keys = keys;
                    self.until_reloaded().await;
                } else {
                    self.gateway.until_config(|config| failed(config) > before).await;
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
                let told = arguments.strip_prefix("TOLLGATE_ADMIN_TOKEN=");
                let (token, arguments) =
                    told.map_or((TOKEN, arguments), |told| told.split_once(' ').expect(rest));
                let program = Command::new(env!("CARGO_BIN_EXE_tollgate"))
                    .arg("override")
                    .args(arguments.split(' '))
                    .args(["--admin", &format!("http://{}", self.gateway.admin)])
                    .env("TOLLGATE_ADMIN_TOKEN", token)
                    .output()
                    .unwrap();
                let said = [program.stdout, program.stderr].concat();
                let said = String::from_utf8(said).unwrap();
                let is_met = match expected.split_once(": ") {
                    None if expected == "ok" => program.status.success(),
                    Some(("fails", text)) => !program.status.success() && said.contains(text),
                    _ => panic!("{}: {expected}", self.name),
                };
                if !is_met {
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
        let (mut headers, mut body, mut from) = (Vec::new(), "", Ipv4Addr::LOCALHOST);
        let mut expected = Vec::new();
        for line in lines[1..].iter().map(|line| line.trim()) {
            match line.split_once(' ') {
                Some((">", header)) => {
                    let (name, value) = header.split_once(':').expect(self.name);
                    headers.push((name, self.told(value.trim())));
                }
                Some((">>", text)) => body = text,
                Some(("from", address)) => from = address.parse().unwrap(),
                _ => expected.push(line),
            }
        }
        let host = if is_admin { "localhost" } else { "a" };
        let token = if is_admin { format!("Bearer {TOKEN}") } else { String::new() };
        let length = if body.is_empty() { String::new() } else { body.len().to_string() };
        let default =
            [("Host", host.to_owned()), ("Authorization", token), ("Content-Length", length)];
        for (name, value) in default {
            if !headers.iter().any(|(other, _)| other.eq_ignore_ascii_case(name)) {
                headers.push((name, value));
            }
        }
        let headers = headers.iter().filter(|(_, value)| !value.is_empty());
        let headers: String = headers.map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let bytes =
            format!("{method} {target} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n{body}");
        let mut answers = Vec::new();
        for status in statuses.split(' ') {
            let answer = exchange_from(from, address, &bytes);
            if answer.get(9..12) != Some(status) {
                self.wrong.push(format!("{}: {}: {answer}", self.name, lines[0]));
            }
            answers.push(answer);
        }
        for line in expected {
            let (what, expected) = line.split_once(':').expect(self.name);
            let found = self.found(what, &answers);
            if !is_met(&found, &self.told(expected.trim())) {
                let (name, answer) = (self.name, answers.last().unwrap());
                self.wrong.push(format!("{name}: {}: {line}\nfound {found}\n{answer}", lines[0]));
            }
        }
    }

    fn told(&self, text: &str) -> String {
        text.replace("TARGET", &self.upstream.address.to_string())
    }

    /// Returns the last response's value for an indented line.
    fn found(&self, what: &str, answers: &[String]) -> String {
        let (head, body) = parts(answers.last().unwrap());
        let json = (!body.is_empty()).then(|| serde_json::from_str::<Value>(body));
        let member = |place: &str| match &json {
            Some(Ok(json)) => json.pointer(place).map(Value::to_string).unwrap_or_default(),
            // An absent member differs from a body without members.
            Some(Err(_)) => "(no JSON)".to_owned(),
            None => String::new(),
        };
        let text = |place: &str| member(place).trim_matches('"').to_owned();
        let last = || self.upstream.last();
        match what.split_once(' ') {
            Some(("<", header)) => values(head, header),
            Some(("each", header)) => {
                let all: Vec<_> = answers.iter().map(|it| values(parts(it).0, header)).collect();
                all.join(" ")
            }
            Some(("entries", header)) => match &*values(head, header) {
                "" => "0".to_owned(),
                entries => entries.split(',').count().to_string(),
            },
            Some(("forwarded", header)) => {
                shown(last().headers.get_all(header).iter().map(|value| value.to_str().unwrap()))
            }
            Some(("received", "body")) => String::from_utf8_lossy(&last().body).into(),
            _ => match what {
                "code" => text("/code"),
                "status" => member("/status"),
                "minutes" => {
                    let wait = values(head, "retry-after").parse::<u64>();
                    wait.map_or_else(|_| String::new(), |wait| wait.div_ceil(60).to_string())
                }
                "type" => text("/type")
                    .rsplit_once('#')
                    .map_or_else(String::new, |(_, it)| format!("#{it}")),
                "policies" => member("/violated-policies"),
                "count" => self.upstream.seen().len().to_string(),
                "connections" => self.upstream.connections().to_string(),
                "received" => format!("{} {}", last().method, last().uri),
                "body" => body.to_owned(),
                "json" => member(""),
                _ if what.starts_with('/') => member(what),
                _ => panic!("{}: {what}", self.name),
            },
        }
    }
}

/// Returns a response's head and body.
fn parts(answer: &str) -> (&str, &str) {
    answer.split_once("\r\n\r\n").unwrap_or((answer, ""))
}

fn values(head: &str, name: &str) -> String {
    shown(head.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(": ")))
}

/// A header's lines. An empty header differs from an absent header.
fn shown<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    let lines: Vec<_> = lines.map(|line| if line.is_empty() { "(empty)" } else { line }).collect();
    lines.join(", ")
}

fn is_met(found: &str, expected: &str) -> bool {
    if let Some((from, to)) = expected.split_once("..")
        && let (Ok(from), Ok(to)) = (from.parse::<u64>(), to.parse())
    {
        return found.parse().is_ok_and(|found| (from..=to).contains(&found));
    }
    match (expected.strip_prefix('*'), expected.strip_prefix('^')) {
        (Some(""), _) => !found.is_empty() && found != "null",
        (Some(part), _) => found.contains(part),
        (_, Some(start)) => !start.is_empty() && found.starts_with(start),
        _ => found == expected,
    }
}

#[test]
fn values_match_as_described() {
    for (found, expected, is_so) in [
        ("", "", true),
        ("(no JSON)", "", false),
        ("a", "*", true),
        ("null", "*", false),
        ("", "*", false),
        ("ab", "*b", true),
        ("ab", "^b", false),
        ("ab", "^a", true),
        ("60", "1..60", true),
        ("61", "1..60", false),
        ("", "1..60", false),
    ] {
        assert_eq!(is_met(found, expected), is_so, "{found} {expected}");
    }
}
