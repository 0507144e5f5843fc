//! A test: its requests and their expected outcomes.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use tollgate_core::Micros;

use super::{Arrival, Arrivals, Endless, Expectation, Expected, Failed, Outcome, Pace, Scope};
use super::{Row, Sender, shortest};

/// Similar requests from one or more clients, by default a single request.
#[derive(Clone, Debug)]
#[must_use]
pub struct Requests {
    /// The method.
    pub method: String,
    /// The path with its query. `{client}` is the client's number, from 1.
    pub path: String,
    /// The requested host.
    pub host: Option<String>,
    /// Headers. In values, `{client}` is the client's number.
    pub headers: Vec<(String, String)>,
    /// The first client's address. Further clients have the addresses after it.
    pub client: IpAddr,
    /// The authenticated user. `{client}` is the client's number.
    pub user: Option<String>,
    /// The user's tier.
    pub tier: Option<String>,
    /// The process that gets the requests, from 1. `None` means each process in turn.
    pub replica: Option<u32>,
    /// A simulated target's response status.
    pub answer: u16,
    /// How long each response takes.
    pub takes: Micros,
    /// A simulated target's response size.
    pub bytes: u64,
    /// How many clients there are, and when their requests arrive.
    pub sender: Sender,
    /// Expectations for these requests.
    pub expect: Vec<Expected>,
    /// Whether the request is from a log. `{client}` is then ordinary text, and failures show no
    /// header, because it may contain credentials.
    pub is_recorded: bool,
}

/// A request's sender in expectations per client.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Caller<'a> {
    /// An authenticated user.
    User(Cow<'a, str>),
    /// The address, if the request has no user.
    Address(IpAddr),
}

impl fmt::Display for Caller<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(user) => write!(f, "user {user}"),
            Self::Address(address) => address.fmt(f),
        }
    }
}

impl Requests {
    /// A GET request from 203.0.113.1.
    pub fn get(path: impl Into<String>) -> Self {
        Self::new("GET", path)
    }

    /// A POST request from 203.0.113.1.
    pub fn post(path: impl Into<String>) -> Self {
        Self::new("POST", path)
    }

    /// A request from 203.0.113.1.
    pub fn new(method: impl Into<String>, path: impl Into<String>) -> Self {
        let (at, duration, pace) = (Micros::ZERO, None, Pace::Every(Micros::ZERO));
        Self {
            method: method.into(),
            path: path.into(),
            host: None,
            headers: Vec::new(),
            client: Ipv4Addr::new(203, 0, 113, 1).into(),
            user: None,
            tier: None,
            replica: None,
            answer: 200,
            takes: Micros::ZERO,
            bytes: 0,
            sender: Sender { at, clients: 1, count: None, duration, pace },
            expect: Vec::new(),
            is_recorded: false,
        }
    }

    /// Sets the first client's address. [Further clients](Self::clients) have the addresses after it.
    pub fn client(mut self, address: impl Into<IpAddr>) -> Self {
        self.client = address.into();
        self
    }

    /// Sets the number of clients.
    pub const fn clients(mut self, clients: u32) -> Self {
        self.sender.clients = clients;
        self
    }

    /// Adds a header. In its value, `{client}` is the client's number, from 1.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Sets when each client's first request arrives, after the start. Default: 0.
    pub fn at(mut self, at: impl Into<Micros>) -> Self {
        self.sender.at = at.into();
        self
    }

    /// Sets how many requests each client sends. With [`during`](Self::during), a client stops at
    /// the limit that it reaches first.
    pub const fn count(mut self, count: u64) -> Self {
        self.sender.count = Some(count);
        self
    }

    /// Sets for how long each client sends requests. Set the time between them, too: see
    /// [`every`](Self::every), [`at_random`](Self::at_random) and [`think`](Self::think).
    pub fn during(mut self, time: impl Into<Micros>) -> Self {
        self.sender.duration = Some(time.into());
        self
    }

    /// Sets the time between a client's requests. By default, all arrive at the same instant.
    pub fn every(mut self, time: impl Into<Micros>) -> Self {
        self.sender.pace = Pace::Every(time.into());
        self
    }

    /// Lets each client's requests arrive at random times, with this mean time between them. The
    /// [seed](Test::seed) determines the times.
    pub fn at_random(mut self, mean: impl Into<Micros>) -> Self {
        self.sender.pace = Pace::Random(mean.into());
        self
    }

    /// Sets the time between an answer and the client's next request.
    pub fn think(mut self, time: impl Into<Micros>) -> Self {
        self.sender.pace = Pace::Think(time.into());
        self
    }

    /// Sets how long each response takes.
    pub fn takes(mut self, time: impl Into<Micros>) -> Self {
        self.takes = time.into();
        self
    }

    /// Adds an expectation for these requests.
    pub fn expect(mut self, expected: Expected) -> Self {
        self.expect.push(expected);
        self
    }

