//! Framed pops: decoded, they are the JSON answer.

use std::sync::Arc;

use serde_json::{Value, json};

use super::pushed;
use crate::common::api::Api;
use crate::common::frames::{FRAMES, decode, push};
use crate::common::{Daemon, SMALL_FILES, unique};

/// Pops for a group; with frames, the answer is decoded.
async fn pop(api: &Api, queue: &str, group: &str, more: &str) -> Value {
    let path = format!("/api/v1/pop/queue/{queue}?consumerGroup={group}&subscriptionMode=all{more}");
    let (status, content_type, bytes) = api.get_bytes(&path).await;
    match (status, content_type.as_str()) {
        (204, _) => {
            assert!(bytes.is_empty());
            Value::Null
        }
        (200, "application/x-queen-pop") => {
            assert!(more.contains("frames=true"));
            decode(&bytes)
        }
        (200, "application/json") => serde_json::from_slice(&bytes).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// The same answer without what differs by group.
fn neutral(mut answer: Value) -> Value {
    for key in ["leaseId", "consumerGroup"] {
        answer[key].take();
        for message in answer["messages"].as_array_mut().unwrap() {
            message[key].take();
        }
    }
    answer
}

/// Both forms of the same pop, by two groups that go the same way. Panics where they differ.
async fn both(api: &Api, queue: &str, more: &str) -> Value {
    let by_json = pop(api, queue, "j", more).await;
    let by_frames = pop(api, queue, "f", &format!("{more}&frames=true")).await;
    if by_json.is_null() {
        assert!(by_frames.is_null());
        return by_json;
    }
    assert_eq!(by_frames["consumerGroup"], "f");
    assert_eq!(by_frames["leaseId"] == "", by_json["leaseId"] == "");
    assert_eq!(neutral(by_frames.clone()), neutral(by_json));
    by_frames
}

async fn ack_all(api: &Api, answer: &Value, group: &str) {
    let acks: Vec<Value> = answer["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| json!({"transactionId": m["transactionId"], "partitionId": m["partitionId"]}))
        .collect();
    let verdicts =
        api.ack("/api/v1/ack/batch", &json!({"consumerGroup": group, "acknowledgments": acks})).await;
    assert!(verdicts.iter().all(|verdict| verdict.success), "{verdicts:?}");
}

async fn fill(api: &Api, queue: &str) {
    let payloads = [
        "null",
        "true",
        "-0.0",
        "123456789012345678901234567890",
        "\"\\u0000\\\"é😀\"",
        "[]",
        "{\"a\":{\"a\":[1,{}]}}",
    ];
    let items: Vec<Value> = payloads
        .into_iter()
        .map(|payload| json!({"queue": queue, "payload": serde_json::from_str::<Value>(payload).unwrap()}))
        .collect();
    api.push_items(Value::Array(items)).await;
    let id = uuid::Uuid::now_v7().as_u128();
    pushed(api, push(FRAMES, &[(queue, "", vec![(id, "", "1"), (id + 1, "own id é", "{\"a\":  1}")])])).await;
    let trace = "0193cafe-0000-4000-8000-00000000beef";
    let traced = json!({"operations": [{"type": "push", "queue": queue, "payload": 5, "traceId": trace}]});
    assert_eq!(api.post("/api/v1/transaction", &traced).await.json()["success"], true);
}

#[tokio::test]
async fn a_framed_answer_is_the_json_answer() {
    let api = Api::shared();
    let queue = unique("frames");
    fill(&api, &queue).await;
    let all = both(&api, &queue, "").await;
    assert_eq!(all["messages"].as_array().unwrap().len(), 10);
    assert_eq!(all["messages"][9]["traceId"], "0193cafe-0000-4000-8000-00000000beef");
    // Leased now, so there is nothing; acked, so there will be nothing.
    assert!(both(&api, &queue, "").await.is_null());
    ack_all(&api, &all, "f").await;
    assert!(pop(&api, &queue, "f", "&frames=true").await.is_null());
}

#[tokio::test]
async fn parts_of_runs_and_many_partitions() {
    let api = Api::shared();
    let queue = unique("parts");
    for lane in 0..4 {
        let items: Vec<Value> = (0..5)
            .map(|n| json!({"queue": queue, "partition": format!("p{lane}"), "payload": [lane, n]}))
            .collect();
        api.push_items(Value::Array(items[..3].to_vec())).await;
        api.push_items(Value::Array(items[3..].to_vec())).await;
    }
    let mut seen = 0;
    for _ in 0..20 {
        // Batches that end inside a run, over several partitions, committed at delivery and with a lease.
        for more in ["&batch=2&autoAck=true", "&batch=7&partitions=3"] {
            let answer = both(&api, &queue, more).await;
            if answer.is_null() {
                continue;
            }
            seen += answer["messages"].as_array().unwrap().len();
            if more.contains("autoAck") {
                assert_eq!(answer["leaseId"], "");
            } else {
                ack_all(&api, &answer, "f").await;
                ack_all(&api, &answer, "j").await;
            }
        }
    }
    assert_eq!(seen, 20);
}

#[tokio::test]
async fn frames_come_from_files_too() {
    let daemon = Arc::new(Daemon::start(SMALL_FILES));
    let api = Api::of(Arc::clone(&daemon));
    let text = "x".repeat(30_000);
    for n in 0..100 {
        let items: Vec<Value> = (0..3).map(|m| json!({"queue": "q", "payload": [n, m, text]})).collect();
        api.push_items(Value::Array(items)).await;
    }
    daemon.kill();
    daemon.restart();
    let mut next = 0;
    while next < 300 {
        let answer = both(&api, "q", "&batch=70").await;
        let messages = answer["messages"].as_array().unwrap();
        for message in messages {
            assert_eq!(message["offset"], next);
            next += 1;
        }
        ack_all(&api, &answer, "f").await;
        ack_all(&api, &answer, "j").await;
    }
}

#[tokio::test]
async fn a_delivery_attempt_is_shown() {
    let api = Api::shared();
    let queue = unique("attempt");
    api.push_items(json!([{"queue": queue, "payload": 1, "transactionId": "t"}])).await;
    for attempt in 1..4 {
        let answer = pop(&api, &queue, "g", "&frames=true").await;
        assert_eq!(answer["messages"][0]["deliveryAttempt"], attempt);
        let body = json!({"consumerGroup": "g", "transactionId": "t", "status": "retry",
            "partitionId": answer["partitionId"], "leaseId": answer["leaseId"]});
        assert!(api.ack("/api/v1/ack", &body).await[0].success);
    }
}
