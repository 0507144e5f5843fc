use std::ffi::OsString;

use clap::CommandFactory;

use super::{Args, CostsBy, KeyBy, Stop, Store};

fn read(line: &[&str]) -> Result<Args, Stop> {
    let line = std::iter::once("demo").chain(line.iter().copied());
    Args::from_command_line(line.map(OsString::from))
}

#[test]
fn defaults_allow_100_units_per_minute() {
    let args = read(&[]).unwrap();
    assert_eq!((args.limit, args.window.as_secs()), (100, 60));
    assert_eq!(args.algorithm.name(), "sliding_window_log");
    assert_eq!(args.key, KeyBy::Global);
    assert_eq!(args.costs, CostsBy::ByMethod);
    assert!(matches!(args.store, Store::Memory));
    assert_eq!(args.listen.to_string(), "127.0.0.1:3000");
}

#[test]
fn errors_are_one_line_with_a_fix() {
    let secret = "thirty-two bytes that are a secret";
    for (line, expected) in [
        (&["--limit", "0"][..], "--limit '0': expected a whole number from 1 to"),
        (&["--limit=ten"], "--limit 'ten': expected a whole number"),
        (&["--limit", "1", "--limit", "2"], "cannot be used multiple times; see --help"),
        (&["--limits", "1"], "unexpected argument '--limits' found; did you mean --limit?"),
        (&["serve"], "unexpected argument 'serve' found; see --help"),
        (&["--limit"], "a value is required for '--limit <LIMIT>'"),
        (&["--window", "60"], "--window '60': expected a duration from 50us to 400days"),
        (&["--window", "1ns"], "--window '1ns': expected a duration"),
        (&["--limit", "-5"], "--limit '-5': expected a whole number"),
        (&["--window", "-5s"], "--window '-5s': expected a duration from 50us to 400days"),
        (&["--window", "--limit", "5"], "a value is required for '--window <WINDOW>'"),
        (&["-5s"], "unexpected argument '-5' found"),
        (&["--store-timeout", "-5ms"], "--store-timeout '-5ms': expected a duration from 1ms"),
        (&["--lease", "-1/20"], "--lease '-1/20': expected a share such as 1/20"),
        (&["--burst", "-1"], "--burst '-1': expected a whole number"),
        (&["--burst=-1"], "--burst '-1': expected a whole number"),
        (&["--listen", "3000"], "--listen '3000': expected an address and a port"),
        (&["--server-id", "a\nb"], "--server-id 'a\\nb': expected"),
        (&["--store", "disk"], "--store 'disk': expected `memory` or a URL"),
        (&["--store", "http://:thirty-two@host"], "--store: the Redis URL has the scheme"),
        (&["--store", "redis://host/x"], "--store: the Redis URL names the database"),
        (&["--store-timeout", "0s"], "--store-timeout '0s': expected a duration from 1ms"),
        (&["--store-timeout", "5ms"], "--store-timeout has no effect with --store memory"),
        (&["--algorithm", "log"], "--algorithm 'log': use one of fixed_window_counter, "),
        (&["--costs", "two"], "--costs 'two': use one of by-method, one"),
        (&["--key", "me"], "--key 'me': use one of global, ip, api-key, user, chain"),
        (&["--log-format", "xml"], "--log-format 'xml': use one of text, json"),
        (&["--on-store-error", "x"], "--on-store-error 'x': use one of open, closed, local"),
        (&["--trusted-proxies", "10.0.0.0/33"], "--trusted-proxies '10.0.0.0/33': "),
        (&["--jwt-secret", "short"], "--jwt-secret: JWT key for HS256: 5 bytes; expected"),
        (&["--api-keys", "a,,b"], "--api-keys: expected keys of printable ASCII"),
        (&["--key", "user"], "--key user needs --jwt-secret"),
        (&["--jwt-secret", secret], "--jwt-secret has no effect with --key global; drop it"),
        (&["--api-keys", "k-1", "--key", "ip"], "--api-keys has no effect with --key ip"),
        (&["--trusted-proxies", "10.0.0.0/8"], "--trusted-proxies has no effect"),
        (&["--burst", "5"], "--burst 5 has no effect with --algorithm sliding_window_log"),
        (&["--shed", "x"], "--shed 'x': use one of open, closed, local"),
        (&["--shed", "closed"], "--shed has no effect with --store memory"),
        (&["--on-store-error", "open"], "--on-store-error has no effect with --store memory"),
        (&["--lease", "0.05"], "--lease '0.05': expected a share such as 1/20"),
        (&["--lease", "1/20"], "--lease has no effect with --store memory"),
        (&["--admin", "127.0.0.1:0"], "--admin needs --admin-token"),
        (&["--admin-token", "0123456789abcdef"], "--admin-token has no effect without --admin"),
        (&["--admin-hosts", "api1"], "--admin-hosts has no effect without --admin"),
        (&["--admin-peers", "http://a:1"], "--admin-peers has no effect without --admin"),
        (&["--admin-target", "http://a:1"], "--admin-target has no effect without --admin"),
    ] {
        let Err(Stop::Wrong(error)) = read(line) else { panic!("{line:?} is accepted") };
        assert!(error.contains(expected), "{line:?}: {error}");
        assert!(!error.contains('\n') && !error.contains(secret), "{line:?}: {error}");
        assert!(!error.contains(":thirty-two@"), "{line:?}: {error}");
    }
}

#[test]
fn help_is_not_an_error() {
    for flag in ["--help", "-h", "--version"] {
        assert!(matches!(read(&[flag]), Err(Stop::Help(_))), "{flag}");
    }
}

/// docker-compose.yml passes each variable by name, so it is easy to forget a new variable there.
#[test]
fn docker_compose_passes_all_variables() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let read = |file: &str| std::fs::read_to_string(format!("{root}/{file}")).unwrap();
    let given = ["docker-compose.yml", "deploy/page.yml", "Dockerfile"].map(read).concat();
    let command = Args::command();
    let variables = command.get_arguments().filter_map(clap::Arg::get_env);
    let variables: Vec<_> = variables.map(|name| name.to_str().unwrap()).collect();
    assert!(variables.len() > 15, "{variables:?}");
    for name in variables {
        let is_set = |end: &str| given.contains(&format!(" {name}{end}"));
        assert!(is_set(":") || is_set("="), "{name}");
    }
}
