//! An invalid command line causes a one-line error and an exit code.

use std::process::Output;

use super::support::{Replica, run};

/// Checks that the error is a single line, and returns it.
fn line(output: &Output) -> &str {
    let printed = std::str::from_utf8(&output.stderr).unwrap();
    assert!(output.stdout.is_empty() && printed.lines().count() == 1, "{output:?}");
    printed.trim_end()
}

#[test]
fn invalid_value_is_a_one_line_error() {
    for (flag, value, cure) in [
        ("--listen", "localhost", "expected an address and a port"),
        ("--server-id", "api 1", "without spaces"),
        ("--store", "disk", "expected `memory` or a URL"),
        ("--algorithm", "gcra", "use one of fixed_window_counter, "),
        ("--limit", "0", "expected a whole number from 1"),
        ("--window", "60", "such as 60s"),
        ("--burst", "many", "expected a whole number from 1"),
        ("--key", "cookie", "use one of global, ip, api-key, user, chain"),
        ("--trusted-proxies", "0.0.0.0/0", "it trusts every client"),
        ("--on-store-error", "panic", "use one of open, closed, local"),
    ] {
        let output = run(&[flag, value], &[]);
        assert_eq!(output.status.code(), Some(2), "{flag}");
        let line = line(&output);
        assert!(line.starts_with(&format!("error: {flag} '{value}': ")), "{line}");
        assert!(line.contains(cure), "{line}");
    }
}

#[test]
fn invalid_secret_is_not_repeated() {
    for (flag, value) in [("--jwt-secret", "hunter2"), ("--api-keys", "hunter2,,")] {
        let output = run(&["--key", "chain", flag, value], &[]);
        assert_eq!(output.status.code(), Some(2), "{flag}");
        let line = line(&output);
        assert!(line.starts_with(&format!("error: {flag}: ")), "{line}");
        assert!(!line.contains("hunter2"), "{line}");
    }
}

#[test]
fn errors_name_the_variable() {
    let output = run(&[], &[("TOLLGATE_TRUSTED_PROXIES", "10.0.0.1/8"), ("TOLLGATE_KEY", "ip")]);
    assert_eq!(output.status.code(), Some(2));
    let line = line(&output);
    assert!(line.starts_with("error: TOLLGATE_TRUSTED_PROXIES '10.0.0.1/8': "), "{line}");
    let output = run(&[], &[("RUST_LOG", "tollgate=loud")]);
    assert_eq!(output.status.code(), Some(2));
    assert!(self::line(&output).starts_with("error: RUST_LOG 'tollgate=loud': "));
}

#[test]
fn useless_flags_are_rejected() {
    for (flags, expected) in [
        (&["--key", "user"][..], "--key user needs --jwt-secret"),
        (&["--api-keys", "k-1"], "--api-keys has no effect with --key global"),
        (&["--burst", "5"], "--burst 5 has no effect with --algorithm sliding_window_log"),
        (
            &["--algorithm", "token_bucket", "--limit", "123457", "--window", "1day"],
            "use --limit 123456",
        ),
        (&["--limit", "5"], "--limit 5: a DELETE request costs 10; use --limit 10, or --costs one"),
        (
            &["--algorithm", "token_bucket", "--burst", "5"],
            "--burst 5: a DELETE request costs 10; use --burst 10, or --costs one",
        ),
    ] {
        let output = run(flags, &[]);
        assert_eq!(output.status.code(), Some(2), "{flags:?}");
        assert!(line(&output).contains(expected), "{output:?}");
    }
}

#[test]
fn used_port_is_a_one_line_error() {
    let replica = Replica::start(&[]);
    let output = run(&["--listen", &replica.address.to_string()], &[]);
    assert_eq!(output.status.code(), Some(1));
    let line = line(&output);
    assert!(line.starts_with(&format!("error: cannot listen on {}: ", replica.address)), "{line}");
}

#[test]
fn help_names_every_flag_and_its_variable() {
    let output = run(&["--help"], &[]);
    assert_eq!(output.status.code(), Some(0));
    let printed = String::from_utf8(output.stdout).unwrap();
    let names = [
        "listen",
        "server-id",
        "store",
        "store-timeout",
        "algorithm",
        "limit",
        "window",
        "burst",
        "key",
        "trusted-proxies",
        "jwt-secret",
        "api-keys",
        "on-store-error",
        "shed",
        "log-format",
        "lease",
        "costs",
        "admin",
        "admin-token",
        "admin-hosts",
        "admin-subjects",
        "admin-peers",
        "admin-target",
    ];
    for name in names {
        let variable = format!("TOLLGATE_{}", name.replace('-', "_").to_uppercase());
        assert!(printed.contains(&format!("--{name} <")), "{name}");
        assert!(printed.contains(&variable), "{variable}");
    }
    assert_eq!(printed.matches("[env: ").count(), names.len(), "a variable is missing in `names`");
}

#[test]
fn banner_shows_policy_and_warnings() {
    let banner = Replica::start(&["--server-id", "api7", "--key", "api-key"]).into_banner();
    for expected in [
        "server api7",
        "store      memory",
        "policy     api-key: 100 units per 60 seconds, sliding_window_log",
        "WARNING    any X-API-Key is accepted",
    ] {
        assert!(banner.contains(expected), "{expected} is not in\n{banner}");
    }
    assert_eq!(banner.lines().filter(|line| line.starts_with("  curl ")).count(), 3, "{banner}");

    let banner = Replica::start(&["--key", "api-key", "--api-keys", "k-1"]).into_banner();
    assert!(!banner.contains("WARNING"), "{banner}");
}
