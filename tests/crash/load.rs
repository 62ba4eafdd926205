//! Clients that push, pop and acknowledge until the daemon goes away.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::chance::Chance;
use crate::common::api::{Answer, Api, Message, Popped, Pushed, Verdict};
use crate::ledger::{Ledger, payload};

/// The queue of the load.
pub(crate) const QUEUE: &str = "load";
/// Where transactions push.
pub(crate) const SINK: &str = "sink";
/// Its partitions.
pub(crate) const PARTITIONS: [&str; 5] = ["p0", "p1", "p2", "p3", "p4"];
/// Its consumer groups.
pub(crate) const GROUPS: [&str; 2] = ["one", "two"];

const PRODUCERS: u64 = 8;
const CONSUMERS_PER_GROUP: usize = 4;

/// A running load.
pub(crate) struct Load {
    ending: Arc<AtomicBool>,
    clients: Vec<JoinHandle<()>>,
}

#[derive(Clone)]
struct Client {
    api: Api,
    ledger: Ledger,
    ending: Arc<AtomicBool>,
    chance: Chance,
    name: String,
}

impl Load {
    pub(crate) fn start(api: &Api, ledger: &Ledger, round: u64, chance: &mut Chance) -> Load {
        let ending = Arc::new(AtomicBool::new(false));
        let mut client = |name: String| Client {
            api: api.clone(),
            ledger: ledger.clone(),
            ending: Arc::clone(&ending),
            chance: chance.split(),
            name,
        };
        let mut clients = Vec::new();
        for producer in 0..PRODUCERS {
            clients.push(tokio::spawn(client(format!("{round}-{producer}")).produce()));
        }
        for group in GROUPS {
            for _ in 0..CONSUMERS_PER_GROUP {
                clients.push(tokio::spawn(client(group.to_owned()).consume()));
            }
        }
        Load { ending, clients }
    }

    /// From now on an answer may stay out. Before, that is a failure.
    pub(crate) fn expect_the_end(&self) {
        self.ending.store(true, Ordering::SeqCst);
    }

    /// Waits until every client has noticed the end.
    pub(crate) async fn join(self) {
        for client in self.clients {
            client.await.unwrap();
        }
    }
}

impl Client {
    /// A POST; `None` when the daemon is going away.
    async fn post(&self, path: &str, body: &Value) -> Option<Answer> {
        let answer = self.api.try_post(path, body).await;
        self.accept(path, answer)
    }

    fn accept(&self, path: &str, answer: Option<Answer>) -> Option<Answer> {
        match answer {
            Some(answer) if answer.status.is_success() => Some(answer),
            other => {
                assert!(self.ending.load(Ordering::SeqCst), "{path}: {other:?}");
                None
            }
        }
    }

    async fn produce(mut self) {
        let mut number = 0_u64;
        let mut answered: Vec<String> = Vec::new();
        loop {
            let partition = PARTITIONS[self.chance.index(PARTITIONS.len())];
            let count = if self.chance.one_in(2) { 1 } else { self.chance.between(2, 40) };
            let mut ids: Vec<String> =
                (0..count).map(|n| format!("{partition}/{}/{:08}", self.name, number + n)).collect();
            number += count;
            let fresh = ids.clone();
            // Sometimes a retry of something that was answered long ago travels along.
            let retried =
                answered.iter().filter(|id| id.starts_with(partition)).nth(self.chance.index(20)).cloned();
            if let Some(id) = retried {
                ids.insert(self.chance.index(ids.len()), id);
            }
            self.ledger.pushing(&fresh, partition);
            let items: Vec<Value> = ids
                .iter()
                .map(|id| json!({"queue": QUEUE, "partition": partition, "transactionId": id, "payload": payload(id)}))
                .collect();
            let Some(answer) = self.post("/api/v1/push", &json!({ "items": items })).await else { return };
            let pushed: Vec<Pushed> = serde_json::from_str(&answer.text).unwrap();
            assert_eq!(
                pushed.iter().map(|p| &p.transaction_id).collect::<Vec<_>>(),
                ids.iter().collect::<Vec<_>>()
            );
            self.ledger.pushed(partition, &pushed);
            answered.extend(fresh);
        }
    }

    async fn consume(mut self) {
        let group = self.name.clone();
        loop {
            let floors: BTreeMap<&str, u64> =
                PARTITIONS.iter().map(|p| (*p, self.ledger.next(&group, p).low)).collect();
            let partitions = self.chance.between(1, 3);
            let path = format!(
                "/api/v1/pop/queue/{QUEUE}?consumerGroup={group}&subscriptionMode=all&batch={}&partitions={partitions}&leaseSeconds=1&wait=true&timeout=300",
                self.chance.between(1, 120)
            );
            let answer = self.api.try_get(&path).await;
            let Some(answer) = self.accept(&path, answer) else { return };
            if answer.status == 204 {
                continue;
            }
            let popped: Popped = serde_json::from_str(&answer.text).unwrap();
            for span in popped.messages.chunk_by(|a, b| a.partition == b.partition) {
                let partition = span[0].partition.as_str();
                check_span(span);
                let first = span[0].offset;
                assert!(
                    first >= floors[partition],
                    "{group} gets offset {first} of {partition} again: {floors:?}"
                );
                let high = self.ledger.next(&group, partition).high;
                assert!(first <= high, "{group} skipped from at most {high} to {first} in {partition}");
                if self.settle(&group, span).await.is_none() {
                    return;
                }
            }
        }
    }

