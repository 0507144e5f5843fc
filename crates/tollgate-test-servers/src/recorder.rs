//! Records the commands that a server executed.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Cursor, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::client::{RedisClient, Value};

/// A TCP relay in front of a Redis server that records each command with its reply.
///
/// After a client has disconnected, the relay still reads the replies to its commands. So it
/// knows every command that the server executed, unless the server is killed. Put a
/// [`Proxy`](crate::Proxy) between the client and this relay to lose messages.
///
/// The relay's threads run until the process exits.
#[derive(Debug)]
pub struct Recorder {
    address: SocketAddr,
    log: Arc<Log>,
}

/// A command and its reply.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// The command name and the arguments.
    pub command: Vec<Vec<u8>>,
    /// The reply.
    pub reply: Value,
}

#[derive(Debug, Default)]
struct Log {
    exchanges: Mutex<Vec<Exchange>>,
}

impl Recorder {
    /// Starts a relay to a server without TLS, which may start later.
    ///
    /// # Panics
    ///
    /// If the system is out of ports or threads.
    #[must_use]
    pub fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("a bound socket");
        let log = Arc::<Log>::default();
        let shared = Arc::clone(&log);
        thread::spawn(move || {
            // A client may disconnect before it is accepted.
            for client in listener.incoming().filter_map(Result::ok) {
                let log = Arc::clone(&shared);
                // While the server is down, dropping the client's connection closes it.
                thread::spawn(move || relay(client, TcpStream::connect(target)?, log));
            }
        });
        Self { address, log }
    }

    /// The address for clients.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The commands that were answered so far. The order is only defined for each connection.
    #[must_use]
    pub fn exchanges(&self) -> Vec<Exchange> {
        self.log.lock().clone()
    }

    /// The number of commands with this name that were answered so far.
    #[must_use]
    pub fn calls(&self, name: &str) -> usize {
        let is_named = |it: &&Exchange| it.command[0].eq_ignore_ascii_case(name.as_bytes());
        self.log.lock().iter().filter(is_named).count()
    }
}

impl Log {
    fn lock(&self) -> MutexGuard<'_, Vec<Exchange>> {
        self.exchanges.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Relays a connection until the server closes it.
fn relay(client: TcpStream, server: TcpStream, log: Arc<Log>) -> io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let sent = Arc::<Mutex<VecDeque<Value>>>::default();
    let (mut to_client, mut from_server) =
        (client.try_clone()?, BufReader::new(server.try_clone()?));
    let commands = Arc::clone(&sent);
    let replies = thread::spawn(move || {
        while let Ok(bytes) = read_message(&mut from_server) {
            let command = commands.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let command = command.expect("a reply follows a command");
            let command = command.list().iter().map(|word| match word {
                Value::Text(word) => word.clone(),
                other => panic!("not a word of a command: {other:?}"),
            });
            let (command, reply) = (command.collect(), parse(&bytes));
            log.lock().push(Exchange { command, reply });
            // The client may have disconnected.
            let _ = to_client.write_all(&bytes);
        }
        let _ = to_client.shutdown(Shutdown::Both);
    });
    let (mut from_client, mut to_server) = (BufReader::new(client), server);
    while let Ok(bytes) = read_message(&mut from_client) {
        sent.lock().unwrap_or_else(PoisonError::into_inner).push_back(parse(&bytes));
        if to_server.write_all(&bytes).is_err() {
            break;
        }
    }
    // Redis executes the commands that it has, and replies, before it sees the end.
    let _ = to_server.shutdown(Shutdown::Write);
    let _ = replies.join();
    Ok(())
}

fn parse(message: &[u8]) -> Value {
    RedisClient::over(Cursor::new(message.to_vec())).hear()
}

/// Reads a RESP2 message.
fn read_message(from: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let (mut bytes, mut values) = (Vec::new(), 1);
    while values > 0 {
        values -= 1;
        let start = bytes.len();
        if from.read_until(b'\n', &mut bytes)? == 0 || !bytes.ends_with(b"\r\n") {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = String::from_utf8_lossy(&bytes[start..]);
        let count = line[1..].trim_end().parse::<i64>().unwrap_or_default();
        match bytes[start] {
            b'*' => values += count.max(0),
            b'$' if count >= 0 => {
                let length = u64::try_from(count).expect("not negative") + 2;
                if from.by_ref().take(length).read_to_end(&mut bytes)? as u64 != length {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            _ => {}
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_split_at_their_ends() {
        let messages = ["+OK\r\n", "$-1\r\n", "*2\r\n*1\r\n:1\r\n$4\r\na\r\nb\r\n", "*0\r\n"];
        let all = messages.concat();
        let mut from = all.as_bytes();
        for message in messages {
            assert_eq!(read_message(&mut from).unwrap(), message.as_bytes());
        }
        for end in 1..messages[2].len() {
            assert!(read_message(&mut &messages[2].as_bytes()[..end]).is_err(), "{end}");
        }
    }
}
