//! The report as one HTML file that loads nothing.
//!
//! The drawings have stand-ins for colours, which become variables of the style sheet: one drawing
//! is right in light and in dark.

mod charts;

use std::fmt::{self, Write as _};

use crate::report::{Counts, PolicyReport, Report, Series};

/// A limit to draw beside the clients.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientLimit {
    /// The name of its policy.
    pub name: String,
    /// How many requests a client can send in a minute at most, including a burst.
    pub in_a_minute: f64,
}

/// Returns the report as one HTML page. `title` names the log, and `limits` are drawn beside the
/// clients.
#[must_use]
pub fn page(title: &str, report: &Report, limits: &[ClientLimit]) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write(&mut out, title, report, limits);
    out
}

fn write(out: &mut String, title: &str, report: &Report, limits: &[ClientLimit]) -> fmt::Result {
    let title = Escaped(title);
    let Counts { requests, denied, .. } = report.total.counts;
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>Replay of {title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <h1>Replay of {title}</h1>\n"
    )?;
    if let (Some(first), Some(last)) = (report.first, report.last) {
        writeln!(out, "<p>{first} to {last}</p>")?;
    }
    writeln!(
        out,
        "<p class=\"sum\"><b>{}</b> of {} clients and <b>{denied}</b> of {requests} requests would \
         have been denied.</p>",
        report.clients_denied, report.clients
    )?;
    if !report.is_exact() {
        out.push_str("<p>The numbers are not exact: the replay ran out of room.</p>\n");
    }
    over_time(out, report)?;
    chart(
        out,
        "Clients by the requests of their busiest minute",
        &format!("{ALLOWED} clients {LIMIT} the most that a limit allows in one minute"),
        &charts::peaks(&report.peaks, limits),
    )?;
    let most = report.denials_by_hour.iter().flatten().max().copied().unwrap_or(0);
    if most > 0 {
        chart(
            out,
            "Denials by day of the week and hour (UTC)",
            &format!("<span class=\"shades\"></span> 1 to {most} denials in an hour of the week"),
            &charts::heat(&report.denials_by_hour),
        )?;
    }
    table(out, report)?;
    out.push_str("</main>\n</body>\n</html>\n");
    Ok(())
}

/// More policies than these are only in the table of the terminal.
const CHARTS: usize = 12;
/// The clients in the table.
const ROWS: usize = 100;

const ALLOWED: &str = "<span class=\"allowed\">\u{25a0}</span>";
const DENIED: &str = "<span class=\"denied\">\u{25a0}</span>";
const LIMIT: &str = "<span class=\"denied\">\u{2502}</span>";

/// Draws all requests, and then each policy that differs from them.
fn over_time(out: &mut String, report: &Report) -> fmt::Result {
    let total = &report.total.series;
    let legend = format!("{ALLOWED} allowed {DENIED} denied, each bar is {}", Step(total));
    let same = |policy: &&(&String, &PolicyReport)| policy.1.totals.series == *total;
    let mut policies: Vec<_> = report.policies.iter().collect();
    policies.sort_by_key(|(name, policy)| (std::cmp::Reverse(policy.totals.counts.denied), *name));
    let like_all: Vec<_> = policies.iter().filter(same).map(|(name, _)| &***name).collect();
    let like_all = match &*like_all {
        [] => String::new(),
        names => format!("; the same for policy {}", Escaped(&names.join(", "))),
    };
    let drawing = charts::over_time(total);
    chart(out, "Requests over time", &format!("{legend}{like_all}"), &drawing)?;
    for (name, policy) in policies.iter().filter(|policy| !same(policy)).take(CHARTS) {
        let Counts { requests, denied, .. } = policy.totals.counts;
        let watches = if policy.shadow { " (only watches)" } else { "" };
        let heading = format!("Policy {name}{watches}: {denied} of {requests} requests denied");
        let series = &policy.totals.series;
        let legend = format!("{ALLOWED} allowed {DENIED} denied, each bar is {}", Step(series));
        chart(out, &heading, &legend, &charts::over_time(series))?;
    }
    Ok(())
}

/// A series' step length in words.
struct Step<'a>(&'a Series);

impl fmt::Display for Step<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (length, unit) = match self.0.step_seconds {
            days if days % 86_400 == 0 => (days / 86_400, "d"),
            hours if hours % 3_600 == 0 => (hours / 3_600, "h"),
            minutes if minutes % 60 == 0 => (minutes / 60, "min"),
            seconds => (seconds, "s"),
        };
        write!(f, "{length} {unit}")
    }
}

/// `legend` is HTML.
fn chart(out: &mut String, heading: &str, legend: &str, svg: &str) -> fmt::Result {
    let heading = Escaped(heading);
    writeln!(
        out,
        "<section>\n<h2>{heading}</h2>\n<p class=\"legend\">{legend}</p>\n\
         <div role=\"img\" aria-label=\"{heading}\">{svg}</div>\n</section>"
    )
}

