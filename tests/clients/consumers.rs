//! Consumers with handlers, as most users write them.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use queen_mq::consumer::Cancel;
use queen_mq::{QueueOptions, StopReason, SubscriptionMode};

use super::{Client, number, numbered};
use crate::common::unique;

type Seen = Arc<Mutex<Vec<u64>>>;

#[tokio::test]
async fn each_message_is_handled_and_acked() {
    let client = Client::new();
    let queue = unique("each");
    client.queue(&queue).push_many(numbered(0..20)).await.unwrap();
    let seen = Seen::default();
    let of_handler = Arc::clone(&seen);
    let summary = client
        .queue(&queue)
        .batch(7)
        .limit(20)
        .consume(move |message| {
            of_handler.lock().unwrap().push(number(&message));
            async { Ok::<_, Infallible>(()) }
        })
        .await
        .unwrap();
    assert_eq!((summary.processed, summary.acked, summary.nacked), (20, 20, 0));
    assert_eq!(summary.stopped_by, StopReason::Limit);
    assert_eq!(*seen.lock().unwrap(), (0..20).collect::<Vec<_>>());
    assert!(client.take(&queue, None, 10).await.is_empty());
}

#[tokio::test]
async fn whole_batches_are_handled_and_acked() {
    let client = Client::new();
    let queue = unique("batches");
    client.queue(&queue).push_many(numbered(0..20)).await.unwrap();
    let seen = Seen::default();
    let of_handler = Arc::clone(&seen);
    let summary = client
        .queue(&queue)
        .batch(8)
        .limit(20)
        .consume_batch(move |messages| {
            of_handler.lock().unwrap().extend(messages.iter().map(number));
            async { Ok::<_, Infallible>(()) }
        })
        .await
        .unwrap();
    assert_eq!((summary.processed, summary.acked), (20, 20));
    assert_eq!(*seen.lock().unwrap(), (0..20).collect::<Vec<_>>());
    assert!(client.take(&queue, None, 10).await.is_empty());
}

#[tokio::test]
async fn the_defaults_of_the_client_work() {
    let client = Client::new();
    let queue = unique("defaults");
    client.queue(&queue).push_many(numbered(0..5)).await.unwrap();
    let summary = client.queue(&queue).limit(5).consume(|_| async { Ok::<_, Infallible>(()) }).await.unwrap();
    assert_eq!(summary.acked, 5);
}

#[tokio::test]
async fn a_failing_handler_gets_its_message_again_and_then_the_rest() {
    let client = Client::new();
    let queue = unique("flaky");
    client.queue(&queue).push_many(numbered(0..4)).await.unwrap();
    let seen = Seen::default();
    let of_handler = Arc::clone(&seen);
    let summary = client
        .queue(&queue)
        .batch(4)
        .limit(5)
        .consume(move |message| {
            let mut seen = of_handler.lock().unwrap();
            let n = number(&message);
            let fails = n == 1 && !seen.contains(&1);
            seen.push(n);
            async move { if fails { Err("not yet") } else { Ok(()) } }
        })
        .await
        .unwrap();
    assert_eq!((summary.acked, summary.nacked), (4, 1));
    assert_eq!(*seen.lock().unwrap(), [0, 1, 1, 2, 3]);
}

#[tokio::test]
async fn a_message_that_always_fails_ends_in_the_dead_letters() {
    let client = Client::new();
    let queue =
        client.configured("poison", QueueOptions { retry_limit: Some(1), ..Default::default() }).await;
    client.queue(&queue).push_many(numbered(0..5)).await.unwrap();
    let seen = Seen::default();
    let of_handler = Arc::clone(&seen);
    client
        .queen
        .queue(&queue)
        .batch(5)
        .limit(6)
        .consume(move |message| {
            let n = number(&message);
            of_handler.lock().unwrap().push(n);
            async move { if n == 1 { Err("cannot be handled") } else { Ok(()) } }
        })
        .await
        .unwrap();
    assert_eq!(*seen.lock().unwrap(), [0, 1, 1, 2, 3, 4]);
    let letters = client.queue(&queue).dlq(Some(10), None).await.unwrap();
    assert_eq!(letters.messages.len(), 1);
    assert_eq!(letters.messages[0].data["n"], 1);
    assert_eq!(letters.messages[0].error.as_deref(), Some("cannot be handled"));
}

