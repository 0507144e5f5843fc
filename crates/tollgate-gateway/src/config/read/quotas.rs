//! Quotas that hold at the same time, for everybody and in tiers.

use tollgate::policy::Algorithm;
use tollgate::{Policy, Quota};

use super::super::problem::Problems;
use super::super::view::{Item, View};
use super::policy::{self, Names, is_bucket, is_queue, no_effect};
use crate::plan::Bandwidth;

/// A quota, and the section that says it.
pub(super) type Said<'a> = (View<'a>, Quota);

/// The quotas of everybody, and then those of each tier: none where it is unlimited.
pub(super) struct Quotas<'a> {
    pub(super) everybody: Vec<Said<'a>>,
    pub(super) tiers: Vec<Vec<Said<'a>>>,
}

/// What a share is a share of.
#[derive(Clone)]
pub(super) struct Client {
    everybody: Vec<Quota>,
    tiers: Vec<Vec<Quota>>,
}

impl Client {
    /// All of them, those of tiers included.
    pub(super) fn quotas(&self) -> impl Iterator<Item = &Quota> {
        self.everybody.iter().chain(self.tiers.iter().flatten())
    }
}

/// The policies of one limit.
pub(super) struct Policies {
    pub(super) first: Policy,
    pub(super) tiers: Vec<Option<Policy>>,
    pub(super) also: Vec<Bandwidth>,
}

/// Whether a section without `share` has a quota, or should have one. What is only about quotas
/// is told where there is none.
pub(super) fn is_in(view: &View<'_>, problems: &mut Problems) -> bool {
    if view.has("limit") {
        return true;
    }
    let beside = ["concurrency", "penalty"].into_iter().find(|key| view.has(key));
    let meant = ["window", "windowSeconds", "refillSeconds", "calendar", "burst", "also"];
    let beside = match (meant.into_iter().find(|key| view.has(key)), beside) {
        (None, Some(beside)) => beside,
        _ if view.has_unknown() => return true,
        (Some(meant), Some(_)) => {
            let cure = format!("add `limit: …`, units per window, or remove `{meant}`");
            problems.error(view.place_of_key(meant), "`limit` is missing", cure);
            return true;
        }
        (_, None) => {
            problems.error(view.place(), "`limit` is missing", missing_limit(view));
            return true;
        }
    };
    let penalty = view.view("penalty");
    let says_failures = penalty
        .is_some_and(|penalty| penalty.text("of") == Some("failures") && !penalty.has("countOnly"));
    let counts = (!says_failures).then_some("countOnly");
    for key in OF_QUOTAS.into_iter().chain(counts).filter(|key| view.has(key)) {
        let why = "it is about the quota, and there is none";
        no_effect(view, key, &format!("on `{beside}` without `limit`"), why, problems);
    }
    false
}

fn missing_limit(view: &View<'_>) -> &'static str {
    match view.knows("share") {
        true => {
            "add `limit: …`, units per window, `share: 1/10`, a part of `client`, or \
                 `concurrency: …`, requests at once"
        }
        false => "add `limit: …`, units per window, or `concurrency: …`, requests at once",
    }
}

/// What says how a quota is counted, and what is taken of it.
const OF_QUOTAS: [&str; 8] =
    ["timeZone", "strategy", "refill", "mode", "maxWait", "resolution", "costs", "reserve"];

/// The quotas of a section: its own, and those of `also`.
pub(super) fn of_section<'a>(
    view: &View<'a>,
    algorithm: Algorithm,
    problems: &mut Problems,
) -> Option<Vec<Said<'a>>> {
    let first = policy::quota(view, algorithm, problems).map(|quota| (view.clone(), quota));
    let mut quotas = first.map(|first| vec![first]);
    for item in view.items("also") {
        let said = item.view().and_then(|view| {
            let quota = policy::quota(&view, algorithm, problems)?;
            Some((view, quota))
        });
        quotas = quotas.zip(said).map(|(mut quotas, said)| {
            quotas.push(said);
            quotas
        });
    }
    if !view.has("also") {
        return quotas;
    }
    if is_queue(algorithm) {
        problems.error(
            view.place_of_key("also"),
            "a queue leaves at one rate, and `also` says another",
            "write `mode: meter`, or another `strategy`",
        );
        return None;
    }
    let count = view.items("also").len() + 1;
    if count > MOST_AT_A_TIME {
        problems.error(
            view.place_of_key("also"),
            format!("{count} quotas at the same time are more than {MOST_AT_A_TIME}"),
            "keep those that make a difference: one for the minute and one for the day, say",
        );
        return None;
    }
    quotas
}

