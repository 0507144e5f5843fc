//! The layer in process: no sockets, one task on one thread.

use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use clap::ValueEnum;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use tokio::runtime::{self, Runtime};
use tower::{Service, ServiceExt};

use crate::apps::{Wrapping, app};
use crate::process::{self, Answering};
use crate::report::{Goal, Options, Page};
use crate::rounds::Side;
use crate::{Counter, Failure};

const SLICES: u32 = 10;
const SLICE: Duration = Duration::from_millis(1);
const ROUNDS: usize = 80;

/// Layers with metrics, in the program that is built with them, without and with a recorder.
const METERED: [(&str, &str, &str); 4] = [
    ("no-headers", "none", "no-headers, metrics"),
    ("no-headers", "prometheus", "no-headers, metrics for Prometheus"),
    ("headers", "none", "headers, metrics"),
    ("headers", "prometheus", "headers, metrics for Prometheus"),
];

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let mut page = Page::new(options, ROUNDS);
    page.table("Added to a request", "layer", "ns per request | added ns", |table| {
        let runtime = runtime::Builder::new_current_thread().build()?;
        let mut sides = Vec::new();
        for (wrapping, name) in rows() {
            let mut nanos = nanos(&runtime, wrapping)?;
            sides.push(Side::new(name, move || Ok(vec![nanos()])));
        }
        let program = std::env::current_exe()?.with_file_name("tollgate-bench-metered");
        for (wrapping, recorder, name) in METERED {
            if !program.exists() {
                eprintln!("no {}: build it with the feature `metrics`", program.display());
                break;
            }
            let metered = Answering::start(&program, &[wrapping, recorder])?;
            let added = move || Ok([vec![f64::NAN], metered.say("turn")?].concat());
            sides.push(Side::new(name, added));
        }
        let added = |of, bound, peer| Goal::at_most("added ns", bound).of(of).against(peer);
        let mut goals = vec![
            added("no-headers", 1.4, "governor"),
            added("draft-headers", 0.84, "governor-headers"),
            added("headers", 1.3, "governor-headers"),
            added("two-policies", 1.55, "governor-headers"),
            added("denied-text", 1.05, "governor-denied"),
        ];
        goals.extend(METERED.map(|(wrapping, _, name)| added(name, 1.3, wrapping)));
        table.beyond("bare").ratio("× governor-headers", "added ns", "governor-headers");
        table.measure(&[], sides, &goals)
    })?;
    page.table("Allocations of a request", "layer", "allocations", |table| {
        let side = |(_, name)| {
            let count = move || process::count(&format!("layer {name}"));
            Side::new(name, move || Ok(vec![count()?.unwrap_or(f64::NAN)]))
        };
        table.rounds = 1;
        table.measure(&[], rows().map(side).collect(), &[])
    })?;
    page.write("layer", include_str!("../methods/layer.md"))
}

/// All layers, and their names in `alone "requests NAME"`.
fn rows() -> impl Iterator<Item = (Wrapping, &'static str)> {
    Wrapping::value_variants().iter().map(|wrapping| (*wrapping, wrapping.name()))
}

/// Measures nanoseconds per request, in the fastest of several slices. Later steps subtract large
/// numbers with a small difference, which a single interruption would hide.
fn nanos(runtime: &Runtime, wrapping: Wrapping) -> Result<impl FnMut() -> f64 + '_, Failure> {
    let mut caller = Caller::new(runtime, wrapping)?;
    Ok(move || {
        let mut slice = || runtime.block_on(caller.calls_for(SLICE));
        (0..SLICES).map(|_| slice()).fold(f64::INFINITY, f64::min)
    })
}

/// Calls an application, and checks each response.
struct Caller {
    app: Router,
    status: StatusCode,
}

impl Caller {
    fn new(runtime: &Runtime, wrapping: Wrapping) -> Result<Self, Failure> {
        let mut app = app(wrapping)?;
        // The first request inserts the key.
        runtime.block_on(call(&mut app));
        Ok(Self { app, status: wrapping.status() })
    }

    async fn calls_for(&mut self, span: Duration) -> f64 {
        let (started, mut requests) = (Instant::now(), 0_u32);
        loop {
            self.calls(64).await;
            requests += 64;
            let elapsed = started.elapsed();
            if elapsed >= span {
                break elapsed.as_secs_f64() * 1e9 / f64::from(requests);
            }
        }
    }

    async fn calls(&mut self, requests: u32) {
        for _ in 0..requests {
            assert_eq!(call(&mut self.app).await, self.status);
        }
    }
}

/// One request and its response.
async fn call(app: &mut Router) -> StatusCode {
    let mut request = Request::new(Body::empty());
    let peer = SocketAddr::from((Ipv4Addr::new(192, 0, 2, 1), 40_000));
    request.extensions_mut().insert(ConnectInfo(peer));
    let Ok(app) = ServiceExt::<Request<Body>>::ready(app).await;
    let Ok(response) = app.call(request).await;
    let (head, mut body) = response.into_parts();
    let status = head.status;
    black_box(head);
    while let Some(frame) = body.frame().await {
        black_box(frame.is_ok());
    }
    status
}

/// A million requests for a profiler:
/// `perf record -e cpu-clock target/release/tollgate-bench alone "requests headers"`.
pub(crate) fn spin(wrapping: &str) -> Result<Vec<f64>, Failure> {
    let runtime = runtime::Builder::new_current_thread().build()?;
    let mut caller = Caller::new(&runtime, Wrapping::from_str(wrapping, false)?)?;
    runtime.block_on(caller.calls(1_000_000));
    Ok(Vec::new())
}

/// Allocations per request, measured by the counting program.
pub(crate) fn allocations(wrapping: &str, counter: Counter) -> Result<f64, Failure> {
    const REQUESTS: u32 = 1_000;
    let runtime = runtime::Builder::new_current_thread().build()?;
    let mut caller = Caller::new(&runtime, Wrapping::from_str(wrapping, false)?)?;
    let (count, _) = counter(&mut || runtime.block_on(caller.calls(REQUESTS)));
    Ok(count as f64 / f64::from(REQUESTS))
}

/// The layer with metrics, as a program. Prints the added time for each line that it reads.
#[cfg(feature = "metrics")]
pub(crate) fn metered() -> Result<(), Failure> {
    use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};

    let mut args = std::env::args().skip(1);
    let (Some(wrapping), Some(recorder)) = (args.next(), args.next()) else {
        return Err("expected two words: the measurement and the recorder".into());
    };
    // The same setup as in the gateway.
    let mut handle = None;
    if recorder == "prometheus" {
        let mut builder = PrometheusBuilder::new();
        for (name, buckets) in tollgate::observe::buckets() {
            let matcher = Matcher::Full(name.to_owned());
            builder = builder.set_buckets_for_metric(matcher, buckets)?;
        }
        handle = Some(builder.install_recorder()?);
    }
    let runtime = runtime::Builder::new_current_thread().build()?;
    let mut bare = nanos(&runtime, Wrapping::Bare)?;
    let mut wrapped = nanos(&runtime, Wrapping::from_str(&wrapping, false)?)?;
    for line in std::io::stdin().lines() {
        line?;
        println!("{}", wrapped() - bare());
        // The gateway also does this every few seconds, because recorded times accumulate.
        if let Some(handle) = &handle {
            handle.run_upkeep();
        }
    }
    Ok(())
}
