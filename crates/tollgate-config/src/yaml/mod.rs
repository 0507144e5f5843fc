//! Reads YAML into typed values, and knows no key of the file.
//!
//! | file | content |
//! |---|---|
//! | `source.rs`, `env.rs` | the text, and the variables in it |
//! | `parse.rs`, `tree.rs`, `place.rs` | its nodes and their positions |
//! | `spec.rs`, `typed/` | tables of keys, and the values that these describe |
//! | `problem.rs`, `secrets.rs` | problems with cures, which do not show secrets |
//! | `named_files.rs` | the files that values name |

pub(crate) mod env;
pub(crate) mod named_files;
pub(crate) mod parse;
pub(crate) mod place;
pub(crate) mod problem;
mod secrets;
pub(crate) mod source;
pub mod spec;
pub(crate) mod tree;
pub(crate) mod typed;
