//! The second step of a request: which limits apply, and its key and cost under each.

use tollgate_core::{Cost, Store};

use super::action::{OwnResponse, RequestContext};
use super::limits::Resolved;
use super::state::LayerState;
use crate::denial::Denial;
use crate::key::{KeyError, Subject, SubjectKind};
use crate::{Limit, OnMissingKey, RequestHead};

impl<St: Store> LayerState<St> {
    /// Fills `context` with the limits that apply to a request. It stays empty if none does.
    ///
    /// # Errors
    /// The response of a request without a key that a limit asks for.
    #[inline]
    pub(super) fn classify(
        &self,
        head: &RequestHead<'_>,
        context: &mut RequestContext,
    ) -> Result<(), OwnResponse> {
        if self.options.exempt_preflights && head.is_preflight()
            || self.options.exempt.iter().any(|exempt| exempt(head))
        {
            return Ok(());
        }
        if let Some(tiers) = &self.tiers {
            context.tier = tiers.of(head);
        }
        for (number, compiled) in self.limits.iter().enumerate() {
            let limit = &compiled.limit;
            if !limit.applies_to(head) {
                continue;
            }
            let subject = match limit.key.subject(head) {
                Ok(Some(subject)) => subject,
                missing => match self.without_key(limit, missing.err(), head)? {
                    Some(subject) => subject,
                    None => continue,
                },
            };
            let cost = self.cost_of(limit, head);
            context.resolved.push(Resolved { limit: number, subject, cost });
        }
        Ok(())
    }

    #[inline]
    fn cost_of(&self, limit: &Limit, head: &RequestHead<'_>) -> Cost {
        limit.costs.as_ref().unwrap_or(&self.options.costs).among(head, &self.options.grpc)
    }

    /// Applies [`OnMissingKey`], also where a key source fails. `None` means that the limit is
    /// skipped. A shadow policy never rejects.
    #[cold]
    fn without_key(
        &self,
        limit: &Limit,
        error: Option<KeyError>,
        head: &RequestHead<'_>,
    ) -> Result<Option<Subject>, OwnResponse> {
        let denial = match (error, limit.on_missing_key) {
            (Some(error), _) => {
                self.faults.report(&error);
                Denial::misconfigured()
            }
            (None, Some(OnMissingKey::Pass)) => return Ok(None),
            (None, Some(OnMissingKey::Share)) => {
                return Ok(Some(Subject {
                    kind: SubjectKind::Other,
                    key: OnMissingKey::shared_key(),
                }));
            }
            (None, Some(OnMissingKey::Deny) | None) => {
                let (policy, shadow) = (limit.policy.name(), !limit.enforce);
                tracing::debug!(target: "tollgate", policy, shadow, "no key");
                Denial::missing_key()
            }
        };
        if !limit.enforce {
            return Ok(None);
        }
        Err(self.respond(&denial.of_request(*head, |_| None), head))
    }
}
