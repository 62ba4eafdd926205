//! Long polls.

use std::time::{Duration, Instant};

use queen_mq::QueueOptions;

use super::{Client, ids};
use crate::common::unique;

/// Starts a long poll of this many seconds and gives it time to park.
async fn parked(
    pop: queen_mq::QueueBuilder,
    seconds: u64,
) -> tokio::task::JoinHandle<(Vec<String>, Duration)> {
    let poll = tokio::spawn(async move {
        let begun = Instant::now();
        let popped = pop.wait(true).poll_timeout(Duration::from_secs(seconds)).pop().await.unwrap();
        (ids(&popped).into_iter().map(str::to_owned).collect(), begun.elapsed())
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    poll
}

#[tokio::test]
async fn a_push_wakes_a_poll_long_before_its_deadline() {
    let client = Client::new();
    let queue = unique("wake");
    let poll = parked(client.queue(&queue), 20).await;
    client.put(&queue, &["m1"]).await;
    let (popped, waited) = poll.await.unwrap();
    assert_eq!(popped, ["m1"]);
    assert!(waited < Duration::from_secs(3), "{waited:?}");
}

#[tokio::test]
async fn a_push_wakes_a_poll_of_one_partition_that_does_not_exist_yet() {
    let client = Client::new();
    let queue = unique("wake-partition");
    let poll = parked(client.queue(&queue).partition("p"), 20).await;
    client.queue(&queue).partition("other").push(1).await.unwrap();
    client.queue(&queue).partition("p").push(2).await.unwrap();
    let (popped, waited) = poll.await.unwrap();
    assert_eq!(popped.len(), 1);
    assert!(waited < Duration::from_secs(3), "{waited:?}");
}

#[tokio::test]
async fn a_push_wakes_a_poll_by_namespace() {
    let client = Client::new();
    let namespace = unique("wake-space");
    let poll = parked(client.queue_opt(None).namespace(&namespace).group("g"), 20).await;
    client.put(&format!("{namespace}.task"), &["m1"]).await;
    let (popped, waited) = poll.await.unwrap();
    assert_eq!(popped, ["m1"]);
    assert!(waited < Duration::from_secs(3), "{waited:?}");
}

#[tokio::test]
async fn a_quiet_poll_ends_empty_at_its_deadline() {
    let client = Client::new();
    let (popped, waited) = parked(client.queue(unique("quiet")), 2).await.await.unwrap();
    assert!(popped.is_empty());
    assert!(waited >= Duration::from_millis(1500) && waited < Duration::from_secs(6), "{waited:?}");
}

#[tokio::test]
async fn an_expiring_lease_wakes_a_poll() {
    let client = Client::new();
    let queue =
        client.configured("wake-expiry", QueueOptions { lease_time: Some(1), ..Default::default() }).await;
    client.put(&queue, &["m1"]).await;
    assert_eq!(client.take(&queue, None, 1).await.len(), 1);
    let (popped, waited) = parked(client.queue(&queue), 20).await.await.unwrap();
    assert_eq!(popped, ["m1"]);
    assert!(waited < Duration::from_secs(4), "{waited:?}");
}

#[tokio::test]
async fn an_ack_that_releases_a_lease_wakes_a_poll() {
    let client = Client::new();
    let queue = unique("wake-release");
    client.put(&queue, &["m1", "m2"]).await;
    let held = client.take(&queue, None, 1).await;
    let poll = parked(client.queue(&queue), 20).await;
    client.ack(&held[0]).await.unwrap();
    let (popped, waited) = poll.await.unwrap();
    assert_eq!(popped, ["m2"]);
    assert!(waited < Duration::from_secs(3), "{waited:?}");
}

#[tokio::test]
async fn one_message_wakes_one_of_many_polls_and_the_others_go_on_waiting() {
    let client = Client::new();
    let queue = unique("many-polls");
    let mut polls = Vec::new();
    for _ in 0..5 {
        polls.push(parked(client.queue(&queue), 3).await);
    }
    client.put(&queue, &["m1"]).await;
    let mut got = Vec::new();
    for poll in polls {
        got.extend(poll.await.unwrap().0);
    }
    assert_eq!(got, ["m1"]);
}

#[tokio::test]
async fn a_poll_that_gave_up_takes_no_message_with_it() {
    let client = Client::new();
    let queue = unique("gave-up");
    for _ in 0..5 {
        let poll = parked(client.queue(&queue), 20).await;
        poll.abort();
        let _ = poll.await;
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    client.put(&queue, &["m1"]).await;
    assert_eq!(ids(&client.take(&queue, None, 1).await), ["m1"]);
}
