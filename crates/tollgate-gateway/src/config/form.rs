//! Compares a tree with the tables: unknown keys, and values of the wrong form.

use super::format;
use super::problem::{Place, Problems};
use super::secrets::looks_secret;
use super::spec::{Field, Others, Presence, Section, Shape, one_of};
use super::tree::{Entry, Node, Scalar, Value};

/// Reports everything that is wrong with the form of a value. Whether values fit together is
/// checked later.
pub(super) fn check(shape: &Shape, node: &Node, path: &str, problems: &Problems) {
    let place = || Place { span: node.span.clone(), path: path.to_owned() };
    match (shape, &node.value) {
        (Shape::Either(shapes), _) => match fitting(shapes, node) {
            Some(shape) => check(shape, node, path, problems),
            None => wrong_kind(shape, node, place(), problems),
        },
        (Shape::List(of), Value::List(nodes)) => {
            if nodes.is_empty() {
                problems.error(place(), "an empty list", "leave the key out, or list something");
            }
            for (index, node) in nodes.iter().enumerate() {
                check(of, node, &format!("{path}[{index}]"), problems);
            }
        }
        (Shape::Section(section), Value::Map(entries)) => {
            check_section(section(), entries, &place(), problems);
        }
        (_, Value::Scalar(Scalar { broken: true, .. })) => {}
        (Shape::List(_) | Shape::Section(_), _) | (_, Value::List(_) | Value::Map(_)) => {
            wrong_kind(shape, node, place(), problems);
        }
        (_, Value::Scalar(_)) if node.is_null() => wrong_kind(shape, node, place(), problems),
        (_, Value::Scalar(scalar)) => {
            if let Err(wrong) = check_scalar(shape, scalar) {
                let what = format!("`{}` is not {}", scalar.shown().escape_debug(), shape.what());
                problems.error(place(), what, wrong);
            }
        }
    }
}

pub(super) fn fitting<'s>(shapes: &'s [Shape], node: &Node) -> Option<&'s Shape> {
    shapes.iter().find(|shape| shape.fits(node))
}

impl Shape {
    pub(super) fn fits(&self, node: &Node) -> bool {
        match &node.value {
            _ if node.is_null() => false,
            Value::List(_) => matches!(self, Self::List(_)),
            Value::Map(_) => matches!(self, Self::Section(_)),
            Value::Scalar(_) => !matches!(self, Self::List(_) | Self::Section(_)),
        }
    }
}

fn wrong_kind(shape: &Shape, node: &Node, place: Place, problems: &Problems) {
    if holds_secret(shape) {
        problems.hide(node.span.clone());
    }
    let found = match &node.value {
        _ if node.is_null() => "nothing",
        Value::Scalar(_) => "a single value",
        Value::List(_) => "a list",
        Value::Map(_) => "a section",
    };
    let cure = if node.is_null() {
        "write one, indented below the key, or remove the key".to_owned()
    } else if matches!(shape, Shape::List(_)) {
        "begin each item on a line of its own with `- `".to_owned()
    } else {
        "see docs/configuration-reference.md, or `tollgate init`".to_owned()
    };
    problems.error(place, format!("expected {}, found {found}", shape.what()), cure);
}

/// Whether a value in the wrong form is likely a secret: a key where its digest belongs.
fn holds_secret(shape: &Shape) -> bool {
    match shape {
        Shape::Section(section) => section().fields().any(|field| field.secret),
        Shape::List(of) => holds_secret(of),
        Shape::Either(shapes) => shapes.iter().any(holds_secret),
        _ => false,
    }
}

