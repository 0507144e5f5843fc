//! The admin address: status, metrics and operator actions.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio_util::sync::CancellationToken;
use tollgate::RateLimitLayer;
use tollgate::observe::Inspect;
use tollgate_admin::Admin;

use crate::args::Args;
use crate::{Failure, flag};

/// Installs the metrics recorder for `/metrics` on the admin address.
pub(crate) fn recorder() -> Result<PrometheusHandle, Failure> {
    let mut builder = PrometheusBuilder::new();
    for (name, buckets) in tollgate::observe::buckets() {
        builder = builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), buckets)?;
    }
    Ok(builder.install_recorder()?)
}

/// The admin router for a layer, with buttons for the service at `url`. `stopping` is cancelled at
/// shutdown.
pub(crate) fn router<St: Inspect>(
    args: &Args,
    server_id: &str,
    layer: &RateLimitLayer<St>,
    metrics: PrometheusHandle,
    url: &str,
    stopping: CancellationToken,
) -> Result<Router, Failure> {
    let mut admin = Admin::builder()
        .layer(layer)
        .name(server_id)
        .buttons(args.admin_target.as_deref().unwrap_or(url))
        .streams_until(move || stopping.clone().cancelled_owned())
        .show_subjects(args.admin_subjects)
        .token(args.admin_token.clone().unwrap_or_default());
    for host in &args.admin_hosts {
        admin = admin.allow_host(host);
    }
    for peer in &args.admin_peers {
        admin = admin.peer(peer);
    }
    let upkeep = metrics.clone();
    tokio::spawn(async move {
        // Otherwise histogram samples would accumulate until a client reads the metrics.
        loop {
            tokio::time::sleep(Duration::from_secs(5)).await;
            upkeep.run_upkeep();
        }
    });
    flag("--admin", admin.metrics(move || metrics.render()).build())
}

/// Serves the admin router in the background while the program runs.
pub(crate) async fn serve(address: SocketAddr, router: Router) -> Result<SocketAddr, Failure> {
    let (listener, address) = crate::listen("--admin", address).await?;
    // The log of overrides has the operator's address.
    let router = router.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(address)
}
