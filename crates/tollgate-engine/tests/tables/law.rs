//! Random requests with several keys, against a slow model of the queue.

use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::{Variant, World};

const LIMITS: &str = "shared log 2/17 wait 9000 global, own log 1/31 wait 9000, \
    reports log 1/23 wait 9000 global when r";

#[derive(Clone, Debug)]
enum Event {
    /// A request of this client, perhaps for a report.
    Send(&'static str, bool),
    Leave(prop::sample::Index),
}

/// The model: in each second, it looks at all waiting requests in the order of arrival. A request
/// waits for each key without a unit, and for each key that an earlier request waits for.
#[derive(Default)]
struct Model {
    /// The keys of each request.
    sent: Vec<Vec<String>>,
    waiting: Vec<usize>,
    outcomes: BTreeMap<usize, String>,
    /// For each key, when its units are refilled.
    taken: BTreeMap<String, Vec<u64>>,
}

impl Model {
    fn send(&mut self, client: &str, is_report: bool) {
        let mut keys = vec!["shared".to_owned(), client.to_owned()];
        keys.extend(is_report.then(|| "reports".to_owned()));
        self.waiting.push(self.sent.len());
        self.sent.push(keys);
    }

    fn leave(&mut self, number: usize) {
        self.waiting.retain(|waiting| *waiting != number);
        self.outcomes.entry(number).or_insert_with(|| "gone".to_owned());
    }

    fn proceed(&mut self, now: u64) {
        let mut waits_for = Vec::new();
        for number in self.waiting.clone() {
            let keys = &self.sent[number];
            let lacks = |key: &&String| {
                let units = if *key == "shared" { 2 } else { 1 };
                let taken = self.taken.get(*key).into_iter().flatten();
                taken.filter(|refilled| **refilled > now).count() == units
            };
            let waits: Vec<_> =
                keys.iter().filter(|key| lacks(key) || waits_for.contains(*key)).cloned().collect();
            if waits.is_empty() {
                for key in keys {
                    let window = [("shared", 17), ("reports", 23)].into_iter();
                    let window = window.clone().find(|(name, _)| name == key).map_or(31, |it| it.1);
                    self.taken.entry(key.clone()).or_default().push(now + window);
                }
                self.waiting.retain(|waiting| *waiting != number);
                self.outcomes.insert(number, now.to_string());
            }
            waits_for.extend(waits);
        }
    }
}

fn events() -> impl Strategy<Value = Vec<(u64, Event)>> {
    let client = prop::sample::select(vec!["a", "b", "c"]);
    let event = prop_oneof![
        5 => (client, any::<bool>()).prop_map(|(client, is_report)| Event::Send(client, is_report)),
        1 => any::<prop::sample::Index>().prop_map(Event::Leave),
    ];
    prop::collection::vec((0..6_u64, event), 1..24)
}

/// Of requests that are ready in the same second, the model takes the earliest.
fn variant() -> impl Strategy<Value = Variant> {
    let variants = Variant::ALL.into_iter().filter(|it| *it != Variant::LatestFirst);
    prop::sample::select(Vec::from_iter(variants))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn nobody_overtakes_or_waits_in_vain(events in events(), variant in variant()) {
        let (mut model, mut script, mut now) = (Model::default(), String::new(), 0);
        for (pause, event) in events {
            for _ in 0..pause {
                now += 1;
                model.proceed(now);
            }
            script += &match event {
                Event::Send(client, is_report) => {
                    model.send(client, is_report);
                    format!("{now}: {client}{} ", if is_report { "r" } else { "" })
                }
                Event::Leave(number) if !model.sent.is_empty() => {
                    let number = number.index(model.sent.len());
                    model.leave(number);
                    format!("{now}: -{} ", number + 1)
                }
                Event::Leave(_) => continue,
            };
            model.proceed(now);
        }
        while !model.waiting.is_empty() {
            now += 1;
            model.proceed(now);
        }
        let expected = Vec::from_iter(model.outcomes.into_values()).join(" ");
        prop_assert_eq!(World::new(LIMITS, variant).play(&script), expected, "{}", script);
    }
}
