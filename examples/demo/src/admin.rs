//! The admin address: status, metrics and operator actions.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tollgate::RateLimitLayer;
use tollgate::observe::Inspect;
use tollgate_admin::Admin;

use crate::app::ServerId;
use crate::args::AdminArgs;
use crate::banner::reachable;

/// Installs the metrics recorder for `/metrics` on the admin address.
pub(crate) fn count() -> Result<PrometheusHandle, String> {
    let mut builder = PrometheusBuilder::new();
    for (name, buckets) in tollgate::observe::buckets() {
        builder = builder
            .set_buckets_for_metric(Matcher::Full(name.to_owned()), buckets)
            .map_err(|error| error.to_string())?;
    }
    builder.install_recorder().map_err(|error| error.to_string())
}

/// The admin router for a layer.
///
/// `public` is the address on which this replica serves. `stopping` is cancelled at shutdown.
pub(crate) fn router<St: Inspect>(
    server_id: &ServerId,
    args: &AdminArgs,
    layer: &RateLimitLayer<St>,
    metrics: PrometheusHandle,
    public: SocketAddr,
    stopping: CancellationToken,
) -> Result<Router, String> {
    let public = || format!("http://{}", reachable(public));
    let mut admin = Admin::builder()
        .layer(layer)
        .name(server_id.as_str())
        .buttons(args.admin_target.clone().unwrap_or_else(public))
        .streams_until(move || stopping.clone().cancelled_owned())
        .show_subjects(args.admin_subjects);
    if let Some(token) = &args.admin_token {
        admin = admin.token(token.0.clone());
    }
    for host in &args.admin_hosts {
        admin = admin.allow_host(host);
    }
    for peer in &args.admin_peers {
        admin = admin.peer(peer);
    }
    let router = admin.metrics(move || metrics.render()).build();
    router.map_err(|error| format!("--admin: {error}"))
}

/// Serves the admin router in the background while the program runs.
pub(crate) async fn serve(address: SocketAddr, router: Router) -> Result<SocketAddr, String> {
    let bound = TcpListener::bind(address).await;
    let bound = bound.and_then(|listener| Ok((listener.local_addr()?, listener)));
    let (address, listener) = bound.map_err(|error| {
        format!("cannot listen on {address}: {error}; choose another with --admin")
    })?;
    // The log of overrides has the operator's address.
    let router = router.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(address)
}

/// Aggregates measurements while the program runs. Otherwise histogram samples would accumulate
/// until a client reads the metrics.
pub(crate) fn keep_small(metrics: PrometheusHandle) {
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_secs(5)).await;
            metrics.run_upkeep();
        }
    });
}
