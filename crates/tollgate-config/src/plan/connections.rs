//! Divides the files that the process may open between its connections.

use std::collections::HashSet;

use super::Plan;

/// The maximum number of connections of each kind, which together fit into the limit on open files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connections {
    pub clients: Vec<usize>,
    pub per_target: usize,
    pub admin: usize,
}

/// The process may open fewer files than the configuration needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[doc(alias = "TG0411")]
#[error(
    "this process may open {has} files, which is enough for {fits} client connections, but the \
     configuration needs {asked} (`maxConnections` of all listeners): raise the limit on open \
     files to {needs} (`ulimit -Hn`), or lower `maxConnections` [TG0411]"
)]
pub struct TooFewFiles {
    has: u64,
    fits: u64,
    asked: u64,
    needs: u64,
}

impl Plan {
    /// Divides the files that the process may open; `None` means unlimited.
    ///
    /// Each client connection may need a connection to a target. Some files remain for everything
    /// else, so clients cannot stop health checks, reloads or the store.
    pub fn connections(&self, files: Option<u64>) -> Result<Connections, TooFewFiles> {
        let has = files.unwrap_or(u64::MAX);
        let admin = ADMIN.min(has / 8);
        let free = has.saturating_sub(RESERVED + admin);
        let targets = self.routes.iter().filter_map(|it| it.target.as_ref());
        let targets = targets.flat_map(|target| &target.upstream.servers.addresses);
        let targets = targets.map(|address| &address.endpoint);
        let targets = (targets.collect::<HashSet<_>>().len() as u64).max(1);

        let listeners = || self.listen.iter().map(|(_, listen)| listen);
        let named: u64 = listeners().filter_map(|it| it.max_connections).map(|it| it as u64).sum();
        let unnamed = listeners().filter(|it| it.max_connections.is_none()).count() as u64;
        let asked = named + unnamed;
        let fits = (free / 2).min(free.saturating_sub(targets));
        if asked > fits {
            let needs = RESERVED + ADMIN + asked + asked.max(targets);
            return Err(TooFewFiles { has, fits, asked, needs });
        }
        let each = (fits - named).checked_div(unnamed).unwrap_or_default().min(MOST);
        let clients = named + unnamed * each;
        let size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        Ok(Connections {
            clients: listeners()
                .map(|it| it.max_connections.unwrap_or_else(|| size(each)))
                .collect(),
            per_target: size(((free - clients) / targets).min(MOST)),
            admin: size(admin),
        })
    }
}

/// For a target, and for a listener without its own limit.
const MOST: u64 = 20_000;
const ADMIN: u64 = 64;

/// For the store, the log, configuration files, name lookups and the runtime.
const RESERVED: u64 = 64;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Listen;
    use super::*;
    use crate::Source;

    fn plan(lines: &str) -> Plan {
        let text = format!("rateLimiter:\n  target: http://a\n{lines}");
        let outcome = crate::read(&Source { name: "test".into(), text }, &|_| None);
        outcome.plan.unwrap_or_else(|| panic!("{}", outcome.report))
    }

    #[test]
    fn default_limits_share_the_files() {
        let plan = plan("");
        for (files, clients, per_target, admin) in [
            (None, 20_000, 20_000, 64),
            (Some(1_048_576), 20_000, 20_000, 64),
            (Some(4_096), 1_984, 1_984, 64),
            (Some(300), 99, 100, 37),
            (Some(76), 1, 2, 9),
        ] {
            let expected = Connections { clients: vec![clients], per_target, admin };
            assert_eq!(plan.connections(files), Ok(expected), "{files:?}");
        }
        assert!(plan.connections(Some(74)).is_err());
    }

    #[test]
    fn error_names_limits_that_fit() {
        let plan = plan("  listen: {address: '0.0.0.0:80', maxConnections: 400}\n");
        let error = plan.connections(Some(300)).unwrap_err();
        assert_eq!((error.fits, error.asked, error.needs), (99, 400, 928));
        assert!(plan.connections(Some(927)).is_err());
        assert_eq!(plan.connections(Some(928)).unwrap().clients, [400]);
    }

    proptest! {
        #[test]
        fn all_connections_fit_together(
            files in 0_u64..3_000,
            listeners in prop::collection::vec(prop::option::of(1_usize..1_500), 1..4),
            targets in 1..5,
        ) {
            let routes: String = (0..targets)
                .map(|number| format!("  - {{name: r{number}, path: /{number}, target: http://{number}}}\n"))
                .collect();
            let mut plan = plan(&format!("  routes:\n{routes}"));
            let one = plan.listen.remove(0);
            plan.listen = listeners
                .iter()
                .map(|&max_connections| (one.0, Listen { max_connections, ..one.1.clone() }))
                .collect();
            match plan.connections(Some(files)) {
                Ok(found) => {
                    let clients: usize = found.clients.iter().sum();
                    // Plus the default target, for requests that match no route.
                    let upstreams = found.per_target * (targets as usize + 1);
                    prop_assert!((clients + upstreams + found.admin) as u64 + RESERVED <= files);
                    prop_assert!(upstreams > 0 && found.clients.iter().all(|it| *it > 0));
                    for (asked, given) in listeners.iter().zip(&found.clients) {
                        prop_assert!(asked.is_none_or(|asked| asked == *given));
                    }
                }
                Err(error) => prop_assert!(plan.connections(Some(error.needs)).is_ok()),
            }
        }
    }
}
