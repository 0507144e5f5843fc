//! `tollgate suggest`: limits that fit an access log, as a file for `check` and `serve`.

mod file;
mod options;

use std::path::{Path, PathBuf};

use tollgate::store::Micros;
use tollgate_config::plan::Plan;
use tollgate_config::{self as config, Source};
use tollgate_replay::suggest::{Bounds, Suggest};

use self::file::{Learned, SECRET, write, write_head, write_replayed};
pub use self::options::SuggestArgs;
use super::recorded::Recorded;
use super::replayed::{ReplayError, read, replay, write_whole};

/// Suggests limits, and replays the log against them.
pub fn run(args: &SuggestArgs) -> Result<String, ReplayError> {
    let learned = learn(args)?;
    let mut yaml = String::new();
    let _ = write(&mut yaml, args, &learned);
    let plan = plan(&yaml)?;
    let is_stdin = |path: &PathBuf| path.as_path() == Path::new("-");
    if args.log.logs.iter().any(is_stdin) {
        yaml.push_str("\n# Not replayed, because stdin cannot be read twice.\n");
    } else {
        let replayed = replay(plan, None, &args.log, 0)?;
        let _ = write_replayed(&mut yaml, &replayed);
    }
    match &args.output {
        None => Ok(yaml),
        Some(path) => {
            write_whole(path, yaml.as_bytes())
                .map_err(|error| ReplayError::Write { path: path.clone(), error })?;
            Ok(format!("tollgate check {0}\ntollgate serve {0}\n", path.display()))
        }
    }
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
fn learn(args: &SuggestArgs) -> Result<Learned, ReplayError> {
    let mut head = String::new();
    let _ = write_head(&mut head, args);
    head.push_str("  client: {limit: 1, windowSeconds: 1}\n");
    let recorded = Recorded::new(plan(&head)?, tollgate_replay::Bounds::default(), None);
    let mut recorded = recorded.map_err(ReplayError::Plan)?;
    let bounds = Bounds { routes: args.routes, ..Bounds::default() };
    let mut suggest = Suggest::new(Micros::from(args.window), &args.pattern, bounds);
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
        suggest.request(record.at, client, path, is_success);
        Ok(())
    })?;
    let suggestion = suggest.suggestion();
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
    })
}
