//! Rejects combinations in which a flag would have no effect.

use tollgate::policy::Algorithm;

use super::{Args, KeyBy, Store};

impl Args {
    /// Rejects flags that would have no effect.
    pub(super) fn check(&self) -> Result<(), String> {
        let key = self.key.name();
        let uses = |keys: &[KeyBy]| keys.contains(&self.key);
        if self.key == KeyBy::User && self.jwt_secret.is_none() {
            return Err("--key user needs --jwt-secret, the secret of the tokens".to_owned());
        }
        if self.jwt_secret.is_some() && !uses(&[KeyBy::User, KeyBy::Chain]) {
            return Err(no_effect("--jwt-secret", key, "--key user or --key chain"));
        }
        if self.api_keys.is_some() && !uses(&[KeyBy::ApiKey, KeyBy::Chain]) {
            return Err(no_effect("--api-keys", key, "--key api-key or --key chain"));
        }
        if self.trusted_proxies.is_some() && !uses(&[KeyBy::Ip, KeyBy::Chain]) {
            return Err(no_effect("--trusted-proxies", key, "--key ip or --key chain"));
        }
        if let Some(burst) = self.burst
            && !matches!(
                self.algorithm,
                Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. }
            )
        {
            let algorithm = self.algorithm;
            return Err(format!(
                "--burst {burst} has no effect with --algorithm {algorithm}; drop it, or use \
                 token_bucket or leaky_bucket"
            ));
        }
        let admin = &self.admin;
        if admin.admin.is_some() && admin.admin_token.is_none() {
            return Err("--admin needs --admin-token; `openssl rand -hex 32` makes one".to_owned());
        }
        let given = [
            ("--admin-token", admin.admin_token.is_some()),
            ("--admin-hosts", !admin.admin_hosts.is_empty()),
            ("--admin-peers", !admin.admin_peers.is_empty()),
            ("--admin-target", admin.admin_target.is_some()),
        ];
        if admin.admin.is_none()
            && let Some(flag) = first(&given)
        {
            return Err(format!("{flag} has no effect without --admin"));
        }
        if let Store::Memory = self.store {
            let given = [
                ("--on-store-error", self.on_store_error.is_some()),
                ("--shed", self.shed.is_some()),
                ("--store-timeout", self.store_timeout.is_some()),
                ("--lease", self.lease.is_some()),
            ];
            if let Some(flag) = first(&given) {
                return Err(format!(
                    "{flag} has no effect with --store memory, which never fails and \
                     calls no server; remove it, or use --store redis://HOST"
                ));
            }
        }
        Ok(())
    }
}

fn first<'a>(given: &[(&'a str, bool)]) -> Option<&'a str> {
    given.iter().find(|(_, is_given)| *is_given).map(|(flag, _)| *flag)
}

fn no_effect(flag: &str, key: &str, instead: &str) -> String {
    format!("{flag} has no effect with --key {key}; drop it, or use {instead}")
}
