//! Overrides: operators change a subject's quota, or block it, until an instant.

use std::net::SocketAddr;
use std::time::{Duration, UNIX_EPOCH};

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{ConnectInfo, FromRequestParts, Path, State as Extract};
use axum::response::IntoResponse;
use http::request::Parts;
use http::{Extensions, HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use tollgate::key::Subject;
use tollgate::observe::LayerHandle;
use tollgate::store::{Micros, Override, OverrideChange, OverrideId, Overrides, Timestamp};

use super::answers::{json, seconds};
use super::problem::{Problem, Reply};
use super::state::State;
use super::subjects::matches;

/// The body of `PUT /overrides/{policy}/{subject}`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    limit: Option<u64>,
    window: Option<f64>,
    burst: Option<u64>,
    #[serde(default)]
    block: bool,
    #[serde(rename = "for")]
    lasts: Option<f64>,
    until: Option<String>,
}

/// `GET /overrides`.
#[derive(Debug, Serialize)]
struct List {
    overrides: Vec<OverrideStatus>,
    max: usize,
}

#[derive(Debug, Serialize)]
pub(super) struct OverrideStatus {
    policy: String,
    subject: String,
    blocked: bool,
    limit: Option<u64>,
    window: Option<f64>,
    burst: Option<u64>,
    until: String,
    left: f64,
    id: String,
}

impl OverrideStatus {
    fn new(id: &OverrideId, it: Override, now: Timestamp) -> Self {
        let (limit, window, burst) = match it.change {
            OverrideChange::Block => (None, None, None),
            OverrideChange::Quota { limit, window, burst } => (Some(limit), window, burst),
        };
        Self {
            blocked: it.change == OverrideChange::Block,
            policy: it.policy,
            subject: it.subject,
            limit,
            window: window.map(seconds),
            burst,
            until: instant(it.until),
            left: seconds(it.until.since(now)),
            id: hex(id),
        }
    }
}

/// The longest override. A quota for longer belongs in the configuration.
const LONGEST: Duration = Duration::from_secs(366 * 86_400);

pub(super) async fn list(Extract(state): Extract<State>, headers: HeaderMap) -> Reply {
    state.0.guard.check_token(&headers)?;
    for overrides in distinct(&state.layers()) {
        overrides.refresh().await?;
    }
    json(&List { overrides: current(&state), max: Overrides::MAX })
}

/// Returns all stores' overrides, sorted by end.
pub(super) fn current(state: &State) -> Vec<OverrideStatus> {
    let mut all = Vec::new();
    for overrides in distinct(&state.layers()) {
        let now = overrides.now();
        let list = overrides.list().into_iter();
        all.extend(list.map(|(id, it)| (it.until, OverrideStatus::new(&id, it, now))));
    }
    all.sort_by(|(one, a), (other, b)| one.cmp(other).then_with(|| a.id.cmp(&b.id)));
    all.into_iter().map(|(_, status)| status).collect()
}

pub(super) async fn read(target: Target) -> Reply {
    let Target { policy, places, .. } = &target;
    for Place { overrides, subject } in places {
        if let Some(it) = overrides.find(policy, &subject.key) {
            let id = overrides.id(policy, &subject.key);
            return json(&OverrideStatus::new(&id, it, overrides.now()));
        }
    }
    Err(none())
}

pub(super) async fn set(target: Target, body: Result<Bytes, BytesRejection>) -> Reply {
    let change: Change = serde_json::from_slice(&body?).map_err(|it| wrong(&it.to_string()))?;
    let wanted = change.read()?;
    target.check(wanted)?;
    let Target { state, policy, places, peer, .. } = target;
    let mut answer = None;
    for Place { overrides, subject } in places {
        let now = overrides.now();
        let it = Override {
            policy: policy.clone(),
            subject: state.0.subjects.format(&subject.key, subject.kind),
            change: wanted,
            until: change.end(now)?,
        };
        let until = instant(it.until);
        overrides.set(&subject.key, it.clone()).await?;
        let subject_name = it.subject.clone();
        let status = OverrideStatus::new(&overrides.id(&policy, &subject.key), it, now);
        let (limit, window, burst) = (status.limit, status.window, status.burst);
        match wanted {
            OverrideChange::Block => tracing::info!(
                target: "tollgate", policy, subject = subject_name, until, peer,
                "blocked by an operator",
            ),
            OverrideChange::Quota { .. } => tracing::info!(
                target: "tollgate", policy, subject = subject_name, limit, window, burst, until, peer,
                "overridden by an operator",
            ),
        }
        answer = Some(status);
    }
    answer.map_or_else(|| Err(unsupported()), |status| json(&status))
}

pub(super) async fn remove(target: Target) -> Reply {
    let Target { policy, places, ids, peer, .. } = target;
    let mut removed = false;
    let mut log = |subject: &str| {
        removed = true;
        tracing::info!(target: "tollgate", policy, subject, peer, "override removed by an operator");
    };
    for Place { overrides, subject } in places {
        let it = overrides.find(&policy, &subject.key);
        if overrides.remove(&policy, &subject.key).await? {
            log(&it.map(|it| it.subject).unwrap_or_default());
        }
    }
    for (overrides, id, it) in ids {
        if overrides.remove_id(id).await? {
            log(&it.subject);
        }
    }
    if removed { Ok(StatusCode::NO_CONTENT.into_response()) } else { Err(none()) }
}

