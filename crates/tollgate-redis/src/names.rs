//! The names of states in Redis.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use smallvec::SmallVec;
use tollgate_core::{Key, Policy, ReceiptId};

/// The name of a Redis key, kept where it is for policies with names of usual length.
pub(crate) type Name = SmallVec<[u8; 56]>;

/// Makes names: `tollgate:{subject}:policy`.
///
/// The subject is a keyed hash, so that no client can insert a separator, and neither Redis nor its
/// logs contain the parts of a key. It is in braces because in a Cluster the part in braces
/// determines the slot, and all policies of a subject are decided in one call.
#[derive(Clone)]
pub(crate) struct Names {
    /// The namespace and what comes up to the subject.
    prefix: Box<[u8]>,
    /// Has taken in the secret, one block, so that a short key costs one block more.
    hash: Sha256,
}

impl Names {
    /// Names in `namespace` with subjects hashed under `secret`.
    pub(crate) fn new(namespace: &str, secret: &[u8]) -> Self {
        let mut block = [0; 64];
        // A secret longer than a block would not fit; its digest does.
        let digest = Sha256::digest(secret);
        let secret = if secret.len() > block.len() { &digest[..] } else { secret };
        block[..secret.len()].copy_from_slice(secret);
        let mut hash = Sha256::new();
        hash.update(block);
        Self { prefix: format!("{namespace}:{{").into_bytes().into(), hash }
    }

    /// Where the state of `key` under `policy` is.
    pub(crate) fn state(&self, policy: &Policy, key: &Key) -> Name {
        let mut name = self.subject(key);
        name.push(b':');
        name.extend_from_slice(policy.name().as_bytes());
        name
    }

    /// The name of the Redis key that marks a receipt as settled. It is in the slot of the charged
    /// state.
    pub(crate) fn receipt(&self, key: &Key, id: ReceiptId) -> Name {
        let mut name = self.subject(key);
        // No policy can have this name, as a colon comes before those.
        name.push(b'#');
        name.extend_from_slice(encode(&id.0.to_be_bytes()).as_slice());
        name
    }

    fn subject(&self, key: &Key) -> Name {
        let mut hash = self.hash.clone();
        hash.update(&*key.as_bytes());
        let digest = hash.finalize();
        let mut name = Name::from_slice(&self.prefix);
        // 128 bits: to share a bucket with a given victim takes 2^128 attempts.
        name.extend_from_slice(encode(&digest[..16]).as_slice());
        name.push(b'}');
        name
    }
}

/// 16 bytes in 22 letters.
fn encode(bytes: &[u8]) -> [u8; 22] {
    let mut letters = [0; 22];
    // It fits, and what is not 16 bytes long cannot be had here.
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
    fn a_name_is_stable() {
        let names = Names::new("tollgate", b"");
        let name = names.state(&policy("login"), &Key::new("10.0.0.1"));
        // Replicas of different versions share states by this name: it must not change.
        assert_eq!(text(&name), "tollgate:{x7EMR_x1SrB4Pd5BuWD_3A}:login");
    }

    #[test]
    fn policies_of_a_subject_share_its_braces_and_subjects_do_not() {
        let names = Names::new("tollgate", b"");
        let slot = |name: Name| text(&name)[..text(&name).find('}').unwrap()].to_owned();
        let (a, b) = (Key::new("a"), Key::new("b"));
        let login = slot(names.state(&policy("login"), &a));
        assert_eq!(login, slot(names.state(&policy("search{}"), &a)));
        assert_eq!(login, slot(names.receipt(&a, ReceiptId(7))));
        assert_ne!(login, slot(names.state(&policy("login"), &b)));
    }

    #[test]
    fn the_secret_decides_the_subject_and_neither_shows() {
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
