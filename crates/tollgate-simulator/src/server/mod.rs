//! The simulated server. It decides with the rules of `tollgate-core`, and reads and writes
//! the script's format. The twin tests prove that the script decides the same.

mod clock;
pub(crate) mod cluster;
mod data;
pub(crate) mod replay;
mod reply;
mod request;
mod script;

use std::collections::BTreeMap;

use bytes::Bytes;
use tollgate_core::{
    Charge, Cost, Decision, Key, Micros, OwnedCharge, Policy, ReceiptId, Settlement, Timestamp,
    Verdict,
};
use tollgate_redis::simulation::{Answer, Command, CommandError, Value};

pub(crate) use self::clock::Clock;
use self::cluster::{Member, View};
use self::data::Data;
use self::reply::Reply;
use self::request::{Call, Request};
use crate::reached::{Reached, SCRIPT};

/// A process counts for at least this long after its last heartbeat.
const COUNTED: Micros = Micros::new(5_000_000);

#[derive(Debug)]
pub(crate) struct Server {
    number: usize,
    pub(crate) member: Option<Member>,
    pub(crate) clock: Clock,
    data: Data,
    /// The data in a Redis replica or a file, which lags behind.
    copy: Data,
    pub(crate) condition: Condition,
    pub(crate) knows_script: bool,
    pub(crate) is_full: bool,
    pub(crate) is_read_only: bool,
    /// How often the process started. Its connections end with it.
    pub(crate) starts: u64,
    /// The number of commands since this start, by name.
    pub(crate) commands: BTreeMap<&'static str, u64>,
    pub(crate) reached: Reached,
    /// The decided requests, in a replay.
    decided: Option<Vec<(Vec<OwnedCharge>, Verdict)>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    Works,
    /// The process is stopped. Its input waits until it continues.
    Paused,
    Down,
}

/// The data with which a server starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Restart {
    All,
    /// The copy's data, which lacks the latest writes.
    Copy,
    Nothing,
}

/// A change that the server made, under stored names.
#[derive(Debug)]
pub(crate) enum Change {
    Charged {
        policy: String,
        key: Key,
        cost: u64,
    },
    /// A correction, a reset or returned units: a key may have units again.
    Freed {
        policy: String,
        key: Key,
        settled: Option<Settled>,
    },
    Granted {
        policy: String,
        key: Key,
        id: u64,
        units: u64,
        until: Timestamp,
    },
    Returned {
        policy: String,
        key: Key,
        id: u64,
        used: u64,
    },
}

/// A settled receipt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settled {
    pub(crate) id: ReceiptId,
    pub(crate) settlement: Settlement,
    /// The charge's cost, if it was refunded completely.
    pub(crate) refund: Option<u64>,
}

/// The answer to a command, and the changes that it made.
pub(crate) struct Done {
    pub(crate) answer: Answer,
    pub(crate) changes: Vec<Change>,
    /// The server's time when it executed a call.
    pub(crate) at: Option<Timestamp>,
}

impl Server {
    /// Creates a server with its clock set to this number of microseconds. `view` is set in a
    /// Cluster.
    pub(crate) fn new(number: usize, shown: u64, view: Option<View>) -> Self {
        Self {
            number,
            member: view.map(Member::new),
            clock: Clock::new(shown),
            data: Data::default(),
            copy: Data::default(),
            condition: Condition::Works,
            knows_script: false,
            is_full: false,
            is_read_only: false,
            starts: 0,
            commands: BTreeMap::new(),
            reached: Reached::default(),
            decided: None,
        }
    }

    /// Takes over from `master` with the copy of its data.
    pub(crate) fn take_over(&mut self, master: &Self) {
        self.data = master.copy.clone();
        self.copy = master.copy.clone();
        self.start(Restart::All);
        self.is_read_only = false;
    }

    /// Becomes the replica of another master.
    pub(crate) fn demote(&mut self, view: View) {
        self.data = Data::default();
        self.is_read_only = true;
        if self.condition == Condition::Down {
            self.start(Restart::All);
        }
        self.learn(view);
    }

    /// Adopts the Cluster's view, unless its own is newer.
    pub(crate) fn learn(&mut self, view: View) {
        if let Some(member) = self.member.as_mut().filter(|member| member.view.epoch < view.epoch) {
            member.view = view;
        }
    }

    /// Brings the copy up to date.
    pub(crate) fn copy_data(&mut self) {
        self.copy = self.data.clone();
    }

    /// Continues after a pause, unless the server is down meanwhile.
    pub(crate) fn resume(&mut self) {
        if self.condition == Condition::Paused {
            self.condition = Condition::Works;
        }
    }

    pub(crate) fn start(&mut self, restart: Restart) {
        self.data = match restart {
            Restart::All => std::mem::take(&mut self.data),
            Restart::Copy => self.copy.clone(),
            Restart::Nothing => Data::default(),
        };
        self.knows_script = false;
        self.starts += 1;
        self.commands.clear();
        self.condition = Condition::Works;
    }

    /// Whether a key exists.
    pub(crate) fn has(&self, name: &[u8]) -> bool {
        self.data.has(name, self.clock.now())
    }

    /// Decides a request without charging it.
    pub(crate) fn ask(&mut self, policy: &Policy, key: &Key, cost: Cost) -> Decision {
        let charge = [Charge::new(policy, key, cost).dry()];
        let verdict = self.data.reference.decide(&charge, self.clock.now());
        verdict.decisions()[0]
    }

