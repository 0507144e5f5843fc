//! Requests from an access log.

use super::*;

const LINES: &str = "\
203.0.113.1 - - [22/Nov/2026:09:00:00 +0000] \"GET / HTTP/1.1\" 200 5
203.0.113.1 - - [22/Nov/2026:09:00:00 +0000] \"GET / HTTP/1.1\" 200 5
203.0.113.2 - - [22/Nov/2026:09:00:00 +0000] \"GET / HTTP/1.1\" 200 5
203.0.113.1 - - [22/Nov/2026:09:00:30 +0000] \"GET / HTTP/1.1\" 200 5
203.0.113.1 - - [22/Nov/2026:09:00:31 +0000] \"GET / HTTP/1.1\" 200 5
";

fn log_of(lines: &str) -> tempfile::NamedTempFile {
    let mut log = tempfile::NamedTempFile::new().unwrap();
    log.write_all(lines.as_bytes()).unwrap();
    log
}

fn requests_of(log: &tempfile::NamedTempFile) -> Vec<Requests> {
    let records = Records::new(vec![Input::open(log.path()).unwrap()], &Options::default());
    recorded(records).unwrap().requests
}

#[test]
fn recorded_requests_have_their_times_and_clients() {
    let log = log_of(LINES);
    let mut test = Test::new("recorded").expect(Expected::allowed(4));
    test.requests = requests_of(&log);
    let create =
        |store| routes(layer(store, Policy::token_bucket("client", Quota::per_minute(2)).unwrap()));
    passes(&test, create);
    // Each line is a sender, and clients are counted over all lines.
    let failed = |expected| {
        let mut test = Test::new("recorded").expect(expected);
        test.requests = requests_of(&log);
        Simulation::of(create).check(&test).into_iter().map(|failed| failed.got).collect::<Vec<_>>()
    };
    assert_eq!(failed(Expected::allowed_per_client(1)), ["3 allowed for 203.0.113.1"]);
    assert_eq!(failed(Expected::allowed_per_client(1..=3)), [""; 0]);
    let never = Expected::never_more_than_per_client(1, MINUTE);
    assert_eq!(failed(never), ["2 allowed from 0 s on"]);
}

#[test]
fn senders_share_their_clients() {
    let get = || Requests::get("/").count(2);
    let test = Test::new("shared").send(get()).send(get());
    let test = test.expect(Expected::allowed_per_client(2));
    let failed = Simulation::of(bucket).check(&test);
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!(failed[0].got, "4 allowed for 203.0.113.1");
}

#[test]
fn odd_lines_are_skipped() {
    let lines = [
        ("203.0.113.9", "22/Nov/2026:08:00:00", "GET /<script> HTTP/1.1"),
        ("203.0.113.1", "22/Nov/2026:09:00:00", "GET /{client} HTTP/1.1"),
        ("203.0.113.1", "22/Nov/2026:09:00:01", "GET /%7Bclient%7D?a=1 HTTP/1.1"),
        ("203.0.113.1", "22/Nov/2026:09:00:02", "GE(T / HTTP/1.1"),
    ];
    let lines =
        lines.map(|(client, time, line)| format!("{client} - - [{time} +0000] \"{line}\" 200 5\n"));
    let log = log_of(&lines.concat());
    let records = Records::new(vec![Input::open(log.path()).unwrap()], &Options::default());
    let recorded = recorded(records).unwrap();
    // `http` accepts braces in a path.
    assert_eq!((recorded.requests.len(), recorded.skipped), (2, 2));
    assert_eq!(recorded.requests[0].sender.at.get(), 0);
    assert_eq!(recorded.requests[0].for_client(&recorded.requests[0].path, 3), "/{client}");
    let mut test = Test::new("odd").expect(Expected::status(404));
    test.requests = recorded.requests;
    passes(&test, bucket);
}

#[test]
fn lines_without_an_address_are_errors() {
    let log = log_of(
        "unix: - - [22/Nov/2026:09:00:00 +0000] \"GET / HTTP/1.1\" 200 5\n\
         203.0.113.1 - - [22/Nov/2026:09:00:00 +0000] \"GET / HTTP/1.1\" 200 5\n",
    );
    let records = Records::new(vec![Input::open(log.path()).unwrap()], &Options::default());
    let error = recorded(records).unwrap_err().to_string();
    assert!(error.starts_with("1 of the log's requests have no client address"), "{error}");
}

#[test]
fn recorded_credentials_are_not_shown() {
    let mut request = Requests::get("/").count(20).header("Authorization", "Bearer secret");
    request.is_recorded = true;
    let failed = Simulation::of(bucket)
        .check(&Test::new("secret").send(request).expect(Expected::denied(0)));
    let table = failed[0].to_string();
    assert!(table.contains("of 203.0.113.1") && !table.contains("secret"), "{table}");
}
