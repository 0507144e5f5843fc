use tollgate_core::{Decision, Outcome, Source};
use tollgate_engine::Mode;

pub(crate) const fn source_name(source: Source, store: &'static str) -> &'static str {
    match source {
        Source::Store => store,
        source => source.name(),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CountedOutcome {
    Allow,
    Deny,
    ShadowDeny,
    FailedOpen,
    FailedClosed,
    Local,
}

impl CountedOutcome {
    #[cfg(feature = "metrics")]
    pub(crate) const ALL: [Self; 6] = [
        Self::Allow,
        Self::Deny,
        Self::ShadowDeny,
        Self::FailedOpen,
        Self::FailedClosed,
        Self::Local,
    ];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::ShadowDeny => "shadow_deny",
            Self::FailedOpen => "failed_open",
            Self::FailedClosed => "failed_closed",
            Self::Local => "local",
        }
    }

    /// Returns `None` if the policy would have allowed a request that another policy denied.
    pub(crate) fn of(mode: Mode, decision: &Decision, source: Source) -> Option<Self> {
        Some(match decision.outcome {
            Outcome::Deny { .. } | Outcome::ExceedsCapacity if mode.enforces() => Self::Deny,
            Outcome::Deny { .. } | Outcome::ExceedsCapacity => Self::ShadowDeny,
            Outcome::Allow { .. } if source == Source::Local => Self::Local,
            Outcome::Allow { .. } => Self::Allow,
            Outcome::Undecided => Self::FailedOpen,
            Outcome::WouldAllow => return None,
        })
    }
}

/// What started a pause.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PauseSource<'a> {
    /// The service, with this header.
    Header(&'a str),
    /// The service, which named no wait.
    Unnamed,
    /// The program.
    Program,
}
