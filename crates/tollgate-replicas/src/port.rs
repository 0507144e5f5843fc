//! Ports that are chosen, or that no other test takes.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::ops::Range;
use std::sync::Mutex;

use crate::Failure;

/// A TCP port of 127.0.0.1 for as long as this value lives, also while no program listens there,
/// as between a kill and a restart. The port that a Redis Cluster derives from it is included.
///
/// TCP cannot hold a port without listening. So the claim is the UDP port of the same number. All
/// programs that use this type see it, and it ends with its process.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _claims: [UdpSocket; 2],
}

impl Port {
    /// Claims a port that is free.
    ///
    /// # Errors
    /// No port was found to be free.
    pub fn claim() -> Result<Self, Failure> {
        for _ in 0..ATTEMPTS {
            let number = fastrand::u16(RANGE);
            let [own, bus] = [number, number + TO_BUS].map(claim);
            if let (Some(own), Some(bus)) = (own, bus) {
                return Ok(Self { number, _claims: [own, bus] });
            }
        }
        Err(Failure::new(format!(
            "no free port of 127.0.0.1 among {ATTEMPTS} in {RANGE:?}; end some servers"
        )))
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Where a server on it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        local(self.number)
    }
}

fn claim(number: u16) -> Option<UdpSocket> {
    let claim = UdpSocket::bind(local(number)).ok()?;
    // Servers that were started otherwise have no claims.
    TcpListener::bind(local(number)).ok()?;
    Some(claim)
}

/// The same address, with a claimed port in place of 0. This process keeps the claim.
pub(crate) fn chosen(address: SocketAddr) -> Result<SocketAddr, Failure> {
    static CLAIMS: Mutex<Vec<Port>> = Mutex::new(Vec::new());
    if address.port() != 0 {
        return Ok(address);
    }
    let port = Port::claim()?;
    let address = port.address();
    CLAIMS.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(port);
    Ok(address)
}

/// Whether a server can listen there. Asked before a program is started, because few programs
/// explain in one line that the port is in use.
pub(crate) fn is_free(address: SocketAddr, name: &str) -> Result<(), Failure> {
    TcpListener::bind(address).map(drop).map_err(|error| {
        Failure::new(format!("{name} cannot listen on {address}: {error}; choose another port"))
    })
}

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// Below the ports that systems give to outgoing connections, the derived ones too, so
/// that no connection takes the port of a server that is down for a moment.
const RANGE: Range<u16> = 12_000..22_000;

/// Nodes of a Cluster talk to each other on a port this much above that for clients.
const TO_BUS: u16 = 10_000;

/// If half of the range were taken, the chance to find none would be one in 10^12.
const ATTEMPTS: u32 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_claimed_once_until_it_is_returned() {
        let port = Port::claim().unwrap();
        let number = port.number();
        assert!(claim(number).is_none());
        assert!(claim(number + TO_BUS).is_none());
        // The claim leaves the port itself to the server.
        drop(TcpListener::bind(port.address()).expect("free"));
        drop(port);
        assert!(claim(number).is_some());
    }

    #[test]
    fn the_port_of_a_server_without_a_claim_is_left_alone() {
        let listener = TcpListener::bind(local(0)).expect("a port");
        assert!(claim(listener.local_addr().expect("bound").port()).is_none());
    }
}
