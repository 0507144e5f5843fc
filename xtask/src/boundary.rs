//! `cargo xtask boundary`: sends a hundred requests just before the end of a window and a hundred
//! just after it, through nginx to three replicas, and draws how many requests each algorithm
//! allowed.

#[cfg(unix)]
mod attack;
#[cfg(unix)]
mod picture;

#[cfg(unix)]
pub(crate) use measured::run;

/// Fails, because the replicas need Unix.
#[cfg(not(unix))]
pub(crate) fn run() -> Result<(), crate::process::Failure> {
    Err(crate::process::Failure::Unready("this needs Unix".to_owned()))
}

#[cfg(unix)]
mod measured {
    use std::fs;
    use std::time::Duration;

    use tollgate_replicas::{Order, Set};

    use super::{attack, picture};
    use crate::process::{self, Failure};
    use crate::up;

    /// Short enough for the command to take only two minutes, but a hundred requests must finish in
    /// a sixtieth of a window.
    pub(super) const WINDOW: Duration = Duration::from_secs(12);
    pub(super) const LIMIT: usize = 100;

    /// The algorithms, best first, and the most requests that each can allow within any window.
    /// The burst is the limit. A leaky bucket accepts twice the limit and spreads the requests.
    const ALGORITHMS: [(&str, usize); 5] = [
        ("sliding_window_log", LIMIT),
        ("leaky_bucket", LIMIT + 1),
        ("sliding_window_counter", 2 * LIMIT - 1),
        ("token_bucket", 2 * LIMIT),
        ("fixed_window_counter", 2 * LIMIT),
    ];

    /// A leaky bucket's responses may arrive a little closer together than they were sent.
    const JITTER: usize = 1;

    pub(crate) fn run() -> Result<(), Failure> {
        let program = up::demo()?;
        let mut panels = Vec::new();
        for (algorithm, worst) in ALGORITHMS {
            let window = format!("{}s", WINDOW.as_secs());
            let limit = LIMIT.to_string();
            let flags = ["--algorithm", algorithm, "--limit", &limit, "--window", &window];
            let patient = ["--store-timeout", "1s", "--on-store-error", "closed"];
            let set = Set::start(&Order {
                program: program.clone(),
                port: 0,
                replica_port: 0,
                redis_port: 0,
                flags: flags.iter().chain(&patient).map(|flag| (*flag).to_owned()).collect(),
                variables: Vec::new(),
                admin: None,
            })?;
            let answers = attack::run(set.nginx.address(), WINDOW, LIMIT)
                .map_err(|error| Failure::Broken(format!("{algorithm}: {error}")))?;
            let highest = picture::highest(&answers, WINDOW);
            println!("{algorithm:<24} allowed {highest:>3} within {window}");
            if highest > worst + JITTER {
                return Err(Failure::Broken(format!(
                    "{algorithm} allowed {highest} requests within {window}, expected at most {worst}"
                )));
            }
            panels.push(picture::Panel { algorithm, answers, worst });
        }
        for theme in &picture::THEMES {
            let name = format!("docs/images/boundary-{}.svg", theme.name);
            fs::write(process::root().join(&name), picture::draw(&panels, WINDOW, LIMIT, theme))
                .map_err(|error| Failure::Broken(format!("{name}: {error}")))?;
        }
        Ok(())
    }
}
