//! Faults of a run.

mod happen;

use std::ops::Range;
use std::time::Duration;

use fastrand::Rng;

pub(crate) use self::happen::fail_over;
#[cfg(test)]
pub(crate) use self::happen::pause;
use crate::server::Restart;

/// A fault; some last for a time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// A replica's connections break.
    Cut {
        replica: usize,
    },
    /// A replica's messages are held back, to the server, from it, or both.
    Block {
        replica: usize,
        server: Option<usize>,
        directions: [bool; 2],
        lasts: Duration,
    },
    /// A replica's messages take longer.
    Delay {
        replica: usize,
        millis: u64,
        lasts: Duration,
    },
    /// The server's process is stopped, or its whole machine with its clock.
    Pause {
        shard: usize,
        is_machine: bool,
        lasts: Duration,
    },
    /// The server's process is stopped repeatedly for a few milliseconds.
    Stutter {
        shard: usize,
        seed: u64,
        lasts: Duration,
    },
    /// The server is down, and then starts with this data. If silent, replicas do not see that their
    /// connections ended.
    Restart {
        shard: usize,
        with: Restart,
        is_silent: bool,
        lasts: Duration,
    },
    /// A Redis replica with another clock becomes the master, after the old master was down. If
    /// `is_split`, the old master decides until it is demoted.
    Failover {
        shard: usize,
        ahead: i64,
        is_split: bool,
        lasts: Duration,
    },
    /// A key's Cluster slot moves, one key after another. Other servers learn of it late.
    Move {
        key: usize,
        shard: usize,
        seed: u64,
    },
    FlushScript {
        shard: usize,
    },
    Full {
        shard: usize,
        lasts: Duration,
    },
    ReadOnly {
        shard: usize,
        lasts: Duration,
    },
    Step {
        shard: usize,
        ahead: i64,
    },
    /// NTP slews the servers' clocks, and the replicas' clocks. In parts per million.
    Slew {
        servers: i64,
        replicas: i64,
        lasts: Duration,
    },
    /// All machines except the servers' are suspended.
    Suspend {
        micros: u64,
    },
}

/// The number of kinds for [`Fault::random`].
const KINDS: u8 = 23;
/// A server that stops repeatedly. Calls then wait for each other, so their requests' deadlines
/// differ.
const STUTTER: u8 = 17;
const MOVES: Range<u8> = 19..22;
/// Slewed clocks and late answers: blocks are then spent until shortly before they expire.
const CLOSE: [u8; 5] = [5, STUTTER, STUTTER, STUTTER, 22];
/// A step back, in microseconds. All of a run's faults together are less than a second.
const LITTLE: i64 = -80_000;
/// The fastest slew (chrony's default bound), in parts per million.
const SLEW: i64 = 83_333;

impl Fault {
    /// Returns a run's faults, and when they start. Many runs have only a few kinds, because most
    /// bugs need a combination.
    pub(crate) fn several(
        rng: &mut Rng,
        (replicas, shards): (usize, usize),
        is_leased: bool,
        run: Duration,
    ) -> Vec<(Duration, Self)> {
        // In runs without a fault, no request may fail.
        let count = match rng.u8(..5) {
            0 => 0,
            1 | 2 => rng.usize(1..=4),
            _ => rng.usize(4..=12),
        };
        let kinds: Vec<u8> = match rng.u8(..8) {
            0..2 => (0..KINDS).collect(),
            2..4 if shards > 1 => MOVES.collect(),
            2..7 if is_leased => CLOSE.to_vec(),
            4 => vec![STUTTER],
            _ => (0..rng.u8(1..=3)).map(|_| rng.u8(..KINDS)).collect(),
        };
        // While servers' clocks run faster, blocks expire early.
        let slew = Self::Slew { servers: SLEW, replicas: -SLEW, lasts: run };
        let slew =
            (kinds == CLOSE && count > 0 && rng.u8(..8) > 0).then_some((Duration::ZERO, slew));
        let faults = (0..count).map(|_| {
            let at = Duration::from_millis(rng.u64(..run.as_millis() as u64));
            let kind = kinds[rng.usize(..kinds.len())];
            (at, Self::random(kind, rng, (replicas, shards)))
        });
        faults.chain(slew).collect()
    }

    fn random(kind: u8, rng: &mut Rng, (replicas, shards): (usize, usize)) -> Self {
        let (replica, shard) = (rng.usize(..replicas), rng.usize(..shards));
        let lasts = Duration::from_millis(match rng.u8(..3) {
            0 => rng.u64(20..200),
            1 => rng.u64(200..1_500),
            _ => rng.u64(1_000..3_000),
        });
        let ahead = rng.i64(-3_000_000..3_000_000);
        match kind {
            0..3 => Self::Cut { replica },
            3 | 4 => {
                let directions = [[true, false], [false, true], [true, true]][rng.usize(..3)];
                let server = rng.bool().then(|| rng.usize(..2 * shards));
                Self::Block { replica, server, directions, lasts }
            }
            5 => {
                // With a short delay, answers are late, but still before the deadline.
                let most = [25, 120][rng.usize(..2)];
                Self::Delay { replica, millis: rng.u64(10..most), lasts }
            }
            6 | 7 => Self::Pause { shard, is_machine: rng.u8(..4) == 0, lasts },
            8 | 9 => {
                let with = [Restart::All, Restart::Copy, Restart::Nothing][rng.usize(..3)];
                Self::Restart { shard, with, is_silent: rng.bool(), lasts }
            }
            10 => Self::Failover { shard, ahead, is_split: rng.bool(), lasts },
            11 => Self::FlushScript { shard },
            12 => Self::Full { shard, lasts },
            13 => Self::ReadOnly { shard, lasts },
            STUTTER..19 => Self::Stutter { shard, seed: rng.u64(..), lasts },
            // A single server has no slots.
            kind if MOVES.contains(&kind) && shards > 1 => {
                Self::Move { key: rng.usize(..3), shard, seed: rng.u64(..) }
            }
            kind if MOVES.contains(&kind) => Self::Cut { replica },
            14 => Self::Step { shard, ahead: if rng.bool() { LITTLE } else { ahead } },
            15 => {
                let most = [100_000, 1_000_000, 5_000_000][rng.usize(..3)];
                Self::Suspend { micros: rng.u64(10_000..most) }
            }
            _ => {
                let rates = [(SLEW, -SLEW), (-SLEW, SLEW), (rng.i64(-SLEW..=SLEW), 0)];
                let (servers, replicas) = rates[rng.usize(..3)];
                Self::Slew { servers, replicas, lasts }
            }
        }
    }
}
