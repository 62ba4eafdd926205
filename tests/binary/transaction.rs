//! Binary transactions commit and roll back as the JSON ones do.

use serde_json::{Value, json};

use super::{send, texts};
use crate::common::api::Api;
use crate::common::frames::{SHORT, transaction};
use crate::common::unique;

fn uuid() -> u128 {
    uuid::Uuid::now_v7().as_u128()
}

async fn commit(api: &Api, body: Vec<u8>) -> Value {
    let (status, json) = send(api, "/api/v1/transaction", body).await;
    assert_eq!(status, 200, "{json}");
    json
}

/// A queue with these messages, popped: the head of a transaction that acks them all.
async fn popped(api: &Api, from: &str, ids: &[&str]) -> Value {
    let items: Vec<Value> =
        ids.iter().map(|id| json!({"queue": from, "transactionId": id, "payload": 1})).collect();
    api.push_items(Value::Array(items)).await;
    let popped = api.pop(&format!("/queue/{from}"), &[]).await;
    let acks: Vec<Value> = ids
        .iter()
        .map(|id| {
            json!({"type": "ack", "transactionId": id, "partitionId": popped.partition_id, "status": "completed",
                "leaseId": popped.lease_id})
        })
        .collect();
    json!({"operations": acks, "requiredLeases": [popped.lease_id]})
}

async fn count(api: &Api, queue: &str, group: &str) -> usize {
    let query = [("consumerGroup", group), ("subscriptionMode", "all"), ("partitions", "64")];
    api.pop(&format!("/queue/{queue}"), &query).await.messages.len()
}

#[tokio::test]
async fn acks_and_pushes_commit_together() {
    let api = Api::shared();
    for flags in [0, SHORT] {
        let (from, to) = (unique("from"), unique("to"));
        let head = popped(&api, &from, &["m1", "m2"]).await.to_string();
        let groups = [
            (to.as_str(), "a", vec![(uuid(), "x", "1"), (uuid(), "", "2")]),
            (&to, "", vec![(uuid(), "x", "3")]),
            (&to, "a", vec![(uuid(), "x", "4")]),
        ];
        let done = commit(&api, transaction(flags, &head, &groups)).await;
        assert_eq!(done["success"], true, "{done}");
        if flags == SHORT {
            assert_eq!(
                (&done["pushed"], &done["duplicate"], &done["acked"]),
                (&json!(4), &json!(1), &json!(2))
            );
            assert_eq!(done["results"], json!([]));
        } else {
            assert_eq!(texts(&done["results"], "type"), ["ack", "ack", "push", "push", "push", "push"]);
            assert_eq!(done["results"][5]["duplicate"], true);
            assert_eq!(done["results"][5]["messageId"], done["results"][2]["messageId"]);
        }
        assert_eq!(count(&api, &to, "g").await, 3);
        let query = [("leaseSeconds", "1")];
        assert!(api.pop(&format!("/queue/{from}"), &query).await.messages.is_empty());
    }
}

#[tokio::test]
async fn a_stored_duplicate_rolls_everything_back() {
    let api = Api::shared();
    let (from, to) = (unique("from"), unique("to"));
    let head = popped(&api, &from, &["m1"]).await.to_string();
    api.push_items(json!([{"queue": to, "transactionId": "taken", "payload": 0}])).await;
    let groups = [(to.as_str(), "", vec![(uuid(), "new", "1"), (uuid(), "taken", "2")])];
    for flags in [0, SHORT] {
        let undone = commit(&api, transaction(flags, &head, &groups)).await;
        assert_eq!((&undone["success"], &undone["reason"]), (&json!(false), &json!("duplicate")), "{undone}");
        assert!(undone["error"].as_str().unwrap().contains("rolled back"), "{undone}");
    }
    assert_eq!(count(&api, &to, "g").await, 1, "nothing was pushed");
    // The lease still holds what was not acked.
    let other = [(to.as_str(), "", vec![(uuid(), "new", "1")])];
    assert_eq!(commit(&api, transaction(0, &head, &other)).await["success"], true);
    // Sent again, as after a lost answer: it finds what it did.
    let again = commit(&api, transaction(0, &head, &other)).await;
    assert_eq!(again["success"], false, "{again}");
}

#[tokio::test]
async fn a_lease_that_is_gone_rolls_everything_back() {
    let api = Api::shared();
    let to = unique("to");
    let head = json!({"requiredLeases": ["01930000-0000-7000-8000-000000000001"]}).to_string();
    let groups = [(to.as_str(), "", vec![(uuid(), "x", "1")])];
    let undone = commit(&api, transaction(0, &head, &groups)).await;
    assert_eq!((&undone["success"], &undone["reason"]), (&json!(false), &json!("rejected_ack")));
    assert!(undone["error"].as_str().unwrap().contains("lease"), "{undone}");
    assert_eq!(count(&api, &to, "g").await, 0);
    // One bad payload refuses the bundle before anything of it happens.
    let bad = [(to.as_str(), "", vec![(uuid(), "x", "1"), (uuid(), "y", "{")])];
    let (status, json) = send(&api, "/api/v1/transaction", transaction(0, "", &bad)).await;
    assert_eq!((status, &json["code"]), (400, &json!("bad_body")));
    assert!(json["error"].as_str().unwrap().contains("groups[0]: items[1]: payload"), "{json}");
    assert_eq!(count(&api, &to, "g").await, 0);
}
