//! Flags and environment variables.

use std::env;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, ValueEnum};
use humantime::parse_duration;
use tollgate::Policy;
use tollgate::key::SubjectFormat;
use tollgate::policy::{Algorithm, Lease, OnStoreError};

/// A small HTTP service behind a Tollgate rate limit
#[derive(Parser)]
#[command(
    version,
    after_help = "RUST_LOG=tower_http=debug logs each request to stderr, RUST_LOG=tollgate=debug each decision."
)]
pub(crate) struct Args {
    /// Where to listen; port 0 selects a free port
    #[arg(long, env = "TOLLGATE_LISTEN", default_value = "127.0.0.1:3000")]
    pub(crate) listen: SocketAddr,

    /// This replica's name, in X-Server-Id and in denials [default: the host's name]
    #[arg(long, env = "TOLLGATE_SERVER_ID")]
    pub(crate) server_id: Option<String>,

    /// Where quotas are stored: `memory`, in this process, or the URL of a shared Redis, such as
    /// redis://127.0.0.1:6379
    #[arg(long, env = "TOLLGATE_STORE", default_value = "memory", hide_env_values = true)]
    pub(crate) store: String,

    /// How long a decision by Redis may take [default: 50ms]
    #[arg(long, env = "TOLLGATE_STORE_TIMEOUT", value_parser = parse_duration)]
    pub(crate) store_timeout: Option<Duration>,

    /// How units are counted
    #[arg(long, env = "TOLLGATE_ALGORITHM", value_parser = algorithm(), default_value = "sliding_window_log")]
    pub(crate) algorithm: Algorithm,

    /// Units per window
    #[arg(long, env = "TOLLGATE_LIMIT", value_parser = units(), default_value = "100")]
    pub(crate) limit: u64,

    /// The window: 60s, 500ms, 1h
    #[arg(long, env = "TOLLGATE_WINDOW", value_parser = parse_duration, default_value = "60s")]
    pub(crate) window: Duration,

    /// The burst in units, for token_bucket and leaky_bucket [default: the limit]
    #[arg(long, env = "TOLLGATE_BURST", value_parser = units())]
    pub(crate) burst: Option<u64>,

    /// Request costs: `by-method` is GET 1, SEARCH 3, POST, PUT and PATCH 5, DELETE 10, any other
    /// method 1, and needs a limit of 10 or more; `one` is 1 for each request; OPTIONS is always free
    #[arg(long, env = "TOLLGATE_COSTS", default_value = "by-method")]
    pub(crate) costs: CostsBy,

    /// The request key; `chain` is the user, otherwise the API key, otherwise the IP address
    #[arg(long, env = "TOLLGATE_KEY", default_value = "global", requires_if("user", "jwt_secret"))]
    pub(crate) key: KeyBy,

    /// Proxies that may set X-Forwarded-For: 10.0.0.0/8,192.0.2.7, `loopback`, `private`
    #[arg(long, env = "TOLLGATE_TRUSTED_PROXIES", value_delimiter = ',')]
    pub(crate) trusted_proxies: Vec<String>,

    /// The secret for HS256 tokens, 32 bytes or more; safer in the variable than in the flag
    #[arg(long, env = "TOLLGATE_JWT_SECRET", hide_env_values = true)]
    pub(crate) jwt_secret: Option<String>,

    /// The accepted API keys, comma separated; by default any X-API-Key is accepted, so each new key
    /// gets its own quota
    #[arg(long, env = "TOLLGATE_API_KEYS", value_delimiter = ',', hide_env_values = true)]
    pub(crate) api_keys: Vec<String>,

    /// While Redis cannot decide: let requests pass without limits, reject them with 503, or let this
    /// replica grant its share of the quota by itself [default: local]
    #[arg(long, env = "TOLLGATE_ON_STORE_ERROR", value_parser = named(ON_STORE_ERROR))]
    pub(crate) on_store_error: Option<OnStoreError>,

    /// The same for requests that are not sent to Redis because the answer would come too late
    /// [default: the value of --on-store-error]
    #[arg(long, env = "TOLLGATE_SHED", value_parser = named(ON_STORE_ERROR))]
    pub(crate) shed: Option<OnStoreError>,

    /// The log format
    #[arg(long, env = "TOLLGATE_LOG_FORMAT", value_parser = ["text", "json"], default_value = "text")]
    pub(crate) log_format: String,

    /// Let this replica lease up to this share of the quota, such as 1/20, to spend it without calling
    /// Redis for each request [default: no lease]
    #[arg(long, env = "TOLLGATE_LEASE", value_parser = lease)]
    pub(crate) lease: Option<Lease>,

    /// Check the health of the demo at --listen instead of starting it, for container images without a
    /// shell
    #[arg(long)]
    pub(crate) healthcheck: bool,

