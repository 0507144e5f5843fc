//! State that all requests share.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use http::HeaderValue;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tollgate::key::SubjectFormatter;
use tollgate::observe::LayerHandle;

use super::guard::Guard;

#[derive(Clone)]
pub(super) struct State(pub(super) Arc<AdminContext>);

pub(super) struct AdminContext {
    pub(super) guard: Guard,
    pub(super) subjects: SubjectFormatter,
    pub(super) layers: Vec<Layers>,
    pub(super) metrics: Option<Render>,
    pub(super) target: Option<HeaderValue>,
    pub(super) streams: Streams,
}

impl State {
    pub(super) fn layers(&self) -> Vec<LayerHandle> {
        self.0.layers.iter().flat_map(|layers| layers()).collect()
    }
}

pub(super) type Layers = Arc<dyn Fn() -> Vec<LayerHandle> + Send + Sync>;
pub(super) type Render = Arc<dyn Fn() -> String + Send + Sync>;

pub(super) type Ending = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

pub(super) struct Streams {
    pub(super) permits: Arc<Semaphore>,
    pub(super) ending: Option<Ending>,
    pub(super) server: Option<String>,
    /// Changes with each start, so the page notices that counts have restarted from zero.
    pub(super) instance: String,
    pub(super) started: Instant,
}

impl Streams {
    pub(super) fn new(server: Option<String>, ending: Option<Ending>) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(MAX_STREAMS)),
            ending,
            server,
            instance: instance(),
            started: Instant::now(),
        }
    }
}

fn instance() -> String {
    use std::hash::BuildHasher as _;
    // `RandomState` is seeded by the operating system.
    format!("{:016x}", std::collections::hash_map::RandomState::new().hash_one(0))
}

/// The maximum number of open streams. Each stream calls the store once per second for each global
/// quota.
pub(super) const MAX_STREAMS: usize = 16;
