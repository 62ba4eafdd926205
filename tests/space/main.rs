//! Space comes back: segments whose messages do not count any more go, those with a few that do are rewritten.
//!
//! Method: the real daemon with the smallest segments and no rows kept in memory; what the data directory takes is
//! read from the file system.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests fail by panicking")]

#[path = "../common/mod.rs"]
mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::api::Api;
use common::{Daemon, SMALL_FILES};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(30);

/// Bytes of all segments and their indexes.
fn segment_bytes(daemon: &Daemon) -> u64 {
    let entries = std::fs::read_dir(daemon.data().join("segments")).unwrap();
    entries.map(|entry| entry.unwrap().metadata().map_or(0, |meta| meta.len())).sum()
}

fn wait_until(what: &str, daemon: &Daemon, mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < PATIENCE, "{what}: segments take {} bytes", segment_bytes(daemon));
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn message(queue: &str, partition: &str, id: &str, payload: &Value) -> Value {
    json!({"queue": queue, "partition": partition, "transactionId": id, "payload": payload})
}

/// Some megabytes for `gone`, with a message for `kept` every now and then; the ids of the latter.
async fn interleave(api: &Api, rounds: usize) -> Vec<String> {
    let filler = json!("x".repeat(4000));
    let mut kept = Vec::new();
    for round in 0..rounds {
        let many: Vec<Value> =
            (0..50).map(|n| message("gone", "p", &format!("g{round}-{n}"), &filler)).collect();
        api.push_items(json!(many)).await;
        let id = format!("k{round}");
        api.push_items(json!([message("kept", &format!("p{}", round % 3), &id, &json!(round))])).await;
        kept.push(id);
    }
    kept
}

/// Everything of `kept`, as a new group gets it: partition, offset, id and payload.
async fn drain(api: &Api, group: &str) -> Vec<(String, u64, String, Value)> {
    let mut all = Vec::new();
    loop {
        let query = [
            ("batch", "10"),
            ("partitions", "3"),
            ("autoAck", "true"),
            ("consumerGroup", group),
            ("subscriptionMode", "all"),
        ];
        let popped = api.pop("/queue/kept", &query).await;
        if popped.messages.is_empty() {
            all.sort_by(|a: &(String, u64, String, Value), b| (&a.0, a.1).cmp(&(&b.0, b.1)));
            return all;
        }
        all.extend(popped.messages.into_iter().map(|m| (m.partition, m.offset, m.transaction_id, m.data)));
    }
}

fn expected(kept: &[String]) -> Vec<(String, u64, String, Value)> {
    let mut all: Vec<_> = kept
        .iter()
        .enumerate()
        .map(|(round, id)| (format!("p{}", round % 3), (round / 3) as u64, id.clone(), json!(round)))
        .collect();
    all.sort_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
    all
}

#[tokio::test]
async fn deleting_a_queue_gives_its_space_back_and_keeps_what_others_have_in_between() {
    let daemon = Arc::new(Daemon::start(SMALL_FILES));
    let api = Api::of(Arc::clone(&daemon));
    let kept = interleave(&api, 60).await;
    let full = segment_bytes(&daemon);
    assert!(full > 12 << 20, "{full}");
    assert_eq!(drain(&api, "before").await, expected(&kept));

    assert_eq!(api.delete("/api/v1/resources/queues/gone").await.status, 200);
    wait_until("after the deletion", &daemon, || segment_bytes(&daemon) < 6 << 20);
    assert_eq!(drain(&api, "after").await, expected(&kept));
    for id in [&kept[0], &kept[31]] {
        let pushed = api.push_items(json!([message("kept", "p0", id, &json!("again"))])).await;
        let partition = kept.iter().position(|other| other == id).unwrap() % 3;
        let expected = if partition == 0 { "duplicate" } else { "queued" };
        assert_eq!(pushed[0].status, expected, "{id}");
    }
    let now = drain(&api, "third").await;
    assert_eq!(now.len(), kept.len() + 1);

    daemon.kill();
    daemon.restart();
    assert_eq!(drain(&api, "fourth").await, now);
    assert!(segment_bytes(&daemon) < 6 << 20);
    api.push_items(json!([message("kept", "p1", "more", &json!(1))])).await;
    assert_eq!(drain(&api, "fifth").await.len(), now.len() + 1);
}

#[tokio::test]
async fn kills_at_any_moment_of_freeing_lose_nothing() {
    let daemon = Arc::new(Daemon::start(SMALL_FILES));
    let api = Api::of(Arc::clone(&daemon));
    let mut all = Vec::new();
    for life in 0..6 {
        let kept = interleave(&api, 30).await;
        if life == 0 {
            all = kept;
        }
        assert_eq!(api.delete("/api/v1/resources/queues/gone").await.status, 200);
        std::thread::sleep(Duration::from_millis(150 * life));
        daemon.kill();
        daemon.restart();
        assert_eq!(drain(&api, &format!("life{life}")).await, expected(&all), "life {life}");
    }
    wait_until("in the end", &daemon, || segment_bytes(&daemon) < 6 << 20);
    assert_eq!(drain(&api, "end").await, expected(&all));
}
