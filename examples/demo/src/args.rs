//! Flags and variables, and errors of one line.

use std::error::Error;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Parser, ValueEnum};
use tollgate::key::{JwtKey, TrustedProxies};
use tollgate::{Algorithm, Lease, OnStoreError, Policy, RedisStore, RedisStoreBuilder};

use crate::app::ServerId;

/// A small HTTP service behind a Tollgate rate limit
#[derive(Clone, Debug, Parser)]
#[command(
    version,
    after_help = "RUST_LOG=tower_http=debug logs each request to stderr, RUST_LOG=tollgate=debug each decision."
)]
pub struct Args {
    /// Where to listen; port 0 takes a free one
    #[arg(long, env = "TOLLGATE_LISTEN", value_parser = listen, default_value = "127.0.0.1:3000")]
    pub listen: SocketAddr,

    /// The name of this replica, in X-Server-Id and in denials [default: the host's name]
    #[arg(long, env = "TOLLGATE_SERVER_ID", default_value_t, hide_default_value = true)]
    pub server_id: ServerId,

    /// Where quotas are kept: `memory`, in this process, or the URL of a Redis that several
    /// share, as redis://127.0.0.1:6379
    #[arg(
        long,
        env = "TOLLGATE_STORE",
        value_parser = store,
        default_value = "memory",
        hide_env_values = true
    )]
    pub store: Store,

    /// How long a decision by Redis may take [default: 50ms]
    #[arg(long, env = "TOLLGATE_STORE_TIMEOUT", value_parser = store_timeout)]
    pub store_timeout: Option<Duration>,

    /// How units are counted
    #[arg(long, env = "TOLLGATE_ALGORITHM", value_parser = algorithm(), default_value = "sliding_window_log")]
    pub algorithm: Algorithm,

    /// Units per window
    #[arg(long, env = "TOLLGATE_LIMIT", value_parser = units, default_value = "100")]
    pub limit: u64,

    /// The window: 60s, 500ms, 1h
    #[arg(long, env = "TOLLGATE_WINDOW", value_parser = window, default_value = "60s")]
    pub window: Duration,

    /// The most units at once, for token_bucket and leaky_bucket [default: the limit]
    #[arg(long, env = "TOLLGATE_BURST", value_parser = units)]
    pub burst: Option<u64>,

    /// Whose quota a request uses; `chain` is user, else API key, else IP
    #[arg(long, env = "TOLLGATE_KEY", value_enum, default_value = "global")]
    pub key: KeyBy,

    /// Networks whose X-Forwarded-For is believed: 10.0.0.0/8,192.0.2.7, `loopback`, `private`
    #[arg(long, env = "TOLLGATE_TRUSTED_PROXIES", value_parser = trusted_proxies)]
    pub trusted_proxies: Option<TrustedProxies>,

    /// The secret of HS256 tokens, 32 bytes or more; better given by the variable
    #[arg(long, env = "TOLLGATE_JWT_SECRET", value_parser = jwt_secret, hide_env_values = true)]
    pub jwt_secret: Option<JwtKey>,

    /// The accepted API keys, comma separated; without it every X-API-Key is believed
    #[arg(long, env = "TOLLGATE_API_KEYS", value_parser = api_keys, hide_env_values = true)]
    pub api_keys: Option<ApiKeyList>,

    /// What to do while the store cannot decide [default: open]
    #[arg(long, env = "TOLLGATE_ON_STORE_ERROR", value_parser = on_store_error())]
    pub on_store_error: Option<OnStoreError>,

    /// How lines of the log look
    #[arg(long, env = "TOLLGATE_LOG_FORMAT", value_enum, default_value = "text")]
    pub log_format: LogFormat,
    /// Let this replica hold up to this share of the quota, as 1/20, to spend it without asking
    /// Redis for each request [default: it asks]
    #[arg(long, env = "TOLLGATE_LEASE", value_parser = lease)]
    pub lease: Option<Lease>,

    #[command(flatten)]
    #[expect(missing_docs, reason = "the flags' help says it")]
    pub admin: AdminArgs,
}

/// The admin address.
#[derive(Clone, Debug, clap::Args)]
pub struct AdminArgs {
    /// Where to serve the live page, /status, /top and /metrics for operators, as 127.0.0.1:9100
    #[arg(long, env = "TOLLGATE_ADMIN", value_parser = listen)]
    pub admin: Option<SocketAddr>,

    /// What operators must know, 16 characters or more; better given by the variable
    #[arg(long, env = "TOLLGATE_ADMIN_TOKEN", value_parser = token, hide_env_values = true)]
    pub admin_token: Option<AdminToken>,

