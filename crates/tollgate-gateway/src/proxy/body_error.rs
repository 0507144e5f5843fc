use std::time::Duration;

use super::fields::MOST_FIELDS;

/// Why a body ended early.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("no piece of the body came for {0:?}")]
    Idle(Duration),
    #[error(transparent)]
    Broken(#[from] hyper::Error),
    #[error("the response ended before the body of the request")]
    Unwanted,
    #[error("the body is too large")]
    TooLarge,
    #[error("more than {MOST_FIELDS} trailers came")]
    Trailers,
}
