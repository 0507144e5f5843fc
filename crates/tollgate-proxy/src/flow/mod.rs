//! Flow control: bounds the body bytes that wait to be sent, per stream and per connection.
//!
//! hyper and h2 read a body for as long as the other side grants a window, and they only count the
//! payload. But each frame costs several hundred additional bytes, and a small chunk retains the
//! entire buffer from which it was split. So every piece counts here until it has been written, and
//! a body pauses while too many bytes wait.

mod paced;
mod waiting;

use http_body::SizeHint;

pub use self::paced::Guard;
pub(crate) use self::paced::Paced;
pub(crate) use self::waiting::{Piece, Stream, WaitingBytes};

/// Returns the size of a body that has this many bytes before the rest.
pub(crate) fn size_with(bytes: u64, rest: &SizeHint) -> SizeHint {
    let mut whole = SizeHint::new();
    whole.set_lower(rest.lower().saturating_add(bytes));
    if let Some(upper) = rest.upper() {
        whole.set_upper(upper.saturating_add(bytes));
    }
    whole
}
