use std::fmt;

/// Why an admin router could not be built.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// The router has no token, so any client could reset limits.
    #[doc(alias = "TG0404")]
    #[error("the admin router has no token: set one with `.token(..)` [TG0404]")]
    NoToken,

    /// The token is too short to be secure, or cannot be sent in a header.
    #[doc(alias = "TG0404")]
    #[error(
        "the admin router's token must be 16 to 4096 visible ASCII characters, chosen at random, \
         for example with `openssl rand -hex 32` [TG0404]"
    )]
    WeakToken,

    /// The host is not valid.
    #[doc(alias = "TG0404")]
    #[error(
        "invalid host {0:?}: expected a name or an address without a port, such as `admin.local` [TG0404]"
    )]
    Host(String),

    /// The peer is not an origin.
    #[doc(alias = "TG0404")]
    #[error(
        "invalid peer {0:?}: expected only scheme, host and port, such as `http://127.0.0.1:9101` [TG0404]"
    )]
    Peer(String),

    /// The address for the page's buttons is not an origin.
    #[doc(alias = "TG0404")]
    #[error(
        "invalid address {0:?} for the buttons: expected only scheme, host and port, such as \
         `http://127.0.0.1:3000` [TG0404]"
    )]
    Target(String),
}

impl fmt::Debug for AdminError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