    /// Returns a client's address, by its number from 0.
    #[must_use]
    pub fn address(&self, client: u32) -> IpAddr {
        match self.client {
            IpAddr::V4(first) => IpAddr::V4(u32::from(first).wrapping_add(client).into()),
            IpAddr::V6(first) => IpAddr::V6(u128::from(first).wrapping_add(client.into()).into()),
        }
    }

    /// Returns what identifies a client, by its number from 0.
    #[must_use]
    pub fn caller(&self, client: u32) -> Caller<'_> {
        match &self.user {
            Some(user) => Caller::User(self.for_client(user, client)),
            None => Caller::Address(self.address(client)),
        }
    }

    /// Replaces `{client}` with the client's number plus one: numbers start at 0 here, and at 1 in
    /// texts.
    #[must_use]
    pub fn for_client<'a>(&self, text: &'a str, client: u32) -> Cow<'a, str> {
        if !self.is_recorded && text.contains("{client}") {
            Cow::Owned(text.replace("{client}", &(client + 1).to_string()))
        } else {
            Cow::Borrowed(text)
        }
    }
}

/// Requests and their expected outcomes.
#[derive(Clone, Debug)]
#[must_use]
pub struct Test {
    /// The behaviour that the test shows.
    pub name: String,
    /// The requests.
    pub requests: Vec<Requests>,
    /// Expectations for all requests together.
    pub expect: Vec<Expected>,
    /// Determines the random times.
    pub seed: u64,
}

impl Test {
    /// Creates a test without requests. `name` is the behaviour that it shows.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), requests: Vec::new(), expect: Vec::new(), seed: 1 }
    }

    /// Adds requests.
    pub fn send(mut self, requests: Requests) -> Self {
        self.requests.push(requests);
        self
    }

    /// Adds an expectation for all requests together.
    pub fn expect(mut self, expected: Expected) -> Self {
        self.expect.push(expected);
        self
    }

    /// Sets the random times' seed. The same seed always gives the same requests. Default: 1.
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Runs the test. `run` simulates the given requests, and returns their outcomes in arrival
    /// order. It runs again to find the shortest history that shows a failure.
    ///
    /// The search takes at most `patience` of real time. `None` only limits its number of requests.
    ///
    /// Returns how many requests arrived, and the expectations that are not met. A test with more
    /// than [`Sender::MOST`] requests, or more than [`Sender::MOST_AT_ONCE`] simultaneous requests by
    /// a client, fails.
    ///
    /// # Errors
    /// Same as `run`.
    pub fn run<E>(
        &self,
        patience: Option<Duration>,
        run: impl Fn(Arrivals<'_>) -> Result<Vec<Outcome>, E>,
    ) -> Result<(usize, Vec<Failed>), E> {
        let endless = Cell::new(None);
        if let Some(sender) = self.requests.iter().position(|it| it.sender.never_ends()) {
            return Ok((0, vec![self.endless(Endless::AtOnce(sender as u32))]));
        }
        let outcomes = run(Arrivals::all(&self.requests, self.seed, &endless))?;
        if let Some(endless) = endless.take() {
            return Ok((outcomes.len(), vec![self.endless(endless)]));
        }
        let started = Instant::now();
        let may_continue = || patience.is_none_or(|patience| started.elapsed() < patience);
        let mut failures = Vec::new();
        for expectation in self.expectations() {
            let Err(failure) = expectation.check(&self.requests, &outcomes) else { continue };
            let rerun = |history: &[Arrival]| run(Arrivals::only(&self.requests, history));
            let (history, is_complete) =
                shortest(&expectation, &failure, &self.requests, &outcomes, may_continue, rerun)?;
            let about = match expectation.scope {
                Scope::All => "all requests".to_owned(),
                Scope::Sender(sender) => format!("requests[{sender}]"),
            };
            let rows = Row::of(&history, &self.requests, &failure.expected);
            failures.push(Failed {
                about,
                expected: failure.expected,
                got: failure.got,
                rows,
                may_be_shorter: !is_complete,
            });
        }
        Ok((outcomes.len(), failures))
    }

    fn endless(&self, endless: Endless) -> Failed {
        let (about, got) = match endless {
            Endless::AtOnce(sender) => {
                let most = Sender::MOST_AT_ONCE;
                let what = format!("more than {most} requests of a client at the same instant");
                (format!("requests[{sender}]"), format!("{what}: set the time between them"))
            }
            Endless::InTotal => {
                let what = format!("more than {} requests", Sender::MOST);
                ("all requests".to_owned(), format!("{what}: describe fewer requests"))
            }
        };
        let expected = "an end".to_owned();
        Failed { about, expected, got, rows: Vec::new(), may_be_shorter: false }
    }

    /// All expectations. Expectations for single senders are first.
    fn expectations(&self) -> impl Iterator<Item = Expectation> {
        let senders = (0..).zip(&self.requests).flat_map(|(sender, requests)| {
            requests.expect.iter().map(move |expected| (Scope::Sender(sender), expected))
        });
        let all = self.expect.iter().map(|expected| (Scope::All, expected));
        senders
            .chain(all)
            .map(|(scope, expected)| Expectation { scope, expected: expected.clone() })
    }
}
