//! Consumer groups and where they begin.

use std::time::Duration;

use queen_mq::SubscriptionMode;

use super::{Client, ids};
use crate::common::unique;

#[tokio::test]
async fn every_group_gets_every_message() {
    let client = Client::new();
    let queue = unique("fan-out");
    client.put(&queue, &["m1", "m2"]).await;
    for group in [Some("a"), Some("b"), None] {
        let popped = client.take(&queue, group, 10).await;
        assert_eq!(ids(&popped), ["m1", "m2"], "{group:?}");
        assert!(client.ack_all(&popped).await.unwrap().iter().all(|v| v.success));
        assert!(client.take(&queue, group, 10).await.is_empty());
    }
}

#[tokio::test]
async fn a_new_group_begins_where_it_says() {
    let client = Client::new();
    let queue = unique("start");
    client.put(&queue, &["before"]).await;
    let pop = |group: &str| client.queue(&queue).group(group).batch(10).wait(false);
    assert_eq!(ids(&pop("all").subscription_mode(SubscriptionMode::All).pop().await.unwrap()), ["before"]);
    assert!(pop("new").subscription_mode(SubscriptionMode::New).pop().await.unwrap().is_empty());
    assert!(pop("default").pop().await.unwrap().is_empty(), "a group that says nothing begins now");
    assert!(pop("now").subscription_from("now").pop().await.unwrap().is_empty());
    client.put(&queue, &["after"]).await;
    assert_eq!(ids(&pop("new").pop().await.unwrap()), ["after"]);
    assert_eq!(ids(&pop("default").pop().await.unwrap()), ["after"]);
    assert_eq!(ids(&pop("now").pop().await.unwrap()), ["after"]);
    // The mode of a later pop changes nothing.
    let late = client.take(&queue, Some("new"), 10).await;
    assert!(late.is_empty(), "{late:?}");
}

#[tokio::test]
async fn a_group_can_begin_at_a_time() {
    let client = Client::new();
    let queue = unique("from-time");
    client.put(&queue, &["before"]).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    client.put(&queue, &["after"]).await;
    let all = client.take(&queue, None, 10).await;
    assert_eq!(ids(&all), ["before", "after"]);
    let from = |group: &str, time: &str| {
        client.queue(&queue).group(group).subscription_from(time).batch(10).wait(false)
    };
    assert_eq!(ids(&from("a", "2001-01-01T00:00:00Z").pop().await.unwrap()), ["before", "after"]);
    // `createdAt` is cut to milliseconds, so the instant it shows is at or before the message.
    assert_eq!(ids(&from("b", &all[1].created_at).pop().await.unwrap()), ["after"]);
}

#[tokio::test]
async fn a_partition_born_after_the_group_is_read_from_its_start() {
    let client = Client::new();
    let queue = unique("born-later");
    client.queue(&queue).partition("early").push(1).await.unwrap();
    let pop = || client.queue(&queue).group("g").batch(10).partitions(4).wait(false);
    assert!(pop().subscription_mode(SubscriptionMode::New).pop().await.unwrap().is_empty());
    client.queue(&queue).partition("late").push_many([1, 2]).await.unwrap();
    client.queue(&queue).partition("late").push(3).await.unwrap();
    let popped = pop().pop().await.unwrap();
    assert_eq!(popped.iter().map(|m| m.data.as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 3]);
}

#[tokio::test]
async fn queue_mode_always_begins_at_the_first_message() {
    let client = Client::new();
    let queue = unique("queue-mode");
    client.put(&queue, &["m1"]).await;
    let popped = client
        .queue(&queue)
        .subscription_mode(SubscriptionMode::New)
        .batch(1)
        .wait(false)
        .pop()
        .await
        .unwrap();
    assert_eq!(ids(&popped), ["m1"]);
}

#[tokio::test]
async fn a_queue_is_found_by_namespace_and_task() {
    let client = Client::new();
    let (namespace, task) = (unique("space"), unique("task"));
    let queue = format!("{namespace}.{task}.jobs");
    client.put(&queue, &["m1"]).await;
    let pop =
        || client.queue_opt(None).batch(10).wait(false).group("g").subscription_mode(SubscriptionMode::All);
    assert!(pop().namespace(&namespace).task("other").pop().await.unwrap().is_empty());
    let popped = pop().namespace(&namespace).task(&task).pop().await.unwrap();
    assert_eq!(ids(&popped), ["m1"]);
    assert!(client.ack(&popped[0]).await.unwrap().success);
}
