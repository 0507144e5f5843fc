//! Rules in ConfigMaps of Kubernetes, which contain them as texts.

use std::rc::Rc;

use super::rules::{domain, is_rules};
use crate::code;
use crate::plan::RateLimitDomain;
use crate::yaml::parse;
use crate::yaml::place::{Place, Span};
use crate::yaml::problem::{Checked, Problem, Problems, Reported};
use crate::yaml::tree::{Node, Pair, Value};

/// Whether this is an object of Kubernetes.
pub(super) fn is_object(root: &Node) -> bool {
    root.get("apiVersion").is_some() && root.get("kind").is_some()
}

/// A text with rules in a ConfigMap.
pub(super) struct Text {
    key: String,
    /// The text's characters in the file.
    span: Span,
    rules: String,
    /// Where each line starts in the file, unless the file contains the text in quotes or folded.
    lines: Option<Vec<usize>>,
}

/// The rules in a file's ConfigMaps. `None` if the file contains no objects of Kubernetes.
pub(super) fn rules(file: &str, problems: &Problems) -> Option<Checked<Vec<Text>>> {
    let first = parse::parse_first(file, &Problems::default()).flatten()?;
    if !is_object(&first) {
        return None;
    }
    let Some(objects) = parse::parse_all(file, problems) else { return Some(Err(Reported)) };
    let mut texts = Vec::new();
    objects.iter().for_each(|object| add_texts(object, file, &mut texts));
    if texts.is_empty() {
        let what = "no ConfigMap in this file has rules in `data`";
        let cure = "write a key such as `config.yaml: |` with `domain: …` and `descriptors: […]`";
        return Some(Err(problems.error(code::EMPTY_FILE, Place::START, what, cure)));
    }
    Some(Ok(texts))
}

fn add_texts(object: &Node, file: &str, texts: &mut Vec<Text>) {
    let pairs = |key| match object.get(key).map(|node| &node.value) {
        Some(Value::Map(pairs)) => pairs.as_slice(),
        _ => &[],
    };
    match object.get("kind").and_then(|kind| kind.text()) {
        Some("ConfigMap") => texts.extend(pairs("data").iter().filter_map(|it| text(it, file))),
        Some(kind) if kind.ends_with("List") => {
            if let Some(Value::List(items)) = object.get("items").map(|items| &items.value) {
                items.iter().for_each(|item| add_texts(item, file, texts));
            }
        }
        _ => {}
    }
}

/// A value of `data`, if it contains rules. A ConfigMap may also contain other files.
fn text(pair: &Pair, file: &str) -> Option<Text> {
    let rules = pair.node.text()?;
    let has_rules = match parse::parse_first(rules, &Problems::default()) {
        Some(root) => root.is_some_and(|root| is_rules(&root)),
        // These rules are not valid YAML.
        None => rules.lines().any(|line| line.starts_with("descriptors:")),
    };
    has_rules.then(|| Text {
        key: pair.key.clone(),
        span: pair.node.span.clone(),
        rules: rules.to_owned(),
        lines: lines(file, pair.node.span.start, rules),
    })
}

/// Where a text's lines start in the file, if they are in a literal block that starts at `from`.
fn lines(file: &str, from: usize, text: &str) -> Option<Vec<usize>> {
    let mut at = 0;
    let mut lines = Vec::new();
    let mut expected = text.lines();
    for line in file.split_inclusive('\n') {
        let length = line.chars().count();
        let content = line.trim_end_matches(['\n', '\r']);
        if at + length > from {
            let Some(expected) = expected.next() else { break };
            content.ends_with(expected).then_some(())?;
            lines.push(at + content.chars().count() - expected.chars().count());
        }
        at += length;
    }
    expected.next().is_none().then_some(lines)
}

impl Text {
    /// Reads the rules, and reports their problems at their places in the file.
    pub(super) fn read(&self, problems: &Problems) -> Checked<RateLimitDomain> {
        let own = Rc::new(Problems::default());
        let domain = domain(&self.rules, &own);
        for Problem { severity, code, place, what, cure } in own.take() {
            let (line, column) = place.position(&self.rules);
            let line_start = self.lines.as_ref().and_then(|lines| lines.get(line - 1));
            let (span, what) = match line_start.map(|start| start + column - 1) {
                Some(start) => (start..start + place.span.len(), what),
                None => (self.span.clone(), format!("line {line} of `{}`: {what}", self.key)),
            };
            let place = Place { span, ..place };
            problems.add(Problem { severity, code, place, what, cure });
        }
        domain
    }
}
