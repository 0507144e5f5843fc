//! Views for operators: the admin router over all current limits, and metrics.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::fmt::Write as _;
use std::hash::BuildHasher;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use axum::Router;
use axum::routing::get;
use metrics::{counter, gauge};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tollgate::key::SubjectFormat;
use tollgate::observe::{Inspect, Metric};
use tollgate_admin::{Admin, AdminBuilder};

use super::{access_log, admin, summary};
use crate::metric;
use crate::serve::app::App;
use crate::serve::edge::slots;
use crate::serve::gateway::{Gateway, History};
use crate::trace::Spans;
use tollgate_proxy::TUNNELS;

/// Settings that only environment variables can set, because secrets do not belong in the file.
const TOKEN: &str = tollgate_config::ADMIN_TOKEN;
const HOSTS: &str = "TOLLGATE_ADMIN_HOSTS";
const SUBJECTS: &str = "TOLLGATE_ADMIN_SUBJECTS";

/// Installs the metrics recorder. Call this before limits are created, because each limit registers
/// its metrics then.
pub(crate) fn count() -> Result<PrometheusHandle, String> {
    let mut builder = PrometheusBuilder::new();
    for metric in metric::all().filter(|metric| !metric.buckets.is_empty()) {
        let matcher = Matcher::Full(metric.name.to_owned());
        let bucketed = builder.set_buckets_for_metric(matcher, metric.buckets);
        builder = bucketed.map_err(|error| error.to_string())?;
    }
    let metrics = builder.install_recorder().map_err(|error| error.to_string())?;
    metric::all().for_each(Metric::describe);
    // A counter that starts at zero shows its first event as a change.
    for counter in [slots::FULL, slots::REFUSED, access_log::DROPPED, summary::INVALID_HEADS] {
        counter!(counter).increment(0);
    }
    for gauge in [slots::CONNECTIONS, TUNNELS] {
        gauge!(gauge).set(0);
    }
    Ok(metrics)
}

pub(crate) fn settings(address: SocketAddr) -> Result<AdminBuilder, String> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let token = variable(TOKEN);
    // On other addresses, any client can connect and send any `Host`, even an allowed one.
    let is_ours = address.ip().to_canonical().is_loopback();
    if token.is_none() && !is_ours {
        tracing::warn!(
            "the admin address {address} is not on loopback and {TOKEN} is not set: only /healthz \
             and /readyz are answered there; `openssl rand -hex 32` makes a token [TG0403]"
        );
    }
    // Without a token, use a random token that no client can guess. Loopback shows numbers without
    // it.
    let mut admin = Admin::builder().token(token.unwrap_or_else(unknown)).hosts_setting(HOSTS);
    if !is_ours {
        admin = admin.numbers_need_token();
    }
    for host in variable(HOSTS).iter().flat_map(|hosts| hosts.split(',')) {
        admin = admin.allow_host(host.trim());
    }
    let shown = match variable(SUBJECTS).as_deref() {
        None | Some("masked") => SubjectFormat::Masked,
        Some("hash") => SubjectFormat::Hash,
        Some("clear") => SubjectFormat::Clear,
        Some(_) => return Err(format!("{SUBJECTS}: use one of hash, masked, clear [TG0404]")),
    };
    let admin = admin.show_subjects(shown);
    let checked = admin.clone().build();
    checked.map(|_| admin).map_err(|error| format!("{TOKEN} or {HOSTS}: {error}"))
}

pub(crate) fn router<St: Inspect>(
    settings: AdminBuilder,
    gateway: &Arc<Gateway<St>>,
    metrics: PrometheusHandle,
) -> Result<Router, String> {
    let layers = Arc::clone(gateway);
    let rendered = Arc::clone(gateway);
    let shown = Arc::clone(gateway);
    let draining = Arc::clone(gateway);
    let config = Router::new().route(
        "/config",
        get(move || {
            let app = shown.app();
            let answer = admin::config(&shown.history(), app.key_sets(), &app.tenants().numbers());
            async move { answer }
        })
        .fallback(|| async { admin::read_only() }),
    );
    let settings =
        gateway.app().plan.admin.peers.iter().flatten().fold(settings, AdminBuilder::peer);
    let router = settings
        .layers(move || layers.app().layers().collect())
        .metrics(move || {
            describe(&rendered.history());
            count_spans(rendered.persistent.tracing.spans());
            metrics.render() + &servers(&rendered.app())
        })
        .streams_until(move || {
            let gateway = Arc::clone(&draining);
            async move { *gateway.draining.wait().await }
        })
        .further(config)
        .build();
    router.map_err(|error| error.to_string())
}

/// Aggregates measured times, which would otherwise accumulate until a client reads the metrics.
pub(crate) async fn keep_small(metrics: PrometheusHandle) {
    loop {
        tokio::time::sleep(Duration::from_secs(5)).await;
        metrics.run_upkeep();
    }
}

#[expect(clippy::cast_precision_loss, reason = "fewer than 2^53 reloads")]
fn describe(history: &History) {
    let loaded_at = history.loaded_at.duration_since(UNIX_EPOCH).unwrap_or_default();
    gauge!("tollgate_config_version").set(history.version as f64);
    gauge!("tollgate_config_loaded_timestamp_seconds").set(loaded_at.as_secs_f64());
    gauge!("tollgate_config_current").set(f64::from(u8::from(history.error.is_none())));
    counter!("tollgate_config_reload_failures_total").absolute(history.failures);
}

/// Which servers get requests. A server counts as up if any route sends requests to it.
///
/// Not in the global recorder, which would retain servers that a reload has removed.
fn servers<St: Inspect>(app: &App<St>) -> String {
    let mut servers: BTreeMap<_, bool> = BTreeMap::new();
    for (server, is_up) in app.servers() {
        *servers.entry(server).or_default() |= is_up;
    }
    let recorder = PrometheusBuilder::new().build_recorder();
    metrics::with_local_recorder(&recorder, || {
        metric::all().for_each(Metric::describe);
        for (server, is_up) in servers {
            gauge!("tollgate_gateway_upstream_up", "upstream" => server).set(u8::from(is_up));
        }
    });
    recorder.handle().render()
}

/// Publishes the span counts, which are zero if tracing is off.
fn count_spans(spans: Spans) {
    let Spans { exported, dropped, failed } = spans;
    for (outcome, spans) in [("exported", exported), ("dropped", dropped), ("failed", failed)] {
        counter!("tollgate_trace_spans_total", "outcome" => outcome).absolute(spans);
    }
}

/// A token of 256 random bits, which is never shown.
fn unknown() -> String {
    (0..4_u64).fold(String::new(), |mut token, n| {
        // The system seeds each state. Writing to a string does not fail.
        let _ = write!(token, "{:016x}", RandomState::new().hash_one(n));
        token
    })
}
