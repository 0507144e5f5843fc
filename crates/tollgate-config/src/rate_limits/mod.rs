//! Files with rules in the format of envoyproxy/ratelimit.

mod go_yaml;
mod kubernetes;
mod rules;

use std::collections::hash_map::Entry;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use self::rules::{domain, is_rules};
use crate::code;
use crate::files::{self, FileError};
use crate::plan::{RateLimitDomain, RateLimitDomains};
use crate::yaml::parse;
use crate::yaml::problem::{Problem, Problems, Report, Severity};
use crate::yaml::source::Source;

/// Whether a text contains such rules, or Kubernetes objects, and not a gateway configuration.
pub fn is_rate_limits(source: &Source) -> bool {
    let root = parse::parse_first(&source.text, &Problems::default()).flatten();
    root.is_some_and(|root| is_rules(&root) || kubernetes::is_object(&root))
}

/// Reads the rules in one file, or reports all its problems. A file has one domain, or several in
/// ConfigMaps of Kubernetes.
pub fn read_rate_limits(source: &Source) -> (Option<Vec<RateLimitDomain>>, Report) {
    let problems = Rc::new(Problems::default());
    let domains = match kubernetes::rules(&source.text, &problems) {
        Some(texts) => texts.and_then(|texts| texts.iter().map(|it| it.read(&problems)).collect()),
        None => domain(&source.text, &problems).map(|domain| vec![domain]),
    };
    let domains = domains.ok().filter(|_| !problems.has_errors());
    (domains, problems.report(source))
}

/// Reads the rules in several files.
///
/// # Errors
/// A file cannot be read or is invalid, or two files contain the same domain or, if it merges
/// domains, the same descriptor.
pub fn read_rate_limit_files(
    files: &[PathBuf],
    merges_domains: bool,
) -> Result<RateLimitDomains, Vec<FileError>> {
    let (mut read, mut errors) = (Vec::new(), Vec::new());
    for file in files {
        let domains = match read_rate_limit_file(file) {
            Ok(domains) => domains,
            Err(error) => {
                errors.push(error);
                continue;
            }
        };
        for domain in domains {
            errors.extend(conflict(&read, file, &domain, merges_domains));
            read.push((file, domain));
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let mut all = RateLimitDomains::new();
    for (_, domain) in read {
        match all.entry(domain.name.clone()) {
            Entry::Occupied(mut merged) => merged.get_mut().descriptors.extend(domain.descriptors),
            Entry::Vacant(vacant) => drop(vacant.insert(domain)),
        }
    }
    Ok(all)
}

fn read_rate_limit_file(file: &Path) -> Result<Vec<RateLimitDomain>, FileError> {
    let source = Source::new(file.display().to_string(), files::text(file)?);
    let (domains, report) = read_rate_limits(&source);
    domains.ok_or_else(|| first_error(&report, &source, file))
}

/// Like envoyproxy/ratelimit, merges only the lists of a domain, and not descriptors in them.
fn conflict(
    read: &[(&PathBuf, RateLimitDomain)],
    file: &Path,
    domain: &RateLimitDomain,
    merges_domains: bool,
) -> Option<FileError> {
    let name = domain.name.escape_debug();
    let (what, cure) =
        read.iter().filter(|(_, it)| it.name == domain.name).find_map(|(first, it)| {
            let first = first.display();
            if !merges_domains {
                let what = format!("the domain `{name}` is also in {first}");
                return Some((what, "write it into one file, or set `mergeDomains: true`"));
            }
            let twice = domain
                .descriptors
                .iter()
                .find(|new| it.descriptors.iter().any(|old| old.is_like(new)))?;
            let what =
                format!("the descriptor `{twice}` of the domain `{name}` is also in {first}");
            Some((what, "remove one of the two"))
        })?;
    Some(files::wrong(file, code::LISTED_TWICE, what, cure))
}

/// The first error in a rules file, and a command that shows all errors.
fn first_error(report: &Report, source: &Source, file: &Path) -> FileError {
    let mut errors = report.problems().iter().filter(|it| it.severity == Severity::Error);
    let Some(Problem { code, place, what, cure, .. }) = errors.next() else {
        return files::wrong(file, code::INVALID_FILE, "it is not valid", "correct it");
    };
    let (line, _) = place.position(&source.text);
    let mut what = format!("line {line}: {what}");
    let others = errors.count();
    if others > 0 {
        let all = format!("`tollgate check {}` shows all", file.display());
        what = format!("{what} (and {others} more: {all})");
    }
    files::wrong(file, *code, what, cure)
}
