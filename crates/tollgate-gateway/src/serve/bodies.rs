//! Requests whose body is read before the decision.

use http::{Request, Response};
use tollgate::limit::OnMissingKey;
use tollgate_config::plan::LlmPlan;
use tollgate_proxy::{Admitted, Fault, ReadBody};

use super::answers::answer_to;
use super::body::Body;
use super::decide::body_field::MOST_BYTES;
use super::decide::client_identity::Identity;
use super::decide::facts::{Facts, head};
use super::decide::llm::Llm;

/// Reads the body of a request, because the client's group is in it.
///
/// # Errors
/// The response, if the gateway cannot read the request.
pub(super) async fn read_groups<B: ReadBody>(
    identity: &Identity,
    llm: &Llm,
    request: &mut Request<Admitted<B>>,
    facts: &mut Facts,
) -> Result<(), Box<Response<Body>>> {
    let admitted = request.body_mut();
    let body = admitted.body.read(MOST_BYTES, &llm.ahead).await;
    let body = body.map_err(|cause| Box::new(answer_to(Fault::from(&cause))))?;
    if let Some(received) = admitted.received.as_ref().filter(|_| body.is_some()) {
        received.complete();
    }
    identity.read_body(&mut facts.client, body, head(request));
    Ok(())
}

/// Reads a request to a language model, because its cost is in its body.
///
/// # Errors
/// The response, if the gateway cannot read the request.
pub(super) async fn read_call<B: ReadBody>(
    llm: &Llm,
    on_missing_key: OnMissingKey,
    request: &mut Request<Admitted<B>>,
    plan: &LlmPlan,
    facts: &mut Facts,
) -> Result<(), Box<Response<Body>>> {
    // The limiter rejects a request with an ambiguous client, so its body is not read.
    let Ok(client) = facts.client.subject() else { return Ok(()) };
    // The limiter denies a request without a client, so its body is not read.
    let is_denied = client.is_none() && on_missing_key == OnMissingKey::Deny;
    if is_denied || !plan.reads_usage() {
        return Ok(());
    }
    let call = llm.read(request, plan, client.map(|subject| subject.key)).await?;
    facts.call = Some(call);
    Ok(())
}
