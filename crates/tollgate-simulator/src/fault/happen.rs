//! What faults do to the servers, the network and the clocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use tokio::time::{Instant, sleep};
use tollgate_redis::simulation;

use super::{Fault, LITTLE};
use crate::network::Access;
use crate::replica::TIMEOUT;
use crate::server::{Condition, Restart, Server, move_key};
use crate::world::{State, World};

impl Fault {
    pub(crate) async fn happen(self, world: &World, asleep: &[Arc<AtomicU64>]) {
        world.lock().note(format_args!("fault     {self:?}"));
        match self {
            Self::Cut { replica } => {
                Access { world: world.clone(), replica }.cut_all(None);
            }
            Self::Block { replica, server, directions, lasts } => {
                {
                    let road = &mut world.lock().roads[replica];
                    (road.is_blocked, road.blocked_server) = (directions, server);
                }
                sleep(lasts).await;
                world.lock().roads[replica].is_blocked = [false; 2];
            }
            Self::Delay { replica, millis, lasts } => {
                world.lock().roads[replica].delay = millis;
                sleep(lasts).await;
                world.lock().roads[replica].delay = 0;
            }
            Self::Pause { shard, is_machine, lasts } => {
                let master = world.lock().view.masters[shard];
                if is_machine {
                    let mut state = world.lock();
                    state.history.slew(true);
                    state.history.lag(master);
                    state.servers[master].clock.freeze(true);
                }
                pause(world, master, lasts).await;
                if is_machine {
                    let mut state = world.lock();
                    state.history.slew(false);
                    state.history.lag(master);
                    state.servers[master].clock.freeze(false);
                }
            }
            Self::Stutter { shard, seed, lasts } => {
                let master = world.lock().view.masters[shard];
                let (mut rng, end) = (Rng::with_seed(seed), Instant::now() + lasts);
                while Instant::now() < end {
                    // The second pause delays the requests that waited during the first.
                    sleep(Duration::from_millis(rng.u64(20..300))).await;
                    for _ in 0..2 {
                        pause(world, master, Duration::from_millis(rng.u64(10..50))).await;
                        sleep(Duration::from_millis(rng.u64(1..8))).await;
                    }
                }
            }
            Self::Restart { shard, with, is_silent, lasts } => {
                let master = {
                    let mut state = world.lock();
                    if std::mem::replace(&mut state.is_changing, true) {
                        return;
                    }
                    let master = state.view.masters[shard];
                    state.servers[master].condition = Condition::Down;
                    master
                };
                if !is_silent {
                    cut_all(world, asleep.len(), master);
                }
                sleep(lasts).await;
                let mut state = world.lock();
                state.is_changing = false;
                state.servers[master].start(with);
                if with != Restart::All {
                    state.history.break_off(1);
                }
            }
            Self::Failover { shard, ahead, is_split, lasts } => {
                fail_over(world, asleep.len(), (shard, ahead), is_split, lasts).await;
            }
            Self::Move { key, shard, seed } => {
                move_slot(world, key, shard, &mut Rng::with_seed(seed)).await;
            }
            Self::FlushScript { shard } => master(&mut world.lock(), shard).knows_script = false,
            Self::Full { shard, lasts } => {
                {
                    let mut state = world.lock();
                    master(&mut state, shard).is_full = true;
                    state.history.was_full = true;
                }
                sleep(lasts).await;
                world.lock().servers.iter_mut().for_each(|server| server.is_full = false);
            }
            Self::ReadOnly { shard, lasts } => {
                let server = {
                    let mut state = world.lock();
                    master(&mut state, shard).is_read_only = true;
                    state.view.masters[shard]
                };
                sleep(lasts).await;
                let mut state = world.lock();
                // Unless it was demoted meanwhile.
                if state.view.masters[shard] == server {
                    state.servers[server].is_read_only = false;
                }
            }
            Self::Step { shard, ahead } => {
                let mut state = world.lock();
                master(&mut state, shard).clock.step(ahead);
                state.history.break_off((ahead != LITTLE).into());
            }
            Self::Slew { servers, replicas, lasts } => {
                {
                    let mut state = world.lock();
                    // Two slews together would exceed the fastest.
                    if state.history.is_slewed() {
                        return;
                    }
                    state.history.slew(true);
                    if servers < replicas {
                        state.lag_all();
                    }
                    state.servers.iter_mut().for_each(|server| server.clock.slew(servers));
                }
                slew_replicas(asleep, replicas, lasts).await;
                let mut state = world.lock();
                state.history.slew(false);
                if servers < replicas {
                    state.lag_all();
                }
                state.servers.iter_mut().for_each(|server| server.clock.slew(0));
            }
            Self::Suspend { micros } => {
                let mut state = world.lock();
                let ahead = i64::try_from(micros).expect("a few seconds");
                state.servers.iter_mut().for_each(|server| server.clock.step(ahead));
                state.history.sleep(Duration::from_micros(micros));
                for replica in asleep {
                    replica.fetch_add(micros, Ordering::SeqCst);
                }
            }
        }
        world.lock().changed.notify_waiters();
    }
}

