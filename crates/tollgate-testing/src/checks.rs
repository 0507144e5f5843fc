//! Finds tests without a result: they expect nothing, or their requests reach no handler.

use tollgate_replay::scenario::{Expected, Failed, Outcome, Test};

use crate::gateway::{GATEWAY, gateway_field};

/// # Errors
/// The test cannot show anything, or does not apply to a service.
pub(crate) fn valid(test: &Test) -> Result<(), String> {
    if test.requests.is_empty() {
        return Err("it has no requests, so it shows nothing".to_owned());
    }
    if test.expect.is_empty() && test.requests.iter().all(|it| it.expect.is_empty()) {
        return Err("it expects nothing, so it shows nothing: add `expect`".to_owned());
    }
    for (number, requests) in test.requests.iter().enumerate() {
        let wrong = |what: String| Err(format!("requests[{number}]: {what}"));
        if let Some(field) = gateway_field(requests) {
            return wrong(format!("`{field}` {GATEWAY}"));
        }
        if requests.sender.count == Some(0) || requests.sender.clients == 0 {
            return wrong("`count` and `clients` must be at least 1".to_owned());
        }
    }
    Ok(())
}

/// Returns failures for expectations about requests that reached no handler.
pub(crate) fn unreached(test: &Test, outcomes: &[Outcome]) -> Vec<Failed> {
    let has_status = |all: &[Expected]| all.iter().any(|it| matches!(it, Expected::Status(_)));
    let failed = |about: String, outcomes: &mut dyn Iterator<Item = &Outcome>| {
        let mut status = None;
        for outcome in outcomes {
            // A limit sends 503 if the store fails.
            let is_limit = outcome.status == 503 && !outcome.is_allowed;
            if is_limit || !matches!(outcome.status, 404 | 405 | 500..) {
                return None;
            }
            status.get_or_insert(outcome.status);
        }
        let cure = match status? {
            404 | 405 => "check the method and the path",
            _ => "check what `prepare` adds, such as the client's address",
        };
        Some(Failed {
            about,
            expected: "a handler's responses".to_owned(),
            got: format!("only {}: {cure}, or expect this status", status?),
            rows: Vec::new(),
            may_be_shorter: false,
        })
    };
    let is_permitted = has_status(&test.expect);
    let senders = (0..).zip(&test.requests).filter_map(|(sender, requests)| {
        let is_meant = !requests.expect.is_empty() && !has_status(&requests.expect);
        let mut of_sender = outcomes.iter().filter(|it| it.arrival.sender == sender);
        (is_meant && !is_permitted)
            .then(|| failed(format!("requests[{sender}]"), &mut of_sender))
            .flatten()
    });
    let mut failures: Vec<_> = senders.collect();
    let any_status = is_permitted || test.requests.iter().any(|it| has_status(&it.expect));
    if failures.is_empty() && !test.expect.is_empty() && !any_status {
        failures.extend(failed("all requests".to_owned(), &mut outcomes.iter()));
    }
    failures
}
