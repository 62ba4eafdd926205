//! Compares what the daemon has with what the clients know.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::{Value, json};

use crate::chance::Chance;
use crate::common::api::{Api, Message, Pushed};
use crate::ledger::{Ledger, payload, producer_and_number};
use crate::load::{GROUPS, PARTITIONS, QUEUE, SINK, check_span};

/// A message as the judge saw it; the index in its partition is the offset.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    id: String,
    message_id: String,
}

/// Reads everything with a group of its own and keeps what it has seen.
pub(crate) struct Judge {
    api: Api,
    ledger: Ledger,
    /// By partition of the load's queue.
    seen: BTreeMap<String, Vec<Seen>>,
    /// Ids in the sink.
    sink: BTreeSet<String>,
}

impl Judge {
    pub(crate) fn new(api: Api) -> Judge {
        Judge { api, ledger: Ledger::default(), seen: BTreeMap::new(), sink: BTreeSet::new() }
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Retries without end: what becomes of an exhausted message is tested elsewhere.
    pub(crate) async fn prepare(&self) {
        self.api.configure(QUEUE, json!({"retryLimit": 1_000_000})).await;
    }

    /// After a restart: everything that can be told without waiting for leases to end.
    pub(crate) async fn check(&mut self, chance: &mut Chance) {
        self.check_duplicates(chance).await;
        self.retry_unanswered(chance).await;
        let fresh = drain(&self.api, QUEUE, "judge").await;
        for message in fresh {
            let seen = self.seen.entry(message.partition.clone()).or_default();
            assert_eq!(u64::try_from(seen.len()).unwrap(), message.offset, "{} has a gap", message.partition);
            seen.push(Seen { id: message.transaction_id, message_id: message.id });
        }
        self.check_messages();
        self.check_sink().await;
        self.check_dead_letters().await;
    }

    /// Some of what was answered is pushed again: every answer must be the first one's.
    async fn check_duplicates(&self, chance: &mut Chance) {
        let (count, skip) =
            self.ledger.with(|state| (state.stored.len(), chance.index(state.stored.len().max(1))));
        if count == 0 {
            return;
        }
        let some: Vec<_> = self.ledger.with(|state| {
            state
                .stored
                .iter()
                .cycle()
                .skip(skip)
                .step_by(1 + count / 40)
                .take(40.min(count))
                .map(own)
                .collect()
        });
        for (id, stored) in some {
            let pushed = self.push(&id, &stored.partition).await;
            assert_eq!(pushed.status, "duplicate", "{id} was answered as {stored:?}");
            assert_eq!((pushed.offset, &pushed.message_id), (stored.offset, &stored.message_id), "{id}");
        }
    }

    /// Half of what was never answered is pushed again, as a client would.
    async fn retry_unanswered(&self, chance: &mut Chance) {
        let all: Vec<_> = self.ledger.with(|state| state.unanswered.iter().map(own).collect());
        for (id, partition) in all.into_iter().filter(|_| chance.one_in(2)) {
            let pushed = self.push(&id, &partition).await;
            if pushed.status == "queued" {
                self.ledger.with(|state| state.late.push(id));
            }
            self.ledger.pushed(&partition, &[pushed]);
        }
    }

    async fn push(&self, id: &str, partition: &str) -> Pushed {
        let item =
            json!({"queue": QUEUE, "partition": partition, "transactionId": id, "payload": payload(id)});
        self.api.push_items(json!([item])).await.remove(0)
    }

    /// What was answered is where the answer said; what was not is there at most once; nothing else is there.
    fn check_messages(&self) {
        let mut places: HashMap<&str, (&str, u64)> = HashMap::new();
        for (partition, seen) in &self.seen {
            for (offset, message) in (0..).zip(seen) {
                let before = places.insert(&message.id, (partition, offset));
                assert_eq!(before, None, "{} is there twice", message.id);
            }
        }
        self.ledger.with(|state| {
            for (id, stored) in &state.stored {
                let place = places.remove(id.as_str());
                assert_eq!(
                    place,
                    Some((stored.partition.as_str(), stored.offset)),
                    "{id} was answered as {stored:?}"
                );
                let seen = &self.seen[&stored.partition][usize::try_from(stored.offset).unwrap()];
                assert_eq!(seen.message_id, stored.message_id, "{id}");
            }
            for (id, (partition, offset)) in places {
                assert_eq!(
                    state.unanswered.get(id).map(String::as_str),
                    Some(partition),
                    "nobody pushed {id}, which is at {offset} of {partition}"
                );
            }
        });
        self.check_order();
    }

    /// A producer sends one request at a time, so what it was answered is in its order.
    fn check_order(&self) {
        self.ledger.with(|state| {
            let mut last: HashMap<(&str, &str), (u64, u64)> = HashMap::new();
            let retried: BTreeSet<&String> = state.late.iter().collect();
            for (partition, seen) in &self.seen {
                for (offset, message) in (0..).zip(seen) {
                    if retried.contains(&message.id) {
                        continue;
                    }
                    let (producer, number) = producer_and_number(&message.id).unwrap();
                    let before = last.insert((partition, producer), (number, offset));
                    assert!(
                        before.is_none_or(|(n, _)| n < number),
                        "{producer} pushed {number} to {partition} ({offset}) after {before:?}"
                    );
                }
            }
        });
    }

    /// A message in the sink proves that its bundle's ack counts, answered or not.
    async fn check_sink(&mut self) {
        for message in drain(&self.api, SINK, "judge").await {
            let id = message.transaction_id;
            let mut parts = id.split('/');
            let (group, partition) = (parts.next().unwrap().to_owned(), parts.next().unwrap().to_owned());
            let next: u64 = parts.next().unwrap().parse().unwrap();
            self.ledger.acked(&group, &partition, next);
            assert!(self.sink.insert(id.clone()), "{id} is in the sink twice");
        }
        self.ledger.with(|state| {
            for id in &state.moved {
                assert!(self.sink.contains(id), "the transaction that pushed {id} was answered");
            }
        });
    }

    async fn check_dead_letters(&self) {
        for group in GROUPS {
            let mut filed: Vec<String> = Vec::new();
            loop {
                let path = format!(
                    "/api/v1/dlq?queue={QUEUE}&consumerGroup={group}&limit=100&offset={}",
                    filed.len()
                );
                let page = self.api.get(&path).await.json();
                let rows = page["messages"].as_array().unwrap();
                if rows.is_empty() {
                    break;
                }
                for row in rows {
                    let id = row["transactionId"].as_str().unwrap();
                    assert_eq!(row["data"], payload(id), "the dead letter of {id} was changed");
                    filed.push(id.to_owned());
                }
            }
            let count = filed.len();
            let mut filed: BTreeSet<String> = filed.into_iter().collect();
            assert_eq!(filed.len(), count, "a dead letter of {group} is there twice");
            self.ledger.with(|state| {
                for (_, id) in state.dead.iter().filter(|(of, _)| of == group) {
                    assert!(filed.remove(id), "the dead letter of {id} was answered");
                }
                for id in filed {
                    let asked = (group.to_owned(), id);
                    assert!(state.perhaps_dead.contains(&asked), "nobody dead-lettered {asked:?}");
                }
            });
        }
    }

    /// At the end: a group that never read sees the same, and the load's groups get exactly what is left to them.
    pub(crate) async fn check_everything_again(&mut self) {
        let mut again: BTreeMap<String, Vec<Seen>> = BTreeMap::new();
        for message in drain(&self.api, QUEUE, "afterwards").await {
            again
                .entry(message.partition)
                .or_default()
                .push(Seen { id: message.transaction_id, message_id: message.id });
        }
        assert!(again == self.seen, "a second reader sees something else");
        // Every lease of the load is over by then.
        tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
        for group in GROUPS {
            let mut first: BTreeMap<String, u64> = BTreeMap::new();
            let mut after: BTreeMap<String, u64> = BTreeMap::new();
            for message in drain(&self.api, QUEUE, group).await {
                let expected = after.insert(message.partition.clone(), message.offset + 1);
                assert!(
                    expected.is_none_or(|e| e == message.offset),
                    "{group} skipped in {}",
                    message.partition
                );
                first.entry(message.partition).or_insert(message.offset);
            }
            for partition in PARTITIONS {
                let all = u64::try_from(self.seen.get(partition).map_or(0, Vec::len)).unwrap();
                let known = self.ledger.next(group, partition);
                let first = first.get(partition).copied().unwrap_or(all);
                assert!(
                    known.low <= first && first <= known.high.max(known.low),
                    "{group} goes on at {first} of {partition}, it must be {known:?}"
                );
                assert_eq!(
                    after.get(partition).copied().unwrap_or(all),
                    all,
                    "{group} does not get the end of {partition}"
                );
            }
        }
    }
}

fn own<K: Clone, V: Clone>((key, value): (&K, &V)) -> (K, V) {
    (key.clone(), value.clone())
}

/// Pops and acknowledges everything of a queue for this group.
async fn drain(api: &Api, queue: &str, group: &str) -> Vec<Message> {
    let mut all = Vec::new();
    loop {
        let query =
            [("consumerGroup", group), ("subscriptionMode", "all"), ("batch", "2000"), ("partitions", "8")];
        let popped = api.pop(&format!("/queue/{queue}"), &query).await;
        if popped.messages.is_empty() {
            return all;
        }
        for span in popped.messages.chunk_by(|a, b| a.partition == b.partition) {
            check_span(span);
        }
        let items: Vec<Value> = popped
            .messages
            .iter()
            .map(|m| json!({"transactionId": m.transaction_id, "partitionId": m.partition_id, "leaseId": m.lease_id}))
            .collect();
        let verdicts =
            api.ack("/api/v1/ack/batch", &json!({"consumerGroup": group, "acknowledgments": items})).await;
        assert!(verdicts.iter().all(|v| v.success && !v.noop), "{group}: {verdicts:?}");
        all.extend(popped.messages);
    }
}
