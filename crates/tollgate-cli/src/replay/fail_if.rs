//! Conditions under which a replay fails, for example in a pull request.

use std::fmt;
use std::str::FromStr;

use tollgate_config::check::Count;

use super::replayed::Replayed;
use super::words::Percent;

/// A condition such as `denied_clients > 0.1%`.
#[derive(Clone, Debug)]
pub struct FailIf {
    metric: Metric,
    above: f64,
    is_percent: bool,
}

/// A number in a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Metric {
    DeniedClients,
    DeniedRequests,
    NewlyDeniedClients,
    NewlyDeniedRequests,
    UnreadableLines,
}

impl Metric {
    const ALL: [(&str, Self); 5] = [
        ("denied_clients", Self::DeniedClients),
        ("denied_requests", Self::DeniedRequests),
        ("newly_denied_clients", Self::NewlyDeniedClients),
        ("newly_denied_requests", Self::NewlyDeniedRequests),
        ("unreadable_lines", Self::UnreadableLines),
    ];

    const fn noun(self) -> &'static str {
        match self {
            Self::DeniedClients | Self::NewlyDeniedClients => "client",
            Self::DeniedRequests | Self::NewlyDeniedRequests => "request",
            Self::UnreadableLines => "line",
        }
    }

    /// The number, and the number of which it is a part.
    fn of(self, replayed: &Replayed) -> (u64, u64) {
        let Replayed { report, lines, unreadable, other, .. } = replayed;
        let differences = || other.as_ref().map(|(_, differences)| differences);
        let requests = report.total.counts.requests;
        match self {
            Self::DeniedClients => (report.clients_denied, report.clients),
            Self::DeniedRequests => (report.total.counts.denied, requests),
            Self::NewlyDeniedClients => {
                (differences().map_or(0, |it| it.newly_denied()), report.clients)
            }
            Self::NewlyDeniedRequests => (differences().map_or(0, |it| it.only[0]), requests),
            Self::UnreadableLines => (*unreadable, *lines),
        }
    }
}

impl FailIf {
    /// Whether it compares two files with limits.
    pub(super) fn compares(&self) -> bool {
        matches!(self.metric, Metric::NewlyDeniedClients | Metric::NewlyDeniedRequests)
    }

    /// Why the replay fails, if it does.
    #[expect(clippy::cast_precision_loss, reason = "compared with a rounded number")]
    pub(super) fn reason(&self, replayed: &Replayed) -> Option<String> {
        let (part, whole) = self.metric.of(replayed);
        let number = match self.is_percent {
            true => part as f64 / whole.max(1) as f64 * 100.0,
            false => part as f64,
        };
        let all = Count(whole, self.metric.noun());
        let percent = Percent(part, whole);
        (number > self.above).then(|| format!("{self}: {part} of {all} ({percent})"))
    }
}

impl FromStr for FailIf {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, number) = text.split_once('>').ok_or("write it as `denied_clients > 0.1%`")?;
        let metric = Metric::ALL.iter().find(|(known, _)| *known == name.trim());
        let (_, metric) = metric.ok_or_else(|| {
            format!("write one of {}", Metric::ALL.map(|(name, _)| name).join(", "))
        })?;
        let number = number.trim();
        let (number, is_percent) = match number.strip_suffix('%') {
            Some(number) => (number.trim_end(), true),
            None => (number, false),
        };
        let above = number.parse().ok().filter(|above: &f64| above.is_finite() && *above >= 0.0);
        let above = above.ok_or("write a number such as 10 or 0.1%")?;
        Ok(Self { metric: *metric, above, is_percent })
    }
}

impl fmt::Display for FailIf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Metric::ALL.iter().find(|(_, metric)| *metric == self.metric);
        let (name, sign) =
            (name.map_or("", |(name, _)| name), if self.is_percent { "%" } else { "" });
        write!(f, "{name} > {}{sign}", self.above)
    }
}