    /// Hosts by which --admin may be asked, besides localhost: api1,10.0.0.7
    #[arg(long, env = "TOLLGATE_ADMIN_HOSTS", value_delimiter = ',')]
    pub admin_hosts: Vec<String>,

    /// How /top shows who is denied
    #[arg(long, env = "TOLLGATE_ADMIN_SUBJECTS", value_enum, default_value = "masked")]
    pub admin_subjects: Shown,

    /// Other replicas whose streams the page shows, and whose pages may read this one's, as
    /// http://127.0.0.1:9101,http://127.0.0.1:9102; this one may be among them
    #[arg(long, env = "TOLLGATE_ADMIN_PEERS", value_delimiter = ',')]
    pub admin_peers: Vec<String>,

    /// Where the buttons of the page send requests, as http://127.0.0.1:8080 [default: --listen]
    #[arg(long, env = "TOLLGATE_ADMIN_TARGET")]
    pub admin_target: Option<String>,
}

/// How subjects are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "the flag's help says it")]
pub enum Shown {
    Hash,
    Masked,
    Clear,
}

/// The token of the admin address.
#[derive(Clone)]
pub struct AdminToken(pub String);

/// Where quotas are kept.
#[derive(Clone, Debug)]
pub enum Store {
    /// In this process.
    Memory,
    /// In Redis, for all who name the same one.
    Redis(Box<RedisStoreBuilder>),
}

/// Whose quota a request uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "the flag's help says it")]
pub enum KeyBy {
    Global,
    Ip,
    ApiKey,
    User,
    Chain,
}

/// How lines of the log look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "the flag's help says it")]
pub enum LogFormat {
    Text,
    Json,
}

/// API keys that are accepted.
#[derive(Clone)]
pub struct ApiKeyList(pub Vec<String>);

/// Why the program does not start.
#[derive(Debug)]
pub enum Stop {
    /// Somebody asked for help or the version.
    Help(String),
    /// Something is wrong, in one line.
    Wrong(String),
}

impl Args {
    /// Reads flags, and the environment where there are none.
    ///
    /// # Errors
    /// Help was asked for, or a value or the combination of several is wrong.
    pub fn from_command_line(line: impl IntoIterator<Item = OsString>) -> Result<Self, Stop> {
        let line: Vec<OsString> = line.into_iter().collect();
        let args = Self::try_parse_from(&line).map_err(|error| match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Stop::Help(error.to_string()),
            _ => Stop::Wrong(one_line(&error, &line)),
        })?;
        args.check().map_err(Stop::Wrong)?;
        Ok(args)
    }

    /// Refuses what would have no effect: whoever sets it expects one.
    fn check(&self) -> Result<(), String> {
        let key = self.key.name();
        let uses = |keys: &[KeyBy]| keys.contains(&self.key);
        if self.key == KeyBy::User && self.jwt_secret.is_none() {
            return Err("--key user needs --jwt-secret, the secret of the tokens".to_owned());
        }
        if self.jwt_secret.is_some() && !uses(&[KeyBy::User, KeyBy::Chain]) {
            return Err(no_effect("--jwt-secret", key, "--key user or --key chain"));
        }
        if self.api_keys.is_some() && !uses(&[KeyBy::ApiKey, KeyBy::Chain]) {
            return Err(no_effect("--api-keys", key, "--key api-key or --key chain"));
        }
        if self.trusted_proxies.is_some() && !uses(&[KeyBy::Ip, KeyBy::Chain]) {
            return Err(no_effect("--trusted-proxies", key, "--key ip or --key chain"));
        }
        if let Some(burst) = self.burst
            && !matches!(
                self.algorithm,
                Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. }
            )
        {
            let algorithm = self.algorithm;
            return Err(format!(
                "--burst {burst} has no effect with --algorithm {algorithm}; drop it, or use \
                 token_bucket or leaky_bucket"
            ));
        }
        let admin = &self.admin;
        if admin.admin.is_some() && admin.admin_token.is_none() {
            return Err("--admin needs --admin-token; `openssl rand -hex 32` makes one".to_owned());
        }
        if admin.admin.is_none() && admin.admin_token.is_some() {
            return Err("--admin-token has no effect without --admin".to_owned());
        }
        if admin.admin.is_none() && !admin.admin_peers.is_empty() {
            return Err("--admin-peers has no effect without --admin".to_owned());
        }
        if admin.admin.is_none() && admin.admin_target.is_some() {
            return Err("--admin-target has no effect without --admin".to_owned());
        }
        if let Store::Memory = self.store {
            let given = [
                ("--on-store-error", self.on_store_error.is_some()),
                ("--store-timeout", self.store_timeout.is_some()),
                ("--lease", self.lease.is_some()),
            ];
            if let Some((flag, _)) = given.into_iter().find(|(_, is_given)| *is_given) {
                return Err(format!(
                    "{flag} has no effect with --store memory, which is never away and asks \
                     nobody; drop it, or use --store redis://HOST"
                ));
            }
        }
        Ok(())
    }
}

