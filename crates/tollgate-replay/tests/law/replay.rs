//! Requests through a replay.

use tollgate_core::Micros;
use tollgate_engine::{Charges, Limits};
use tollgate_replay::{Answer, Bounds, Replay, Request};

use crate::Decided;
use crate::case::{Case, instant};

impl Case {
    pub(crate) fn replay(&self) -> Vec<Decided> {
        let rules = self.rules();
        let mut replay = Replay::within(Bounds { waiting: self.places, ..Bounds::default() });
        let mut results = Vec::new();
        for (number, (sent, at)) in self.requests.iter().zip(self.arrivals()).enumerate() {
            let (charges, corrections) = self.charges(number, &rules[number]);
            let duration = Micros::new(sent.duration * 1_000);
            let request = Request::new(instant(at), &rules[number], charges);
            let mut request = request.correcting(&corrections).lasting(duration);
            let answer = replay.request(&mut request).unwrap();
            results.push((answer, request.charges));
        }
        let _ = replay.finish().unwrap();
        for resolved in replay.resolved() {
            let number = usize::try_from(resolved.number).unwrap();
            results[number] = (resolved.answer, resolved.charges);
        }
        let results = results.into_iter().zip(rules);
        results.map(|((answer, charges), rules)| decided(answer, &charges, &rules)).collect()
    }
}

fn decided(answer: Answer, charges: &Charges, rules: &Limits) -> Decided {
    let waited = match answer {
        Answer::Allowed { wait } => Some(wait),
        Answer::Denied | Answer::Undecided => None,
        Answer::Waits => panic!("a request still waits"),
    };
    let decisions = charges.iter().map(|it| (rules.policy(it).name().to_owned(), it.decision));
    Decided { waited, at: charges.decided_at(), decisions: decisions.collect() }
}
