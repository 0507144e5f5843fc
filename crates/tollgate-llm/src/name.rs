//! The names that vendors give to versions of the same model.

use std::iter::successors;

/// The name, then shorter names of the same model: without its date, build or preview, and without
/// the vendor in front.
///
/// Clients choose the name, so only what vendors add to every model is removed. A version or a size
/// remains, because it has its own price.
pub(crate) fn shorter_names(name: &str) -> impl Iterator<Item = &str> {
    let names = successors(Some(name), |name| without_vendor(name));
    names.flat_map(|name| successors(Some(name), |name| without_suffix(name)))
}

/// Removes the prefix from `openai/gpt-4o`, `us.anthropic.claude-sonnet-4` or `models/gemini-2.5-pro`.
fn without_vendor(name: &str) -> Option<&str> {
    if let Some((_, model)) = name.rsplit_once('/') {
        return Some(model);
    }
    // Versions such as `gpt-4.1` contain a dot too, but a digit follows it.
    let (_, model) = name.split_once('.')?;
    model.starts_with(|first: char| first.is_ascii_alphabetic()).then_some(model)
}

fn without_suffix(name: &str) -> Option<&str> {
    without_build(name).or_else(|| without_word(name)).or_else(|| without_date(name))
}

/// The suffixes of Bedrock: `-v1:0`, and `-v1:0:200k` with the size of the context.
fn without_build(name: &str) -> Option<&str> {
    let (model, build) = name.rsplit_once("-v")?;
    let (version, revision) = build.split_once(':')?;
    let revision = revision.split_once(':').map_or(revision, |(revision, _)| revision);
    [version, revision].iter().all(|part| is_number(part)).then_some(model)
}

/// Words for a version or a variant with the same price, or a lower one.
fn without_word(name: &str) -> Option<&str> {
    const WORDS: [&str; 10] = [
        "-latest",
        "@latest",
        ":latest",
        "@default",
        "-preview",
        "-exp",
        "-beta",
        // OpenRouter's variants.
        ":free",
        ":floor",
        ":thinking",
    ];
    WORDS.iter().find_map(|word| name.strip_suffix(word)).filter(|model| !model.is_empty())
}

fn without_date(name: &str) -> Option<&str> {
    let (model, last) = name.rsplit_once(['-', '@'])?;
    if !is_number(last) {
        return None;
    }
    let before = model.rsplit_once('-').filter(|(_, month)| is_month(month));
    let model = match last.len() {
        // 2024-08-06, or 05-06, which only Google writes.
        2 if is_day(last) => {
            let (model, _) = before?;
            let year = model.rsplit_once('-').filter(|(_, year)| is_year(year));
            let is_trial = || model.ends_with("-preview") || model.ends_with("-exp");
            year.map(|(model, _)| model).or_else(|| is_trial().then_some(model))
        }
        // A build such as 001.
        3 => last.starts_with('0').then_some(model),
        // 08-2024, 0806 or 2408.
        4 if is_year(last) => before.map(|(model, _)| model),
        4 => {
            let (first, last) = last.split_at(2);
            let is_date = is_month(first) && is_day(last) || is_short_year(first) && is_month(last);
            is_date.then_some(model)
        }
        // 240806 or 20240806.
        6 | 8 => {
            let (year, day) = last.split_at(last.len() - 4);
            let is_year = is_short_year(year) || is_year(year);
            (is_year && is_month(&day[..2]) && is_day(&day[2..])).then_some(model)
        }
        _ => None,
    };
    model.filter(|model| !model.is_empty())
}

fn is_year(text: &str) -> bool {
    text.strip_prefix("20").is_some_and(is_short_year)
}

fn is_short_year(text: &str) -> bool {
    is_from(text, 20, 39)
}

fn is_month(text: &str) -> bool {
    is_from(text, 1, 12)
}

fn is_day(text: &str) -> bool {
    is_from(text, 1, 31)
}

/// Whether the text is a number of two digits in this range.
fn is_from(text: &str, first: u8, last: u8) -> bool {
    text.len() == 2 && is_number(text) && text.parse().is_ok_and(|it| (first..=last).contains(&it))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}
