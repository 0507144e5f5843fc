//! The stream that the page reads: what `/status` and `/top` say, once a second, one JSON
//! object a line.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http_body::Frame;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use super::State;
use super::answers::{Status, TopOfPolicy};
use super::problem::Problem;
use super::routes;

/// Completes when streams are to end.
pub(super) type Ending = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// What all streams of a router share.
pub(super) struct Streams {
    room: Arc<Semaphore>,
    ending: Ending,
    server: Option<String>,
    /// Another one after each start, by which a page knows that counts begin anew.
    instance: String,
    started: Instant,
}

/// A line of the stream.
#[derive(Serialize)]
struct Event<'a> {
    server: Option<&'a str>,
    instance: &'a str,
    uptime: f64,
    #[serde(flatten)]
    status: Status,
    top: Option<Vec<TopOfPolicy>>,
}

impl Streams {
    pub(super) fn new(server: Option<String>, ending: Ending) -> Self {
        Self {
            room: Arc::new(Semaphore::new(MOST)),
            ending,
            server,
            instance: instance(),
            started: Instant::now(),
        }
    }

    /// The response whose body goes on until the reader leaves or the server does. With
    /// `top`, it says who is denied.
    pub(super) fn open(state: &State, top: bool) -> Result<Response, Problem> {
        let Ok(place) = Arc::clone(&state.0.streams.room).try_acquire_owned() else {
            let detail = format!("{MOST} pages are reading already: close one of them.");
            return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail));
        };
        let (lines, body) = mpsc::channel(1);
        tokio::spawn(write(state.clone(), top, lines, place));
        let mut response = Body::new(Lines(body)).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Ok(response)
    }
}

/// Writes until nobody reads, or for as long as a stream goes on. A task and not a body that is
/// polled, because a reader who stops reading would never be noticed, and would keep the place
/// of another.
async fn write(state: State, top: bool, lines: mpsc::Sender<Bytes>, _place: OwnedSemaphorePermit) {
    let streams = &state.0.streams;
    let mut ending = (streams.ending)();
    let mut over = pin!(sleep(LIFETIME));
    let mut seconds = interval(SECOND);
    seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            () = &mut ending => return,
            () = lines.closed() => return,
            () = &mut over => return,
            _ = seconds.tick() => {}
        }
        let event = Event {
            server: streams.server.as_deref(),
            instance: &streams.instance,
            uptime: streams.started.elapsed().as_secs_f64(),
            status: routes::status(&state).await,
            top: top.then(|| routes::top_of(&state, SHOWN)),
        };
        let Ok(mut line) = serde_json::to_vec(&event) else { return };
        line.push(b'\n');
        if !matches!(timeout(PATIENCE, lines.send(line.into())).await, Ok(Ok(()))) {
            return;
        }
    }
}

/// The lines as a body.
struct Lines(mpsc::Receiver<Bytes>);

impl http_body::Body for Lines {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(context).map(|line| line.map(|line| Ok(Frame::data(line))))
    }
}

fn instance() -> String {
    use std::hash::BuildHasher as _;
    // Seeded by the system.
    format!("{:016x}", std::collections::hash_map::RandomState::new().hash_one(0))
}

/// How many streams a router has at once: each asks the store once a second about every
/// quota that all share.
pub(super) const MOST: usize = 16;

const SECOND: Duration = Duration::from_secs(1);

/// How long a reader may leave lines unread.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long a stream goes on; a page that reads begins another. What lies between here and a
/// reader (sockets, proxies) takes lines for as long as it has room, and so nobody knows that he
/// has stopped reading: a stream without an end would keep his place for hours.
const LIFETIME: Duration = Duration::from_secs(600);

/// How many subjects of a policy are shown.
const SHOWN: usize = 10;
