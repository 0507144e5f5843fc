//! Where a request enters, before routes and limits see it.

use std::sync::Arc;

use http::header::{CONNECTION, HeaderValue};
use http::{Request, Response, Version};
use tollgate_proxy::path::PathRules;
use tollgate_proxy::{Admitted, Connection, Fault, Meaning, Received, admit};

use super::answers::answer_to;
use super::body::Body;

/// Brings a request into the form that routes and limits see.
///
/// # Errors
/// The response, if the request has no such form.
pub(super) fn admitted<B>(
    mut request: Request<B>,
    connection: &Arc<Connection>,
    received: Option<Received>,
    paths: PathRules,
) -> Result<Request<Admitted<B>>, Box<Response<Body>>> {
    let Meaning { host, original, upgrade } =
        admit(&mut request, paths).map_err(|fault| refuse(fault, request.version()))?;
    Ok(request.map(|body| Admitted {
        body,
        received,
        connection: Arc::clone(connection),
        client: None,
        own_header: None,
        host,
        original,
        upgrade,
    }))
}

/// Answers a request with a fault. If the request's host or its end is unclear, so are the bytes
/// that follow, and the connection is closed.
fn refuse(fault: Fault, version: Version) -> Box<Response<Body>> {
    let mut response = answer_to(fault);
    let is_unclear = matches!(fault, Fault::Host | Fault::Framing | Fault::Coding | Fault::Upgrade);
    if version <= Version::HTTP_11 && is_unclear {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Box::new(response)
}
