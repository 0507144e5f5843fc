//! `cargo xtask boundary`: a hundred requests just before the end of a window and a hundred
//! just after it, through nginx and three replicas, against every algorithm; and a picture of
//! what each of them let pass.

#[cfg(unix)]
mod attack;
#[cfg(unix)]
mod picture;

#[cfg(unix)]
pub(crate) use measured::run;

/// Says that this cannot be done here.
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

    /// Short, so that all of it takes two minutes, and long enough that a hundred requests are
    /// through in a sixtieth of it.
    pub(super) const WINDOW: Duration = Duration::from_secs(12);
    pub(super) const LIMIT: usize = 100;

    /// The algorithms, and the most that each may admit in the time of a window by the table
    /// of the README, with a burst that is the limit.
    const ALGORITHMS: [(&str, usize); 5] = [
        ("fixed_window_counter", 2 * LIMIT),
        ("sliding_window_log", LIMIT),
        // The window before was as uneven as can be.
        ("sliding_window_counter", 2 * LIMIT),
        ("token_bucket", 2 * LIMIT),
        ("leaky_bucket", 2 * LIMIT),
    ];

    pub(crate) fn run() -> Result<(), Failure> {
        let program = up::demo()?;
        for (algorithm, most) in ALGORITHMS {
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
            println!("{algorithm:<24} at most {highest:>3} within {window}");
            if highest > most {
                return Err(Failure::Broken(format!(
                    "{algorithm} has let {highest} pass within {window}, and {most} are the most"
                )));
            }
            let folder = process::root().join("docs/boundary");
            let file = folder.join(format!("{algorithm}.svg"));
            let svg = picture::draw(algorithm, &answers, WINDOW, LIMIT);
            fs::create_dir_all(&folder)
                .and_then(|()| fs::write(&file, svg))
                .map_err(|error| Failure::Broken(format!("{}: {error}", file.display())))?;
        }
        Ok(())
    }
}
