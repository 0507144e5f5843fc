//! The server of the program `tollgate`: a reverse proxy, and decisions for other proxies.
//!
//! [`serve::run`] serves a [`tollgate_config::plan::Plan`], which is plain, fully checked data.

#![expect(missing_docs, reason = "a part of the program, and not a library for other programs")]

pub mod metric;
pub mod serve;
pub mod trace;
