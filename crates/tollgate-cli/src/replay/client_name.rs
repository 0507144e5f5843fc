//! How reports name a client.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, Ipv6Addr};

use tollgate::key::{Subject, SubjectKind};
use tollgate_replay::log::{Record, Visible};

/// A client's name in reports: the subject that is charged, which is not always the peer.
pub(super) struct Name<'a> {
    pub(super) subject: Option<&'a Subject>,
    pub(super) record: &'a Record<'a>,
    pub(super) hide: Option<&'a RandomState>,
    /// How many bits of IPv4 and IPv6 addresses count.
    pub(super) prefixes: (u8, u8),
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(subject) = self.subject else { return f.write_str("unknown") };
        let (kind, key) = (subject.kind.as_str(), subject.key.as_bytes());
        if let Some(hide) = self.hide {
            return write!(f, "{kind}:#{:016x}", hide.hash_one(&*key));
        }
        match (subject.kind, self.record.user) {
            (SubjectKind::Ip, _) if write_network(&key, self.prefixes, f)? => Ok(()),
            (SubjectKind::User, Some(user)) => write!(f, "user:{}", Visible(user)),
            // In the same form as for operators elsewhere: the key only contains a hash of the
            // secret.
            _ => {
                write!(f, "{kind}:")?;
                key.iter().take(8).try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

/// Writes the address or network in a `ClientIp` key. Returns `false` if the key is a hash.
fn write_network(
    key: &[u8],
    (v4, v6): (u8, u8),
    f: &mut fmt::Formatter<'_>,
) -> Result<bool, fmt::Error> {
    match *key {
        [1, a, b, c, d] => {
            write!(f, "{}", Ipv4Addr::new(a, b, c, d))?;
            if v4 < 32 {
                write!(f, "/{v4}")?;
            }
        }
        [2, ref network @ ..] if network.len() <= 16 => {
            let mut octets = [0; 16];
            octets[..network.len()].copy_from_slice(network);
            write!(f, "{}/{v6}", Ipv6Addr::from(octets))?;
        }
        _ => return Ok(false),
    }
    Ok(true)
}
