//! Faults of a run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use tokio::time::{Instant, sleep};

use crate::network::Access;
use crate::server::{Condition, Restart};
use crate::world::World;

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
        is_machine: bool,
        lasts: Duration,
    },
    /// The server's process is stopped repeatedly for a few milliseconds.
    Stutter {
        seed: u64,
        lasts: Duration,
    },
    /// The server is down, and then starts with this data. If silent, replicas do not see that their
    /// connections ended.
    Restart {
        with: Restart,
        is_silent: bool,
        lasts: Duration,
    },
    /// A Redis replica with another clock becomes the master.
    Failover {
        ahead: i64,
        lasts: Duration,
    },
    FlushScript,
    Full {
        lasts: Duration,
    },
    ReadOnly {
        lasts: Duration,
    },
    Step {
        ahead: i64,
    },
    /// NTP slews the server's clock, and the replicas' clocks. In parts per million.
    Slew {
        server: i64,
        replicas: i64,
        lasts: Duration,
    },
    /// All machines except the server's are suspended.
    Suspend {
        micros: u64,
    },
}

/// The number of kinds for [`Fault::random`].
const KINDS: u8 = 20;
/// The fastest slew (chrony's default bound), in parts per million.
const SLEW: i64 = 83_333;

impl Fault {
    /// Returns a run's faults, and when they start. Many runs have only a few kinds, because most
    /// bugs need a combination.
    pub(crate) fn several(rng: &mut Rng, replicas: usize, run: Duration) -> Vec<(Duration, Self)> {
        // In runs without a fault, no request may fail.
        let count = match rng.u8(..5) {
            0 => 0,
            1..4 => rng.usize(1..=4),
            _ => rng.usize(1..=12),
        };
        let kinds: Vec<u8> = match rng.u8(..2) {
            0 => (0..KINDS).collect(),
            _ => (0..rng.u8(1..=3)).map(|_| rng.u8(..KINDS)).collect(),
        };
        let faults = (0..count).map(|_| {
            let at = Duration::from_millis(rng.u64(..run.as_millis() as u64));
            let kind = kinds[rng.usize(..kinds.len())];
            (at, Self::random(kind, rng, replicas))
        });
        faults.collect()
    }

