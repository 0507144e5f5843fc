use std::time::Duration;

use crate::head::fault::Fault;
use crate::head::fields::MOST_FIELDS;

/// Why a body is incomplete.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("no piece of the body arrived for {0:?}")]
    Idle(Duration),
    #[error(transparent)]
    Broken(#[from] hyper::Error),
    #[error("the stream was reset before the end of the body")]
    Reset,
    #[error("the response finished before the request body")]
    Unwanted,
    #[error("the body is too large")]
    TooLarge,
    #[error("too many request bodies are being read")]
    NoMemory,
    #[error("the body has more than {MOST_FIELDS} trailers")]
    Trailers,
}

/// The fault for a request whose body cannot be read.
impl From<&BodyError> for Fault {
    fn from(error: &BodyError) -> Self {
        match error {
            BodyError::Idle(_) => Self::SlowClient,
            BodyError::Broken(_) | BodyError::Reset | BodyError::Unwanted => Self::BrokenClient,
            BodyError::Trailers => Self::Fields,
            BodyError::TooLarge => Self::TooLarge,
            BodyError::NoMemory => Self::NoMemory,
        }
    }
}
