//! `tollgate suggest`: limits that fit an access log, as a file for `check` and `serve`.

use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tollgate::store::Micros;
use tollgate_config::check::Count;
use tollgate_config::plan::Plan;
use tollgate_config::{self as config, Source};
use tollgate_replay::suggest::{Bounds, Fit, Level, Suggest, Suggestion};

use super::recorded::Recorded;
use super::replayed::{LogArgs, ReplayError, Replayed, read, replay, write_whole};

/// The options of `tollgate suggest`.
#[derive(Clone, Debug, clap::Args)]
pub struct SuggestArgs {
    /// The log.
    #[command(flatten)]
    pub log: LogArgs,
    /// The percentage of clients that the file never denies
    #[arg(long, value_enum, default_value_t)]
    pub level: Share,
    /// The algorithm for client limits
    #[arg(long, value_enum, default_value_t)]
    pub algorithm: Shape,
    /// The limits' window
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = whole_seconds)]
    pub window: Duration,
    /// A route, such as `/api/item/{id}`; may be repeated. Other paths are grouped automatically
    #[arg(long, value_name = "PATH", value_parser = pattern)]
    pub pattern: Vec<String>,
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
}

/// The share of clients that are never denied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Share {
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

/// Suggests limits, and replays the log against them.
pub fn run(args: &SuggestArgs) -> Result<String, ReplayError> {
    let learned = learn(args)?;
    let mut yaml = String::new();
    let _ = write(&mut yaml, args, &learned);
    let plan = plan(&yaml)?;
    let is_stdin = |path: &PathBuf| path.as_path() == Path::new("-");
    if args.log.logs.iter().any(is_stdin) {
        yaml.push_str("\n# Not replayed, because stdin cannot be read twice.\n");
    } else {
        let replayed = replay(plan, None, &args.log, 0)?;
        let _ = write_replayed(&mut yaml, &replayed);
    }
    match &args.output {
        None => Ok(yaml),
        Some(path) => {
            write_whole(path, yaml.as_bytes())
                .map_err(|error| ReplayError::Write { path: path.clone(), error })?;
            Ok(format!("tollgate check {0}\ntollgate serve {0}\n", path.display()))
        }
    }
}

fn plan(yaml: &str) -> Result<Plan, ReplayError> {
    // The log names users, so no token is verified.
    let secret = |name: &str| (name == SECRET).then(|| "0".repeat(32));
    let outcome = config::read(&Source::new("suggested", yaml), &secret);
    let report = outcome.report;
    outcome.plan.ok_or_else(|| {
        ReplayError::Plan(format!("no file fits this log or these options: {report}"))
    })
}

/// The variable that contains the key for users' tokens.
const SECRET: &str = "JWT_SECRET";

/// The result of reading the log.
struct Learned {
    suggestion: Suggestion,
    unreadable: u64,
    /// Lines that charge no limit.
    not_limited: u64,
    /// Lines with `X-Forwarded-For` although their peer counts as the client.
    not_forwarded: u64,
    /// Charged lines with a user, and charged lines with a status.
    with_user: u64,
    with_status: u64,
}

/// Learns from the requests and clients that the suggested file will charge.
fn learn(args: &SuggestArgs) -> Result<Learned, ReplayError> {
    let mut head = String::new();
    let _ = write_head(&mut head, args);
    head.push_str("  client: {limit: 1, windowSeconds: 1}\n");
    let recorded = Recorded::new(plan(&head)?, tollgate_replay::Bounds::default(), None);
    let mut recorded = recorded.map_err(ReplayError::Plan)?;
    let bounds = Bounds { routes: args.routes, ..Bounds::default() };
    let mut suggest = Suggest::new(Micros::from(args.window), &args.pattern, bounds);
    let (mut not_limited, mut with_user, mut with_status) = (0, 0, 0);
    let header = args.header.as_deref().unwrap_or("X-Forwarded-For");
    let mut has_header = args.trusted_proxies.is_empty();
    let records = read(&args.log, 0, |_, record| {
        let Some((subject, path)) = recorded.charged(record) else {
            not_limited += 1;
            return Ok(());
        };
        has_header |= record.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(header));
        with_user += u64::from(record.user.is_some());
        with_status += u64::from(record.status != 0);
        let is_success = matches!(record.status, 0 | 100..400);
        let client = subject.as_ref().map(|subject| &subject.key);
        suggest.request(record.at, client, &path, is_success);
        Ok(())
    })?;
    let suggestion = suggest.suggestion();
    if suggestion.requests == 0 {
        return Err(ReplayError::NoneCharged);
    }
    if suggestion.clients == 0 {
        return Err(ReplayError::NoClient);
    }
    if !has_header {
        return Err(ReplayError::NoHeader { header: header.to_owned() });
    }
    Ok(Learned {
        suggestion,
        unreadable: records.unreadable(),
        not_limited,
        not_forwarded: recorded.not_forwarded,
        with_user,
        with_status,
    })
}

