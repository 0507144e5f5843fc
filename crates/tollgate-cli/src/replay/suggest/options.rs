//! The options of `tollgate suggest`.

use std::path::PathBuf;
use std::time::Duration;

use tollgate_replay::suggest::SHARES;

use super::super::replayed::LogArgs;

/// The options of `tollgate suggest`.
#[derive(Clone, Debug, clap::Args)]
pub struct SuggestArgs {
    /// The log.
    #[command(flatten)]
    pub log: LogArgs,
    /// The percentage of clients that the file never denies
    #[arg(long, value_enum, default_value_t)]
    pub level: CoverageLevel,
    /// The algorithm for client limits
    #[arg(long, value_enum, default_value_t)]
    pub algorithm: Shape,
    /// The limits' window
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = whole_seconds)]
    pub window: Duration,
    /// A route, such as `/api/item/{id}`; may be repeated. Other paths are grouped automatically
    #[arg(long, value_name = "PATH", value_parser = pattern)]
    pub pattern: Vec<String>,
    /// An OpenAPI description in YAML or JSON, whose paths become routes
    #[arg(long, value_name = "FILE")]
    pub openapi: Option<PathBuf>,
    /// How much higher than the log requires each client's limits are, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 25, value_parser = clap::value_parser!(u64).range(..=1_000))]
    pub headroom: u64,
    /// The number of routes with their own limit: the routes with the most requests
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub routes: usize,
    /// A trusted proxy, such as 10.0.0.0/8; may be repeated. The log must contain X-Forwarded-For
    #[arg(long, value_name = "NETWORK", value_delimiter = ',')]
    pub trusted_proxies: Vec<String>,
    /// The header in which these proxies write the client's address, instead of X-Forwarded-For
    #[arg(long, value_name = "NAME", requires = "trusted_proxies")]
    pub header: Option<String>,
    /// Count a logged user as the same client on all addresses
    #[arg(long)]
    pub users: bool,
    /// Where allowed requests will be forwarded
    #[arg(long, value_name = "URL", default_value = "http://localhost:3000")]
    pub target: String,
    /// Write to this file instead of stdout
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Also replay the log with these limits, and write the report as an HTML file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

impl SuggestArgs {
    /// The share of clients that the file never denies, in units of 0.01 %.
    pub(super) const fn share(&self) -> u64 {
        SHARES[self.level as usize]
    }
}

/// The share of clients that are never denied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum CoverageLevel {
    /// One client in a hundred may be denied.
    #[value(name = "99")]
    Two,
    /// One client in a thousand.
    #[default]
    #[value(name = "99.9")]
    Three,
    /// One client in ten thousand.
    #[value(name = "99.99")]
    Four,
}

/// How a client is limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Shape {
    /// A rate and a burst.
    #[default]
    TokenBucket,
    /// A number of requests in any window.
    SlidingWindowLog,
}

/// In a file, windows have whole seconds.
fn whole_seconds(text: &str) -> Result<Duration, String> {
    let window = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    let is_whole = window.subsec_nanos() == 0 && !window.is_zero();
    if is_whole { Ok(window) } else { Err("expected whole seconds such as 60s".to_owned()) }
}

fn pattern(text: &str) -> Result<String, String> {
    let is_path = text.starts_with('/');
    if is_path { Ok(text.to_owned()) } else { Err("expected a path such as /item/{id}".to_owned()) }
}
