//! Starts the processes, restarts them if they exit, and stops them.

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
use tollgate_test_servers::{Admin, Order, Set};

use super::Args;
use crate::process::{self, Failure};
use crate::workspace;

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    // Catch signals from here on: a signal during the start must not leave processes behind.
    let stop_requests = stop_requests()?;
    let order = Order {
        program: demo()?,
        port: args.port,
        replica_port: args.replica_port,
        redis_port: args.redis_port,
        flags: args.demo.clone(),
        variables: replica_variables(),
        admin: Some(Admin { port: args.admin_port, token: token() }),
    };
    let mut set = Set::start(&order)?;
    println!("{}", table(&set, &order));
    let outcome = watch(&mut set, &stop_requests);
    println!("stopping");
    set.stop(PATIENCE);
    outcome
}

/// Builds the demo and returns the program's path.
fn demo() -> Result<PathBuf, Failure> {
    process::run(&mut process::cargo(&["build", "--package", "demo"]))?;
    Ok(workspace::target_folder()?.join("debug/demo"))
}

/// The environment variables and defaults that `docker-compose.yml` passes to its replicas too.
fn replica_variables() -> Vec<(String, String)> {
    let ours = |name: &str| name.starts_with("TOLLGATE_") || name == "RUST_LOG";
    let patient = ("TOLLGATE_STORE_TIMEOUT".to_owned(), "1s".to_owned());
    std::iter::once(patient).chain(env::vars().filter(|(name, _)| ours(name))).collect()
}

/// The admin token from the environment, or a new random token.
fn token() -> String {
    env::var("TOLLGATE_ADMIN_TOKEN").unwrap_or_else(|_| {
        // The operating system seeds each `RandomState`.
        let part = || RandomState::new().hash_one(0);
        format!("{:016x}{:016x}", part(), part())
    })
}

fn table(set: &Set, order: &Order) -> String {
    let mut rows = vec![row("balancer", "http", &set.nginx.address(), set.nginx.process.id())];
    rows.extend(set.replicas.iter().map(|replica| {
        row(replica.process.name(), "http", &replica.address(), replica.process.id())
    }));
    rows.extend(set.redis.id().map(|id| row("redis", "redis", &set.redis.address(), id)));
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

/// Restarts processes that exit, like docker-compose does, until a signal arrives.
fn watch(set: &mut Set, stop_requests: &Receiver<()>) -> Result<(), Failure> {
    loop {
        match stop_requests.recv_timeout(LOOK) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
        for replica in &mut set.replicas {
            if has_ended(replica.process.ended(), replica.process.name()) {
                replica.restart()?;
            }
        }
        if has_ended(set.redis.ended(), "redis") {
            set.redis.try_restart()?;
        }
        if has_ended(set.nginx.process.ended(), "nginx") {
            set.nginx.restart()?;
        }
    }
}

fn has_ended(status: Option<ExitStatus>, name: &str) -> bool {
    if let Some(status) = status {
        println!("{name} has ended with {status}; restarting it");
    }
    status.is_some()
}

/// Listens for Ctrl-C and SIGTERM.
fn stop_requests() -> Result<Receiver<()>, Failure> {
    let signals = Signals::new([SIGINT, SIGTERM]);
    let mut signals =
        signals.map_err(|error| Failure::Unready(format!("cannot listen to signals: {error}")))?;
    let (heard, stop_requests) = mpsc::channel();
    thread::spawn(move || {
        for _ in signals.forever() {
            // The receiver is closed while the programs are stopped.
            let _ = heard.send(());
        }
    });
    Ok(stop_requests)
}

/// How long a replica may take to finish its requests.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often to check whether a process has exited.
const LOOK: Duration = Duration::from_millis(200);
