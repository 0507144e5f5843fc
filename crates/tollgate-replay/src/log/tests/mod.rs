mod samples;

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

fn reason(text: &str, format: &str) -> String {
    let mut records = records(format!("{text}\n"), &with(format));
    loop {
        match records.next() {
            Ok(Some(_)) => {}
            Ok(None) => break String::new(),
            Err(error) => break error.to_string(),
        }
    }
}

#[test]
fn formats_of_all_servers_are_read() {
    let common =
        "971211336000000 None Some(\"203.0.113.7\") GET /a?b=1 None 200 2326 Some(\"ann\") None";
    assert_eq!(one(LINE, "auto"), common);
    assert_eq!(one(LINE, "common"), common);
    let combined = format!("{LINE} \"http://example.com/\\\"\" \"Mozilla/5.0 (X11)\" extra");
    assert_eq!(one(&combined, "combined"), common);
    let with_host = common.replace("None 200", "Some(\"shop.example:443\") 200");
    let vhost = format!("shop.example:443 {combined}");
    assert_eq!(one(&vhost, "auto"), with_host);
    assert_eq!(one(&vhost, "vhost_combined"), with_host);
    let full = "971211336000000 Some(250000) Some(\"203.0.113.7\") GET /a?b=1 Some(\"shop.example\") 200 2326 Some(\"ann\") None";
    let nginx = "203.0.113.7 [10/Oct/2000:13:55:36.250 -0700] ann shop.example 0.250 200 2326 \"GET /a?b=1 HTTP/2.0\" \"k-7\"";
    let format = "$remote_addr [$time_local] $remote_user $host $request_time $status $body_bytes_sent \"$request\" \"$http_x_api_key\"";
    assert_eq!(one(nginx, format), format!("{full} x-api-key=k-7"));
    let caddy = r#"{"level":"info","ts":971211336.25,"logger":"http","msg":"handled","request":{"remote_ip":"203.0.113.7","method":"GET","host":"shop.example","uri":"/a?b=1","headers":{"X-Api-Key":["k-7","other"]}},"user_id":"ann","duration":0.25,"size":2326,"status":200}"#;
    assert_eq!(one(caddy, "auto"), format!("{full} x-api-key=k-7"));
    let traefik = r#"{"StartUTC":"2000-10-10T20:55:36Z","ClientHost":"203.0.113.7","ClientUsername":"ann","RequestMethod":"GET","RequestPath":"/a?b=1","RequestHost":"shop.example","DownstreamStatus":200,"DownstreamContentSize":2326,"Duration":250000000}"#;
    assert_eq!(one(traefik, "auto"), full);
    let envoy = r#"{"start_time":"2000-10-10T20:55:36.000Z","downstream_remote_address":"203.0.113.7:5566","method":"GET","path":"/a?b=1","authority":"shop.example","response_code":200,"bytes_sent":2326,"duration":250}"#;
    assert_eq!(one(envoy, "auto"), full.replace("Some(\"ann\")", "None"));
    let nginx = r#"{"time_iso8601":"2000-10-10T13:55:36.250-07:00","remote_addr":"203.0.113.7","request":"GET /a?b=1 HTTP/1.1","host":"shop.example","status":"200","body_bytes_sent":"2326","request_time":"0.250","remote_user":"ann"}"#;
    assert_eq!(one(nginx, "auto"), full);
    let own = r#"{"who":{"ip":"203.0.113.7","plan":"pro"},"t":971211336000,"m":"GET","u":"\/a?b=1","s":200,"n":2326,"who.name":"ann"}"#;
    let names =
        "json:time=t,address=who.ip,tier=who.plan,method=m,target=u,status=s,bytes=n,user=who.name";
    assert_eq!(one(own, names), common.replace("\") None", "\") Some(\"pro\")"));
}

#[test]
fn server_escapes_are_undone() {
    let line = LINE.replace("/a?b=1", "/a\\x22b\\\"c");
    assert!(one(&line, "auto").contains("GET /a\"b\"c None"), "{}", one(&line, "auto"));
}

#[test]
fn invalid_utf8_does_not_make_lines_unreadable() {
    let line = |target: &[u8], agent: &[u8]| {
        let parts = [
            br#"{"time_iso8601":"2000-10-10T13:55:36-07:00","remote_addr":"::1","request_uri":""#,
            target,
            br#"","request_method":"GET","agent":""#,
            agent,
            br#""}"#,
        ];
        parts.concat()
    };
    let mut text = line(b"/a", b"\xff\xfe");
    text.push(b'\n');
    text.extend(line(b"/\xff", b""));
    let mut records = records(text, &with("nginx-json"));
    let record = records.next().unwrap().unwrap();
    assert_eq!((record.method, record.target), ("GET", "/a"));
    assert_eq!(records.next().unwrap().unwrap().method, "");
    assert!(records.next().unwrap().is_none());
    assert_eq!(records.unreadable(), 0);
}

