//! `cargo xtask up`: three replicas behind nginx with one quota in Redis, without containers.

#[cfg(unix)]
mod running;

#[cfg(unix)]
pub(crate) use running::{demo, run};

/// What can be said on the command line.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Of nginx; 0 takes a free one
    #[arg(long, default_value_t = 8080, allow_negative_numbers = true)]
    port: u16,

    /// Of the first replica, before those of the others; 0 takes free ones
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    replica_port: u16,

    /// Of Redis; 0 takes a free one
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    redis_port: u16,

    /// Of the live page, at the first replica, before those of the others; 0 takes free ones
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    admin_port: u16,

    /// For each replica, as in `cargo xtask up -- --window 10s`; see `cargo run -p demo -- --help`
    #[arg(last = true, value_name = "DEMO FLAGS")]
    demo: Vec<String>,
}

/// Says that this cannot be done here.
#[cfg(not(unix))]
pub(crate) fn run(_: &Args) -> Result<(), crate::process::Failure> {
    Err(crate::process::Failure::Unready(
        "this needs Unix; elsewhere use docker-compose up --build".to_owned(),
    ))
}
