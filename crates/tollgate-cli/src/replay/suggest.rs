//! `tollgate suggest`: limits that fit an access log, as a file for `check` and `serve`.

mod comments;
mod file;
mod learned;
mod openapi;
mod options;

use std::path::Path;

use tollgate::store::Micros;
use tollgate_config::plan::Plan;
use tollgate_config::{self as config, Source};
use tollgate_replay::Answer;
use tollgate_replay::log::Record;
use tollgate_replay::suggest::{Bounds, Observed, Part, Suggest, Suggestion, Trial};

use self::file::{SECRET, write_head};
use self::learned::{Judged, Learned};
pub use self::options::SuggestArgs;
use super::recorded::Recorded;
use super::replayed::{ReplayError, at_the_end, in_line, read, write_whole};
use super::{client_limits, write_html};

/// Suggests limits, and judges them by replaying the log.
pub fn run(args: &SuggestArgs) -> Result<String, ReplayError> {
    let is_stdin = args.log.logs.iter().any(|path| path.as_path() == Path::new("-"));
    let learned = learn(args, !is_stdin)?;
    let mut body = String::new();
    let _ = file::write(&mut body, args, &learned.suggestion);
    let judged = (!is_stdin).then(|| judge(args, &body, &learned.suggestion)).transpose()?;
    if let Some(path) = &args.html {
        let judged = judged.as_ref().ok_or(ReplayError::HtmlOfStdin)?;
        write_html(path, &args.log, &judged.report, &client_limits(&plan(&body)?))?;
    }
    let mut yaml = String::new();
    let _ = comments::write(&mut yaml, args, &learned, judged.as_ref());
    yaml = yaml + "\n" + &body;
    match &args.output {
        None => Ok(yaml),
        Some(path) => {
            write_whole(path, yaml.as_bytes())
                .map_err(|error| ReplayError::Write { path: path.clone(), error })?;
            Ok(format!("tollgate check {0}\ntollgate serve {0}\n", path.display()))
        }
    }
}

/// Replays the log with the suggested file.
fn judge<'a>(
    args: &SuggestArgs,
    yaml: &str,
    suggestion: &'a Suggestion,
) -> Result<Judged<'a>, ReplayError> {
    let mut recorded = recorded(yaml)?;
    let mut trial = Trial::new(&suggestion.kinds);
    read(&args.log, 0, |_, record| {
        let is_after = suggestion.until.is_some_and(|until| record.at >= until.0);
        let part = if is_after { Part::After } else { Part::Before };
        let decided = recorded.decide_on(record, 0, |decided| {
            if let (Some(subject), None) = (decided.subject, decided.refused) {
                trial.note(part, &subject.key, decided.answer == Answer::Denied);
            }
        });
        decided.map_err(|error| in_line(record, error))
    })?;
    let report = recorded.finish().map_err(at_the_end)?;
    Ok(Judged { trial, report })
}

fn recorded(yaml: &str) -> Result<Recorded, ReplayError> {
    let recorded = Recorded::new(plan(yaml)?, tollgate_replay::Bounds::default(), None);
    recorded.map_err(ReplayError::Plan)
}

fn plan(yaml: &str) -> Result<Plan, ReplayError> {
    // The log names users, so no token is verified.
    let secret = |name: &str| (name == SECRET).then(|| "0".repeat(32));
    let outcome = config::read(&Source::new("suggested", yaml), &secret);
    let report = outcome.report;
    outcome.plan.ok_or_else(|| {
        ReplayError::Plan(format!("no file fits this log or these options: {report}"))
    })
}

/// Learns from the requests and clients that the suggested file will charge.
fn learn(args: &SuggestArgs, holds_out: bool) -> Result<Learned, ReplayError> {
    let mut head = String::new();
    let _ = write_head(&mut head, args);
    head.push_str("  client: {limit: 1, windowSeconds: 1}\n");
    let mut recorded = recorded(&head)?;
    let mut patterns = args.pattern.clone();
    if let Some(path) = &args.openapi {
        patterns.extend(openapi::read(path)?);
    }
    let bounds = Bounds { routes: args.routes, ..Bounds::default() };
    let mut suggest = Suggest::new(Micros::from(args.window), &patterns, bounds);
    let (mut not_limited, mut with_user, mut with_status) = (0, 0, 0);
    let header = args.header.as_deref().unwrap_or("X-Forwarded-For");
    let mut has_header = args.trusted_proxies.is_empty();
    let records = read(&args.log, 0, |_, record| {
        let Some((subject, path)) = recorded.charged(record) else {
            not_limited += 1;
            return Ok(());
        };
        has_header |= record.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(header));
        with_user += u64::from(record.user.is_some());
        with_status += u64::from(record.status != 0);
        let is_success = matches!(record.status, 0 | 100..400);
        let client = subject.as_ref().map(|subject| &subject.key);
        let (at, is_bot) = (record.at, is_bot(record));
        suggest.request(&Observed { at, client, path, is_success, is_bot });
        Ok(())
    })?;
    let suggestion = suggest.suggestion(holds_out);
    if suggestion.requests == 0 {
        return Err(ReplayError::NoneCharged);
    }
    if suggestion.clients == 0 {
        return Err(ReplayError::NoClient);
    }
    if !has_header {
        return Err(ReplayError::NoHeader { header: header.to_owned() });
    }
    Ok(Learned {
        suggestion,
        formats: records.formats(),
        unreadable: records.unreadable(),
        not_limited,
        not_forwarded: recorded.not_forwarded,
        with_user,
        with_status,
        patterns,
    })
}

/// Whether a logged `User-Agent` names a bot.
fn is_bot(record: &Record<'_>) -> bool {
    record.headers.iter().any(|(name, value)| {
        name.eq_ignore_ascii_case("user-agent") && {
            let value = value.to_ascii_lowercase();
            ["bot", "crawler", "spider"].iter().any(|word| value.contains(word))
        }
    })
}
