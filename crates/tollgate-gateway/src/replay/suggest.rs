//! `tollgate suggest`: limits that fit an access log, as a file that `check` and `serve` take.

use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tollgate::{Key, Micros};
use tollgate_replay::log::Record;
use tollgate_replay::suggest::{Bounds, Fit, Level, Suggest, Suggestion};

use super::words::Count;
use super::{LogArgs, ReplayError, Replayed, replay};
use crate::config::{self, Source};

/// The options of `tollgate suggest`.
#[derive(Clone, Debug, clap::Args)]
pub struct SuggestArgs {
    /// The log.
    #[command(flatten)]
    pub log: LogArgs,
    /// The share of clients that the limits never deny, in percent
    #[arg(long, value_enum, default_value_t)]
    pub level: Share,
    /// The algorithm of the limits of clients
    #[arg(long, value_enum, default_value_t)]
    pub algorithm: Shape,
    /// The window of the limits
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = humantime::parse_duration)]
    pub window: Duration,
    /// A route, such as `/api/item/{id}`; may be repeated. Other paths are grouped automatically
    #[arg(long, value_name = "PATH")]
    pub pattern: Vec<String>,
    /// The number of routes with their own limit: the routes with the most requests
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub routes: usize,
    /// Where allowed requests will go
    #[arg(long, value_name = "URL", default_value = "http://localhost:3000")]
    pub target: String,
    /// Writes to this file instead of stdout
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
    /// A rate, and a burst.
    #[default]
    TokenBucket,
    /// A number of requests in any window.
    SlidingWindowLog,
}

/// Suggests limits, and replays the log against them.
pub fn run(args: &SuggestArgs) -> Result<String, ReplayError> {
    let suggestion = learn(args)?;
    let mut yaml = String::new();
    let _ = write(&mut yaml, args, &suggestion);
    let outcome = config::read(&Source::new("suggested", &yaml), &|_| None);
    let Some(plan) = outcome.plan else {
        return Err(ReplayError::Plan(format!("no file fits this log: {}", outcome.report)));
    };
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
            super::write_whole(path, yaml.as_bytes())
                .map_err(|error| ReplayError::Write { path: path.clone(), error })?;
            Ok(format!("tollgate check {0}\ntollgate serve {0}\n", path.display()))
        }
    }
}

fn learn(args: &SuggestArgs) -> Result<Suggestion, ReplayError> {
    let mut suggest = Suggest::new(Micros::from(args.window), &args.pattern, Bounds::default());
    super::read(&args.log, 0, |_, record| {
        if let (false, Some(client)) = (record.method.is_empty(), client(record)) {
            suggest.request(record.at, &client, record.target);
        }
        Ok(())
    })?;
    Ok(suggest.suggestion())
}

/// The user, or else the address; for IPv6 its /64 network.
fn client(record: &Record<'_>) -> Option<Key> {
    match (record.user, record.address?) {
        (Some(user), _) => Some(Key::new(format!("u{user}"))),
        (None, std::net::IpAddr::V4(address)) => Some(Key::new(address.octets())),
        (None, std::net::IpAddr::V6(address)) => match address.to_ipv4_mapped() {
            Some(address) => Some(Key::new(address.octets())),
            None => Some(Key::new(&address.octets()[..8])),
        },
    }
}

fn write(out: &mut String, args: &SuggestArgs, suggestion: &Suggestion) -> fmt::Result {
    let Suggestion { requests, clients, sample, busiest_second, busiest_minute, .. } = suggestion;
    writeln!(out, "# Suggested by `tollgate suggest` from {}", Count(*requests, "request"))?;
    if let (Some(first), Some(last)) = (suggestion.first, suggestion.last) {
        let micros = last.0.since(first.0).get();
        let days = micros.div_ceil(86_400_000_000).max(1);
        let (days, clients) = (Count(days, "day"), Count(*clients, "client"));
        writeln!(out, "# from {first} to {last}: {days}, {clients}.")?;
    }
    if *sample > 1 {
        writeln!(
            out,
            "# The limits are those of a sample: one client in {sample}, chosen by a hash."
        )?;
    }
    writeln!(
        out,
        "# The service handled {} in its busiest second and {} in its busiest minute.",
        Count(*busiest_second, "request"),
        Count(*busiest_minute, "request")
    )?;
    writeln!(out, "\nrateLimiter:\n  target: {}", quoted(&args.target))?;
    writeln!(out, "\n  # All clients together: the busiest minute of the log.")?;
    writeln!(
        out,
        "  global:\n    strategy: fixed_window_counter\n    limit: {}\n    windowSeconds: 60",
        busiest_minute.max(&1)
    )?;
    let window = suggestion.window_seconds;
    let all = Count(suggestion.all.requests, "request");
    writeln!(
        out,
        "\n  # Each client, over all routes: {all}. `above` counts the clients that a limit denies."
    )?;
    write_levels(out, "  ", &suggestion.all, window)?;
    writeln!(out, "  client:")?;
    write_quota(out, "    ", args, &suggestion.all, window)?;
    let mut routes: Vec<_> = suggestion.routes.iter().filter_map(expressible).collect();
    routes.truncate(args.routes);
    // The first match counts, so exact paths are first.
    routes.sort_by_key(|(path, _)| path.matches('{').count() + path.matches('…').count());
    if !routes.is_empty() {
        writeln!(out, "\n  apis:")?;
    }
    for (number, (path, fit)) in routes.into_iter().enumerate() {
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

fn write_levels(out: &mut String, indent: &str, fit: &Fit, window: u64) -> fmt::Result {
    for Level { share, sliding_limit, sliding_beyond, bucket_limit, bucket_burst, bucket_beyond } in
        fit.levels
    {
        let (whole, rest) = (share / 100, share % 100);
        let share = match rest {
            0 => whole.to_string(),
            rest => format!("{whole}.{}", rest.to_string().trim_end_matches('0')),
        };
        writeln!(
            out,
            "{indent}# {share} % of clients: sliding_window_log {sliding_limit} per {window} s \
             ({sliding_beyond} above), token_bucket {bucket_limit} per {window} s with a burst of \
             {bucket_burst} ({bucket_beyond} above)"
        )?;
    }
    Ok(())
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

/// A route that a configuration can match.
fn expressible((path, fit): &(String, Fit)) -> Option<(&str, &Fit)> {
    let is_plain = path.starts_with('/') && path.chars().all(|c| c.is_ascii_graphic() || c == '…');
    // A path with escapes has another normal form.
    (is_plain && !path.contains(['%', ';', '\\'])).then_some((path, fit))
}

/// `/api/item/{id}` as `^/api/item/[^/]+$`.
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
    // A number tells apart what the words do not.
    format!("{}-{number}", if words.is_empty() { "root".to_owned() } else { words.join("-") })
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_becomes_an_expression_and_a_name() {
        for (path, expected, name) in [
            ("/", "^/$", "root-1"),
            ("/api/item/{id}/comment", "^/api/item/[^/]+/comment$", "api-item-comment-1"),
            ("/a.b/…", "^/a\\.b/.+$", "a-b-1"),
        ] {
            assert_eq!((&*expression(path), &*identifier(path, 1)), (expected, name));
        }
    }
}
