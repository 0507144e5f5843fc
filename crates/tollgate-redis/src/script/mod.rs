//! The script, assembled from `lua/` when this crate is built, and its variant for calls with keys
//! in several Cluster slots.
//!
//! | file | content |
//! |---|---|
//! | `encode/`, `bytes.rs` | a call's arguments |
//! | `names.rs` | the key names of states and receipts |
//! | `reply.rs` | a call's reply |
//! | `header.rs`, `replay.rs` | decisions computed from the states in a reply |

pub(crate) mod bytes;
pub(crate) mod encode;
pub(crate) mod header;
pub(crate) mod names;
pub(crate) mod replay;
pub(crate) mod reply;

/// A script's text, for `EVAL`, and its SHA-1 in hexadecimal, for `EVALSHA`.
#[derive(Clone, Copy)]
pub(crate) struct Script {
    pub(crate) text: &'static str,
    pub(crate) sha1: &'static str,
}

macro_rules! built {
    ($name:literal) => {
        Script {
            text: include_str!(concat!(env!("OUT_DIR"), "/", $name, ".lua")),
            sha1: include_str!(concat!(env!("OUT_DIR"), "/", $name, ".sha1")),
        }
    };
}

/// Decides requests with keys in one slot.
pub(crate) const MAIN: Script = built!("tollgate");
/// The variant for calls with keys in several slots.
pub(crate) const CROSS_SLOT: Script = built!("cross_slot");
/// Counts processes.
pub(crate) const ROSTER: Script = built!("roster");
/// Reads and replaces the overrides.
pub(crate) const OVERRIDES: Script = built!("overrides");

/// The main script's text.
pub const TEXT: &str = MAIN.text;
/// The main script's SHA-1.
pub const SHA1: &str = MAIN.sha1;
/// The text of the variant for several slots.
pub const CROSS_SLOT_TEXT: &str = CROSS_SLOT.text;

#[cfg(test)]
mod tests {
    use tollgate_test_servers::Redis;

    use super::*;

    #[test]
    fn script_contains_every_file() {
        for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/lua")).unwrap() {
            let path = file.unwrap().path();
            // These are separate scripts.
            let is_part =
                path.file_stem().is_some_and(|stem| stem != "roster" && stem != "overrides");
            if is_part && path.extension().is_some_and(|extension| extension == "lua") {
                let text = std::fs::read_to_string(&path).unwrap();
                assert!(TEXT.contains(&text), "{}", path.display());
            }
        }
    }

    /// With another digest, each call would fail with NOSCRIPT and send the entire text.
    #[test]
    fn redis_knows_each_script_by_its_digest() {
        let redis = Redis::start();
        for Script { text, sha1 } in [MAIN, CROSS_SLOT, ROSTER, OVERRIDES] {
            let loaded = redis.cmd(&["SCRIPT", "LOAD", text]);
            // Redis before version 7 has no flags of scripts.
            if loaded.error().is_some_and(|error| error.contains("user_script:1")) {
                assert_eq!(text, CROSS_SLOT_TEXT);
                continue;
            }
            assert_eq!(loaded.text(), sha1);
        }
    }
}
