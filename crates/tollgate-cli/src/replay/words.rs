//! The report for a terminal.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use tollgate_config::check::Count;
use tollgate_replay::log::{FileFormat, Visible};
use tollgate_replay::{Counts, Minute, Report, Totals};

use super::recorded::ASSUMPTIONS;
use super::replayed::Replayed;

pub(super) fn in_words(replayed: &Replayed, top: usize, reasons: &[String]) -> String {
    let mut out = String::new();
    let _ = write(&mut out, replayed, top);
    if !reasons.is_empty() {
        out.push_str("\nThe replay fails:\n");
        reasons.iter().for_each(|reason| out.extend(["  ", reason, "\n"]));
    }
    out
}

fn write(out: &mut String, replayed: &Replayed, top: usize) -> fmt::Result {
    let Replayed { report, lines, late, unreadable, shown, without_client, not_forwarded, .. } =
        replayed;
    write!(out, "{}", Count(*lines, "line"))?;
    if let (Some(first), Some(last)) = (report.first, report.last) {
        write!(out, ", from {first} to {last}")?;
    }
    writeln!(out)?;
    for format in formats_in_words(&replayed.formats) {
        writeln!(out, "{format}")?;
    }
    if *unreadable > 0 {
        writeln!(out, "{unreadable} cannot be read:")?;
        for line in shown {
            writeln!(out, "  {line}")?;
        }
    }
    if *late > 0 {
        let late = Count(*late, "line");
        writeln!(out, "out of order by more than --reorder, and replayed late: {late}")?;
    }
    if *without_client > 0 {
        let requests = Count(*without_client, "request");
        writeln!(out, "no client is known for {requests}: these lines have no address or user")?;
    }
    if *not_forwarded > 0 {
        writeln!(
            out,
            "the client is the peer in {} with X-Forwarded-For: if the peers are your proxies, name \
             them in trustedProxies",
            Count(*not_forwarded, "request")
        )?;
    }
    write_report(out, report, top)?;
    if let Some((other, differences)) = &replayed.other {
        writeln!(out, "\nThe second file:")?;
        write_report(out, other, top)?;
        let [one, two] = differences.only;
        writeln!(out, "\nThe files differ on {}:", Count(one + two, "request"))?;
        writeln!(out, "  denied only by the first: {one}, only by the second: {two}")?;
        for (client, [one, two]) in differences.clients() {
            writeln!(out, "  {client}: {one} only by the first, {two} only by the second")?;
        }
        for request in &differences.requests {
            writeln!(out, "  {request}")?;
        }
    }
    writeln!(out, "\nThe replay assumed, because a log lacks this information:")?;
    for assumption in ASSUMPTIONS {
        writeln!(out, "  {assumption}")?;
    }
    Ok(())
}

/// How the files were read, together for files that were read in the same way.
pub(super) fn formats_in_words(formats: &[FileFormat]) -> Vec<String> {
    let mut files = BTreeMap::<String, Vec<String>>::new();
    for format in formats {
        let file = Visible(&format.file).to_string();
        files.entry(format.to_string()).or_default().push(file);
    }
    let in_words = |(format, files): (&String, &Vec<String>)| match files.as_slice() {
        [first, _, _, _, ..] => {
            format!("read {first} and {} as {format}", Count(files.len() as u64 - 1, "more file"))
        }
        _ => format!("read {} as {format}", files.join(", ")),
    };
    files.iter().map(in_words).collect()
}

