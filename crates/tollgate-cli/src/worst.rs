//! `tollgate worst`: the most requests that a file lets through within any window.

mod groups;
mod tenants;

use std::fmt::Write as _;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use tollgate::store::Micros;
use tollgate_config::plan::{Plan, StorePlan, WorstBound};
use tollgate_replay::html::{Escaped, document, table};
use tollgate_replay::scenario::{Failed, Row, Seconds};
use tollgate_replay::worst::{Burst, Kind, Threat, Worst, bound, more_than, worst};

pub(crate) use self::groups::refunds;
use self::groups::{Group, alone, client, groups};
use self::tenants::Tenants;
use crate::replay::{ReportFormat, write_whole};

/// The options of `tollgate worst`.
#[derive(Clone, Debug, clap::Args)]
pub struct WorstArgs {
    /// The length of the window. By default each policy's own, and the longest for all together
    #[arg(long = "in", value_name = "TIME", value_parser = humantime::parse_duration)]
    window: Option<Duration>,
    #[command(flatten)]
    threats: Threats,
    /// The report's format
    #[arg(long, value_enum, default_value_t)]
    format: ReportFormat,
    /// Also write the report as an HTML file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// What may happen to the gateways and their store.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Threats {
    /// The number of gateways
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) replicas: NonZeroU32,
    /// Redis may be lost for this time
    #[arg(long = "redis-down", value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) store_lost: Option<Duration>,
    /// Redis may fail over to a replica that lacks all charges
    #[arg(long)]
    pub(crate) failover: bool,
}

impl Threats {
    fn to(self, plan: &Plan) -> Result<Threat, String> {
        let Self { replicas, store_lost, failover } = self;
        if let StorePlan::Memory(_) = plan.store
            && (store_lost.is_some() || failover)
        {
            return Err(
                "the limits have `store: memory`, which is not lost and does not fail over: leave \
                 out the fault [TG0710]"
                    .to_owned(),
            );
        }
        let fleet = crate::test::fleet(plan, replicas);
        Ok(Threat { fleet, store_lost: store_lost.map(Micros::from), failover })
    }

    /// The rows of docs/guarantees.md that allow more than a single store does.
    fn rows(self, plan: &Plan) -> Vec<&'static str> {
        let is_memory = matches!(plan.store, StorePlan::Memory(_));
        let rows = [
            (is_memory && self.replicas.get() > 1, SEVERAL_STORES),
            (self.store_lost.is_some(), STORE_LOST),
            (self.failover, FAILOVER),
        ];
        rows.into_iter().filter(|(applies, _)| *applies).map(|(_, row)| row).collect()
    }
}

/// Rows of docs/guarantees.md.
pub const SEVERAL_STORES: &str = "several processes, each with its own `MemoryStore`";
pub const STORE_LOST: &str = "Redis is down or too slow";
pub const FAILOVER: &str = "a failover";

/// Searches the most requests for each policy, for a client, and for all clients.
pub fn run(plan: &Plan, args: &WorstArgs) -> Result<String, String> {
    let WorstArgs { window, threats, format, html } = args;
    let threat = threats.to(plan)?;
    let rows = threats.rows(plan);
    let (mut text, mut body, mut all) = (String::new(), String::new(), Vec::new());
    for mut group in groups(plan, &Tenants::read(plan)?) {
        let window = window.map_or_else(|| group.window(), Micros::from);
        group.choose(window, &threat);
        let found = worst(&group.kinds, window, &threat).map_err(|error| error.to_string())?;
        write_worst(&mut text, &group, &found);
        let title = format!("{}: {}", group.name, in_words(&group, &found));
        let schedule = lines(&group.kinds, &found.schedule);
        table(&mut body, &title, &["time", "requests"], None, &schedule);
        for note in notes(&group) {
            let _ = writeln!(body, "<p>{}</p>", Escaped(&note));
        }
        all.push(as_json(&group, &found));
    }
    if !rows.is_empty() {
        let rows = rows.join("; ");
        let _ = writeln!(text, "\nallowed by docs/guarantees.md: {rows}");
        let _ = writeln!(body, "<p>allowed by docs/guarantees.md: {}</p>", Escaped(&rows));
    }
    if let Some(path) = html {
        write_whole(path, document("The worst case of the limits", &body).as_bytes())
            .map_err(|error| format!("cannot write {}: {error} [TG0707]", path.display()))?;
    }
    Ok(match format {
        ReportFormat::Text => text,
        ReportFormat::Json => format!("{:#}\n", json!({ "worst": all, "guarantees": rows })),
    })
}

fn write_worst(out: &mut String, group: &Group<'_>, worst: &Worst) {
    let _ = writeln!(out, "{}: {}", group.name, in_words(group, worst));
    for burst in lines(&group.kinds, &worst.schedule) {
        let _ = writeln!(out, "    {} {}", burst[0], burst[1]);
    }
    for note in notes(group) {
        let _ = writeln!(out, "    {note}");
    }
}

/// The group's requests that are not counted, and where its numbers come from.
fn notes(group: &Group<'_>) -> impl Iterator<Item = String> {
    let unlimited = group.unlimited.iter().filter(|_| !group.kinds.is_empty());
    let unlimited = unlimited.map(|unlimited| format!("not counted: {unlimited}"));
    unlimited.chain(group.notes.iter().cloned())
}

