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
use crate::metered::{self, Recorder};
use crate::report::{self, Cells as _, Table, Target};
use crate::rounds::{Peer, Spread, interleave};
use crate::{Counter, Failure, process};

const METHOD: &str = "\
An axum router is called in process on one thread. The measured time covers building a request with
a peer address, the response, and reading its body. All requests come from one address and are
allowed, except in the rows that say denied. A round counts the fastest of ten slices of 1 ms. A
layer adds its time minus the bare router's time in the same round. The identity layer shows the
cost of any axum layer, and a second identity layer adds five constant headers. `× peer` compares
the added time: with headers against tower_governor with headers, without headers against
tower_governor without. tower_governor sends two headers on an allowed response. Tollgate sends
`RateLimit-Policy` and `RateLimit`, and three `X-RateLimit` headers if all are enabled. governor
grants 10^9 units and regains a unit each nanosecond. Tollgate grants 1000 per second on a clock
that advances by a second after every 512 requests, so each request changes `remaining`. Allocations are counted in a separate process. Metrics are a build-time
choice, so they are measured in a separate process beside their own bare router. tower_governor makes
a new clock for each denial, which executes CPUID; in a virtual machine this traps and takes 30 µs.";

const SPAN: Duration = Duration::from_millis(10);
const SLICES: u32 = 10;
const ROUNDS: usize = 80;

/// A row, and the row it is compared with.
struct Row(Wrapping, &'static str, Option<(Wrapping, Target)>);

const ROWS: [Row; 13] = [
    Row(Wrapping::Bare, "bare router", None),
    Row(Wrapping::Identity, "identity layer", None),
    Row(Wrapping::Fields, "identity layer, five constant headers", None),
    Row(Wrapping::Governor, "tower_governor", None),
    Row(Wrapping::GovernorHeaders, "tower_governor, headers", None),
    Row(
        Wrapping::NoHeaders,
        "Tollgate, no headers",
        Some((Wrapping::Governor, Target::AtMost(1.4))),
    ),
    Row(Wrapping::DraftHeaders, "Tollgate, draft headers", beside_headers(0.84)),
    Row(Wrapping::Headers, "Tollgate, all headers", beside_headers(1.3)),
    Row(
        Wrapping::AnyBody,
        "Tollgate, all headers, any body",
        Some((Wrapping::GovernorHeaders, Target::None)),
    ),
    Row(Wrapping::TwoPolicies, "Tollgate, two policies, all headers", beside_headers(1.55)),
    Row(Wrapping::GovernorDenied, "tower_governor, denied", None),
    Row(
        Wrapping::DeniedText,
        "Tollgate, denied with a text",
        Some((Wrapping::GovernorDenied, Target::AtMost(1.05))),
    ),
    Row(
        Wrapping::Denied,
        "Tollgate, denied with problem and headers",
        Some((Wrapping::GovernorDenied, Target::None)),
    ),
];

/// A comparison with tower_governor with headers.
const fn beside_headers(most: f64) -> Option<(Wrapping, Target)> {
    Some((Wrapping::GovernorHeaders, Target::AtMost(most)))
}

pub(crate) fn run() -> Result<(), Failure> {
    let runtime = runtime::Builder::new_current_thread().build()?;
    let mut peers: Vec<Peer<'_>> =
        ROWS.iter().map(|row| peer(&runtime, row.0)).collect::<Result<_, _>>()?;
    let mut metered = Vec::new();
    for row in METERED {
        if let Some(peer) = metered::peer(row.0, row.1)? {
            peers.push(peer);
            metered.push(row);
        }
    }
    let measured = interleave(&mut peers, ROUNDS);
    let beyond_bare =
        |ns: &Vec<f64>| ns.iter().zip(&measured[0]).map(|(with, bare)| with - bare).collect();
    let added: Vec<Vec<f64>> = measured.iter().map(beyond_bare).collect();
    let mut table = Table::new(
        "Added to a request",
        "layer | ns per request | added ns | × peer | target | met | allocations",
    );
    for (index, Row(wrapping, name, against)) in ROWS.into_iter().enumerate() {
        let peer = against.and_then(|(peer, target)| {
            let index = ROWS.iter().position(|row| row.0 == peer)?;
            Some((&added[index], target))
        });
        let compared = peer.map_or_else(
            || ["–"; 3].texts(),
            |(theirs, target)| (Spread::of_ratios(&added[index], theirs), target).texts(),
        );
        let name_of = wrapping.to_possible_value();
        let count = format!("layer {}", name_of.as_ref().map_or("", |value| value.get_name()));
        let ns = [&measured[index], &added[index]].map(|ns| (Spread::of(ns), 0));
        table.row(&[&name, &ns, &compared, &(process::count(&count)?, 0)]);
    }
    let mut counting = Table::new(
        "Added with metrics",
        "layer | recorder | added ns | × without metrics | target | met",
    );
    for (row, added_here) in metered.iter().zip(&measured[ROWS.len()..]) {
        let Metered(wrapping, recorder, name, target) = row;
        let Some(index) = ROWS.iter().position(|row| row.0 == *wrapping) else { continue };
        let ratio = Spread::of_ratios(added_here, &added[index]);
        let recorder = match recorder {
            Recorder::None => "none",
            Recorder::Prometheus => "exporter for Prometheus",
        };
        counting.row(&[name, &recorder, &(Spread::of(added_here), 0), &(ratio, *target)]);
    }
    report::write("layer", METHOD, &[table, counting])
}

/// A layer with metrics, compared with the same layer without metrics.
#[derive(Clone, Copy)]
struct Metered(Wrapping, Recorder, &'static str, Target);

const METERED: [Metered; 4] = [
    Metered(Wrapping::Headers, Recorder::None, "Tollgate, all headers", Target::AtMost(1.3)),
    Metered(Wrapping::Headers, Recorder::Prometheus, "Tollgate, all headers", Target::AtMost(1.3)),
    Metered(Wrapping::NoHeaders, Recorder::None, "Tollgate, no headers", Target::AtMost(1.3)),
    Metered(Wrapping::NoHeaders, Recorder::Prometheus, "Tollgate, no headers", Target::AtMost(1.3)),
];

/// Measures nanoseconds per request, in the fastest of several slices. Later steps subtract large
/// numbers with a small difference, which a single interruption would hide.
pub(crate) fn peer(runtime: &Runtime, wrapping: Wrapping) -> Result<Peer<'_>, Failure> {
    let mut caller = Caller::new(runtime, wrapping)?;
    Ok(Box::new(move || {
        let mut slice = || runtime.block_on(caller.calls_for(SPAN / SLICES));
        (0..SLICES).map(|_| slice()).fold(f64::INFINITY, f64::min)
    }))
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
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    Ok(count as f64 / f64::from(REQUESTS))
}