    /// Where to serve the live page, /status, /top and /metrics for operators, such as 127.0.0.1:9100
    #[arg(long, env = "TOLLGATE_ADMIN", requires = "admin_token")]
    pub(crate) admin: Option<SocketAddr>,

    /// The operator token, 16 characters or more; safer in the variable than in the flag
    #[arg(long, env = "TOLLGATE_ADMIN_TOKEN", requires = "admin", hide_env_values = true)]
    pub(crate) admin_token: Option<String>,

    /// Host names under which --admin may be requested, besides localhost: api1,10.0.0.7
    #[arg(long, env = "TOLLGATE_ADMIN_HOSTS", requires = "admin", value_delimiter = ',')]
    pub(crate) admin_hosts: Vec<String>,

    /// How /top shows denied clients
    #[arg(long, env = "TOLLGATE_ADMIN_SUBJECTS", value_parser = named(SUBJECTS), default_value = "masked")]
    pub(crate) admin_subjects: SubjectFormat,

    /// Other replicas for the page to show, which may also read this replica's stream, such as
    /// http://127.0.0.1:9101,http://127.0.0.1:9102; may include this replica
    #[arg(long, env = "TOLLGATE_ADMIN_PEERS", requires = "admin", value_delimiter = ',')]
    pub(crate) admin_peers: Vec<String>,

    /// Where the page's buttons send requests, such as http://127.0.0.1:8080 [default: --listen]
    #[arg(long, env = "TOLLGATE_ADMIN_TARGET", requires = "admin")]
    pub(crate) admin_target: Option<String>,
}

/// What determines the request cost.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CostsBy {
    ByMethod,
    One,
}

/// What determines the request key.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum KeyBy {
    Global,
    Ip,
    ApiKey,
    User,
    Chain,
}

fn algorithm() -> impl TypedValueParser<Value = Algorithm> {
    let names = Algorithm::ALL.map(|algorithm| algorithm.name());
    PossibleValuesParser::new(names).try_map(|name| name.parse::<Algorithm>())
}

const ON_STORE_ERROR: [(&str, OnStoreError); 3] = [
    ("open", OnStoreError::Open),
    ("closed", OnStoreError::Closed),
    ("local", OnStoreError::Local),
];

const SUBJECTS: [(&str, SubjectFormat); 3] = [
    ("hash", SubjectFormat::Hash),
    ("masked", SubjectFormat::Masked),
    ("clear", SubjectFormat::Clear),
];