    /// Executes a command. `is_asking` is set after `ASKING`.
    pub(crate) fn execute(&mut self, command: &Command, is_asking: bool) -> Done {
        *self.commands.entry(command.name).or_default() += 1;
        let text = |text: &str| Value::Bytes(Bytes::copy_from_slice(text.as_bytes()));
        let answer = match command.name {
            "EVAL" | "EVALSHA" => return self.script(command, is_asking),
            "TIME" => {
                let now = self.clock.read().as_micros();
                let parts = [now / 1_000_000, now % 1_000_000];
                Value::List(parts.map(|part| text(&part.to_string())).to_vec())
            }
            // From version 7 on, a Cluster also accepts calls with keys of several slots.
            "INFO" if self.member.is_some() => text("redis_version:6.2.0\r\ncluster_enabled:1\r\n"),
            "INFO" => text("redis_version:7.4.0\r\ncluster_enabled:0\r\n"),
            "CLUSTER" => match &self.member {
                Some(member) => member.answer(&command.arguments[0]),
                None => Value::Null,
            },
            "CONFIG" => Value::List(vec![text("maxmemory-policy"), text("noeviction")]),
            _ => Value::Null,
        };
        Done { answer: Ok(answer), changes: Vec::new(), at: None }
    }

    fn script(&mut self, command: &Command, is_asking: bool) -> Done {
        let refuse = |text: &str| Done {
            answer: Err(CommandError::Server(text.to_owned())),
            changes: Vec::new(),
            at: None,
        };
        if !is_call(command) {
            let member = self.member.as_ref();
            let refusal = member
                .and_then(|it| it.refusal(self.number, &command.arguments[2..3], false, |_| true));
            return match refusal {
                Some(refusal) => refuse(&refusal),
                None => self.count(&command.arguments[3]),
            };
        }
        if command.name == "EVAL" {
            self.knows_script = true;
        } else if !self.knows_script {
            return refuse("NOSCRIPT No matching script. Please use EVAL.");
        }
        let count = std::str::from_utf8(&command.arguments[1]).ok().and_then(|it| it.parse().ok());
        let (keys, arguments) = command.arguments[2..].split_at(count.expect("a number of keys"));
        let call = Call::read(keys, &arguments[0], &arguments[1], &arguments[2]);
        let now = self.clock.read();
        if let Some(member) = &self.member {
            let exists = |key: &[u8]| self.data.has(key, now);
            if let Some(refusal) = member.refusal(self.number, keys, is_asking, exists) {
                return refuse(&refusal);
            }
        }
        if self.is_read_only {
            return refuse("READONLY You can't write against a read only replica.");
        }
        if call.deadline.is_some_and(|deadline| now > deadline) {
            self.reached.enter(SCRIPT, "deadline has passed");
            let reply = Reply::late(call.nonce, now).into_bytes();
            let answer = Ok(Value::Bytes(Bytes::from(reply)));
            return Done { answer, changes: Vec::new(), at: None };
        }
        self.reached.enter(SCRIPT, if call.is_plain { "plain path" } else { "general path" });
        let mut reply = Reply::rows(call.nonce, now);
        let mut changes = Vec::new();
        // A full server refuses a call's first write, and the call then writes nothing.
        let unwritten = self.is_full.then(|| self.data.clone());
        for (count, request) in &call.requests {
            if *count > 1 {
                self.reached.enter(SCRIPT, "equal requests");
            }
            self.request(*count, request, now, &mut reply, &mut changes);
        }
        if let Some(unwritten) = unwritten {
            self.data = unwritten;
            changes.clear();
            // A reset only deletes, for which there is always memory.
            let is_reset = |request: &&Request| matches!(request, Request::Reset { .. });
            for reset in call.requests.iter().map(|(_, request)| request).filter(is_reset) {
                self.request(1, reset, now, &mut Reply::rows(0, now), &mut changes);
            }
        }
        // The next call has a later time.
        self.data.reference.forget_resets();
        let answer = Ok(Value::Bytes(Bytes::from(reply.into_bytes())));
        Done { answer, changes, at: Some(now) }
    }

    /// Counts the processes like `roster.lua`.
    fn count(&mut self, number: &Bytes) -> Done {
        let now = self.clock.read();
        self.data.roster.insert(number.clone(), now);
        self.data.roster.retain(|_, seen| now.since(*seen) < COUNTED);
        let count = i64::try_from(self.data.roster.len()).expect("a few processes");
        Done { answer: Ok(Value::Number(count)), changes: Vec::new(), at: Some(now) }
    }
}

/// Whether this calls the script that decides, and not the roster's script.
pub(crate) fn is_call(command: &Command) -> bool {
    let is_script = matches!(command.name, "EVAL" | "EVALSHA");
    is_script && !command.arguments.get(2).is_some_and(|key| key.ends_with(b"{roster}"))
}

/// Moves a slot's next key between servers. Returns `false` if there is none.
pub(crate) fn move_key(servers: &mut [Server], slot: u16, from: usize, to: usize) -> bool {
    let Ok([from, to]) = servers.get_disjoint_mut([from, to]) else { return false };
    let Some(name) = from.data.names(slot).into_iter().next() else { return false };
    from.data.hand_over(&name, &mut to.data);
    true
}
