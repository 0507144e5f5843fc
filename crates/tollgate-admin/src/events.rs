//! The page's stream: `/status` and `/top` once per second, one JSON object per line.

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
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::answers::{Status, TopOfPolicy};
use super::overrides::{self, OverrideStatus};
use super::problem::Problem;
use super::reports;
use super::state::{MAX_STREAMS, State};

#[derive(Serialize)]
struct Event<'a> {
    server: Option<&'a str>,
    instance: &'a str,
    uptime: f64,
    #[serde(flatten)]
    status: Status,
    top: Option<Vec<TopOfPolicy>>,
    /// The overrides that end first.
    overrides: Option<Vec<OverrideStatus>>,
}

pub(super) fn open(state: &State, top: bool) -> Result<Response, Problem> {
    let Ok(permit) = Arc::clone(&state.0.streams.permits).try_acquire_owned() else {
        let detail = format!("{MAX_STREAMS} streams are open, which is the maximum: close a page.");
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail));
    };
    let (lines, body) = mpsc::channel(1);
    tokio::spawn(write(state.clone(), top, lines, permit));
    let mut response = Body::new(Lines(body)).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// Writes until the reader disconnects, the server stops, or [`LIFETIME`] expires. Runs in its own
/// task: if the body produced the lines, a reader that stops polling would hold its permit forever.
async fn write(state: State, top: bool, lines: mpsc::Sender<Bytes>, _permit: OwnedSemaphorePermit) {
    let streams = &state.0.streams;
    let ending = async {
        match &streams.ending {
            Some(ending) => ending().await,
            None => std::future::pending().await,
        }
    };
    let mut ending = pin!(ending);
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
            status: reports::status(&state).await,
            top: top.then(|| reports::top_of(&state, SHOWN)),
            overrides: top.then(|| {
                let mut first = overrides::current(&state);
                first.truncate(SHOWN_OVERRIDES);
                first
            }),
        };
        let Ok(mut line) = serde_json::to_vec(&event) else { return };
        line.push(b'\n');
        if !matches!(timeout(PATIENCE, lines.send(line.into())).await, Ok(Ok(()))) {
            return;
        }
    }
}

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

const SECOND: Duration = Duration::from_secs(1);

const PATIENCE: Duration = Duration::from_secs(10);

/// Streams close after this time, and the page opens a new stream. Sockets and proxies buffer
/// lines, so a reader that has stopped could otherwise remain unnoticed for hours.
const LIFETIME: Duration = Duration::from_secs(600);

const SHOWN: usize = 10;

/// Each line contains them.
const SHOWN_OVERRIDES: usize = 100;
