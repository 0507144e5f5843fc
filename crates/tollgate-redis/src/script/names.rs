//! The Redis key names of states and receipts.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use smallvec::SmallVec;
use tollgate_core::{Key, Policy, ReceiptId};

/// A Redis key name, stored inline if the namespace and the policy name have a usual length.
pub(crate) type Name = SmallVec<[u8; 56]>;

/// Creates names of the form `tollgate:{subject}:policy`.
///
/// The subject is a keyed hash of the request's key, so a client cannot insert a separator, and the
/// key does not appear in Redis or its logs. In a Cluster only the part in braces determines the
/// slot, so one call can decide all policies of a key.
#[derive(Clone)]
pub(crate) struct Names {
    /// The namespace, up to the subject.
    prefix: Box<[u8]>,
    /// Has already consumed the secret, which fills one block, so a short key costs one more block.
    hash: Sha256,
}

impl Names {
    /// Creates names in `namespace`, with subjects hashed under `secret`.
    pub(crate) fn new(namespace: &str, secret: &[u8]) -> Self {
        let mut block = [0; 64];
        // A secret longer than a block is replaced by its digest.
        let digest = Sha256::digest(secret);
        let secret = if secret.len() > block.len() { &digest[..] } else { secret };
        block[..secret.len()].copy_from_slice(secret);
        let mut hash = Sha256::new();
        hash.update(block);
        Self { prefix: format!("{namespace}:{{").into_bytes().into(), hash }
    }

    /// Returns the name under which `key`'s state for `policy` is stored.
    pub(crate) fn state(&self, policy: &Policy, key: &Key) -> Name {
        let mut name = self.subject(key);
        name.push(b':');
        name.extend_from_slice(policy.name().as_bytes());
        name
    }

    /// Returns the name that marks a receipt as settled. It is in the same slot as the charged
    /// state.
    pub(crate) fn receipt(&self, key: &Key, id: ReceiptId) -> Name {
        let mut name = self.subject(key);
        // No policy's state can have this name, because a colon precedes the policy name.
        name.push(b'#');
        name.extend_from_slice(encode(&id.0.to_be_bytes()).as_slice());
        name
    }

    /// Returns the name of the roster of processes. No subject is that short.
    pub(crate) fn roster(&self) -> Name {
        let mut name = Name::from_slice(&self.prefix);
        name.extend_from_slice(b"roster}");
        name
    }

    /// Returns the name of the overrides. No subject is that short.
    pub(crate) fn overrides(&self) -> Name {
        let mut name = Name::from_slice(&self.prefix);
        name.extend_from_slice(b"overrides}");
        name
    }

    /// Returns a key's keyed hash.
    pub(crate) fn letters(&self, key: &Key) -> [u8; 22] {
        let mut hash = self.hash.clone();
        hash.update(&*key.as_bytes());
        // 128 bits: a collision with a given victim takes 2^128 attempts.
        encode(&hash.finalize()[..16])
    }

    fn subject(&self, key: &Key) -> Name {
        let mut name = Name::from_slice(&self.prefix);
        name.extend_from_slice(&self.letters(key));
        name.push(b'}');
        name
    }
}

/// Encodes 16 bytes in 22 letters.
fn encode(bytes: &[u8]) -> [u8; 22] {
    let mut letters = [0; 22];
    // Cannot fail: all callers pass 16 bytes, which need 22 letters.
    let _ = URL_SAFE_NO_PAD.encode_slice(bytes, &mut letters);
    letters
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = String::from_utf8_lossy(&self.prefix);
        f.debug_struct("Names").field("prefix", &prefix).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tollgate_core::Quota;

    use super::*;

    fn text(name: &Name) -> &str {
        std::str::from_utf8(name).unwrap()
    }

    fn policy(name: &str) -> Policy {
        Policy::fixed_window_counter(name, Quota::per_minute(1)).unwrap()
    }

    #[test]
    fn names_are_stable() {
        let names = Names::new("tollgate", b"");
        let name = names.state(&policy("login"), &Key::new("10.0.0.1"));
        // Replicas of different versions share states under this name, so it must not change.
        assert_eq!(text(&name), "tollgate:{x7EMR_x1SrB4Pd5BuWD_3A}:login");
    }

    #[test]
    fn slots_depend_on_subject_only() {
        let names = Names::new("tollgate", b"");
        let slot = |name: Name| text(&name)[..text(&name).find('}').unwrap()].to_owned();
        let (a, b) = (Key::new("a"), Key::new("b"));
        let login = slot(names.state(&policy("login"), &a));
        assert_eq!(login, slot(names.state(&policy("search{}"), &a)));
        assert_eq!(login, slot(names.receipt(&a, ReceiptId(7))));
        assert_ne!(login, slot(names.state(&policy("login"), &b)));
    }

    #[test]
    fn secret_changes_hidden_subject() {
        let short = Names::new("t", b"one");
        let long = Names::new("t", &[7; 100]);
        let key = Key::new("secret-api-key");
        let names: Vec<_> = [&short, &long, &Names::new("t", b"two")]
            .map(|names| names.state(&policy("p"), &key))
            .into();
        assert!(names[0] != names[1] && names[1] != names[2] && names[0] != names[2]);
        assert!(!text(&names[0]).contains("secret"));
        assert_eq!(format!("{short:?}"), r#"Names { prefix: "t:{", .. }"#);
    }
}
