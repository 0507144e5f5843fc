//! The way of a call: to the one server, or to whichever node of a Cluster has the slot.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;

use crate::cluster::{Member, Place, Topology};
use crate::failure::Refusal;
use crate::node::Node;

/// Where the calls of a combiner go.
#[derive(Debug)]
pub(crate) enum Route {
    /// The one server there is.
    One(Arc<Node>),
    /// Whoever has this slot.
    Slot { topology: Arc<Topology>, slot: u16 },
}

/// A server that a call is sent to.
#[derive(Debug)]
pub(crate) enum Target {
    One(Arc<Node>),
    Member {
        member: Arc<Member>,
        /// The node does not have the slot yet, but these keys of it.
        is_asking: bool,
        /// Held while the call is under way.
        _room: OwnedSemaphorePermit,
    },
}

/// What a call has been through.
#[derive(Clone, Debug, Default)]
pub(crate) struct Redirects {
    /// Times that it was sent on, since its keys were last found on two nodes at once.
    count: u32,
    /// Times that its keys were found on two nodes at once.
    halves: u32,
    /// To be kept before it goes on.
    pause: Option<Duration>,
    next: Next,
}

#[derive(Clone, Debug, Default)]
enum Next {
    #[default]
    Leader,
    Member {
        member: Arc<Member>,
        is_asking: bool,
    },
}

/// More often than this nodes do not send on a call unless they disagree.
const MOST_REDIRECTIONS: u32 = 5;
/// A pause before a call that was sent on twice goes on, as nodes that disagree need a
/// moment, and before keys are looked for again that were on their way.
const PAUSE: Duration = Duration::from_millis(2);
/// It is doubled for each time that keys were still on their way, but not more often.
const LONGEST: u32 = 3;

impl Route {
    /// The server that a call goes to first, if its breaker is open.
    pub(crate) fn silent_node(&self) -> Option<Arc<Node>> {
        match self {
            Self::One(node) => node.guard().is_open().then(|| Arc::clone(node)),
            Self::Slot { topology, slot } => {
                let member = topology.leader_now(*slot)?;
                member.node.guard().is_open().then(|| Arc::clone(&member.node))
            }
        }
    }

    /// The first server of a call, if there is no need to wait for one.
    pub(crate) fn at_once(&self) -> Option<Target> {
        match self {
            Self::One(node) => Some(Target::One(Arc::clone(node))),
            Self::Slot { topology, slot } => {
                let member = topology.leader_now(*slot)?;
                let room = Arc::clone(&member.room).try_acquire_owned().ok()?;
                Some(Target::Member { member, is_asking: false, _room: room })
            }
        }
    }

    /// The next server of a call, as soon as there is one and it has room.
    pub(crate) async fn target(&self, redirects: &mut Redirects) -> Target {
        let (topology, slot) = match self {
            Self::One(node) => return Target::One(Arc::clone(node)),
            Self::Slot { topology, slot } => (topology, *slot),
        };
        if let Some(pause) = redirects.pause.take() {
            tokio::time::sleep(pause).await;
        }
        loop {
            let (member, is_asking) = match std::mem::take(&mut redirects.next) {
                Next::Leader => (topology.leader(slot).await, false),
                Next::Member { member, is_asking } => (member, is_asking),
            };
            // It is never closed; if it were, another look finds another node.
            if let Ok(room) = Arc::clone(&member.room).acquire_owned().await {
                return Target::Member { member, is_asking, _room: room };
            }
        }
    }

    /// Whether a call that was refused at one server goes on to another.
    pub(crate) fn follow(
        &self,
        refusal: &Refusal,
        target: &Target,
        redirects: &mut Redirects,
    ) -> bool {
        let (Self::Slot { topology, .. }, Target::Member { member, .. }) = (self, target) else {
            return false;
        };
        let asked = &*member.place.host;
        let next = match refusal {
            Refusal::Moved { slot, to } => Place::of_redirection(to, asked)
                .and_then(|place| topology.moved(*slot, &place))
                .map(|member| Next::Member { member, is_asking: false }),
            Refusal::Ask { to } => Place::of_redirection(to, asked)
                .and_then(|place| topology.named(&place))
                .map(|member| Next::Member { member, is_asking: true }),
            Refusal::TryAgain => {
                redirects.pause = Some(PAUSE * (1 << redirects.halves.min(LONGEST)));
                redirects.halves += 1;
                // The nodes agree: each has sent it on for what it does not have itself.
                redirects.count = 0;
                redirects.next = Next::Leader;
                return true;
            }
            _ => return false,
        };
        let Some(next) = next else { return false };
        redirects.next = next;
        redirects.count += 1;
        redirects.pause = (redirects.count > 2).then_some(PAUSE);
        redirects.count <= MOST_REDIRECTIONS
    }

    /// Whether requests for keys elsewhere can be decided, though those here cannot.
    pub(crate) fn is_partial(&self) -> bool {
        match self {
            Self::One(_) => false,
            Self::Slot { topology, slot } => topology.is_well_without(*slot),
        }
    }

    /// A call failed, for a reason that the Cluster may know of.
    pub(crate) fn suspect(&self) {
        if let Self::Slot { topology, .. } = self {
            topology.suspect();
        }
    }
}

impl Target {
    pub(crate) fn node(&self) -> &Arc<Node> {
        match self {
            Self::One(node) => node,
            Self::Member { member, .. } => &member.node,
        }
    }

    pub(crate) const fn is_asking(&self) -> bool {
        matches!(self, Self::Member { is_asking: true, .. })
    }
}
