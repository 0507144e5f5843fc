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

/// The script text, for `EVAL`.
pub const TEXT: &str = include_str!(concat!(env!("OUT_DIR"), "/tollgate.lua"));

/// The text's SHA-1 in hexadecimal, for `EVALSHA`.
pub const SHA1: &str = include_str!(concat!(env!("OUT_DIR"), "/tollgate.sha1"));

/// The variant for calls with keys in several slots.
pub const CROSS_SLOT_TEXT: &str = include_str!(concat!(env!("OUT_DIR"), "/cross_slot.lua"));

/// The variant's SHA-1.
pub(crate) const CROSS_SLOT_SHA1: &str = include_str!(concat!(env!("OUT_DIR"), "/cross_slot.sha1"));

/// The script that counts processes.
pub(crate) const ROSTER_TEXT: &str = include_str!(concat!(env!("OUT_DIR"), "/roster.lua"));

/// Its SHA-1.
pub(crate) const ROSTER_SHA1: &str = include_str!(concat!(env!("OUT_DIR"), "/roster.sha1"));

/// The script that reads and replaces the overrides.
pub(crate) const OVERRIDES_TEXT: &str = include_str!(concat!(env!("OUT_DIR"), "/overrides.lua"));

/// Its SHA-1.
pub(crate) const OVERRIDES_SHA1: &str = include_str!(concat!(env!("OUT_DIR"), "/overrides.sha1"));

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
        let scripts = [
            (TEXT, SHA1),
            (CROSS_SLOT_TEXT, CROSS_SLOT_SHA1),
            (ROSTER_TEXT, ROSTER_SHA1),
            (OVERRIDES_TEXT, OVERRIDES_SHA1),
        ];
        for (text, sha1) in scripts {
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