fn in_words(group: &Group<'_>, worst: &Worst) -> String {
    let Worst { window, is_closed, found, bound, .. } = worst;
    let ends = if *is_closed { ", both ends included" } else { "" };
    let window = format!("in any {}{ends}", Seconds(*window));
    match bound {
        _ if group.kinds.is_empty() => format!("no bound: {}", group.unlimited.join(", ")),
        None => format!("no bound {window}: requests pass while the store is lost"),
        Some(_) if worst.is_proved() => format!("at most {found} {window} (proved)"),
        Some(bound) if *found == 0 => format!("at most {bound} {window} (too many to search)"),
        Some(bound) => format!("at most {bound} {window} (found: {found})"),
    }
}

/// A schedule's requests, with their times.
fn lines(kinds: &[Kind], schedule: &[Burst]) -> Vec<[String; 2]> {
    let has_replicas = schedule.iter().any(|burst| burst.replica + burst.replicas > 1);
    let line = |burst: &Burst| {
        let Burst { after, kind, replica, replicas, requests, times, every } = burst;
        let mut what = format!("{requests} × {}", kinds[*kind].name);
        let _ = match (replica + 1, replica + replicas) {
            _ if !has_replicas => Ok(()),
            (first, last) if first == last => write!(what, " to gateway {first}"),
            (first, last) => write!(what, " to each of the gateways {first} to {last}"),
        };
        if *times > 1 {
            let _ = write!(what, ", {times} times, every {}", Seconds(*every));
        }
        [Seconds(*after).to_string(), what]
    };
    // A schedule may have thousands of different bursts.
    let mut lines: Vec<_> = schedule.iter().take(LINES).map(line).collect();
    if let Some(left_out) = schedule.len().checked_sub(LINES).filter(|more| *more > 0) {
        lines.push([String::new(), format!("and {left_out} more bursts")]);
    }
    lines
}

const LINES: usize = 12;

fn as_json(group: &Group<'_>, worst: &Worst) -> Value {
    let bound = worst.bound.filter(|_| !group.kinds.is_empty());
    let lines = lines(&group.kinds, &worst.schedule).into_iter();
    json!({
        "name": group.name,
        "window_seconds": worst.window.get() as f64 / 1e6,
        "found": worst.found,
        "at_most": bound,
        "proved": bound.is_some() && worst.is_proved(),
        "schedule": lines.map(|[at, what]| json!({ "at": at, "what": what })).collect::<Vec<_>>(),
        "not_counted": group.unlimited,
        "tenant": group.tenant,
        "notes": group.notes,
    })
}

/// The largest number that each bounded policy lets through in its window: name, window and number.
pub(crate) fn bounds(
    plan: &Plan,
    threats: Threats,
) -> Result<Vec<(String, Duration, u64)>, String> {
    let threat = threats.to(plan)?;
    let mut bounds = Vec::new();
    for mut group in alone(plan, &Tenants::read(plan)?) {
        let window = group.window();
        group.choose(window, &threat);
        if group.kinds.is_empty() {
            continue;
        }
        let at_most = bound(&group.kinds, window, &threat);
        bounds.extend(at_most.map(|at_most| (group.name, window.into(), at_most)));
    }
    Ok(bounds)
}

/// Checks a test's bound.
///
/// # Errors
/// The limits have no such policy, or cannot have these faults.
pub(crate) fn check(
    plan: &Plan,
    expected: &WorstBound,
    threats: Threats,
) -> Result<Option<Failed>, String> {
    let threat = threats.to(plan)?;
    let tenants = Tenants::read(plan)?;
    let mut groups = match &expected.policy {
        Some(_) => alone(plan, &tenants),
        None => vec![client(plan, &tenants, None)],
    };
    if let Some(policy) = &expected.policy {
        groups.retain(|group| group.name == *policy);
    }
    let Some(mut group) = groups.pop() else {
        let names: Vec<_> = alone(plan, &tenants).into_iter().map(|group| group.name).collect();
        return Err(format!(
            "there is no policy `{}`; the policies are {} [TG0710]",
            expected.policy.as_deref().unwrap_or_default(),
            names.join(", ")
        ));
    };
    let window = expected.window.map_or_else(|| group.window(), Micros::from);
    group.choose(window, &threat);
    let found = match &group.kinds[..] {
        // Without a limit there is nothing to search.
        [] => worst(&[], window, &threat).map(Some),
        kinds => more_than(expected.at_most, kinds, window, &threat),
    };
    let Some(found) = found.map_err(|error| error.to_string())? else { return Ok(None) };
    let row = |[at, requests]: [String; 2]| {
        let [expected, policy, why] = [const { String::new() }; 3];
        Row { at, requests, expected, got: "passes".to_owned(), policy, why }
    };
    Ok(Some(Failed {
        about: match &group.tenant {
            Some(tenant) => format!("{}, tenant `{}`", group.name, tenant.escape_debug()),
            None => group.name.clone(),
        },
        expected: format!("at most {} in any {}", expected.at_most, Seconds(window)),
        got: in_words(&group, &found),
        rows: lines(&group.kinds, &found.schedule).into_iter().map(row).collect(),
        may_be_shorter: false,
    }))
}
