//! Rules as envoyproxy/ratelimit reads them.

use std::path::Path;

use super::problem::{Problems, Report};
use super::spec::{Format, Section, Shape, default, optional, required};
use super::view::{Item, View};
use super::{Place, Source, check, format, tree};
use crate::files::FileError;
use crate::plan::{Allowed, Descriptor, RateLimitDomain, RateLimitDomains, Rule, Unit};

/// Whether a text has such rules, and not a configuration of the gateway.
pub fn is_rate_limits(source: &Source) -> bool {
    let root = tree::parse(&source.text, &as_written, &mut Problems::default());
    root.is_some_and(|root| match &root.value {
        tree::Value::Map(entries) => entries.iter().any(|entry| entry.key == "domain"),
        _ => false,
    })
}

/// Reads the rules of one file, or everything that is wrong with them.
pub fn read_rate_limits(source: &Source) -> (Option<RateLimitDomain>, Report) {
    let mut problems = Problems::default();
    let domain = domain(source, &mut problems).filter(|_| !problems.has_errors());
    (domain, problems.into_report(source))
}

/// Reads the rules of several files.
///
/// # Errors
/// A file that cannot be read or is wrong, or a domain in two files.
pub fn read_rate_limit_files<'a>(
    files: impl IntoIterator<Item = &'a Path>,
) -> Result<RateLimitDomains, FileError> {
    let mut all = RateLimitDomains::new();
    for file in files {
        let wrong = |what: String, cure: &str| FileError {
            file: file.to_owned(),
            what,
            cure: cure.to_owned(),
        };
        let source = Source::read_again(file)
            .map_err(|error| wrong(error.to_string(), "name a file with rate limits"))?;
        let (domain, report) = read_rate_limits(&source);
        let command = "run `tollgate check` with this file";
        let Some(domain) = domain else {
            return Err(wrong(report.to_string().trim_end().to_owned(), command));
        };
        let name = domain.name.clone();
        if all.insert(name.clone(), domain).is_some() {
            let what = format!("the domain `{}` is in another file too", name.escape_debug());
            return Err(wrong(what, "write all descriptors of a domain into one file"));
        }
    }
    Ok(all)
}

/// envoyproxy/ratelimit fills in no variables.
fn as_written(name: &str) -> Option<String> {
    Some(format!("${{{name}}}"))
}

fn domain(source: &Source, problems: &mut Problems) -> Option<RateLimitDomain> {
    let root = tree::parse(&source.text, &as_written, problems)?;
    check::check(&ROOT, &root, "", problems);
    let root = Item::new(&root, &ROOT, String::new()).view()?;
    let name = root.text("domain")?;
    let descriptors = descriptors(&root, name, problems);
    Some(RateLimitDomain { name: name.to_owned(), descriptors })
}

fn descriptors(view: &View<'_>, domain: &str, problems: &mut Problems) -> Vec<Descriptor> {
    let mut all: Vec<Descriptor> = Vec::new();
    for item in view.items("descriptors") {
        let read = item.view().and_then(|view| descriptor(&view, domain, problems));
        let Some(descriptor) = read else { continue };
        if all.iter().any(|it| it.key == descriptor.key && it.value == descriptor.value) {
            let what = "this list has a descriptor with the same key and value already";
            problems.error(item.place(), what, "remove one of the two");
        }
        all.push(descriptor);
    }
    all
}

fn descriptor(view: &View<'_>, domain: &str, problems: &mut Problems) -> Option<Descriptor> {
    for key in ["detailed_metric", "value_to_metric"] {
        if view.flag(key) == Some(true) {
            problems.warn(
                view.place_of_key(key),
                format!("`{key}` has no effect: values that clients choose never become labels"),
                format!(
                    "remove `{key}`; give values that you want to tell apart rules of their own"
                ),
            );
        }
    }
    let value = view.text("value").filter(|value| !value.is_empty());
    let shares = view.flag("share_threshold")?;
    if shares && !value.is_some_and(|value| value.contains('*')) {
        let what = "`share_threshold` is for values that match a pattern, and `value` has no `*`";
        problems.error(view.place_of_key("share_threshold"), what, "remove it, or add a `*`");
    }
    let rule = match view.item("rate_limit") {
        Some(item) => rule(&item.view()?, domain, view.flag("shadow_mode")?, problems),
        None => {
            if view.flag("shadow_mode")? {
                let what = "`shadow_mode` has no effect without `rate_limit`";
                problems.error(view.place_of_key("shadow_mode"), what, "move it to the rule");
            }
            None
        }
    };
    Some(Descriptor {
        key: view.text("key")?.to_owned(),
        value: value.map(str::to_owned),
        rule,
        shares,
        nested: descriptors(view, domain, problems),
    })
}

