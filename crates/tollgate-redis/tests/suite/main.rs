//! All store tests are in one program, because each further program would be linked separately.

#[cfg(unix)]
mod cluster;
mod conformance;
#[cfg(unix)]
mod faults;
mod laws;
#[cfg(unix)]
mod lease;
#[cfg(unix)]
mod overrides;
mod refunds;
mod rights;
mod roster;
mod scenes;
mod script;
#[cfg(unix)]
mod store;
mod support;
mod trace;
mod twin;
mod versions;
