//! Tests which address in the forwarding headers is the client.

use http::HeaderName;

use super::{address, behind, request};
use crate::key::ClientIp;

/// The client that 10.0.0.1 reports in these `X-Forwarded-For` lines.
fn forwarded_for(lines: &[&str]) -> String {
    let lines: Vec<_> = lines.iter().map(|line| ("x-forwarded-for", line.as_bytes())).collect();
    address(&behind(), &request("10.0.0.1", &lines))
}

/// The client that 10.0.0.1 reports in these `Forwarded` lines.
fn forwarded(lines: &[&str]) -> String {
    let lines: Vec<_> = lines.iter().map(|line| ("forwarded", line.as_bytes())).collect();
    address(&behind().in_forwarded(), &request("10.0.0.1", &lines))
}

#[test]
fn untrusted_peer_headers_are_ignored() {
    let header: &[(&str, &[u8])] = &[
        ("x-forwarded-for", b"203.0.113.9"),
        ("forwarded", b"for=203.0.113.9"),
        ("x-real-ip", b"203.0.113.9"),
    ];
    let request = request("198.51.100.1", header);
    let single = HeaderName::from_static("x-real-ip");
    for source in
        [ClientIp::peer(), behind(), behind().in_forwarded(), behind().in_single_header(single)]
    {
        assert_eq!(address(&source, &request), "198.51.100.1");
    }
}

