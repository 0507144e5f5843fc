//! Finds scanners and bots, because their requests do not shape limits for other clients.

use std::collections::HashSet;
use std::hash::BuildHasher as _;

use foldhash::quality::RandomState;
use hashbrown::HashMap;
use serde::Serialize;
use tollgate_core::Key;

use super::{Seen, paths};

/// How a client behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum ClientKind {
    /// Neither a scanner nor a bot.
    Ordinary,
    /// Most of its requests name paths that never succeed for any client, with at least
    /// 10 different paths.
    Scanner,
    /// It states that it is a bot, or it requests `/robots.txt`.
    Bot,
}

/// A scanner requests at least this many different paths that do not exist.
const SCANNED_PATHS: usize = 10;

/// The path that only bots request.
pub(super) const ROBOTS: &str = "/robots.txt";

/// The kinds of all clients in the sample.
#[derive(Clone, Debug, Default)]
pub struct Kinds {
    /// A strong hash. With a faster hash, similar client names might have equal low bits.
    hasher: RandomState,
    /// A client is in the sample if its hash has at least this many trailing zeros.
    halvings: u32,
    /// Clients that are not ordinary.
    others: HashMap<u64, ClientKind, foldhash::fast::RandomState>,
}

impl Kinds {
    /// Returns a client's hash if the client is in the sample.
    pub(super) fn hash(&self, client: &Key) -> Option<u64> {
        let hash = self.hasher.hash_one(client);
        self.is_kept(hash).then_some(hash)
    }

    pub(super) const fn is_kept(&self, hash: u64) -> bool {
        hash.trailing_zeros() >= self.halvings
    }

    /// Drops half of the clients. Returns false if no further half can be dropped.
    pub(super) fn halve(&mut self) -> bool {
        let can_halve = self.halvings < 32;
        self.halvings += u32::from(can_halve);
        can_halve
    }

    /// One in this many clients is in the sample.
    pub(super) const fn sample(&self) -> u64 {
        1 << self.halvings
    }

    pub(super) fn add_bot(&mut self, hash: u64) {
        self.others.insert(hash, ClientKind::Bot);
    }

    /// Finds the scanners in requests that are sorted by client. `exists` is true for the numbers of
    /// paths that exist.
    pub(super) fn find_scanners(&mut self, requests: &[Seen], exists: &[bool]) {
        let is_missing = |seen: &&Seen| !exists.get(seen.path as usize).is_some_and(|it| *it);
        for client in requests.chunk_by(|one, other| one.client == other.client) {
            let missing = || client.iter().filter(is_missing).map(|seen| seen.path);
            if missing().count() * 2 <= client.len() {
                continue;
            }
            // Paths without a number are beyond the bound, and therefore many.
            let paths: HashSet<u32> = missing().collect();
            if paths.len() >= SCANNED_PATHS || paths.contains(&paths::NONE) {
                self.others.entry(client[0].client).or_insert(ClientKind::Scanner);
            }
        }
    }

    pub(super) fn of(&self, hash: u64) -> ClientKind {
        self.others.get(&hash).copied().unwrap_or(ClientKind::Ordinary)
    }
}

/// Counts the clients that some limits deny, before and after a time.
#[derive(Debug)]
pub struct Trial<'a> {
    kinds: &'a Kinds,
    /// For each client in the sample, the bits of [`Part`].
    clients: HashMap<u64, u8, foldhash::fast::RandomState>,
}

/// A part of the log. Its bits are `SENT` and `DENIED` in this part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Before [`Suggestion::until`](super::Suggestion::until).
    Before = 0b0011,
    /// From this time.
    After = 0b1100,
    /// The entire log.
    Both = 0b1111,
}

/// Clients of a kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeniedClients {
    /// Clients that sent requests.
    pub clients: u64,
    /// Clients with a denied request.
    pub denied: u64,
}

impl<'a> Trial<'a> {
    /// Creates a trial without requests.
    #[must_use]
    pub fn new(kinds: &'a Kinds) -> Self {
        Self { kinds, clients: HashMap::default() }
    }

    /// Counts a decided request. Clients outside the sample are ignored.
    pub fn note(&mut self, part: Part, client: &Key, is_denied: bool) {
        if let Some(hash) = self.kinds.hash(client) {
            let outcome = if is_denied { SENT | DENIED } else { SENT };
            *self.clients.entry(hash).or_default() |= part as u8 & outcome;
        }
    }

    /// Counts the clients of a kind in a part.
    #[must_use]
    pub fn count(&self, kind: ClientKind, part: Part) -> DeniedClients {
        let mut count = DeniedClients::default();
        for (_, bits) in self.clients.iter().filter(|(hash, _)| self.kinds.of(**hash) == kind) {
            let has = |bit: u8| u64::from(bits & part as u8 & bit > 0);
            count.clients += has(SENT);
            count.denied += has(DENIED);
        }
        count
    }
}

/// The bits for clients that sent requests.
const SENT: u8 = 0b0101;
/// The bits for clients with a denied request.
const DENIED: u8 = 0b1010;