fn write_report(out: &mut String, report: &Report, top: usize) -> fmt::Result {
    let Counts { requests, denied, .. } = report.total.counts;
    writeln!(
        out,
        "\n{} of {} would have been denied: {denied} of {} ({})",
        report.clients_denied,
        Count(report.clients, "client"),
        Count(requests, "request"),
        Percent(denied, requests)
    )?;
    if report.forbidden > 0 {
        writeln!(out, "denied before any limit: {}", Count(report.forbidden, "request"))?;
    }
    if report.beyond_clients.requests > 0 {
        let Counts { requests, denied, .. } = report.beyond_clients;
        writeln!(
            out,
            "too many clients to count separately: further clients sent {}, {denied} denied",
            Count(requests, "request")
        )?;
    }
    if !report.is_exact() {
        writeln!(
            out,
            "not exact: no space for the keys of {}; finished too early: {}",
            Count(report.overflowed, "charge"),
            Count(report.cut_short, "response")
        )?;
    }
    if !report.policies.is_empty() {
        writeln!(out, "\n{}", Heading("policy"))?;
    }
    for (depth, name, policy) in report.policy_tree() {
        let (shadow, indent) = (if policy.shadow { " (not enforced)" } else { "" }, 2 * depth);
        write_totals(out, &format!("{:indent$}{name}{shadow}", ""), &policy.totals)?;
        let waits = policy.waits.requests;
        if let Some(mean) = policy.waits.total_micros.checked_div(waits) {
            #[expect(clippy::cast_precision_loss, reason = "shown to the millisecond")]
            let seconds = |micros: u64| micros as f64 / 1e6;
            let mean = seconds(mean);
            let longest = seconds(policy.waits.longest_micros);
            writeln!(
                out,
                "    {}: {mean:.3} s on average and {longest:.3} s at most",
                Count(waits, "wait")
            )?;
        }
        if policy.returned + policy.extra > 0 {
            let (returned, extra) = (Count(policy.returned, "unit"), policy.extra);
            writeln!(out, "    responses return {returned} and charge {extra} more")?;
        }
    }
    if !report.routes.is_empty() {
        writeln!(out, "\n{}", Heading("route"))?;
    }
    for (name, totals) in &report.routes {
        write_totals(out, name, totals)?;
    }
    write_clients(out, report, top)
}

fn write_clients(out: &mut String, report: &Report, top: usize) -> fmt::Result {
    if !report.denied_clients.is_empty() {
        writeln!(out, "\nclients denied most:")?;
    }
    for client in report.denied_clients.iter().take(top) {
        let busiest = client.hours.iter().enumerate().max_by_key(|(_, denied)| **denied);
        let hour = busiest.map_or(0, |(hour, _)| hour);
        writeln!(
            out,
            "  {}: {} of {}, from {} to {}, first by {}, most from {hour:02}:00 to {hour:02}:59 UTC",
            client.client,
            client.denied,
            Count(client.requests, "request"),
            client.first,
            client.last,
            client.first_by
        )?;
    }
    let never: u64 = report.nearness.iter().map(|near| near.clients).sum();
    if never > 0 {
        writeln!(out, "\nclients never denied, by the smallest remaining share of a quota:")?;
    }
    for near in report.nearness.iter().filter(|near| near.clients > 0) {
        let (from, clients) = (near.left_percent, near.clients);
        let to = if from >= 90 { 100 } else { from + 9 };
        writeln!(out, "  {from:3} to {to} % left: {clients} ({})", Percent(clients, never))?;
    }
    Ok(())
}

struct Heading(&'static str);

impl fmt::Display for Heading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [requests, units, allowed, denied] = ["requests", "units", "allowed", "denied"];
        write!(
            f,
            "{:24} {requests:>10} {units:>10} {allowed:>10} {denied:>10}   share  worst minute",
            self.0
        )
    }
}

fn write_totals(out: &mut String, name: &str, totals: &Totals) -> fmt::Result {
    let Counts { requests, units, allowed, denied } = totals.counts;
    let percent = Percent(denied, requests).to_string();
    write!(out, "{name:24} {requests:>10} {units:>10} {allowed:>10} {denied:>10} {percent:>7}")?;
    if let Some(Minute { at, requests, denied }) = totals.worst_minute {
        write!(out, "  {at}: {denied} of {requests} denied")?;
    }
    writeln!(out)
}

pub(super) struct Percent(pub(super) u64, pub(super) u64);

impl fmt::Display for Percent {
    #[expect(clippy::cast_precision_loss, reason = "shown to a hundredth of a percent")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = if self.1 == 0 { 0.0 } else { self.0 as f64 / self.1 as f64 * 100.0 };
        write!(f, "{percent:.2} %")
    }
}
