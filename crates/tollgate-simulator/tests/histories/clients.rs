//! What clients know, and what the replay has not explained yet.

use super::*;

/// What clients know, and the replay has not explained yet.
pub(super) struct Clients {
    /// Requests that Redis decided, by time.
    pub(super) decided: BTreeMap<u64, Vec<Decided>>,
    /// The number of requests that may have been decided, by their charges.
    pub(super) maybe_decided: BTreeMap<String, u64>,
    /// Requests that the deny cache denied, by time.
    pub(super) remembered: BTreeMap<u64, Vec<(Charges, Verdict)>>,
    pub(super) settled: BTreeMap<u128, Vec<Settlement>>,
    pub(super) maybe_settled: BTreeMap<u128, u64>,
    pub(super) reset: BTreeMap<(String, Vec<u8>), (u64, u64)>,
    /// Units that replicas had leased and have not spent.
    pub(super) leased: i128,
}

impl Clients {
    pub(super) fn new(record: Record) -> Self {
        let mut clients = Self {
            decided: BTreeMap::new(),
            maybe_decided: BTreeMap::new(),
            remembered: BTreeMap::new(),
            settled: BTreeMap::new(),
            maybe_settled: BTreeMap::new(),
            reset: BTreeMap::new(),
            leased: 0,
        };
        for (charges, answer) in record.decided {
            match answer {
                Answer::Known(verdict) => clients.known(charges, verdict),
                Answer::MaybeDone => {
                    let text =
                        show(charges.iter().map(|(policy, key, cost)| (policy.name(), key, *cost)));
                    *clients.maybe_decided.entry(text).or_default() += 1;
                }
                Answer::NotDone => {}
            }
        }
        for (id, answer) in record.settled {
            match answer {
                Answer::Known(settlement) => {
                    clients.settled.entry(id.0).or_default().push(settlement);
                }
                Answer::MaybeDone => *clients.maybe_settled.entry(id.0).or_default() += 1,
                Answer::NotDone => {}
            }
        }
        for ((policy, key), answer) in record.reset {
            let key = key.as_bytes().to_vec();
            let (known, maybe) = clients.reset.entry((policy, key)).or_default();
            match answer {
                Answer::Known(()) => *known += 1,
                Answer::MaybeDone => *maybe += 1,
                Answer::NotDone => {}
            }
        }
        clients
    }

    pub(super) fn known(&mut self, charges: Charges, verdict: Verdict) {
        let at = verdict.decided_at().as_micros();
        match verdict.source() {
            Source::Store => {
                let decisions = charges.into_iter().zip(verdict.decisions());
                let charges = decisions.map(|((policy, key, cost), decision)| {
                    (policy.name().to_owned(), key, cost, *decision)
                });
                let is_admitted = verdict.is_admitted();
                let decided = Decided { is_admitted, charges: charges.collect() };
                self.decided.entry(at).or_default().push(decided);
            }
            Source::Cache => self.remembered.entry(at).or_default().push((charges, verdict)),
            Source::Lease => {
                self.leased -=
                    charges.iter().map(|(_, _, cost)| i128::from(cost.get())).sum::<i128>();
            }
            Source::Local => panic!("there is no local store"),
        }
    }

    /// Compares remembered denials up to `until` with the server's decisions at the same time.
    pub(super) fn compare_remembered(&mut self, replay: &mut Replay, until: Timestamp) {
        let later = self.remembered.split_off(&until.as_micros());
        for (at, denied) in std::mem::replace(&mut self.remembered, later) {
            let at = Timestamp::from_micros(at);
            for (charges, verdict) in denied {
                let pairs = charges.iter().zip(verdict.decisions());
                // The other process may have settled or reset such a policy.
                let pairs = pairs.filter(|((policy, ..), it)| it.denies() && !is_settled(policy));
                for ((policy, key, cost), decision) in pairs {
                    let real = replay.ask(policy, key, *cost, at);
                    let passes = |it: &Decision| match it.outcome {
                        Outcome::Deny { retry_after } => Some(at + retry_after),
                        _ => None,
                    };
                    // Numbers for leased policies can be old.
                    let is_same = passes(&real) == passes(decision) || policy.lease().is_some();
                    assert!(real.denies() && is_same, "at {at:?}: {decision:?}, but {real:?}");
                }
            }
        }
    }

