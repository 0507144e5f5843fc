//! Replays calls that a real server executed.

use bytes::Bytes;
use tollgate_core::{Cost, Decision, Key, Policy, ReceiptId, Settlement, Timestamp};
use tollgate_redis::simulation::{Command, Value};

use super::{Change, Server, is_call};

/// A server that repeats a real server's calls, at the same times.
///
/// Keys are the subjects under which the store stores its states.
#[derive(Debug)]
pub struct Replay(Server);

/// A call's effects.
#[derive(Debug, Default)]
pub struct Replayed {
    /// Whether the call was executed before its deadline.
    pub is_timely: bool,
    /// The reply, with a row for each request. A real server may send states instead.
    pub reply: Vec<u8>,
    /// The decided requests, in order.
    pub decided: Vec<Decided>,
    /// The settled receipts, in order.
    pub settled: Vec<(ReceiptId, Settlement)>,
    /// The policies and keys that were reset.
    pub reset: Vec<(String, Key)>,
    /// The policies and keys with leased units.
    pub leased: Vec<(String, Key, u64)>,
}

/// A request that was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decided {
    /// Whether the request was admitted.
    pub is_admitted: bool,
    /// For each charge, the policy's name, the key, the cost and the decision.
    pub charges: Vec<(String, Key, Cost, Decision)>,
}

impl Replay {
    /// Creates a server without data.
    pub fn new() -> Self {
        let mut server = Server::new(0, 0, None);
        server.decided = Some(Vec::new());
        Self(server)
    }

    /// Repeats an `EVAL` or `EVALSHA` command that a server executed at `now`. Returns `None` for
    /// other commands.
    pub fn call(&mut self, command: &[Vec<u8>], now: Timestamp) -> Option<Replayed> {
        let name = ["EVAL", "EVALSHA"];
        let name = name.into_iter().find(|it| command[0].eq_ignore_ascii_case(it.as_bytes()))?;
        let mut arguments: Vec<_> =
            command[1..].iter().map(|it| Bytes::copy_from_slice(it)).collect();
        if *arguments[1] == *b"0" && arguments.len() > CROSS_SLOT {
            // A call over several slots has its keys behind the time.
            let keys = arguments.split_off(CROSS_SLOT);
            arguments.pop();
            arguments[1] = keys.len().to_string().into();
            arguments.splice(2..2, keys);
        }
        let command = Command { name, arguments };
        if !is_call(&command) {
            return None;
        }
        self.0.knows_script = true;
        self.0.clock.set(now);
        let done = self.0.execute(&command, false);
        let mut replayed = Replayed { is_timely: done.at.is_some(), ..Replayed::default() };
        if let Ok(Value::Bytes(reply)) = done.answer {
            replayed.reply = reply.to_vec();
        }
        for (sums, verdict) in self.0.decided.iter_mut().flat_map(std::mem::take) {
            let charges = sums.into_iter().zip(verdict.decisions());
            let charges = charges.map(|(sum, decision)| {
                (sum.policy.name().to_owned(), sum.key, sum.cost, *decision)
            });
            let is_admitted = verdict.is_admitted();
            replayed.decided.push(Decided { is_admitted, charges: charges.collect() });
        }
        for change in done.changes {
            match change {
                Change::Freed { settled: Some(settled), .. } => {
                    replayed.settled.push((settled.id, settled.settlement));
                }
                Change::Freed { policy, key, settled: None } => replayed.reset.push((policy, key)),
                Change::Granted { policy, key, units, .. } => {
                    replayed.leased.push((policy, key, units));
                }
                Change::Charged { .. } | Change::Returned { .. } => {}
            }
        }
        Some(replayed)
    }

    /// Decides a charge at `now`, without charging it.
    pub fn ask(&mut self, policy: &Policy, key: &Key, cost: Cost, now: Timestamp) -> Decision {
        self.0.clock.set(now);
        self.0.ask(policy, key, cost)
    }
}

/// The arguments before the keys, in a call over several slots: the script, no keys, the head, the
/// forms, the requests and the time.
const CROSS_SLOT: usize = 6;

impl Default for Replay {
    fn default() -> Self {
        Self::new()
    }
}
