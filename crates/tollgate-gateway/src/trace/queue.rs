//! Counts the spans that wait for the collector, and their outcomes.
//!
//! The SDK's processor has a bounded queue, but does not report how many spans it dropped. So this
//! module counts spans first, and never passes on more than the queue can hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Span, SpanData, SpanExporter, SpanProcessor,
};

use super::spans::Spans;

const ROOM: usize = 4_096;
const BATCH: usize = 512;
const INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Tally {
    waiting: AtomicUsize,
    exported: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
    /// Whether the last batch failed. Only the first of several consecutive failures is logged.
    failing: AtomicBool,
}

impl Tally {
    pub(super) fn read(&self) -> Spans {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Spans {
            exported: read(&self.exported),
            dropped: read(&self.dropped),
            failed: read(&self.failed),
        }
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    fn enter(&self) -> bool {
        let took = |waiting: usize| (waiting < ROOM).then_some(waiting + 1);
        let entered = self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, took);
        if entered.is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        entered.is_ok()
    }

    fn leave(&self, spans: usize, outcome: &OTelSdkResult) {
        self.waiting.fetch_sub(spans, Ordering::Relaxed);
        let counter = if outcome.is_ok() { &self.exported } else { &self.failed };
        counter.fetch_add(spans as u64, Ordering::Relaxed);
        let was_failing = self.failing.swap(outcome.is_err(), Ordering::Relaxed);
        match outcome {
            Err(error) if !was_failing => {
                tracing::warn!(target: "tollgate", %error, "the collector does not accept spans");
            }
            Ok(()) if was_failing => {
                tracing::info!(target: "tollgate", "the collector accepts spans again");
            }
            _ => {}
        }
    }
}

#[derive(Debug)]
pub(super) struct Queue {
    inner: BatchSpanProcessor,
    tally: Arc<Tally>,
}

impl Queue {
    pub(super) fn new(exporter: impl SpanExporter + 'static, tally: &Arc<Tally>) -> Self {
        let tally = Arc::clone(tally);
        let config = BatchConfigBuilder::default()
            .with_max_queue_size(ROOM)
            .with_max_export_batch_size(BATCH)
            .with_scheduled_delay(INTERVAL)
            .build();
        let exporter = Counted { exporter, tally: Arc::clone(&tally) };
        let inner = BatchSpanProcessor::builder(exporter).with_batch_config(config).build();
        Self { inner, tally }
    }
}

impl SpanProcessor for Queue {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.inner.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        if self.tally.enter() {
            self.inner.on_end(span);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

#[derive(Debug)]
struct Counted<E> {
    exporter: E,
    tally: Arc<Tally>,
}

impl<E: SpanExporter> SpanExporter for Counted<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let outcome = self.exporter.export(batch).await;
        self.tally.leave(spans, &outcome);
        outcome
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