fn check_section(section: &Section, entries: &[Entry], place: &Place, problems: &Problems) {
    let path_of = |key: &str| join(&place.path, key);
    // Keys that are there, but spelled otherwise.
    let mut meant = Vec::new();
    for Entry { key, key_span, node } in entries {
        if let Some(field) = section.field(key) {
            // First, so that no message about it can show it.
            if field.secret {
                problems.hide(node.span.clone());
                check_secret(field, node, &path_of(key), problems);
            } else {
                check(&field.shape, node, &path_of(key), problems);
            }
            continue;
        }
        let at = Place { span: key_span.clone(), path: path_of(key) };
        match section.others() {
            Some(others) if (others.key.check)(key).is_ok() => {
                check(&others.shape, node, &path_of(key), problems);
            }
            others => {
                let field = nearest(section, key);
                meant.extend(field.map(|field| field.key));
                let is_secret = match field {
                    Some(field) => field.secret,
                    None => section.fields().any(|field| field.secret),
                };
                if is_secret || looks_secret(key) {
                    problems.hide(node.span.clone());
                }
                unknown_key(section, others, key, at, problems);
            }
        }
    }
    let has = |key: &str| entries.iter().find(|entry| entry.key == key);
    for keys in section.either {
        let mut found = keys.iter().filter_map(|key| has(key));
        if let (Some(first), Some(second)) = (found.next(), found.next()) {
            let at = Place { span: second.key_span.clone(), path: path_of(&second.key) };
            problems.error(
                at,
                format!("`{}` and `{}` exclude each other", first.key, second.key),
                "keep one of the two",
            );
        }
    }
    for field in section.fields() {
        let is_there = has(field.key).is_some() || meant.contains(&field.key);
        if field.presence == Presence::Required && !is_there {
            problems.error(
                place.clone(),
                format!("`{}` is missing", field.key),
                format!("add `{}: …`: {}", field.key, lower(field.doc)),
            );
        }
    }
}

fn check_secret(field: &Field, node: &Node, path: &str, problems: &Problems) {
    let place = Place { span: node.span.clone(), path: path.to_owned() };
    match &node.value {
        Value::Scalar(scalar) if !node.is_null() => {
            if !scalar.broken
                && let Err(wrong) = check_scalar(&field.shape, scalar)
            {
                problems.error(place, format!("this is not {}", field.shape.what()), wrong);
            }
        }
        _ => wrong_kind(&field.shape, node, place, problems),
    }
}

/// How to correct a single value. The text may quote the value, unless it came from a variable.
fn check_scalar(shape: &Shape, scalar: &Scalar) -> Result<(), String> {
    check_value(shape, scalar).map_err(|wrong| match &scalar.written {
        Some(_) => "look at what the variable holds; it is not shown, as it may be a secret".into(),
        None => wrong,
    })
}

fn check_value(shape: &Shape, scalar: &Scalar) -> Result<(), String> {
    let text = &*scalar.text;
    match shape {
        Shape::Flag => match flag(scalar) {
            Some(_) => Ok(()),
            None => Err(match text.to_ascii_lowercase().as_str() {
                "yes" | "on" | "y" | "1" => "write true".to_owned(),
                "no" | "off" | "n" | "0" => "write false".to_owned(),
                _ => "write one of the two, without quotes".to_owned(),
            }),
        },
        Shape::Whole { min, max } => match whole(scalar) {
            Some(number) if (*min..=*max).contains(&number) => Ok(()),
            Some(number) if number < *min => Err(format!("the minimum is {min}")),
            Some(_) => Err(format!("the maximum is {max}")),
            None if text.parse::<i64>().is_ok_and(|number| number < 0) => {
                Err(format!("the minimum is {min}"))
            }
            None if !scalar.plain && text.parse::<u64>().is_ok() => {
                Err(format!("take off the quotes: {text}"))
            }
            None if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) => {
                Err(format!("the maximum is {max}"))
            }
            None if text.contains(['_', ',']) => {
                Err("write digits alone, without separators".to_owned())
            }
            None if text.parse::<f64>().is_ok() => {
                Err("round it, or choose a longer window with a whole number of units".to_owned())
            }
            None => Err("write digits alone".to_owned()),
        },
        Shape::Span => format::span(text).map(drop),
        Shape::Word(words) => {
            let names = || words.iter().map(|(word, _)| *word);
            if names().any(|word| word == text) {
                return Ok(());
            }
            Err(match nearest_word(names(), text) {
                Some(word) => format!("did you mean `{word}`?"),
                None => format!(
                    "write {}",
                    one_of(&names().map(|word| format!("`{word}`")).collect::<Vec<_>>())
                ),
            })
        }
        Shape::Text(format) => (format.check)(text),
        Shape::List(_) | Shape::Section(_) | Shape::Either(_) => Ok(()),
    }
}

