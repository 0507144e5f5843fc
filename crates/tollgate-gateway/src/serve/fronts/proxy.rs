//! Forwards clients' requests, or shows clients their limits.

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response};
use hyper::body::Incoming;
use tollgate::access::Listed;
use tollgate::denial::Denial;
use tollgate::headers;
use tollgate::layer::Status;
use tollgate::observe::Inspect;
use tollgate_proxy::{Admitted, Connection, Received, RequestBody};
use tower_service::Service;

use crate::serve::app::App;
use crate::serve::body::Body;
use crate::serve::decide::facts::{Facts, head};
use crate::serve::decide::settled::Settled;
use crate::serve::entrance::admitted;

pub(crate) async fn answer<St: Inspect>(
    app: &App<St>,
    request: Request<Incoming>,
    connection: &Arc<Connection>,
    received: Option<Received>,
) -> Response<Body> {
    let version = request.version();
    let request = request.map(|body| RequestBody::of(version, body));
    let request = match admitted(request, connection, received, app.plan.paths) {
        Ok(request) => request,
        Err(refused) => return *refused,
    };
    // The service answers a preflight, as for the gateway's other answers.
    if app.plan.is_status(request.uri().path()) && !head(&request).is_preflight() {
        return Box::pin(status(app, request)).await;
    }
    let mut answer = app
        .decide(request, |route, prices| {
            let (forward, proxies) = (route.forward.as_ref()?, &app.proxies);
            Some(Settled { forward, proxies, prices })
        })
        .await;
    if app.reserves {
        // Clients never see the cost header, even if this request reserved no units. A gateway
        // without any reservation forwards the header to a gateway in front of it.
        answer.headers_mut().remove(headers::COST);
        answer = answer.map(|body| body.hiding_cost());
    }
    answer
}

/// Shows a client its limits. It is identified as for any other request.
async fn status<St: Inspect, B>(app: &App<St>, request: Request<Admitted<B>>) -> Response<Body> {
    let mut status = app.status.of(request.body().host.as_ref()).clone();
    let mut facts = None;
    // Other methods get 405.
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        match app.listed(&request) {
            Err(response) => return *response,
            Ok(Listed::Blocked) => return *app.rejected(&Denial::denied_subject(), &request),
            Ok(Listed::Allowed) => status = Status::default(),
            Ok(_) => {
                let client = app.identity.find(&head(&request));
                if let Some(refused) = client.too_many_refused() {
                    return *app.not_verified(refused, &request);
                }
                facts = Some(Facts::new(client));
            }
        }
    }
    let mut request = request.map(drop);
    if let Some(facts) = facts {
        request.extensions_mut().insert(facts);
    }
    let response = status.call(request).await.unwrap_or_else(|never| match never {});
    response.map(|text| Bytes::from(text).into())
}
