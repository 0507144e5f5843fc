//! The layer in a server, measured over sockets with wrk.

use clap::ValueEnum;

use crate::apps::Wrapping;
use crate::measured::measure;
use crate::process::local;
use crate::report::{self, Table, Target};
use crate::rounds::Spread;
use crate::serve::Server;
use crate::{Failure, wrk};

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
    let ports: Vec<_> = servers.iter().map(Server::measured_port).collect();
    let mut table = Table::new(
        "Requests per second",
        "server | connections | thousand requests/s | processor µs per request | × bare | target | met | × tower_governor | target | met",
    );
    for (connections, least) in [(32, 0.93), (128, 0.85)] {
        let measured = measure(&ports, ROUNDS, |port| wrk::load(local(port), connections));
        let [bare, governor, ..] = &measured[..] else { continue };
        for ((wrapping, name), side) in SERVERS.iter().zip(&measured) {
            let ours = matches!(wrapping, Wrapping::DraftHeaders | Wrapping::Headers);
            let target = |least| if ours { Target::AtLeast(least) } else { Target::None };
            let to_bare = Spread::of_ratios(&side.rates, &bare.rates);
            let to_governor = Spread::of_ratios(&side.rates, &governor.rates);
            let to = [(to_bare, target(least)), (to_governor, target(1.0))];
            table.row(&[name, &connections, &side.work(), &to]);
        }
    }
    report::write("http", METHOD, &[table])
}

pub(crate) fn start(wrapping: Wrapping) -> Result<Server, Failure> {
    let mode = wrapping.to_possible_value().ok_or("a server without a name")?;
    Server::start(&["serve", mode.get_name()])
}
