//! The processes, from the first to the last.

use std::collections::hash_map::RandomState;
use std::env;
use std::hash::BuildHasher as _;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tollgate_replicas::{Admin, Order, Set};

use super::Args;
use crate::process::{self, Failure};
use crate::workspace;

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    // Caught from here on: a signal that comes while things are being started must not
    // leave half of them behind.
    let asked_to_stop = asked_to_stop()?;
    let order = Order {
        program: demo()?,
        port: args.port,
        replica_port: args.replica_port,
        redis_port: args.redis_port,
        flags: args.demo.clone(),
        variables: handed_on(),
        admin: Some(Admin { port: args.admin_port, token: token() }),
    };
    let mut set = Set::start(&order)?;
    println!("{}", table(&set, &order));
    let outcome = watch(&mut set, &asked_to_stop);
    println!("stopping");
    set.stop(PATIENCE);
    outcome
}

/// Builds the demo and says where it is.
pub(crate) fn demo() -> Result<PathBuf, Failure> {
    process::run(&mut process::cargo(&["build", "--package", "demo"]))?;
    Ok(PathBuf::from(workspace::target_folder()?).join("debug/demo"))
}

/// The environment variables and defaults that `docker-compose.yml` passes to its replicas too.
fn handed_on() -> Vec<(String, String)> {
    let ours = |name: &str| name.starts_with("TOLLGATE_") || name == "RUST_LOG";
    let patient = ("TOLLGATE_STORE_TIMEOUT".to_owned(), "1s".to_owned());
    std::iter::once(patient).chain(env::vars().filter(|(name, _)| ours(name))).collect()
}

/// The admin token of the environment, or a new random token.
fn token() -> String {
    env::var("TOLLGATE_ADMIN_TOKEN").unwrap_or_else(|_| {
        // Each is seeded by the system.
        let part = || RandomState::new().hash_one(0);
        format!("{:016x}{:016x}", part(), part())
    })
}

fn table(set: &Set, order: &Order) -> String {
    let mut rows = vec![row("balancer", "http", &set.nginx.address(), set.nginx.process.id())];
    rows.extend(set.replicas.iter().map(|replica| {
        row(replica.process.name(), "http", &replica.address(), replica.process.id())
    }));
    rows.push(row("redis", "redis", &set.redis.address(), set.redis.process.id()));
    let (rows, url) = (rows.join("\n"), set.nginx.address());
    let folder = set.folder().display();
    let page = set.admins.first().map(|page| format!("http://{page}")).unwrap_or_default();
    let token = order.admin.as_ref().map(|admin| admin.token.as_str()).unwrap_or_default();
    format!(
        "\n{:<10}{:<30}{:>8}\n{rows}\n{:<10}{folder}\n\
         {:<10}{page}\n{:<10}{token} (enter it on the page to see clients)\n\n\
         Try tests/balancer.sh http://{url}, or `kill {}` to end a replica,\n\
         which starts again. Ctrl-C stops all.\n",
        "",
        "address",
        "process",
        "logs",
        "live page",
        "token",
        set.replicas[0].process.id(),
    )
}

fn row(name: &str, scheme: &str, address: &std::net::SocketAddr, process: u32) -> String {
    format!("{name:<10}{:<30}{process:>8}", format!("{scheme}://{address}"))
}

/// Starts again what ends by itself, as docker-compose does, until it is asked to stop.
fn watch(set: &mut Set, asked_to_stop: &Receiver<()>) -> Result<(), Failure> {
    loop {
        match asked_to_stop.recv_timeout(LOOK) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
        let told = |name: &str, status: ExitStatus| {
            println!("{name} has ended with {status}; it is started again");
        };
        for replica in &mut set.replicas {
            if let Some(status) = replica.process.ended() {
                told(replica.process.name(), status);
                replica.restart()?;
            }
        }
        if let Some(status) = set.redis.process.ended() {
            told("redis", status);
            set.redis.restart()?;
        }
        if let Some(status) = set.nginx.process.ended() {
            told("nginx", status);
            set.nginx.restart()?;
        }
    }
}

/// Hears Ctrl-C and SIGTERM, which is how others say it.
fn asked_to_stop() -> Result<Receiver<()>, Failure> {
    let signals = Signals::new([SIGINT, SIGTERM]);
    let mut signals =
        signals.map_err(|error| Failure::Unready(format!("cannot listen to signals: {error}")))?;
    let (heard, asked_to_stop) = mpsc::channel();
    thread::spawn(move || {
        for _ in signals.forever() {
            // The receiver is closed if the programs are being stopped already.
            let _ = heard.send(());
        }
    });
    Ok(asked_to_stop)
}

/// How long a replica may take for what it has begun.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often a look is taken whether something has ended.
const LOOK: Duration = Duration::from_millis(200);
