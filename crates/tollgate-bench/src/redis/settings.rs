//! Decisions over servers with TLS, persistence or a replica.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use fred::prelude::{Client, Config};
use fred::types::config::TlsConnector;
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tollgate::RedisStore;
use tollgate_test_servers::Redis;

use crate::Failure;
use crate::redis::goals::OURS;
use crate::redis::goals::What::{Median, P99, Rate, Redis as Processor};
use crate::redis::scripts::Lean;
use crate::redis::server;
use crate::redis::sides::{Incr, Limits, Tollgate, bucket};
use crate::redis::turns::{Side, take_turns};
use crate::report::Table;

const KEYS: u64 = 100_000;
const TASKS: usize = 256;

/// The results for each setting. The limiters take turns, and the settings follow each other.
pub(crate) async fn table(rounds: usize) -> Result<Table, Failure> {
    let columns =
        ["server", "limiter", "thousand/s", "median µs", "p99 µs", "Redis µs", "× lean script"];
    let mut table = Table::new("100 000 keys, 256 tasks, by setting", &columns);
    for setting in ["plain", "TLS", "AOF, everysec", "a replica"] {
        let server = Server::start(setting);
        let redis = server.client().await?;
        let store = server.store()?;
        store.connected().await;
        let limits = Limits(vec![(bucket("user", 1)?, KEYS)]);
        let mut sides = [
            Side::new("lean script each", Lean::new(redis.clone(), KEYS, 1).await?),
            Side::new(OURS, Tollgate { store, limits }),
            Side::new("INCR", Incr { client: redis.clone(), keys: KEYS }),
        ];
        take_turns(&mut sides, TASKS, rounds, &redis).await?;
        for side in &sides {
            table.row([
                setting.to_owned(),
                side.name.to_owned(),
                side.spread(Rate, 1e3).to_string(),
                format!("{:.0}", side.spread(Median, 1e-6)),
                format!("{:.0}", side.spread(P99, 1e-6)),
                format!("{:.2}", side.spread(Processor, 1e-6)),
                format!("{:.2}", side.over(&sides[0], Rate)),
            ]);
        }
    }
    Ok(table)
}

struct Server {
    has_tls: bool,
    /// Dropped before its master.
    _replica: Option<Redis>,
    redis: Redis,
}

impl Server {
    fn start(setting: &str) -> Self {
        let builder = match setting {
            "TLS" => Redis::builder().tls(),
            "AOF, everysec" => {
                Redis::builder().set("appendonly", "yes").set("appendfsync", "everysec")
            }
            _ => Redis::builder(),
        };
        let redis = builder.start();
        let has_replica = setting == "a replica";
        let replica = has_replica.then(|| Redis::builder().replica_of(&redis).start());
        Self { has_tls: setting == "TLS", _replica: replica, redis }
    }

    fn store(&self) -> Result<RedisStore, Failure> {
        let store = RedisStore::builder(&self.redis.url())?.timeout(Duration::from_secs(5));
        let authority = self.has_tls.then(|| fs::read(self.redis.authority())).transpose()?;
        Ok(match authority {
            Some(authority) => store.certificate_authorities(authority).connect()?,
            None => store.connect()?,
        })
    }

    /// A plain client.
    async fn client(&self) -> Result<Client, Failure> {
        if !self.has_tls {
            return server::client(&self.redis.url()).await;
        }
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.redis.authority())?)?;
        let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut config = Config::from_url(&self.redis.url())?;
        config.tls = Some(TlsConnector::from(tls).into());
        server::connect(config).await
    }
}
