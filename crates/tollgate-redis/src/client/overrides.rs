//! The overrides that all processes in a namespace share.
//!
//! A single value in Redis contains the list. About once a second, a process asks `overrides.lua`
//! whether the value has another version than its copy, and then reads the value. No request waits for
//! that. While Redis does not answer, the copy applies.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::sleep;
use tollgate_core::{
    BoxFuture, Key, Micros, OverrideEdit, OverrideId, OverrideList, OverridePlace, Overrides,
    StoreError, Timestamp,
};

use crate::calls::failure::STORE;
use crate::client::connection::command::Value;
use crate::client::keyed_script::KeyedScript;
use crate::client::override_list::{NONE, Version, read_list, write_list};
use crate::client::topology::Topology;
use crate::clock::{Clock, Moment};
use crate::random::Random;
use crate::script;
use crate::script::names::Names;
use crate::sync::Mutex;

/// A namespace's overrides, which are read until this is dropped.
#[derive(Debug)]
pub(crate) struct SharedOverrides {
    pub(crate) overrides: Overrides,
    task: AbortHandle,
}

/// The pause between two reads, on average. A change must apply within two seconds.
const PERIOD: Duration = Duration::from_secs(1);
/// Another process may change the list between reading and writing it.
const ATTEMPTS: u32 = 16;
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(2);

impl SharedOverrides {
    /// Starts to read the overrides. `number` must differ between processes.
    pub(crate) fn start(
        topology: &Arc<Topology>,
        names: &Names,
        clock: &Clock,
        number: u64,
        runtime: &Handle,
    ) -> Self {
        let shared = Arc::new(Shared {
            script: KeyedScript::new(topology, script::OVERRIDES, names.overrides()),
            names: names.clone(),
            clock: clock.clone(),
            read: Mutex::new(Read { version: NONE, at: None }),
            editing: tokio::sync::Mutex::default(),
            random: Random::new(number),
        });
        let overrides = Overrides::new(Place(Arc::clone(&shared)));
        let reading = shared.keep_reading(overrides.clone());
        Self { overrides, task: runtime.spawn(reading).abort_handle() }
    }
}

impl Drop for SharedOverrides {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Shared {
    script: KeyedScript,
    names: Names,
    clock: Clock,
    read: Mutex<Read>,
    /// Held by the only task of this process that edits the list.
    editing: tokio::sync::Mutex<()>,
    random: Random,
}

struct Read {
    /// The version of this process's copy.
    version: Version,
    /// Redis' time of the last answer, and when the answer arrived.
    at: Option<(Timestamp, Moment)>,
}

/// A call's result.
enum Called {
    /// The value has this version, which the caller knew.
    Known,
    /// The value is another one.
    Changed(Bytes),
    /// The caller's list has replaced the value.
    Written(Version),
}

impl Shared {
    async fn keep_reading(self: Arc<Self>, overrides: Overrides) {
        let mut failures = 0_u32;
        loop {
            failures = match self.refresh(&overrides).await {
                Ok(()) => 0,
                Err(error) => {
                    // The next call may succeed. An outage is reported by the breaker, so only a
                    // failure that lasts is news: after ten calls, and then about once a minute.
                    if failures % 60 == 9 {
                        tracing::warn!(
                            target: "tollgate",
                            %error,
                            "cannot read the operators' overrides; the known ones stay in effect until their end"
                        );
                    }
                    failures.saturating_add(1)
                }
            };
            // Processes that started together must not call together.
            sleep(PERIOD * 9 / 10 + self.random.up_to(PERIOD / 5)).await;
        }
    }

    /// Brings the copy up to date.
    async fn refresh(&self, overrides: &Overrides) -> Result<(), StoreError> {
        let known = self.read.lock().version;
        match self.call(known, None).await? {
            Called::Changed(value) => self.learn(overrides, known, &value),
            Called::Known | Called::Written(_) => Ok(()),
        }
    }