/// Writes the settings that identify clients.
fn write_head(out: &mut String, args: &SuggestArgs) -> fmt::Result {
    writeln!(out, "rateLimiter:\n  target: {}", quoted(&args.target))?;
    if !args.trusted_proxies.is_empty() {
        let proxies: Vec<_> = args.trusted_proxies.iter().map(|it| quoted(it)).collect();
        writeln!(out, "  trustedProxies: [{}]", proxies.join(", "))?;
    }
    let address = match &args.header {
        Some(header) => format!("{{key: ip, header: {}}}", quoted(header)),
        None => "ip".to_owned(),
    };
    if args.users {
        writeln!(out, "  identity: [user, {address}]")?;
        writeln!(
            out,
            "  # The key that verifies the tokens of your users; see `jwt` for other keys."
        )?;
        writeln!(out, "  jwt: {{secret: '${{{SECRET}}}'}}")?;
    } else if args.header.is_some() {
        writeln!(out, "  identity: {address}")?;
    }
    Ok(())
}

fn write(out: &mut String, args: &SuggestArgs, learned: &Learned) -> fmt::Result {
    let suggestion = &learned.suggestion;
    let Suggestion { requests, clients, busiest_second, busiest_minute, .. } = suggestion;
    writeln!(out, "# Suggested by `tollgate suggest` from {}", Count(*requests, "request"))?;
    if let (Some(first), Some(last)) = (suggestion.first, suggestion.last) {
        let (days, clients) = (Count(days(suggestion), "day"), Count(*clients, "client"));
        writeln!(out, "# from {first} to {last}: {days}, {clients}.")?;
    }
    writeln!(
        out,
        "# The service handled {} in its busiest second and {} in its busiest minute.",
        Count(*busiest_second, "request"),
        Count(*busiest_minute, "request")
    )?;
    writeln!(out, "#\n# What this file does not know:")?;
    for unknown in unknown(args, learned) {
        writeln!(out, "# - {unknown}")?;
    }
    writeln!(out)?;
    write_head(out, args)?;
    writeln!(out, "\n  # All clients together: {HEADROOM} times the busiest minute of the log.")?;
    writeln!(
        out,
        "  global:\n    strategy: fixed_window_counter\n    limit: {}\n    windowSeconds: 60",
        busiest_minute.max(&1).saturating_mul(HEADROOM)
    )?;
    let window = suggestion.window_seconds;
    let all = Count(suggestion.all.requests, "request");
    writeln!(
        out,
        "\n  # Each client, over all routes: {all}. `above` counts the clients that a limit denies.\n  \
         # All limits with the same percentage together deny no more clients than that percentage \
         allows."
    )?;
    write_levels(out, "  ", &suggestion.all, window)?;
    writeln!(out, "  client:")?;
    write_quota(out, "    ", args, &suggestion.all, window)?;
    if !suggestion.routes.is_empty() {
        writeln!(out, "\n  # The first match counts.\n  apis:")?;
    }
    for (number, (path, fit)) in suggestion.routes.iter().enumerate() {
        let (requests, clients) = (Count(fit.requests, "request"), Count(fit.clients, "client"));
        writeln!(out, "    # {path}: {requests} of {clients}.")?;
        write_levels(out, "    ", fit, window)?;
        writeln!(out, "    - identifier: {}", identifier(path, number + 1))?;
        let expression = quoted(&expression(path));
        writeln!(out, "      path: {{expression: regex, value: {expression}}}")?;
        write_quota(out, "      ", args, fit, window)?;
    }
    Ok(())
}

/// The log shows the service's past load, but not how much load it can handle.
const HEADROOM: u64 = 2;

fn days(suggestion: &Suggestion) -> u64 {
    let (Some(first), Some(last)) = (suggestion.first, suggestion.last) else { return 1 };
    last.0.since(first.0).get().div_ceil(86_400_000_000).max(1)
}

