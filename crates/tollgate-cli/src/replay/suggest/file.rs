//! Writes the suggested file.

use std::fmt::{self, Write as _};

use tollgate_config::check::Count;
use tollgate_replay::suggest::{Fit, Level, Suggestion};

use super::options::{Shape, SuggestArgs};

/// The variable that contains the key for users' tokens.
pub(super) const SECRET: &str = "JWT_SECRET";

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
    writeln!(out, "  # shadow: true")?;
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

pub(super) fn write(out: &mut String, args: &SuggestArgs, suggestion: &Suggestion) -> fmt::Result {
    write_head(out, args)?;
    writeln!(out, "\n  # All clients together: {LOAD} times the busiest minute of the log.")?;
    writeln!(
        out,
        "  global:\n    strategy: fixed_window_counter\n    limit: {}\n    windowSeconds: 60",
        suggestion.busiest_minute.max(1).saturating_mul(LOAD)
    )?;
    let window = suggestion.window_seconds;
    let all = Count(suggestion.all.requests, "request");
    writeln!(
        out,
        "\n  # Each client, over all routes: {all}. `above` counts the clients that a limit denies.\n  \
         # All limits with the same percentage together deny no more clients than that percentage \
         allows.\n  \
         # Each quota is the limit for {} % of the clients with {} % of headroom, rounded up.",
        percent(args.share()),
        args.headroom
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
const LOAD: u64 = 2;

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
pub(super) fn percent(share: u64) -> String {
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
    let raised = |limit| raised(limit, args.headroom);
    let (limit, burst) = (raised(level.bucket_limit), raised(level.bucket_burst));
    match args.algorithm {
        Shape::TokenBucket => writeln!(
            out,
            "{indent}strategy: token_bucket\n{indent}limit: {limit}\n\
             {indent}refillSeconds: {window}\n{indent}burst: {burst}"
        ),
        Shape::SlidingWindowLog => writeln!(
            out,
            "{indent}strategy: sliding_window_log\n{indent}limit: {}\n{indent}windowSeconds: {window}",
            raised(level.sliding_limit)
        ),
    }
}

/// Adds a percentage, and rounds up to two digits.
fn raised(limit: u64, percent: u64) -> u64 {
    let raised = limit.saturating_mul(100 + percent).div_ceil(100);
    let unit = 10_u64.pow(raised.max(10).ilog10() - 1);
    raised.div_ceil(unit).saturating_mul(unit)
}

/// Converts `/api/item/{id}` to `^/api/item/[^/]+$`.
fn expression(path: &str) -> String {
    let segment = |segment: &str| match segment {
        "…" => ".+".to_owned(),
        segment if segment.contains('{') => "[^/]+".to_owned(),
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
            ("/report/{id}.csv", "^/report/[^/]+$", "report-csv-1"),
        ] {
            assert_eq!((&*expression(path), &*identifier(path, 1)), (expected, name));
        }
    }

    #[test]
    fn headroom_is_rounded_up_to_two_digits() {
        for (limit, percent, expected) in
            [(1, 25, 2), (4, 25, 5), (117, 25, 150), (1_234, 0, 1_300), (99, 1, 100), (100, 0, 100)]
        {
            assert_eq!(raised(limit, percent), expected, "{limit} + {percent} %");
        }
    }
}