impl Change {
    fn read(&self) -> Result<OverrideChange, Problem> {
        let Self { limit, window, burst, block, .. } = *self;
        match (limit, block) {
            (None, true) if window.is_some() || burst.is_some() => {
                Err(wrong("a block has no `window` and no `burst`: remove them"))
            }
            (None, true) => Ok(OverrideChange::Block),
            (Some(0), false) => {
                Err(wrong("`limit` must be at least 1: use `\"block\": true` to allow no request"))
            }
            (Some(limit), false) => {
                let window = match window.map(Duration::try_from_secs_f64) {
                    None => None,
                    Some(Ok(window)) if !window.is_zero() => Some(Micros::from(window)),
                    Some(_) => return Err(wrong("`window` must be a number of seconds above 0")),
                };
                Ok(OverrideChange::Quota { limit, window, burst })
            }
            (None, false) | (Some(_), true) => {
                Err(wrong("write either `limit` or `\"block\": true`"))
            }
        }
    }

    /// Returns the end in the store's time.
    fn end(&self, now: Timestamp) -> Result<Timestamp, Problem> {
        let lasts = match (self.lasts, &self.until) {
            (Some(seconds), None) => match Duration::try_from_secs_f64(seconds) {
                Ok(lasts) if lasts >= Duration::from_millis(1) => lasts,
                _ => return Err(wrong("`for` must be a number of seconds above 0")),
            },
            (None, Some(until)) => {
                let time = humantime::parse_rfc3339(until).map_err(|_| {
                    wrong("`until` must be a time in UTC such as \"2030-01-31T12:00:00Z\"")
                })?;
                let until = Micros::from(time.duration_since(UNIX_EPOCH).unwrap_or_default());
                let left = (Timestamp::EPOCH + until).since(now);
                if left == Micros::ZERO {
                    let now = instant(now);
                    return Err(wrong(&format!("`until` must be in the future: it is {now} now")));
                }
                left.into()
            }
            _ => return Err(wrong("write either `for` in seconds or `until`")),
        };
        if lasts > LONGEST {
            return Err(wrong("an override lasts at most 366 days: change the policy instead"));
        }
        Ok(now + Micros::from(lasts))
    }
}

/// The overrides that a path names.
pub(super) struct Target {
    state: State,
    policy: String,
    /// The stores with such a policy, each once.
    places: Vec<Place>,
    /// All limits with such a policy, by layer and number.
    limits: Vec<(LayerHandle, usize)>,
    /// The overrides with this ID, if the path names it.
    ids: Vec<(Overrides, OverrideId, Override)>,
    peer: String,
}

struct Place {
    overrides: Overrides,
    subject: Subject,
}

/// Requests that name a client need the token.
impl FromRequestParts<State> for Target {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &State) -> Result<Self, Problem> {
        state.0.guard.check_token(&parts.headers)?;
        let Path((policy, subject)) =
            Path::<(String, String)>::from_request_parts(parts, state).await?;
        let mut target = Self {
            state: state.clone(),
            places: Vec::new(),
            limits: Vec::new(),
            ids: Vec::new(),
            peer: peer(&parts.extensions),
            policy,
        };
        if let Some(id) = subject.strip_prefix("id:") {
            target.find_id(id);
            return Ok(target);
        }
        let mut stores = Vec::new();
        for (layer, limit, subject) in matches(state, &target.policy, &subject)? {
            let (identity, overrides) = (layer.store().identity, layer.overrides());
            if let Some(overrides) = overrides
                && !stores.contains(&identity)
            {
                stores.push(identity);
                target.places.push(Place { overrides, subject });
            }
            target.limits.push((layer, limit));
        }
        if target.places.is_empty() { Err(unsupported()) } else { Ok(target) }
    }
}

impl Target {
    fn find_id(&mut self, id: &str) {
        for overrides in distinct(&self.state.layers()) {
            let list = overrides.list().into_iter();
            let found = list.filter(|(it, of)| hex(it) == *id && of.policy == self.policy);
            self.ids.extend(found.map(|(id, it)| (overrides.clone(), id, it)));
        }
    }

    /// Checks that each limit accepts the change, in each tier.
    fn check(&self, change: OverrideChange) -> Result<(), Problem> {
        let refused = |error| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, format!("{error}."));
        let mut is_enforced = false;
        for (layer, number) in &self.limits {
            let limit = layer.limits()[*number];
            is_enforced |= limit.is_enforced();
            let in_tiers = limit.tiers().map(|(_, policy)| policy);
            for policy in std::iter::once(limit.policy()).chain(in_tiers) {
                change.policy(policy).map_err(|error| refused(error.to_string()))?;
            }
        }
        if change == OverrideChange::Block && !is_enforced {
            let policy = &self.policy;
            let why = format!("policy `{policy}` is not enforced, so it cannot block a client");
            return Err(refused(why));
        }
        Ok(())
    }
}

/// The overrides of each store.
fn distinct(layers: &[LayerHandle]) -> Vec<Overrides> {
    let (mut stores, mut all) = (Vec::new(), Vec::new());
    for layer in layers {
        let identity = layer.store().identity;
        if !stores.contains(&identity) {
            stores.push(identity);
            all.extend(layer.overrides());
        }
    }
    all
}

/// The sender's address.
fn peer(extensions: &Extensions) -> String {
    let connected = extensions.get().map(|ConnectInfo(address): &ConnectInfo<SocketAddr>| *address);
    let address = connected.or_else(|| extensions.get().copied());
    address.map_or_else(|| "unknown".to_owned(), |address: SocketAddr| address.to_string())
}

fn wrong(what: &str) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, format!("The override: {what}."))
}

fn none() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "There is no such override. /overrides lists all.")
}

fn unsupported() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "This policy's store has no overrides.")
}

fn instant(at: Timestamp) -> String {
    let time = UNIX_EPOCH + Duration::from_micros(at.as_micros());
    humantime::format_rfc3339_millis(time).to_string()
}

fn hex(id: &OverrideId) -> String {
    use std::fmt::Write as _;
    id.iter().fold(String::new(), |mut hex, byte| {
        // Writing to a string does not fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}