pub(super) fn flag(scalar: &Scalar) -> Option<bool> {
    match &*scalar.text {
        "true" | "True" | "TRUE" if scalar.plain => Some(true),
        "false" | "False" | "FALSE" if scalar.plain => Some(false),
        _ => None,
    }
}

pub(super) fn whole(scalar: &Scalar) -> Option<u64> {
    let digits = scalar.plain && scalar.text.bytes().all(|byte| byte.is_ascii_digit());
    if digits { scalar.text.parse().ok() } else { None }
}

fn unknown_key(
    section: &Section,
    others: Option<&Others>,
    key: &str,
    at: Place,
    problems: &Problems,
) {
    let shown: String = key.chars().take(60).collect();
    let what = format!("there is no key `{}` here", shown.escape_debug());
    let cure = if key == "<<" {
        "merge keys are not part of YAML 1.2: write the keys out, or alias a whole section".into()
    } else if let Some(field) = nearest(section, key) {
        format!("did you mean `{}`?", field.key)
    } else if section.name == super::tables::root().name && is_below(key) {
        format!("move it below `rateLimiter`, indented: `rateLimiter.{key}`")
    } else if let Some(others) = others {
        let wrong = (others.key.check)(key).err().unwrap_or_default();
        format!("a key here is {}: {wrong}", others.key.what)
    } else {
        let keys: Vec<_> = section.fields().map(|field| field.key.to_owned()).collect();
        format!("remove it; the keys here are {}", keys.join(", "))
    };
    problems.error(at, what, cure);
}

/// Whether a key at the root belongs below `rateLimiter`.
fn is_below(key: &str) -> bool {
    super::tables::root().fields().any(|field| match &field.shape {
        Shape::Section(section) => section().field(key).is_some(),
        _ => false,
    })
}

fn nearest(section: &Section, key: &str) -> Option<&'static Field> {
    let word = nearest_word(section.fields().map(|field| field.key), key)?;
    section.field(word)
}

/// The word that is probably meant: case and separators do not count.
fn nearest_word<'w>(words: impl Iterator<Item = &'w str>, given: &str) -> Option<&'w str> {
    // Nothing as long is close to any word of ours, and comparing takes time.
    if given.len() > 64 {
        return None;
    }
    let plain = |word: &str| word.replace(['_', '-', ' '], "").to_ascii_lowercase();
    let given = plain(given);
    let scored = words.map(|word| (strsim::jaro_winkler(&plain(word), &given), word));
    let best = scored.max_by(|(a, _), (b, _)| a.total_cmp(b))?;
    (best.0 >= 0.84).then_some(best.1)
}

/// `rateLimiter.apis[2]` and `limit`.
pub(super) fn join(path: &str, key: &str) -> String {
    // A key is the file's own: long ones and control characters have no place in a message.
    let key: String = key.chars().take(60).flat_map(char::escape_debug).collect();
    if path.is_empty() { key } else { format!("{path}.{key}") }
}

fn lower(doc: &str) -> String {
    let mut letters = doc.chars();
    let first = letters.next().map(|first| first.to_ascii_lowercase());
    let text: String = first.into_iter().chain(letters).collect();
    // The first sentence says enough.
    match text.split_once(". ") {
        Some((sentence, _)) => sentence.to_owned(),
        None => text.trim_end_matches('.').to_owned(),
    }
}
