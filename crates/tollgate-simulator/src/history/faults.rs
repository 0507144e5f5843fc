//! Faults, after which a server may admit more than its limits, or differ from what replicas remember.

use std::time::Duration;

use tokio::time::Instant;

use super::{History, PolicyKey};

/// A server lost data, or its clock stepped.
#[derive(Clone, Debug)]
pub(super) struct Break {
    /// How many more quotas servers may admit.
    pub(super) quotas: u64,
    pub(super) since: Instant,
    /// Later than `since` if replicas reach an old master until this instant, or a slot moved.
    pub(super) until: Instant,
    /// The key, if only one is concerned.
    pub(super) label: Option<String>,
}

impl History {
    /// The server's data or clock may differ from what replicas remember.
    pub(crate) fn disturb(&mut self) {
        self.disturbed = Some(Instant::now());
        self.is_uneven = true;
    }

    /// All machines except the servers' are suspended.
    pub(crate) fn sleep(&mut self, lasts: Duration) {
        self.disturb();
        // A failover's timer stops, too.
        let now = self.now();
        let lasting = self.breaks.iter_mut().filter(|it| it.until > now);
        lasting.for_each(|it| it.until += lasts);
        self.slept += lasts;
    }

    /// The time that has passed for servers.
    pub(crate) fn now(&self) -> Instant {
        Instant::now() + self.slept
    }

    /// A server lost data, or its clock stepped. It may admit this many more quotas.
    pub(crate) fn break_off(&mut self, quotas: u64) {
        self.disturb();
        let (since, until) = (self.now(), self.now());
        self.breaks.push(Break { quotas, since, until, label: None });
    }

    /// For this long, some replicas reach the old master instead of the new one.
    pub(crate) fn split(&mut self, lasts: Duration) {
        self.slew(true);
        let (since, until) = (self.now(), self.now() + lasts);
        self.breaks.push(Break { quotas: 1, since, until, label: None });
    }

    /// A key has moved to a server with another clock, at some time since this instant.
    pub(crate) fn break_key(&mut self, label: &str, since: Instant) {
        self.disturb();
        let (until, label) = (self.now(), Some(label.to_owned()));
        self.breaks.push(Break { quotas: 1, since, until, label });
    }

    /// Returns the breaks that affect a key.
    pub(super) fn breaks<'a>(
        &'a self,
        policy_key: &PolicyKey,
    ) -> impl Iterator<Item = &'a Break> + use<'a> {
        let label = policy_key.1.clone();
        self.breaks.iter().filter(move |it| it.label.as_ref().is_none_or(|other| *other == label))
    }

    /// A fault that changes clock rates, or splits replicas between servers, starts or stops.
    pub(crate) fn slew(&mut self, starts: bool) {
        self.disturb();
        self.slews = if starts { self.slews + 1 } else { self.slews - 1 };
    }

    /// A server's clock starts or stops to run slower than the replicas' clocks.
    pub(crate) fn lag(&mut self, server: usize) {
        *self.lags.entry(server).or_default() += 1;
    }

    /// Returns how often this has happened.
    pub(super) fn lags(&self, server: usize) -> usize {
        self.lags.get(&server).copied().unwrap_or_default()
    }

    pub(crate) const fn is_slewed(&self) -> bool {
        self.slews > 0
    }

    /// Whether servers still have all their writes.
    pub(crate) const fn is_whole(&self) -> bool {
        self.breaks.is_empty()
    }
}
