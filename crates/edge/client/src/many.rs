//! Many keys at once: those of one worker leave together.

use std::collections::BTreeMap;
use std::sync::Arc;

use mbal_model::{ReplicaVersion, ServerId};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::client::{Inner, Target};
use crate::connection::Outcome;
use crate::error::Error;
use crate::reply::{Form, MetaReply};
use crate::request::{Command, SentKey};

/// Keys that leave as one job.
const BATCH_KEYS: usize = 256;

/// Places among the keys, and of those that are read by a lease what was seen of them.
type BatchKeys = Vec<(usize, Option<ReplicaVersion>)>;

/// Keys that leave together.
struct Batch {
    target: Target,
    keys: BatchKeys,
}

impl Inner {
    /// Asks the owners of many keys at once; the answers in the keys' order.
    pub async fn get_many(self: &Arc<Self>, keys: Vec<SentKey>) -> Vec<Result<MetaReply, Error>> {
        let batches = self.batches(&keys).await;
        let keys = Arc::new(keys);
        let mut asking = JoinSet::new();
        for (target, batch) in &batches {
            for batch in batch.chunks(BATCH_KEYS) {
                let (inner, all) = (Arc::clone(self), Arc::clone(&keys));
                let batch = Batch { target: target.clone(), keys: batch.to_vec() };
                asking.spawn(async move { inner.get_batch(&all, batch).await });
            }
        }
        let nobody = || Err(Error::Unreachable(ServerId::NOBODY));
        let mut answers: Vec<Result<MetaReply, Error>> = keys.iter().map(|_| nobody()).collect();
        while let Some(told) = asking.join_next().await {
            for (at, answer) in told.expect("no batch panics") {
                answers[at] = answer;
            }
        }
        answers
    }

    /// Which worker is asked for which keys. Those that copies may answer come last: they go where others go anyway, since a turn of a worker costs as
    /// much as many keys.
    async fn batches(&self, keys: &[SentKey]) -> BTreeMap<Target, BatchKeys> {
        let mut batches: BTreeMap<Target, BatchKeys> = BTreeMap::new();
        let (leased, others): (Vec<usize>, Vec<usize>) =
            (0..keys.len()).partition(|at| self.has_lease(&keys[*at]));
        for at in others {
            batches.entry(self.target(keys[at].hash).await).or_default().push((at, None));
        }
        for at in leased {
            let copy = self.copy_among(&keys[at], |target| batches.contains_key(target));
            let (target, by_lease) = match copy {
                Some((target, seen)) => (target, Some(seen)),
                None => (self.target(keys[at].hash).await, None),
            };
            batches.entry(target).or_default().push((at, by_lease));
        }
        batches
    }

    async fn get_batch(
        &self,
        keys: &[SentKey],
        Batch { target, keys: batch }: Batch,
    ) -> Vec<(usize, Result<MetaReply, Error>)> {
        let server = target.owner.server;
        let (known, asked) = (self.routes().heard(server), self.leased.now());
        let mut bytes = Vec::new();
        for (at, by_lease) in &batch {
            Command::Get.push(&mut bytes, &keys[*at], known, *by_lease);
        }
        let deadline = Instant::now() + self.options.timeout;
        let ask = async {
            let connection = self.connection(&target).await.ok()?;
            match connection.ask(self.requests(bytes, Form::Meta, batch.len())).await {
                Outcome::Replies(replies) => Some(replies),
                Outcome::Unsent | Outcome::Lost => None,
            }
        };
        let told = timeout_at(deadline, ask).await;
        let is_late = told.is_err();
        let mut replies = told.ok().flatten().unwrap_or_default().into_iter();
        let mut answers = Vec::new();
        // One after the other, as far as time allows: the first of them finds out whether there is somebody to ask.
        for (at, by_lease) in batch {
            let (hash, reply) = (keys[at].hash, replies.next());
            let answer = match (by_lease, reply) {
                (Some(_), reply) => self.heard_by_lease(hash, server, asked, reply).map(Ok),
                (None, Some(reply)) => Some(self.heard_read(hash, server, asked, Some(reply))),
                (None, None) => None,
            };
            let answer = match answer {
                Some(answer) => answer,
                None if is_late => Err(Error::Unknown(server)),
                None => {
                    let answer = timeout_at(deadline, self.ask(&keys[at], &Command::Get)).await;
                    answer.unwrap_or(Err(Error::Unreachable(server)))
                }
            };
            answers.push((at, answer));
        }
        answers
    }
}