#[test]
fn invalid_requests_have_no_method() {
    for request in
        ["-", "", "\\x16\\x03\\x01", "GET", " / HTTP/1.1", "GET /a b HTTP/1.1", "G(T /a HTTP/1.1"]
    {
        let line = LINE.replace("GET /a?b=1 HTTP/1.1", request);
        let mut records = records(line, &Options::default());
        assert_eq!(records.next().unwrap().unwrap().method, "", "{request}");
    }
}

#[test]
fn errors_name_the_field_and_expectation() {
    for (from, to, expected) in [
        ("10/Oct", "10/Okt", "its time_local is `10/Okt/2000:13:55:36 -0700`, which is not a time"),
        ("- ann [", "- ann (", "after remote_user it has no ` [`"),
        ("HTTP/1.1\"", "HTTP/1.1", "after request it has no `\" `"),
    ] {
        let said = reason(&LINE.replace(from, to), "common");
        assert!(said.contains(expected), "{said}");
        assert!(said.contains("test.log") && said.contains("line 1"), "{said}");
    }
    assert!(reason("\n", "common").contains("it ends before remote_addr"));
    let said = reason("x", "common");
    assert!(said.contains("the only line of test.log cannot be read as a common"), "{said}");
    assert!(reason("{\"ts\":1", "caddy").contains("it is not a JSON object: EOF"));
    assert!(reason("{}", "caddy").contains("it has no field `ts`"));
    assert!(reason("{\"ts\":true}", "caddy").contains("it has no field `ts`"));
    let said = reason("# a comment\n1 2", "w3c");
    assert!(said.contains("no line that starts with `#Fields:`"), "{said}");
    assert!(reason("{\"ts\":1}", "auto").contains("cannot be read as a JSON log of Caddy"));
    assert!(reason("{\"a\":1}", "auto").contains("cannot be read as a JSON log of"));
}

#[test]
fn lines_need_a_client_address() {
    for client in ["crawl-66.example.com", "-", "\"203.0.113.7"] {
        let line = LINE.replace("203.0.113.7", client);
        let said = reason(&line, "auto");
        assert!(said.contains("which is not the address of a client"), "{client}: {said}");
        assert!(said.ends_with("name its format (--log)"), "{said}");
    }
    let one_of_two = LINE.replace("203.0.113.7", "host.example") + "\n" + LINE;
    let mut records = records(one_of_two, &Options::default());
    assert_eq!(records.next().unwrap().unwrap().line, 2);
    assert!(records.next().unwrap().is_none());
    assert_eq!(records.unreadable(), 1);
    for socket in ["unix:", "@"] {
        assert!(one(&LINE.replace("203.0.113.7", socket), "auto").contains("None None GET"));
    }
    assert!(one(&format!("\u{feff}{LINE}"), "auto").contains("203.0.113.7"));
}

#[test]
fn json_lines_need_an_address_and_a_method() {
    let names = "json:time=t,address=a.ip,method=m,target=u,user=who";
    let line = r#"{"t":1,"a":{"ip":"203.0.113.7"},"m":"GET","u":"/","who":null}"#;
    assert!(one(line, names).contains("GET / "));
    for (from, to, expected) in [
        ("\"ip\"", "\"IP\"", "it has no field `a.ip`"),
        ("203.0.113.7", "host.example", "its a.ip is `host.example`"),
        ("\"203.0.113.7\"", "null", "it has no field `a.ip`"),
        ("\"m\"", "\"verb\"", "it has no field `m`"),
        ("\"u\"", "\"url\"", "it has no field `u`"),
        ("\"who\"", "\"user\"", "no line of test.log has the field `who`"),
    ] {
        let said = reason(&line.replace(from, to), names);
        assert!(said.contains(expected), "{from}: {said}");
    }
    // A field may be absent in all lines, but a field without a readable value has a wrong name.
    let status = format!("{names},status=s");
    for (value, is_wrong) in [("-1", false), ("null", false), ("\"-\"", false), ("\"ok\"", true)] {
        let line = line.replace("\"t\"", &format!("\"s\":{value},\"t\""));
        assert_eq!(reason(&line, &status).contains("has the field `s` with"), is_wrong, "{value}");
    }
    // A null method means that the request was not valid HTTP.
    assert!(one(&line.replace("\"GET\"", "null"), names).contains("203.0.113.7\")  / "));
}

