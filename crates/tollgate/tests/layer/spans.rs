//! A span for each decision, if spans are enabled.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use parking_lot::Mutex;
use tollgate::key::ClientIp;
use tollgate::policy::OnStoreError;
use tollgate::{Costs, Limit, MemoryStore, StoreExt};
use tower::Layer;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::set_default;
use tracing::{Event, Level, Metadata, Subscriber};

use crate::stage::{Fault, Staged};
use crate::support::*;

type Fields = BTreeMap<&'static str, String>;

/// Records the decision spans up to `level`, with their fields.
#[derive(Clone)]
struct SpanRecorder {
    level: Level,
    spans: Arc<Mutex<Vec<(bool, Fields)>>>,
}

impl SpanRecorder {
    fn new(level: Level) -> Self {
        Self { level, spans: Arc::default() }
    }

    /// The fields of all closed spans, and the number of open spans.
    fn seen(&self) -> (Vec<Fields>, usize) {
        let spans = self.spans.lock();
        let open = spans.iter().filter(|(is_closed, _)| !is_closed).count();
        (spans.iter().filter(|it| it.0).map(|it| it.1.clone()).collect(), open)
    }

    fn index(id: &Id) -> usize {
        usize::try_from(id.into_u64()).unwrap() - 1
    }
}

struct FieldVisitor<'a>(&'a mut Fields);

impl Visit for FieldVisitor<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

impl Subscriber for SpanRecorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "tollgate::decision" && *metadata.level() <= self.level
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut fields = Fields::new();
        attributes.record(&mut FieldVisitor(&mut fields));
        let mut spans = self.spans.lock();
        spans.push((false, fields));
        Id::from_u64(spans.len() as u64)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        values.record(&mut FieldVisitor(&mut self.spans.lock()[Self::index(id)].1));
    }

    fn try_close(&self, id: Id) -> bool {
        self.spans.lock()[Self::index(&id)].0 = true;
        true
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn decision_spans_contain_no_personal_data() {
    let recorder = SpanRecorder::new(Level::DEBUG);
    let _open = set_default(recorder.clone());
    let (_, store) = memory();
    let staged = Staged::new(store);
    let limits =
        [Limit::global(log("all", 2)), Limit::new(log("each", 9), ClientIp::peer()).shadow()];
    let costs = Costs::from_fn(|head| (*head.method == http::Method::POST).then_some(5));
    let service = builder(&staged, limits).costs(costs).build().unwrap().layer(hello());
    ask(&service, request(http::Method::POST, "/")).await;
    ask(&service, get()).await;
    staged.fail(Fault::NotCharged);
    ask(&service, get()).await;
    let (spans, open) = recorder.seen();
    assert_eq!((spans.len(), open), (6, 0));
    let line = |fields: &Fields| {
        let take = |name: &str| fields.get(name).cloned().unwrap_or_default();
        assert!(take("store_latency_us").parse::<u64>().is_ok(), "{fields:?}");
        ["policy", "client", "cost", "outcome", "remaining"].map(take).join(" ")
    };
    let lines: Vec<_> = spans.iter().map(line).collect();
    assert_eq!(
        lines,
        [
            "all global 5 deny 2",
            "each ip 5 pass 9",
            "all global 1 allow 1",
            "each ip 1 allow 8",
            "all global 1 failed_open ",
            "each ip 1 failed_open ",
        ]
    );
    assert!(!format!("{spans:?}").contains("192.0.2"));
}

/// The local store decides one policy, and the other fails open.
#[tokio::test]
async fn undecided_policies_have_no_remaining() {
    let recorder = SpanRecorder::new(Level::DEBUG);
    let _open = set_default(recorder.clone());
    let staged = Staged::new(memory().1);
    staged.fail(Fault::NotCharged);
    let open = log("open", 9).with_on_store_error(OnStoreError::Open);
    let limits = [Limit::global(log("local", 4)), Limit::global(open)];
    let service = limited(&staged.or_local(MemoryStore::default()), limits);
    assert_eq!(status(&service).await, 200);
    let (spans, _) = recorder.seen();
    let line = |fields: &Fields| {
        ["policy", "outcome", "remaining"]
            .map(|name| fields.get(name).cloned())
            .map(Option::unwrap_or_default)
            .join(" ")
    };
    assert_eq!(spans.iter().map(line).collect::<Vec<_>>(), ["local local 1", "open failed_open "]);
}

#[tokio::test]
async fn span_covers_the_store_call() {
    let recorder = SpanRecorder::new(Level::DEBUG);
    let _open = set_default(recorder.clone());
    let (_, store) = memory();
    let staged = Staged::new(store);
    staged.hold();
    let service = limited(&staged, [Limit::global(log("all", 2))]);
    let asked = tokio::spawn(async move { status(&service).await });
    tokio::task::yield_now().await;
    assert_eq!(recorder.seen(), (vec![], 1));
    staged.release();
    assert_eq!(asked.await.unwrap(), 200);
    assert_eq!(recorder.seen().0.len(), 1);
}

#[tokio::test]
async fn spans_need_debug_level() {
    let recorder = SpanRecorder::new(Level::INFO);
    let _open = set_default(recorder.clone());
    let (_, store) = memory();
    let service = limited(&store, [Limit::global(log("all", 2))]);
    assert_eq!(status(&service).await, 200);
    assert_eq!(recorder.seen(), (vec![], 0));
}