    /// Checks that earlier calls explain what clients know up to this time.
    pub(super) fn expect_none_before(&self, at: Timestamp) {
        let earlier = self.decided.first_key_value().filter(|(first, _)| **first < at.as_micros());
        assert!(earlier.is_none(), "no call up to {at:?} decided {earlier:#?}");
    }

    pub(super) fn compare(
        &mut self,
        at: Timestamp,
        replayed: &Replayed,
        real: &Value,
    ) -> Result<(), String> {
        // The store checks each node with a random key, which may belong to another node.
        let mut decided = replayed.decided.iter().flat_map(|decided| &decided.charges);
        if decided.next().is_some_and(|(policy, ..)| policy == "self-check") {
            return Ok(());
        }
        let Value::Text(real) = real else { return Err(format!("the reply is {real:?}")) };
        // For simple calls, Redis returns states instead of rows, and the client decides.
        let has_rows = real.get(15) == Some(&ROWS) || !replayed.is_timely;
        if has_rows && *real != replayed.reply {
            return Err(format!("Redis replied {real:?}"));
        }
        self.leased += replayed.leased.iter().map(|(_, _, units)| i128::from(*units)).sum::<i128>();
        // Another node may have decided at the same time.
        let told = self.decided.entry(at.as_micros()).or_default();
        for decided in &replayed.decided {
            if let Some(index) = told.iter().position(|it| it == decided) {
                told.swap_remove(index);
                continue;
            }
            let charges = decided.charges.iter();
            let text = show(charges.map(|(policy, key, cost, _)| (policy.as_str(), key, *cost)));
            // The stores also test their rights, and the test waits for a recovery by peeking.
            let is_own = |policy: &str, cost: Cost| policy == "self-check" || cost == Cost::ZERO;
            let is_own = decided.charges.iter().any(|(policy, _, cost, _)| is_own(policy, *cost));
            if !is_own && !take(self.maybe_decided.get_mut(&text)) {
                return Err(format!(
                    "no client may have sent {decided:#?}; clients know {told:#?}"
                ));
            }
        }
        if told.is_empty() {
            self.decided.remove(&at.as_micros());
        }
        for (id, settlement) in &replayed.settled {
            let known = self.settled.entry(id.0).or_default();
            if let Some(index) = known.iter().position(|it| it == settlement) {
                known.remove(index);
            } else if !take(self.maybe_settled.get_mut(&id.0)) {
                return Err(format!("no client knows of {settlement:?} for {id:?}: {known:?}"));
            }
        }
        for (policy, key) in replayed.reset.iter().filter(|(policy, _)| policy != "self-check") {
            let policy_key = (policy.clone(), key.as_bytes().to_vec());
            let (known, maybe) = self.reset.entry(policy_key).or_default();
            if !take(Some(&mut *known)) && !take(Some(maybe)) {
                return Err(format!("no client has reset {policy} for {key:?}"));
            }
        }
        Ok(())
    }

    /// Checks that every answer came from a call.
    pub(super) fn finish(self) {
        self.expect_none_before(Timestamp::MAX);
        let settled: Vec<_> = self.settled.iter().filter(|(_, known)| !known.is_empty()).collect();
        assert!(settled.is_empty(), "no call settled {settled:?}");
        let reset: Vec<_> = self.reset.iter().filter(|(_, (known, _))| *known > 0).collect();
        assert!(reset.is_empty(), "no call reset {reset:?}");
        assert!(self.leased >= 0, "{} units were spent without a block", -self.leased);
    }
}

/// Decrements a count. Returns `false` if it is missing or zero.
pub(super) fn take(count: Option<&mut u64>) -> bool {
    let Some(count) = count.filter(|count| **count > 0) else { return false };
    *count -= 1;
    true
}

pub(super) fn show<'a>(charges: impl Iterator<Item = (&'a str, &'a Key, Cost)>) -> String {
    let charges = charges.map(|(policy, key, cost)| {
        format!("{policy} {} {}", String::from_utf8_lossy(&key.as_bytes()), cost.get())
    });
    charges.collect::<Vec<_>>().join(", ")
}

/// How long a denial is remembered, also while NTP slews a clock.
pub(super) const REMEMBERED: Micros = Micros::new(1_200_000);
