//! The report as a self-contained HTML file.
//!
//! The charts' colours are CSS variables, so they work in both light and dark mode.

mod charts;
mod svg;

use std::cmp::Reverse;
use std::fmt::{self, Write as _};

use crate::report::{ClientReport, Counts, PolicyReport, Report, Series};

/// A limit to draw in the chart of clients.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientLimit {
    /// The policy name.
    pub name: String,
    /// The maximum number of requests a client can send in a minute, including a burst.
    pub in_a_minute: f64,
}

/// Returns a page with this title. `body` is HTML.
#[must_use]
pub fn document(title: &str, body: &str) -> String {
    let title = Escaped(title);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <h1>{title}</h1>\n{body}</main>\n</body>\n</html>\n"
    )
}

/// Adds a table below a heading. Columns without any text are left out, and without rows only the
/// heading remains. A phone's screen does not show the column `less`.
pub fn table<R: AsRef<[String]>>(
    out: &mut String,
    title: &str,
    columns: &[&str],
    less: Option<&str>,
    rows: &[R],
) {
    let class = |column: usize| match less {
        Some(less) if less == columns[column] => " class=\"less\"",
        _ => "",
    };
    let is_used = |column: &usize| rows.iter().any(|row| !row.as_ref()[*column].is_empty());
    let used: Vec<_> = (0..columns.len()).filter(is_used).collect();
    // Writing to a string does not fail.
    let _ = writeln!(out, "<section>\n<h2>{}</h2>", Escaped(title));
    if rows.is_empty() {
        out.push_str("</section>\n");
        return;
    }
    out.push_str("<div class=\"rows\" tabindex=\"0\">\n<table>\n<thead><tr>");
    for column in &used {
        let _ = write!(out, "<th{}>{}</th>", class(*column), Escaped(columns[*column]));
    }
    out.push_str("</tr></thead>\n<tbody>");
    for row in rows {
        out.push_str("<tr>");
        for column in &used {
            let text = Escaped(&row.as_ref()[*column]);
            let _ = write!(out, "<td{}>{text}</td>", class(*column));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody>\n</table>\n</div>\n</section>\n");
}

/// Returns the report as an HTML page. `title` names the log, and `limits` are drawn in the chart
/// of clients.
#[must_use]
pub fn page(title: &str, report: &Report, limits: &[ClientLimit]) -> String {
    let mut body = String::new();
    let _ = write(&mut body, report, limits);
    document(&format!("Replay of {title}"), &body)
}

fn write(out: &mut String, report: &Report, limits: &[ClientLimit]) -> fmt::Result {
    let Counts { requests, denied, .. } = report.total.counts;
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
        out.push_str("<p>The numbers are not exact, because the replay ran out of memory.</p>\n");
    }
    denied_clients(out, report);
    policies(out, report);
    out.push_str("<div class=\"charts\">\n");
    over_time(out, report)?;
    chart(
        out,
        "Clients by the requests of their busiest minute",
        &format!(
            "{ALLOWED} clients {LIMIT} the most requests that a limit allows in a minute, with its burst"
        ),
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
    out.push_str("</div>\n");
    Ok(())
}

/// The number of charts of requests over time. The terminal's table lists all policies.
const CHARTS: usize = 12;
/// The number of bars in a chart of requests over time, each at least two pixels wide.
const BARS: usize = 196;
/// The number of clients in the table.
const ROWS: usize = 100;

const ALLOWED: &str = "<span class=\"allowed\">\u{25a0}</span>";
const DENIED: &str = "<span class=\"denied\">\u{25a0}</span>";
const LIMIT: &str = "<span class=\"denied\">\u{2502}</span>";

/// Draws all requests, and then each policy if its chart is different.
fn over_time(out: &mut String, report: &Report) -> fmt::Result {
    let mut policies: Vec<_> = report.policies.iter().collect();
    policies.sort_by_key(|(name, policy)| (Reverse(policy.totals.counts.denied), *name));
    let all = report.total.series.in_steps(BARS);
    let mut charts = vec![("Requests over time".to_owned(), all, Vec::new())];
    for (name, policy) in policies {
        let series = policy.totals.series.in_steps(BARS);
        if let Some((.., same)) = charts.iter_mut().find(|(_, drawn, _)| *drawn == series) {
            same.push(name.as_str());
            continue;
        }
        let Counts { requests, denied, .. } = policy.totals.counts;
        let shadow = if policy.shadow { " (not enforced)" } else { "" };
        let heading = format!("Policy {name}{shadow}: {denied} of {requests} requests denied");
        charts.push((heading, series, Vec::new()));
    }
    for (heading, series, same) in charts.iter().take(CHARTS) {
        let mut legend = format!("{ALLOWED} allowed {DENIED} denied, each bar is {}", Step(series));
        if !same.is_empty() {
            write!(legend, "; the same for policy {}", Escaped(&same.join(", ")))?;
        }
        chart(out, heading, &legend, &charts::over_time(series))?;
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

fn denied_clients(out: &mut String, report: &Report) {
    let clients = &report.denied_clients;
    if clients.is_empty() {
        out.push_str("<p>No client would have been denied.</p>\n");
        return;
    }
    let most = if clients.len() > ROWS { ": the 100 with the most denials" } else { "" };
    let row = |client: &ClientReport| {
        let [first, last] = [client.first, client.last]
            .map(|at| at.in_utc().strftime("%Y-%m-%d %H:%M:%S").to_string());
        let denied = format!("{} of {}", client.denied, client.requests);
        [client.client.clone(), client.first_by.clone(), denied, first, last]
    };
    let rows: Vec<_> = clients.iter().take(ROWS).map(row).collect();
    let columns = ["Client", "First denied by", "Denied", "First denial (UTC)", "Last denial"];
    table(out, &format!("Denied clients{most}"), &columns, Some("Last denial"), &rows);
}

/// Lists all policies as a tree.
fn policies(out: &mut String, report: &Report) {
    let row = |(depth, name, policy): (usize, &str, &PolicyReport)| {
        let Counts { requests, denied, .. } = policy.totals.counts;
        let shadow = if policy.shadow { " (not enforced)" } else { "" };
        let worst = policy.totals.worst_minute.map(|minute| {
            let at = minute.at.in_utc().strftime("%Y-%m-%d %H:%M");
            format!("{at}: {} of {}", minute.denied, minute.requests)
        });
        // An em space, which browsers do not collapse.
        let indent = "\u{2003}".repeat(2 * depth);
        let name = format!("{indent}{name}{shadow}");
        [name, format!("{denied} of {requests}"), worst.unwrap_or_default()]
    };
    let rows: Vec<_> = report.policy_tree().into_iter().map(row).collect();
    if !rows.is_empty() {
        let worst = "Worst minute (UTC)";
        table(out, "Policies", &["Policy", "Denied", worst], Some(worst), &rows);
    }
}

/// Text in HTML or XML. A log's text may contain markup.
#[derive(Clone, Copy, Debug)]
pub struct Escaped<'a>(pub &'a str);

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
main { max-width: 80rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; overflow-wrap: anywhere; }
h2 { font-size: 1rem; margin: 1.5rem 0 .25rem; overflow-wrap: anywhere; }
.sum { font-size: 1.25rem; }
.allowed { color: var(--allowed); }
.denied { color: var(--denied); }
.legend { margin: 0 0 .5rem; font-size: .875rem; }
.shades { display: inline-block; width: 3rem; height: .75rem; background: linear-gradient(to right, transparent, var(--denied)); border: 1px solid var(--faint); }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(30rem, 100%), 1fr)); gap: 0 2rem; }
svg { width: 100%; height: auto; }
.rows { overflow: auto; max-height: 26rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .5rem .25rem 0; border-bottom: 1px solid var(--faint); }
th { vertical-align: bottom; position: sticky; top: 0; background: var(--page); }
td:first-child { overflow-wrap: anywhere; min-width: 6.5rem; }
td:nth-child(4) { min-width: 5rem; }
@media (max-width: 40rem) {
  table { font-size: .8125rem; }
  .less { display: none; }
}
@media print { .rows { max-height: none; } }
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Instant;
    use tollgate_core::Timestamp;

    #[test]
    fn names_from_a_log_are_escaped() {
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
    fn equal_charts_are_drawn_once() {
        let mut report = Report::default();
        report.total.series.add(7, 3, 1);
        let all = PolicyReport { totals: report.total.clone(), ..PolicyReport::default() };
        let mut login = all.clone();
        login.totals.series.add(8, 0, 1);
        let policies = [("all", &all), ("login", &login), ("sign-in", &login)];
        report.policies = policies.map(|(name, policy)| (name.to_owned(), policy.clone())).into();
        let page = page("log", &report, &[]);
        for same in ["all", "sign-in"] {
            let legend = format!("each bar is 1 s; the same for policy {same}</p>");
            assert!(page.contains(&legend), "{page}");
            assert!(!page.contains(&format!("<h2>Policy {same}")), "{page}");
        }
        assert!(page.contains("<h2>Policy login: "), "{page}");
    }

    #[test]
    fn charts_use_variables_for_colours() {
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
        for part in ["each bar is 30 s", "1 to 1 denials in an hour", ">3\u{2013}4<", "client: 3"] {
            let text = page.replace('\n', "");
            assert!(text.contains(part), "{part}");
        }
    }
}
