//! Remembers how the gateway reads frequent targets. A replay reads each target at most twice.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use http::header::{HOST, HeaderName};
use http::{HeaderValue, Method, Request, Uri, Version};
use tollgate_proxy::{Fault, Meaning};
use tollgate_replay::log::Record;

/// Targets that occurred at least twice.
///
/// A request without headers has a method, a target and a host, and the gateway reads nothing else.
/// Most logs have many targets that occur only once, such as searches. They replace no known target.
pub(super) struct Targets {
    hasher: RandomState,
    slots: Box<[Slot]>,
}

#[derive(Default)]
struct Slot {
    /// The last unknown target's hash.
    seen: u64,
    known: Option<Box<Target>>,
}

/// A target, and the request that the gateway sees.
pub(super) struct Target {
    hash: u64,
    sent: Box<str>,
    sent_host: Option<Box<str>>,
    method: Method,
    uri: Uri,
    version: Version,
    host: Option<HeaderValue>,
    meaning: Result<Meaning, Fault>,
    /// The route and api, if each client's request meets limits there.
    pub(super) limited: Option<(usize, Option<usize>)>,
}

/// A target's place.
#[derive(Clone, Copy)]
pub(super) struct Place {
    slot: usize,
    hash: u64,
}

const SLOTS: usize = 1 << 12;
/// Longer targets are not remembered, so all targets together take less than 10 MB.
const LONGEST: usize = 512;

impl Targets {
    pub(super) fn new() -> Self {
        let slots = std::iter::repeat_with(Slot::default).take(SLOTS).collect();
        Self { hasher: RandomState::default(), slots }
    }

    /// Returns a target's place. `None` if headers may change its meaning.
    pub(super) fn place(&self, record: &Record<'_>) -> Option<Place> {
        let Record { method, target, host, headers, .. } = record;
        let is_short = method.len() + target.len() + host.map_or(0, str::len) <= LONGEST;
        (headers.is_empty() && is_short).then(|| {
            let hash = self.hasher.hash_one((method, target, host));
            #[expect(clippy::cast_possible_truncation, reason = "only some bits count")]
            let slot = hash as usize % SLOTS;
            Place { slot, hash }
        })
    }

    /// Returns the target at this place, if it is this record's.
    pub(super) fn get(&self, place: Place, record: &Record<'_>) -> Option<&Target> {
        let known = self.slots[place.slot].known.as_deref()?;
        known.is(place, record).then_some(known)
    }

    /// Remembers the limits that a known target meets.
    pub(super) fn set_limited(
        &mut self,
        place: Place,
        record: &Record<'_>,
        limited: (usize, Option<usize>),
    ) {
        let known = self.slots[place.slot].known.as_deref_mut();
        if let Some(known) = known.filter(|known| known.is(place, record)) {
            known.limited = Some(limited);
        }
    }

    /// Notes how the gateway has read a target. A target is known after its second note.
    pub(super) fn note(
        &mut self,
        place: Place,
        record: &Record<'_>,
        request: &Request<()>,
        meaning: &Result<Meaning, Fault>,
    ) {
        let slot = &mut self.slots[place.slot];
        if slot.seen != place.hash {
            slot.seen = place.hash;
            return;
        }
        slot.known = Some(Box::new(Target {
            hash: place.hash,
            sent: record.target.into(),
            sent_host: record.host.map(Into::into),
            method: request.method().clone(),
            uri: request.uri().clone(),
            version: request.version(),
            host: request.headers().get(HOST).cloned(),
            meaning: meaning.clone(),
            limited: None,
        }));
    }
}

impl Target {
    fn is(&self, place: Place, record: &Record<'_>) -> bool {
        self.hash == place.hash
            && self.method.as_str() == record.method
            && *self.sent == *record.target
            && self.sent_host.as_deref() == record.host
    }

    /// Brings a request without headers into the form that the gateway sees.
    pub(super) fn describe(&self, request: &mut Request<()>) -> Result<Meaning, Fault> {
        request.method_mut().clone_from(&self.method);
        request.uri_mut().clone_from(&self.uri);
        *request.version_mut() = self.version;
        if let Some(host) = &self.host {
            request.headers_mut().insert(HOST, host.clone());
        }
        self.meaning.clone()
    }
}