fn no_effect(flag: &str, key: &str, instead: &str) -> String {
    format!("{flag} has no effect with --key {key}; drop it, or use {instead}")
}

impl KeyBy {
    /// The word for the flag, and the name of the policy.
    pub fn name(self) -> &'static str {
        match self {
            Self::Global => "global",
            Self::Ip => "ip",
            Self::ApiKey => "api-key",
            Self::User => "user",
            Self::Chain => "chain",
        }
    }
}

/// Keys are secrets: only their number is shown.
impl std::fmt::Debug for ApiKeyList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ApiKeyList({})", self.0.len())
    }
}

/// It is a secret.
impl std::fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AdminToken")
    }
}

fn token(value: &str) -> Result<AdminToken, String> {
    // The router says what is wrong with it, and here it can be said of the flag.
    let built = tollgate::admin::Admin::builder().token(value).build();
    built.map(|_| AdminToken(value.to_owned())).map_err(|error| error.to_string())
}

fn listen(value: &str) -> Result<SocketAddr, &'static str> {
    value.parse().map_err(|_| "expected an address and a port, as 127.0.0.1:3000 or [::1]:3000")
}

fn store(value: &str) -> Result<Store, String> {
    if value == "memory" {
        return Ok(Store::Memory);
    }
    if !value.contains(':') {
        return Err("expected `memory` or a URL, as redis://127.0.0.1:6379".to_owned());
    }
    RedisStore::builder(value)
        .map(|redis| Store::Redis(Box::new(redis)))
        .map_err(|error| error.to_string())
}

fn store_timeout(value: &str) -> Result<Duration, &'static str> {
    let timeout = humantime::parse_duration(value).ok();
    let possible = Duration::from_millis(1)..=Duration::from_secs(60);
    let timeout = timeout.filter(|timeout| possible.contains(timeout));
    timeout.ok_or("expected a span of 1ms to 60s with its unit, as 50ms")
}

fn lease(value: &str) -> Result<Lease, &'static str> {
    let share = value.split_once('/');
    let share = share.and_then(|(part, of)| Some((part.parse().ok()?, of.parse().ok()?)));
    // Whether it is a share, and whether these units can be leased, the policy says.
    share.map(|(part, of)| Lease::of(part, of)).ok_or("expected a share, as 1/20")
}

fn algorithm() -> impl TypedValueParser<Value = Algorithm> {
    let names = Algorithm::ALL.map(|algorithm| algorithm.name());
    PossibleValuesParser::new(names).try_map(|name| name.parse::<Algorithm>())
}

fn on_store_error() -> impl TypedValueParser<Value = OnStoreError> {
    PossibleValuesParser::new(["open", "closed", "local"]).map(|name| match &*name {
        "closed" => OnStoreError::Closed,
        "local" => OnStoreError::Local,
        _ => OnStoreError::Open,
    })
}

fn units(value: &str) -> Result<u64, String> {
    let most = Policy::MAX_LIMIT;
    let units = value.parse().ok().filter(|units| (1..=most).contains(units));
    units.ok_or_else(|| format!("expected a whole number from 1 to {most}"))
}

fn window(value: &str) -> Result<Duration, &'static str> {
    let window = humantime::parse_duration(value).ok();
    let possible = Policy::MIN_WINDOW..=Policy::MAX_WINDOW;
    let window = window
        .filter(|window| possible.contains(window) && window.subsec_nanos().is_multiple_of(1_000));
    window.ok_or("expected a span of 50us to 400days with its unit, as 60s, 500ms or 1h")
}

fn trusted_proxies(value: &str) -> Result<TrustedProxies, tollgate::key::ClientIpError> {
    TrustedProxies::parse(value.split(',').map(str::trim))
}

fn jwt_secret(value: &str) -> Result<JwtKey, tollgate::key::JwtKeyError> {
    JwtKey::hs256(value.as_bytes())
}

fn api_keys(value: &str) -> Result<ApiKeyList, &'static str> {
    let keys: Vec<_> = value.split(',').map(|key| key.trim().to_owned()).collect();
    if keys.iter().any(|key| key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic())) {
        return Err("expected keys of printable ASCII without spaces, as k-7f3a,k-91bc");
    }
    Ok(ApiKeyList(keys))
}

