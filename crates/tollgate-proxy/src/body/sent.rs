//! The request body that hyper's client sends.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;

use super::error::BodyError;
use super::source::RepeatableBody;
use super::timed::Timed;
use super::upload::Upload;
use crate::flow::{Paced, Piece};

/// Boxed, because each connection has a buffer for dozens of requests, and most requests have no
/// body. The default is an empty body, which needs no memory.
pub(crate) type Sent = UnsyncBoxBody<Piece, BodyError>;

pub(crate) fn sent(body: RepeatableBody, idle: Duration, upload: &Arc<Upload>) -> Sent {
    Paced::request(Timed::new(body, idle, Arc::clone(upload))).boxed_unsync()
}