    /// Replaces the copy, whose version was `known`.
    fn learn(&self, overrides: &Overrides, known: Version, value: &[u8]) -> Result<(), StoreError> {
        let (version, list) = read_list(value).ok_or_else(|| {
            let reason = "a later build has written the overrides: update this replica";
            StoreError::invalid(STORE, reason)
        })?;
        let mut read = self.read.lock();
        // Another task may have read a later value.
        if read.version == known {
            read.version = version;
            overrides.edit_copy(|copy| *copy = list);
        }
        Ok(())
    }

    async fn edit(&self, overrides: &Overrides, edit: OverrideEdit) -> Result<bool, StoreError> {
        let _only = self.editing.lock().await;
        self.refresh(overrides).await?;
        for attempt in 0..ATTEMPTS {
            let (known, mut list) = {
                let read = self.read.lock();
                (read.version, overrides.read(OverrideList::clone))
            };
            let existed = edit.clone().apply(&mut list, self.now())?;
            match self.call(known, Some(&list)).await? {
                Called::Written(version) => {
                    let mut read = self.read.lock();
                    read.version = version;
                    overrides.edit_copy(|copy| *copy = list);
                    return Ok(existed);
                }
                Called::Changed(value) => self.learn(overrides, known, &value)?,
                Called::Known => {}
            }
            // So that several processes do not disturb each other again.
            sleep(self.random.up_to(BETWEEN_ATTEMPTS * attempt)).await;
        }
        Err(StoreError::not_charged(STORE, "other processes change the overrides: try again"))
    }

    async fn call(
        &self,
        known: Version,
        list: Option<&OverrideList>,
    ) -> Result<Called, StoreError> {
        let mut arguments = vec![Bytes::copy_from_slice(&known)];
        if let Some(list) = list {
            let ends = list.values().map(|it| it.until.as_micros().div_ceil(1_000)).max();
            arguments.push(write_list(list).into());
            arguments.push(ends.unwrap_or_default().to_string().into());
        }
        let failed = |error: &dyn std::fmt::Display| StoreError::not_charged(STORE, error);
        let answer = self.script.call(&arguments).await.map_err(|error| failed(&error))?;
        let (now, called) = read_answer(answer).ok_or_else(|| failed(&"an unexpected answer"))?;
        self.read.lock().at = Some((now, self.clock.now()));
        Ok(called)
    }

    fn now(&self) -> Timestamp {
        match self.read.lock().at {
            Some((at, received)) => at + Micros::new(self.clock.now().saturating_sub(received)),
            // No override is known before the first answer.
            None => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                Timestamp::EPOCH + Micros::from(now)
            }
        }
    }
}

fn read_answer(answer: Value) -> Option<(Timestamp, Called)> {
    let Value::List(parts) = answer else { return None };
    let [seconds, micros, rest @ ..] = &parts[..] else { return None };
    let now = seconds.as_u64()?.checked_mul(1_000_000)?.checked_add(micros.as_u64()?)?;
    let called = match rest {
        [] => Called::Known,
        [Value::Bytes(value)] => Called::Changed(value.clone()),
        [Value::Bytes(version), _] => Called::Written(version[..].try_into().ok()?),
        _ => return None,
    };
    Some((Timestamp::from_micros(now), called))
}

struct Place(Arc<Shared>);

impl OverridePlace for Place {
    fn id(&self, policy: &str, key: &Key) -> OverrideId {
        let mut id = self.0.names.letters(key).to_vec();
        id.push(b':');
        id.extend_from_slice(policy.as_bytes());
        id.into()
    }

    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn edit(&self, overrides: &Overrides, edit: OverrideEdit) -> BoxFuture<bool> {
        let (shared, overrides) = (Arc::clone(&self.0), overrides.clone());
        Box::pin(async move { shared.edit(&overrides, edit).await })
    }

    fn refresh(&self, overrides: &Overrides) -> BoxFuture<()> {
        let (shared, overrides) = (Arc::clone(&self.0), overrides.clone());
        Box::pin(async move { shared.refresh(&overrides).await })
    }
}
