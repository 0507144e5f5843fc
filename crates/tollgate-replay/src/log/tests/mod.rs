mod samples;
mod threads;
mod wrong_times;

use std::io::{self, Cursor, Read, Write as _};
use std::panic::catch_unwind;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, ThreadId};

use proptest::prelude::*;
use tollgate_core::{Micros, Timestamp};

use super::*;

const LINE: &str =
    "203.0.113.7 - ann [10/Oct/2000:13:55:36 -0700] \"GET /a?b=1 HTTP/1.1\" 200 2326";

fn records(text: impl Into<Vec<u8>>, options: &Options) -> Records {
    let text: Vec<u8> = text.into();
    Records::new(vec![Input::from_reader("test.log", Cursor::new(text)).unwrap()], options)
}

fn with(format: &str) -> Options {
    Options { format: format.parse().unwrap(), ..Options::default() }
}

/// A description of the first record in a text.
fn one(text: &str, format: &str) -> String {
    described(&records(text, &with(format)).next().unwrap().unwrap())
}

fn described(record: &Record<'_>) -> String {
    let said = format!(
        "{} {:?} {:?} {} {} {:?} {} {} {:?} {:?}",
        record.at.as_micros(),
        record.duration.map(Micros::get),
        record.address.map(|it| it.to_string()),
        record.method,
        record.target,
        record.host,
        record.status,
        record.bytes,
        record.user,
        record.tier,
    );
    let fields = record.headers.iter().map(|(name, value)| format!(" {name}={value}"));
    said + &fields.collect::<String>()
}

/// The error for the first text that cannot be read, or nothing.
fn reason(text: impl Into<Vec<u8>>, options: &Options) -> String {
    let mut records = match Input::from_reader("test.log", Cursor::new(text.into())) {
        Ok(input) => Records::new(vec![input], options),
        Err(error) => return error.to_string(),
    };
    loop {
        match records.next() {
            Ok(Some(_)) => {}
            Ok(None) => break String::new(),
            Err(error) => break error.to_string(),
        }
    }
}

/// The targets of all records, and the unreadable lines.
fn read(mut records: Records) -> (Vec<String>, String) {
    let mut targets = Vec::new();
    while let Some(record) = records.next().unwrap() {
        targets.push(record.target.to_owned());
    }
    let reasons = records.shown().iter().map(|it| format!("{}: {}", it.line, it.reason));
    (targets, reasons.collect::<Vec<_>>().join(", "))
}

const JSON: &str = "json:time=t,address=a.ip,method=m,target=u,user=who";
const JSON_LINE: &str = r#"{"t":1,"a":{"ip":"203.0.113.7"},"m":"GET","u":"/","who":null}"#;

/// Most formats are in the samples.
#[test]
fn stated_formats_are_read() {
    let common =
        "971211336000000 None Some(\"203.0.113.7\") GET /a?b=1 None 200 2326 Some(\"ann\") None";
    assert_eq!(one(LINE, "common"), common);
    let combined = format!("{LINE} \"http://example.com/\\\"\" \"Mozilla/5.0 (X11)\" extra");
    assert_eq!(one(&combined, "combined"), common);
    let with_host = common.replace("None 200", "Some(\"shop.example:443\") 200");
    for format in ["auto", "vhost_combined"] {
        assert_eq!(one(&format!("shop.example:443 {combined}"), format), with_host);
    }
    let full = with_host.replace("000 None", "000 Some(250000)").replace(":443", "");
    let dollars = "$remote_addr [$time_local] $remote_user $host $request_time $status \
        $body_bytes_sent \"$request\" \"$http_x_api_key\"";
    let line = "203.0.113.7 [10/Oct/2000:13:55:36.250 -0700] ann shop.example 0.250 200 2326 \
        \"GET /a?b=1 HTTP/2.0\" \"k-7\"";
    assert_eq!(one(line, dollars), format!("{full} x-api-key=k-7"));
    let names = "json:time=t,address=who.ip,tier=who.plan,method=m,target=u,status=s,bytes=n,\
        user=who.name";
    let line = r#"{"who":{"ip":"203.0.113.7","plan":"pro"},"t":971211336000,"m":"GET","u":"\/a?b=1","s":200,"n":2326,"who.name":"ann"}"#;
    assert_eq!(one(line, names), common.replace("\") None", "\") Some(\"pro\")"));
}

