//! Ports that no other test takes.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};

/// A TCP port of 127.0.0.1, and the one that a Cluster derives from it, for as long as
/// this value lives: also while nobody listens there, as between a kill and a restart.
///
/// Nothing of TCP can be held without listening, so the claim is the UDP port of the same
/// number. All tests of this machine that use this crate see it, and it goes with the
/// process.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _claims: [UdpSocket; 2],
}

impl Port {
    /// Takes a free one.
    ///
    /// # Panics
    /// Too many are in use.
    pub fn claim() -> Self {
        for _ in 0..ATTEMPTS {
            let number = fastrand::u16(RANGE);
            let [own, bus] = [number, number + TO_BUS].map(claim);
            if let (Some(own), Some(bus)) = (own, bus) {
                return Self { number, _claims: [own, bus] };
            }
        }
        panic!("no free port of 127.0.0.1 among {ATTEMPTS} in {RANGE:?}; end some servers")
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// The address of a server there.
    pub fn address(&self) -> SocketAddr {
        local(self.number)
    }
}

fn claim(number: u16) -> Option<UdpSocket> {
    let claim = UdpSocket::bind(local(number)).ok()?;
    // Somebody else's server knows nothing of claims.
    TcpListener::bind(local(number)).ok()?;
    Some(claim)
}

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// Below the ports that systems give to outgoing connections, the derived ones too, so
/// that none of those sits on the port of a server that is down for a moment.
const RANGE: std::ops::Range<u16> = 12_000..22_000;

/// Nodes of a Cluster talk to each other on a port this much above that for clients.
const TO_BUS: u16 = 10_000;

/// If half of the range were taken, the chance to find none would be one in 10^12.
const ATTEMPTS: u32 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_claimed_once_until_it_is_given_back() {
        let port = Port::claim();
        let number = port.number();
        assert!(claim(number).is_none());
        assert!(claim(number + TO_BUS).is_none());
        // The claim leaves the port itself to the server.
        drop(TcpListener::bind(port.address()).expect("free"));
        drop(port);
        assert!(claim(number).is_some());
    }

    #[test]
    fn a_port_of_somebody_else_is_left_alone() {
        let listener = TcpListener::bind(local(0)).expect("a port");
        assert!(claim(listener.local_addr().expect("bound").port()).is_none());
    }
}
