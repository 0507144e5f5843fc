//! `cargo xtask up`: three replicas behind nginx with a shared quota in Redis, without containers.

#[cfg(unix)]
mod running;

#[cfg(unix)]
pub(crate) use running::run;

/// Command-line arguments of `cargo xtask up`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// nginx's port; 0 selects a free port
    #[arg(long, default_value_t = 8080)]
    port: u16,

    /// The first replica's port; the other replicas take the next ports. 0 selects free ports
    #[arg(long, default_value_t = 0)]
    replica_port: u16,

    /// Redis' port; 0 selects a free port
    #[arg(long, default_value_t = 0)]
    redis_port: u16,

    /// The first replica's admin port, with the live page; the other replicas take the next ports.
    /// 0 selects free ports
    #[arg(long, default_value_t = 0)]
    admin_port: u16,

    /// Flags for each replica, for example `cargo xtask up -- --window 10s`; see
    /// `cargo run -p demo -- --help`
    #[arg(last = true, value_name = "DEMO FLAGS")]
    demo: Vec<String>,
}

/// Fails, because the replicas need Unix.
#[cfg(not(unix))]
pub(crate) fn run(_: &Args) -> Result<(), crate::process::Failure> {
    Err(crate::process::Failure::Unready(
        "this needs Unix; elsewhere use docker-compose up --build".to_owned(),
    ))
}
