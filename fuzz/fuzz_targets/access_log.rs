//! Reads arbitrary access logs. Reading must terminate, and times must never step back.
//!
//! The first byte selects the format; the rest is the log.
#![no_main]

use std::io::Cursor;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use tollgate_replay::log::{Input, Options, Records};

const FORMATS: [&str; 12] = [
    "auto",
    "common",
    "haproxy",
    "aws-alb",
    "envoy-text",
    "w3c",
    "caddy",
    "traefik",
    "envoy",
    "nginx-json",
    "$remote_addr [$time_iso8601] \"$request\" $request_time \"$http_cookie\" $msec",
    "json:end=t,method=m,target=u,seconds=d,address=a.b,header.x=h",
];

fuzz_target!(|data: &[u8]| {
    let Some((&first, log)) = data.split_first() else { return };
    let Ok(format) = FORMATS[usize::from(first) % FORMATS.len()].parse() else { return };
    let Ok(input) = Input::from_reader("fuzz", Cursor::new(log.to_vec())) else { return };
    let reorder = Duration::from_secs(u64::from(first));
    let mut records = Records::new(vec![input], &Options { format, reorder, ..Options::default() });
    let mut before = None;
    while let Ok(Some(record)) = records.next() {
        assert!(before <= Some(record.at));
        before = Some(record.at);
    }
    // LeakSanitizer does not find the memory of a thread that is about to end.
    records.close();
});