/// Each is a charge of every request, and a layer decides 64 at once.
const MOST_AT_A_TIME: usize = 8;

impl<'a> Quotas<'a> {
    /// The part that `view` is to have of what the client has.
    pub(super) fn of_client(client: &Client, view: &View<'a>, algorithm: Algorithm) -> Self {
        let fitting = |quota: &Quota| match (quota.burst_units(), is_bucket(algorithm)) {
            (Some(_), false) => (view.clone(), quota.without_burst()),
            _ => (view.clone(), *quota),
        };
        let all = |quotas: &Vec<Quota>| quotas.iter().map(fitting).collect();
        Self { everybody: all(&client.everybody), tiers: client.tiers.iter().map(all).collect() }
    }

    /// The same, for others to take a share of.
    pub(super) fn client(&self) -> Client {
        let all = |said: &Vec<Said<'_>>| said.iter().map(|(_, quota)| *quota).collect();
        Client { everybody: all(&self.everybody), tiers: self.tiers.iter().map(all).collect() }
    }

    /// Whether somebody has more than one at a time.
    pub(super) fn are_several(&self) -> bool {
        self.everybody.len() > 1 || self.tiers.iter().any(|tier| tier.len() > 1)
    }

    /// The policies of a limit of this name: the first quotas have the name itself, the
    /// others one with a number.
    pub(super) fn policies(
        &self,
        name: &str,
        algorithm: Algorithm,
        share: Option<(u32, u32)>,
        names: &mut Names,
        problems: &mut Problems,
    ) -> Option<Policies> {
        let build = |name: &str, (view, quota): &Said<'_>, problems: &mut Problems| {
            let whole = policy::build(name, *quota, algorithm, view, problems)?;
            let Some((part, of)) = share else { return Some(whole) };
            whole.share(part, of).map_err(|error| policy::refused(&error, view, problems)).ok()
        };
        let first = self.everybody.first().and_then(|said| build(name, said, problems));
        let mut tiers = Vec::new();
        for tier in &self.tiers {
            tiers.push(match tier.first() {
                Some(said) => build(name, said, problems).map(Some),
                None => Some(None),
            });
        }
        let mut also = Vec::new();
        let all = || std::iter::once(&self.everybody).chain(&self.tiers);
        let most = all().map(Vec::len).max().unwrap_or_default();
        for number in 1..most {
            let name = format!("{name}/{}", number + 1);
            let view = all().find_map(|quotas| quotas.get(number)).map(|(view, _)| view)?;
            names.take_derived(&name, view.place(), problems)?;
            let mut of = |quotas: &Vec<Said<'_>>| match quotas.get(number) {
                Some(said) => build(&name, said, problems).map(Some),
                None => Some(None),
            };
            let everybody = of(&self.everybody);
            let tiers: Option<Vec<_>> = self.tiers.iter().map(of).collect();
            also.push(
                everybody.zip(tiers).map(|(everybody, tiers)| Bandwidth { everybody, tiers }),
            );
        }
        Some(Policies {
            first: first?,
            tiers: tiers.into_iter().collect::<Option<_>>()?,
            also: also.into_iter().collect::<Option<_>>()?,
        })
    }
}

/// The quotas of the tiers, under the algorithm of `client`.
pub(super) fn of_tiers<'a>(
    limiter: &View<'a>,
    algorithm: Algorithm,
    problems: &mut Problems,
) -> Option<Vec<Vec<Said<'a>>>> {
    let mut tiers = Some(Vec::new());
    let Some(view) = limiter.view("tiers") else {
        return tiers;
    };
    for (_, item) in view.others() {
        let quotas = of_tier(&item, algorithm, problems);
        tiers = tiers.zip(quotas).map(|(mut tiers, quotas)| {
            tiers.push(quotas);
            tiers
        });
    }
    tiers
}

fn of_tier<'a>(
    item: &Item<'a>,
    algorithm: Algorithm,
    problems: &mut Problems,
) -> Option<Vec<Said<'a>>> {
    match item.view() {
        Some(view) => of_section(&view, algorithm, problems),
        // The one word that may stand here; another is told already.
        None => (item.text()? == "unlimited").then(Vec::new),
    }
}