#[test]
fn isolated_wrong_times_are_skipped() {
    let log = |times: &[u64]| {
        let times = times.iter().map(|second| 1_700_000_000 + second);
        log(&times.collect::<Vec<_>>())
    };
    let read = |text: String| {
        let options = Options {
            not_after: Timestamp::from_micros(2_000_000_000_000_000),
            ..with("json:time=t,method=m,target=u")
        };
        let mut records = records(text, &options);
        let mut targets = Vec::new();
        while let Some(record) = records.next().unwrap() {
            targets.push(record.target[1..].parse::<usize>().unwrap());
        }
        let reasons = records.shown().iter().map(|it| format!("{}: {}", it.line, it.reason));
        (targets, reasons.collect::<Vec<_>>().join(", "))
    };
    let ahead = "2: its time is 86399 s ahead of the lines after it";
    assert_eq!(read(log(&[0, 86_400, 1, 2])), (vec![0, 2, 3], ahead.to_owned()));
    let first = "1: its time is 86400 s ahead of the lines after it";
    assert_eq!(read(log(&[86_400, 0, 1, 2])), (vec![1, 2, 3], first.to_owned()));
    let behind = "21: its time is 86400 s behind the lines before it";
    let mut times = vec![86_400; 20];
    times.extend([0, 86_401]);
    let all = (0..22).filter(|number| *number != 20).collect();
    assert_eq!(read(log(&times)), (all, behind.to_owned()));
    let future = "3: its time is in the future";
    assert_eq!(read(log(&[0, 1, 2_000_000_000])), (vec![0, 1], future.to_owned()));
    // With only a few lines, the majority decides.
    let past = "4: its time is 86400 s behind the lines before it";
    let near = [86_400, 86_401, 86_400, 0, 86_402];
    assert_eq!(read(log(&near)), (vec![0, 2, 1, 4], past.replace("86400", "86401")));
    assert_eq!(read(log(&near[..4])), (vec![0, 2, 1], past.replace("86400", "86401")));
    let after_idle = [0, 1, 2, 50_000, 50_001, 50_002, 3];
    let past = "7: its time is 49999 s behind the lines before it";
    assert_eq!(read(log(&after_idle)), (vec![0, 1, 2, 3, 4, 5], past.to_owned()));
    // Servers may be idle overnight or receive only daily requests.
    assert_eq!(read(log(&[0, 1, 30_000, 30_001])), (vec![0, 1, 2, 3], String::new()));
    let days: Vec<_> = (0..40).map(|day| day * 86_400).collect();
    assert_eq!(read(log(&days)), ((0..40).collect(), String::new()));
}

#[test]
fn wrong_times_do_not_imply_another_format() {
    let options = Options { not_after: Timestamp::from_micros(1), ..Options::default() };
    for text in [LINE.to_owned(), format!("nonsense\n{LINE}")] {
        let error = records(text, &options).next().unwrap_err().to_string();
        assert!(error.contains("its time is in the future"), "{error}");
        assert!(
            error.ends_with("correct the times in the log, or this machine's clock"),
            "{error}"
        );
    }
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
    let mut strict = records(text, &Options { strict: true, ..Options::default() });
    let error = strict.next().unwrap_err().to_string();
    assert!(error.starts_with("line 2 of test.log cannot be read: "), "{error}");
}

#[test]
fn bad_input_has_helpful_errors() {
    let refused = |bytes: &[u8]| {
        let input = match Input::from_reader("test.log", Cursor::new(bytes.to_vec())) {
            Ok(input) => input,
            Err(error) => return error.to_string(),
        };
        let mut records = Records::new(vec![input], &Options::default());
        loop {
            match records.next() {
                Ok(Some(_)) => {}
                Ok(None) => return String::new(),
                Err(error) => return error.to_string(),
            }
        }
    };
    assert_eq!(refused(b""), "test.log has no lines: there is nothing to replay");
    assert!(refused(&[0; 3 << 20]).contains("is longer than 1 MiB"));
    assert!(refused(&[0, 10].repeat(5_000)).contains("can be read as a common or combined log"));
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let text = format!("{LINE}\n").repeat(1_000);
    gzip.write_all(text.as_bytes()).unwrap();
    let gzip = gzip.finish().unwrap();
    assert_eq!(refused(&gzip), "");
    let cut = refused(&gzip[..gzip.len() / 2]);
    assert!(cut.starts_with("cannot read test.log after line "), "{cut}");
    let day_before = LINE.replace("10/Oct", "09/Oct");
    let two = format!("{LINE}\n").repeat(20) + &format!("{day_before}\n").repeat(20);
    let back = refused(two.as_bytes());
    assert!(back.starts_with("line 21 of test.log is 86400 s earlier"), "{back}");
    let folder = tempfile::tempdir().unwrap();
    let error = Input::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("it is a directory"), "{error}");
    assert!(Input::open(Path::new("/no/such.log")).is_err());
}

