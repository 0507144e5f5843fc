//! Rate limiting for tower, axum, hyper and tonic.

mod head;
pub mod key;

pub use head::Head;
pub use key::{KeySource, RoutePattern, Subject, SubjectKind};
pub use tollgate_core::Key;