#[tokio::test]
async fn a_failing_batch_handler_gives_the_whole_batch_back() {
    let client = Client::new();
    let queue = unique("flaky-batch");
    client.queue(&queue).push_many(numbered(0..100)).await.unwrap();
    let calls = Arc::new(Mutex::new(0));
    let of_handler = Arc::clone(&calls);
    client
        .queue(&queue)
        .batch(100)
        .limit(300)
        .consume_batch(move |messages| {
            let mut calls = of_handler.lock().unwrap();
            *calls += 1;
            let fails = *calls < 3;
            assert_eq!(messages.len(), 100);
            async move { if fails { Err("again") } else { Ok(()) } }
        })
        .await
        .unwrap();
    assert_eq!(*calls.lock().unwrap(), 3);
    assert!(client.take(&queue, None, 10).await.is_empty());
    assert!(client.queue(&queue).dlq(None, None).await.unwrap().messages.is_empty());
}

#[tokio::test]
async fn an_idle_consumer_stops() {
    let client = Client::new();
    let summary = client
        .queue(unique("idle"))
        .idle(Duration::from_millis(400))
        .poll_timeout(Duration::from_millis(200))
        .consume(|_| async { Ok::<_, Infallible>(()) })
        .await
        .unwrap();
    assert_eq!((summary.stopped_by, summary.processed), (StopReason::Idle, 0));
}

#[tokio::test]
async fn a_waiting_consumer_can_be_cancelled() {
    let client = Client::new();
    let cancel = Cancel::new();
    let consumer =
        client.queue(unique("cancel")).cancel(cancel.clone()).poll_timeout(Duration::from_millis(500));
    let running = tokio::spawn(async move { consumer.consume(|_| async { Ok::<_, Infallible>(()) }).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    cancel.cancel();
    assert_eq!(running.await.unwrap().unwrap().stopped_by, StopReason::Cancelled);
}

#[tokio::test]
async fn a_consumer_that_waits_gets_what_is_pushed_meanwhile() {
    let client = Client::new();
    let queue = unique("meanwhile");
    let consumer = client.queue(&queue).group("g").limit(3);
    let running = tokio::spawn(async move { consumer.consume(|_| async { Ok::<_, Infallible>(()) }).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    client.queue(&queue).push_many(numbered(0..3)).await.unwrap();
    let summary = tokio::time::timeout(Duration::from_secs(10), running).await.unwrap().unwrap().unwrap();
    assert_eq!(summary.acked, 3);
}

#[tokio::test]
async fn four_workers_keep_every_partition_in_order_and_handle_nothing_twice() {
    let client = Client::new();
    let queue = unique("workers");
    for partition in ["a", "b", "c", "d", "e", "f"] {
        client.queue(&queue).partition(partition).push_many(numbered(0..50)).await.unwrap();
    }
    let seen = Arc::new(Mutex::new(HashMap::<String, Vec<u64>>::new()));
    let of_handler = Arc::clone(&seen);
    let summary = client
        .queue(&queue)
        .group("g")
        .subscription_mode(SubscriptionMode::All)
        .concurrency(4)
        .batch(10)
        .idle(Duration::from_secs(1))
        .poll_timeout(Duration::from_millis(500))
        .consume(move |message| {
            of_handler.lock().unwrap().entry(message.partition.clone()).or_default().push(number(&message));
            async { Ok::<_, Infallible>(()) }
        })
        .await
        .unwrap();
    assert_eq!(summary.acked, 300);
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 6);
    for (partition, numbers) in seen.iter() {
        assert_eq!(*numbers, (0..50).collect::<Vec<_>>(), "{partition}");
    }
}

#[tokio::test]
async fn renewing_protects_a_slow_handler() {
    let client = Client::new();
    let queue = client.configured("slow", QueueOptions { lease_time: Some(1), ..Default::default() }).await;
    client.queue(&queue).push_many(numbered(0..1)).await.unwrap();
    let seen = Seen::default();
    let of_handler = Arc::clone(&seen);
    client
        .queen
        .queue(&queue)
        .batch(1)
        .renew_lease(Duration::from_millis(300))
        .limit(1)
        .consume(move |message| {
            of_handler.lock().unwrap().push(number(&message));
            async {
                tokio::time::sleep(Duration::from_millis(2500)).await;
                Ok::<_, Infallible>(())
            }
        })
        .await
        .unwrap();
    assert!(
        client.take(&queue, None, 1).await.is_empty(),
        "acked under a lease of one second after two and a half"
    );
}
