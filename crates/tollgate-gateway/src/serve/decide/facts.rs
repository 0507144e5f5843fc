//! What a request's head does not show, and the clients that limits find there.

use std::sync::Arc;

use http::Request;
use tollgate::key::{KeyError, KeySource, RequestHead, Subject, SubjectKind, SubjectName};
use tollgate_config::plan::Whose;
use tollgate_llm::Call;
use tollgate_proxy::Admitted;

use super::client_identity::{ClientIdentity, Identity};
use super::groups::LevelSource;

/// What the gateway found out about a request before its decision. It is stored in the request's
/// extensions, because keys, tiers and costs of a limit only see a request's head.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) client: ClientIdentity,
    /// The request to a language model, if its limits depend on tokens or money.
    pub(crate) call: Option<Call>,
}

impl Facts {
    pub(crate) const fn new(client: ClientIdentity) -> Self {
        Self { client, call: None }
    }

    pub(crate) fn of<'a>(head: &RequestHead<'a>) -> Option<&'a Self> {
        head.extensions.get()
    }
}

/// The head in which key sources look, with the connection's values.
pub(crate) fn head<B>(request: &Request<Admitted<B>>) -> RequestHead<'_> {
    let mut head = RequestHead::of(request);
    head.extensions = &request.body().connection.extensions;
    head
}

/// Key source: the client or group that was found before the decision.
pub(crate) struct Found {
    pub(crate) identity: Identity,
    pub(crate) whose: Whose,
}

impl KeySource for Found {
    fn subject(&self, head: &RequestHead<'_>) -> Result<Option<Subject>, KeyError> {
        let Some(facts) = Facts::of(head) else { return Ok(None) };
        match facts.client.found_of(self.whose) {
            Some(Ok(found)) => Ok(found.clone()),
            Some(Err(error)) => Err(match **error {
                KeyError::Ambiguous => KeyError::Ambiguous,
                _ => KeyError::Other(Box::new(Arc::clone(error))),
            }),
            None => Ok(None),
        }
    }

    fn can_be_missing(&self) -> bool {
        match self.whose {
            Whose::Group(level) => self.level(level).is_none_or(LevelSource::can_be_missing),
            Whose::Client | Whose::Everybody => self.identity.can_be_missing(),
        }
    }

    fn named(&self, name: &SubjectName) -> Option<Subject> {
        match self.whose {
            Whose::Group(level) => {
                let client = |name: &SubjectName| self.identity.named(name);
                self.level(level)?.named(name, &self.identity.levels, &client)
            }
            Whose::Client | Whose::Everybody => self.identity.named(name),
        }
    }
}

impl Found {
    fn level(&self, number: usize) -> Option<&LevelSource> {
        self.identity.levels.get(number)
    }
}

/// A key source that finds only a request's user, even if an earlier source finds another client.
pub(crate) struct Users(pub(crate) Identity);

impl KeySource for Users {
    fn subject(&self, head: &RequestHead<'_>) -> Result<Option<Subject>, KeyError> {
        // In a replay, the log names the user.
        if let Some(Ok(Some(subject))) = Facts::of(head).map(|facts| &facts.client.found)
            && subject.kind == SubjectKind::User
        {
            return Ok(Some(subject.clone()));
        }
        for link in &*self.0.links {
            match link.find(head) {
                Ok(Some((subject, _))) if subject.kind == SubjectKind::User => {
                    return Ok(Some(subject));
                }
                // A recorded line without an address may still have a user.
                Ok(_) | Err(KeyError::UnixPeer) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    fn can_be_missing(&self) -> bool {
        true
    }

    fn named(&self, name: &SubjectName) -> Option<Subject> {
        let subject = self.0.links.iter().find_map(|link| link.source.named(name))?;
        (subject.kind == SubjectKind::User).then_some(subject)
    }
}