/// The library's values by their names.
fn named<T, const N: usize>(values: [(&'static str, T); N]) -> impl TypedValueParser<Value = T>
where
    T: Copy + Send + Sync + 'static,
{
    PossibleValuesParser::new(values.map(|(name, _)| name)).try_map(move |given| {
        let found = values.iter().find(|(name, _)| *name == given);
        found.map(|(_, value)| *value).ok_or("there is no such value")
    })
}

fn units() -> impl TypedValueParser<Value = u64> {
    clap::value_parser!(u64).range(1..=Policy::MAX_LIMIT)
}

fn lease(share: &str) -> Result<Lease, &'static str> {
    let share = share.split_once('/');
    let share = share.and_then(|(part, of)| Some(Lease::of(part.parse().ok()?, of.parse().ok()?)));
    share.ok_or("expected a share such as 1/20")
}

/// The flag, or its variable if the user set only the variable.
pub(crate) fn spelled(flag: &str) -> String {
    let variable = flag.trim_start_matches('-').replace('-', "_").to_uppercase();
    let variable = format!("TOLLGATE_{variable}");
    let is_flag = |arg: OsString| arg.to_str().and_then(|arg| arg.split('=').next()) == Some(flag);
    let is_typed = env::args_os().any(is_flag);
    if is_typed || env::var_os(&variable).is_none() { flag.to_owned() } else { variable }
}

impl Args {
    /// Reads flags, and the environment variable for each flag that is absent.
    ///
    /// # Errors
    /// The user requested help, a value is invalid, or a flag has no effect.
    pub(crate) fn read(
        line: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    ) -> Result<Self, clap::Error> {
        let args = Self::try_parse_from(line).map_err(|mut error| {
            if let Some(ContextValue::String(arg)) = error.get(ContextKind::InvalidArg) {
                // clap names the flag with its placeholder, also if the value is the variable's.
                let flag = arg.split(' ').next().unwrap_or(arg);
                let name = spelled(flag);
                if name != flag {
                    error.insert(ContextKind::InvalidArg, ContextValue::String(name));
                }
            }
            error
        })?;
        match args.without_effect() {
            Some(text) => Err(Self::command().error(ErrorKind::ArgumentConflict, text)),
            None => Ok(args),
        }
    }

    /// Why a flag has no effect, and the cure.
    fn without_effect(&self) -> Option<String> {
        let has_users = matches!(self.key, KeyBy::User | KeyBy::Chain);
        let has_api_keys = matches!(self.key, KeyBy::ApiKey | KeyBy::Chain);
        let has_addresses = matches!(self.key, KeyBy::Ip | KeyBy::Chain);
        let has_burst =
            matches!(self.algorithm, Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. });
        let is_shared = self.store != "memory";
        let redis = "--store redis://HOST";
        let flags = [
            ("--jwt-secret", self.jwt_secret.is_some(), has_users, "--key user or --key chain"),
            ("--api-keys", !self.api_keys.is_empty(), has_api_keys, "--key api-key or --key chain"),
            (
                "--trusted-proxies",
                !self.trusted_proxies.is_empty(),
                has_addresses,
                "--key ip or --key chain",
            ),
            (
                "--burst",
                self.burst.is_some(),
                has_burst,
                "--algorithm token_bucket or --algorithm leaky_bucket",
            ),
            ("--on-store-error", self.on_store_error.is_some(), is_shared, redis),
            ("--shed", self.shed.is_some(), is_shared, redis),
            ("--store-timeout", self.store_timeout.is_some(), is_shared, redis),
            ("--lease", self.lease.is_some(), is_shared, redis),
        ];
        let (flag, .., cure) = flags.into_iter().find(|(_, given, works, _)| *given && !works)?;
        Some(format!("{} only has an effect with {cure}: add that, or remove it", spelled(flag)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_allow_100_units_per_minute() {
        Args::command().debug_assert();
        let args = Args::read(["demo"]).unwrap();
        assert_eq!((args.limit, args.window.as_secs()), (100, 60));
        assert_eq!(args.algorithm.name(), "sliding_window_log");
        assert!(args.key == KeyBy::Global && args.costs == CostsBy::ByMethod);
        assert_eq!((&*args.store, &*args.listen.to_string()), ("memory", "127.0.0.1:3000"));
    }

    #[test]
    fn flags_name_what_they_need() {
        let secret = "thirty-two bytes that are a secret";
        let redis = "with --store redis://HOST: add that, or remove it";
        for (flag, needed) in [
            (["--key", "user"], "--jwt-secret"),
            (["--admin", "127.0.0.1:0"], "--admin-token"),
            (["--admin-token", "0123456789abcdef"], "--admin "),
            (["--admin-peers", "http://a:1"], "--admin "),
            (["--algorithm", "log"], "[possible values: fixed_window_counter"),
            (["--on-store-error", "x"], "[possible values: open, closed, local]"),
            (["--admin-subjects", "x"], "[possible values: hash, masked, clear]"),
            (["--window", "60"], "'60' for '--window <WINDOW>'"),
            (["--limit", "0"], "'0' for '--limit <LIMIT>': 0 is not in 1..="),
            (["--burst", "0"], "'0' for '--burst <BURST>': 0 is not in 1..="),
            (["--lease", "0.05"], "'0.05' for '--lease <LEASE>': expected a share such as 1/20"),
            (["--lease", "1/x"], "'1/x' for '--lease <LEASE>': expected a share such as 1/20"),
            (["--jwt-secret", secret], "--jwt-secret only has an effect with --key user or"),
            (["--api-keys", "k-1"], "--api-keys only has an effect with --key api-key or"),
            (["--trusted-proxies", "private"], "only has an effect with --key ip or --key chain"),
            (["--burst", "5"], "--burst only has an effect with --algorithm token_bucket or"),
            (["--on-store-error", "open"], redis),
            (["--shed", "closed"], redis),
            (["--store-timeout", "5ms"], redis),
            (["--lease", "1/20"], redis),
        ] {
            let error = Args::read([&["demo"][..], &flag].concat()).err().unwrap().to_string();
            assert!(error.contains(needed), "{flag:?}: {error}");
            assert!(!error.contains(secret), "{flag:?}: {error}");
        }
    }

    #[test]
    fn flags_have_an_effect_where_they_are_needed() {
        let secret = "thirty-two bytes that are a secret";
        for line in [
            "--key chain --jwt-secret {} --api-keys k-1,k-2 --trusted-proxies private",
            "--key user --jwt-secret {}",
            "--key api-key --api-keys k-1",
            "--key ip --trusted-proxies 10.0.0.0/8",
            "--algorithm leaky_bucket --burst 20",
            "--store redis://a --on-store-error open --shed local --lease 1/20 --store-timeout 9ms",
        ] {
            let line = line.split(' ').map(|word| if word == "{}" { secret } else { word });
            assert!(Args::read(std::iter::once("demo").chain(line.clone())).is_ok(), "{line:?}");
        }
    }

    /// docker-compose.yml passes each variable by name, so it is easy to forget a new variable.
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
}
