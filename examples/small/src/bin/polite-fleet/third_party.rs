//! The third party: a service that allows `quota` calls in any window.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::{HeaderMap, StatusCode};
use tokio::time::{Instant, sleep};

use super::calls::{Answer, Calls};
use super::options::{Options, Says};

#[derive(Clone)]
pub(super) struct ThirdParty {
    calls: Arc<Mutex<Calls>>,
    says: Says,
}

impl ThirdParty {
    pub(super) fn new(options: &Options) -> Self {
        let calls = Arc::new(Mutex::new(Calls::new(options)));
        Self { calls, says: options.says }
    }

    pub(super) fn router(&self) -> Router {
        let this = self.clone();
        Router::new().route("/", get(async move |headers: HeaderMap| this.answer(&headers).await))
    }

    /// The calls until now.
    pub(super) fn calls(&self) -> MutexGuard<'_, Calls> {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.advance(Instant::now());
        calls
    }

    /// Notes how late a busy machine runs this process. The margin cannot cover all of that.
    pub(super) async fn watch_stalls(self) {
        let pause = Duration::from_millis(20);
        loop {
            let slept = Instant::now();
            sleep(pause).await;
            let stall = slept.elapsed().saturating_sub(pause);
            let mut calls = self.calls();
            calls.longest_stall = calls.longest_stall.max(stall);
        }
    }

    async fn answer(&self, headers: &HeaderMap) -> Response {
        let task = headers["user-agent"].to_str().unwrap_or_default();
        let answer = self.calls().arrive(task);
        // The call's work.
        sleep(Duration::from_millis(20)).await;
        self.calls().in_flight -= 1;
        match answer {
            Answer::Allowed => StatusCode::OK.into_response(),
            Answer::Denied { wait } => self.deny(wait.as_secs() + 1),
        }
    }

    fn deny(&self, seconds: u64) -> Response {
        let status = StatusCode::TOO_MANY_REQUESTS;
        match self.says {
            Says::RetryAfter => (status, [("retry-after", seconds.to_string())]).into_response(),
            Says::RateLimit => {
                let policy = format!("\"calls\";r=0;t={seconds}");
                (status, [("ratelimit", policy)]).into_response()
            }
            Says::Nothing => status.into_response(),
            Says::Lies => {
                let lies = [("retry-after", "999999999"), ("ratelimit", "\"calls\";r=1000000")];
                (status, lies).into_response()
            }
        }
    }
}