/// Exported logs often have the newest line first.
#[test]
fn newest_line_first_is_an_error() {
    for (step, lines) in [(7_200, 100), (600, 100), (7_200, 14), (7_200, 2)] {
        let times: Vec<_> = (0..lines).map(|line| 1_000_000 - line * step).collect();
        let mut records = records(log(&times), &with("json:time=t,method=m,target=u"));
        let error = loop {
            match records.next() {
                Ok(Some(_)) => {}
                Ok(None) => panic!("{} of {lines} lines were skipped", records.unreadable()),
                Err(error) => break error.to_string(),
            }
        };
        assert!(error.contains("s earlier than a line before it; sort the log by time"), "{error}");
    }
}

#[test]
fn compressed_logs_are_read() {
    let text: String = (0..5_000).map(|n| LINE.replace("a?b=1", &n.to_string()) + "\n").collect();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(text.as_bytes()).unwrap();
    let mut twice = gzip.finish().unwrap();
    // Concatenated gzip files are valid.
    twice.extend(twice.clone());
    let zstd = zstd::stream::encode_all(text.as_bytes(), 1).unwrap();
    for (bytes, times) in [(text.clone().into_bytes(), 1), (twice, 2), (zstd, 1)] {
        let mut records = records(bytes, &Options::default());
        for n in (0..times).flat_map(|_| 0..5_000) {
            assert_eq!(records.next().unwrap().unwrap().target, format!("/{n}"));
        }
        assert!(records.next().unwrap().is_none());
    }
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
}

#[test]
fn braces_and_end_times_are_supported() {
    let end = "json:end=e,method=m,target=u,seconds=d";
    let said = one(r#"{"e":"100.5","m":"GET","u":"/","d":0.5}"#, end);
    assert!(said.starts_with("100000000 Some(500000)"), "{said}");
    let said =
        one("[10/Oct/2000:13:55:36 -0700]x\"GET / HTTP/1.1\"", "[${time_local}]x\"$request\"");
    assert!(said.contains("GET / "), "{said}");
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
            prop_assert_eq!(records.late(), Late::default());
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
        tokens in prop::collection::vec(0_usize..TOKENS.len(), 0..60),
        format in 0_usize..FORMATS.len(),
    ) {
        let tokens: Vec<u8> = tokens.iter().flat_map(|token| TOKENS[*token].bytes()).collect();
        for bytes in [bytes, tokens] {
            let Ok(input) = Input::from_reader("odd", Cursor::new(bytes)) else { continue };
            let mut records = Records::new(vec![input], &with(FORMATS[format]));
            while let Ok(Some(record)) = records.next() {
                prop_assert!(record.method.is_empty() || !record.target.is_empty());
            }
        }
    }
}

const FORMATS: [&str; 10] = [
    "auto",
    "caddy",
    "haproxy",
    "aws-alb",
    "envoy-text",
    "w3c",
    "#Fields: date time cs-method cs-uri-stem cs-uri-query time-taken cs(A)",
    "nginx-json",
    "$remote_addr \"$request\" [$time_local] \"$http_cookie\"",
    "json:time=t,method=m,target=u,seconds=d",
];
const TOKENS: [&str; 26] = [
    "#Fields: date time cs-method cs-uri-stem cs-uri-query\n",
    "#Date: 2000-10-10",
    "2000-10-10",
    "13:55:36",
    "<1>Oct  1 1:1 a b: ",
    "#2",
    "\n",
    " ",
    "\"",
    "\\",
    "\\x2",
    "[",
    "]",
    "-",
    "10/Oct/2000:13:55:36 -0700",
    "GET / HTTP/1.1",
    "127.0.0.1",
    "200",
    "{",
    "}",
    ":",
    ",",
    "\"t\"",
    "\"u\"",
    "\"request\"",
    "1.5",
];

/// A line, and then a panic of the thread that reads.
struct Panicking(Cursor<String>, ThreadId);

impl Read for Panicking {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(buffer)?;
        assert!(read > 0 || thread::current().id() == self.1, "a bug in a reader");
        Ok(read)
    }
}

#[test]
fn panic_while_reading_is_not_the_end_of_a_file() {
    let read = catch_unwind(|| {
        let bytes = Panicking(Cursor::new(format!("{LINE}\n")), thread::current().id());
        let input = Input::from_reader("test.log", bytes).unwrap();
        let mut records = Records::new(vec![input], &Options::default());
        while let Ok(Some(_)) = records.next() {}
    });
    assert!(read.is_err());
}

/// Lines without an end.
struct Endless(#[expect(dead_code, reason = "shows whether the reader exists")] Arc<()>);

impl Read for Endless {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        buffer.fill(b'\n');
        Ok(buffer.len())
    }
}

#[test]
fn closed_records_have_no_thread() {
    let is_read = Arc::new(());
    let input = Input::from_reader("test.log", Endless(Arc::clone(&is_read))).unwrap();
    let records = Records::new(vec![input], &Options::default());
    assert_eq!(Arc::strong_count(&is_read), 2);
    records.close();
    assert_eq!(Arc::strong_count(&is_read), 1);
}
