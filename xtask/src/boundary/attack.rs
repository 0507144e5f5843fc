//! The attack: sends the requests and records their answers.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The result of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    /// The time since the start of the window that ends between the two bursts.
    pub(super) at: Duration,
    pub(super) is_admitted: bool,
}

/// Sends `burst` requests at 59/60 of a window, and `burst` more at its end.
///
/// Fixed windows start at multiples of their length since 1970 by Redis' clock, which is this
/// machine's clock.
pub(super) fn run(address: SocketAddr, window: Duration, burst: usize) -> io::Result<Vec<Answer>> {
    let begin = next_window(window);
    let moments = [window * 59 / 60, window + AFTER];
    let requests = moments.into_iter().flat_map(|moment| std::iter::repeat_n(moment, burst));
    let threads: Vec<_> =
        requests.map(|moment| thread::spawn(move || ask(address, begin, moment))).collect();
    let answers = threads.into_iter().map(|thread| {
        thread.join().unwrap_or_else(|_| Err(io::Error::other("a client has panicked")))
    });
    answers.collect()
}

/// The start of the next window.
fn next_window(window: Duration) -> Instant {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let micros = window.as_micros() - now.as_micros() % window.as_micros();
    Instant::now() + Duration::from_micros(u64::try_from(micros).unwrap_or_default())
}

/// Sends a request at its moment, over a connection that is already open.
fn ask(address: SocketAddr, begin: Instant, moment: Duration) -> io::Result<Answer> {
    // nginx closes a connection that is idle for a minute. This connection is idle for half a
    // minute at most.
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    thread::sleep((begin + moment).saturating_duration_since(Instant::now()));
    stream.write_all(b"GET /items HTTP/1.1\r\nHost: tollgate\r\nConnection: close\r\n\r\n")?;
    // A late request would arrive in the next window.
    if begin.elapsed() > moment + LATE {
        return Err(io::Error::other("a request was sent too late; is the machine busy?"));
    }
    let mut status = [0; b"HTTP/1.1 200".len()];
    stream.read_exact(&mut status)?;
    let at = begin.elapsed();
    match &status[b"HTTP/1.1 ".len()..] {
        b"200" => Ok(Answer { at, is_admitted: true }),
        b"429" => Ok(Answer { at, is_admitted: false }),
        _ => Err(io::Error::other(String::from_utf8_lossy(&status).into_owned())),
    }
}

/// Half of the time from the first burst to the end of the window.
const LATE: Duration = Duration::from_millis(100);

/// A margin that ensures that the second burst arrives in the next window.
const AFTER: Duration = Duration::from_millis(5);
