//! The layer in a server, measured over sockets with wrk.

use crate::Failure;
use crate::apps::Wrapping;
use crate::report::{Goal, Options, Page};
use crate::serve::Server;
use crate::served::{self, RATE, SERVED, wrk};

const ROUNDS: usize = 16;

const BARE: &str = "bare router";
const GOVERNOR: &str = "tower_governor, headers";
const SERVERS: [(Wrapping, &str); 4] = [
    (Wrapping::Bare, BARE),
    (Wrapping::GovernorHeaders, GOVERNOR),
    (Wrapping::DraftHeaders, "Tollgate, the defaults"),
    (Wrapping::Headers, "Tollgate, all headers"),
];

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    served::find()?;
    let servers: Vec<_> = SERVERS.iter().map(|server| start(server.0)).collect::<Result<_, _>>()?;
    let mut page = Page::new(options, ROUNDS);
    page.table("Requests per second", "connections | server", SERVED, |table| {
        table.ratio("× bare", RATE, BARE).ratio("× tower_governor", RATE, GOVERNOR);
        for (connections, least) in [(32, 0.93), (128, 0.85)] {
            let side = |(server, (_, name)): (&Server, &(_, &'static str))| {
                server.port().side(name, move |url| wrk(url, connections, &[]))
            };
            let sides = servers.iter().zip(&SERVERS).map(side).collect();
            let goals = SERVERS[2..].iter().flat_map(|(_, name)| {
                let goal = |bound, against| Goal::at_least(RATE, bound).of(name).against(against);
                [goal(least, BARE), goal(1.0, GOVERNOR)]
            });
            table.measure(&[&connections], sides, &Vec::from_iter(goals))?;
        }
        Ok(())
    })?;
    page.write("http", include_str!("../methods/http.md"))
}

pub(crate) fn start(wrapping: Wrapping) -> Result<Server, Failure> {
    Server::start(&["serve", wrapping.name()])
}