fn rule(view: &View<'_>, domain: &str, shadow: bool, problems: &mut Problems) -> Option<Rule> {
    let name = view.text("name").unwrap_or_default();
    let mut replaces = Vec::new();
    for item in view.items("replaces") {
        let replaced = item.view()?.text("name")?;
        if replaced == name {
            problems.error(item.place(), "a rule cannot replace itself", "name another rule");
        }
        replaces.push(replaced.to_owned());
    }
    let unit = Unit::ALL
        .into_iter()
        .find(|unit| view.text("unit").is_some_and(|text| unit.name().eq_ignore_ascii_case(text)));
    let number = view.whole("requests_per_unit");
    let allowed = if view.flag("unlimited")? {
        for key in ["unit", "requests_per_unit"] {
            if view.has(key) {
                let what = format!("`{key}` has no effect beside `unlimited: true`");
                problems.error(view.place_of_key(key), what, "remove one of the two");
            }
        }
        None
    } else {
        let mut missing = |key: &str| {
            if !view.has(key) {
                let what = format!("`{key}` is missing");
                let cure = "write `unit` and `requests_per_unit`, or `unlimited: true`";
                problems.error(view.place(), what, cure);
            }
        };
        missing("unit");
        missing("requests_per_unit");
        Some(Allowed::new(domain, u32::try_from(number?).ok()?, unit?).ok()?)
    };
    Some(Rule { name: name.to_owned(), replaces, shadow, allowed })
}

static ROOT: Shape = Shape::Section(&Section {
    name: "domain",
    doc: "Rate limits of Envoy.",
    fields: &[
        required("domain", Shape::Text(DOMAIN), "The name by which requests choose these rules."),
        required("descriptors", Shape::List(&EACH), "The rules."),
    ],
    either: &[],
    others: None,
});

static EACH: Shape = Shape::Section(&DESCRIPTOR);

static DESCRIPTOR: Section = Section {
    name: "descriptors[]",
    doc: "An entry of a descriptor.",
    fields: &[
        required("key", Shape::Text(format::TEXT), "The key of the entry."),
        optional("value", Shape::Text(ANY), "The value, with `*` for any text. Without it, any."),
        optional("rate_limit", Shape::Section(&RATE_LIMIT), "The limit."),
        default("shadow_mode", Shape::Flag, "false", "Whether the limit only watches."),
        default("share_threshold", Shape::Flag, "false", "Whether matching values share a quota."),
        default("detailed_metric", Shape::Flag, "false", "Without effect."),
        default("value_to_metric", Shape::Flag, "false", "Without effect."),
        optional("descriptors", Shape::List(&EACH), "Rules of longer descriptors."),
    ],
    either: &[],
    others: None,
};

static RATE_LIMIT: Section = Section {
    name: "rate_limit",
    doc: "A limit.",
    fields: &[
        optional("unit", Shape::Text(UNIT), "The unit of time."),
        optional(
            "requests_per_unit",
            Shape::Whole { min: 0, max: u32::MAX as u64 },
            "The number of requests.",
        ),
        default("unlimited", Shape::Flag, "false", "Whether there is no limit."),
        optional("name", Shape::Text(format::TEXT), "The name by which others replace it."),
        optional("replaces", Shape::List(&Shape::Section(&REPLACES)), "What it replaces."),
    ],
    either: &[],
    others: None,
};

static REPLACES: Section = Section {
    name: "replaces[]",
    doc: "A rule that does not hold where this one does.",
    fields: &[required("name", Shape::Text(format::TEXT), "Its name.")],
    either: &[],
    others: None,
};

const ANY: Format = Format { pattern: None, what: "a text", check: |_| Ok(()) };

/// With the name of a unit it is the name of a policy.
const DOMAIN: Format = Format {
    pattern: None,
    what: "a name of 1 to 120 printable ASCII characters",
    check: |text| match text.len() <= 120 {
        true => (format::IDENTIFIER.check)(text),
        false => Err("write a shorter one".to_owned()),
    },
};

const UNIT: Format = Format {
    pattern: None,
    what: "a unit of time",
    check: |text| match Unit::ALL.iter().any(|unit| unit.name().eq_ignore_ascii_case(text)) {
        true => Ok(()),
        false => Err("write second, minute, hour, day, week, month or year".to_owned()),
    },
};

/// Where a configuration names such a file.
pub(super) fn problem(file: &Path, place: &Place) -> Option<super::Problem> {
    let error = read_rate_limit_files([file]).err()?;
    let FileError { what, cure, .. } = error;
    Some(super::Problem { severity: super::Severity::Error, place: place.clone(), what, cure })
}
