//! cargo run --release -p tollgate-replay --example speed -- access.log
//!
//! Lines a second: read and counted, parsed, and decided by two policies.

use std::error::Error;
use std::io::Read as _;
use std::net::IpAddr;
use std::path::Path;
use std::time::Instant;

use tollgate_core::{Cost, Key, Policy, Quota};
use tollgate_replay::log::{Input, Options, Records};
use tollgate_replay::{Ask, Client, Replay, Request};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).ok_or("name an access log")?;
    let path = Path::new(&path);
    for _ in 0..3 {
        measure("newlines", || newlines(path))?;
        measure("parsed", || parsed(path))?;
        measure("decided", || decided(path))?;
    }
    Ok(())
}

fn measure(
    what: &str,
    run: impl FnOnce() -> Result<u64, Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    let lines = run()?;
    let seconds = start.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let rate = lines as f64 / seconds / 1e6;
    println!("{what:9} {lines} lines in {seconds:.3} s: {rate:.2} M lines/s");
    Ok(())
}

fn newlines(path: &Path) -> Result<u64, Box<dyn Error>> {
    let (mut file, mut block, mut lines) = (std::fs::File::open(path)?, vec![0; 256 << 10], 0);
    loop {
        match file.read(&mut block)? {
            0 => return Ok(lines),
            read => lines += memchr::memchr_iter(b'\n', &block[..read]).count() as u64,
        }
    }
}

fn parsed(path: &Path) -> Result<u64, Box<dyn Error>> {
    let mut records = Records::new(vec![Input::open(path)?], &Options::default());
    while records.next()?.is_some() {}
    Ok(records.progress().lines)
}

fn decided(path: &Path) -> Result<u64, Box<dyn Error>> {
    let everybody = Policy::sliding_window_counter("global", Quota::per_minute(100_000))?;
    let client = Policy::token_bucket("client", Quota::per_minute(60).burst(20))?;
    let mut records = Records::new(vec![Input::open(path)?], &Options::default());
    let mut replay = Replay::new();
    while let Some(record) = records.next()? {
        let Some(IpAddr::V4(address)) = record.address else { continue };
        let key = Key::new(address.octets());
        let asks = [Ask::shared(&everybody, Cost::ONE), Ask::new(&client, &key, Cost::ONE)];
        let request = Request::new(record.at, &asks).of(Client { key: &key, name: &address });
        replay.request(&request)?;
    }
    let report = replay.finish()?;
    println!("          {} of {} clients denied", report.clients_denied, report.clients);
    Ok(records.progress().lines)
}
