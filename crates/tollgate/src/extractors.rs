//! axum extractors of the values that layers put into a request's extensions.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use http::request::Parts;

use crate::body::InFlight;
use crate::layer::{Reservation, Verdicts};

macro_rules! extractor {
    ($value:ty, $extensions:ident => $of:expr) => {
        /// Infallible.
        impl<S: Sync> FromRequestParts<S> for $value {
            type Rejection = Infallible;

            async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
                let $extensions = &parts.extensions;
                Ok($of)
            }
        }
    };
}

extractor!(InFlight, it => Self::of_request(it));
extractor!(Reservation, it => it.get().cloned().unwrap_or_default());
extractor!(Verdicts, it => it.get().cloned().unwrap_or_default());
