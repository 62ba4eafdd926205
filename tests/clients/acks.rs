//! Ack, nack and leases through the typed client.

use queen_mq::{AckStatus, QueueOptions};

use super::{Client, LEASE_OVER, ids, numbered};
use crate::common::unique;

#[tokio::test]
async fn an_acked_message_is_gone() {
    let client = Client::new();
    let queue = unique("ack");
    client.put(&queue, &["m1", "m2"]).await;
    let popped = client.take(&queue, None, 2).await;
    let first = client.ack(&popped[0]).await.unwrap();
    assert!(first.success && !first.lease_released && !first.noop && !first.dlq, "{first:?}");
    let last = client.ack(&popped[1]).await.unwrap();
    assert!(last.success && last.lease_released, "{last:?}");
    assert!(client.take(&queue, None, 2).await.is_empty());
}

#[tokio::test]
async fn a_nacked_message_comes_back_until_it_is_dead_lettered_with_the_reason() {
    let client = Client::new();
    let queue = client.configured("nack", QueueOptions { retry_limit: Some(2), ..Default::default() }).await;
    client.put(&queue, &["m1"]).await;
    for attempt in 0..3 {
        let popped = client.take(&queue, None, 1).await;
        assert_eq!(ids(&popped), ["m1"], "attempt {attempt}");
        let verdict = client.nack(&popped[0], format!("reason {attempt}")).await.unwrap();
        assert!(verdict.success, "{verdict:?}");
        assert_eq!(verdict.dlq, attempt == 2);
    }
    assert!(client.take(&queue, None, 1).await.is_empty());
    let letters = client.queue(&queue).dlq(None, None).await.unwrap();
    assert_eq!((letters.messages.len(), letters.total), (1, 1));
    assert_eq!(letters.messages[0].error.as_deref(), Some("reason 2"));
    assert_eq!(letters.messages[0].transaction_id.as_deref(), Some("m1"));
    assert_eq!(letters.messages[0].data["id"], "m1");
    assert_eq!(letters.messages[0].queue.as_deref(), Some(queue.as_str()));
}

#[tokio::test]
async fn a_message_can_be_retried_or_dead_lettered_on_purpose() {
    let client = Client::new();
    let queue = unique("on-purpose");
    client.put(&queue, &["m1"]).await;
    for _ in 0..6 {
        let popped = client.take(&queue, None, 1).await;
        let verdict = client.ack_with(&popped[0], AckStatus::Retry, None).await.unwrap();
        assert!(verdict.success && !verdict.dlq, "{verdict:?}");
    }
    let popped = client.take(&queue, None, 1).await;
    let verdict = client.ack_with(&popped[0], AckStatus::Dlq, Some("forced by test".into())).await.unwrap();
    assert!(verdict.success && verdict.dlq, "{verdict:?}");
    assert!(client.take(&queue, None, 1).await.is_empty());
    let letters = client.queue(&queue).dlq(None, None).await.unwrap();
    assert_eq!(letters.messages[0].error.as_deref(), Some("forced by test"));
}

#[tokio::test]
async fn a_batch_is_acked_or_nacked_in_one_call() {
    let client = Client::new();
    let queue = unique("batch");
    client.queue(&queue).push_many(numbered(0..50)).await.unwrap();
    let popped = client.take(&queue, None, 50).await;
    let verdicts = client.nack_all(&popped, "all of it").await.unwrap();
    assert_eq!(verdicts.len(), 50);
    assert!(verdicts.iter().all(|v| v.success && !v.dlq));
    let popped = client.take(&queue, None, 50).await;
    assert_eq!(popped.len(), 50);
    let verdicts = client.ack_all(&popped).await.unwrap();
    assert!(verdicts.iter().enumerate().all(|(n, v)| v.success && v.index == n));
    assert!(client.take(&queue, None, 50).await.is_empty());
}

#[tokio::test]
async fn a_stale_ack_says_so_and_the_message_comes_back() {
    let client = Client::new();
    let queue = client.configured("stale", QueueOptions { lease_time: Some(1), ..Default::default() }).await;
    client.put(&queue, &["m1"]).await;
    let mut popped = client.take(&queue, None, 1).await;
    tokio::time::sleep(LEASE_OVER).await;
    let verdict = client.ack(&popped[0]).await.unwrap();
    assert!(!verdict.success && verdict.error.as_deref().unwrap().contains("lease"), "{verdict:?}");
    // Without the lease the same ack is a statement of fact.
    popped[0].lease_id = String::new();
    assert!(client.ack(&popped[0]).await.unwrap().success);
    assert!(client.take(&queue, None, 1).await.is_empty());
}

#[tokio::test]
async fn a_renewed_lease_stays_ours() {
    let client = Client::new();
    let queue = client.configured("renew", QueueOptions { lease_time: Some(1), ..Default::default() }).await;
    client.put(&queue, &["m1"]).await;
    let popped = client.take(&queue, None, 1).await;
    assert!(client.renew(&popped[0], Some(4)).await.unwrap());
    tokio::time::sleep(LEASE_OVER).await;
    assert!(client.take(&queue, None, 1).await.is_empty());
    assert!(client.renew(&popped[0], None).await.unwrap());
    assert!(client.ack(&popped[0]).await.unwrap().success);
    assert!(!client.renew(&popped[0], None).await.unwrap(), "there is nothing left to renew");
}

#[tokio::test]
async fn one_lease_covers_several_partitions() {
    let client = Client::new();
    let queue = unique("multi");
    for partition in ["a", "b", "c", "d"] {
        client.queue(&queue).partition(partition).push_many(numbered(0..5)).await.unwrap();
    }
    let popped = client.queue(&queue).batch(100).partitions(4).wait(false).pop().await.unwrap();
    assert_eq!(popped.len(), 20);
    assert!(popped.iter().all(|m| m.lease_id == popped[0].lease_id));
    let renewed = client.admin().renew_lease(&popped[0].lease_id, Some(30)).await.unwrap();
    assert!(renewed.success && renewed.renewed == 4, "{renewed:?}");
    assert!(client.ack_all(&popped).await.unwrap().iter().all(|v| v.success));
    assert!(client.take(&queue, None, 10).await.is_empty());
}

#[tokio::test]
async fn the_batch_bounds_a_pop_over_several_partitions() {
    let client = Client::new();
    let queue = unique("bounded");
    for partition in ["a", "b", "c"] {
        client.queue(&queue).partition(partition).push_many(numbered(0..5)).await.unwrap();
    }
    let popped = client.queue(&queue).batch(7).partitions(3).wait(false).pop().await.unwrap();
    assert_eq!(popped.len(), 7);
}

#[tokio::test]
async fn a_pop_that_commits_on_delivery_takes_no_lease() {
    let client = Client::new();
    let queue = unique("on-delivery");
    for partition in ["a", "b", "c"] {
        client.queue(&queue).partition(partition).push_many(numbered(0..2)).await.unwrap();
    }
    let popped = client
        .queue(&queue)
        .batch(100)
        .partitions(3)
        .commit_on_delivery(true)
        .wait(false)
        .pop()
        .await
        .unwrap();
    assert_eq!(popped.len(), 6);
    assert!(popped.iter().all(|m| m.lease_id.is_empty()));
    assert!(client.renew(&popped[0], None).await.is_err());
    assert!(client.take(&queue, None, 10).await.is_empty());
}
