//! One-line errors for the command line.

use std::error::Error;
use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue};

/// Shortens a clap error to one line with the flag or variable, its value, and how to fix it.
pub(super) fn one_line(error: &clap::Error, line: &[OsString]) -> String {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let cure = match (error.get(ContextKind::ValidValue), error.source()) {
        (Some(ContextValue::Strings(valid)), _) if !valid.is_empty() => {
            Some(format!("use one of {}", valid.join(", ")))
        }
        (_, Some(source)) => Some(source.to_string()),
        _ => None,
    };
    let (Some(flag), Some(value), Some(cure)) =
        (text(ContextKind::InvalidArg), text(ContextKind::InvalidValue), cure)
    else {
        let paragraph = error.to_string();
        let first = paragraph.lines().next().unwrap_or_default();
        let first = first.trim_start_matches("error: ");
        return match text(ContextKind::SuggestedArg) {
            Some(similar) => format!("{first}; did you mean {similar}?"),
            None => format!("{first}; see --help"),
        };
    };
    // clap names the flag with its placeholder, and does not report whether the value came from the
    // flag or the variable.
    let flag = flag.split(' ').next().unwrap_or(flag);
    let is_flag =
        |arg: &OsString| arg.to_str().is_some_and(|arg| arg.split('=').next() == Some(flag));
    let place = if line.iter().any(is_flag) { flag.to_owned() } else { variable(flag) };
    // A URL may contain a password before the `@`.
    if SECRETS.contains(&flag) || value.contains("://") {
        return format!("{place}: {cure}");
    }
    format!("{place} '{}': {cure}", value.escape_debug())
}

fn variable(flag: &str) -> String {
    let name = flag.trim_start_matches('-').replace('-', "_").to_uppercase();
    format!("TOLLGATE_{name}")
}

/// Flags with secret values. Errors do not repeat these, because errors end up in logs.
const SECRETS: [&str; 3] = ["--jwt-secret", "--api-keys", "--admin-token"];