/// What clap says in a paragraph: which flag or variable, its value, and the cure.
fn one_line(error: &clap::Error, line: &[OsString]) -> String {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let cure = match (error.get(ContextKind::ValidValue), error.source()) {
        (Some(ContextValue::Strings(valid)), _) if !valid.is_empty() => {
            Some(format!("use one of {}", valid.join(", ")))
        }
        (_, Some(source)) => Some(source.to_string()),
        _ => None,
    };
    let (Some(flag), Some(value), Some(cure)) =
        (text(ContextKind::InvalidArg), text(ContextKind::InvalidValue), cure)
    else {
        let paragraph = error.to_string();
        let first = paragraph.lines().next().unwrap_or_default();
        let first = first.trim_start_matches("error: ");
        return match text(ContextKind::SuggestedArg) {
            Some(similar) => format!("{first}; did you mean {similar}?"),
            None => format!("{first}; see --help"),
        };
    };
    // clap names the flag with its placeholder, and does not say where the value was.
    let flag = flag.split(' ').next().unwrap_or(flag);
    let is_flag =
        |arg: &OsString| arg.to_str().is_some_and(|arg| arg.split('=').next() == Some(flag));
    let place = if line.iter().any(is_flag) { flag.to_owned() } else { variable(flag) };
    // A URL may have a password before the `@`.
    if SECRETS.contains(&flag) || value.contains("://") {
        return format!("{place}: {cure}");
    }
    format!("{place} '{}': {cure}", value.escape_debug())
}

fn variable(flag: &str) -> String {
    let name = flag.trim_start_matches('-').replace('-', "_").to_uppercase();
    format!("TOLLGATE_{name}")
}

/// Flags whose values are not repeated in errors, which end up in logs.
const SECRETS: [&str; 3] = ["--jwt-secret", "--api-keys", "--admin-token"];

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &[&str]) -> Result<Args, Stop> {
        let line = std::iter::once("demo").chain(line.iter().copied());
        Args::from_command_line(line.map(OsString::from))
    }

    #[test]
    fn the_defaults_are_the_quota_of_a_hundred_a_minute() {
        let args = read(&[]).unwrap();
        assert_eq!((args.limit, args.window.as_secs()), (100, 60));
        assert_eq!(args.algorithm.name(), "sliding_window_log");
        assert_eq!(args.key, KeyBy::Global);
        assert!(matches!(args.store, Store::Memory));
        assert_eq!(args.listen.to_string(), "127.0.0.1:3000");
    }

    #[test]
    fn whatever_is_wrong_is_said_in_one_line_with_the_cure() {
        let secret = "thirty-two bytes that are a secret";
        for (line, expected) in [
            (&["--limit", "0"][..], "--limit '0': expected a whole number from 1 to"),
            (&["--limit=ten"], "--limit 'ten': expected a whole number"),
            (&["--limit", "1", "--limit", "2"], "cannot be used multiple times; see --help"),
            (&["--limits", "1"], "unexpected argument '--limits' found; did you mean --limit?"),
            (&["serve"], "unexpected argument 'serve' found; see --help"),
            (&["--limit"], "a value is required for '--limit <LIMIT>'"),
            (&["--window", "60"], "--window '60': expected a span of 50us to 400days"),
            (&["--window", "1ns"], "--window '1ns': expected a span"),
            (&["--burst", "-1"], "unexpected argument '-1' found"),
            (&["--burst=-1"], "--burst '-1': expected a whole number"),
            (&["--listen", "3000"], "--listen '3000': expected an address and a port"),
            (&["--server-id", "a\nb"], "--server-id 'a\\nb': expected"),
            (&["--store", "disk"], "--store 'disk': expected `memory` or a URL"),
            (&["--store", "http://:thirty-two@host"], "--store: the Redis URL has the scheme"),
            (&["--store", "redis://host/x"], "--store: the Redis URL names the database"),
            (&["--store-timeout", "0s"], "--store-timeout '0s': expected a span of 1ms"),
            (&["--store-timeout", "5ms"], "--store-timeout has no effect with --store memory"),
            (&["--algorithm", "log"], "--algorithm 'log': use one of fixed_window_counter, "),
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
            (&["--on-store-error", "open"], "--on-store-error has no effect with --store memory"),
            (&["--lease", "0.05"], "--lease '0.05': expected a share, as 1/20"),
            (&["--lease", "1/20"], "--lease has no effect with --store memory"),
        ] {
            let Err(Stop::Wrong(error)) = read(line) else { panic!("{line:?} is accepted") };
            assert!(error.contains(expected), "{line:?}: {error}");
            assert!(!error.contains('\n') && !error.contains(secret), "{line:?}: {error}");
            assert!(!error.contains(":thirty-two@"), "{line:?}: {error}");
        }
    }

    #[test]
    fn help_is_no_error() {
        for flag in ["--help", "-h", "--version"] {
            assert!(matches!(read(&[flag]), Err(Stop::Help(_))), "{flag}");
        }
    }
}
