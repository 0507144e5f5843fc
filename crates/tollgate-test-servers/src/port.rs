//! Free ports, reserved so that no other test uses them.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::ops::Range;
use std::sync::Mutex;

use crate::Failure;

/// A TCP port on 127.0.0.1, reserved until this value is dropped, even while no program listens
/// there, for example between a kill and a restart. The reservation includes the port that a Redis
/// Cluster node derives for its bus.
///
/// TCP cannot reserve a port without listening, so a UDP socket with the same number marks it as
/// reserved. Every program that uses this type checks that mark. The kernel removes it when the
/// process exits.
#[derive(Debug)]
pub struct Port {
    number: u16,
    /// Empty for a port that the caller chose.
    _claims: Vec<UdpSocket>,
}

impl Port {
    /// Claims a free port.
    ///
    /// # Errors
    /// No free port was found.
    pub fn claim() -> Result<Self, Failure> {
        for _ in 0..ATTEMPTS {
            let number = fastrand::u16(RANGE);
            let [own, bus] = [number, number + TO_BUS].map(claim);
            if let (Some(own), Some(bus)) = (own, bus) {
                return Ok(Self { number, _claims: vec![own, bus] });
            }
        }
        Err(Failure::new(format!(
            "{ATTEMPTS} random ports of 127.0.0.1 in {RANGE:?} are in use; stop some servers"
        )))
    }

    /// A port that the caller chose, for a program with this name. Port 0 claims a free port.
    ///
    /// # Errors
    /// The port is in use.
    pub(crate) fn given(number: u16, name: &str) -> Result<Self, Failure> {
        if number == 0 {
            return Self::claim();
        }
        is_free(local(number), name)?;
        Ok(Self { number, _claims: Vec::new() })
    }

    /// The port number.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }

    /// This port on 127.0.0.1.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        local(self.number)
    }
}

fn claim(number: u16) -> Option<UdpSocket> {
    let claim = UdpSocket::bind(local(number)).ok()?;
    // A server that does not use this type has no mark, so the TCP port is checked too.
    TcpListener::bind(local(number)).ok()?;
    Some(claim)
}

/// Replaces port 0 with a free port, which remains reserved until this process exits.
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

/// Fails if the port is in use. Checked before a program is started because most programs report
/// this in several lines.
pub(crate) fn is_free(address: SocketAddr, name: &str) -> Result<(), Failure> {
    TcpListener::bind(address).map(drop).map_err(|error| {
        Failure::new(format!("{name} cannot listen on {address}: {error}; choose another port"))
    })
}

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// The ports and the derived bus ports are below the range for outgoing connections.
/// Otherwise a connection could take a server's port during its restart.
const RANGE: Range<u16> = 12_000..22_000;

/// A Cluster node's bus port is its client port plus this number.
const TO_BUS: u16 = 10_000;

/// Even if 3 of 4 ports are taken, the chance that all attempts fail is below 10^-12.
const ATTEMPTS: u32 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_is_reserved_until_drop() {
        let port = Port::claim().unwrap();
        let number = port.number();
        assert!(claim(number).is_none());
        assert!(claim(number + TO_BUS).is_none());
        // A server can still listen on the reserved port.
        drop(TcpListener::bind(port.address()).expect("free"));
        drop(port);
        assert!(claim(number).is_some());
    }

    #[test]
    fn used_port_is_not_free() {
        let listener = TcpListener::bind(local(0)).expect("a port");
        assert!(claim(listener.local_addr().expect("bound").port()).is_none());
    }
}
