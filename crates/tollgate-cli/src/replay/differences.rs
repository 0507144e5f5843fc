//! Compares two files: the requests and clients on which they differ.

use std::collections::HashMap;

use serde_json::{Value, json};
use tollgate_replay::{Answer, Resolved};

#[derive(Default)]
pub(crate) struct Differences {
    top: usize,
    /// How many requests only the first denies, and only the second.
    pub(crate) only: [u64; 2],
    /// Up to `top` of these requests, in words.
    pub(crate) requests: Vec<String>,
    /// The same for each client.
    clients: HashMap<Box<str>, [u64; 2]>,
    waiting: HashMap<u64, Waiting>,
}

/// A waiting request: each plan's answer so far, its client, and its description.
type Waiting = ([Answer; 2], Box<str>, Box<str>);

/// How many clients are counted separately.
const CLIENTS: usize = 1 << 16;

impl Differences {
    pub(super) fn new(top: usize) -> Self {
        Self { top, ..Self::default() }
    }

    /// Records the answers to a request. `in_words` returns its client and a description.
    pub(super) fn note(
        &mut self,
        number: u64,
        answers: [Answer; 2],
        in_words: impl FnOnce() -> (String, String),
    ) {
        let [one, two] = answers.map(|answer| answer == Answer::Denied);
        let waits = answers.contains(&Answer::Waits);
        if !waits && one == two {
            return;
        }
        let (client, request) = in_words();
        if waits {
            self.waiting.insert(number, (answers, client.into(), request.into()));
        } else {
            self.differ(usize::from(two), client.into(), &request);
        }
    }

    pub(super) fn resolve(&mut self, plan: usize, resolved: impl Iterator<Item = Resolved>) {
        for Resolved { number, answer, .. } in resolved {
            let Some((answers, ..)) = self.waiting.get_mut(&number) else { continue };
            answers[plan] = answer;
            if answers.contains(&Answer::Waits) {
                continue;
            }
            let Some((answers, client, request)) = self.waiting.remove(&number) else { continue };
            let [one, two] = answers.map(|answer| answer == Answer::Denied);
            if one != two {
                self.differ(usize::from(two), client, &request);
            }
        }
    }

    /// Counts a request that only one of the plans denies.
    fn differ(&mut self, denies: usize, client: Box<str>, request: &str) {
        self.only[denies] += 1;
        if self.requests.len() < self.top {
            let which = ["first", "second"][denies];
            self.requests.push(format!("{request}: only the {which} file denies it"));
        }
        if self.clients.len() < CLIENTS || self.clients.contains_key(&client) {
            self.clients.entry(client).or_default()[denies] += 1;
        }
    }

    /// How many clients have requests that only the first file denies.
    pub(super) fn newly_denied(&self) -> u64 {
        self.clients.values().filter(|only| only[0] > 0).count() as u64
    }

    pub(crate) fn clients(&self) -> Vec<(&str, [u64; 2])> {
        let mut clients: Vec<_> =
            self.clients.iter().map(|(name, only)| (&**name, *only)).collect();
        clients.sort_unstable_by_key(|(name, only)| (std::cmp::Reverse(only[0] + only[1]), *name));
        clients.truncate(self.top);
        clients
    }

    pub(super) fn as_json(&self) -> Value {
        let client = |(name, [one, two]): (&str, [u64; 2])| json!({ "client": name, "denied_by_first_only": one, "denied_by_second_only": two });
        json!({
            "denied_by_first_only": self.only[0],
            "denied_by_second_only": self.only[1],
            "clients": self.clients.len(),
            "most": self.clients().into_iter().map(client).collect::<Vec<_>>(),
            "requests": self.requests,
        })
    }
}
