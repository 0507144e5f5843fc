//! What a request's head does not show.

use tollgate::key::RequestHead;
use tollgate_llm::Call;

use super::client_identity::ClientIdentity;

/// What the gateway found out about a request before its decision. It is stored in the request's
/// extensions, because keys, tiers and costs of a limit only see a request's head.
#[derive(Clone, Debug)]
pub struct Facts {
    pub(crate) client: ClientIdentity,
    /// The request to a language model, if its limits depend on tokens or money.
    pub(crate) call: Option<Call>,
}

impl Facts {
    pub const fn new(client: ClientIdentity) -> Self {
        Self { client, call: None }
    }

    pub(crate) fn of<'a>(head: &RequestHead<'a>) -> Option<&'a Self> {
        head.extensions.get()
    }
}
