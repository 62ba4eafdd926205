//! Transactions: pushes and acks that stand or fall together.

use queen_mq::{AckStatus, QueueOptions, TxnPushItem};
use serde_json::json;

use super::{Client, LEASE_OVER, ids, number, numbered};
use crate::common::unique;

#[tokio::test]
async fn an_ack_and_a_push_commit_together() {
    let client = Client::new();
    let (from, to) = (unique("from"), unique("to"));
    client.put(&from, &["m1"]).await;
    let popped = client.take(&from, None, 1).await;
    let done =
        client.transaction().ack(&popped[0]).push(&to, json!({"n": 1})).unwrap().commit().await.unwrap();
    assert!(done.success);
    assert_eq!(done.results.iter().map(|r| r.index).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(done.results.iter().map(|r| r.op_type.as_str()).collect::<Vec<_>>(), ["ack", "push"]);
    assert!(done.results.iter().all(|r| r.success));
    assert!(client.take(&from, None, 1).await.is_empty());
    let moved = client.take(&to, None, 1).await;
    assert_eq!(moved.len(), 1);
    assert_eq!(done.results[1].message_id.as_deref(), Some(moved[0].id.as_str()));
}

#[tokio::test]
async fn a_whole_batch_fans_out_over_queues_and_partitions() {
    let client = Client::new();
    let (from, a, b) = (unique("from"), unique("a"), unique("b"));
    client.queue(&from).push_many(numbered(0..10)).await.unwrap();
    let popped = client.take(&from, None, 10).await;
    let mut transaction = client.transaction().ack_all(&popped);
    for message in &popped {
        let n = number(message);
        transaction = transaction
            .push_to(if n.is_multiple_of(2) { &a } else { &b }, format!("p{n}"), json!({ "n": n }))
            .unwrap();
    }
    assert!(transaction.commit().await.unwrap().success);
    assert!(client.take(&from, None, 10).await.is_empty());
    for (queue, expected) in [(&a, [0, 2, 4, 6, 8]), (&b, [1, 3, 5, 7, 9])] {
        let popped = client.queue(queue).batch(10).partitions(10).wait(false).pop().await.unwrap();
        let mut numbers: Vec<u64> = popped.iter().map(number).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, expected);
    }
}

#[tokio::test]
async fn a_stale_lease_rolls_everything_back() {
    let client = Client::new();
    let from = client.configured("stale", QueueOptions { lease_time: Some(1), ..Default::default() }).await;
    let to = unique("never");
    client.put(&from, &["m1"]).await;
    let popped = client.take(&from, None, 1).await;
    tokio::time::sleep(LEASE_OVER).await;
    let error =
        client.transaction().push(&to, 1).unwrap().ack(&popped[0]).commit().await.unwrap_err().to_string();
    assert!(error.contains("rolled back") && error.contains("lease"), "{error}");
    assert!(client.take(&to, None, 1).await.is_empty());
    assert_eq!(ids(&client.take(&from, None, 1).await), ["m1"]);
}

#[tokio::test]
async fn a_duplicate_push_rolls_everything_back() {
    let client = Client::new();
    let (from, to) = (unique("from"), unique("to"));
    client.put(&from, &["m1"]).await;
    client.put(&to, &["taken"]).await;
    let popped = client.take(&from, None, 1).await;
    let push = |id: &str| {
        let mut item = TxnPushItem::new(&to, json!(1));
        item.transaction_id = Some(id.to_owned());
        item
    };
    let error = client
        .transaction()
        .ack(&popped[0])
        .push_item(push("fresh"))
        .unwrap()
        .push_item(push("taken"))
        .unwrap()
        .commit()
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("rolled back"), "{error}");
    assert_eq!(ids(&client.take(&to, None, 10).await), ["taken"], "nothing of the bundle was stored");
    // The lease was not spent: the ack can be given again.
    assert!(client.ack(&popped[0]).await.unwrap().success);
}

#[tokio::test]
async fn a_repeat_inside_a_bundle_collapses() {
    let client = Client::new();
    let queue = unique("inside");
    let item = || {
        let mut item = TxnPushItem::new(&queue, json!(1));
        item.transaction_id = Some("same".to_owned());
        item
    };
    let done =
        client.transaction().push_item(item()).unwrap().push_item(item()).unwrap().commit().await.unwrap();
    assert!(done.success);
    assert_eq!(done.results[1].duplicate, Some(true), "{done:?}");
    assert_eq!(client.take(&queue, None, 10).await.len(), 1);
}

#[tokio::test]
async fn an_ack_in_a_bundle_moves_only_its_own_group() {
    let client = Client::new();
    let queue = unique("groups");
    client.put(&queue, &["m1"]).await;
    let of_a = client.take(&queue, Some("a"), 1).await;
    assert!(client.transaction().ack(&of_a[0]).commit().await.unwrap().success);
    assert_eq!(ids(&client.take(&queue, Some("b"), 1).await), ["m1"]);
    assert!(client.take(&queue, Some("a"), 1).await.is_empty());
}

#[tokio::test]
async fn a_bundle_can_fail_and_dead_letter_messages() {
    let client = Client::new();
    let (from, audit) = (unique("from"), unique("audit"));
    client.put(&from, &["m1", "m2"]).await;
    let popped = client.take(&from, None, 2).await;
    let done = client
        .transaction()
        .ack_with_reason(&popped[0], AckStatus::Dlq, "audited")
        .push(&audit, json!({"gave up": "m1"}))
        .unwrap()
        .commit()
        .await
        .unwrap();
    assert!(done.success);
    assert_eq!(client.queue(&from).dlq(None, None).await.unwrap().messages.len(), 1);
    assert_eq!(client.take(&audit, None, 1).await.len(), 1);
    assert_eq!(ids(&client.take(&from, None, 2).await), ["m2"]);
}
