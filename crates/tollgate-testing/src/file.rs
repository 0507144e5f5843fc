//! Tests from the YAML file of `tollgate test`.

use std::path::Path;

use tollgate_config::plan::{self, Expect};
use tollgate_config::{Source, read_tests};
use tollgate_core::Micros;
use tollgate_replay::scenario::{Expected, Pace, Requests, Sender, Test};

/// Why a file's tests cannot run with a service.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ReadError(String);

/// Reads tests from a YAML file in the format of `tollgate test`, which has a
/// [reference](https://github.com/tollgate-rs/tollgate/blob/main/docs/configuration-reference.md#the-test-file).
/// `limits` is not necessary, because a service has its own limits.
///
/// # Errors
/// The file cannot be read, is invalid, or has a key that only applies to the gateway: `replicas`,
/// `replica`, `faults`, `worst`, `user`, `tier`, `answer` or `bytes`.
pub fn read(path: impl AsRef<Path>) -> Result<Vec<Test>, ReadError> {
    let path = path.as_ref();
    let source = Source::read(path).map_err(|error| ReadError(error.to_string()))?;
    let (file, report) = read_tests(&source);
    let file = file.ok_or_else(|| ReadError(report.to_string()))?;
    let in_file = |what: String| ReadError(format!("{}: {what}", path.display()));
    if file.replicas > 1 {
        return Err(in_file(format!("`replicas` {GATEWAY}")));
    }
    let test = |test: &plan::Test| match of_gateway(test) {
        Some(key) => Err(in_file(format!("test \"{}\": `{key}` {GATEWAY}", test.name))),
        None => Ok(test_of(test, file.seed)),
    };
    file.tests.iter().map(test).collect()
}

const GATEWAY: &str = "only applies to the gateway's limits, which `tollgate test` tests";

/// Returns a key that a service's test cannot have.
fn of_gateway(test: &plan::Test) -> Option<&'static str> {
    let any = |is: fn(&plan::Requests) -> bool| test.requests.iter().flatten().any(is);
    let keys = [
        ("replicas", test.replicas.is_some_and(|replicas| replicas > 1)),
        ("faults", test.faults.is_some()),
        ("worst", test.worst.is_some()),
        ("replica", any(|requests| requests.replica.is_some())),
        ("user", any(|requests| requests.user.is_some())),
        ("tier", any(|requests| requests.tier.is_some())),
        ("answer", any(|requests| requests.answer != 200)),
        ("bytes", any(|requests| requests.bytes > 0)),
    ];
    keys.into_iter().find(|(_, is_set)| *is_set).map(|(key, _)| key)
}

/// Converts a file's test.
#[must_use]
pub fn test_of(test: &plan::Test, seed: u64) -> Test {
    Test {
        name: test.name.clone(),
        requests: test.requests.iter().flatten().map(requests).collect(),
        expect: test.expect.iter().flat_map(expected).collect(),
        seed,
    }
}

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
    let count = count.unwrap_or(if duration.is_some() { u64::MAX } else { 1 });
    let duration = duration.map(Micros::from);
    Sender { at: (*at).into(), clients: *clients, count, duration, pace }
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
