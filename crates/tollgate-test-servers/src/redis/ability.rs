//! Feature detection: tests probe for a feature instead of comparing versions.

use super::Redis;
use crate::client::Value;

impl Redis {
    /// Whether cluster nodes can announce a hostname: Redis 7 and later.
    #[must_use]
    pub fn can_announce_names(&self) -> bool {
        !self.cmd(&["CONFIG", "GET", "cluster-announce-hostname"]).list().is_empty()
    }

    /// Whether a script may use keys from several slots: Redis 7 and later.
    #[must_use]
    pub fn allows_cross_slot(&self) -> bool {
        let script = "#!lua flags=allow-cross-slot-keys\nreturn 1";
        matches!(self.cmd(&["EVAL", script, "0"]), Value::Number(1))
    }

    /// Whether `min-replicas-to-write` also applies to scripts: Redis 6.2 and later. The server
    /// must have no replicas.
    #[must_use]
    pub fn can_hold_back_scripts(&self) -> bool {
        let set = |count| self.cmd(&["CONFIG", "SET", "min-replicas-to-write", count]);
        set("1");
        let answer = self.cmd(&["EVAL", "return redis.call('DEL', KEYS[1])", "1", "nothing"]);
        set("0");
        matches!(answer, Value::Error(_))
    }
}