    fn random(kind: u8, rng: &mut Rng, replicas: usize) -> Self {
        let replica = rng.usize(..replicas);
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
                Self::Block { replica, directions, lasts }
            }
            5 => Self::Delay { replica, millis: rng.u64(10..120), lasts },
            6 | 7 => Self::Pause { is_machine: rng.u8(..4) == 0, lasts },
            8 | 9 => {
                let with = [Restart::All, Restart::Copy, Restart::Nothing][rng.usize(..3)];
                Self::Restart { with, is_silent: rng.bool(), lasts }
            }
            10 => Self::Failover { ahead, lasts },
            11 => Self::FlushScript,
            12 => Self::Full { lasts },
            13 => Self::ReadOnly { lasts },
            17..19 => Self::Stutter { seed: rng.u64(..), lasts },
            14 => Self::Step { ahead },
            15 => {
                let most = [100_000, 1_000_000, 5_000_000][rng.usize(..3)];
                Self::Suspend { micros: rng.u64(10_000..most) }
            }
            _ => {
                let rates = [(SLEW, -SLEW), (-SLEW, SLEW), (rng.i64(-SLEW..=SLEW), 0)];
                let (server, replicas) = rates[rng.usize(..3)];
                Self::Slew { server, replicas, lasts }
            }
        }
    }

    pub(crate) async fn happen(self, world: &World, asleep: &[Arc<AtomicU64>]) {
        world.lock().note(format_args!("fault     {self:?}"));
        match self {
            Self::Cut { replica } => {
                Access { world: world.clone(), replica }.cut_all();
            }
            Self::Block { replica, directions, lasts } => {
                world.lock().roads[replica].is_blocked = directions;
                sleep(lasts).await;
                world.lock().roads[replica].is_blocked = [false; 2];
            }
            Self::Delay { replica, millis, lasts } => {
                world.lock().roads[replica].delay = millis;
                sleep(lasts).await;
                world.lock().roads[replica].delay = 0;
            }
            Self::Pause { is_machine, lasts } => {
                {
                    let mut state = world.lock();
                    state.server.condition = Condition::Paused;
                    if is_machine {
                        state.history.slew(true);
                        state.server.clock.freeze(true);
                    }
                }
                sleep(lasts).await;
                let mut state = world.lock();
                state.server.resume();
                if is_machine {
                    state.history.slew(false);
                    state.server.clock.freeze(false);
                }
            }
            Self::Stutter { seed, lasts } => {
                let (mut rng, end) = (Rng::with_seed(seed), Instant::now() + lasts);
                while Instant::now() < end {
                    // The second pause delays the requests that waited during the first.
                    sleep(Duration::from_millis(rng.u64(20..300))).await;
                    for _ in 0..2 {
                        pause(world, Duration::from_millis(rng.u64(10..50))).await;
                        sleep(Duration::from_millis(rng.u64(1..8))).await;
                    }
                }
            }
            Self::Restart { with, is_silent, lasts } => {
                world.lock().server.condition = Condition::Down;
                if !is_silent {
                    cut_all(world, asleep.len());
                }
                sleep(lasts).await;
                let mut state = world.lock();
                state.server.start(with);
                if with != Restart::All {
                    state.history.break_off();
                }
            }
            Self::Failover { ahead, lasts } => {
                world.lock().server.condition = Condition::Down;
                sleep(lasts).await;
                {
                    let mut state = world.lock();
                    state.server.start(Restart::Copy);
                    state.server.clock.step(ahead);
                    state.history.break_off();
                }
                cut_all(world, asleep.len());
            }
            Self::FlushScript => world.lock().server.knows_script = false,
            Self::Full { lasts } => {
                world.lock().server.is_full = true;
                sleep(lasts).await;
                world.lock().server.is_full = false;
            }
            Self::ReadOnly { lasts } => {
                world.lock().server.is_read_only = true;
                sleep(lasts).await;
                world.lock().server.is_read_only = false;
            }
            Self::Step { ahead } => {
                let mut state = world.lock();
                state.server.clock.step(ahead);
                state.history.break_off();
            }
            Self::Slew { server, replicas, lasts } => {
                {
                    let mut state = world.lock();
                    // Two slews together would exceed the fastest.
                    if state.history.is_slewed() {
                        return;
                    }
                    state.history.slew(true);
                    state.server.clock.slew(server);
                }
                slew_replicas(asleep, replicas, lasts).await;
                let mut state = world.lock();
                state.history.slew(false);
                state.server.clock.slew(0);
            }
            Self::Suspend { micros } => {
                let mut state = world.lock();
                let ahead = i64::try_from(micros).expect("a few seconds");
                state.server.clock.step(ahead);
                state.history.disturb();
                for replica in asleep {
                    replica.fetch_add(micros, Ordering::SeqCst);
                }
            }
        }
        world.lock().changed.notify_waiters();
    }
}

fn cut_all(world: &World, replicas: usize) {
    for replica in 0..replicas {
        Access { world: world.clone(), replica }.cut_all();
    }
}

/// Stops the server's process, unless it is down.
async fn pause(world: &World, lasts: Duration) {
    {
        let mut state = world.lock();
        if state.server.condition != Condition::Works {
            return;
        }
        state.server.condition = Condition::Paused;
    }
    sleep(lasts).await;
    let mut state = world.lock();
    state.server.resume();
    state.changed.notify_waiters();
}

async fn slew_replicas(asleep: &[Arc<AtomicU64>], rate: i64, lasts: Duration) {
    let end = Instant::now() + lasts;
    while Instant::now() < end {
        sleep(Duration::from_millis(1)).await;
        for replica in asleep {
            // Clocks start with a sum that slewing cannot exceed.
            let _ = replica.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |asleep| {
                asleep.checked_add_signed(rate / 1_000)
            });
        }
    }
}
