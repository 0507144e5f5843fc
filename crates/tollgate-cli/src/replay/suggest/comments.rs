//! The comments above a suggested file: its basis, how far to trust it, and how to introduce it.

use std::fmt::{self, Write as _};

use tollgate_config::check::Count;
use tollgate_replay::suggest::{ClientKind, DeniedClients, Part, Suggestion};

use super::super::words::{Percent, formats_in_words};
use super::file::percent;
use super::learned::{Judged, Learned};
use super::options::SuggestArgs;

/// Writes all comments. `judged` is `None` if the log cannot be read twice.
pub(super) fn write(
    out: &mut String,
    args: &SuggestArgs,
    learned: &Learned,
    judged: Option<&Judged<'_>>,
) -> fmt::Result {
    let suggestion = &learned.suggestion;
    let Suggestion { requests, busiest_second, busiest_minute, .. } = suggestion;
    writeln!(out, "# Suggested by `tollgate suggest` from {}", Count(*requests, "request"))?;
    if let (Some(first), Some(last)) = (suggestion.first, suggestion.last) {
        let clients = Count(suggestion.clients, "client");
        writeln!(out, "# from {first} to {last}: {}, {clients}.", Count(days(suggestion), "day"))?;
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
    match judged {
        Some(judged) => write_judged(out, suggestion, judged)?,
        None => writeln!(out, "#\n# Not judged, because stdin cannot be read twice.")?,
    }
    let (word, reasons) = confidence(args, suggestion, judged);
    writeln!(out, "#\n# Confidence: {word}")?;
    for reason in reasons {
        writeln!(out, "# - {reason}")?;
    }
    writeln!(out, "#\n# What this file does not know:")?;
    for unknown in unknown(args, learned) {
        writeln!(out, "# - {unknown}")?;
    }
    writeln!(out, "{}", ROLLOUT.trim_end())
}

/// The last comment, which refers to the line `# shadow: true` in the file.
const ROLLOUT: &str = "\
#
# How to introduce these limits:
# 1. Remove the `#` before `shadow: true`. All limits then count, and deny no request.
# 2. For a week, watch tollgate_decisions_total{outcome=\"shadow_deny\"} by `policy`. To see which clients
#    it means, run `tollgate replay` with this file and the new log. Raise a limit that denies clients
#    you want to serve, or list these clients in `allow`.
# 3. Remove `shadow: true`. To enforce one limit first, add it to each other limit instead.
# 4. Watch outcome=\"deny\", and suggest again when the traffic has changed.
";

/// Writes whom the file would have denied.
fn write_judged(out: &mut String, suggestion: &Suggestion, judged: &Judged<'_>) -> fmt::Result {
    let count = |kind, part| judged.trial.count(kind, part);
    writeln!(out, "#\n# Clients that this file would have denied:")?;
    let in_words = |DeniedClients { clients, denied }| {
        format!("{denied} of {} ({})", Count(clients, "client"), Percent(denied, clients))
    };
    let before = in_words(count(ClientKind::Ordinary, Part::Before));
    match suggestion.until {
        None => writeln!(out, "# - {before}. The limits are based on the entire log.")?,
        Some(until) => {
            writeln!(out, "# - {before} before {until}. The limits are based on these requests.")?;
            let after = in_words(count(ClientKind::Ordinary, Part::After));
            writeln!(out, "# - {after} from then on. These requests judge the limits.")?;
        }
    }
    for (kind, apart, name, how) in [
        (ClientKind::Scanner, suggestion.scanners, "scanner", "most of their paths do not exist"),
        (ClientKind::Bot, suggestion.bots, "bot", "they say so, or request /robots.txt"),
    ] {
        let DeniedClients { clients, denied } = count(kind, Part::Both);
        if clients > 0 {
            writeln!(
                out,
                "# - {denied} of {}: {how}. No limit is based on them. The busiest sent {} in {} s.",
                Count(clients, name),
                Count(apart.in_window, "request"),
                suggestion.window_seconds
            )?;
        }
    }
    writeln!(out, "#\n# Requests that each limit would have denied:")?;
    for (name, policy) in &judged.report.policies {
        let counts = policy.totals.counts;
        let requests = Count(counts.requests, "request");
        writeln!(out, "# - {name}: {} of {requests}", counts.denied)?;
    }
    Ok(())
}

/// How far to trust the limits, and why not further.
fn confidence(
    args: &SuggestArgs,
    suggestion: &Suggestion,
    judged: Option<&Judged<'_>>,
) -> (&'static str, Vec<String>) {
    let (days, clients) = (days(suggestion), suggestion.all.clients);
    let (share, beyond) = (percent(args.share()), 10_000 - args.share());
    // So that one client may be above the limits.
    let enough = 10_000 / beyond;
    let mut reasons = Vec::new();
    if days < 7 {
        let days = Count(days, "day");
        reasons.push(format!("The log has {days}. A week shows every day of the week."));
    }
    if clients < enough {
        let clients = Count(clients, "client");
        reasons.push(format!(
            "The limits are based on {clients}. Of fewer than {enough}, {share} % includes even an \
             attacker."
        ));
    }
    match judged.map(|judged| judged.trial.count(ClientKind::Ordinary, Part::After)) {
        Some(DeniedClients { clients: 0, .. }) | None => {
            reasons.push("No later requests have judged the limits.".to_owned());
        }
        Some(DeniedClients { clients, denied }) => {
            // A single client is no trend.
            if denied > 1 && denied * 10_000 > 2 * beyond * clients {
                let denied = Percent(denied, clients);
                reasons.push(format!("The limits deny {denied} of the later clients."));
            }
        }
    }
    if !reasons.is_empty() {
        return ("low", reasons);
    }
    if days < 14 {
        reasons.push(format!("The log has {days} days. Two weeks show how weeks differ."));
    }
    if clients < 10 * enough {
        let many = 10 * enough;
        reasons.push(format!("The limits are based on {clients} clients. {many} are better."));
    }
    (if reasons.is_empty() { "high" } else { "medium" }, reasons)
}

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
    if *not_forwarded > 0 {
        all.push(format!(
            "The clients that sent {} with X-Forwarded-For, because their peer counted. Name your \
             proxies in --trusted-proxies.",
            Count(*not_forwarded, "request")
        ));
    } else if largest_client * 2 > suggestion.all.requests && *clients > 1 {
        all.push(format!(
            "Whether one address is a proxy: it sent {largest_client} of {}. Then log the client's \
             address.",
            Count(suggestion.all.requests, "request")
        ));
    }
    if !args.users && learned.with_user > 0 {
        all.push(format!(
            "Users: {} have a user, but their addresses counted. `--users` counts users.",
            Count(learned.with_user, "request")
        ));
    }
    let is_used = |pattern: &&String| suggestion.routes.iter().any(|(route, _)| route == *pattern);
    let unused: Vec<_> = learned.patterns.iter().filter(|it| !is_used(it)).collect();
    if let [first, ..] = unused.as_slice() {
        let paths = Count(unused.len() as u64, "described path");
        all.push(format!("Limits for {paths} without a successful request, such as {first}."));
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
