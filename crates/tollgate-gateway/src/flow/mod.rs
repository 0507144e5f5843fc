//! Flow control: bounds the body bytes that wait to be sent, per stream and per connection.
//!
//! hyper and h2 take all that a body has while the other side grants a window, and they count
//! payload only. Each frame costs some hundred bytes more, and a small chunk keeps the whole
//! buffer that it was read into. Therefore every piece counts here from the moment it is given
//! away until it has been written, and a body gives nothing more while too much waits.

mod paced;
mod waiting;

pub(crate) use self::paced::Paced;
pub(crate) use self::waiting::{Piece, Share, Stream};
