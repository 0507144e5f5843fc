//! Tests from the YAML file of `tollgate test`.

use std::path::Path;

use tollgate_config::plan::{self, Expect};
use tollgate_config::{Source, read_tests};
use tollgate_core::Micros;
use tollgate_replay::scenario::{Expected, Pace, Requests, Sender, Test};

use crate::gateway::{GATEWAY, gateway_field};

/// Why a file's tests cannot run with a service.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ReadError(String);

/// Reads tests from a YAML file in the format of `tollgate test`, which has a
/// [reference](https://github.com/tollgate-rs/tollgate/blob/main/docs/configuration-reference.md#the-test-file).
///
/// # Errors
/// The file cannot be read, is invalid, contains no tests, or has a key that only applies to the
/// gateway: `limits`, `replicas`, `replica`, `faults`, `worst`, `user`, `tier`, `answer` or `bytes`.
/// Or a test has no requests or no `expect`.
pub fn read(path: impl AsRef<Path>) -> Result<Vec<Test>, ReadError> {
    let path = path.as_ref();
    let source = Source::read(path).map_err(|error| ReadError(error.to_string()))?;
    let (file, report) = read_tests(&source);
    // A test has no place for warnings.
    let file = file.filter(|_| report.problems().is_empty());
    let file = file.ok_or_else(|| ReadError(report.to_string()))?;
    let in_file = |what: String| ReadError(format!("{}: {what}", path.display()));
    if file.limits.is_some() {
        return Err(in_file(format!("`limits` {GATEWAY}")));
    }
    if file.replicas > 1 {
        return Err(in_file(format!("`replicas` {GATEWAY}")));
    }
    let read = |test: &plan::Test| {
        let in_test = |what: String| in_file(format!("test \"{}\": {what}", test.name));
        if test.requests.is_none() && test.worst.is_none() {
            return Err(in_test("it has no `requests`, so it shows nothing".to_owned()));
        }
        let read = test_of(test, file.seed).map_err(in_test)?;
        match of_gateway(test).or_else(|| read.requests.iter().find_map(gateway_field)) {
            Some(key) => Err(in_test(format!("`{key}` {GATEWAY}"))),
            None => Ok(read),
        }
    };
    file.tests.iter().map(read).collect()
}

/// Returns a key that a service's test cannot have.
fn of_gateway(test: &plan::Test) -> Option<&'static str> {
    let keys = [
        ("replicas", test.replicas.is_some_and(|replicas| replicas > 1)),
        ("faults", test.faults.is_some()),
        ("worst", test.worst.is_some()),
    ];
    keys.into_iter().find(|(_, is_set)| *is_set).map(|(key, _)| key)
}

/// Converts a file's test.
///
/// # Errors
/// The test expects nothing, its requests never end, or a `retryAfter` is not in whole seconds.
#[doc(hidden)]
pub fn test_of(test: &plan::Test, seed: u64) -> Result<Test, String> {
    let described = test.requests.iter().flatten();
    for (number, requests) in described.clone().enumerate() {
        if requests.duration.is_some()
            && requests.every.is_none_or(|every| every.is_zero())
            && requests.rate.is_none()
            && requests.think.is_none()
        {
            return Err(format!(
                "requests[{number}]: with `for` alone, the requests never end: add `every`, `rate` \
                 or `think`, or write `count` instead of `for`"
            ));
        }
    }
    let expects = || described.clone().filter_map(|it| it.expect.as_ref()).chain(&test.expect);
    let read = Test {
        name: test.name.clone(),
        requests: described.clone().map(requests).collect(),
        expect: test.expect.iter().flat_map(expected).collect(),
        seed,
    };
    if read.expect.is_empty() && read.requests.iter().all(|it| it.expect.is_empty()) {
        let has_worst = test.worst.is_some();
        return if has_worst { Ok(read) } else { Err(NOTHING_EXPECTED.to_owned()) };
    }
    let times = expects().filter_map(|expect| expect.retry_after);
    match times.into_iter().find(|time| time.subsec_nanos() > 0) {
        Some(time) => Err(format!(
            "`retryAfter: {time:?}` has a fraction, but the header Retry-After has whole seconds: \
             write `{}s`",
            time.as_secs() + 1
        )),
        None => Ok(read),
    }
}

const NOTHING_EXPECTED: &str = "it has no `expect`, so it shows nothing: write the expected outcome below `requests` or the test";

fn requests(requests: &plan::Requests) -> Requests {
    let plan::Requests { method, path, host, header, client, user, tier, .. } = requests;
    let headers = header.iter().flatten();
    Requests {
        host: host.clone(),
        headers: headers.map(|(name, value)| (name.to_string(), value.clone())).collect(),
        client: *client,
        user: user.clone(),
        tier: tier.clone(),
        replica: requests.replica,
        answer: requests.answer,
        takes: requests.takes.into(),
        bytes: requests.bytes,
        sender: sender(requests),
        expect: requests.expect.iter().flat_map(expected).collect(),
        ..Requests::new(method.as_str(), path.as_str())
    }
}

fn sender(requests: &plan::Requests) -> Sender {
    let plan::Requests { at, clients, count, duration, every, rate, think, .. } = requests;
    let pace = match (rate, think) {
        (Some(mean), _) => Pace::Random((*mean).into()),
        (_, Some(time)) => Pace::Think((*time).into()),
        _ => Pace::Every(every.unwrap_or_default().into()),
    };
    let duration = duration.map(Micros::from);
    Sender { at: (*at).into(), clients: *clients, count: *count, duration, pace }
}

fn expected(expect: &Expect) -> impl Iterator<Item = Expected> {
    let Expect { status, allowed, denied, allowed_per_client, policy, remaining, .. } = expect;
    let Expect { retry_after, max_wait, never, .. } = expect;
    let never = never.iter().flatten().map(|bound| Expected::Never {
        more_than: bound.more_than,
        window: bound.window.into(),
        per_client: bound.per_client,
    });
    let single = [
        status.map(Expected::Status),
        allowed.clone().map(Expected::allowed),
        denied.clone().map(Expected::denied),
        allowed_per_client.clone().map(Expected::allowed_per_client),
        policy.clone().map(Expected::Policy),
        remaining.map(Expected::Remaining),
        retry_after.map(|time| Expected::RetryAfter(time.as_secs())),
        max_wait.map(|time| Expected::MaxWait(time.into())),
    ];
    single.into_iter().flatten().chain(never)
}
