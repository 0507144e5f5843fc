//! The builder's settings, except for the limits.

use std::sync::Arc;

use super::wait_queue::WaitQueue;
use crate::access::AccessLists;
use crate::denial::{DenialResponse, Problem};
use crate::drive::Observed;
use crate::grpc::GrpcServices;
use crate::head::Condition;
use crate::tier::TierSource;
use crate::{Costs, HeaderOptions};

pub(super) struct Options {
    pub(super) costs: Costs,
    pub(super) access: Option<AccessLists>,
    pub(super) exempt: Vec<Arc<Condition>>,
    pub(super) exempt_preflights: bool,
    pub(super) grpc: GrpcServices,
    pub(super) headers: HeaderOptions,
    pub(super) response: Arc<dyn DenialResponse>,
    pub(super) expose_verdicts: bool,
    pub(super) marks_denials: bool,
    pub(super) queue: WaitQueue,
    pub(super) tiers: Option<Arc<dyn TierSource>>,
    pub(super) observed: Observed,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            costs: Costs::default(),
            access: None,
            exempt: Vec::new(),
            exempt_preflights: true,
            grpc: GrpcServices::None,
            headers: HeaderOptions::default(),
            response: Arc::new(Problem::default()),
            expose_verdicts: false,
            // By default not, because it takes a tenth of the time for a denial.
            marks_denials: false,
            queue: WaitQueue::new(),
            tiers: None,
            observed: Observed::default(),
        }
    }
}

debug_fields!(Options, costs, headers, expose_verdicts);
