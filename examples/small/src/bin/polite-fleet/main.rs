//! cargo run -p examples --bin polite-fleet
//!
//! A third party allows 100 calls in any 60 seconds. Eight worker processes with 32 tasks each share
//! these calls, in one order and without a single 429. `worker.rs` is what your program copies.
//!
//! With `REDIS_URL`, workers are processes. Without it, they are tasks that share this process's
//! memory. Try `--window 15`, `--kill`, and `--halve` with `--says nothing`. See
//! [`Options`] for the rest.

use std::error::Error;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;
use std::{env, io, process, thread};

use tokio::net::TcpListener;
use tokio::task::AbortHandle;
use tokio::time::{Instant, interval};
use tollgate::MemoryStore;
use tollgate::store::AnyStore;

use self::options::Options;
use self::third_party::ThirdParty;

mod calls;
mod options;
mod report;
mod third_party;
mod worker;

type Fallible<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Fallible<ExitCode> {
    let options = Options::parse(env::args().skip(1))?;
    let redis = env::var("REDIS_URL").ok();
    let store = match &redis {
        Some(url) => AnyStore::new(worker::connect(url, &options)?),
        None => AnyStore::new(MemoryStore::new()),
    };
    if let Some(worker) = options.worker {
        // The worker exits together with its parent, which holds the other end of its input.
        thread::spawn(|| io::copy(&mut io::stdin(), &mut io::sink()).map(|_| process::exit(0)));
        return worker::work(store, &options, worker).await.map(|()| ExitCode::SUCCESS);
    }
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?);
    let options = Options { url, ..options };
    let third_party = ThirdParty::new(&options);
    tokio::spawn(axum::serve(listener, third_party.router()).into_future());
    tokio::spawn(third_party.clone().watch_stalls());
    let start = |worker| match &redis {
        Some(_) => Worker::process(&options, worker),
        None => Ok(Worker::task(store.clone(), options.clone(), worker)),
    };
    let mut workers = (0..options.workers).map(start).collect::<Fallible<Vec<_>>>()?;
    let (started, mut every_second) = (Instant::now(), interval(Duration::from_secs(1)));
    println!("{}", report::HEAD);
    while started.elapsed() < options.length() {
        every_second.tick().await;
        if options.kill && workers.len() == options.workers && started.elapsed() > options.middle()
        {
            println!("worker {} is killed", workers.len());
            drop(workers.pop());
        }
        let tasks = workers.len() * options.tasks;
        let row = third_party.calls().row(tasks);
        println!("{:>4} s{row}", started.elapsed().as_secs());
    }
    Ok(if third_party.calls().verdict() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A worker, which is killed when this value is dropped.
enum Worker {
    Process(Child),
    Task(AbortHandle),
}

impl Worker {
    fn process(options: &Options, worker: usize) -> Fallible<Self> {
        let mut command = Command::new(env::current_exe()?);
        command.args(env::args().skip(1)).args(["--url", &options.url, "--worker"]);
        Ok(Self::Process(command.arg(worker.to_string()).stdin(Stdio::piped()).spawn()?))
    }

    fn task(store: AnyStore, options: Options, worker: usize) -> Self {
        let task = tokio::spawn(async move { worker::work(store, &options, worker).await });
        Self::Task(task.abort_handle())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        match self {
            // It may have exited, and is reaped in either case.
            Self::Process(child) => drop(child.kill().and_then(|()| child.wait())),
            Self::Task(task) => task.abort(),
        }
    }
}