/// Rows of a table: a format, a change to [`LINE`] or [`JSON_LINE`] or another line, and an
/// expectation.
fn rows(table: &str) -> impl Iterator<Item = (&str, String, &str)> {
    table.lines().filter(|row| !row.is_empty()).map(|row| {
        let [format, line, expected] = row.split(" | ").collect::<Vec<_>>()[..] else {
            panic!("{row}");
        };
        let (format, base) = match format {
            "json" => (JSON, JSON_LINE),
            text => (text, LINE),
        };
        let line = match line.split_once(" > ") {
            Some((from, to)) => base.replace(from, to),
            None => line.to_owned(),
        };
        (format, line, expected)
    })
}

#[test]
fn odd_lines_are_read() {
    for (format, line, expected) in rows(
        r#"
auto | /a?b=1 > /a\x22b\"c | GET /a"b"c None
auto | 203.0.113.7 > unix: | None None GET
auto | 203.0.113.7 > @ | None None GET
json | "GET" > null | 203.0.113.7")  /@
json:end=e,method=m,target=u,seconds=d | {"e":"100.5","m":"GET","u":"/","d":0.5} | 100000000 Some(500000)
[${time_local}]x"$request" | [10/Oct/2000:13:55:36 -0700]x"GET / HTTP/1.1" | GET /@
"#,
    ) {
        let said = one(&line, format);
        assert!(said.contains(&expected.replace('@', " ")), "{line}: {said}");
    }
    assert!(one(&format!("\u{feff}{LINE}"), "auto").contains("203.0.113.7"));
    for request in
        ["-", "", "\\x16\\x03\\x01", "GET", " / HTTP/1.1", "GET /a b HTTP/1.1", "G(T /a HTTP/1.1"]
    {
        let line = LINE.replace("GET /a?b=1 HTTP/1.1", request);
        let mut records = records(line, &Options::default());
        assert_eq!(records.next().unwrap().unwrap().method, "", "{request}");
    }
}

#[test]
fn invalid_utf8_does_not_make_lines_unreadable() {
    let line = |target: &[u8], agent: &[u8]| {
        let start =
            br#"{"time_iso8601":"2000-10-10T13:55:36-07:00","remote_addr":"::1","request_uri":""#;
        let method = br#"","request_method":"GET","agent":""#;
        [start, target, method, agent, b"\"}\n"].concat()
    };
    let text = [line(b"/a", b"\xff\xfe"), line(b"/\xff", b"")].concat();
    let mut records = records(text, &with("nginx-json"));
    let record = records.next().unwrap().unwrap();
    assert_eq!((record.method, record.target), ("GET", "/a"));
    assert_eq!(records.next().unwrap().unwrap().method, "");
    assert!(records.next().unwrap().is_none());
    assert_eq!(records.unreadable(), 0);
}

