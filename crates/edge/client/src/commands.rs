//! What can be asked.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use mbal_model::ServerId;

use crate::client::Client;
use crate::error::Error;
use crate::reply::{Form, MetaReply, Reply};
use crate::request::{Command, Mode, SentKey};
use crate::value::{Cas, Store, Value, exptime};
use mbal_wire::MetaStatus;

impl Client {
    /// The item of this key. One whose server cannot be reached is a miss, and counts ([`Client::unreachable_gets`]).
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>, Error> {
        let key = SentKey::new(key.as_ref())?;
        self.found(self.inner.ask(&key, &Command::Get).await)
    }

    /// The items of many keys, in the keys' order. All workers that have some are asked at once.
    pub async fn get_many<K: AsRef<[u8]>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Value>>, Error> {
        let keys = keys.into_iter().map(|key| SentKey::new(key.as_ref()));
        let answers = self.inner.get_many(keys.collect::<Result<_, _>>()?).await;
        answers.into_iter().map(|answer| self.found(answer)).collect()
    }

    /// The item, which lives for `ttl` from now on; for ever, if that is `None`. A miss as in [`Client::get`].
    pub async fn get_and_touch(
        &self,
        key: impl AsRef<[u8]>,
        ttl: Option<Duration>,
    ) -> Result<Option<Value>, Error> {
        let (key, exptime) = (SentKey::new(key.as_ref())?, exptime(ttl));
        self.found(self.inner.ask(&key, &Command::GetAndTouch { exptime }).await)
    }

    /// Stores a value.
    pub async fn set(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        how: Store,
    ) -> Result<(), Error> {
        self.store(key.as_ref(), Mode::Set, value.as_ref(), how, None).await.map(|_| ())
    }

    /// Stores a value if the key has none; false if it has.
    pub async fn add(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        how: Store,
    ) -> Result<bool, Error> {
        self.is_stored(key.as_ref(), Mode::Add, value.as_ref(), how).await
    }

    /// Stores a value if the key has one; false if it has none.
    pub async fn replace(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        how: Store,
    ) -> Result<bool, Error> {
        self.is_stored(key.as_ref(), Mode::Replace, value.as_ref(), how).await
    }

    /// Adds to the end of a value, whose flags and time to live stay; false if the key has none.
    pub async fn append(
        &self,
        key: impl AsRef<[u8]>,
        more: impl AsRef<[u8]>,
    ) -> Result<bool, Error> {
        self.is_stored(key.as_ref(), Mode::Append, more.as_ref(), Store::forever()).await
    }

    /// Adds to the beginning of a value, as [`Client::append`] to its end.
    pub async fn prepend(
        &self,
        key: impl AsRef<[u8]>,
        more: impl AsRef<[u8]>,
    ) -> Result<bool, Error> {
        self.is_stored(key.as_ref(), Mode::Prepend, more.as_ref(), Store::forever()).await
    }

    /// Stores a value if the item is still the one that had this [`Value::cas`].
    pub async fn cas(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        cas: u64,
        how: Store,
    ) -> Result<Cas, Error> {
        match self.store(key.as_ref(), Mode::Set, value.as_ref(), how, Some(cas)).await? {
            MetaStatus::Exists => Ok(Cas::Changed),
            MetaStatus::NotFound => Ok(Cas::NotFound),
            _ => Ok(Cas::Stored),
        }
    }

    /// Removes an item; false if there is none.
    pub async fn delete(&self, key: impl AsRef<[u8]>) -> Result<bool, Error> {
        let key = SentKey::new(key.as_ref())?;
        let reply = self.inner.ask(&key, &Command::Delete).await?;
        Ok(reply.status == MetaStatus::Done)
    }

    /// Lets an item live for `ttl` from now on, or for ever; false if there is none.
    pub async fn touch(&self, key: impl AsRef<[u8]>, ttl: Option<Duration>) -> Result<bool, Error> {
        let (key, exptime) = (SentKey::new(key.as_ref())?, exptime(ttl));
        match self.inner.ask(&key, &Command::Touch { exptime }).await {
            // A miss, or nobody there: nothing was touched.
            Ok(reply) => Ok(reply.status == MetaStatus::Done),
            Err(error) => Err(error),
        }
    }

    /// Adds to a number, and says what it is then; `None` if there is none.
    pub async fn incr(&self, key: impl AsRef<[u8]>, delta: u64) -> Result<Option<u64>, Error> {
        self.count(key.as_ref(), true, delta, None).await
    }

    /// Subtracts from a number, down to 0, and says what it is then; `None` if there is none.
    pub async fn decr(&self, key: impl AsRef<[u8]>, delta: u64) -> Result<Option<u64>, Error> {
        self.count(key.as_ref(), false, delta, None).await
    }