fn table(out: &mut String, report: &Report) -> fmt::Result {
    if report.denied_clients.is_empty() {
        return out.write_str("<p>No client would have been denied.</p>\n");
    }
    out.push_str(
        "<section>\n<h2>Clients denied most</h2>\n<table>\n<thead><tr><th>Client</th>\
         <th>Requests</th><th>Denied</th><th>First denied by</th><th>First</th><th>Last</th></tr></thead>\n<tbody>\n",
    );
    for client in report.denied_clients.iter().take(ROWS) {
        let (name, requests, denied) = (Escaped(&client.client), client.requests, client.denied);
        writeln!(
            out,
            "<tr><td>{name}</td><td>{requests}</td><td>{denied}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            Escaped(&client.first_by),
            client.first,
            client.last
        )?;
    }
    out.write_str("</tbody>\n</table>\n</section>\n")
}

/// A text that a log may have put there.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '"' => f.write_str("&quot;"),
            '\'' => f.write_str("&#39;"),
            c => f.write_char(c),
        })
    }
}

const STYLE: &str = "\
:root { --text: #1c2024; --faint: #d5d9de; --page: #fff; --allowed: #3b82c4; --denied: #d1495b; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e4e7ea; --faint: #3a4148; --page: #15191d; --allowed: #5aa2e0; --denied: #ef6f80; }
}
body { margin: 0; background: var(--page); color: var(--text); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; overflow-wrap: anywhere; }
h2 { font-size: 1rem; margin: 2rem 0 .5rem; overflow-wrap: anywhere; }
.sum { font-size: 1.25rem; }
.allowed { color: var(--allowed); }
.denied { color: var(--denied); }
.legend { margin: 0 0 .5rem; font-size: .875rem; }
.shades { display: inline-block; width: 3rem; height: .75rem; background: linear-gradient(to right, transparent, var(--denied)); border: 1px solid var(--faint); }
/* On a phone the drawing scrolls inside its section, so that its texts stay readable. */
svg { width: 100%; min-width: 42rem; height: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .5rem; border-bottom: 1px solid var(--faint); }
section { overflow-x: auto; }
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClientReport, Instant};
    use tollgate_core::Timestamp;

    #[test]
    fn what_a_log_names_is_text_and_nothing_is_loaded() {
        let at = Instant(Timestamp::EPOCH);
        let client = "<script>alert(1)</script>".to_owned();
        let denied = ClientReport {
            client,
            requests: 2,
            denied: 1,
            first: at,
            first_by: "<i>client".to_owned(),
            last: at,
            hours: vec![0; 24],
        };
        let report = Report { denied_clients: vec![denied], ..Report::default() };
        let limits = [ClientLimit { name: "<b>".to_owned(), in_a_minute: 60.0 }];
        let page = page("a\"><img src=x>", &report, &limits);
        assert!(page.contains("&lt;script&gt;alert(1)"));
        for odd in ["<script", "<img", "<i>", "<b>:", "http://www.example", "src="] {
            assert!(!page.replace("&lt;img src=x", "").contains(odd), "{odd}");
        }
    }

    #[test]
    fn a_policy_like_all_requests_has_no_chart() {
        let mut report = Report::default();
        report.total.series.add(7, 3, 1);
        let all = PolicyReport { totals: report.total.clone(), ..PolicyReport::default() };
        let mut login = all.clone();
        login.totals.series.add(8, 0, 1);
        report.policies = [("all".to_owned(), all), ("login".to_owned(), login)].into();
        let page = page("log", &report, &[]);
        assert!(page.contains("each bar is 1 s; the same for policy all</p>"), "{page}");
        assert!(
            page.contains("<h2>Policy login: ") && !page.contains("<h2>Policy all: "),
            "{page}"
        );
    }

    #[test]
    fn no_drawing_keeps_a_colour_of_its_own() {
        let mut report = Report { peaks: vec![(1, 5), (2, 3), (4, 1)], ..Report::default() };
        report.denials_by_hour = vec![vec![1; 24]; 7];
        for second in 0..2_000 {
            report.total.series.add(second, u64::from(second % 3 > 0), u64::from(second % 3 == 0));
        }
        let limits = [ClientLimit { name: "client".to_owned(), in_a_minute: 3.0 }];
        let page = page("log", &report, &limits);
        let drawings = page.split("<svg").skip(1).map(|rest| rest.split("</svg>").next().unwrap());
        for drawing in drawings {
            assert!(!drawing.contains("\"#"), "{drawing}");
            assert!(drawing.contains("var(--text)"));
        }
        assert_eq!(page.matches("<svg").count(), 3);
        for part in ["each bar is 10 s", "1 to 1 denials in an hour", ">3\u{2013}4<", "3 a minute"]
        {
            let text = page.replace('\n', "");
            assert!(text.contains(part), "{part}");
        }
    }
}
