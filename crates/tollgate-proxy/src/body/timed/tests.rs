use std::collections::VecDeque;
use std::sync::Arc;

use http::header::FORWARDED;
use http_body_util::BodyExt;

use super::super::upload::{Received, Upload};
use super::*;

/// Sends one piece after each of these pauses, and none afterwards.
struct Script {
    pauses: VecDeque<Duration>,
    pause: Option<Pin<Box<Sleep>>>,
}

impl http_body::Body for Script {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if self.pause.is_none() {
            let Some(pause) = self.pauses.pop_front() else {
                return Poll::Pending;
            };
            self.pause = Some(Box::pin(sleep(pause)));
        }
        ready!(self.pause.as_mut().unwrap().as_mut().poll(cx));
        self.pause = None;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"x")))))
    }
}

#[tokio::test(start_paused = true)]
async fn pauses_are_limited() {
    let pauses = [9, 9, 9].map(Duration::from_secs).into();
    let upload = Upload::new(Received::default(), u64::MAX, FORWARDED, None);
    let script = Script { pauses, pause: None };
    let mut body = Timed::new(script, Duration::from_secs(10), Arc::clone(&upload));
    let start = Instant::now();
    for _ in 0..3 {
        body.frame().await.unwrap().unwrap();
    }
    assert_eq!(upload.complete_since(), start + Duration::from_secs(27));
    let error = body.frame().await.unwrap().unwrap_err();
    assert!(matches!(error, BodyError::Idle(_)), "{error}");
    assert_eq!(start.elapsed(), Duration::from_secs(37));
    // The client is late, not the upstream.
    assert_eq!(upload.complete_since(), Instant::now());
}

#[tokio::test(start_paused = true)]
async fn slow_receiver_does_not_count() {
    let pauses = [1, 1].map(Duration::from_secs).into();
    let script = Script { pauses, pause: None };
    let mut body = Timed::new(
        script,
        Duration::from_secs(10),
        Upload::new(Received::default(), u64::MAX, FORWARDED, None),
    );
    body.frame().await.unwrap().unwrap();
    tokio::time::advance(Duration::from_secs(100)).await;
    body.frame().await.unwrap().unwrap();
}
