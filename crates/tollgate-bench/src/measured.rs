//! Servers under load, in turns, with their processor time.

use crate::process;
use crate::rounds::{Peer, Spread, interleave};
use crate::wrk::Load;

/// A side's numbers, one per round.
#[derive(Default)]
pub(crate) struct Measured {
    /// Requests per second.
    pub(crate) rates: Vec<f64>,
    /// Microseconds per request: processor time, median latency and 99th percentile.
    pub(crate) micros: Vec<f64>,
    pub(crate) medians: Vec<f64>,
    pub(crate) p99s: Vec<f64>,
}

impl Measured {
    /// Thousand requests per second, and processor time per request in microseconds.
    pub(crate) fn work(&self) -> [Spread; 2] {
        [Spread::of(&self.rates) * 1e-3, Spread::of(&self.micros)]
    }

    /// The median latency and the 99th percentile in milliseconds, with two digits.
    pub(crate) fn latency(&self) -> [(Spread, usize); 2] {
        [&self.medians, &self.p99s].map(|micros| (Spread::of(micros) * 1e-3, 2))
    }
}

/// A measured port, and the processes that serve it. Their processor time counts.
#[derive(Clone)]
pub(crate) struct MeasuredPort {
    pub(crate) port: u16,
    pub(crate) processes: Vec<u32>,
}

/// Measures each port with `load`, which gets the port.
pub(crate) fn measure(
    ports: &[MeasuredPort],
    rounds: usize,
    load: impl Fn(u16) -> Load,
) -> Vec<Measured> {
    let mut measured: Vec<_> = ports.iter().map(|_| Measured::default()).collect();
    let mut peers: Vec<Peer<'_>> = Vec::new();
    for (port, measured) in ports.iter().zip(&mut measured) {
        let load = &load;
        peers.push(Box::new(move || {
            let time = || {
                let times = port.processes.iter().map(|process| process::family_time(*process));
                times.sum::<Result<f64, _>>().unwrap_or(f64::NAN)
            };
            let before = time();
            let load = load(port.port);
            measured.micros.push((time() - before) * 1e6 / load.requests);
            measured.medians.push(load.median * 1e3);
            measured.p99s.push(load.p99 * 1e3);
            load.rate
        }));
    }
    let rates = interleave(&mut peers, rounds);
    drop(peers);
    for (measured, rates) in measured.iter_mut().zip(rates) {
        measured.rates = rates;
        // The first run only warms up.
        for numbers in [&mut measured.micros, &mut measured.medians, &mut measured.p99s] {
            numbers.remove(0);
        }
    }
    measured
}
