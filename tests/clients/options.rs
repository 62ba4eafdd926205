//! Queue options that change delivery.

use std::time::{Duration, Instant};

use queen_mq::{Message, QueueOptions};

use super::{Client, numbered};

async fn wait_for(client: &Client, queue: &str) -> (Vec<Message>, Duration) {
    let begun = Instant::now();
    let pop = client.queue(queue).batch(10).wait(true).poll_timeout(Duration::from_secs(15));
    (pop.pop().await.unwrap(), begun.elapsed())
}

#[tokio::test]
async fn a_delayed_queue_holds_its_messages() {
    let client = Client::new();
    let queue = client
        .configured("delayed", QueueOptions { delayed_processing: Some(2), ..Default::default() })
        .await;
    client.queue(&queue).push_many(numbered(0..3)).await.unwrap();
    assert!(client.take(&queue, None, 10).await.is_empty());
    let (popped, waited) = wait_for(&client, &queue).await;
    assert_eq!(popped.len(), 3);
    assert!(waited > Duration::from_millis(1500) && waited < Duration::from_secs(5), "{waited:?}");
}

#[tokio::test]
async fn a_window_queue_waits_for_quiet() {
    let client = Client::new();
    let queue =
        client.configured("window", QueueOptions { window_buffer: Some(2), ..Default::default() }).await;
    client.queue(&queue).push_many(numbered(0..1)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1200)).await;
    client.queue(&queue).push_many(numbered(1..2)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1200)).await;
    assert!(client.take(&queue, None, 10).await.is_empty(), "the second push made the first wait longer");
    let (popped, waited) = wait_for(&client, &queue).await;
    assert_eq!(popped.len(), 2);
    assert!(waited < Duration::from_secs(4), "{waited:?}");
}

#[tokio::test]
async fn delay_and_window_together_deliver_everything() {
    let client = Client::new();
    let options = QueueOptions { delayed_processing: Some(1), window_buffer: Some(1), ..Default::default() };
    let queue = client.configured("both", options).await;
    client.queue(&queue).push_many(numbered(0..5)).await.unwrap();
    assert_eq!(wait_for(&client, &queue).await.0.len(), 5);
}

#[tokio::test]
async fn a_pop_may_ask_for_a_shorter_lease_than_the_queue_has() {
    let client = Client::new();
    let queue =
        client.configured("override", QueueOptions { lease_time: Some(60), ..Default::default() }).await;
    client.queue(&queue).push_many(numbered(0..1)).await.unwrap();
    assert_eq!(client.queue(&queue).batch(1).lease_seconds(1).wait(false).pop().await.unwrap().len(), 1);
    tokio::time::sleep(super::LEASE_OVER).await;
    assert_eq!(client.take(&queue, None, 1).await.len(), 1);
}

#[tokio::test]
async fn dead_letters_need_both_flags_off_to_be_off() {
    let client = Client::new();
    for (queue_flag, retries_flag, filed) in [(false, true, 1), (true, false, 1), (false, false, 0)] {
        let options = QueueOptions {
            retry_limit: Some(0),
            dead_letter_queue: Some(queue_flag),
            dlq_after_max_retries: Some(retries_flag),
            ..Default::default()
        };
        let queue = client.configured("dlq-flags", options).await;
        client.put(&queue, &["m1"]).await;
        let popped = client.take(&queue, None, 1).await;
        assert!(client.nack(&popped[0], "no").await.unwrap().success);
        assert_eq!(client.queue(&queue).dlq(None, None).await.unwrap().messages.len(), filed);
        assert!(client.take(&queue, None, 1).await.is_empty());
    }
}

#[tokio::test]
async fn options_are_echoed() {
    let client = Client::new();
    let options = QueueOptions {
        lease_time: Some(11),
        retry_limit: Some(7),
        delayed_processing: Some(1),
        window_buffer: Some(2),
        dedup_window_seconds: Some(33),
        retention_seconds: Some(44),
        completed_retention_seconds: Some(55),
        retention_enabled: Some(true),
        min_pop_wait_time: Some(100_000),
        priority: Some(9),
        ..Default::default()
    };
    let answer = client.queue(crate::common::unique("echo")).configure(options).await.unwrap();
    let echoed = &answer["options"];
    assert_eq!(echoed["leaseTime"], 11);
    assert_eq!(echoed["retryLimit"], 7);
    assert_eq!(echoed["delayedProcessing"], 1);
    assert_eq!(echoed["windowBuffer"], 2);
    assert_eq!(echoed["dedupWindowSeconds"], 33);
    assert_eq!(echoed["retentionSeconds"], 44);
    assert_eq!(echoed["completedRetentionSeconds"], 55);
    assert_eq!(echoed["retentionEnabled"], true);
    assert_eq!(echoed["minPopWaitTime"], 60_000, "clamped");
    assert_eq!(echoed["priority"], 9);
    assert_eq!(echoed["deadLetterQueue"], true);
}
