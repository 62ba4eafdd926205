//! One partition of one queue, and the sentences that tests about it are made of.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::api::{Api, DeadLetter, Popped, Pushed, Verdict};
use super::{Daemon, unique};

/// The group of tests that need one.
pub(crate) const GROUP: &str = "readers";

/// A bit longer than the shortest lease, which is one second.
pub(crate) const LEASE_OVER: Duration = Duration::from_millis(1250);

/// A queue of its own with one partition that matters.
#[derive(Clone)]
pub(crate) struct Lane {
    pub(crate) api: Api,
    pub(crate) queue: String,
    pub(crate) partition: String,
    pub(crate) group: String,
}

impl Lane {
    /// A fresh queue on the shared daemon.
    pub(crate) fn new(name: &str) -> Lane {
        Lane::on(Daemon::shared(), name)
    }

    /// A fresh queue on this daemon.
    pub(crate) fn on(daemon: Arc<Daemon>, name: &str) -> Lane {
        Lane {
            api: Api::of(daemon),
            queue: unique(name),
            partition: "Default".to_owned(),
            group: GROUP.to_owned(),
        }
    }

    /// A fresh queue with these messages in it.
    pub(crate) async fn with(name: &str, ids: &[&str]) -> Lane {
        let lane = Lane::new(name);
        lane.push(ids).await;
        lane
    }

    /// The same queue, seen by another group.
    pub(crate) fn group(&self, group: &str) -> Lane {
        Lane { group: group.to_owned(), ..self.clone() }
    }

    /// The same queue, another partition.
    pub(crate) fn partition(&self, partition: &str) -> Lane {
        Lane { partition: partition.to_owned(), ..self.clone() }
    }

    /// Pushes one message per id; its payload is `{"id": …}`.
    pub(crate) async fn push(&self, ids: &[&str]) -> Vec<Pushed> {
        let items: Vec<Value> = ids
            .iter()
            .map(|id| {
                json!({"queue": self.queue, "partition": self.partition, "transactionId": id, "payload": {"id": id}})
            })
            .collect();
        self.api.push_items(Value::Array(items)).await
    }

    /// Pops from the partition with these extra parameters.
    pub(crate) async fn pop_with(&self, query: &[(&str, &str)]) -> Popped {
        let mut all = vec![("consumerGroup", self.group.as_str()), ("subscriptionMode", "all")];
        all.extend_from_slice(query);
        let encode = |name: &str| {
            percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC).to_string()
        };
        let path = format!("/queue/{}/partition/{}", encode(&self.queue), encode(&self.partition));
        self.api.pop(&path, &all).await
    }

    /// Pops at most so many messages under a lease that does not end during a test.
    pub(crate) async fn pop(&self, batch: usize) -> Popped {
        self.pop_with(&[("batch", &batch.to_string())]).await
    }

    /// Pops under the shortest lease and lets it end.
    pub(crate) async fn pop_and_let_expire(&self, batch: usize) -> Popped {
        let popped = self.pop_with(&[("batch", &batch.to_string()), ("leaseSeconds", "1")]).await;
        tokio::time::sleep(LEASE_OVER).await;
        popped
    }

    /// The ids that a pop delivers now. Their lease stays.
    pub(crate) async fn ids(&self) -> Vec<String> {
        self.pop(1000).await.messages.into_iter().map(|m| m.transaction_id).collect()
    }

    /// One call with one status per id under this lease; `""` sends none.
    pub(crate) async fn ack(&self, from: &Popped, lease: &str, items: &[(&str, &str)]) -> Vec<Verdict> {
        let items: Vec<Value> = items
            .iter()
            .map(|(id, status)| {
                json!({"transactionId": id, "partitionId": from.partition_id, "status": status, "leaseId": lease})
            })
            .collect();
        self.ack_raw(Value::Array(items)).await
    }

    /// One call with the lease of the pop.
    pub(crate) async fn settle(&self, from: &Popped, items: &[(&str, &str)]) -> Vec<Verdict> {
        self.ack(from, &from.lease_id, items).await
    }

    /// One call that completes everything of the pop, with its lease.
    pub(crate) async fn complete(&self, from: &Popped) -> Vec<Verdict> {
        let items: Vec<(&str, &str)> = from.ids().into_iter().map(|id| (id, "completed")).collect();
        self.settle(from, &items).await
    }

    /// A batch of these acknowledgements for the group of this lane.
    pub(crate) async fn ack_raw(&self, acknowledgments: Value) -> Vec<Verdict> {
        let body = json!({"consumerGroup": self.group, "acknowledgments": acknowledgments});
        self.api.ack("/api/v1/ack/batch", &body).await
    }

    /// The dead letters of this lane's group.
    pub(crate) async fn dead_letters(&self) -> Vec<DeadLetter> {
        self.api.dead_letters(&self.queue, Some(&self.group)).await
    }

    /// Sets options of the queue.
    pub(crate) async fn configure(&self, options: Value) {
        self.api.configure(&self.queue, options).await;
    }
}

/// Whether every verdict is a plain success.
pub(crate) fn all_succeed(verdicts: &[Verdict]) -> bool {
    verdicts.iter().all(|v| v.success && v.error.is_none() && !v.noop)
}