fn cut_all(world: &World, replicas: usize, server: usize) {
    for replica in 0..replicas {
        Access { world: world.clone(), replica }.cut_all(Some(server));
    }
}

fn master(state: &mut State, shard: usize) -> &mut Server {
    &mut state.servers[state.view.masters[shard]]
}

/// Sentinel, or the Cluster, replaces a master by its replica.
pub(crate) async fn fail_over(
    world: &World,
    replicas: usize,
    (shard, ahead): (usize, i64),
    is_split: bool,
    lasts: Duration,
) {
    let old = {
        let mut state = world.lock();
        if std::mem::replace(&mut state.is_changing, true) {
            return;
        }
        let old = state.view.masters[shard];
        if !is_split {
            state.servers[old].condition = Condition::Down;
        }
        old
    };
    if !is_split {
        cut_all(world, replicas, old);
        sleep(lasts).await;
    }
    let new = old ^ 1;
    {
        let mut state = world.lock();
        let [from, to] = state.servers.get_disjoint_mut([old, new]).expect("two servers");
        to.take_over(from);
        to.clock.step(ahead);
        state.view.masters[shard] = new;
        state.view.epoch += 1;
        if is_split {
            // Both masters grant the quota.
            state.history.split(lasts);
        } else {
            state.history.break_off(1);
        }
        state.note(format_args!("server {new}  is the master instead of server {old}"));
        state.changed.notify_waiters();
    }
    spread(world, &[new]);
    if is_split {
        sleep(lasts).await;
        world.lock().history.slew(false);
    }
    let mut state = world.lock();
    let view = state.view.clone();
    state.servers[old].demote(view);
    state.is_changing = false;
}

/// Moves a key's slot to a shard, or to the next one if the shard has it.
async fn move_slot(world: &World, key: usize, shard: usize, rng: &mut Rng) {
    let (slot, label, shard, from, to, since) = {
        let mut state = world.lock();
        if std::mem::replace(&mut state.is_changing, true) {
            return;
        }
        let (subject, label) = state.history.subject(key);
        let slot = simulation::slot(&subject);
        let masters = state.view.masters.len();
        let shard = if state.view.shard(slot) == shard { (shard + 1) % masters } else { shard };
        let (from, to) = (state.view.owner(slot), state.view.masters[shard]);
        state.member(from).migrating.insert(slot, to);
        state.member(to).importing.insert(slot);
        let since = state.history.now();
        if state.are_apart(from, to) {
            state.history.disturb();
        }
        (slot, label, shard, from, to, since)
    };
    sleep(Duration::from_millis(rng.u64(..30))).await;
    // Requests whose keys are on both servers have to wait until all keys have moved.
    let until = Instant::now() + TIMEOUT / 2;
    while move_key(&mut world.lock().servers, slot, from, to) {
        if Instant::now() < until {
            sleep(Duration::from_millis(rng.u64(..3))).await;
        }
    }
    sleep(Duration::from_millis(rng.u64(..8))).await;
    {
        let mut state = world.lock();
        state.view.moved.insert(slot, shard);
        state.view.epoch += 1;
        state.member(from).migrating.remove(&slot);
        state.member(to).importing.remove(&slot);
        if state.are_apart(from, to) {
            state.history.break_key(&label, since);
        }
        state.note(format_args!("server {to}  has the slot of {label}"));
    }
    spread(world, &[from, to]);
    // Following two moves would take a request longer than its timeout.
    sleep(TIMEOUT).await;
    world.lock().is_changing = false;
}

/// Some servers learn the new view immediately, and the other servers later.
fn spread(world: &World, first: &[usize]) {
    let mut state = world.lock();
    for server in 0..state.servers.len() {
        let after = if first.contains(&server) { 0 } else { state.rng.u64(..300) };
        let (world, view) = (world.clone(), state.view.clone());
        if after == 0 {
            state.servers[server].learn(view);
            continue;
        }
        tokio::spawn(async move {
            sleep(Duration::from_millis(after)).await;
            world.lock().servers[server].learn(view);
        });
    }
}

/// Stops a server's process, unless it is down.
pub(crate) async fn pause(world: &World, server: usize, lasts: Duration) {
    {
        let mut state = world.lock();
        if state.servers[server].condition != Condition::Works {
            return;
        }
        state.servers[server].condition = Condition::Paused;
    }
    sleep(lasts).await;
    let mut state = world.lock();
    state.servers[server].resume();
    state.changed.notify_waiters();
}

async fn slew_replicas(asleep: &[Arc<AtomicU64>], rate: i64, lasts: Duration) {
    let end = Instant::now() + lasts;
    while Instant::now() < end {
        sleep(Duration::from_millis(1)).await;
        for replica in asleep {
            // Replicas have slept for so long that slewing cannot make this negative.
            let _ = replica.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |asleep| {
                asleep.checked_add_signed(rate / 1_000)
            });
        }
    }
}
