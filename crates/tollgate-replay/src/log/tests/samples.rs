//! Logs in the default formats of servers. Each has a few usual lines, and lines with odd values.

use std::fmt::Write as _;

use super::*;

/// Reads a log without a hint, and describes its format, its records, and its unreadable lines.
fn read(text: &str, zone: &str) -> String {
    let options = Options { zone: zone.parse().unwrap(), ..Options::default() };
    let mut records = records(text, &options);
    let mut all = String::new();
    while let Some(record) = records.next().unwrap() {
        let _ = writeln!(all, "{}: {}", record.line, described(&record));
    }
    for Unreadable { line, reason, .. } in records.shown() {
        let _ = writeln!(all, "{line} cannot be read: {reason}");
    }
    format!("{}\n{all}", records.formats()[0])
}

macro_rules! samples {
    ($($name:ident: $file:literal,)*) => {
        $(
            #[test]
            fn $name() {
                let read = read(include_str!(concat!("samples/", $file, ".log")), "UTC");
                assert_eq!(read, include_str!(concat!("samples/", $file, ".expected")), "{read}");
            }
        )*
    };
}

samples! {
    aws_alb_logs_are_read: "aws-alb",
    caddy_logs_are_read: "caddy",
    aws_elb_logs_are_read: "aws-elb",
    cloudfront_logs_are_read: "cloudfront",
    combined_logs_may_have_extra_fields: "combined",
    envoy_gateway_logs_are_read: "envoy-gateway",
    envoy_json_logs_are_read: "envoy-json",
    envoy_text_logs_are_read: "envoy-text",
    gcp_logs_are_read: "gcp",
    haproxy_logs_are_read: "haproxy",
    iis_columns_may_change: "iis",
    istio_logs_are_read: "istio",
    nginx_json_logs_are_read: "nginx-json",
    traefik_logs_are_read: "traefik",
}

#[test]
fn times_without_a_zone_are_in_the_stated_zone() {
    for (log, time) in [
        (include_str!("samples/haproxy.log"), 1_770_112_801_250_000_u64),
        (include_str!("samples/iis.log"), 1_770_112_800_750_000),
    ] {
        let earlier = time - 9 * 3_600_000_000;
        let read = read(log, "Asia/Seoul");
        assert!(read.contains(&format!("{earlier} Some(")), "{read}");
        assert!(read.contains(", times without a zone are in Asia/Seoul\n"), "{read}");
    }
    let combined = read(LINE, "Asia/Seoul");
    assert!(combined.contains(": 971211336000000 ") && !combined.contains("zone"), "{combined}");
}

/// The format is found by the lines that are read, then by the values in them.
#[test]
fn other_lines_do_not_change_the_format() {
    let haproxy = include_str!("samples/haproxy.log");
    let noise = "Feb  3 10:00:00 edge kernel: eth0: link up\n";
    assert!(read(&(noise.repeat(20) + haproxy), "UTC").starts_with("an HTTP log of HAProxy"));
    let (istio, envoy) =
        (include_str!("samples/istio.log"), include_str!("samples/envoy-text.log"));
    assert!(read(&(istio.to_owned() + envoy), "UTC").starts_with("a text log of Envoy"));
}

#[test]
fn stated_columns_replace_missing_directives() {
    let fields = "#Fields: date time c-ip cs-method cs-uri-stem sc-status";
    let said = one("2026-02-03 10:00:01 198.51.100.21 GET \"/a b\" 200", fields);
    assert_eq!(said, "1770112801000000 None Some(\"198.51.100.21\") GET /a b None 200 0 None None");
    let said = reason("2026-02-03 10:00:01 198.51.100.21 GET / 200 7", &with(fields));
    assert!(said.contains("its end is `7`, which is not where the columns end"), "{said}");
}
