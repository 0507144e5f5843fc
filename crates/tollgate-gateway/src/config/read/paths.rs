//! Which paths and methods.

use http::Method;

use super::super::format;
use super::super::problem::Problems;
use super::super::view::{Item, View};
use crate::plan::{Methods, PathMatch};

/// What a path, or a section about one, says.
pub(super) fn path(item: &Item<'_>, problems: &mut Problems) -> Option<PathMatch> {
    if let Some(text) = item.text() {
        let path = format::path(text).ok()?;
        // As routers have it, and a letter like all others to HTTP.
        if text.contains("/:") && !item.is_from_variable() {
            problems.warn(
                item.place(),
                "`:` is a letter in a path, and what follows it stands for nothing else",
                format!(
                    "write `expression: regex` and {} if it is the name of a part",
                    format::expression(text)
                ),
            );
        }
        return Some(path);
    }
    let view = item.view()?;
    let value = view.text("value")?;
    match view.text("expression")? {
        "plain" => plain(value, &view, problems),
        "regex" => regex(value, &view, problems),
        _ => None,
    }
}

fn plain(value: &str, view: &View<'_>, problems: &mut Problems) -> Option<PathMatch> {
    let wrong = match value {
        _ if value.contains('*') => {
            "`*` is a letter in a plain path: write `path: /static/*` without `expression`, or \
             `expression: regex`"
                .to_owned()
        }
        // A caret is the mark of an expression.
        _ if value.starts_with('^') => "this looks like `expression: regex`".to_owned(),
        _ => match format::path(value) {
            Ok(path) => return Some(path),
            Err(_) if view.item("value")?.is_from_variable() => {
                "look at what the variable holds".to_owned()
            }
            Err(wrong) => wrong,
        },
    };
    let what = format!("no request has the path `{}`", view.item("value")?.shown());
    problems.error(view.place_of("value"), what, wrong);
    None
}

fn regex(value: &str, view: &View<'_>, problems: &mut Problems) -> Option<PathMatch> {
    match PathMatch::regex(value) {
        Ok(path) => {
            if !value.starts_with('^') && !value.starts_with("(?") {
                problems.warn(
                    view.place_of("value"),
                    "the expression is not anchored: it also matches in the middle of a path",
                    format!(
                        "write `^{}` if it has to match from the start",
                        view.item("value")?.shown()
                    ),
                );
            }
            if !value.is_ascii() {
                problems.warn(
                    view.place_of("value"),
                    "paths are percent-encoded when they are matched, so these letters never are",
                    "write them as they are sent: `%C3%A9` for `é`",
                );
            } else {
                problems.expression(view.place_of("value"), value);
            }
            Some(path)
        }
        Err(error) => {
            let cure = match &error.0 {
                regex::Error::CompiledTooBig(_) => {
                    "it grows with each `{n,m}` and with classes such as `\\w`: use smaller \
                     counts, or `[a-z]`"
                }
                _ => {
                    "the syntax is that of https://docs.rs/regex, without look-around and \
                      back-references"
                }
            };
            let what = format!("the regular expression does not build: {}", reason(&error.0));
            problems.error(view.place_of("value"), what, cure);
            None
        }
    }
}

/// The point of an error that draws a picture.
fn reason(error: &regex::Error) -> String {
    match error {
        regex::Error::CompiledTooBig(bytes) => format!("it is larger than {} KiB", bytes >> 10),
        other => {
            let text = other.to_string();
            let last = text.lines().last().unwrap_or_default();
            last.trim_start_matches("error: ").to_owned()
        }
    }
}

/// The methods of a key that holds one or a list; none without it.
pub(super) fn methods(view: &View<'_>) -> Option<Methods> {
    let mut methods = Vec::new();
    for item in view.items("method") {
        methods.push(Method::from_bytes(item.text()?.as_bytes()).ok()?);
    }
    Some(Methods::new(methods))
}

/// The paths that are not limited. `is_kept` is whether ambiguous spellings are kept.
pub(super) fn exempt(
    limiter: &View<'_>,
    is_kept: bool,
    problems: &mut Problems,
) -> Option<Vec<PathMatch>> {
    let mut paths = Some(Vec::new());
    for item in limiter.items("exempt") {
        let path = path(&item, problems);
        if path == Some(PathMatch::Any) {
            problems.warn(
                item.place(),
                "every path is exempt, so that nothing is limited",
                "name the paths that need no limit",
            );
        }
        paths = paths.zip(path).map(|(mut paths, path)| {
            paths.push(path);
            paths
        });
    }
    let holds_others = |path: &PathMatch| !matches!(path, PathMatch::Plain(_));
    if let Some(section) = limiter.view("paths").filter(|_| is_kept)
        && paths.iter().flatten().any(holds_others)
    {
        problems.warn(
            section.place_of("ambiguous"),
            "a path with `%2F`, `%5C` or `%3B` is limited, although `exempt` matches it",
            "write `ambiguous: reject`, unless clients of yours send such paths",
        );
    }
    paths
}
