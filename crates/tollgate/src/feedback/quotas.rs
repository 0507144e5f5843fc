//! The quotas that a service's headers describe.

use std::time::Duration;

use http::HeaderName;

/// The name for quotas to which the service gives none.
pub(super) const DEFAULT: &str = "default";

const MAX_QUOTAS: usize = 16;
const MAX_NAME_LEN: usize = 64;

/// A quota as the service describes it. All numbers are the service's, at the time of the response.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerQuota {
    name: Box<str>,
    limit: Option<u64>,
    remaining: Option<u64>,
    window: Option<Duration>,
    reset: Option<(Duration, HeaderName)>,
    refills: bool,
    /// The service allows more requests even if no units remain.
    is_allowing: bool,
}

impl ServerQuota {
    /// Returns the name, for example `tokens`, or `default` if the service has no name for it.
    pub const fn name(&self) -> &str {
        &self.name
    }

    /// Returns the units per window, or the bucket's capacity.
    pub const fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// Returns the remaining units.
    pub const fn remaining(&self) -> Option<u64> {
        self.remaining
    }

    /// Returns the length of the window.
    pub const fn window(&self) -> Option<Duration> {
        self.window
    }

    /// Returns the time until the quota is available again. If the quota
    /// [refills](Self::refills) continuously, it is the time until it is full.
    pub fn resets_after(&self) -> Option<Duration> {
        self.reset.as_ref().map(|reset| reset.0)
    }

    /// Whether the units come back continuously, instead of all at the reset.
    pub const fn refills(&self) -> bool {
        self.refills
    }

    /// Whether no units remain, so that the service will deny the next request. A quota with a
    /// limit of 0 does not apply to the request, and a soft limit allows further requests.
    pub const fn is_used_up(&self) -> bool {
        matches!(self.remaining, Some(0)) && !matches!(self.limit, Some(0)) && !self.is_allowing
    }

    /// Whether callers should wait for the reset. On a denial, a quota without a remainder counts
    /// as used up.
    pub(super) const fn pauses(&self, is_denial: bool) -> bool {
        if is_denial {
            self.is_used_up() || self.remaining.is_none() && !self.is_allowing
        } else {
            self.is_used_up() && !self.refills
        }
    }

    /// Returns the reset and its header, unless the quota resets immediately.
    pub(super) fn reset(&self) -> Option<(Duration, HeaderName)> {
        self.reset.clone().filter(|reset| !reset.0.is_zero())
    }

    pub(super) fn set_limit(&mut self, limit: Option<u64>) {
        least(&mut self.limit, limit);
    }

    pub(super) fn set_remaining(&mut self, remaining: Option<u64>) {
        least(&mut self.remaining, remaining);
    }

    pub(super) fn set_window(&mut self, window: Option<Duration>) {
        self.window = self.window.max(window.filter(|window| !window.is_zero()));
    }

    pub(super) fn set_reset(&mut self, after: Option<Duration>, header: &HeaderName) {
        if let Some(after) = after
            && self.resets_after().is_none_or(|known| known < after)
        {
            self.reset = Some((after, header.clone()));
        }
    }

    pub(super) const fn set_refills(&mut self) {
        self.refills = true;
    }

    pub(super) const fn set_allowing(&mut self) {
        self.is_allowing = true;
    }

    fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            limit: None,
            remaining: None,
            window: None,
            reset: None,
            refills: false,
            is_allowing: false,
        }
    }

    const fn is_empty(&self) -> bool {
        self.limit.is_none() && self.remaining.is_none() && self.reset.is_none()
    }
}

fn least(known: &mut Option<u64>, other: Option<u64>) {
    *known = match (*known, other) {
        (Some(known), Some(other)) => Some(known.min(other)),
        (known, other) => known.or(other),
    };
}

#[derive(Debug, Default)]
pub(super) struct Quotas(Vec<ServerQuota>);

impl Quotas {
    /// Returns the quota with this name, or adds it. Returns `None` if the name is too long or
    /// there are too many quotas.
    pub(super) fn entry(&mut self, name: &str) -> Option<&mut ServerQuota> {
        let known = self.0.iter().position(|quota| &*quota.name == name);
        let index = known.unwrap_or(self.0.len());
        if known.is_none() {
            if index == MAX_QUOTAS || !(1..=MAX_NAME_LEN).contains(&name.len()) {
                return None;
            }
            self.0.push(ServerQuota::new(name));
        }
        self.0.get_mut(index)
    }

    pub(super) fn get_mut(&mut self, name: &str) -> Option<&mut ServerQuota> {
        self.0.iter_mut().find(|quota| &*quota.name == name)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn into_sorted(mut self) -> Vec<ServerQuota> {
        self.0.retain(|quota| !quota.is_empty());
        self.0.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        self.0
    }
}
