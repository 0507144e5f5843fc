//! Ports that are chosen, or free.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use crate::Failure;

/// Calls `start` with `address`, or with a free port of its host where that is 0.
///
/// A free port may be taken by somebody else before it is used, so that is tried again.
pub(crate) fn on<T>(
    address: SocketAddr,
    name: &str,
    mut start: impl FnMut(SocketAddr) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut attempts = if address.port() == 0 { ATTEMPTS } else { 1 };
    loop {
        attempts -= 1;
        let outcome = free(address, name).and_then(&mut start);
        if outcome.is_ok() || attempts == 0 {
            return outcome;
        }
    }
}

/// The same address with a port that nobody has at the moment. Asked before a program is
/// started, because few say in one line that it is taken.
pub(crate) fn free(address: SocketAddr, name: &str) -> Result<SocketAddr, Failure> {
    let bound = TcpListener::bind(address).and_then(|listener| listener.local_addr());
    bound.map_err(|error| {
        Failure::new(format!("{name} cannot listen on {address}: {error}; choose another port"))
    })
}

/// Ports that nobody has at the moment, all of them different: for what has to be known before
/// the programs are started that will have them.
pub(crate) fn several(count: usize) -> Result<Vec<SocketAddr>, Failure> {
    let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let bound = (0..count).map(|_| bind()).collect::<io::Result<Vec<_>>>();
    let addresses = bound.and_then(|all| all.iter().map(TcpListener::local_addr).collect());
    addresses.map_err(|error| Failure::new(format!("no port is free: {error}")))
}

const ATTEMPTS: usize = 3;