    /// Does one of the things that consumers do. `None` when the daemon is going away.
    async fn settle(&mut self, group: &str, span: &[Message]) -> Option<()> {
        let partition = span[0].partition.as_str();
        let at = self.chance.index(span.len());
        let last = span.len() - 1;
        match self.chance.between(0, 19) {
            // Everything, message by message in one call.
            0..=8 => {
                let items: Vec<Value> = span.iter().map(|m| item(m, "completed")).collect();
                let next = span[last].offset + 1;
                self.ledger.acking(group, partition, next);
                if self.ack(group, items).await?.iter().all(|v| v.success) {
                    self.ledger.acked(group, partition, next);
                }
            }
            // One message only, which commits everything below it.
            9..=12 => {
                let next = span[at].offset + 1;
                self.ledger.acking(group, partition, next);
                if self.ack(group, vec![item(&span[at], "completed")]).await?[0].success {
                    self.ledger.acked(group, partition, next);
                }
            }
            // A failure in the middle; what is above it does not count.
            13 | 14 => {
                let status = |n: usize| if n == at { "failed" } else { "completed" };
                let items: Vec<Value> = span.iter().enumerate().map(|(n, m)| item(m, status(n))).collect();
                let next = span[at].offset;
                self.ledger.acking(group, partition, next);
                if self.ack(group, items).await?.iter().all(|v| v.success) {
                    self.ledger.acked(group, partition, next);
                }
            }
            // Given back.
            15 => {
                self.ack(group, vec![item(&span[0], "retry")]).await?;
            }
            // A dead letter.
            16 => {
                let letter = (group.to_owned(), span[at].transaction_id.clone());
                let next = span[at].offset + 1;
                self.ledger.acking(group, partition, next);
                self.ledger.with(|state| state.perhaps_dead.push(letter.clone()));
                let verdict = self.ack(group, vec![item(&span[at], "dlq")]).await?.remove(0);
                self.ledger.with(|state| {
                    state.perhaps_dead.retain(|l| *l != letter);
                    if verdict.success {
                        assert!(verdict.dlq, "{verdict:?}");
                        state.dead.push(letter);
                    }
                });
                if verdict.success {
                    self.ledger.acked(group, partition, next);
                }
            }
            // Moved on in a transaction.
            17 | 18 => self.transact(group, span).await?,
            // Abandoned; it comes back when the lease ends.
            _ => {}
        }
        Some(())
    }

    async fn ack(&self, group: &str, items: Vec<Value>) -> Option<Vec<Verdict>> {
        let count = items.len();
        let body = json!({"consumerGroup": group, "acknowledgments": items});
        let answer = self.post("/api/v1/ack/batch", &body).await?;
        let verdicts: Vec<Verdict> = serde_json::from_str(&answer.text).unwrap();
        assert_eq!(verdicts.len(), count);
        for verdict in &verdicts {
            // Leases of a second do end under load; nothing else may go wrong.
            assert!(verdict.success || verdict.refused_with("lease"), "{verdict:?}");
        }
        Some(verdicts)
    }

    async fn transact(&self, group: &str, span: &[Message]) -> Option<()> {
        let last = &span[span.len() - 1];
        let next = last.offset + 1;
        // The id says which cursor the bundle moves and where to.
        let id = format!("{group}/{}/{next}", last.partition);
        let mut ack = item(last, "completed");
        ack["type"] = json!("ack");
        ack["consumerGroup"] = json!(group);
        let push =
            json!({"type": "push", "items": [{"queue": SINK, "transactionId": id, "payload": payload(&id)}]});
        self.ledger.acking(group, &last.partition, next);
        let body = json!({"operations": [push, ack], "requiredLeases": [last.lease_id]});
        let answer = self.post("/api/v1/transaction", &body).await?.json();
        if answer["success"] == true {
            self.ledger.acked(group, &last.partition, next);
            self.ledger.with(|state| state.moved.push(id));
        } else {
            let error = answer["error"].as_str().unwrap_or_default();
            assert!(error.contains("rolled back") && error.contains("lease"), "{answer}");
        }
        Some(())
    }
}

fn item(message: &Message, status: &str) -> Value {
    json!({"transactionId": message.transaction_id, "partitionId": message.partition_id, "leaseId": message.lease_id,
           "status": status, "error": "load"})
}

/// Contiguous offsets, and every message as it was pushed.
pub(crate) fn check_span(span: &[Message]) {
    for pair in span.windows(2) {
        assert_eq!(pair[0].offset + 1, pair[1].offset, "a gap in {}", pair[0].partition);
    }
    for message in span {
        assert_eq!(message.data, payload(&message.transaction_id), "{message:?} was changed");
    }
}