/// Lists the facts that the log does not contain.
fn unknown(args: &SuggestArgs, learned: &Learned) -> Vec<String> {
    let Learned { suggestion, unreadable, not_limited, not_forwarded, .. } = learned;
    let Suggestion { requests, clients, sample, largest_client, .. } = suggestion;
    let mut all =
        vec!["How much the service can handle: the log shows only what it did.".to_owned()];
    let days = days(suggestion);
    if days < 7 {
        all.push(format!("The other days of the week: the log has {}.", Count(days, "day")));
    }
    let share = suggestion.all.levels[args.level as usize].share;
    if clients * (10_000 - share) < 10_000 {
        let (share, clients) = (percent(share), Count(*clients, "client"));
        all.push(format!(
            "What {share} % of many clients need: of {clients}, this includes even an attacker."
        ));
    }
    if *not_forwarded > 0 {
        all.push(format!(
            "The clients that sent {} with X-Forwarded-For, because their peer counted. Name your \
             proxies in --trusted-proxies.",
            Count(*not_forwarded, "request")
        ));
    } else if largest_client * 2 > *requests && *clients > 1 {
        all.push(format!(
            "Whether one address is a proxy: it sent {largest_client} of {}. Then log the client's \
             address.",
            Count(*requests, "request")
        ));
    }
    if !args.users && learned.with_user > 0 {
        all.push(format!(
            "Users: {} have a user, but their addresses counted. `--users` counts users.",
            Count(learned.with_user, "request")
        ));
    }
    let mut add = |number: u64, of: &'static str, rest: &str| {
        if number > 0 {
            all.push(format!("{} {rest}", Count(number, of)));
        }
    };
    add(*unreadable, "line", "cannot be read.");
    add(*not_limited, "request", "meet no limit: preflights, and requests that `serve` rejects.");
    add(suggestion.without_client, "request", "have no client.");
    let without_status = requests - learned.with_status;
    add(without_status, "request", "have no status, and count as successful.");
    let rest = "failed. The limits count these, but they do not determine the routes.";
    add(suggestion.unsuccessful, "request", rest);
    let rest = "have a path beyond the first 100000. Route limits ignore these.";
    add(suggestion.without_path, "request", rest);
    if *sample > 1 {
        all.push(format!(
            "All clients: the limits are based on one in {sample}, chosen by a hash."
        ));
    }
    all
}

fn write_levels(out: &mut String, indent: &str, fit: &Fit, window: u64) -> fmt::Result {
    for Level { share, sliding_limit, sliding_beyond, bucket_limit, bucket_burst, bucket_beyond } in
        fit.levels
    {
        let share = percent(share);
        writeln!(
            out,
            "{indent}# {share} % of clients: sliding_window_log {sliding_limit} per {window} s \
             ({sliding_beyond} above), token_bucket {bucket_limit} per {window} s with a burst of \
             {bucket_burst} ({bucket_beyond} above)"
        )?;
    }
    Ok(())
}

/// Formats 9 990 hundredths as 99.9.
fn percent(share: u64) -> String {
    match (share / 100, share % 100) {
        (whole, 0) => whole.to_string(),
        (whole, rest) => format!("{whole}.{}", format!("{rest:02}").trim_end_matches('0')),
    }
}

fn write_quota(
    out: &mut String,
    indent: &str,
    args: &SuggestArgs,
    fit: &Fit,
    window: u64,
) -> fmt::Result {
    let level = fit.levels[args.level as usize];
    let (limit, burst) = (level.bucket_limit, level.bucket_burst);
    match args.algorithm {
        Shape::TokenBucket => writeln!(
            out,
            "{indent}strategy: token_bucket\n{indent}limit: {limit}\n\
             {indent}refillSeconds: {window}\n{indent}burst: {burst}"
        ),
        Shape::SlidingWindowLog => writeln!(
            out,
            "{indent}strategy: sliding_window_log\n{indent}limit: {}\n{indent}windowSeconds: {window}",
            level.sliding_limit
        ),
    }
}

fn write_replayed(out: &mut String, replayed: &Replayed) -> fmt::Result {
    let report = &replayed.report;
    let counts = report.total.counts;
    writeln!(
        out,
        "\n# Replayed: {} of {} and {} of {} would have been denied.",
        counts.denied,
        Count(counts.requests, "request"),
        report.clients_denied,
        Count(report.clients, "client")
    )?;
    for (name, policy) in &report.policies {
        let counts = policy.totals.counts;
        writeln!(out, "#   {name}: {} of {}", counts.denied, Count(counts.requests, "request"))?;
    }
    Ok(())
}

/// Converts `/api/item/{id}` to `^/api/item/[^/]+$`.
fn expression(path: &str) -> String {
    let segment = |segment: &str| match segment {
        "…" => ".+".to_owned(),
        segment if segment.starts_with('{') => "[^/]+".to_owned(),
        segment => regex::escape(segment),
    };
    let segments: Vec<_> = path.split('/').map(segment).collect();
    format!("^{}$", segments.join("/"))
}

fn identifier(path: &str, number: usize) -> String {
    let words = path.split(|c: char| !c.is_ascii_alphanumeric());
    let words: Vec<_> = words.filter(|word| !word.is_empty() && *word != "id").take(4).collect();
    // The number distinguishes routes with the same words.
    format!("{}-{number}", if words.is_empty() { "root".to_owned() } else { words.join("-") })
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_become_expressions_and_names() {
        for (path, expected, name) in [
            ("/", "^/$", "root-1"),
            ("/api/item/{id}/comment", "^/api/item/[^/]+/comment$", "api-item-comment-1"),
            ("/a.b/…", "^/a\\.b/.+$", "a-b-1"),
        ] {
            assert_eq!((&*expression(path), &*identifier(path, 1)), (expected, name));
        }
    }
}