/// Sets a request's method and headers.
pub(super) fn describe(request: &mut Request<()>, record: &Record<'_>) {
    *request.method_mut() = Method::from_bytes(record.method.as_bytes()).unwrap_or_default();
    for (name, value) in &record.headers {
        let name = HeaderName::from_bytes(name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(value)) {
            request.headers_mut().append(name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use tollgate::store::Timestamp;
    use tollgate_config::{Source, read};
    use tollgate_gateway::serve::Read;
    use tollgate_replay::{Bounds, Fleet};

    use super::*;
    use crate::replay::Recorded;

    fn record<'a>(method: &'a str, target: &'a str, host: Option<&'a str>) -> Record<'a> {
        Record {
            file: "",
            line: 1,
            at: Timestamp::EPOCH,
            duration: None,
            address: None,
            method,
            target,
            host,
            status: 200,
            bytes: 0,
            user: None,
            tier: None,
            tokens: None,
            headers: Vec::new(),
        }
    }

    #[test]
    fn known_targets_have_the_same_meaning() {
        let text =
            "rateLimiter:\n  target: http://localhost\n  client: {limit: 1, windowSeconds: 60}\n";
        let plan = read(&Source::new("limits", text), &|_| None).plan.unwrap();
        let mut recorded = Recorded::in_fleet(plan, &Fleet::default(), Bounds::default()).unwrap();
        let targets = [
            "/",
            "/a/../b?q=1",
            "/%2e%2e/a",
            "//a",
            "*",
            "http://other.example/a",
            "a b",
            "/%zz",
            "",
        ];
        for method in ["GET", "OPTIONS", "TRACE", "get", "no method"] {
            for target in targets {
                for host in [None, Some("a.example"), Some("a b")] {
                    let record = record(method, target, host);
                    let mut read = || {
                        let Read { client, meaning } = recorded.read(&record);
                        format!("{:?} {client:?} {meaning:?}", recorded.request)
                    };
                    let first = read();
                    for _ in 0..3 {
                        assert_eq!(read(), first, "{method} {target} {host:?}");
                    }
                }
            }
        }
    }

    /// Routes by host and path, apis, and preflights.
    const ROUTES: &str = "rateLimiter:
  target: http://localhost
  client: {limit: 6, windowSeconds: 60}
  preflights: 2
  apis:
    - {identifier: login, path: /login, method: POST, limit: 2, windowSeconds: 60}
    - {identifier: items, path: /items/*, limit: 4, windowSeconds: 60}
  exempt: [/free]
  routes:
    - name: api
      host: api.example
      path: /v1/*
      target: http://api
      client: {limit: 3, windowSeconds: 60}
    - name: admin
      path: /admin/*
      target: http://admin
      apis:
        - {identifier: export, path: /admin/export, limit: 1, windowSeconds: 60}
";

    #[test]
    fn known_targets_have_the_same_decisions() {
        have_the_same_decisions(ROUTES);
        have_the_same_decisions(&ROUTES.replace("preflights: 2", "preflights: charged"));
    }

    fn have_the_same_decisions(limits: &str) {
        let recorded = || {
            let plan = read(&Source::new("limits", limits), &|_| None).plan.unwrap();
            Recorded::in_fleet(plan, &Fleet::default(), Bounds::default()).unwrap()
        };
        let (mut with, mut without) = (recorded(), recorded());
        let decision = |recorded: &mut Recorded, record: &Record<'_>| {
            let see = |decided: crate::replay::Decided<'_>| {
                let crate::replay::Decided { answer, refused, limits, charges, .. } = decided;
                let of = |applied| (limits.policy(applied).name().to_owned(), applied.decision);
                (answer, refused, charges.iter().map(of).collect::<Vec<_>>())
            };
            recorded.decide_on(record, 0, see).unwrap()
        };
        let preflight = [("origin", "http://a"), ("access-control-request-method", "GET")];
        let targets = ["/", "/login", "/items/1", "/free", "/v1/a", "/admin/export", "/%zz"];
        let (mut second, mut policies) = (0, std::collections::BTreeSet::new());
        for _ in 0..4 {
            for method in ["GET", "POST", "OPTIONS"] {
                for target in targets {
                    for host in [None, Some("api.example"), Some("other.example")] {
                        for headers in [&preflight[..0], &preflight] {
                            second += 1;
                            let mut record = record(method, target, host);
                            record.at = Timestamp::from_micros(second * 1_000_000);
                            record.address = Some([203, 0, 113, 1].into());
                            record.headers = headers.to_vec();
                            without.targets = Targets::new();
                            let expected = decision(&mut without, &record);
                            let got = decision(&mut with, &record);
                            assert_eq!(got, expected, "{method} {target} {host:?} {headers:?}");
                            policies.extend(got.2.into_iter().map(|(name, _)| name));
                        }
                    }
                }
            }
        }
        let all = ["api/client", "client", "export", "items", "login"];
        assert_eq!(policies.iter().map(String::as_str).collect::<Vec<_>>(), all);
    }

    #[test]
    fn long_methods_are_not_remembered() {
        let method = "A".repeat(LONGEST);
        assert!(Targets::new().place(&record(&method, "/", None)).is_none());
    }

    #[test]
    fn limits_belong_to_their_target() {
        let mut targets = Targets::new();
        let (request, meaning) = (Request::new(()), Err(Fault::Host));
        let one = record("GET", "/one", None);
        let place = targets.place(&one).unwrap();
        targets.note(place, &one, &request, &meaning);
        targets.note(place, &one, &request, &meaning);
        targets.set_limited(place, &record("GET", "/two", None), (7, None));
        assert_eq!(targets.get(place, &one).unwrap().limited, None);
        targets.set_limited(place, &one, (7, None));
        assert_eq!(targets.get(place, &one).unwrap().limited, Some((7, None)));
    }

    #[test]
    fn targets_are_known_from_their_second_time_on() {
        let mut targets = Targets::new();
        let (request, meaning) = (Request::new(()), Err(Fault::Host));
        let one = record("GET", "/one", None);
        let place = targets.place(&one).unwrap();
        targets.note(place, &one, &request, &meaning);
        assert!(targets.get(place, &one).is_none());
        targets.note(place, &one, &request, &meaning);
        assert!(targets.get(place, &one).is_some());
        // Another method, target or host in the same place is another target.
        for other in [
            record("PUT", "/one", None),
            record("GET", "/two", None),
            record("GET", "/one", Some("host")),
        ] {
            assert!(targets.get(place, &other).is_none());
        }
        let headers = vec![("host", "other")];
        assert!(targets.place(&Record { headers, ..one }).is_none());
    }
}
