//! Drives requests through the engine, with a store in memory and a clock moved by hand.

mod ending;

use std::task::{Context, Poll, Waker};

use tollgate_core::{
    Cost, Fallback, Key, Micros, Outcome, Override, OverrideChange, Overrides, Receipt, ReceiptId,
    Store, StoreError, StoreExt, Timestamp, Verdict,
};
use tollgate_engine::{
    AppliedLimit, Asking, Charges, Conclusion, Correction, Ending, Limits, OpenCharge, OpenCharges,
    Question, Queue, Refunds, Rejection, Request, Sleeping, Step, SubjectKind,
};
use tollgate_memory::{Clock as _, ManualClock, MemoryStore};

use crate::primary::Primary;
use crate::script::{Event, Rule, Sent, event, rules};

/// What may differ without an effect on the outcomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    Plain,
    /// Of several requests that can continue, the latest does first.
    LatestFirst,
    /// There are shadow limits as well.
    WithShadows,
    /// There is another limit as well, which allows everything.
    TwoLimits,
    /// Each limit occurs twice, with different names.
    TwoOfAKind,
}

impl Variant {
    pub(crate) const ALL: [Self; 5] =
        [Self::Plain, Self::LatestFirst, Self::WithShadows, Self::TwoLimits, Self::TwoOfAKind];

    /// Returns the limits before and after the script's own.
    fn others(self, own: &str) -> [Vec<Rule>; 2] {
        let [before, after] = match self {
            Self::Plain | Self::LatestFirst => ["", ""],
            Self::WithShadows => [
                "seen log 1/3600 global shadow, seen-by failures 1/60 shadow",
                "seen-too queue 1/60^50 shadow closed",
            ],
            Self::TwoLimits => ["roomy log 900/60 global", ""],
            Self::TwoOfAKind => {
                let twins = own.split(", ").map(|rule| rule.replacen(' ', "-twin ", 1));
                return [Vec::new(), twins.flat_map(|twin| rules(&twin)).collect()];
            }
        };
        [rules(before), rules(after)]
    }
}

/// A request on its way.
struct Flight {
    sent: Sent,
    arrived: Timestamp,
    stage: Stage,
    /// What the script expects, once it is known.
    outcome: usize,
}

enum Stage {
    /// The store's reply is on its way to the request.
    Asked(Request, Asking, Result<Verdict, StoreError>),
    Asleep(Request, Sleeping),
    /// Passed, and runs from the first to the second time.
    Runs(Charges, [Timestamp; 2]),
    Over,
}

pub(crate) struct World {
    rules: Vec<Rule>,
    /// The script's own limits, without those of the variant.
    own: std::ops::Range<usize>,
    limits: Limits,
    overrides: Overrides,
    queue: Queue,
    start: Timestamp,
    clock: ManualClock,
    primary: Primary,
    store: Fallback<Primary, MemoryStore<ManualClock>>,
    takes_latest: bool,
    holds: bool,
    is_frozen: bool,
    flights: Vec<Flight>,
    outcomes: Vec<String>,
    receipts: u128,
    calls: usize,
}

impl World {
    pub(crate) fn new(text: &str, variant: Variant) -> Self {
        let ([before, after], own) = (variant.others(text), rules(text));
        let own_range = before.len()..before.len() + own.len();
        let rules: Vec<_> = before.into_iter().chain(own).chain(after).collect();
        // A whole number of hours.
        let start = Timestamp::from_micros(1_080_000_000_000_000);
        let clock = ManualClock::at(start);
        let memory = || MemoryStore::builder().clock(clock.clone()).shards(1).max_keys(64).build();
        let primary = Primary::new(memory());
        let now = clock.clone();
        let overrides = Overrides::in_process(move || now.now());
        Self {
            own: own_range,
            limits: Limits::new(rules.iter().map(|rule| rule.limit.clone())),
            overrides,
            rules,
            queue: Queue::new(),
            start,
            store: primary.clone().or_local(memory()),
            clock,
            primary,
            takes_latest: variant == Variant::LatestFirst,
            holds: false,
            is_frozen: false,
            flights: Vec::new(),
            outcomes: Vec::new(),
            receipts: 0,
            calls: 0,
        }
    }