#[test]
fn client_is_rightmost_untrusted_address() {
    for (lines, client) in [
        (&["203.0.113.9"][..], "203.0.113.9"),
        (&["203.0.113.9, 10.0.0.2"], "203.0.113.9"),
        (&["203.0.113.9,192.0.2.66 ,\t10.0.0.2"], "203.0.113.9"),
        // All internal: the leftmost address counts.
        (&["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        // No header, or an empty one: the peer counts.
        (&[], "10.0.0.1"),
        (&[""], "10.0.0.1"),
        // With ports, and in the various IPv6 forms.
        (&["203.0.113.9:443"], "203.0.113.9"),
        (&["2001:db8::1"], "2001:db8::1"),
        (&["[2001:db8::1]"], "2001:db8::1"),
        (&["[2001:db8::1]:443"], "2001:db8::1"),
        // Ambiguous, so the entire text is an address without a port.
        (&["2001:db8::1:443"], "2001:db8::1:443"),
        // IPv6 proxies are skipped, too.
        (&["203.0.113.9, 2001:DB8:FF:0::7"], "203.0.113.9"),
        // Mapped addresses become IPv4 before the comparison with proxies.
        (&["203.0.113.9, ::ffff:10.0.0.2"], "203.0.113.9"),
        (&["::ffff:203.0.113.9"], "203.0.113.9"),
        (&["203.0.113.9, [::ffff:10.0.0.2]"], "203.0.113.9"),
        (&["203.0.113.9, [::ffff:10.0.0.2]:443"], "203.0.113.9"),
        (&["[::ffff:203.0.113.9]:443, 10.0.0.2"], "203.0.113.9"),
        (&["[::ffff:10.0.0.3], [::ffff:a00:2]"], "10.0.0.3"),
    ] {
        assert_eq!(forwarded_for(lines), client, "{lines:?}");
    }
}

#[test]
fn mapped_forwarded_proxies_are_skipped() {
    for proxy in ["[::ffff:10.0.0.2]", "[::ffff:10.0.0.2]:443", "[::ffff:a00:2]"] {
        let line = format!("for=203.0.113.9, for=\"{proxy}\"");
        assert_eq!(forwarded(&[&line]), "203.0.113.9", "{proxy}");
    }
}

#[test]
fn rightmost_untrusted_address_wins() {
    assert_eq!(forwarded_for(&["1.1.1.1, 203.0.113.9"]), "203.0.113.9");
    assert_eq!(forwarded_for(&["1.1.1.1, 203.0.113.9, 10.0.0.2"]), "203.0.113.9");
    assert_eq!(forwarded_for(&["10.0.0.9, 203.0.113.9"]), "203.0.113.9");
}

#[test]
fn several_lines_form_one_list() {
    assert_eq!(forwarded_for(&["1.1.1.1", "203.0.113.9"]), "203.0.113.9");
    assert_eq!(forwarded_for(&["1.1.1.1, 2.2.2.2", "203.0.113.9", "10.0.0.2"]), "203.0.113.9");
    assert_eq!(forwarded(&["for=1.1.1.1", "for=203.0.113.9", "for=10.0.0.2"]), "203.0.113.9");
}

#[test]
fn garbage_falls_back_to_last_proxy() {
    for garbage in [
        "unknown",
        "_hidden",
        "",
        " ",
        "1.2.3",
        "1.2.3.4.5",
        "010.1.1.1",
        "0x7f.0.0.1",
        "1.2.3.4:",
        "1.2.3.4:+80",
        "1.2.3.4:99999",
        "1.2.3.4 5.6.7.8",
        "fe80::1%eth0",
        "[fe80::1%eth0]",
        "[2001:db8::1",
        "[2001:db8::1]443",
        "[2001:db8::1]:",
        "[1.2.3.4]",
        "2001:db8::1]",
        "\"1.2.3.4\"",
        "localhost",
    ] {
        let line = format!("203.0.113.9, {garbage}, 10.0.0.2");
        assert_eq!(forwarded_for(&[&line]), "10.0.0.2", "{garbage:?}");
        let line = format!("203.0.113.9, {garbage}");
        assert_eq!(forwarded_for(&[&line]), "10.0.0.1", "{garbage:?}");
    }
    let bytes: &[(&str, &[u8])] = &[("x-forwarded-for", b"203.0.113.9, \xff\xfe")];
    assert_eq!(address(&behind(), &request("10.0.0.1", bytes)), "10.0.0.1");
}

#[test]
fn forwarded_follows_rfc_7239() {
    for (line, client) in [
        ("for=203.0.113.9", "203.0.113.9"),
        ("For=203.0.113.9;proto=https", "203.0.113.9"),
        ("by=10.0.0.1;FOR=203.0.113.9", "203.0.113.9"),
        ("for=\"203.0.113.9:80\"", "203.0.113.9"),
        ("for=203.0.113.9:80", "203.0.113.9"),
        ("for=\"[2001:db8::1]\"", "2001:db8::1"),
        ("for=\"[2001:db8::1]:443\" ; proto=https;", "2001:db8::1"),
        ("for=203.0.113.9;;proto=https", "203.0.113.9"),
        ("for=203.0.113.9, for=10.0.0.2", "203.0.113.9"),
        // Quoted text that a proxy copies from the client cannot escape its quotes.
        (r#"for=203.0.113.9;host="a, for=1.1.1.1""#, "203.0.113.9"),
        (r#"for=203.0.113.9;host="a\", for=1.1.1.1;x=\"""#, "203.0.113.9"),
        (r#"for=203.0.113.9;host="a\\""#, "203.0.113.9"),
        (r#"host=";for=1.1.1.1";for=203.0.113.9"#, "203.0.113.9"),
        // Quotes that the client left open do not hide the proxy's own element.
        (r#"for=", for=203.0.113.9"#, "203.0.113.9"),
        (r#"for="1.1.1.1, for="203.0.113.9""#, "203.0.113.9"),
        (r#"for="\, for=203.0.113.9"#, "203.0.113.9"),
    ] {
        assert_eq!(forwarded(&[line]), client, "{line}");
    }
}

#[test]
fn garbage_in_forwarded_falls_back() {
    for garbage in [
        "",
        "for",
        "for=",
        "for=unknown",
        "for=_hidden",
        "for=\"_hidden:80\"",
        "proto=https",
        "203.0.113.9",
        "for=203.0.113.9;for=203.0.113.8",
        "for=\"203.0.113.9",
        "for=203.0.113.9\"",
        "for=\"203.0.113.9\"x",
        "for=\"203\\.0.113.9\"",
        "for=203.0.113.9;x",
        "x;for=203.0.113.9",
        "\"for\"=203.0.113.9",
        "for =203.0.113.9",
        "for=\\\"203.0.113.9",
    ] {
        let line = format!("for=203.0.113.7, {garbage}, for=10.0.0.2");
        assert_eq!(forwarded(&[&line]), "10.0.0.2", "{garbage:?}");
    }
}

#[test]
fn only_chosen_header_is_read() {
    let lines: &[(&str, &[u8])] = &[
        ("forwarded", b"for=1.1.1.1"),
        ("x-forwarded-for", b"203.0.113.9"),
        ("x-real-ip", b"2.2.2.2"),
    ];
    let request = request("10.0.0.1", lines);
    assert_eq!(address(&behind(), &request), "203.0.113.9");
    assert_eq!(address(&behind().in_forwarded(), &request), "1.1.1.1");
    let single = HeaderName::from_static("x-real-ip");
    assert_eq!(address(&behind().in_single_header(single), &request), "2.2.2.2");
}

#[test]
fn single_header_must_have_one_address() {
    let source = behind().in_single_header(HeaderName::from_static("cf-connecting-ip"));
    for (values, client) in [
        (&["203.0.113.9"][..], "203.0.113.9"),
        (&["2001:db8::1"], "2001:db8::1"),
        // The address may be trusted: a proxy can be a client, too.
        (&["10.7.7.7"], "10.7.7.7"),
        (&["203.0.113.9", "203.0.113.9"], "10.0.0.1"),
        (&["1.1.1.1, 203.0.113.9"], "10.0.0.1"),
        (&["unknown"], "10.0.0.1"),
        (&[], "10.0.0.1"),
    ] {
        let lines: Vec<_> = values.iter().map(|v| ("cf-connecting-ip", v.as_bytes())).collect();
        assert_eq!(address(&source, &request("10.0.0.1", &lines)), client, "{values:?}");
    }
}

#[test]
fn hops_beyond_32_are_ignored() {
    let proxies = |count| vec!["10.0.0.2"; count].join(", ");
    let line = format!("203.0.113.9, {}", proxies(31));
    assert_eq!(forwarded_for(&[&line]), "203.0.113.9");
    let line = format!("203.0.113.9, 10.0.0.3, {}", proxies(31));
    assert_eq!(forwarded_for(&[&line]), "10.0.0.3");
    let lines = vec!["10.0.0.2"; 32];
    assert_eq!(forwarded_for(&[&["203.0.113.9"][..], &lines].concat()), "10.0.0.2");
}

#[test]
fn bytes_beyond_4_kib_are_ignored() {
    let blank = |count| " ".repeat(count);
    // Bytes beyond the limit have no effect, regardless of their number.
    let line = format!("{}, 203.0.113.9", "x".repeat(100_000));
    assert_eq!(forwarded_for(&[&line]), "203.0.113.9");
    let line = format!("{}, for=203.0.113.9", "\"".repeat(100_000));
    assert_eq!(forwarded(&[&line]), "203.0.113.9");
    // An element that starts beyond the limit is ignored, in one line or in several.
    let near = format!("203.0.113.9,{}10.0.0.2", blank(4_000));
    assert_eq!(forwarded_for(&[&near]), "203.0.113.9");
    let far = format!("203.0.113.9,{}10.0.0.2", blank(4_100));
    assert_eq!(forwarded_for(&[&far]), "10.0.0.1");
    let long = format!("for=203.0.113.9;host=\"{}\"", "x".repeat(4_100));
    assert_eq!(forwarded(&[&long]), "10.0.0.1");
    let half = format!("{}10.0.0.2", blank(2_100));
    assert_eq!(forwarded_for(&["203.0.113.9", &half, &half]), "10.0.0.2");
}