#[test]
fn errors_name_the_line_the_field_and_a_cure() {
    for (format, line, expected) in rows(
        r##"
common | 10/Oct > 10/Okt | its time_local is `10/Okt/2000:13:55:36 -0700`, which is not a time
common | 10/Oct > 10/Okt | line 1
common | 10/Oct > 10/Okt | test.log
common | - ann [ > - ann ( | after remote_user it has no ` [`
common | HTTP/1.1" > HTTP/1.1 | after request it has no `" `
common | x | the only line of test.log cannot be read as a common
caddy | {"ts":1 | it is not a JSON object: EOF
caddy | {} | it has no field `ts`
caddy | {"ts":true} | it has no field `ts`
w3c | 1 2 | no line that starts with `#Fields:`
auto | {"ts":1} | cannot be read as a JSON log of Caddy
auto | {"a":1} | cannot be read as a JSON log of
auto | 203.0.113.7 > crawl-66.example.com | which is not the address of a client
auto | 203.0.113.7 > - | which is not the address of a client
auto | 203.0.113.7 > "203.0.113.7 | which is not the address of a client
auto | 203.0.113.7 > - | name its format (--log)
json | "ip" > "IP" | it has no field `a.ip`
json | 203.0.113.7 > host.example | its a.ip is `host.example`
json | "203.0.113.7" > null | it has no field `a.ip`
json | "m" > "verb" | it has no field `m`
json | "u" > "url" | it has no field `u`
json | "who" > "user" | no line of test.log has the field `who`
"##,
    ) {
        let said = reason(line.clone(), &with(format));
        assert!(said.contains(expected), "{line}: {said}");
    }
    for (text, format, expected) in [
        ("", "auto", "test.log has no lines: there is nothing to replay"),
        ("\n", "common", "it ends before remote_addr"),
        (&"\0\n".repeat(5_000), "auto", "can be read as a common or combined log"),
        (&"\0".repeat(3 << 20), "auto", "is longer than 1 MiB"),
    ] {
        let said = reason(text, &with(format));
        assert!(said.contains(expected), "{said}");
    }
    // A field may be absent in all lines, but a field without a readable value has a wrong name.
    for (value, is_wrong) in [("-1", false), ("null", false), ("\"-\"", false), ("\"ok\"", true)] {
        let line = JSON_LINE.replace("\"t\"", &format!("\"s\":{value},\"t\""));
        let said = reason(line, &with(&format!("{JSON},status=s")));
        assert_eq!(said.contains("has the field `s` with"), is_wrong, "{value}");
    }
    let one_of_two = LINE.replace("203.0.113.7", "host.example") + "\n" + LINE;
    let mut records = records(one_of_two, &Options::default());
    assert_eq!(records.next().unwrap().unwrap().line, 2);
    assert!(records.next().unwrap().is_none());
    assert_eq!(records.unreadable(), 1);
}

#[test]
fn strict_run_aborts_at_unreadable_lines() {
    let text = format!("{LINE}\nnonsense\n{LINE}\n\n{LINE}\n");
    let mut lenient = records(text.clone(), &Options { shown: 1, ..Options::default() });
    let mut lines = Vec::new();
    while let Some(record) = lenient.next().unwrap() {
        lines.push(record.line);
    }
    assert_eq!((lines, lenient.unreadable(), lenient.progress().lines), (vec![1, 3, 5], 2, 5));
    assert_eq!(lenient.shown().len(), 1);
    assert_eq!(lenient.shown()[0].line, 2);
    let error = reason(text, &Options { strict: true, ..Options::default() });
    assert!(error.starts_with("line 2 of test.log cannot be read: "), "{error}");
}

#[test]
fn compressed_logs_are_read() {
    let text: String = (0..5_000).map(|n| LINE.replace("a?b=1", &n.to_string()) + "\n").collect();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(text.as_bytes()).unwrap();
    let gzip = gzip.finish().unwrap();
    let cut = reason(&gzip[..gzip.len() / 2], &Options::default());
    assert!(cut.starts_with("cannot read test.log after line "), "{cut}");
    let zstd = zstd::stream::encode_all(text.as_bytes(), 1).unwrap();
    // Concatenated gzip files are valid.
    for (bytes, times) in [(text.clone().into_bytes(), 1), (gzip.repeat(2), 2), (zstd, 1)] {
        let targets = (0..times).flat_map(|_| 0..5_000).map(|n| format!("/{n}")).collect();
        assert_eq!(read(records(bytes, &Options::default())), (targets, String::new()));
    }
    let folder = tempfile::tempdir().unwrap();
    let error = Input::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("it is a directory"), "{error}");
    assert!(Input::open(Path::new("/no/such.log")).is_err());
}

#[test]
fn format_descriptions_are_validated() {
    for (text, expected) in [
        ("combinde", "is not a log format"),
        ("$remote_addr$status", "nothing separates `$status`"),
        ("$status \"$request\"", "no time in the format"),
        ("[$time_local] $status", "no request in the format"),
        ("[$time_local] $", "a `$` without a name"),
        ("[$time_local] $request_uri", "no method in the format"),
        ("json:time=t", "no request in the format"),
        ("json:time=ts,address=client.ip,target=url", "no method in the format"),
        ("json:t", "is not a pair"),
        ("json:when=t", "`when` is not a field"),
        ("json:target=t", "no time in the format"),
    ] {
        let error = text.parse::<Format>().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert_eq!(SHAPES.len(), KNOWN.len());
}

/// A log with these times in seconds. Each line's target is its number.
fn log(seconds: &[u64]) -> String {
    let line =
        |(n, second): (usize, &u64)| format!("{{\"t\":{second},\"m\":\"GET\",\"u\":\"/{n}\"}}\n");
    seconds.iter().enumerate().map(line).collect()
}

proptest! {
    #[test]
    fn lines_within_the_bound_are_sorted(
        steps in prop::collection::vec((0_u64..4, 0_u64..30), 1..300),
        bound in 0_u64..40,
    ) {
        let mut now = 10_000;
        let seconds: Vec<_> = steps.iter().map(|(step, back)| { now += step; now - back }).collect();
        let format = "json:time=t,method=m,target=u".parse().unwrap();
        let reorder = std::time::Duration::from_secs(bound);
        let mut records = records(log(&seconds), &Options { format, reorder, ..Options::default() });
        let (mut seen, mut before) = (Vec::new(), 0);
        while let Some(record) = records.next().unwrap() {
            let (at, number) = (record.at.as_micros(), record.target[1..].parse::<usize>().unwrap());
            prop_assert!(at >= before && at >= seconds[number] * 1_000_000);
            before = at;
            seen.push((at, number));
        }
        let mut all: Vec<_> = seen.iter().map(|(_, number)| *number).collect();
        all.sort_unstable();
        prop_assert_eq!(all, (0..seconds.len()).collect::<Vec<_>>());
        if bound >= 30 {
            prop_assert_eq!(records.late(), 0);
            let mut sorted: Vec<_> = seconds.iter().map(|it| it * 1_000_000).zip(0..).collect();
            sorted.sort_unstable();
            prop_assert_eq!(seen, sorted);
        }
    }

    #[test]
    fn several_files_are_merged(
        files in prop::collection::vec(prop::collection::vec(0_u64..50, 1..40), 1..5),
    ) {
        let options = with("json:time=t,method=m,target=u");
        let inputs = files.iter().map(|steps| {
            let mut now = 1_000;
            let seconds: Vec<_> = steps.iter().map(|step| { now += step; now }).collect();
            Input::from_reader("part", Cursor::new(log(&seconds))).unwrap()
        });
        let mut records = Records::new(inputs.collect(), &options);
        let (mut before, mut count) = (0, 0);
        while let Some(record) = records.next().unwrap() {
            prop_assert!(record.at.as_micros() >= before);
            (before, count) = (record.at.as_micros(), count + 1);
        }
        prop_assert_eq!(count, files.iter().map(Vec::len).sum::<usize>());
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        tokens in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
        format in any::<prop::sample::Index>(),
    ) {
        let [all, formats] = [TOKENS, FORMATS].map(|list| Vec::from_iter(list.split('|')));
        let tokens: Vec<u8> = tokens.iter().flat_map(|token| token.get(&all[..]).bytes()).collect();
        for bytes in [bytes, tokens] {
            let Ok(input) = Input::from_reader("odd", Cursor::new(bytes)) else { continue };
            let mut records = Records::new(vec![input], &with(formats[format.index(formats.len())]));
            while let Ok(Some(record)) = records.next() {
                prop_assert!(record.method.is_empty() || !record.target.is_empty());
            }
        }
    }
}

const FORMATS: &str = "auto|caddy|haproxy|aws-alb|envoy-text|w3c|nginx-json|\
    #Fields: date time cs-method cs-uri-stem cs-uri-query time-taken cs(A)|\
    $remote_addr \"$request\" [$time_local] \"$http_cookie\"|\
    json:time=t,method=m,target=u,seconds=d";
const TOKENS: &str = "#Fields: date time cs-method cs-uri-stem cs-uri-query\n|#Date: 2000-10-10|\
    2000-10-10|13:55:36|<1>Oct  1 1:1 a b: |#2|\n| |\"|\\|\\x2|[|]|-|10/Oct/2000:13:55:36 -0700|\
    GET / HTTP/1.1|127.0.0.1|200|{|}|:|,|\"t\"|\"u\"|\"request\"|1.5";