    /// Returns the outcome of each request and of each `?`, in their order in the script.
    ///
    /// A request that passes has the second at which it starts. All others have a word, the second
    /// if they had to wait, and the seconds after which each limit that denies them may allow them.
    pub(crate) fn play(mut self, script: &str) -> String {
        // Limits without overrides skip a step, and most scripts have none.
        if script.contains('^') {
            let overrides = Some(self.overrides.clone());
            self.limits = self.limits.overridden_by(overrides, |_, _, _| Box::new(()));
        }
        for text in script.split_whitespace() {
            self.take(event(text, &self.rules));
        }
        self.take(Event::Fail(false));
        self.take(Event::Hold(false));
        self.take(Event::Freeze(false));
        while let Some(next) = self.next_event() {
            self.pass_until(next);
        }
        let queue = format!("{:?}", self.queue);
        assert!(queue.contains("waiting: 0, lanes: 0"), "{queue}");
        self.outcomes.join(" ")
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::At(after) => self.pass_until(self.start + after),
            Event::Send(sent) => self.send(sent),
            Event::Leave(number) => self.leave(number),
            Event::Peek(name) => self.peek(&name),
            Event::Take(name, units) => {
                for number in self.twins(&name) {
                    let (policy, key) = (&self.rules[number].limit.policy, self.key(number, "a"));
                    let taken = self.primary.charge(policy, &key, Cost::new(units));
                    assert!(taken.into_inner().unwrap().is_admitted());
                }
            }
            Event::Override(name, change, lasts) => self.change(&name, change, lasts),
            Event::MaxRequests(most) => self.queue.set_max_requests(most),
            Event::MaxBytes(most) => self.queue.set_max_bytes(most),
            Event::Fail(fails) => self.primary.fail(fails),
            Event::Hold(holds) => self.holds = holds,
            Event::Freeze(is_frozen) => self.is_frozen = is_frozen,
        }
        self.proceed();
    }

    /// The numbers of the limits with this name in the script.
    fn twins(&self, name: &str) -> Vec<usize> {
        let policies = self.rules.iter().map(|rule| &rule.limit.policy).enumerate();
        let twins = policies.filter(|(_, it)| it.name().trim_end_matches("-twin") == name);
        twins.map(|(number, _)| number).collect()
    }

    fn change(&self, name: &str, change: OverrideChange, lasts: Micros) {
        for number in self.twins(name) {
            let policy = self.rules[number].limit.policy.name().to_owned();
            let (subject, until) = ("a".to_owned(), self.clock.now() + lasts);
            let it = Override { policy, subject, change, until };
            let mut set = self.overrides.set(&self.key(number, "a"), it);
            let set = set.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(matches!(set, Poll::Ready(Ok(_))));
        }
    }

    fn key(&self, number: usize, client: &str) -> Key {
        if self.rules[number].is_global { Key::GLOBAL } else { Key::from(client) }
    }

    fn peek(&mut self, name: &str) {
        if name == "calls" {
            return self.outcomes.push(format!("calls={}", self.calls));
        }
        let is_meant = |number: &usize| self.rules[*number].limit.policy.name() == name;
        let number = self.own.clone().find(is_meant).unwrap();
        let (policy, key) = (&self.rules[number].limit.policy, self.key(number, "a"));
        let peeked = self.store.peek(policy, &key).now().ok().unwrap().unwrap();
        self.outcomes.push(format!("{name}={}", peeked.decisions()[0].remaining));
    }

    fn send(&mut self, sent: Sent) {
        let mut charges = Charges::default();
        for (number, rule) in self.rules.iter().enumerate() {
            if rule.when.is_none_or(|tag| sent.tags.contains(tag)) {
                let cost = Cost::new(if rule.is_flat { 1 } else { sent.cost });
                let (kind, key) = (SubjectKind::Other, self.key(number, &sent.client));
                let number = u8::try_from(number).unwrap();
                charges.push(AppliedLimit::new(number, kind, key, cost), &self.limits);
            }
        }
        if self.limits.has_overrides() {
            self.limits.apply_overrides(charges.iter_mut());
        }
        // A request without a body counts as this many bytes.
        let arrival = self.limits.may_wait().then(|| self.queue.arrive(1_000));
        let patience = sent.patience.unwrap_or(Micros::MAX);
        let (request, asking) = Request::within(&self.limits, charges, arrival, patience);
        let number = self.flights.len();
        let (arrived, outcome) = (self.clock.now(), self.outcomes.len());
        self.outcomes.push("waits".to_owned());
        self.flights.push(Flight { sent, arrived, stage: Stage::Over, outcome });
        self.advance(number, request, Step::Ask(asking));
    }

    /// Does what each step requires, until the request has to wait.
    fn advance(&mut self, number: usize, mut request: Request, mut step: Step) {
        self.flights[number].stage = loop {
            match step {
                Step::Ask(asking) => {
                    let reply = self.ask(asking.question, request.charges());
                    if self.holds {
                        break Stage::Asked(request, asking, reply);
                    }
                    step = request.on_reply(asking, &self.limits, reply, self.clock.now());
                }
                Step::Sleep(sleeping) => break Stage::Asleep(request, sleeping),
                Step::Done(conclusion) => {
                    break self.conclude(number, request.take_charges(), &conclusion);
                }
            }
        };
    }

    fn ask(&mut self, question: Question, charges: &Charges) -> Result<Verdict, StoreError> {
        self.calls += 1;
        let charges = question.charges(&self.limits, charges);
        self.store.decide(&charges).now().ok().unwrap()
    }

    fn conclude(&mut self, number: usize, charges: Charges, conclusion: &Conclusion) -> Stage {
        let now = self.clock.now();
        let Flight { sent, arrived, outcome, .. } = &self.flights[number];
        let at = |time: Timestamp| time.since(self.start);
        let waited = if now == *arrived { String::new() } else { format!("@{}", text(at(now))) };
        let mut own = charges.iter().filter(|it| self.own.contains(&usize::from(it.limit)));
        let is_open = own.all(|it| it.decision.outcome == Outcome::Undecided);
        let delay = match conclusion {
            Conclusion::Pass(delay) => *delay,
            Conclusion::FailOpen(_) => Micros::ZERO,
            Conclusion::Reject(rejection) => {
                let denied = self.denied(&charges);
                let word = match rejection {
                    Rejection::Denied => "deny",
                    Rejection::TooLate => "late",
                    Rejection::QueueFull => "full",
                    Rejection::Undecided(_) => "closed",
                };
                self.outcomes[*outcome] = match denied {
                    Some(denied) => format!("{word}{waited}{denied}"),
                    None => format!("never{waited}"),
                };
                return Stage::Over;
            }
        };
        let start = now + delay;
        let end = start + sent.runs;
        self.outcomes[*outcome] = if is_open { format!("open{waited}") } else { text(at(start)) };
        Stage::Runs(charges, [start, end])
    }

    /// The script's own limits that deny a request, and when each may allow it, or `None` if one
    /// never does.
    fn denied(&self, charges: &Charges) -> Option<String> {
        let mut denied = Vec::new();
        for applied in charges.iter().filter(|it| self.own.contains(&usize::from(it.limit))) {
            let limit = self.limits.of(applied);
            let name = if self.own.len() == 1 { "" } else { limit.policy.name() };
            match applied.decision.outcome {
                _ if !limit.mode.enforces() => {}
                Outcome::Deny { retry_after } => {
                    denied.push(format!("{name}+{}", text(retry_after)))
                }
                Outcome::ExceedsCapacity => return None,
                _ => {}
            }
        }
        let denied = denied.join(",");
        Some(if denied.is_empty() { denied } else { format!("({denied})") })
    }

    /// Does everything that takes no time.
    fn proceed(&mut self) {
        for repeats in 0.. {
            let Some(number) = self.next_ready() else { return };
            assert!(repeats < 1_000, "request {number} never sleeps");
            match std::mem::replace(&mut self.flights[number].stage, Stage::Over) {
                Stage::Asked(mut request, asking, reply) => {
                    let step = request.on_reply(asking, &self.limits, reply, self.clock.now());
                    self.advance(number, request, step);
                }
                Stage::Asleep(mut request, sleeping) => {
                    let step = request.on_wake(sleeping, self.clock.now());
                    self.advance(number, request, step);
                }
                Stage::Runs(charges, _) => self.finish(number, &charges),
                Stage::Over => unreachable!(),
            }
        }
    }

    fn next_ready(&self) -> Option<usize> {
        let now = self.clock.now();
        let is_ready = |number: &usize| match &self.flights[*number].stage {
            Stage::Asked(..) => !self.holds,
            Stage::Asleep(_, sleeping) => {
                !self.is_frozen && (sleeping.until <= now || sleeping.is_woken(Waker::noop()))
            }
            Stage::Runs(_, [_, end]) => *end <= now,
            Stage::Over => false,
        };
        let mut numbers = 0..self.flights.len();
        if self.takes_latest { numbers.rfind(is_ready) } else { numbers.find(is_ready) }
    }

    fn next_event(&self) -> Option<Timestamp> {
        let events = self.flights.iter().filter_map(|flight| match &flight.stage {
            Stage::Asleep(_, sleeping) if !self.is_frozen => Some(sleeping.until),
            Stage::Runs(_, [_, end]) => Some(*end),
            _ => None,
        });
        events.min()
    }

    pub(crate) fn pass_until(&mut self, time: Timestamp) {
        while let Some(next) = self.next_event().filter(|next| *next <= time) {
            self.clock.set(next.max(self.clock.now()));
            self.proceed();
        }
        self.clock.set(time);
        self.proceed();
    }
}

fn next_id(receipts: &mut u128) -> impl FnMut() -> ReceiptId {
    move || {
        *receipts += 1;
        ReceiptId(*receipts)
    }
}

/// Seconds, without trailing zeros.
fn text(time: Micros) -> String {
    let (whole, part) = (time.get() / 1_000_000, time.get() % 1_000_000);
    let text = format!("{whole}.{part:06}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
