//! Writes the suggested file.

use std::fmt::{self, Write as _};

use tollgate_config::check::Count;
use tollgate_replay::log::FileFormat;
use tollgate_replay::suggest::{Fit, Level, Suggestion};

use super::super::replayed::Replayed;
use super::super::words::formats_in_words;
use super::options::{Shape, SuggestArgs};

/// The variable that contains the key for users' tokens.
pub(super) const SECRET: &str = "JWT_SECRET";

/// The result of reading the log.
pub(super) struct Learned {
    pub(super) suggestion: Suggestion,
    pub(super) formats: Vec<FileFormat>,
    pub(super) unreadable: u64,
    /// Lines that charge no limit.
    pub(super) not_limited: u64,
    /// Lines with `X-Forwarded-For` although their peer counts as the client.
    pub(super) not_forwarded: u64,
    /// Charged lines with a user, and charged lines with a status.
    pub(super) with_user: u64,
    pub(super) with_status: u64,
}

/// Writes the settings that identify clients.
pub(super) fn write_head(out: &mut String, args: &SuggestArgs) -> fmt::Result {
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

pub(super) fn write(out: &mut String, args: &SuggestArgs, learned: &Learned) -> fmt::Result {
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
    for format in formats_in_words(&learned.formats) {
        writeln!(out, "# It {format}.")?;
    }
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

pub(super) fn write_replayed(out: &mut String, replayed: &Replayed) -> fmt::Result {
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
