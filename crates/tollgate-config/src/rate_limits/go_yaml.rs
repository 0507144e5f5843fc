//! YAML as go-yaml reads it for envoyproxy/ratelimit.

use std::collections::HashSet;
use std::rc::Rc;

use crate::code;
use crate::yaml::place::Place;
use crate::yaml::problem::Problems;
use crate::yaml::tree::{Node, Pair, Value};

/// A copy with the meaning that the file has in envoyproxy/ratelimit: a key without a value, or
/// with an empty list, is ignored, `<<` includes another section's keys, and numbers and flags may
/// have the forms of YAML 1.1.
pub(super) fn as_go_reads(node: &Rc<Node>, problems: &Problems) -> Rc<Node> {
    let value = match &node.value {
        Value::Scalar(_) => return Rc::clone(node),
        Value::List(nodes) => {
            Value::List(nodes.iter().map(|node| as_go_reads(node, problems)).collect())
        }
        Value::Map(pairs) => {
            let all = with_merged(pairs, problems);
            let there = all.into_iter().filter(|pair| !is_empty(&pair.node));
            Value::Map(there.map(|pair| read_pair(pair, problems)).collect())
        }
    };
    node.with_value(value)
}

fn is_empty(node: &Node) -> bool {
    match &node.value {
        Value::List(nodes) => nodes.is_empty(),
        _ => node.is_null(),
    }
}

fn read_pair(pair: &Pair, problems: &Problems) -> Pair {
    let Pair { key, key_span, node } = pair;
    let text = match &node.value {
        Value::Scalar(scalar) if scalar.plain => match &**key {
            "requests_per_unit" => integer(&scalar.text),
            key if FLAGS.contains(&key) => flag(&scalar.text).map(|flag| flag.to_string()),
            _ => None,
        },
        _ => None,
    };
    let node = match text {
        Some(text) => node.with_value(Node::plain(&text).value),
        None => as_go_reads(node, problems),
    };
    Pair { key: key.clone(), key_span: key_span.clone(), node }
}

/// A section's own keys, and the keys of the sections in `<<`, of which the first has
/// precedence.
fn with_merged<'a>(pairs: &'a [Pair], problems: &Problems) -> Vec<&'a Pair> {
    let (merges, mut all): (Vec<_>, Vec<_>) = pairs.iter().partition(|pair| pair.key == MERGE);
    if merges.is_empty() {
        return all;
    }
    let mut seen: HashSet<&str> = all.iter().map(|pair| &*pair.key).collect();
    for merge in merges {
        let sections = match &merge.node.value {
            Value::List(nodes) => nodes.as_slice(),
            _ => std::slice::from_ref(&merge.node),
        };
        for section in sections {
            let Value::Map(pairs) = &section.value else {
                problems.error(
                    code::UNSUPPORTED_YAML,
                    Place { span: merge.key_span.clone(), path: MERGE.to_owned() },
                    "`<<` includes a section, or a list of sections",
                    "name the anchor of a section, such as `<<: *limit`",
                );
                continue;
            };
            let merged = with_merged(pairs, problems).into_iter();
            all.extend(merged.filter(|pair| seen.insert(&pair.key)));
        }
    }
    all
}

const MERGE: &str = "<<";

const FLAGS: [&str; 6] = [
    "unlimited",
    "shadow_mode",
    "quota_mode",
    "share_threshold",
    "detailed_metric",
    "value_to_metric",
];

/// The decimal form of a number such as `1_000`, `0x64`, `0b11`, `0o17` or `017`. `None` if the
/// text has no other form.
fn integer(text: &str) -> Option<String> {
    if !text.starts_with(|first: char| first.is_ascii_digit() || first == '+') {
        return None;
    }
    let digits = text.replace('_', "").to_ascii_lowercase();
    let digits = digits.strip_prefix('+').unwrap_or(&digits);
    let (digits, radix) = match digits.as_bytes() {
        [b'0', b'x', ..] => (&digits[2..], 16),
        [b'0', b'b', ..] => (&digits[2..], 2),
        [b'0', b'o', ..] => (&digits[2..], 8),
        [b'0', _, ..] => (&digits[1..], 8),
        _ => (digits, 10),
    };
    let number = u64::from_str_radix(digits, radix).ok().filter(|_| !digits.starts_with('+'))?;
    Some(number.to_string())
}

fn flag(text: &str) -> Option<bool> {
    match text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => Some(true),
        "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_have_the_forms_of_go() {
        for (text, expected) in [
            ("100", Some("100")),
            ("1_000", Some("1000")),
            ("1_0_", Some("10")),
            ("+5", Some("5")),
            ("0x64", Some("100")),
            ("0X6_4", Some("100")),
            ("0b1100100", Some("100")),
            ("0o144", Some("100")),
            ("0144", Some("100")),
            ("0", Some("0")),
            ("08", None),
            ("_1", None),
            ("-1", None),
            ("++1", None),
            ("0x", None),
            ("1e3", None),
            ("1.5", None),
            ("99999999999999999999", None),
            ("", None),
        ] {
            assert_eq!(integer(text).as_deref(), expected, "{text}");
        }
    }
}
