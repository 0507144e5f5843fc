//! Flags and environment variables.
//!
//! | file | contents |
//! |---|---|
//! | `values.rs` | parses each flag's value |
//! | `effects.rs` | rejects flags that would have no effect |
//! | `errors.rs` | shortens errors to one line |

mod effects;
mod errors;
#[cfg(test)]
mod tests;
mod values;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Parser, ValueEnum};
use tollgate::key::{JwtKey, SubjectFormat, TrustedProxies};
use tollgate::policy::{Algorithm, Lease, OnStoreError};
use tollgate::store::RedisStoreBuilder;

use self::errors::one_line;
use self::values::{
    algorithm, api_keys, jwt_secret, lease, listen, on_store_error, store, store_timeout, subjects,
    token, trusted_proxies, units, window,
};
use crate::app::ServerId;

/// A small HTTP service behind a Tollgate rate limit
#[derive(Clone, Debug, Parser)]
#[command(
    version,
    after_help = "RUST_LOG=tower_http=debug logs each request to stderr, RUST_LOG=tollgate=debug each decision."
)]
pub struct Args {
    /// Where to listen; port 0 selects a free port
    #[arg(long, env = "TOLLGATE_LISTEN", value_parser = listen, default_value = "127.0.0.1:3000")]
    pub listen: SocketAddr,

    /// This replica's name, in X-Server-Id and in denials [default: the host's name]
    #[arg(long, env = "TOLLGATE_SERVER_ID", default_value_t, hide_default_value = true)]
    pub server_id: ServerId,

    /// Where quotas are stored: `memory`, in this process, or the URL of a shared Redis, such as
    /// redis://127.0.0.1:6379
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

    /// The burst in units, for token_bucket and leaky_bucket [default: the limit]
    #[arg(long, env = "TOLLGATE_BURST", value_parser = units)]
    pub burst: Option<u64>,

    /// Request costs: `by-method` is GET 1, SEARCH 3, POST, PUT and PATCH 5, DELETE 10, any other
    /// method 1, and needs a limit of 10 or more; `one` is 1 for each request
    #[arg(long, env = "TOLLGATE_COSTS", value_enum, default_value = "by-method")]
    pub costs: CostsBy,

    /// The request key; `chain` is the user, otherwise the API key, otherwise the IP address
    #[arg(long, env = "TOLLGATE_KEY", value_enum, default_value = "global")]
    pub key: KeyBy,

    /// Proxies that may set X-Forwarded-For: 10.0.0.0/8,192.0.2.7, `loopback`, `private`
    #[arg(long, env = "TOLLGATE_TRUSTED_PROXIES", value_parser = trusted_proxies)]
    pub trusted_proxies: Option<TrustedProxies>,

    /// The secret for HS256 tokens, 32 bytes or more; safer in the variable than in the flag
    #[arg(long, env = "TOLLGATE_JWT_SECRET", value_parser = jwt_secret, hide_env_values = true)]
    pub jwt_secret: Option<JwtKey>,

    /// The accepted API keys, comma separated; by default any X-API-Key is accepted
    #[arg(long, env = "TOLLGATE_API_KEYS", value_parser = api_keys, hide_env_values = true)]
    pub api_keys: Option<ApiKeyList>,

    /// While Redis cannot decide: let requests pass without limits, reject them with 503, or let this
    /// replica grant its share of the quota by itself [default: local]
    #[arg(long, env = "TOLLGATE_ON_STORE_ERROR", value_parser = on_store_error())]
    pub on_store_error: Option<OnStoreError>,

    /// The same for requests that are not sent to Redis because the answer would come too late
    /// [default: the value of --on-store-error]
    #[arg(long, env = "TOLLGATE_SHED", value_parser = on_store_error())]
    pub shed: Option<OnStoreError>,

    /// The log format
    #[arg(long, env = "TOLLGATE_LOG_FORMAT", value_enum, default_value = "text")]
    pub log_format: LogFormat,

    /// Let this replica lease up to this share of the quota, such as 1/20, to spend it without calling
    /// Redis for each request [default: no lease]
    #[arg(long, env = "TOLLGATE_LEASE", value_parser = lease)]
    pub lease: Option<Lease>,

    /// Check the health of the demo at --listen instead of starting it, for container images without a
    /// shell
    #[arg(long)]
    pub healthcheck: bool,