    /// Adds to a number, and says what it is then; where there is none, it is `initial` from now on, for `ttl` or for ever.
    pub async fn incr_or_create(
        &self,
        key: impl AsRef<[u8]>,
        delta: u64,
        initial: u64,
        ttl: Option<Duration>,
    ) -> Result<u64, Error> {
        let counted = self.count(key.as_ref(), true, delta, Some((initial, exptime(ttl)))).await?;
        Ok(counted.unwrap_or(initial))
    }

    /// Removes all items of all servers.
    ///
    /// # Errors
    /// [`Error::Server`] says how many servers have not confirmed it; then it should be asked again.
    pub async fn flush_all(&self) -> Result<(), Error> {
        let servers: Vec<ServerId> = self.inner.routes().servers().collect();
        let mut unreachable = Error::Unreachable(ServerId::NOBODY);
        for server in servers {
            match self.inner.ask_server(server, b"flush_all\r\n".to_vec(), Form::Line).await {
                Ok(_) => return Ok(()),
                // It was not executed: any other server will do.
                Err(error @ Error::Unreachable(_)) => unreachable = error,
                Err(error) => return Err(error),
            }
        }
        Err(unreachable)
    }

    /// Statistics of each server, by name: those of `stats TOPIC`, or of `stats` if the topic is empty.
    pub async fn stats(
        &self,
        topic: &str,
    ) -> BTreeMap<ServerId, Result<BTreeMap<String, String>, Error>> {
        let request = format!("stats {topic}").trim_end().to_owned() + "\r\n";
        let answers = self.ask_all(request.as_bytes(), Form::Stats).await;
        let stats = |reply| match reply {
            Reply::Stats(stats) => stats.into_iter().collect(),
            _ => BTreeMap::new(),
        };
        answers.into_iter().map(|(server, reply)| (server, reply.map(stats))).collect()
    }

    /// The version of each server's program.
    pub async fn version(&self) -> BTreeMap<ServerId, Result<String, Error>> {
        let version = |reply| match reply {
            Reply::Line(line) => line.trim_start_matches("VERSION ").to_owned(),
            _ => String::new(),
        };
        let answers = self.ask_all(b"version\r\n", Form::Line).await;
        answers.into_iter().map(|(server, reply)| (server, reply.map(version))).collect()
    }

    /// Keys of gets that missed since their server could not be reached, or did not answer in time.
    pub fn unreachable_gets(&self) -> u64 {
        self.inner.missed.load(Relaxed)
    }

    /// Reads of hot keys that copies on other servers than the key's owner have answered ([`Options::read_copies`](crate::Options::read_copies)).
    pub fn copy_reads(&self) -> u64 {
        self.inner.leased.reads()
    }

    /// The version of the cluster's map that this client goes by.
    pub fn map_version(&self) -> u64 {
        self.inner.routes().version()
    }

    async fn ask_all(
        &self,
        request: &[u8],
        form: Form,
    ) -> BTreeMap<ServerId, Result<Reply, Error>> {
        let servers: Vec<ServerId> = self.inner.routes().servers().collect();
        let mut asking = tokio::task::JoinSet::new();
        for server in servers {
            let (client, request) = (self.clone(), request.to_vec());
            asking.spawn(
                async move { (server, client.inner.ask_server(server, request, form).await) },
            );
        }
        asking.join_all().await.into_iter().collect()
    }

    async fn store(
        &self,
        key: &[u8],
        mode: Mode,
        value: &[u8],
        how: Store,
        cas: Option<u64>,
    ) -> Result<MetaStatus, Error> {
        let (key, (exptime, flags)) = (SentKey::new(key)?, how.parts());
        let command = Command::Store { mode, value, exptime, flags, cas };
        Ok(self.inner.ask(&key, &command).await?.status)
    }

    async fn is_stored(
        &self,
        key: &[u8],
        mode: Mode,
        value: &[u8],
        how: Store,
    ) -> Result<bool, Error> {
        Ok(self.store(key, mode, value, how, None).await? == MetaStatus::Done)
    }

    async fn count(
        &self,
        key: &[u8],
        up: bool,
        delta: u64,
        initial: Option<(u64, i64)>,
    ) -> Result<Option<u64>, Error> {
        let key = SentKey::new(key)?;
        let reply = self.inner.ask(&key, &Command::Count { up, delta, initial }).await?;
        if reply.status != MetaStatus::Value {
            return Ok(None);
        }
        let number = std::str::from_utf8(&reply.value).ok().and_then(|text| text.parse().ok());
        number.map(Some).ok_or_else(|| Error::Server("a number that is none".into()))
    }

    /// Nobody there is a miss.
    fn found(&self, answer: Result<MetaReply, Error>) -> Result<Option<Value>, Error> {
        match answer {
            Ok(reply) if reply.status == MetaStatus::Value => {
                let MetaReply { value: bytes, flags, cas, stale, won: refill, .. } = reply;
                Ok(Some(Value { bytes, flags, cas, stale, refill }))
            }
            Ok(_) => Ok(None),
            Err(Error::Unreachable(_) | Error::Unknown(_)) => {
                self.inner.missed(1);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}
