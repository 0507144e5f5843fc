//! Servers that decide in Redis, measured over sockets with wrk.

use clap::ValueEnum;

use crate::Failure;
use crate::process;
use crate::redis::server::Server as Redis;
use crate::replicas::ReplicaLimiter;
use crate::report::{Table, Target};
use crate::rounds::Spread;
use crate::serve::Server;
use crate::wrk::{self, Load};

const CONNECTIONS: u32 = 128;

const LIMITERS: [(ReplicaLimiter, &str); 4] = [
    (ReplicaLimiter::Bare, BARE),
    (ReplicaLimiter::ScriptEach, EACH),
    (ReplicaLimiter::LeanScript, "lean script per request"),
    (ReplicaLimiter::Tollgate, OURS),
];
const BARE: &str = "bare app";
const EACH: &str = "a script per request";
const OURS: &str = "Tollgate";

/// The tables of results and goals.
pub(crate) fn tables(redis: &Redis, rounds: usize) -> Result<[Table; 2], Failure> {
    wrk::find()?;
    let mut apps: Vec<_> = LIMITERS
        .iter()
        .map(|(limiter, name)| App::start(*limiter, name, redis))
        .collect::<Result<_, _>>()?;
    for turn in 0..=rounds {
        for index in 0..apps.len() {
            let app = (turn + index) % apps.len();
            let seen = apps[app].round()?;
            // The first turn only warms up.
            if turn > 0 {
                apps[app].seen.push(seen);
            }
        }
    }
    Ok([rows(&apps), goals(&apps)])
}

fn rows(apps: &[App]) -> Table {
    let mut table = Table::new(
        "Over HTTP",
        &["server", "thousand requests/s", "p50 ms", "p99 ms", "server's processor µs per request"],
    );
    for app in apps {
        let of = |what: Number| Spread::of(app.seen.iter().map(what));
        table.row([
            app.name.to_owned(),
            of(|seen| seen.load.rate / 1e3).to_string(),
            format!("{:.2}", of(|seen| seen.load.median)),
            format!("{:.2}", of(|seen| seen.load.p99)),
            of(|seen| seen.processor * 1e6).to_string(),
        ]);
    }
    table
}

fn goals(apps: &[App]) -> Table {
    let mut table = Table::new(
        "Tollgate over HTTP compared with peers",
        &["what", "compared with", "×", "target", "met"],
    );
    let rate: Number = |seen| seen.load.rate;
    let goals: [(&str, Number, &str, Target); 4] = [
        ("requests per second", rate, EACH, Target::AtLeast(1.3)),
        ("requests per second", rate, BARE, Target::AtLeast(0.65)),
        ("p99", |seen| seen.load.p99, EACH, Target::AtMost(0.7)),
        ("server's processor time", |seen| seen.processor, EACH, Target::AtMost(0.85)),
    ];
    let seen = |name: &str, what: Number| -> Vec<f64> {
        let app = apps.iter().filter(|app| app.name == name);
        app.flat_map(|app| &app.seen).map(what).collect()
    };
    for (name, what, against, target) in goals {
        let ratio = Spread::of_ratios(&seen(OURS, what), &seen(against, what));
        let cells = [name.to_owned(), against.to_owned(), format!("{ratio:.2}")];
        table.row(cells.into_iter().chain(target.cells(ratio)));
    }
    table
}

/// A server and its rounds' results.
struct App {
    name: &'static str,
    server: Server,
    seen: Vec<Seen>,
}

struct Seen {
    load: Load,
    /// The server's processor time per request, in seconds.
    processor: f64,
}

/// Selects a number from a round.
type Number = fn(&Seen) -> f64;

impl App {
    fn start(limiter: ReplicaLimiter, name: &'static str, redis: &Redis) -> Result<Self, Failure> {
        let limiter = limiter.to_possible_value().ok_or("a limiter without a name")?;
        let server = Server::start(&["replica", limiter.get_name(), "--redis", &redis.url()])?;
        Ok(Self { name, server, seen: Vec::new() })
    }

    fn round(&self) -> Result<Seen, Failure> {
        let before = process::processor_time(self.server.id())?;
        let load = wrk::load(self.server.address(), CONNECTIONS);
        let used = process::processor_time(self.server.id())? - before;
        Ok(Seen { load, processor: used / load.requests })
    }
}