    #[command(flatten)]
    #[expect(missing_docs, reason = "the flags' help documents it")]
    pub admin: AdminArgs,
}

/// The admin address.
#[derive(Clone, Debug, clap::Args)]
pub struct AdminArgs {
    /// Where to serve the live page, /status, /top and /metrics for operators, such as 127.0.0.1:9100
    #[arg(long, env = "TOLLGATE_ADMIN", value_parser = listen)]
    pub admin: Option<SocketAddr>,

    /// The operator token, 16 characters or more; safer in the variable than in the flag
    #[arg(long, env = "TOLLGATE_ADMIN_TOKEN", value_parser = token, hide_env_values = true)]
    pub admin_token: Option<AdminToken>,

    /// Host names under which --admin may be requested, besides localhost: api1,10.0.0.7
    #[arg(long, env = "TOLLGATE_ADMIN_HOSTS", value_delimiter = ',')]
    pub admin_hosts: Vec<String>,

    /// How /top shows denied clients
    #[arg(long, env = "TOLLGATE_ADMIN_SUBJECTS", value_parser = subjects(), default_value = "masked")]
    pub admin_subjects: SubjectFormat,

    /// Other replicas for the page to show, which may also read this replica's stream, such as
    /// http://127.0.0.1:9101,http://127.0.0.1:9102; may include this replica
    #[arg(long, env = "TOLLGATE_ADMIN_PEERS", value_delimiter = ',')]
    pub admin_peers: Vec<String>,

    /// Where the page's buttons send requests, such as http://127.0.0.1:8080 [default: --listen]
    #[arg(long, env = "TOLLGATE_ADMIN_TARGET")]
    pub admin_target: Option<String>,
}

/// The token of the admin address.
#[derive(Clone)]
pub struct AdminToken(pub String);

/// The store for quotas.
#[derive(Clone, Debug)]
pub enum Store {
    /// In this process.
    Memory,
    /// In Redis, for all replicas with the same URL.
    Redis(Box<RedisStoreBuilder>),
}

/// What determines the request cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "the flag's help documents it")]
pub enum CostsBy {
    ByMethod,
    One,
}

/// What determines the request key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "the flag's help documents it")]
pub enum KeyBy {
    Global,
    Ip,
    ApiKey,
    User,
    Chain,
}

/// The log format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "the flag's help documents it")]
pub enum LogFormat {
    Text,
    Json,
}

/// Rewrites `--window -5s` to `--window=-5s`. clap would parse a separate `-5s` as a flag, and its
/// error would mention neither `--window` nor the expected value.
fn joined(line: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut joined: Vec<OsString> = Vec::new();
    for arg in line {
        let is_negative = arg.to_str().and_then(|arg| arg.strip_prefix('-'));
        let is_negative =
            is_negative.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        let flag = joined.last_mut().filter(|last| {
            last.to_str().is_some_and(|last| last.starts_with("--") && !last.contains('='))
        });
        match flag.filter(|_| is_negative) {
            Some(flag) => {
                flag.push("=");
                flag.push(arg);
            }
            None => joined.push(arg),
        }
    }
    joined
}

/// The accepted API keys.
#[derive(Clone)]
pub struct ApiKeyList(pub Vec<String>);

/// Why the program does not start.
#[derive(Debug)]
pub enum Stop {
    /// The user requested help or the version.
    Help(String),
    /// A one-line error.
    Wrong(String),
}

impl Args {
    /// Reads flags, and the environment variable for each flag that is absent.
    ///
    /// # Errors
    /// The user requested help, or a value or a combination of values is invalid.
    pub fn from_command_line(line: impl IntoIterator<Item = OsString>) -> Result<Self, Stop> {
        let line = joined(line);
        let args = Self::try_parse_from(&line).map_err(|error| match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Stop::Help(error.to_string()),
            _ => Stop::Wrong(one_line(&error, &line)),
        })?;
        args.check().map_err(Stop::Wrong)?;
        Ok(args)
    }
}

impl KeyBy {
    /// The flag's value, which is also the policy name.
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

/// Shows only the number of keys, because the keys are secrets.
impl std::fmt::Debug for ApiKeyList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ApiKeyList({})", self.0.len())
    }
}

/// Omits the token, because it is a secret.
impl std::fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AdminToken")
    }
}
