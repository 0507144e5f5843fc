//! The layer in a server, measured over sockets with wrk.

use clap::ValueEnum;

use crate::apps::Wrapping;
use crate::report::{self, Table, Target};
use crate::rounds::{Spread, interleave};
use crate::serve::Server;
use crate::{Failure, process, wrk};

const METHOD: &str = "\
Each server has two worker threads and runs in its own process. `wrk -t1` on the same machine sends
the requests, so it takes a core. All requests come from one address and are allowed. `× bare` is
the throughput divided by the bare router's throughput in the same round, and `× tower_governor`
divides by tower_governor with its headers. Processor time is the server's user and kernel time per
request on all processors.";

const ROUNDS: usize = 16;

const SERVERS: [(Wrapping, &str); 4] = [
    (Wrapping::Bare, "bare router"),
    (Wrapping::GovernorHeaders, "tower_governor, headers"),
    (Wrapping::DraftHeaders, "Tollgate, the defaults"),
    (Wrapping::Headers, "Tollgate, all headers"),
];

pub(crate) fn run() -> Result<(), Failure> {
    wrk::find()?;
    let servers: Vec<_> =
        SERVERS.iter().map(|(wrapping, _)| start(*wrapping)).collect::<Result<_, _>>()?;
    let mut table = Table::new(
        "Requests per second",
        &[
            "server",
            "connections",
            "thousand requests/s",
            "processor µs per request",
            "× bare",
            "target",
            "met",
            "× tower_governor",
            "target",
            "met",
        ],
    );
    for (connections, least) in [(32, 0.93), (128, 0.85)] {
        let mut micros = vec![Vec::new(); servers.len()];
        let mut peers: Vec<_> = servers
            .iter()
            .zip(&mut micros)
            .map(|(server, micros)| peer(server, connections, micros))
            .collect();
        let measured = interleave(&mut peers, ROUNDS);
        drop(peers);
        let [bare, governor, ..] = &measured[..] else { continue };
        for (index, ((wrapping, name), micros)) in SERVERS.iter().zip(micros).enumerate() {
            let ours = matches!(wrapping, Wrapping::DraftHeaders | Wrapping::Headers);
            let target = |least| if ours { Target::AtLeast(least) } else { Target::None };
            let spread = Spread::of(measured[index].iter().map(|rate| rate / 1e3));
            let to_bare = Spread::of_ratios(&measured[index], bare);
            let to_governor = Spread::of_ratios(&measured[index], governor);
            let micros = Spread::of(micros.into_iter().skip(1));
            let cells = [(*name).to_owned(), connections.to_string(), spread.to_string()];
            let cells = cells.into_iter().chain([micros.to_string(), format!("{to_bare:.2}")]);
            let cells = cells.chain(target(least).cells(to_bare));
            let cells = cells.chain([format!("{to_governor:.2}")]);
            table.row(cells.chain(target(1.0).cells(to_governor)));
        }
    }
    report::write("http", METHOD, &[table])
}

pub(crate) fn start(wrapping: Wrapping) -> Result<Server, Failure> {
    let mode = wrapping.to_possible_value().ok_or("a server without a name")?;
    Server::start(&["serve", mode.get_name()])
}

/// Measures requests per second, and adds the server's processor time per request to `micros`.
fn peer<'a>(
    server: &'a Server,
    connections: u32,
    micros: &'a mut Vec<f64>,
) -> Box<dyn FnMut() -> f64 + 'a> {
    Box::new(move || {
        let time = || process::processor_time(server.id()).unwrap_or(f64::NAN);
        let before = time();
        let load = wrk::load(server.address(), connections);
        micros.push((time() - before) * 1e6 / load.requests);
        load.rate
    })
}
